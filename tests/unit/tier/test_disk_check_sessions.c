/* SPDX-License-Identifier: Apache-2.0
 *
 * The offline check of what sessions name: manifests, block ids, lanes, models and
 * the rows of the tail log, against what is there.
 */
#include "disk_check_test.h"

/* The entry of one block names another page. */
static void name_other(struct fixture *f, const struct test_session *s, uint32_t lane,
                       uint32_t block, const uint8_t id[QR_HASH_BYTES],
                       const struct qr_disk_page *page)
{
    struct qr_disk_batch batch = {0};
    uint8_t uuid[QR_DISK_UUID_BYTES];

    test_session_uuid(s, uuid);
    test_put_manifest(&batch, uuid, lane, block, id, page);
    write_batch(f, &batch);
}

static void manifests_must_name_their_own_pages(void **state)
{
    static const struct {
        uint32_t lane, block; /* of the first session: whose page is named */
        const struct test_session *by;
        uint32_t by_lane, by_block;
        const char *why;
    } cases[] = {{0, 2, &first, 0, 3, "position"},
                 {0, 1, &first, 1, 1, "lane"},
                 {0, 0, &second, 0, 0, "namespace"}};
    struct fixture f;
    (void)state;

    setup(&f, 1);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint8_t id[QR_HASH_BYTES];
        const struct qr_disk_page page =
            test_session_record(f.disk, &first, cases[i].lane, cases[i].block);
        test_session_page_id(&first, cases[i].lane, cases[i].block, id);
        name_other(&f, cases[i].by, cases[i].by_lane, cases[i].by_block, id, &page);
    }
    check(&f);
    assert_int_equal(f.result.counts[QR_DISK_PAGE_FOREIGN], 3);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        bool told = false;
        for (uint32_t j = 0; j < f.count; j++)
            told = told || strstr(f.found[j].text, cases[i].why);
        assert_true(told);
    }
    assert_int_equal(f.result.counts[QR_DISK_TOKENS_DAMAGED], 3);
    assert_int_equal(f.result.counts[QR_DISK_PAGE_UNUSED], 3);
    assert_int_equal(f.result.counts[QR_DISK_NAMED_HIGH], 3);
    repair_once(&f, 3);
    assert_int_equal(f.result.counts[QR_DISK_TOKENS_MISSING], 3);
    assert_int_equal(f.result.counts[QR_DISK_NAMED_HIGH], 0);
    teardown(&f);
}

static void an_entry_and_its_page_record_must_agree(void **state)
{
    struct fixture f;
    uint8_t id[QR_HASH_BYTES];
    (void)state;

    setup(&f, 1);
    struct qr_disk_page page = test_session_record(f.disk, &first, 0, 1);
    test_session_page_id(&first, 0, 1, id);
    page.place.slot += 40;
    name_other(&f, &first, 0, 1, id, &page);
    page = test_session_record(f.disk, &first, 1, 2);
    test_session_page_id(&first, 1, 2, id);
    page.named = 0; /* the next start would delete it */
    put_record(&f, id, &page);
    test_session_page_id(&first, 1, 3, id);
    const struct qr_disk_key key = qr_disk_key_page(id); /* a page without a record */
    delete_key(&f, &key);
    check(&f);
    assert_non_null(strstr(find(&f, QR_DISK_PAGE_FOREIGN)->text, "another place"));
    assert_tokens(&f, QR_DISK_TOKENS_DAMAGED, "session-1", 0, 16, 32);
    assert_non_null(strstr(find(&f, QR_DISK_NAMED_LOW)->text, "1 name it, its record says 0"));
    assert_int_equal(f.result.counts[QR_DISK_RECORD_MISSING], 1);
    assert_int_equal(f.result.bad, 5); /* and tokens of two blocks */
    f.check.repair = true;
    check(&f);
    assert_int_equal(f.result.dropped, 2);
    assert_int_equal(f.result.counted, 2); /* one too low, one too high */
    repair_once(&f, 0);
    teardown(&f);
}

