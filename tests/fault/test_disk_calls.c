/* SPDX-License-Identifier: Apache-2.0
 *
 * The n-th call on the store's files fails, for n = 1, 2, ... until a run makes
 * no more calls: what was acknowledged is there afterwards, nothing is wrong,
 * the store opens. Once with one failure, once with all calls failing from there.
 */
#include "storage/base/log.h"
#include "tests/unit/tier/disk_pages.h"

#define CAP ((8u << 20) + 4096u)
#define PAGES 6u

struct fixture {
    struct fault_io fault;
    char *base;
    struct qr_disk_config config;
    bool put[PAGES], deleted[PAGES]; /* acknowledged */
    bool maybe_deleted[PAGES];
    uint64_t rows; /* acknowledged */
};

static uint8_t rows[600];

static quire_status put_pages(struct fixture *f, struct qr_disk *disk,
                              struct qr_disk_place *places)
{
    quire_status first = QUIRE_OK;

    for (uint32_t n = 0; n < PAGES; n += 2) {
        const quire_status status = test_put(disk, n, 2, 30000, places + n);
        f->put[n] = f->put[n + 1] = status == QUIRE_OK;
        first = first != QUIRE_OK ? first : status;
    }
    return first;
}

static quire_status delete_page(struct fixture *f, struct qr_disk *disk, uint32_t n,
                                const struct qr_disk_place *place)
{
    struct qr_disk_batch batch = {0};
    uint8_t id[QR_HASH_BYTES];

    if (!f->put[n])
        return QUIRE_OK;
    test_page_id(n, id);
    const struct qr_disk_key key = qr_disk_key_page(id);
    qr_disk_batch_delete(&batch, &key);
    struct qr_disk_commit commit = {.batch = &batch, .freed = place, .freed_count = 1};
    qr_disk_commit_touch(&commit, place);
    f->maybe_deleted[n] = true;
    const quire_status status = qr_disk_commit_wait(disk, &commit);
    f->deleted[n] = status == QUIRE_OK;
    qr_disk_batch_free(&batch);
    return status;
}

static quire_status append_rows(struct fixture *f, struct qr_disk *disk)
{
    quire_status first = QUIRE_OK;

    for (uint64_t i = 0; i < 3; i++) {
        const struct qr_tail_record record = {.session = {1},
                                              .tokens = 1,
                                              .position = i,
                                              .payload = rows,
                                              .payload_bytes = sizeof(rows)};
        struct qr_disk_commit commit = {.tail = true};
        uint64_t sequence;
        quire_status status = qr_tail_log_append(qr_disk_tail_log_of(disk), &record, &sequence);
        if (status == QUIRE_OK)
            status = qr_disk_commit_wait(disk, &commit);
        if (status == QUIRE_OK)
            f->rows = i + 1;
        first = first != QUIRE_OK ? first : status;
    }
    return first;
}

static bool count_row(void *arg, const struct qr_tail_record *record)
{
    uint64_t *seen = arg; /* bit i: row i */

    assert_true(record->position < 3);
    assert_memory_equal(record->payload, rows, sizeof(rows));
    *seen |= UINT64_C(1) << record->position;
    return true;
}

/* The run that meets the failure. OK when nothing in it failed. */
static quire_status run(struct fixture *f)
{
    struct qr_disk *disk = NULL;
    struct qr_disk_place places[PAGES];
    struct qr_tail_log_report report;
    uint64_t seen = 0;
    quire_status status = qr_disk_open(&f->config, NULL, NULL, &disk, NULL);

    if (status != QUIRE_OK)
        return status;
    status = qr_tail_log_replay(qr_disk_tail_log_of(disk), count_row, &seen, &report, NULL);
    if (status == QUIRE_OK)
        status = put_pages(f, disk, places);
    const quire_status deleted = delete_page(f, disk, 3, &places[3]);
    const quire_status appended = append_rows(f, disk);
    const quire_status flushed = qr_disk_flush(disk);
    qr_disk_close(&disk);
    if (status == QUIRE_OK)
        status = deleted != QUIRE_OK ? deleted : appended != QUIRE_OK ? appended : flushed;
    return status;
}

