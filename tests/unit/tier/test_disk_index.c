/* SPDX-License-Identifier: Apache-2.0
 *
 * The index gives back what was written, after a restart too; refuses newer
 * versions; comes back from a failure of its files by itself, or goes read-only
 * and comes back when asked.
 */
#include "disk_test.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include "storage/tier/disk_index.h"

struct fixture {
    char *base;
    char path[300];
    struct qr_disk_index_config config;
    struct qr_disk_index *index;
};

static void setup(struct fixture *f)
{
    f->base = test_folder();
    snprintf(f->path, sizeof(f->path), "%s/index", f->base);
    f->config = (struct qr_disk_index_config){.path = f->path, .create = true};
    assert_ok(qr_disk_index_open(&f->config, &f->index, NULL));
}

static void teardown(struct fixture *f)
{
    qr_disk_index_close(&f->index);
    test_folder_remove(f->base);
}

static struct qr_disk_key page_key(uint32_t i)
{
    uint8_t id[QR_HASH_BYTES] = {0};
    memcpy(id, &i, sizeof(i));
    return qr_disk_key_page(id);
}

static quire_status put_pages(struct fixture *f, uint32_t first, uint32_t count)
{
    struct qr_disk_batch batch = {0};
    const struct qr_disk_batch *one = &batch;

    for (uint32_t i = first; i < first + count; i++) {
        const struct qr_disk_key key = page_key(i);
        uint8_t value[QR_DISK_PAGE_RECORD_BYTES];
        qr_disk_page_write(&(struct qr_disk_page){.place = {0, i, 0, 4096}, .checksum = i},
                           value);
        qr_disk_batch_put(&batch, &key, value, sizeof(value));
    }
    const quire_status status = qr_disk_index_write(f->index, &one, 1, NULL);
    qr_disk_batch_free(&batch);
    return status;
}

static void expect_page(struct fixture *f, uint32_t i)
{
    const struct qr_disk_key key = page_key(i);
    uint8_t value[QR_DISK_PAGE_RECORD_BYTES];
    struct qr_disk_page page;
    size_t bytes;

    assert_ok(qr_disk_index_get(f->index, &key, value, sizeof(value), &bytes));
    assert_ok(qr_disk_page_read(value, bytes, &page));
    assert_int_equal(page.checksum, i);
}

static bool count_entries(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                          size_t value_bytes)
{
    (void)key;
    (void)key_bytes;
    (void)value;
    (void)value_bytes;
    ++*(uint32_t *)arg;
    return true;
}

static uint32_t pages(struct fixture *f)
{
    const struct qr_disk_key prefix = {{QR_DISK_KEY_PAGE}, 1};
    uint32_t count = 0;
    assert_ok(qr_disk_index_each(f->index, &prefix, count_entries, &count, NULL));
    return count;
}

static void entries_survive_a_restart(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f);
    assert_ok(put_pages(&f, 0, 1000));
    qr_disk_index_close(&f.index);
    f.config.create = false;
    assert_ok(qr_disk_index_open(&f.config, &f.index, NULL));
    expect_page(&f, 0);
    expect_page(&f, 999);
    assert_int_equal(pages(&f), 1000);
    teardown(&f);
}

static void deletes_and_puts_of_several_batches_are_one(void **state)
{
    struct fixture f;
    struct qr_disk_batch a = {0}, b = {0};
    const struct qr_disk_batch *both[] = {&a, &b};
    const struct qr_disk_key gone = page_key(3), kept = page_key(77);
    uint8_t byte;
    size_t bytes;
    (void)state;

    setup(&f);
    assert_ok(put_pages(&f, 0, 10));
    qr_disk_batch_delete(&a, &gone);
    qr_disk_batch_put(&b, &kept, "x", 1);
    assert_ok(qr_disk_index_write(f.index, both, 2, NULL));
    assert_status(QUIRE_ENOTFOUND, qr_disk_index_get(f.index, &gone, &byte, 1, &bytes));
    assert_ok(qr_disk_index_get(f.index, &kept, &byte, 1, &bytes));
    assert_int_equal(byte, 'x');
    qr_disk_batch_free(&a);
    qr_disk_batch_free(&b);
    teardown(&f);
}