static void what_a_page_holds_must_give_its_id(void **state)
{
    struct fixture f;
    const uint8_t other[QR_HASH_BYTES] = {0xEE};
    uint8_t id[QR_HASH_BYTES];
    (void)state;

    setup(&f, 1);
    /* All of block 1's page, under an id that is not its own. */
    const struct qr_disk_page page = test_session_record(f.disk, &second, 0, 1);
    test_session_page_id(&second, 0, 1, id);
    put_record(&f, other, &page);
    const struct qr_disk_key old = qr_disk_key_page(id);
    delete_key(&f, &old);
    name_other(&f, &second, 0, 1, other, &page);
    check(&f);
    assert_non_null(strstr(find(&f, QR_DISK_PAGE_FOREIGN)->text, "does not follow"));
    assert_tokens(&f, QR_DISK_TOKENS_DAMAGED, "session-2", 0, 16, 32);
    repair_once(&f, 1);
    teardown(&f);
}

static void holes_and_entries_past_the_end_are_told(void **state)
{
    struct fixture f;
    struct qr_disk_page page;
    uint8_t id[QR_HASH_BYTES], uuid[QR_DISK_UUID_BYTES];
    (void)state;

    setup(&f, 1);
    page = test_session_record(f.disk, &first, 0, 1);
    test_session_page_id(&first, 0, 1, id);
    struct qr_disk_key key = qr_disk_key_page(id); /* as eviction leaves it */
    delete_key(&f, &key);
    page.place = (struct qr_disk_place){0};
    name_other(&f, &first, 0, 1, id, &page);
    key = manifest_key(&first, 0, 2); /* and the next entry away */
    delete_key(&f, &key);
    test_session_uuid(&second, uuid);
    key = qr_disk_key_block(uuid, 2);
    delete_key(&f, &key);
    name_other(&f, &second, 0, 9, id, &page);
    name_other(&f, &second, 7, 0, id, &page); /* a lane without a record */
    check(&f);
    assert_tokens(&f, QR_DISK_TOKENS_MISSING, "session-1", 0, 16, 48);
    assert_tokens(&f, QR_DISK_BLOCK_ID_MISSING, "session-2", 0, 32, 48);
    assert_int_equal(f.result.counts[QR_DISK_ENTRY_PAST_END], 2);
    assert_int_equal(f.result.bad, 3);
    f.check.repair = true;
    check(&f);
    assert_int_equal(f.result.dropped, 2);
    teardown(&f);
}

static void what_the_next_start_deletes_is_left_to_it(void **state)
{
    struct fixture f;
    struct qr_disk_batch batch = {0};
    uint8_t uuid[QR_DISK_UUID_BYTES];
    (void)state;

    setup(&f, 1);
    test_put_session(f.disk, &ghost);
    test_session_uuid(&ghost, uuid);
    const struct qr_disk_key key = qr_disk_key_going(uuid);
    qr_disk_batch_put(&batch, &key, "", 0);
    write_batch(&f, &batch);
    f.check.repair = true;
    check(&f);
    assert_int_equal(f.count, 1);
    assert_int_equal(f.result.counts[QR_DISK_SESSION_GOING], 1);
    assert_int_equal(f.result.dropped, 0);
    assert_int_equal(f.result.counted, 0);
    teardown(&f);
}

static void token_ids_have_a_session_and_their_length(void **state)
{
    struct fixture f;
    struct qr_disk_batch batch = {0};
    uint32_t value[4 + 5] = {1, 4, 0, 4}; /* four ids, then four bytes */
    uint8_t uuid[QR_DISK_UUID_BYTES];
    (void)state;

    setup(&f, 1);
    test_session_uuid(&first, uuid);
    struct qr_disk_key key = qr_disk_key_tokens(uuid);
    qr_disk_batch_put(&batch, &key, value, sizeof(value));
    test_session_uuid(&ghost, uuid);
    key = qr_disk_key_tokens(uuid);
    qr_disk_batch_put(&batch, &key, value, sizeof(value));
    test_session_uuid(&second, uuid);
    key = qr_disk_key_tokens(uuid);
    value[3] = 5;
    qr_disk_batch_put(&batch, &key, value, sizeof(value));
    write_batch(&f, &batch);
    check(&f);
    assert_int_equal(f.result.counts[QR_DISK_SESSION_MISSING], 1);
    assert_int_equal(f.result.counts[QR_DISK_RECORD_DAMAGED], 1);
    repair_once(&f, 2);
    teardown(&f);
}

