/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows synced to the tail log come back after a restart, whatever was torn off
 * its end; rows that were sealed, truncated or forgotten let their segments go;
 * the log keeps to its limits.
 */
#include "disk_test.h"

#include <dirent.h>

#include "storage/tier/tail_log.h"

#define SEGMENT (64u << 10)
#define ROWS 2048u

struct fixture {
    struct fault_io fault;
    char *base;
    int folder_fd;
    struct qr_tail_log_config config;
    struct qr_tail_log *log;
};

static const uint8_t store_id[QR_DISK_UUID_BYTES] = {42};

static void setup(struct fixture *f)
{
    fault_init(&f->fault);
    f->base = test_folder();
    f->folder_fd = open(f->base, O_RDONLY | O_DIRECTORY);
    f->config = (struct qr_tail_log_config){.io = &f->fault.io,
                                            .folder_fd = f->folder_fd,
                                            .store = store_id,
                                            .segment_bytes = SEGMENT,
                                            .max_bytes = 6 * SEGMENT};
    assert_ok(qr_tail_log_open(&f->config, &f->log, NULL));
}

static void teardown(struct fixture *f)
{
    qr_tail_log_close(&f->log);
    close(f->folder_fd);
    test_folder_remove(f->base);
}

/* Rows of a lane from a position on: bytes that tell both, so that a mix-up shows. */
static void fill(uint8_t *out, uint32_t n, uint32_t lane, uint64_t position)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (uint8_t)(i * 7u + lane * 31u + position * 131u + (i >> 8));
}

static quire_status append_to(struct fixture *f, uint32_t lane, uint64_t position,
                              uint32_t tokens, uint32_t bytes)
{
    static uint8_t rows[SEGMENT];
    struct qr_tail_record record = {.session = {7, 7},
                                    .lane = lane,
                                    .tokens = tokens,
                                    .position = position,
                                    .epoch = 3,
                                    .payload = rows,
                                    .payload_bytes = bytes};
    uint64_t sequence;

    fill(rows, bytes, lane, position);
    return qr_tail_log_append(f->log, &record, &sequence);
}

struct replayed {
    uint64_t records, positions[64], lengths[4];
    uint64_t sequence_last;
    uint64_t counts_from; /* records below this position are dead */
};

static bool on_record(void *arg, const struct qr_tail_record *record)
{
    struct replayed *r = arg;
    uint8_t expected[SEGMENT];

    fill(expected, record->payload_bytes, record->lane, record->position);
    assert_memory_equal(expected, record->payload, record->payload_bytes);
    assert_int_equal(record->session[0], 7);
    assert_int_equal(record->epoch, 3);
    assert_true(record->lane < 4);
    r->positions[r->records++ % 64] = record->position;
    r->sequence_last =
        record->sequence > r->sequence_last ? record->sequence : r->sequence_last;
    if (record->position + record->tokens > r->lengths[record->lane])
        r->lengths[record->lane] = record->position + record->tokens;
    return record->position >= r->counts_from;
}

static void reopen(struct fixture *f, struct replayed *out, struct qr_tail_log_report *report)
{
    qr_tail_log_close(&f->log);
    assert_ok(qr_tail_log_open(&f->config, &f->log, NULL));
    assert_ok(qr_tail_log_replay(f->log, on_record, out, report, NULL));
}

static uint32_t files(struct fixture *f)
{
    char path[400];
    uint32_t count = 0;
    struct dirent *entry;

    snprintf(path, sizeof(path), "%s/tail", f->base);
    DIR *listing = opendir(path);
    while ((entry = readdir(listing)) != NULL)
        count += entry->d_name[0] != '.';
    closedir(listing);
    return count;
}

static void synced_rows_come_back_in_order(void **state)
{
    struct fixture f;
    struct replayed r = {0};
    struct qr_tail_log_report report;
    (void)state;

    setup(&f);
    for (uint32_t i = 0; i < 20; i++) {
        assert_ok(append_to(&f, i % 2, i / 2 * 4, 4, 100 + i * 16));
        if (i % 3 == 0)
            assert_ok(qr_tail_log_sync(f.log, NULL));
    }
    assert_ok(qr_tail_log_sync(f.log, NULL));
    reopen(&f, &r, &report);
    assert_int_equal(report.records, 20);
    assert_int_equal(report.torn + report.damaged, 0);
    assert_int_equal(r.lengths[0], 40);
    assert_int_equal(r.lengths[1], 40);
    assert_int_equal(r.positions[19], 36);
    teardown(&f);
}

