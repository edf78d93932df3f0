/* SPDX-License-Identifier: Apache-2.0
 *
 * Every unit of every job runs exactly once before the job's caller returns.
 */
#include "tests/test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "storage/base/workers.h"

#define UNITS 500

struct tally {
    struct qr_workers *workers;
    _Atomic uint32_t runs[UNITS];
    _Atomic uint32_t bad_worker;
};

static void count_unit(void *arg, size_t unit, uint32_t worker)
{
    struct tally *tally = arg;

    atomic_fetch_add(&tally->runs[unit], 1);
    if (worker >= qr_workers_count(tally->workers))
        atomic_fetch_add(&tally->bad_worker, 1);
}

static void *run_jobs(void *arg)
{
    struct tally *tally = arg;

    for (int i = 0; i < 20; i++)
        qr_workers_run(tally->workers, UNITS, count_unit, tally);
    return NULL;
}

static void runs_each_unit_once_for_each_caller(void **state)
{
    struct tally tallies[3] = {0};
    pthread_t threads[3];
    struct qr_workers *workers;
    (void)state;

    assert_ok(qr_workers_create(3, &workers, NULL));
    for (int t = 0; t < 3; t++) {
        tallies[t].workers = workers;
        assert_int_equal(pthread_create(&threads[t], NULL, run_jobs, &tallies[t]), 0);
    }
    for (int t = 0; t < 3; t++)
        pthread_join(threads[t], NULL);
    for (int t = 0; t < 3; t++) {
        assert_int_equal(atomic_load(&tallies[t].bad_worker), 0);
        for (int u = 0; u < UNITS; u++)
            assert_int_equal(atomic_load(&tallies[t].runs[u]), 20);
    }
    qr_workers_destroy(&workers);
    assert_null(workers);
}

static void a_job_of_nothing_returns_at_once(void **state)
{
    struct qr_workers *workers;
    (void)state;

    assert_ok(qr_workers_create(1, &workers, NULL));
    qr_workers_run(workers, 0, count_unit, NULL);
    qr_workers_destroy(&workers);
}

static void refuses_a_senseless_number_of_threads(void **state)
{
    struct qr_workers *workers = NULL;
    struct qr_error e;
    (void)state;

    assert_status(QUIRE_EINVAL, qr_workers_create(0, &workers, &e));
    assert_status(QUIRE_EINVAL, qr_workers_create(QR_WORKERS_MAX + 1, &workers, &e));
    assert_non_null(strstr(e.text, "257"));
    assert_null(workers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_each_unit_once_for_each_caller),
        cmocka_unit_test(a_job_of_nothing_returns_at_once),
        cmocka_unit_test(refuses_a_senseless_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
