/* SPDX-License-Identifier: Apache-2.0
 *
 * Starts of a disk store that need something done: an older index is brought up
 * step by step, and again after a start that died between; a file system without
 * O_DIRECT works, with a warning; a cap too small is refused before anything is
 * made.
 */
#include "disk_sessions.h"

#include "storage/base/log.h"
#include "storage/tier/disk_upgrade.h"

#define CAP ((64u << 20) + 4096u)

/* ---- upgrade: what a change of format would look like ----------------------------------- */

/* From 1 to 2: the model's bytes are put behind a version byte. */
struct versioned {
    struct qr_disk_batch batch;
};

static bool add_version_byte(void *arg, const uint8_t *key, size_t key_bytes,
                             const uint8_t *value, size_t value_bytes)
{
    struct versioned *v = arg;
    struct qr_disk_key copy = {.n = (uint32_t)key_bytes};
    uint8_t longer[64] = {2};

    if (value[0] == 2) /* a start that died had made it */
        return true;
    memcpy(copy.bytes, key, key_bytes);
    memcpy(longer + 1, value, value_bytes);
    qr_disk_batch_put(&v->batch, &copy, longer, value_bytes + 1);
    return true;
}

static quire_status to_two(struct qr_disk_index *index, struct qr_error *e)
{
    const struct qr_disk_key models = {.bytes = {QR_DISK_KEY_MODEL}, .n = 1};
    struct versioned v = {.batch = {0}};
    const struct qr_disk_batch *one = &v.batch;
    quire_status status = qr_disk_index_each(index, &models, add_version_byte, &v, e);

    if (status == QUIRE_OK)
        status = qr_disk_index_write(index, &one, 1, e);
    qr_disk_batch_free(&v.batch);
    return status;
}

static bool three_fails;

static quire_status to_three(struct qr_disk_index *index, struct qr_error *e)
{
    (void)index;
    return three_fails ? qr_error_set(e, QUIRE_EIO, "no luck") : QUIRE_OK;
}

static const struct qr_disk_upgrade steps[] = {{1, "models have a version", to_two},
                                               {2, "nothing", to_three}};

static uint32_t version_of(struct qr_disk_index *index)
{
    const struct qr_disk_key key = qr_disk_key_version();
    uint32_t version = 0;
    size_t n;

    assert_ok(qr_disk_index_get(index, &key, &version, sizeof(version), &n));
    return version;
}

static void an_old_index_is_brought_up_step_by_step(void **state)
{
    char *base = test_folder();
    const struct qr_disk_index_config config = {.path = base, .create = true};
    struct qr_disk_index *index;
    struct qr_disk_batch batch = {0};
    const struct qr_disk_batch *one = &batch;
    struct qr_error e;
    uint8_t id[QR_HASH_BYTES] = {1}, value[16];
    size_t n;
    (void)state;

    assert_ok(qr_disk_index_open(&config, &index, NULL));
    for (; id[0] < 6; id[0]++) {
        const struct qr_disk_key key = qr_disk_key_model(id);
        qr_disk_batch_put(&batch, &key, "model", 5);
    }
    assert_ok(qr_disk_index_write(index, &one, 1, NULL));
    qr_disk_batch_free(&batch);
    three_fails = true; /* it gets to 2, and the next start goes on from there */
    assert_status(QUIRE_EIO, qr_disk_upgrade(index, steps, 2, 1, 3, &e));
    assert_int_equal(version_of(index), 2);
    three_fails = false;
    assert_ok(qr_disk_upgrade(index, steps, 2, 1, 2, &e)); /* died before the version: again */
    assert_ok(qr_disk_upgrade(index, steps, 2, 2, 3, &e));
    assert_int_equal(version_of(index), 3);
    for (id[0] = 1; id[0] < 6; id[0]++) {
        const struct qr_disk_key key = qr_disk_key_model(id);
        assert_ok(qr_disk_index_get(index, &key, value, sizeof(value), &n));
        assert_int_equal(n, 6);
        assert_memory_equal(value, "\2model", 6);
    }
    assert_status(QUIRE_EUNSUPPORTED, qr_disk_upgrade(index, steps, 2, 3, 4, &e));
    assert_non_null(strstr(e.text, "version 3"));
    qr_disk_index_close(&index);
    assert_status(QUIRE_EUNSUPPORTED, qr_disk_index_open(&config, &index, &e)); /* now newer */
    assert_non_null(strstr(e.text, "newer Quire"));
    test_folder_remove(base);
}

/* ---- the folder ------------------------------------------------------------------------- */

static int open_without_direct(struct qr_disk_io *io, int folder, const char *path, int flags,
                               mode_t mode)
{
    if (flags & O_DIRECT)
        return -EINVAL;
    return qr_disk_io_system()->open(io, folder, path, flags, mode);
}

static void without_o_direct_it_works_and_says_so(void **state)
{
    char *base = test_folder(), log[400], text[4096] = {0};
    struct fault_io fault;
    struct qr_disk *disk;
    struct qr_disk_config config = {
        .io = &fault.io, .folders = {base}, .cap_bytes = {CAP}, .count = 1, .create = true};
    (void)state;

    fault_init(&fault);
    fault.io.open = open_without_direct;
    snprintf(log, sizeof(log), "%s.log", base);
    const int fd = open(log, O_RDWR | O_CREAT | O_TRUNC, 0600);
    qr_log_configure(QR_LOG_WARN, QR_LOG_TEXT, fd);
    for (int round = 0; round < 2; round++) {
        config.no_uring = round;
        assert_ok(qr_disk_open(&config, NULL, NULL, &disk, NULL));
        if (round == 0)
            assert_ok(test_put(disk, 0, 8, 60000, NULL));
        for (uint64_t n = 0; n < 8; n++)
            assert_ok(test_get(disk, n));
        qr_disk_close(&disk);
    }
    qr_log_configure(QR_LOG_INFO, QR_LOG_TEXT, 2);
    assert_true(pread(fd, text, sizeof(text) - 1, 0) > 0);
    assert_non_null(strstr(text, "disk.buffered"));
    close(fd);
    unlink(log);
    test_folder_remove(base);
}

static void a_cap_below_one_slab_is_refused_before_anything_is_made(void **state)
{
    char *base = test_folder(), path[400];
    struct qr_disk *disk;
    struct qr_error e;
    struct qr_disk_config config = {
        .folders = {path}, .cap_bytes = {100000}, .count = 1, .create = true};
    (void)state;

    snprintf(path, sizeof(path), "%s/store", base);
    assert_status(QUIRE_EINVAL, qr_disk_open(&config, NULL, NULL, &disk, &e));
    assert_non_null(strstr(e.text, "100000"));
    assert_non_null(strstr(e.text, "at least"));
    assert_int_equal(access(path, F_OK), -1);
    test_folder_remove(base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_old_index_is_brought_up_step_by_step),
        cmocka_unit_test(without_o_direct_it_works_and_says_so),
        cmocka_unit_test(a_cap_below_one_slab_is_refused_before_anything_is_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