static void rows_not_synced_may_be_missing_and_sequences_go_on(void **state)
{
    struct fixture f;
    struct replayed r = {0}, again = {0};
    struct qr_tail_log_report report;
    (void)state;

    setup(&f);
    assert_ok(append_to(&f, 0, 0, 4, 1000));
    assert_ok(qr_tail_log_sync(f.log, NULL));
    assert_ok(append_to(&f, 0, 4, 4, 1000));
    reopen(&f, &r, &report);
    assert_int_equal(r.lengths[0], 4);
    assert_ok(append_to(&f, 0, 4, 4, 1000));
    assert_ok(qr_tail_log_sync(f.log, NULL));
    reopen(&f, &again, &report);
    assert_int_equal(again.lengths[0], 8);
    assert_true(again.sequence_last > r.sequence_last);
    teardown(&f);
}

static void sealed_rows_let_their_segments_go(void **state)
{
    struct fixture f;
    struct qr_tail_log_stat stat;
    (void)state;

    setup(&f);
    for (uint32_t i = 0; i < 2000; i++) { /* many times the limit */
        assert_ok(append_to(&f, 0, i * 4, 4, ROWS));
        assert_ok(qr_tail_log_sync(f.log, NULL));
        if (i % 8 == 7)
            qr_tail_log_drop(f.log, (const uint8_t[16]){7, 7}, 0, i * 4 + 4);
        assert_true(files(&f) <= 6);
    }
    qr_tail_log_stat(f.log, &stat);
    assert_int_equal(stat.live_records, 0);
    assert_true(stat.file_bytes <= 6 * SEGMENT);
    teardown(&f);
}

static void a_full_log_says_so_and_recovers(void **state)
{
    struct fixture f;
    quire_status status = QUIRE_OK;
    struct qr_error e;
    uint32_t n = 0;
    (void)state;

    setup(&f);
    for (; status == QUIRE_OK && n < 1000; n++) {
        assert_ok(append_to(&f, 0, n * 4, 4, 16384));
        status = qr_tail_log_sync(f.log, &e);
    }
    assert_int_equal(status, QUIRE_EFULL);
    assert_non_null(strstr(e.text, "full"));
    qr_tail_log_drop(f.log, (const uint8_t[16]){7, 7}, 0, 20 * 4);
    assert_ok(qr_tail_log_sync(f.log, &e));
    teardown(&f);
}

static void sparse_segments_are_moved_together(void **state)
{
    struct fixture f;
    struct replayed r = {0};
    struct qr_tail_log_report report;
    struct qr_tail_log_stat stat;
    (void)state;

    setup(&f);
    for (uint32_t s = 0; s < 4;
         s++) { /* a segment each: one slow lane's row, much of a fast one */
        assert_ok(append_to(&f, 1, s * 4, 4, 512));
        for (uint32_t i = 0; i < 3; i++)
            assert_ok(append_to(&f, 0, (s * 3 + i) * 4, 4, 20000));
        assert_ok(qr_tail_log_sync(f.log, NULL));
    }
    qr_tail_log_drop(f.log, (const uint8_t[16]){7, 7}, 0, 1000);
    assert_true(files(&f) >= 4);
    for (int i = 0; i < 6; i++)
        assert_ok(qr_tail_log_compact(f.log, NULL));
    assert_true(files(&f) <= 2);
    qr_tail_log_stat(f.log, &stat);
    assert_true(stat.moved_bytes > 0);
    assert_int_equal(stat.live_records, 4);
    reopen(&f, &r, &report);
    assert_int_equal(r.lengths[1], 16);
    teardown(&f);
}

static void nothing_is_taken_for_dead_before_the_replay(void **state)
{
    struct fixture f;
    struct replayed r = {0};
    struct qr_tail_log_report report;
    (void)state;

    setup(&f);
    for (uint32_t i = 0; i < 8; i++) {
        assert_ok(append_to(&f, 0, i * 4, 4, 20000));
        assert_ok(qr_tail_log_sync(f.log, NULL));
    }
    const uint32_t before = files(&f);
    qr_tail_log_close(&f.log);
    assert_ok(qr_tail_log_open(&f.config, &f.log, NULL));
    assert_ok(qr_tail_log_compact(f.log, NULL));
    assert_ok(qr_tail_log_sync(f.log, NULL));
    assert_int_equal(files(&f), before);
    assert_ok(qr_tail_log_replay(f.log, on_record, &r, &report, NULL));
    assert_int_equal(r.lengths[0], 32);
    teardown(&f);
}

static void a_group_may_span_many_segments(void **state)
{
    struct fixture f;
    struct replayed r = {0};
    struct qr_tail_log_report report;
    (void)state;

    setup(&f);
    qr_tail_log_close(&f.log);
    f.config.pending_max = 8 * SEGMENT;
    assert_ok(qr_tail_log_open(&f.config, &f.log, NULL));
    for (uint32_t i = 0; i < 10; i++)
        assert_ok(append_to(&f, 0, i * 4, 4, 30000));
    assert_ok(qr_tail_log_sync(f.log, NULL));
    assert_true(files(&f) >= 5);
    reopen(&f, &r, &report);
    assert_int_equal(r.lengths[0], 40);
    assert_int_equal(report.records, 10);
    teardown(&f);
}

