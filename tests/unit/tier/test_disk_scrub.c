/* SPDX-License-Identifier: Apache-2.0
 *
 * The scrubber finds damaged pages of a store in use and puts them into
 * quarantine, and nothing else: not what is dropped under its eyes, not the pages
 * of a device that reads nothing. It keeps to its rate, can be paused, and goes
 * on after a restart from where it was.
 */
#include "disk_sessions.h"

#include <stdatomic.h>

#include "storage/base/clock.h"
#include "storage/tier/disk_class.h"
#include "storage/tier/disk_scrub.h"

#define CAP ((64u << 20) + 4096u)
#define FAST (UINT64_C(1) << 32)
#define WAIT_NS UINT64_C(30000000000)

static const struct test_session one = {
    .ns = 1, .number = 1, .lanes = 4, .blocks = 20, .dim = 64};
#define PAGES 80u

struct fixture {
    struct fault_io fault;
    char *base;
    struct qr_disk_config config;
    struct qr_disk *disk;
    struct qr_disk_scrub *scrub;
    struct qr_disk_scrub_config scrubbing;
    _Atomic uint32_t told;
    uint8_t last_told[QR_HASH_BYTES];
    quire_status why;
};

static void page_is_bad(void *arg, const uint8_t page_id[QR_HASH_BYTES],
                        const struct qr_disk_page *page, quire_status why)
{
    struct fixture *f = arg;

    assert_int_equal(page->flags, 0);
    memcpy(f->last_told, page_id, QR_HASH_BYTES);
    f->why = why;
    atomic_fetch_add(&f->told, 1);
}

static void setup(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    fault_init(&f->fault);
    f->base = test_folder();
    f->config = (struct qr_disk_config){.io = &f->fault.io,
                                        .folders = {f->base},
                                        .cap_bytes = {CAP},
                                        .count = 1,
                                        .create = true};
    assert_ok(qr_disk_open(&f->config, NULL, NULL, &f->disk, NULL));
    test_put_session(f->disk, &one);
    f->scrubbing =
        (struct qr_disk_scrub_config){.bytes_per_s = FAST, .bad = page_is_bad, .arg = f};
}

static void teardown(struct fixture *f)
{
    qr_disk_scrub_stop(&f->scrub);
    qr_disk_close(&f->disk);
    test_folder_remove(f->base);
}

static void start(struct fixture *f)
{
    assert_ok(qr_disk_scrub_start(f->disk, &f->scrubbing, &f->scrub, NULL));
}

static struct qr_disk_scrub_stat stat_of(struct fixture *f)
{
    struct qr_disk_scrub_stat stat;
    qr_disk_scrub_stat(f->scrub, &stat);
    return stat;
}

static void wait_for_pass(struct fixture *f)
{
    const uint64_t until_ns = qr_clock_ns() + WAIT_NS;

    while (stat_of(f).passes == 0 && qr_clock_ns() < until_ns)
        usleep(2000);
    assert_int_equal(stat_of(f).passes, 1);
}

static void damage(struct fixture *f, const struct qr_disk_place *place)
{
    char path[400];
    uint8_t byte;
    const off_t at = (off_t)(QR_DISK_SLAB_START + place->region * (UINT64_C(1) << 20) +
                             place->slot * qr_disk_class_bytes(qr_disk_class(place->bytes)) +
                             place->bytes - 9);

    snprintf(path, sizeof(path), "%s/slabs", f->base);
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 128;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void a_damaged_page_goes_into_quarantine(void **state)
{
    struct fixture f;
    uint8_t id[QR_HASH_BYTES];
    (void)state;

    setup(&f);
    const struct qr_disk_page page = test_session_record(f.disk, &one, 2, 7);
    test_session_page_id(&one, 2, 7, id);
    damage(&f, &page.place);
    start(&f);
    wait_for_pass(&f);
    assert_int_equal(f.told, 1);
    assert_int_equal(f.why, QUIRE_ECORRUPT);
    assert_memory_equal(f.last_told, id, QR_HASH_BYTES);
    assert_int_equal(test_session_record(f.disk, &one, 2, 7).flags, QR_DISK_QUARANTINED);
    const struct qr_disk_scrub_stat stat = stat_of(&f);
    assert_int_equal(stat.pages, PAGES - 1);
    assert_int_equal(stat.bytes, (PAGES - 1) * (uint64_t)page.place.bytes);
    assert_int_equal(stat.bad, 1);
    qr_disk_scrub_stop(&f.scrub); /* once in quarantine it is not looked at again */
    start(&f);
    wait_for_pass(&f);
    assert_int_equal(f.told, 1);
    assert_int_equal(stat_of(&f).bad, 0);
    teardown(&f);
}

static void a_pause_stops_it_and_a_restart_goes_on(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f);
    f.scrubbing.bytes_per_s = 0;
    start(&f);
    usleep(50000);
    assert_int_equal(stat_of(&f).pages, 0);
    const uint64_t page_bytes = test_session_record(f.disk, &one, 0, 0).place.bytes;
    qr_disk_scrub_rate(f.scrub, 100 * page_bytes); /* 10 ms a page */
    while (stat_of(&f).pages < 20)
        usleep(1000);
    qr_disk_scrub_rate(f.scrub, 0);
    usleep(30000);
    const uint64_t before = stat_of(&f).pages;
    assert_true(before < PAGES);
    assert_true(stat_of(&f).position_permille > 0);
    usleep(50000);
    assert_int_equal(stat_of(&f).pages, before);
    qr_disk_scrub_stop(&f.scrub);
    qr_disk_close(&f.disk);
    assert_ok(qr_disk_open(&f.config, NULL, NULL, &f.disk, NULL));
    f.scrubbing.bytes_per_s = FAST;
    start(&f);
    wait_for_pass(&f);
    assert_int_equal(stat_of(&f).pages, PAGES - before);
    teardown(&f);
}

