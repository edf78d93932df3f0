/* SPDX-License-Identifier: Apache-2.0
 *
 * Folders of a store open again as the same store; whatever is foreign, newer,
 * mixed up or in use is refused with a line that says what to do, and left as
 * it was; a start that fails at any call can be carried on.
 */
#include "disk_test.h"

#include "storage/tier/disk_home.h"

struct fixture {
    struct fault_io fault;
    char *base;
    char paths[3][300];
    struct qr_disk_home_config config;
    struct qr_disk_home home;
    struct qr_error e;
};

static void setup(struct fixture *f, uint32_t folders)
{
    fault_init(&f->fault);
    f->base = test_folder();
    f->config = (struct qr_disk_home_config){
        .io = &f->fault.io, .count = folders, .region_bytes = 4u << 20, .create = true};
    for (uint32_t i = 0; i < 3; i++) {
        snprintf(f->paths[i], sizeof(f->paths[i]), "%s/device%u", f->base, i);
        f->config.folders[i] = f->paths[i];
    }
}

static void teardown(struct fixture *f)
{
    test_folder_remove(f->base);
}

static quire_status reopen(struct fixture *f)
{
    const quire_status status = qr_disk_home_open(&f->config, &f->home, &f->e);
    if (status == QUIRE_OK)
        qr_disk_home_close(&f->fault.io, &f->home);
    return status;
}

static void put_text(struct fixture *f, uint32_t device, const char *name, const char *text)
{
    char path[400];
    snprintf(path, sizeof(path), "%s/%s", f->paths[device], name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void refused(struct fixture *f, quire_status status, const char *advice)
{
    assert_status(status, reopen(f));
    assert_non_null(strstr(f->e.text, advice));
    assert_null(strchr(f->e.text, '\n'));
}

static void a_store_opens_again_as_itself(void **state)
{
    struct fixture f;
    uint8_t store[QR_DISK_UUID_BYTES];
    (void)state;

    setup(&f, 2);
    assert_ok(reopen(&f));
    assert_true(f.home.fresh);
    memcpy(store, f.home.store, sizeof(store));
    f.config.create = false;
    f.config.region_bytes = 1;
    assert_ok(reopen(&f));
    assert_false(f.home.fresh);
    assert_memory_equal(store, f.home.store, sizeof(store));
    assert_int_equal(f.home.region_bytes, 4u << 20);
    teardown(&f);
}

static void nothing_is_made_without_create(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f, 1);
    f.config.create = false;
    refused(&f, QUIRE_ENOTFOUND, "no Quire store");
    assert_int_equal(access(f.paths[0], F_OK), -1);
    teardown(&f);
}

static void a_foreign_folder_is_left_alone(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f, 1);
    assert_int_equal(mkdir(f.paths[0], 0700), 0);
    put_text(&f, 0, "thesis.txt", "mine");
    refused(&f, QUIRE_EMISMATCH, "thesis.txt");
    assert_int_equal(unlinkat(AT_FDCWD, f.paths[0], AT_REMOVEDIR), -1);
    teardown(&f);
}

static void a_newer_version_is_refused(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f, 1);
    assert_ok(reopen(&f));
    put_text(&f, 0, "QUIRE", "quire-store 2\nanything else\n");
    refused(&f, QUIRE_EUNSUPPORTED, "version 2");
    teardown(&f);
}

static void a_damaged_identity_is_refused(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f, 1);
    assert_ok(reopen(&f));
    put_text(&f, 0, "QUIRE", "quire-store 1\nstore 00\n");
    refused(&f, QUIRE_ECORRUPT, "QUIRE is damaged");
    put_text(&f, 0, "QUIRE", "");
    refused(&f, QUIRE_ECORRUPT, "QUIRE is damaged");
    teardown(&f);
}

static void folders_must_be_all_and_in_order(void **state)
{
    struct fixture f, other;
    (void)state;

    setup(&f, 2);
    setup(&other, 1);
    assert_ok(reopen(&f));
    assert_ok(reopen(&other));
    f.config.count = 1;
    refused(&f, QUIRE_EMISMATCH, "list all of them");
    f.config.count = 2;
    f.config.folders[0] = f.paths[1];
    f.config.folders[1] = f.paths[0];
    refused(&f, QUIRE_EMISMATCH, "in their order");
    f.config.folders[0] = f.paths[0];
    f.config.folders[1] = other.paths[0];
    refused(&f, QUIRE_EMISMATCH, "another store");
    teardown(&f);
    teardown(&other);
}

static void slab_files_must_lie_in_their_own_folders(void **state)
{
    struct fixture f;
    char a[400], b[400], c[400];
    (void)state;

    setup(&f, 2);
    assert_ok(reopen(&f));
    snprintf(a, sizeof(a), "%s/slabs", f.paths[0]);
    snprintf(b, sizeof(b), "%s/slabs", f.paths[1]);
    snprintf(c, sizeof(c), "%s/kept", f.base);
    assert_int_equal(rename(a, c) | rename(b, a) | rename(c, b), 0);
    refused(&f, QUIRE_EMISMATCH, "put each slab file back");
    assert_int_equal(rename(b, c), 0);
    refused(&f, QUIRE_EIO, "slabs");
    teardown(&f);
}

