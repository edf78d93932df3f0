/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots never overlap, never pass the cap, lose little to rounding, spread over
 * the devices, and are found again from a list of places.
 */
#include "disk_test.h"

#include "storage/tier/disk_class.h"
#include "storage/tier/disk_slabs.h"

#define REGION (1u << 20)

struct fixture {
    struct fault_io fault;
    char *base;
    char paths[2][300];
    struct qr_disk_home home;
    struct qr_disk_slabs_config config;
    struct qr_disk_slabs *slabs;
};

static uint64_t clock_now;
static uint64_t test_clock(void)
{
    return clock_now;
}

static void open_slabs(struct fixture *f, uint32_t count)
{
    struct qr_disk_home_config home = {
        .io = &f->fault.io, .count = count, .region_bytes = REGION, .create = true};
    for (uint32_t d = 0; d < count; d++)
        home.folders[d] = f->paths[d];
    assert_ok(qr_disk_home_open(&home, &f->home, NULL));
    assert_ok(qr_disk_slabs_create(&f->config, &f->slabs, NULL));
}

static void close_slabs(struct fixture *f)
{
    qr_disk_slabs_destroy(&f->slabs);
    qr_disk_home_close(&f->fault.io, &f->home);
}

static void setup(struct fixture *f, uint32_t count, uint64_t cap_bytes)
{
    fault_init(&f->fault);
    f->base = test_folder();
    f->config = (struct qr_disk_slabs_config){
        .io = &f->fault.io, .home = &f->home, .clock_ns = test_clock};
    for (uint32_t d = 0; d < 2; d++) {
        snprintf(f->paths[d], sizeof(f->paths[d]), "%s/device%u", f->base, d);
        f->config.cap_bytes[d] = cap_bytes;
    }
    open_slabs(f, count);
}

static void teardown(struct fixture *f)
{
    close_slabs(f);
    test_folder_remove(f->base);
}

static uint64_t file_bytes(struct fixture *f, uint32_t device)
{
    struct stat st;
    assert_int_equal(fstat(f->home.devices[device].slab_fd, &st), 0);
    return (uint64_t)st.st_size;
}

static void classes_fit_and_lose_little(void **state)
{
    (void)state;
    for (size_t bytes = 64; bytes <= QR_SIZE_CLASS_MAX_BYTES;
         bytes += 64 + bytes / 97 / 64 * 64) {
        const uint32_t c = qr_disk_class(bytes);
        const size_t slot = qr_disk_class_bytes(c);
        assert_true(c < QR_DISK_CLASSES);
        assert_true(slot >= bytes && slot % QR_DISK_BLOCK == 0);
        assert_true(c == 0 || qr_disk_class_bytes(c - 1) < bytes);
        if (bytes > 64u << 10)
            assert_true((slot - bytes) * 17 < slot); /* 5.9 % */
        else
            assert_true(slot - bytes < QR_DISK_BLOCK);
    }
}

static void slots_never_overlap_and_never_pass_the_cap(void **state)
{
    struct fixture f;
    struct qr_disk_place places[4096];
    static uint8_t used[2][5 * REGION / QR_DISK_BLOCK + 1];
    size_t n = 0;
    (void)state;

    setup(&f, 2, 4 * REGION + 8192);
    memset(used, 0, sizeof(used));
    while (qr_disk_slabs_reserve(f.slabs, n % 3 ? 20000 : 100000, &places[n]) == QUIRE_OK)
        n++;
    assert_true(n > 100 && n < ARRAY_LEN(places));
    for (size_t i = 0; i < n; i++) {
        const uint64_t at = qr_disk_slabs_offset(f.slabs, &places[i]);
        assert_true(at + places[i].bytes <= 4 * REGION + QR_DISK_SLAB_START);
        for (uint64_t b = at / QR_DISK_BLOCK; b * QR_DISK_BLOCK < at + places[i].bytes; b++)
            assert_int_equal(used[places[i].device][b]++, 0);
    }
    assert_true(file_bytes(&f, 0) <= 4 * REGION + 8192);
    assert_true(qr_disk_slabs_failures(f.slabs) > 0);
    for (size_t i = 0; i < n; i++)
        qr_disk_slabs_release(f.slabs, &places[i]);
    for (uint32_t d = 0; d < 2; d++) {
        struct qr_disk_device_stat stat;
        qr_disk_slabs_stat(f.slabs, d, &stat);
        assert_int_equal(stat.slots + stat.payload_bytes + stat.reserved_bytes, 0);
        assert_int_equal(stat.regions_used, 0);
    }
    /* empty regions take another class */
    assert_ok(qr_disk_slabs_reserve(f.slabs, REGION, &places[0]));
    teardown(&f);
}

static void devices_take_turns(void **state)
{
    struct fixture f;
    uint32_t on[2] = {0};
    (void)state;

    setup(&f, 2, 8 * REGION);
    for (int i = 0; i < 40; i++) {
        struct qr_disk_place place;
        assert_ok(qr_disk_slabs_reserve(f.slabs, 70000, &place));
        on[place.device]++;
    }
    assert_true(on[0] >= 12 && on[1] >= 12);
    teardown(&f);
}

