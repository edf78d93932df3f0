/* SPDX-License-Identifier: Apache-2.0
 *
 * The helping thread: every unit runs exactly once, whoever takes it, also when several callers
 * want help at the same time and when there is no helper.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "client/client_helper.h"
#include "tests/test.h"

#define UNITS 1000
#define CALLERS 4
#define ROUNDS 50

struct counts {
    struct qr_helper *helper;
    atomic_uint done[UNITS];
};

static void count_unit(void *arg, uint32_t unit)
{
    struct counts *c = arg;
    atomic_fetch_add(&c->done[unit], 1);
}

static bool all_are(struct counts *c, unsigned wanted)
{
    for (uint32_t i = 0; i < UNITS; i++)
        if (atomic_load(&c->done[i]) != wanted)
            return false;
    return true;
}

static void every_unit_runs_once(void **state)
{
    static struct counts c;
    (void)state;
    c.helper = qr_helper_create();
    assert_non_null(c.helper);
    for (unsigned round = 1; round <= ROUNDS; round++) {
        qr_helper_run(c.helper, UNITS, count_unit, &c);
        assert_true(all_are(&c, round));
    }
    qr_helper_destroy(&c.helper);
    assert_null(c.helper);
}

static void without_a_helper_the_caller_does_all(void **state)
{
    static struct counts c;
    (void)state;
    qr_helper_run(NULL, UNITS, count_unit, &c);
    assert_true(all_are(&c, 1));
}

static void no_units_are_no_work(void **state)
{
    static struct counts c;
    (void)state;
    c.helper = qr_helper_create();
    qr_helper_run(c.helper, 0, count_unit, &c);
    assert_true(all_are(&c, 0));
    qr_helper_destroy(&c.helper);
}

static struct qr_helper *shared;
static atomic_uint wrong;

static void *call_often(void *arg)
{
    struct counts *c = arg;
    for (unsigned round = 1; round <= ROUNDS; round++) {
        qr_helper_run(shared, UNITS, count_unit, c);
        if (!all_are(c, round)) /* all of them are done on return */
            atomic_fetch_add(&wrong, 1);
    }
    return NULL;
}

static void callers_at_once_get_all_done(void **state)
{
    static struct counts counts[CALLERS];
    pthread_t threads[CALLERS];
    (void)state;
    shared = qr_helper_create();
    for (size_t i = 0; i < CALLERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, &counts[i]), 0);
    for (size_t i = 0; i < CALLERS; i++)
        pthread_join(threads[i], NULL);
    qr_helper_destroy(&shared);
    assert_int_equal(atomic_load(&wrong), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_unit_runs_once),
        cmocka_unit_test(without_a_helper_the_caller_does_all),
        cmocka_unit_test(no_units_are_no_work),
        cmocka_unit_test(callers_at_once_get_all_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
