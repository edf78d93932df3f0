/* SPDX-License-Identifier: Apache-2.0
 *
 * Block ids are chained exactly while all token ids are known; what was staged is kept or
 * dropped as a whole.
 */
#include "tests/test.h"

#include "storage/store/blocks.h"

#define PAGE 16

static const uint8_t fingerprint[QR_HASH_BYTES] = {1, 2, 3};
static const uint8_t uuid[16] = {9}, other_uuid[16] = {8};
static uint32_t tokens[PAGE * 8];

static void start(struct qr_blocks *blocks, struct qr_meta *meta)
{
    *meta = (struct qr_meta){.limit_bytes = 1u << 20};
    qr_blocks_init(blocks, fingerprint, uuid, PAGE, meta);
    assert_ok(qr_blocks_reserve(blocks, 8, PAGE * 8, NULL));
    for (uint32_t i = 0; i < PAGE * 8; i++)
        tokens[i] = i * 3;
}

static void expect_chained(const uint8_t *id, const uint8_t *parent, uint32_t block)
{
    uint8_t expected[QR_HASH_BYTES];

    qr_block_id_tokens(parent, tokens + block * PAGE, PAGE, expected);
    assert_memory_equal(id, expected, QR_HASH_BYTES);
}

static void expect_unique(const uint8_t *id, const uint8_t of[16], uint32_t block)
{
    uint8_t expected[QR_HASH_BYTES];

    qr_block_id_unique(fingerprint, of, block, expected);
    assert_memory_equal(id, expected, QR_HASH_BYTES);
}

static void chains_until_a_token_is_unknown(void **state)
{
    struct qr_blocks blocks;
    struct qr_meta meta;
    (void)state;

    start(&blocks, &meta);
    assert_ok(qr_blocks_stage_tokens(&blocks, 0, tokens, PAGE * 2 + 1, NULL));
    assert_ok(
        qr_blocks_stage_tokens(&blocks, PAGE * 2 + 2, tokens + PAGE * 2 + 2, PAGE * 2, NULL));
    expect_chained(qr_blocks_id(&blocks, 0), fingerprint, 0);
    expect_chained(qr_blocks_id(&blocks, 1), blocks.ids[0], 1);
    expect_unique(qr_blocks_id(&blocks, 2), uuid, 2); /* one token is unknown */
    qr_blocks_commit(&blocks);
    assert_ok(qr_blocks_reserve(&blocks, 8, PAGE * 8, NULL));
    assert_ok(qr_blocks_stage_tokens(&blocks, PAGE * 3, tokens + PAGE * 3, PAGE, NULL));
    expect_unique(qr_blocks_id(&blocks, 3), uuid, 3); /* the chain is broken for good */
    qr_blocks_free(&blocks);
    assert_int_equal(atomic_load(&meta.used_bytes), 0);
}

static void aborted_ids_leave_no_trace(void **state)
{
    struct qr_blocks blocks;
    struct qr_meta meta;
    (void)state;

    start(&blocks, &meta);
    tokens[3] = 77;
    assert_ok(qr_blocks_stage_tokens(&blocks, 0, tokens, PAGE, NULL));
    (void)qr_blocks_id(&blocks, 0);
    qr_blocks_abort(&blocks);
    tokens[3] = 9;
    assert_ok(qr_blocks_stage_tokens(&blocks, 0, tokens, PAGE, NULL));
    expect_chained(qr_blocks_id(&blocks, 0), fingerprint, 0);
    qr_blocks_free(&blocks);
    qr_blocks_abort(
        &blocks); /* what an append does that waited while its session was dropped */
}

static void contradictions_are_found(void **state)
{
    struct qr_blocks blocks;
    struct qr_meta meta;
    struct qr_error e;
    (void)state;

    start(&blocks, &meta);
    assert_ok(qr_blocks_stage_tokens(&blocks, 0, tokens, PAGE * 2, NULL));
    (void)qr_blocks_id(&blocks, 0);
    qr_blocks_commit(&blocks);
    tokens[PAGE + 4] ^= 1;
    assert_status(QUIRE_ECONFLICT,
                  qr_blocks_stage_tokens(&blocks, PAGE, tokens + PAGE, PAGE, &e));
    assert_int_equal(e.position, PAGE + 4);
    tokens[PAGE + 4] ^= 1;
    tokens[2] ^= 1;
    assert_status(QUIRE_ECONFLICT, qr_blocks_stage_tokens(&blocks, 0, tokens, PAGE, &e));
    assert_int_equal(e.position, 0);
    qr_blocks_free(&blocks);
}

static void cutting_renews_what_unique_ids_are_made_of(void **state)
{
    struct qr_blocks blocks;
    struct qr_meta meta;
    (void)state;

    start(&blocks, &meta);
    expect_unique(qr_blocks_id(&blocks, 0), uuid, 0);
    expect_unique(qr_blocks_id(&blocks, 1), uuid, 1);
    qr_blocks_commit(&blocks);
    qr_blocks_cut(&blocks, 2, PAGE * 2, other_uuid); /* nothing fixed goes */
    assert_memory_equal(blocks.uuid, uuid, 16);
    qr_blocks_cut(&blocks, 1, PAGE, other_uuid);
    expect_unique(qr_blocks_id(&blocks, 0), uuid, 0);
    expect_unique(qr_blocks_id(&blocks, 1), other_uuid, 1);
    qr_blocks_free(&blocks);
}

static void copies_share_ids_and_go_on_alone(void **state)
{
    struct qr_blocks blocks, copy;
    struct qr_meta meta;
    (void)state;

    start(&blocks, &meta);
    assert_ok(qr_blocks_stage_tokens(&blocks, 0, tokens, PAGE * 2 + 5, NULL));
    (void)qr_blocks_id(&blocks, 0);
    qr_blocks_commit(&blocks);
    qr_blocks_init(&copy, fingerprint, other_uuid, PAGE, &meta);
    assert_ok(qr_blocks_copy(&blocks, 1, PAGE * 2, &copy, NULL));
    assert_ok(qr_blocks_reserve(&copy, 8, PAGE * 8, NULL));
    expect_chained(qr_blocks_id(&copy, 1), blocks.ids[0], 1);
    qr_blocks_free(&copy);
    qr_blocks_free(&blocks);
    assert_int_equal(atomic_load(&meta.used_bytes), 0);
}

static void growing_past_the_limit_is_refused(void **state)
{
    struct qr_blocks blocks;
    struct qr_meta meta;
    struct qr_error e;
    (void)state;

    start(&blocks, &meta);
    assert_status(QUIRE_EFULL, qr_blocks_reserve(&blocks, 1u << 20, 0, &e));
    assert_int_equal(blocks.capacity, 8 + 1 + 8);
    qr_blocks_free(&blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_until_a_token_is_unknown),
        cmocka_unit_test(aborted_ids_leave_no_trace),
        cmocka_unit_test(contradictions_are_found),
        cmocka_unit_test(cutting_renews_what_unique_ids_are_made_of),
        cmocka_unit_test(copies_share_ids_and_go_on_alone),
        cmocka_unit_test(growing_past_the_limit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
