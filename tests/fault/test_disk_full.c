/* SPDX-License-Identifier: Apache-2.0
 *
 * A file system that others fill to the last block, again and again, under a store
 * that writes: what was acknowledged stays, reads go on, writes are refused and go
 * on by themselves once there is room. In a small tmpfs of its own, which needs
 * root; skipped without.
 *
 * usage: test_disk_full [TIMES], or QUIRE_FILLS
 */
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "tests/unit/tier/disk_pages.h"

#include <sys/mount.h>

#define FILLS 100u
#define CAP                                                                                    \
    ((24u << 20) + 4096u) /* leaves room for index and tail log, when nobody else is there */
#define BYTES_MAX 60000u
#define KEPT 16u /* pages that are never deleted */
#define HEAL_NS UINT64_C(20000000000)

struct fixture {
    char *base;
    char store[400], filler[400];
    struct qr_disk_config config;
    struct qr_disk *disk;
    uint64_t next;                                     /* page number */
    uint64_t first;                                    /* of those that may be deleted */
    uint64_t refused, put, tail_refused, tail_written; /* calls */
};

static uint32_t fills;

static void open_store(struct fixture *f)
{
    struct qr_error e = {0};
    const quire_status status = qr_disk_open(&f->config, NULL, NULL, &f->disk, &e);

    if (status != QUIRE_OK)
        print_message("%s\n", e.text);
    assert_ok(status);
}

static bool keep(void *arg, const struct qr_tail_record *record)
{
    (void)record;
    ++*(uint64_t *)arg;
    return true;
}

static void replay(struct fixture *f, uint64_t *records)
{
    struct qr_tail_log_report report;

    *records = 0;
    assert_ok(qr_tail_log_replay(qr_disk_tail_log_of(f->disk), keep, records, &report, NULL));
    assert_int_equal(report.damaged, 0);
}

