/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages committed to the disk tier are there after a restart, with their slots
 * taken; failed commits leave nothing visible; a device that fails or hangs
 * leaves the others serving and comes back.
 */
#include "disk_pages.h"

#include "storage/base/clock.h"

#define CAP ((64u << 20) + 4096u)
/* For what must happen: on a machine that is busy with other things a sync takes seconds. */
#define PATIENCE_MS 120000u

struct fixture {
    struct fault_io fault;
    char *base;
    char paths[2][300];
    struct qr_disk_config config;
    struct qr_disk *disk;
};

static void setup(struct fixture *f, uint32_t devices)
{
    fault_init(&f->fault);
    f->base = test_folder();
    f->config = (struct qr_disk_config){.io = &f->fault.io,
                                        .count = devices,
                                        .create = true,
                                        .tail_log_bytes = 1u << 20,
                                        .tail_segment_bytes = 64u << 10,
                                        .sync_timeout_ms = PATIENCE_MS};
    for (uint32_t d = 0; d < 2; d++) {
        snprintf(f->paths[d], sizeof(f->paths[d]), "%s/device%u", f->base, d);
        f->config.folders[d] = f->paths[d];
        f->config.cap_bytes[d] = CAP;
    }
    assert_ok(qr_disk_open(&f->config, NULL, NULL, &f->disk, NULL));
}

static void teardown(struct fixture *f)
{
    qr_disk_close(&f->disk);
    test_folder_remove(f->base);
}

static void count_page(void *arg, const uint8_t id[QR_HASH_BYTES],
                       const struct qr_disk_page *page)
{
    (void)id;
    assert_true(page->place.bytes > 0);
    ++*(uint32_t *)arg;
}

static uint32_t reopen(struct fixture *f)
{
    uint32_t pages = 0;

    qr_disk_close(&f->disk);
    f->config.create = false;
    assert_ok(qr_disk_open(&f->config, count_page, &pages, &f->disk, NULL));
    return pages;
}

static uint64_t slots(struct fixture *f)
{
    struct qr_tier_stat stat;
    qr_disk_tier(f->disk)->ops->stat(qr_disk_tier(f->disk), &stat);
    return stat.slots;
}

static void committed_pages_survive_a_restart(void **state)
{
    (void)state;
    for (uint32_t devices = 1; devices <= 2; devices++) {
        struct fixture f;
        setup(&f, devices);
        for (uint32_t i = 0; i < 4; i++)
            assert_ok(test_put(f.disk, i * 16, 16, 100000, NULL));
        assert_int_equal(reopen(&f), 64);
        assert_int_equal(slots(&f), 64);
        for (uint64_t n = 0; n < 64; n++)
            assert_ok(test_get(f.disk, n));
        assert_status(QUIRE_ENOTFOUND, test_get(f.disk, 64));
        teardown(&f);
    }
}

static void the_tier_table_moves_bytes_too(void **state)
{
    struct fixture f;
    struct qr_slot slot;
    struct test_read_wait w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
    uint8_t out[10048], back[10048] = {0};
    (void)state;

    setup(&f, 2);
    struct qr_tier *tier = qr_disk_tier(f.disk);
    test_page_fill(1, out, sizeof(out));
    assert_ok(tier->ops->reserve(tier, sizeof(out), &slot));
    assert_true(slot.region < tier->regions_max);
    assert_null(tier->ops->map(tier, &slot));
    assert_int_equal(tier->ops->rounded(tier, sizeof(out)), 12288);
    assert_ok(tier->ops->write(tier, &slot, out, test_read_done, &w));
    for (int i = 0; i < 2; i++) {
        pthread_mutex_lock(&w.lock);
        while (w.fired == i)
            pthread_cond_wait(&w.done, &w.lock);
        pthread_mutex_unlock(&w.lock);
        assert_ok(w.status);
        if (i == 0)
            assert_ok(tier->ops->read(tier, &slot, back, test_read_done, &w));
    }
    assert_memory_equal(out, back, sizeof(out));
    tier->ops->release(tier, &slot);
    assert_int_equal(slots(&f), 0);
    teardown(&f);
}