static void verify(struct fixture *f)
{
    struct qr_disk *disk = NULL;
    struct qr_tail_log_report report;
    struct qr_disk_stat stat;
    struct qr_error e = {0};
    uint64_t seen = 0;

    const quire_status status = qr_disk_open(&f->config, NULL, NULL, &disk, &e);
    if (status != QUIRE_OK)
        print_message("%s\n", e.text);
    assert_ok(status);
    assert_ok(qr_tail_log_replay(qr_disk_tail_log_of(disk), count_row, &seen, &report, NULL));
    assert_int_equal(report.damaged, 0);
    for (uint64_t i = 0; i < f->rows; i++)
        assert_true(seen >> i & 1);
    for (uint32_t n = 0; n < PAGES; n++) {
        const quire_status got = test_get(disk, n);
        if (f->put[n] && !f->maybe_deleted[n])
            assert_int_equal(got, QUIRE_OK);
        else if (f->deleted[n])
            assert_int_equal(got, QUIRE_ENOTFOUND);
        else
            assert_true(got == QUIRE_OK || got == QUIRE_ENOTFOUND);
    }
    qr_disk_stat(disk, &stat);
    assert_int_equal(stat.bad_entries, 0);
    assert_ok(test_put(disk, 100, 2, 30000, NULL)); /* and it goes on */
    qr_disk_close(&disk);
}

static void fail_each_call(uint64_t count)
{
    static const int errors[] = {EIO, ENOSPC, EAGAIN, EDQUOT};
    quire_status status = QUIRE_EIO;
    uint64_t n = 1, clean = 0;

    for (; clean < 4; n++) { /* a run longer than n calls and without failure, for each errno */
        struct fixture f = {0};
        fault_init(&f.fault);
        f.base = test_folder();
        f.config = (struct qr_disk_config){.io = &f.fault.io,
                                           .folders = {f.base},
                                           .cap_bytes = {CAP},
                                           .count = 1,
                                           .create = true,
                                           .no_uring = n % 2 == 0,
                                           .tail_log_bytes = 256u << 10,
                                           .tail_segment_bytes = 64u << 10};
        fault_arm(&f.fault, n, count, errors[n % ARRAY_LEN(errors)]);
        status = run(&f);
        const bool reached = atomic_load(&f.fault.calls) >= n;
        fault_arm(&f.fault, 0, 0, 0);
        verify(&f);
        clean = reached ? 0 : clean + (status == QUIRE_OK);
        test_folder_remove(f.base);
        assert_true(n < 1000);
    }
    print_message("%llu calls, each failed in turn\n", (unsigned long long)n - 5);
    assert_true(n > 30);
}

static void one_failure_at_any_call_loses_nothing_acknowledged(void **state)
{
    (void)state;
    fail_each_call(1);
}

static void failing_from_any_call_on_loses_nothing_acknowledged(void **state)
{
    (void)state;
    fail_each_call(UINT64_MAX / 2);
}

/* Reads go on while writes find no room. */
static void a_full_disk_a_hundred_times(void **state)
{
    struct fixture f = {0};
    struct qr_disk *disk = NULL;
    (void)state;

    fault_init(&f.fault);
    f.base = test_folder();
    f.config = (struct qr_disk_config){
        .io = &f.fault.io, .folders = {f.base}, .cap_bytes = {CAP}, .count = 1, .create = true};
    assert_ok(qr_disk_open(&f.config, NULL, NULL, &disk, NULL));
    assert_ok(test_put(disk, 0, 8, 30000, NULL));
    for (uint32_t i = 0; i < 100; i++) {
        fault_arm(&f.fault, 1 + i % 3, 1, ENOSPC);
        (void)test_put(disk, 1000 + i, 1, 30000, NULL);
        fault_arm(&f.fault, 0, 0, 0);
        assert_ok(test_get(disk, i % 8));
    }
    qr_disk_close(&disk);
    assert_ok(qr_disk_open(&f.config, NULL, NULL, &disk, NULL));
    for (uint64_t n = 0; n < 8; n++)
        assert_ok(test_get(disk, n));
    qr_disk_close(&disk);
    test_folder_remove(f.base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_failure_at_any_call_loses_nothing_acknowledged),
        cmocka_unit_test(failing_from_any_call_on_loses_nothing_acknowledged),
        cmocka_unit_test(a_full_disk_a_hundred_times),
    };
    qr_log_configure(QR_LOG_ERROR, QR_LOG_TEXT, open("/dev/null", O_WRONLY));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
