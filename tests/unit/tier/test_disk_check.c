/* SPDX-License-Identifier: Apache-2.0
 *
 * The offline check of pages and their records finds each kind of damage, says
 * what it costs to the token range, and touches nothing; a repair drops exactly
 * that, after which a check is content; a store in use is refused.
 */
#include "disk_check_test.h"

static void a_sound_store_is_found_sound(void **state)
{
    (void)state;
    for (uint32_t devices = 1; devices <= 2; devices++) {
        struct fixture f;
        setup(&f, devices);
        f.check.no_uring = devices == 2;
        for (int repair = 0; repair <= 1; repair++) {
            f.check.repair = repair;
            check(&f);
            assert_int_equal(f.count, 0);
            assert_int_equal(f.result.dropped, 0);
        }
        assert_int_equal(f.result.pages, 11);
        assert_int_equal(f.result.verified, 11);
        assert_int_equal(f.result.verified_bytes, f.result.page_bytes);
        assert_int_equal(f.result.sessions, 2);
        assert_int_equal(f.result.lanes, 3);
        assert_int_equal(f.result.blocks, 11);
        assert_int_equal(f.result.tail_live, 2);
        assert_true(f.result.free_slots > 0);
        f.check.quick = true;
        check(&f);
        assert_int_equal(f.count, 0);
        assert_int_equal(f.result.verified, 0);
        open_store(&f);
        assert_int_equal(test_session_record(f.disk, &first, 0, 0).flags, 0);
        teardown(&f);
    }
}

static void a_damaged_page_costs_its_own_tokens(void **state)
{
    (void)state;
    for (uint32_t devices = 1; devices <= 2; devices++) {
        struct fixture f;
        setup(&f, devices);
        damage_page(&f, &first, 1, 2);
        damage_page(&f, &first, 1, 1);
        check(&f);
        assert_int_equal(f.result.counts[QR_DISK_PAGE_DAMAGED], 2);
        assert_int_equal(f.count, 3);
        assert_false(find(&f, QR_DISK_PAGE_DAMAGED)->dropped);
        assert_tokens(&f, QR_DISK_TOKENS_DAMAGED, "session-1", 1, 16, 48);
        repair_once(&f, 4);           /* records, and what names them */
        assert_int_equal(f.count, 3); /* missing tokens; two free slots hold the bytes */
        assert_int_equal(f.result.counts[QR_DISK_SLOT_ORPHAN], 2);
        assert_tokens(&f, QR_DISK_TOKENS_MISSING, "session-1", 1, 16, 48);
        assert_int_equal(f.result.verified, 9);
        teardown(&f);
    }
}

static void a_slot_keeps_the_record_whose_page_lies_in_it(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f, 1);
    struct qr_disk_page page = test_session_record(f.disk, &first, 0, 1);
    for (uint8_t i = 0; i < 2; i++) { /* one sorts before all others, one behind */
        page.checksum = 77;
        put_record(&f, (const uint8_t[QR_HASH_BYTES]){i ? 255 : 0, 1}, &page);
    }
    check(&f);
    assert_int_equal(f.result.counts[QR_DISK_SLOT_TWICE], 2);
    assert_int_equal(f.result.counts[QR_DISK_TOKENS_DAMAGED], 0);
    repair_once(&f, 2);
    assert_int_equal(f.count, 0);
    assert_int_equal(f.result.verified, 11);
    teardown(&f);
}

static void records_that_cannot_be_are_dropped(void **state)
{
    struct fixture f;
    struct qr_disk_batch batch = {0};
    (void)state;

    setup(&f, 1);
    const struct qr_disk_page good = test_session_record(f.disk, &first, 0, 1);
    struct qr_disk_page page = good;
    page.place.region = 60;
    put_record(&f, (const uint8_t[QR_HASH_BYTES]){1}, &page);
    page = good;
    page.place.device = 5;
    put_record(&f, (const uint8_t[QR_HASH_BYTES]){2}, &page);
    page = good;
    page.place.bytes *= 3; /* another class */
    page.place.slot = 1;
    put_record(&f, (const uint8_t[QR_HASH_BYTES]){3}, &page);
    const struct qr_disk_key bad = {.bytes = {QR_DISK_KEY_PAGE, 9, 9}, .n = 3};
    const struct qr_disk_key strange = {.bytes = {'z', 1}, .n = 2};
    qr_disk_batch_put(&batch, &bad, "?", 1);
    qr_disk_batch_put(&batch, &strange, "?", 1);
    write_batch(&f, &batch);
    check(&f);
    assert_int_equal(f.result.counts[QR_DISK_PAGE_OUTSIDE], 2);
    assert_int_equal(f.result.counts[QR_DISK_SLOT_CLASS], 1);
    assert_int_equal(f.result.counts[QR_DISK_RECORD_DAMAGED], 1);
    assert_int_equal(f.result.counts[QR_DISK_KEY_UNKNOWN], 1);
    repair_once(&f, 4);
    assert_int_equal(f.count, 1); /* what is unknown is left alone */
    assert_int_equal(f.result.verified, 11);
    teardown(&f);
}