static void freed_slots_are_free_only_when_the_delete_is_durable(void **state)
{
    struct fixture f;
    struct qr_disk_place place;
    struct qr_disk_batch batch = {0};
    uint8_t id[QR_HASH_BYTES];
    (void)state;

    setup(&f, 1);
    assert_ok(test_put(f.disk, 7, 1, 100000, &place));
    test_page_id(7, id);
    const struct qr_disk_key key = qr_disk_key_page(id);
    qr_disk_batch_delete(&batch, &key);
    struct qr_disk_commit commit = {.batch = &batch, .freed = &place, .freed_count = 1};
    qr_disk_commit_touch(&commit, &place);
    fault_arm(&f.fault, 1, 1, EIO); /* its sync */
    assert_status(QUIRE_EIO, qr_disk_commit_wait(f.disk, &commit));
    assert_false(commit.in_doubt);
    assert_int_equal(slots(&f), 1);
    assert_ok(test_get(f.disk, 7));
    assert_ok(qr_disk_commit_wait(f.disk, &commit));
    assert_int_equal(slots(&f), 0);
    assert_status(QUIRE_ENOTFOUND, test_get(f.disk, 7));
    assert_int_equal(reopen(&f), 0);
    qr_disk_batch_free(&batch);
    teardown(&f);
}

static void a_full_disk_refuses_and_keeps_serving(void **state)
{
    struct fixture f;
    uint32_t n = 0;
    (void)state;

    setup(&f, 1);
    quire_status status = QUIRE_OK;
    for (; status == QUIRE_OK && n < 10000; n++)
        status = test_put(f.disk, n, 1, 100000, NULL);
    assert_int_equal(status, QUIRE_EFULL);
    struct stat st;
    char path[400];
    snprintf(path, sizeof(path), "%s/slabs", f.paths[0]);
    assert_int_equal(stat(path, &st), 0);
    assert_true((uint64_t)st.st_size <= CAP);
    assert_ok(test_get(f.disk, 0));
    assert_int_equal(reopen(&f), n - 1);
    assert_ok(test_get(f.disk, n - 2));
    teardown(&f);
}

static void a_failed_device_leaves_the_other_serving_and_comes_back(void **state)
{
    struct fixture f;
    struct qr_disk_stat stat;
    uint32_t stored = 0;
    (void)state;

    setup(&f, 2);
    assert_ok(test_put(f.disk, 0, 8, 100000, NULL));
    fault_arm(&f.fault, 1, UINT64_MAX, EIO);
    assert_true(test_put(f.disk, 100, 8, 100000, NULL) != QUIRE_OK);
    fault_arm(&f.fault, 0, 0, 0);
    for (const uint64_t end_ms = qr_clock_ms() + PATIENCE_MS;
         stored < 8 && qr_clock_ms() < end_ms;) {
        stored += test_put(f.disk, 200 + stored, 1, 100000, NULL) == QUIRE_OK;
        usleep(5000);
    }
    assert_int_equal(stored, 8);
    for (uint64_t n = 0; n < 8; n++)
        assert_ok(test_get(f.disk, n));
    qr_disk_stat(f.disk, &stat);
    assert_int_equal(stat.in_doubt, 0);
    assert_int_equal(reopen(&f), 16);
    teardown(&f);
}

/* The slab file of the second device. */
static int second_slab_fd(void)
{
    for (int fd = 3; fd < 200; fd++) {
        char link[64], path[400] = "";
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        if (readlink(link, path, sizeof(path) - 1) > 0 && strstr(path, "device1/slabs"))
            return fd;
    }
    return -1;
}