static void a_batch_that_ran_out_is_refused_whole(void **state)
{
    struct fixture f;
    struct qr_disk_batch batch = {0};
    const struct qr_disk_batch *one = &batch;
    const struct qr_disk_key key = page_key(1);
    uint8_t *big = calloc(1, QR_DISK_BATCH_MAX);
    (void)state;

    setup(&f);
    qr_disk_batch_put(&batch, &key, "x", 1);
    qr_disk_batch_put(&batch, &key, big, QR_DISK_BATCH_MAX);
    assert_status(QUIRE_EINVAL, qr_disk_index_write(f.index, &one, 1, NULL));
    assert_int_equal(pages(&f), 0);
    qr_disk_batch_free(&batch);
    free(big);
    teardown(&f);
}

static void set_version(struct fixture *f, uint32_t version)
{
    const struct qr_disk_key key = qr_disk_key_version();
    struct qr_disk_batch batch = {0};
    const struct qr_disk_batch *one = &batch;

    qr_disk_batch_put(&batch, &key, &version, sizeof(version));
    assert_ok(qr_disk_index_write(f->index, &one, 1, NULL));
    qr_disk_batch_free(&batch);
    qr_disk_index_close(&f->index);
}

static void a_newer_version_is_refused(void **state)
{
    struct fixture f;
    struct qr_error e;
    (void)state;

    setup(&f);
    set_version(&f, QR_DISK_VERSION + 1);
    assert_status(QUIRE_EUNSUPPORTED, qr_disk_index_open(&f.config, &f.index, &e));
    assert_non_null(strstr(e.text, "newer Quire"));
    teardown(&f);
}

static void a_foreign_database_is_refused(void **state)
{
    struct fixture f;
    struct qr_error e;
    const struct qr_disk_key version = qr_disk_key_version();
    struct qr_disk_batch batch = {0};
    const struct qr_disk_batch *one = &batch;
    (void)state;

    setup(&f);
    assert_ok(put_pages(&f, 0, 1));
    qr_disk_batch_delete(&batch, &version);
    assert_ok(qr_disk_index_write(f.index, &one, 1, NULL));
    qr_disk_batch_free(&batch);
    qr_disk_index_close(&f.index);
    assert_status(QUIRE_ECORRUPT, qr_disk_index_open(&f.config, &f.index, &e));
    assert_non_null(strstr(e.text, "no version"));
    teardown(&f);
}

static void a_second_opener_is_refused(void **state)
{
    struct fixture f;
    struct qr_disk_index *second = NULL;
    struct qr_error e;
    (void)state;

    setup(&f);
    assert_status(QUIRE_EIO, qr_disk_index_open(&f.config, &second, &e));
    assert_null(second);
    assert_null(strchr(e.text, '\n'));
    teardown(&f);
}

/* A limit on file sizes makes the index's own writes fail, and heals when it is lifted. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_lasting_failure_makes_it_read_only_until_recovered(void **state)
{
    struct fixture f;
    struct qr_disk_index_stat stat;
    uint32_t acknowledged = 0;
    (void)state;

    (void)signal(SIGXFSZ, SIG_IGN);
    setup(&f);
    limit_files(64u << 10);
    while (put_pages(&f, acknowledged, 100) == QUIRE_OK)
        acknowledged += 100;
    qr_disk_index_stat(f.index, &stat);
    assert_true(stat.state != QR_DISK_WRITABLE && stat.failures > 0);
    assert_true(put_pages(&f, 1000000, 1) != QUIRE_OK);
    limit_files(RLIM_INFINITY);
    assert_ok(qr_disk_index_recover(f.index, NULL));
    assert_ok(put_pages(&f, 2000000, 1));
    for (uint32_t i = 0; i < acknowledged; i += 99)
        expect_page(&f, i);
    expect_page(&f, 2000000);
    teardown(&f);
}

struct writer {
    struct fixture *f;
    uint32_t first;
};

static void *write_many(void *arg)
{
    struct writer *w = arg;
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(put_pages(w->f, w->first + i * 10, 10), 0);
    return NULL;
}

static void threads_write_at_once(void **state)
{
    struct fixture f;
    struct writer writers[4];
    pthread_t threads[4];
    (void)state;

    setup(&f);
    for (uint32_t i = 0; i < 4; i++) {
        writers[i] = (struct writer){&f, i * 1000};
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, &writers[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(pages(&f), 2000);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_survive_a_restart),
        cmocka_unit_test(deletes_and_puts_of_several_batches_are_one),
        cmocka_unit_test(a_batch_that_ran_out_is_refused_whole),
        cmocka_unit_test(a_newer_version_is_refused),
        cmocka_unit_test(a_foreign_database_is_refused),
        cmocka_unit_test(a_second_opener_is_refused),
        cmocka_unit_test(a_lasting_failure_makes_it_read_only_until_recovered),
        cmocka_unit_test(threads_write_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