static void a_store_in_use_is_refused(void **state)
{
    struct fixture f;
    struct qr_error e;
    (void)state;

    setup(&f, 1);
    for (int repair = 0; repair <= 1; repair++) {
        f.check.repair = repair;
        assert_status(QUIRE_EUNAVAILABLE, qr_disk_check(&f.check, &f.result, &e));
        assert_non_null(strstr(e.text, "another process"));
    }
    f.check.folders[0] = f.base;
    assert_true(qr_disk_check(&f.check, &f.result, &e) != QUIRE_OK);
    assert_null(strchr(e.text, '\n'));
    teardown(&f);
}

static void a_missing_device_is_counted_and_not_judged(void **state)
{
    struct fixture f;
    char away[400];
    struct qr_error e;
    (void)state;

    setup(&f, 2);
    qr_disk_close(&f.disk);
    snprintf(away, sizeof(away), "%s/away", f.base);
    assert_int_equal(rename(f.paths[1], away), 0);
    assert_status(QUIRE_ENOTFOUND, qr_disk_check(&f.check, &f.result, &e));
    f.check.allow_missing = true;
    f.check.repair = true;
    check(&f);
    assert_true(f.result.counts[QR_DISK_PAGE_AWAY] > 0);
    assert_int_equal(f.result.counts[QR_DISK_PAGE_AWAY] + f.result.verified, 11);
    assert_int_equal(f.result.bad, 0);
    assert_int_equal(f.result.dropped, 0);
    teardown(&f);
}

static _Atomic uint32_t gate_reads;
static _Atomic uint32_t gate_fails_from; /* the first read of the ring that fails */

static ssize_t failing_gate(struct qr_disk_io *io, enum qr_disk_op op, int fd, size_t n)
{
    (void)io;
    (void)fd;
    if (op == QR_DISK_READ && n > QR_DISK_BLOCK && /* pages, not free slots */
        atomic_fetch_add(&gate_reads, 1) + 1 >= atomic_load(&gate_fails_from))
        return -EIO;
    return (ssize_t)n;
}

static void unreadable_pages_are_marked_unless_all_are(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f, 1);
    f.check.repair = true;
    atomic_store(&gate_reads, 0);
    atomic_store(&gate_fails_from, 1);
    f.fault.io.gate = failing_gate;
    check(&f); /* a dead device: nothing is decided about its pages */
    assert_int_equal(f.result.counts[QR_DISK_PAGE_UNREADABLE], 11);
    assert_int_equal(f.result.dropped, 0);
    f.fault.io.gate = NULL;
    f.check.repair = false;
    check(&f);
    assert_int_equal(f.count, 0);
    f.check.repair = true;
    atomic_store(&gate_reads, 0);
    atomic_store(&gate_fails_from, 11);
    f.fault.io.gate = failing_gate;
    check(&f);
    assert_int_equal(f.result.counts[QR_DISK_PAGE_UNREADABLE], 1);
    assert_int_equal(f.result.counts[QR_DISK_TOKENS_DAMAGED], 1);
    f.fault.io.gate = NULL;
    f.check.repair = false;
    check(&f);
    assert_int_equal(f.result.counts[QR_DISK_PAGE_QUARANTINED], 1);
    assert_int_equal(f.result.counts[QR_DISK_TOKENS_MISSING], 1);
    assert_int_equal(f.result.bad, 0);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_store_is_found_sound),
        cmocka_unit_test(a_damaged_page_costs_its_own_tokens),
        cmocka_unit_test(a_slot_keeps_the_record_whose_page_lies_in_it),
        cmocka_unit_test(records_that_cannot_be_are_dropped),
        cmocka_unit_test(a_store_in_use_is_refused),
        cmocka_unit_test(a_missing_device_is_counted_and_not_judged),
        cmocka_unit_test(unreadable_pages_are_marked_unless_all_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