static bool second_is_failed(struct fixture *f)
{
    struct qr_disk_stat stat;
    qr_disk_stat(f->disk, &stat);
    return stat.device[1].failed;
}

static void wait_for_second(struct fixture *f)
{
    const uint64_t end_ms = qr_clock_ms() + PATIENCE_MS;

    while (second_is_failed(f) && qr_clock_ms() < end_ms)
        usleep(5000);
    assert_false(second_is_failed(f));
}

static void a_device_that_takes_no_writes_gets_none(void **state)
{
    struct fixture f;
    uint32_t failures = 0;
    (void)state;

    setup(&f, 2);
    assert_ok(test_put(f.disk, 0, 8, 100000, NULL));
    atomic_store(&f.fault.write_fd, second_slab_fd());
    for (uint32_t i = 0; i < 20; i++)
        failures += test_put(f.disk, 100 + i, 1, 100000, NULL) != QUIRE_OK;
    assert_true(failures >= 1 && failures <= 2); /* it never came back by its syncs alone */
    assert_true(second_is_failed(&f));
    atomic_store(&f.fault.write_fd, -1);
    wait_for_second(&f);
    for (uint64_t n = 0; n < 8; n++)
        assert_ok(test_get(f.disk, n));
    teardown(&f);
}

static void a_hanging_device_times_out_and_the_other_goes_on(void **state)
{
    struct fixture f;
    struct qr_disk_place places[8];
    static uint8_t got[TEST_PAGE_MAX];
    struct qr_disk_commit commit = {0};
    (void)state;

    setup(&f, 2);
    f.config.sync_timeout_ms = 10000; /* long for a busy machine, short for a test */
    assert_int_equal(reopen(&f), 0);
    assert_ok(test_put(f.disk, 0, 8, 100000, places));
    const int hang = second_slab_fd();
    assert_true(hang >= 0);
    atomic_store(&f.fault.hang_fd, hang);
    for (uint32_t i = 0; i < 8; i++) {
        const bool hangs = places[i].device == 1;
        const uint64_t deadline_ns = hangs ? qr_clock_ns() + 20000000u : 0;
        assert_status(hangs ? QUIRE_ETIMEOUT : QUIRE_OK,
                      test_read(f.disk, &places[i], got, deadline_ns));
    }
    commit.devices = 2;
    assert_status(QUIRE_ETIMEOUT, qr_disk_commit_wait(f.disk, &commit));
    for (uint32_t i = 0; i < 8; i++)
        assert_ok(test_put(f.disk, 50 + i, 1, 100000, NULL)); /* all on the first device */
    atomic_store(&f.fault.hang_fd, -1);
    wait_for_second(&f);
    commit.devices = 2;
    assert_ok(qr_disk_commit_wait(f.disk, &commit));
    assert_ok(test_get(f.disk, 1));
    teardown(&f);
}

static void a_missing_device_is_a_miss_for_its_pages_only(void **state)
{
    struct fixture f;
    char away[400];
    uint32_t found = 0;
    (void)state;

    setup(&f, 2);
    assert_ok(test_put(f.disk, 0, 20, 100000, NULL));
    snprintf(away, sizeof(away), "%s/away", f.base);
    qr_disk_close(&f.disk);
    assert_int_equal(rename(f.paths[1], away), 0);
    f.config.allow_missing = true;
    assert_ok(qr_disk_open(&f.config, NULL, NULL, &f.disk, NULL));
    for (uint64_t n = 0; n < 20; n++) {
        const quire_status status = test_get(f.disk, n);
        assert_true(status == QUIRE_OK || status == QUIRE_EIO);
        found += status == QUIRE_OK;
    }
    assert_true(found >= 5 && found <= 15);
    assert_ok(test_put(f.disk, 30, 4, 100000, NULL));
    teardown(&f);
}

