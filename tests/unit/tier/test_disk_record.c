/* SPDX-License-Identifier: Apache-2.0
 *
 * Index records read back as written, sort by their numbers, and anything else
 * is refused: every length, every flipped version, reserved and range byte.
 */
#include "disk_test.h"

#include "storage/tier/disk_record.h"

static const struct qr_disk_page page = {.place = {3, 70000, 12, 393216},
                                         .flags = QR_DISK_QUARANTINED,
                                         .checksum = 0x0123456789abcdef,
                                         .layer = 31,
                                         .first_head = 8,
                                         .heads = 4,
                                         .first_position = 128000,
                                         .ns = 5,
                                         .named = 3};

static struct qr_disk_session session(void)
{
    struct qr_disk_session s = {.name = "chat/42",
                                .fingerprint = {1, 2, 3},
                                .head_shards = 2,
                                .epoch = 9,
                                .ttl_ms = 1000,
                                .created_us = 77,
                                .used_us = 78};
    qr_policy_default(&s.policy);
    return s;
}

static void pages_read_back_as_written(void **state)
{
    uint8_t bytes[QR_DISK_PAGE_RECORD_BYTES];
    struct qr_disk_page back;
    (void)state;

    qr_disk_page_write(&page, bytes);
    memset(&back, 0, sizeof(back));
    assert_ok(qr_disk_page_read(bytes, sizeof(bytes), &back));
    assert_int_equal(back.place.device, 3);
    assert_int_equal(back.place.region, 70000);
    assert_int_equal(back.place.slot, 12);
    assert_int_equal(back.place.bytes, 393216);
    assert_int_equal(back.checksum, page.checksum);
    assert_int_equal(back.layer, 31);
    assert_int_equal(back.first_head, 8);
    assert_int_equal(back.heads, 4);
    assert_int_equal(back.first_position, 128000);
    assert_int_equal(back.ns, 5);
    assert_int_equal(back.named, 3);
    assert_int_equal(back.flags, QR_DISK_QUARANTINED);
}

static void the_layout_of_a_page_is_as_documented(void **state)
{
    uint8_t bytes[QR_DISK_PAGE_RECORD_BYTES];
    uint32_t word;
    (void)state;

    qr_disk_page_write(&page, bytes);
    assert_int_equal(bytes[0], 1);
    assert_int_equal(bytes[1], 3);
    memcpy(&word, bytes + 12, 4);
    assert_int_equal(word, 393216);
    memcpy(&word, bytes + 24, 4);
    assert_int_equal(word, 31);
    memcpy(&word, bytes + 40, 4);
    assert_int_equal(word, 5);
}

static void wrong_pages_are_refused(void **state)
{
    uint8_t bytes[QR_DISK_PAGE_RECORD_BYTES + 1] = {0};
    struct qr_disk_page back;
    (void)state;

    qr_disk_page_write(&page, bytes);
    for (size_t n = 0; n <= sizeof(bytes); n++) {
        if (n != QR_DISK_PAGE_RECORD_BYTES)
            assert_status(QUIRE_ECORRUPT, qr_disk_page_read(bytes, n, &back));
    }
    bytes[0] = 2;
    assert_status(QUIRE_EUNSUPPORTED, qr_disk_page_read(bytes, sizeof(bytes) - 1, &back));
    bytes[0] = 1;
    static const size_t strict[] = {1, 3, 27};
    for (size_t i = 0; i < ARRAY_LEN(strict); i++) {
        bytes[strict[i]] ^= 0x80;
        assert_status(QUIRE_ECORRUPT, qr_disk_page_read(bytes, sizeof(bytes) - 1, &back));
        bytes[strict[i]] ^= 0x80;
    }
    assert_ok(qr_disk_page_read(bytes, sizeof(bytes) - 1, &back));
}

static void manifest_entries_read_back_as_written(void **state)
{
    const struct qr_disk_block block = {
        .page_id = {7, 8}, .place = {3, 70000, 12, 393216}, .checksum = 99};
    uint8_t bytes[QR_DISK_BLOCK_RECORD_BYTES + 1] = {0};
    struct qr_disk_block back;
    (void)state;

    qr_disk_block_write(&block, bytes);
    for (size_t n = 0; n <= sizeof(bytes); n++) {
        if (n != QR_DISK_BLOCK_RECORD_BYTES)
            assert_status(QUIRE_ECORRUPT, qr_disk_block_read(bytes, n, &back));
    }
    assert_ok(qr_disk_block_read(bytes, QR_DISK_BLOCK_RECORD_BYTES, &back));
    assert_memory_equal(&back, &block, sizeof(block));
    bytes[32] = QR_DISK_DEVICES_MAX;
    assert_status(QUIRE_ECORRUPT, qr_disk_block_read(bytes, QR_DISK_BLOCK_RECORD_BYTES, &back));
}