static void the_rate_is_kept(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f);
    const uint64_t page_bytes = test_session_record(f.disk, &one, 0, 0).place.bytes;
    f.scrubbing.bytes_per_s = 200 * page_bytes; /* 80 pages: 0.395 s at least */
    const uint64_t start_ns = qr_clock_ns();
    start(&f);
    wait_for_pass(&f);
    assert_true(qr_clock_ns() - start_ns >= UINT64_C(390000000));
    teardown(&f);
}

/* Pages are dropped and their slots given to others as fast as it reads. */
static void what_is_dropped_meanwhile_is_not_bad(void **state)
{
    struct fixture f;
    struct qr_disk_scrub_stat stat;
    (void)state;

    setup(&f);
    f.scrubbing.bytes_per_s =
        60 * (uint64_t)test_session_record(f.disk, &one, 0, 0).place.bytes;
    start(&f);
    for (uint32_t round = 0; round < 40; round++) {
        const uint32_t lane = round % 4, block = round % 20;
        const struct test_session alone = {
            .ns = 1, .number = 9 + round, .lanes = 1, .blocks = 1, .dim = 64};
        uint8_t id[QR_HASH_BYTES];
        struct qr_disk_batch batch = {0};
        if (round < 20) {
            const struct qr_disk_place place =
                test_session_record(f.disk, &one, lane, block).place;
            test_session_page_id(&one, lane, block, id);
            const struct qr_disk_key key = qr_disk_key_page(id);
            qr_disk_batch_delete(&batch, &key);
            struct qr_disk_commit commit = {.batch = &batch, .freed = &place, .freed_count = 1};
            assert_ok(qr_disk_commit_wait(f.disk, &commit));
            qr_disk_batch_free(&batch);
        }
        test_put_block(f.disk, &alone, 0);
    }
    wait_for_pass(&f);
    qr_disk_scrub_stat(f.scrub, &stat);
    assert_int_equal(stat.bad, 0);
    assert_int_equal(f.told, 0);
    teardown(&f);
}

/* ---- read errors ------------------------------------------------------------------------ */

static _Atomic bool gate_all;       /* every read fails, or only those of whole pages */
static _Atomic uint32_t gate_fails; /* that many */

static ssize_t failing_gate(struct qr_disk_io *io, enum qr_disk_op op, int fd, size_t n)
{
    (void)io;
    (void)fd;
    if (op != QR_DISK_READ || (n == QR_DISK_BLOCK && !atomic_load(&gate_all)))
        return (ssize_t)n;
    if (atomic_load(&gate_fails) == 0)
        return (ssize_t)n;
    atomic_fetch_sub(&gate_fails, 1);
    return -EIO;
}

static void a_place_that_cannot_be_read_is_bad_a_dead_device_is_not(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f);
    atomic_store(&gate_all, true);
    atomic_store(&gate_fails, UINT32_MAX);
    f.fault.io.gate = failing_gate;
    start(&f);
    wait_for_pass(&f);
    assert_int_equal(stat_of(&f).unreadable, PAGES);
    assert_int_equal(stat_of(&f).bad, 0);
    qr_disk_scrub_stop(&f.scrub);
    atomic_store(&gate_all, false);
    atomic_store(&gate_fails, 3); /* all tries of one page */
    start(&f);
    wait_for_pass(&f);
    assert_int_equal(stat_of(&f).bad, 1);
    assert_int_equal(f.why, QUIRE_EIO);
    qr_disk_scrub_stop(&f.scrub);
    atomic_store(&gate_fails, 2); /* it heals in time */
    start(&f);
    wait_for_pass(&f);
    assert_int_equal(stat_of(&f).bad, 0);
    assert_int_equal(stat_of(&f).pages, PAGES - 1);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_damaged_page_goes_into_quarantine),
        cmocka_unit_test(a_pause_stops_it_and_a_restart_goes_on),
        cmocka_unit_test(the_rate_is_kept),
        cmocka_unit_test(what_is_dropped_meanwhile_is_not_bad),
        cmocka_unit_test(a_place_that_cannot_be_read_is_bad_a_dead_device_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