static void a_failed_device_leaves_the_other_serving(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f, 2, 8 * REGION);
    qr_disk_slabs_set_failed(f.slabs, 0, true);
    for (int i = 0; i < 20; i++) {
        struct qr_disk_place place;
        assert_ok(qr_disk_slabs_reserve(f.slabs, 70000, &place));
        assert_int_equal(place.device, 1);
    }
    teardown(&f);
}

static void places_are_found_again_after_a_restart(void **state)
{
    struct fixture f;
    struct qr_disk_place places[30], place;
    struct qr_disk_device_stat before, after;
    (void)state;

    setup(&f, 1, 8 * REGION);
    for (size_t i = 0; i < ARRAY_LEN(places); i++)
        assert_ok(qr_disk_slabs_reserve(f.slabs, i % 2 ? 30000 : 90000, &places[i]));
    qr_disk_slabs_stat(f.slabs, 0, &before);
    close_slabs(&f);
    open_slabs(&f, 1);
    for (size_t i = 0; i < ARRAY_LEN(places); i++)
        assert_ok(qr_disk_slabs_mark(f.slabs, &places[i], NULL));
    qr_disk_slabs_stat(f.slabs, 0, &after);
    assert_memory_equal(&before, &after, sizeof(before));
    while (qr_disk_slabs_reserve(f.slabs, 30000, &place) == QUIRE_OK) {
        for (size_t i = 0; i < ARRAY_LEN(places); i++)
            assert_false(place.region == places[i].region && place.slot == places[i].slot);
    }
    teardown(&f);
}

static void places_that_cannot_be_are_refused(void **state)
{
    struct fixture f;
    struct qr_disk_place place;
    struct qr_error e;
    (void)state;

    setup(&f, 1, 8 * REGION);
    assert_ok(qr_disk_slabs_reserve(f.slabs, 90000, &place));
    close_slabs(&f);
    open_slabs(&f, 1);
    assert_ok(qr_disk_slabs_mark(f.slabs, &place, &e));
    assert_status(QUIRE_ECORRUPT, qr_disk_slabs_mark(f.slabs, &place, &e));
    assert_non_null(strstr(e.text, "another page"));
    struct qr_disk_place bad = place;
    bad.slot = 1;
    bad.bytes = 4000;
    assert_status(QUIRE_ECORRUPT, qr_disk_slabs_mark(f.slabs, &bad, &e));
    assert_non_null(strstr(e.text, "another size"));
    const struct qr_disk_place outside[] = {{0, 1, 0, 90000},
                                            {0, 0, 1000000, 90000},
                                            {1, 0, 0, 90000},
                                            {0, 0, 0, 0},
                                            {0, 0, 1, UINT32_MAX}};
    for (size_t i = 0; i < ARRAY_LEN(outside); i++)
        assert_status(QUIRE_ECORRUPT, qr_disk_slabs_mark(f.slabs, &outside[i], &e));
    teardown(&f);
}

static void a_full_file_system_is_asked_again_later(void **state)
{
    struct fixture f;
    struct qr_disk_place place;
    (void)state;

    clock_now = 5;
    setup(&f, 1, 8 * REGION);
    fault_arm(&f.fault, 1, 1, ENOSPC);
    assert_status(QUIRE_EFULL, qr_disk_slabs_reserve(f.slabs, 4096, &place));
    assert_status(QUIRE_EFULL, qr_disk_slabs_reserve(f.slabs, 4096, &place));
    clock_now += UINT64_C(1000000001);
    assert_ok(qr_disk_slabs_reserve(f.slabs, 4096, &place));
    teardown(&f);
}

static void caps_and_sizes_out_of_range_are_refused(void **state)
{
    struct fixture f;
    struct qr_disk_place place;
    struct qr_disk_slabs *slabs = NULL;
    struct qr_error e;
    (void)state;

    setup(&f, 1, 8 * REGION);
    assert_status(QUIRE_ETOOBIG, qr_disk_slabs_reserve(f.slabs, REGION + 1, &place));
    assert_status(QUIRE_ETOOBIG, qr_disk_slabs_reserve(f.slabs, 0, &place));
    f.config.cap_bytes[0] = REGION;
    assert_status(QUIRE_EINVAL, qr_disk_slabs_create(&f.config, &slabs, &e));
    assert_non_null(strstr(e.text, "one slab"));
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_fit_and_lose_little),
        cmocka_unit_test(slots_never_overlap_and_never_pass_the_cap),
        cmocka_unit_test(devices_take_turns),
        cmocka_unit_test(a_failed_device_leaves_the_other_serving),
        cmocka_unit_test(places_are_found_again_after_a_restart),
        cmocka_unit_test(places_that_cannot_be_are_refused),
        cmocka_unit_test(a_full_file_system_is_asked_again_later),
        cmocka_unit_test(caps_and_sizes_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