static void entries_of_no_session_are_dropped(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f, 1);
    test_put_session(f.disk, &ghost);
    check(&f);
    assert_int_equal(f.result.counts[QR_DISK_SESSION_MISSING], 3); /* l, b, g */
    assert_int_equal(f.result.counts[QR_DISK_PAGE_UNUSED], 2);
    assert_string_equal(f.sessions[find(&f, QR_DISK_SESSION_MISSING) - f.found],
                        "13000000000000000000000000000001");
    repair_once(&f, 5);
    assert_int_equal(f.result.counts[QR_DISK_PAGE_UNUSED], 2); /* sound pages stay */
    open_store(&f);
    const struct qr_disk_key secret = qr_disk_key_namespace(2);
    delete_key(&f, &secret);
    check(&f);
    assert_int_equal(f.result.counts[QR_DISK_NAMESPACE_MISSING], 1);
    teardown(&f);
}

static bool no_model(void *arg, const uint8_t fingerprint[QR_HASH_BYTES], const uint8_t *bytes,
                     size_t n)
{
    (void)arg;
    (void)fingerprint;
    return n > 5 && bytes[0] == 'x';
}

static void a_model_must_be_what_its_name_says(void **state)
{
    struct fixture f;
    (void)state;

    setup(&f, 1);
    f.check.is_model = no_model;
    check(&f);
    assert_int_equal(f.result.counts[QR_DISK_MODEL_MISSING], 2); /* sessions */
    teardown(&f);
}

static int segment_file(const struct fixture *f)
{
    char path[400];
    snprintf(path, sizeof(path), "%s/tail/0000000000000001.log", f->paths[0]);
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    return fd;
}

/* Records: lane 0 and lane 1 of the first tail, then again 5 tokens each. */
static void damage_of_the_tail_log_is_located(void **state)
{
    struct fixture f;
    const uint32_t bytes = 80 + TEST_TAIL_TOKENS * TEST_ROW_BYTES;
    uint8_t byte;
    (void)state;

    setup(&f, 1);
    test_append_tail(f.disk, &first, 64 + TEST_TAIL_TOKENS, TEST_TAIL_TOKENS);
    check(&f);
    assert_int_equal(f.count, 0);
    assert_int_equal(f.result.tail_live, 4);
    const int fd = segment_file(&f);
    const off_t at = 4096 + bytes + 200; /* lane 1's first record */
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    check(&f);
    assert_tokens(&f, QR_DISK_TAIL_DAMAGED, "session-1", 1, 64, 69);
    assert_tokens(&f, QR_DISK_TAIL_GAP, "session-1", 1, 64, 69);
    assert_int_equal(f.result.tail_live, 3);
    const uint8_t half[100] = {0}; /* the last record torn: nobody was told of it */
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    assert_int_equal(pwrite(fd, half, sizeof(half), 4096 + 4 * bytes - 100), 100);
    check(&f);
    assert_int_equal(f.count, 1);
    assert_int_equal(f.result.counts[QR_DISK_TAIL_TORN], 1);
    assert_int_equal(f.result.bad, 0);
    close(fd);
    teardown(&f);
}

static void a_cut_lane_has_only_what_was_left(void **state)
{
    struct fixture f;
    struct qr_disk_batch batch = {0};
    struct qr_disk_lane record = {.sealed = 4, .cut_sequence = 1000, .cut_length = 66};
    uint8_t uuid[QR_DISK_UUID_BYTES], value[QR_DISK_LANE_RECORD_BYTES];
    (void)state;

    setup(&f, 1);
    test_session_uuid(&first, uuid);
    struct qr_disk_key key = qr_disk_key_lane(uuid, 0);
    qr_disk_lane_write(&record, value);
    qr_disk_batch_put(&batch, &key, value, sizeof(value));
    record.cut_length = 64;
    key = qr_disk_key_lane(uuid, 1);
    qr_disk_lane_write(&record, value);
    qr_disk_batch_put(&batch, &key, value, sizeof(value));
    write_batch(&f, &batch);
    check(&f);
    assert_int_equal(f.count, 0);
    assert_int_equal(f.result.tail_records, 2);
    assert_int_equal(f.result.tail_live, 1);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(manifests_must_name_their_own_pages),
        cmocka_unit_test(an_entry_and_its_page_record_must_agree),
        cmocka_unit_test(what_the_next_start_deletes_is_left_to_it),
        cmocka_unit_test(token_ids_have_a_session_and_their_length),
        cmocka_unit_test(what_a_page_holds_must_give_its_id),
        cmocka_unit_test(holes_and_entries_past_the_end_are_told),
        cmocka_unit_test(entries_of_no_session_are_dropped),
        cmocka_unit_test(a_model_must_be_what_its_name_says),
        cmocka_unit_test(damage_of_the_tail_log_is_located),
        cmocka_unit_test(a_cut_lane_has_only_what_was_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