/* Every last block; the file goes when it is closed. */
static int fill(const struct fixture *f)
{
    static const uint8_t block[65536];
    const int fd = open(f->filler, O_RDWR | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(unlink(f->filler), 0);
    for (size_t n = sizeof(block); n >= 512;) {
        if (write(fd, block, n) != (ssize_t)n)
            n /= 2;
    }
    return fd;
}

static quire_status append_row(struct fixture *f)
{
    static const uint8_t rows[3000];
    const struct qr_tail_record record = {.session = {1},
                                          .tokens = 1,
                                          .position = f->tail_written,
                                          .payload = rows,
                                          .payload_bytes = sizeof(rows)};
    struct qr_disk_commit commit = {.tail = true};
    uint64_t sequence;
    quire_status status = qr_tail_log_append(qr_disk_tail_log_of(f->disk), &record, &sequence);

    const quire_status synced =
        qr_disk_commit_wait(f->disk, &commit); /* also what was pending */
    status = synced != QUIRE_OK ? synced : status;
    f->tail_written += status == QUIRE_OK;
    f->tail_refused += status != QUIRE_OK;
    if (status != QUIRE_OK) /* it stays pending, and must not be appended twice */
        qr_tail_log_forget(qr_disk_tail_log_of(f->disk), record.session, 0);
    return status;
}

static quire_status put_some(struct fixture *f)
{
    const quire_status status = test_put(f->disk, f->next, 4, BYTES_MAX, NULL);

    f->next += 4; /* numbers of failed puts are not used again: they may be in doubt */
    f->put += status == QUIRE_OK;
    f->refused += status != QUIRE_OK;
    return status;
}

static void look_at_kept(struct fixture *f)
{
    for (uint64_t n = 0; n < KEPT; n++)
        assert_ok(test_get(f->disk, n));
}

static void delete_one(struct fixture *f, uint64_t number)
{
    uint8_t id[QR_HASH_BYTES], record[QR_DISK_PAGE_RECORD_BYTES];
    struct qr_disk_batch batch = {0};
    struct qr_disk_page page;
    size_t n;

    test_page_id(number, id);
    const struct qr_disk_key key = qr_disk_key_page(id);
    if (qr_disk_index_get(qr_disk_index_of(f->disk), &key, record, sizeof(record), &n) !=
        QUIRE_OK)
        return;
    assert_ok(qr_disk_page_read(record, n, &page));
    qr_disk_batch_delete(&batch, &key);
    struct qr_disk_commit commit = {.batch = &batch, .freed = &page.place, .freed_count = 1};
    assert_ok(qr_disk_commit_wait(f->disk, &commit));
    qr_disk_batch_free(&batch);
}

static void prune(struct fixture *f)
{
    qr_tail_log_drop(qr_disk_tail_log_of(f->disk), (const uint8_t[QR_DISK_UUID_BYTES]){1}, 0,
                     f->tail_written);
    while (f->first + 64 < f->next)
        delete_one(f, f->first++);
}

/* There is room again: it goes on by itself, within upkeep's time. */
static void heal(struct fixture *f)
{
    const uint64_t until_ns = qr_clock_ns() + HEAL_NS;
    quire_status put = QUIRE_EAGAIN, appended = QUIRE_EAGAIN;
    struct qr_disk_stat stat;

    while (put != QUIRE_OK || appended != QUIRE_OK) {
        put = put == QUIRE_OK ? put : put_some(f);
        appended = appended == QUIRE_OK ? appended : append_row(f);
        if (qr_clock_ns() > until_ns) {
            qr_disk_stat(f->disk, &stat);
            print_message("pages: %s, rows: %s; index state %d, %llu slots\n",
                          qr_status_name(put), qr_status_name(appended), (int)stat.index.state,
                          (unsigned long long)stat.device[0].slots);
            fail();
        }
        if (put != QUIRE_OK || appended != QUIRE_OK)
            usleep(20000);
    }
    prune(f);
}

static void one_fill(struct fixture *f)
{
    const uint64_t refused = f->refused;
    const int filler = fill(f);

    for (uint32_t i = 0; i < 400 && f->refused == refused; i++) {
        (void)put_some(f);
        (void)append_row(f);
    }
    assert_true(f->refused > refused);
    look_at_kept(f);
    assert_int_equal(close(filler), 0);
    heal(f);
    look_at_kept(f);
}

static void reopen(struct fixture *f)
{
    struct qr_disk_stat stat;
    uint64_t records;

    qr_disk_close(&f->disk);
    open_store(f);
    replay(f, &records);
    look_at_kept(f);
    qr_disk_stat(f->disk, &stat);
    assert_int_equal(stat.bad_entries, 0);
}

static void a_file_system_filled_many_times(void **state)
{
    struct fixture *f = *state;
    uint64_t records;

    open_store(f);
    replay(f, &records);
    assert_ok(test_put(f->disk, 0, KEPT, BYTES_MAX, NULL));
    for (uint32_t i = 0; i < fills; i++) {
        one_fill(f);
        if (i % 10 == 9)
            reopen(f);
    }
    reopen(f);
    qr_disk_close(&f->disk);
    print_message(
        "%u times full: %llu commits done, %llu refused, rows %llu and %llu; nothing lost\n",
        fills, (unsigned long long)f->put, (unsigned long long)f->refused,
        (unsigned long long)f->tail_written, (unsigned long long)f->tail_refused);
}

static int set_up(void **state)
{
    static struct fixture f;

    f = (struct fixture){.base = test_folder(), .next = KEPT, .first = KEPT};
    if (mount("quire-full", f.base, "tmpfs", 0, "size=40m") != 0)
        return -1;
    snprintf(f.store, sizeof(f.store), "%s/store", f.base);
    snprintf(f.filler, sizeof(f.filler), "%s/filler", f.base);
    f.config = (struct qr_disk_config){.folders = {f.store},
                                       .cap_bytes = {CAP},
                                       .count = 1,
                                       .create = true,
                                       .tail_log_bytes = 4u << 20,
                                       .tail_segment_bytes = 512u << 10};
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    qr_disk_close(&f->disk);
    if (umount2(f->base, MNT_DETACH) != 0)
        return -1;
    test_folder_remove(f->base);
    return 0;
}

int main(int argc, char **argv)
{
    const char *wanted = argc > 1 ? argv[1] : getenv("QUIRE_FILLS");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_system_filled_many_times, set_up, tear_down)};

    if (geteuid() != 0) {
        printf("test_disk_full: skipped: mounting a tmpfs needs root\n");
        return 77;
    }
    fills = wanted ? (uint32_t)strtoul(wanted, NULL, 10) : FILLS;
    qr_log_configure(QR_LOG_ERROR, QR_LOG_TEXT, open("/dev/null", O_WRONLY));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