static void a_cut_counts_records_from_its_sequence_on(void **state)
{
    struct fixture f;
    struct qr_tail_log_stat stat;
    uint64_t cut, sequence;
    uint8_t rows[64] = {0};
    (void)state;

    setup(&f);
    assert_ok(append_to(&f, 0, 0, 4, 64));
    assert_ok(append_to(&f, 0, 4, 4, 64));
    assert_ok(qr_tail_log_sync(f.log, NULL));
    assert_ok(append_to(&f, 0, 8, 4, 64)); /* pending when it is cut */
    qr_tail_log_cut(f.log, (const uint8_t[16]){7, 7}, 0, 4, &cut);
    const struct qr_tail_record next = {
        .tokens = 4, .position = 4, .payload = rows, .payload_bytes = 64, .session = {7, 7}};
    assert_ok(qr_tail_log_append(f.log, &next, &sequence));
    assert_true(sequence >= cut);
    assert_ok(qr_tail_log_sync(f.log, NULL));
    qr_tail_log_stat(f.log, &stat);
    assert_int_equal(stat.live_records, 2);
    qr_tail_log_forget(f.log, (const uint8_t[16]){7, 7}, 0);
    qr_tail_log_stat(f.log, &stat);
    assert_int_equal(stat.live_records + stat.live_bytes, 0);
    teardown(&f);
}

static void failed_syncs_keep_the_rows_for_the_next(void **state)
{
    quire_status status;
    uint64_t n = 1;
    (void)state;

    do {
        struct fixture f;
        struct replayed r = {0};
        struct qr_tail_log_report report;
        setup(&f);
        assert_ok(append_to(&f, 0, 0, 4, 21000));
        assert_ok(append_to(&f, 0, 4, 4, 21000));
        assert_ok(append_to(&f, 0, 8, 4, 21000));
        fault_arm(&f.fault, n, 1, n % 2 ? EIO : ENOSPC);
        status = qr_tail_log_sync(f.log, NULL);
        fault_arm(&f.fault, 0, 0, 0);
        assert_ok(qr_tail_log_sync(f.log, NULL));
        reopen(&f, &r, &report);
        assert_int_equal(r.lengths[0], 12);
        assert_int_equal(report.damaged, 0);
        teardown(&f);
        n++;
    } while (status != QUIRE_OK);
    assert_true(n > 6);
}

static void limits_are_kept(void **state)
{
    struct fixture f;
    struct qr_tail_log *log = NULL;
    struct qr_error e;
    (void)state;

    setup(&f);
    assert_status(QUIRE_ETOOBIG, append_to(&f, 0, 0, 1, SEGMENT - 4096));
    for (int i = 0; i < 3; i++)
        assert_ok(append_to(&f, 0, 0, 1, 20000));
    assert_status(QUIRE_EAGAIN, append_to(&f, 0, 0, 1, 20000));
    f.config.segment_bytes = 1000;
    assert_status(QUIRE_EINVAL, qr_tail_log_open(&f.config, &log, &e));
    f.config.segment_bytes = SEGMENT;
    f.config.max_bytes = SEGMENT;
    assert_status(QUIRE_EINVAL, qr_tail_log_open(&f.config, &log, &e));
    teardown(&f);
}

static void a_segment_of_another_store_is_refused(void **state)
{
    struct fixture f;
    struct qr_error e;
    static const uint8_t other[QR_DISK_UUID_BYTES] = {43};
    (void)state;

    setup(&f);
    assert_ok(append_to(&f, 0, 0, 4, 64));
    assert_ok(qr_tail_log_sync(f.log, NULL));
    qr_tail_log_close(&f.log);
    f.config.store = other;
    assert_status(QUIRE_EMISMATCH, qr_tail_log_open(&f.config, &f.log, &e));
    assert_non_null(strstr(e.text, "another store"));
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(synced_rows_come_back_in_order),
        cmocka_unit_test(rows_not_synced_may_be_missing_and_sequences_go_on),
        cmocka_unit_test(sealed_rows_let_their_segments_go),
        cmocka_unit_test(a_full_log_says_so_and_recovers),
        cmocka_unit_test(sparse_segments_are_moved_together),
        cmocka_unit_test(nothing_is_taken_for_dead_before_the_replay),
        cmocka_unit_test(a_group_may_span_many_segments),
        cmocka_unit_test(a_cut_counts_records_from_its_sequence_on),
        cmocka_unit_test(failed_syncs_keep_the_rows_for_the_next),
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(a_segment_of_another_store_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