static void sessions_read_back_as_written(void **state)
{
    struct qr_disk_session s = session();
    struct qr_disk_session back;
    uint8_t bytes[QR_DISK_SESSION_RECORD_MAX];
    (void)state;

    s.policy.override_count = 2;
    s.policy.overrides[0] = (struct qr_override){0, 1, QR_TENSOR_BOTH, 0, s.policy.key};
    s.policy.overrides[1] = (struct qr_override){7, 7, QR_TENSOR_VALUE, 0, s.policy.value};
    const size_t n = qr_disk_session_write(&s, bytes);
    assert_int_equal(n, QR_DISK_SESSION_HEAD_BYTES + 7 + 2 * sizeof(s.policy.overrides[0]));
    assert_ok(qr_disk_session_read(bytes, n, &back));
    assert_string_equal(back.name, s.name);
    assert_memory_equal(back.fingerprint, s.fingerprint, QR_HASH_BYTES);
    assert_memory_equal(&back.policy, &s.policy, sizeof(s.policy));
    assert_int_equal(back.epoch, 9);
    assert_int_equal(back.used_us, 78);
    for (size_t cut = 0; cut < n; cut++)
        assert_status(QUIRE_ECORRUPT, qr_disk_session_read(bytes, cut, &back));
    bytes[QR_DISK_SESSION_HEAD_BYTES + 2] = 0;
    assert_status(QUIRE_ECORRUPT, qr_disk_session_read(bytes, n, &back));
}

static void lanes_read_back_as_written(void **state)
{
    const struct qr_disk_lane lane = {.sealed = 7, .cut_sequence = 1u << 20, .cut_length = 900};
    uint8_t bytes[QR_DISK_LANE_RECORD_BYTES];
    struct qr_disk_lane back;
    (void)state;

    qr_disk_lane_write(&lane, bytes);
    assert_ok(qr_disk_lane_read(bytes, sizeof(bytes), &back));
    assert_int_equal(back.sealed, lane.sealed);
    assert_int_equal(back.cut_sequence, lane.cut_sequence);
    assert_int_equal(back.cut_length, lane.cut_length);
    for (size_t n = 0; n < sizeof(bytes); n++)
        assert_status(QUIRE_ECORRUPT, qr_disk_lane_read(bytes, n, &back));
    bytes[31] = 1;
    assert_status(QUIRE_ECORRUPT, qr_disk_lane_read(bytes, sizeof(bytes), &back));
}

static void keys_sort_by_their_numbers_and_read_back(void **state)
{
    static const uint8_t uuid[QR_DISK_UUID_BYTES] = {9, 8, 7};
    uint32_t lane, block, ns;
    uint8_t back[QR_DISK_UUID_BYTES];
    (void)state;

    const struct qr_disk_key a = qr_disk_key_manifest(uuid, 1, 255);
    const struct qr_disk_key b = qr_disk_key_manifest(uuid, 1, 256);
    const struct qr_disk_key c = qr_disk_key_manifest(uuid, 2, 0);
    assert_true(memcmp(a.bytes, b.bytes, a.n) < 0 && memcmp(b.bytes, c.bytes, b.n) < 0);
    const struct qr_disk_key prefix = qr_disk_key_prefix(QR_DISK_KEY_MANIFEST, uuid);
    assert_memory_equal(prefix.bytes, a.bytes, prefix.n);
    assert_true(qr_disk_key_manifest_read(b.bytes, b.n, &lane, &block));
    assert_int_equal(lane, 1);
    assert_int_equal(block, 256);
    assert_false(qr_disk_key_manifest_read(b.bytes, b.n - 1, &lane, &block));
    assert_false(qr_disk_key_lane_read(b.bytes, b.n, &lane));
    const struct qr_disk_key s = qr_disk_key_session(4, uuid);
    assert_true(qr_disk_key_session_read(s.bytes, s.n, &ns, back));
    assert_int_equal(ns, 4);
    assert_memory_equal(back, uuid, sizeof(uuid));
}

static void batches_give_their_changes_in_order(void **state)
{
    struct qr_disk_batch batch = {0};
    const struct qr_disk_key key = qr_disk_key_namespace(1);
    struct qr_disk_change change;
    size_t at = 0;
    (void)state;

    qr_disk_batch_put(&batch, &key, "abc", 3);
    qr_disk_batch_delete(&batch, &key);
    assert_int_equal(batch.count, 2);
    assert_true(qr_disk_batch_next(&batch, &at, &change));
    assert_true(change.put && change.value_bytes == 3 && memcmp(change.value, "abc", 3) == 0);
    assert_true(qr_disk_batch_next(&batch, &at, &change));
    assert_true(!change.put && change.key_bytes == key.n);
    assert_false(qr_disk_batch_next(&batch, &at, &change));
    qr_disk_batch_free(&batch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_read_back_as_written),
        cmocka_unit_test(the_layout_of_a_page_is_as_documented),
        cmocka_unit_test(wrong_pages_are_refused),
        cmocka_unit_test(manifest_entries_read_back_as_written),
        cmocka_unit_test(sessions_read_back_as_written),
        cmocka_unit_test(lanes_read_back_as_written),
        cmocka_unit_test(keys_sort_by_their_numbers_and_read_back),
        cmocka_unit_test(batches_give_their_changes_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