static void a_missing_device_is_refused_or_allowed(void **state)
{
    struct fixture f;
    char away[400];
    (void)state;

    setup(&f, 2);
    assert_ok(reopen(&f));
    snprintf(away, sizeof(away), "%s/away", f.base);
    assert_int_equal(rename(f.paths[1], away), 0);
    refused(&f, QUIRE_ENOTFOUND, "mount the device");
    f.config.allow_missing = true;
    assert_ok(qr_disk_home_open(&f.config, &f.home, &f.e));
    assert_int_equal(f.home.devices[1].slab_fd, -1);
    qr_disk_home_close(&f.fault.io, &f.home);
    teardown(&f);
}

static void a_second_opener_is_refused(void **state)
{
    struct fixture f;
    struct qr_disk_home second;
    (void)state;

    setup(&f, 1);
    assert_ok(qr_disk_home_open(&f.config, &f.home, &f.e));
    assert_status(QUIRE_EUNAVAILABLE, qr_disk_home_open(&f.config, &second, &f.e));
    assert_non_null(strstr(f.e.text, "another process"));
    qr_disk_home_close(&f.fault.io, &f.home);
    assert_ok(reopen(&f));
    teardown(&f);
}

static void making_can_be_carried_on_after_any_failure(void **state)
{
    uint64_t n = 1;
    quire_status status;
    (void)state;

    do {
        struct fixture f;
        setup(&f, 3);
        fault_arm(&f.fault, n, UINT64_MAX, n % 2 ? EIO : ENOSPC);
        status = reopen(&f);
        fault_arm(&f.fault, 0, 0, 0);
        const quire_status after = reopen(&f);
        if (after != QUIRE_OK)
            print_message("after a failure of call %llu: %s\n", (unsigned long long)n,
                          f.e.text);
        assert_ok(after);
        f.config.create = false;
        assert_ok(reopen(&f));
        teardown(&f);
        n++;
    } while (status != QUIRE_OK);
    assert_true(n > 10);
}

static void the_number_of_folders_is_bounded(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f, 1);
    f.config.count = 0;
    refused(&f, QUIRE_EINVAL, "1 to 16");
    teardown(&f);
}

static void upgraded_folders_open_again(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f, 2);
    assert_ok(qr_disk_home_open(&f.config, &f.home, &f.e));
    f.home.version = 0;
    assert_ok(qr_disk_home_upgraded(&f.config, &f.home, &f.e));
    assert_int_equal(f.home.version, QR_DISK_VERSION);
    qr_disk_home_close(&f.fault.io, &f.home);
    f.config.create = false;
    assert_ok(reopen(&f));
    assert_int_equal(f.home.version, QR_DISK_VERSION);
    teardown(&f);
}

static void reading_only_makes_and_writes_nothing(void **state)
{
    struct fixture f;
    char lock[400];
    (void)state;

    setup(&f, 1);
    f.config.read_only = true;
    f.config.create = false;
    refused(&f, QUIRE_ENOTFOUND, "no Quire store");
    f.config.read_only = false;
    f.config.create = true;
    assert_ok(reopen(&f));
    f.config.read_only = true;
    f.config.create = false;
    snprintf(lock, sizeof(lock), "%s/LOCK", f.paths[0]);
    assert_int_equal(unlink(lock), 0);
    assert_ok(reopen(&f));
    assert_int_equal(access(lock, F_OK), -1);
    teardown(&f);
}

/* As somebody else than root, who may do anything. */
static void wrong_permissions_are_named(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f, 1);
    assert_ok(reopen(&f));
    assert_int_equal(chmod(f.base, 0755), 0);
    assert_int_equal(chmod(f.paths[0], 0700), 0);
    const bool root = geteuid() == 0;
    if (root)
        assert_int_equal(seteuid(65534), 0);
    else
        assert_int_equal(chmod(f.paths[0], 0), 0);
    refused(&f, QUIRE_EPERM, "must belong to the user");
    if (root)
        assert_int_equal(seteuid(0), 0);
    else
        assert_int_equal(chmod(f.paths[0], 0700), 0);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_opens_again_as_itself),
        cmocka_unit_test(nothing_is_made_without_create),
        cmocka_unit_test(a_foreign_folder_is_left_alone),
        cmocka_unit_test(a_newer_version_is_refused),
        cmocka_unit_test(a_damaged_identity_is_refused),
        cmocka_unit_test(folders_must_be_all_and_in_order),
        cmocka_unit_test(slab_files_must_lie_in_their_own_folders),
        cmocka_unit_test(a_missing_device_is_refused_or_allowed),
        cmocka_unit_test(a_second_opener_is_refused),
        cmocka_unit_test(making_can_be_carried_on_after_any_failure),
        cmocka_unit_test(the_number_of_folders_is_bounded),
        cmocka_unit_test(upgraded_folders_open_again),
        cmocka_unit_test(reading_only_makes_and_writes_nothing),
        cmocka_unit_test(wrong_permissions_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