static void entries_that_cannot_be_are_counted_and_left_out(void **state)
{
    struct fixture f;
    struct qr_disk_stat stat;
    struct qr_disk_batch batch = {0};
    const struct qr_disk_batch *one = &batch;
    struct qr_disk_place place;
    uint8_t id[QR_HASH_BYTES], record[QR_DISK_PAGE_RECORD_BYTES];
    (void)state;

    setup(&f, 1);
    assert_ok(test_put(f.disk, 0, 1, 100000, &place));
    for (uint32_t i = 1; i <= 3; i++) { /* a slot twice, outside, nonsense */
        struct qr_disk_page page = {.place = place};
        page.place.region += i == 2 ? 1000 : 0;
        test_page_id(i, id);
        const struct qr_disk_key key = qr_disk_key_page(id);
        qr_disk_page_write(&page, record);
        qr_disk_batch_put(&batch, &key, record, i == 3 ? 7 : sizeof(record));
    }
    assert_ok(qr_disk_index_write(qr_disk_index_of(f.disk), &one, 1, NULL));
    qr_disk_batch_free(&batch);
    assert_int_equal(reopen(&f), 1);
    qr_disk_stat(f.disk, &stat);
    assert_int_equal(stat.bad_entries, 3);
    teardown(&f);
}

static void a_lost_index_is_not_replaced_by_an_empty_one(void **state)
{
    struct fixture f;
    char from[400], to[400];
    struct qr_error e;
    (void)state;

    setup(&f, 1);
    assert_ok(test_put(f.disk, 0, 1, 100000, NULL));
    qr_disk_close(&f.disk);
    snprintf(from, sizeof(from), "%s/index", f.paths[0]);
    snprintf(to, sizeof(to), "%s/away", f.base);
    assert_int_equal(rename(from, to), 0);
    assert_true(qr_disk_open(&f.config, NULL, NULL, &f.disk, &e) != QUIRE_OK);
    assert_non_null(strstr(e.text, "index"));
    assert_int_equal(rename(to, from), 0);
    assert_int_equal(reopen(&f), 1);
    teardown(&f);
}

struct appender {
    struct fixture *f;
    uint64_t first;
};

static void *append_many(void *arg)
{
    const struct appender *a = arg;
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(test_put(a->f->disk, a->first + i * 4, 4, 30000, NULL), 0);
    return NULL;
}

static void commits_of_several_threads_share_syncs(void **state)
{
    struct fixture f;
    struct appender appenders[4];
    pthread_t threads[4];
    struct qr_disk_stat stat;
    (void)state;

    setup(&f, 1);
    f.config.commit_wait_us = 500;
    assert_int_equal(reopen(&f), 0);
    for (uint32_t i = 0; i < 4; i++) {
        appenders[i] = (struct appender){&f, i * 1000};
        assert_int_equal(pthread_create(&threads[i], NULL, append_many, &appenders[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    qr_disk_stat(f.disk, &stat);
    assert_int_equal(stat.commits, 40);
    assert_true(stat.groups < 40);
    assert_ok(qr_disk_flush(f.disk));
    assert_int_equal(reopen(&f), 160);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(committed_pages_survive_a_restart),
        cmocka_unit_test(the_tier_table_moves_bytes_too),
        cmocka_unit_test(freed_slots_are_free_only_when_the_delete_is_durable),
        cmocka_unit_test(a_full_disk_refuses_and_keeps_serving),
        cmocka_unit_test(a_failed_device_leaves_the_other_serving_and_comes_back),
        cmocka_unit_test(a_device_that_takes_no_writes_gets_none),
        cmocka_unit_test(a_hanging_device_times_out_and_the_other_goes_on),
        cmocka_unit_test(a_missing_device_is_a_miss_for_its_pages_only),
        cmocka_unit_test(entries_that_cannot_be_are_counted_and_left_out),
        cmocka_unit_test(a_lost_index_is_not_replaced_by_an_empty_one),
        cmocka_unit_test(commits_of_several_threads_share_syncs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
