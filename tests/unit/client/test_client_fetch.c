/* SPDX-License-Identifier: Apache-2.0
 *
 * What was appended comes back: through pages and rows, any sub-range of tokens
 * and heads, any layout; holes and damage are named and never become data.
 */
#include "fake_store.h"

/* Half a step of 4 bits over a range of 2 (fake_value swings by one each way), and FP16. */
#define BOUND 0.068f
#define UNTOUCHED -77.0f

static void append_all(uint32_t tokens)
{
    struct fake_kv kv = fake_kv_make(0, tokens);
    const struct quire_append args = fake_append_args(&kv, 0, tokens);
    uint64_t length = 0;

    assert_ok(quire_append(session, &args, &length));
    assert_int_equal(length, tokens);
    fake_kv_free(&kv);
}

static struct fake_kv blank(uint32_t tokens)
{
    struct fake_kv kv = fake_kv_make(0, tokens);

    for (uint32_t l = 0; l < FAKE_LAYERS; l++) {
        for (size_t i = 0; i < tokens * 2u * 32; i++)
            kv.key[l][i] = UNTOUCHED;
        for (size_t i = 0; i < tokens * 2u * 48; i++)
            kv.value[l][i] = UNTOUCHED;
    }
    return kv;
}

static void check_rows(const struct fake_kv *kv, uint64_t position, uint32_t first,
                       uint32_t tokens)
{
    for (uint32_t l = 0; l < FAKE_LAYERS; l++)
        for (uint32_t t = first; t < first + tokens; t++)
            for (uint32_t h = 0; h < 2; h++) {
                for (uint32_t c = 0; c < 32; c++)
                    assert_true(fabsf(kv->key[l][(t * 2 + h) * 32 + c] -
                                      fake_value(l, 0, position + t, h, c)) < BOUND);
                for (uint32_t c = 0; c < 48; c++)
                    assert_true(fabsf(kv->value[l][(t * 2 + h) * 48 + c] -
                                      fake_value(l, 1, position + t, h, c)) < BOUND);
            }
}

static void brings_back_what_was_appended(void **state)
{
    struct fake_kv kv = blank(200);
    const struct quire_fetch args = fake_fetch_args(&kv, 0, 200);

    (void)state;
    append_all(200);
    assert_ok(quire_fetch(session, &args));
    check_rows(&kv, 0, 0, 200);
    fake_kv_free(&kv);
}

static void cuts_any_range_at_both_ends(void **state)
{
    static const struct {
        uint64_t position, tokens;
    } ranges[] = {{0, 1}, {31, 2}, {40, 60}, {150, 50}, {199, 1}, {5, 190}};

    (void)state;
    append_all(200);
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
        struct fake_kv kv = blank((uint32_t)ranges[i].tokens);
        const struct quire_fetch args =
            fake_fetch_args(&kv, ranges[i].position, ranges[i].tokens);
        assert_ok(quire_fetch(session, &args));
        check_rows(&kv, ranges[i].position, 0, (uint32_t)ranges[i].tokens);
        fake_kv_free(&kv);
    }
}

static void head_major_one_head_lands_where_strides_say(void **state)
{
    float *value = calloc(200 * 48, sizeof(float));
    void *values[] = {value};
    const struct quire_fetch args = {.tokens = 200,
                                     .first_layer = 1,
                                     .layers = 1,
                                     .first_head = 1,
                                     .heads = 1,
                                     .dtype = QUIRE_F32,
                                     .layout = QUIRE_HEAD_MAJOR,
                                     .value = values};

    (void)state;
    append_all(200);
    assert_ok(quire_fetch(session, &args));
    for (uint32_t t = 0; t < 200; t++)
        for (uint32_t c = 0; c < 48; c++)
            assert_true(fabsf(value[t * 48 + c] - fake_value(1, 1, t, 1, c)) < BOUND);
    free(value);
}

static void rotates_by_position_and_shift(void **state)
{
    static const int64_t shifts[] = {0, -40, 1000};
    struct fake_kv plain = blank(100), turned = blank(100);
    struct quire_fetch args = fake_fetch_args(&plain, 40, 100);

    (void)state;
    append_all(200);
    assert_ok(quire_fetch(session, &args));
    for (size_t i = 0; i < ARRAY_LEN(shifts); i++) {
        args = fake_fetch_args(&turned, 40, 100);
        args.rotate = true;
        args.position_shift = shifts[i];
        assert_ok(quire_fetch(session, &args));
        for (uint32_t t = 0; t < 100; t++)
            for (uint32_t c = 0; c < 16; c++) {
                const float a = (float)(40 + t + shifts[i]) * fake.model.ropes[0].inv_freq[c];
                const float x = plain.key[2][t * 64 + c], y = plain.key[2][t * 64 + c + 16];
                assert_true(fabsf(turned.key[2][t * 64 + c] - (x * cosf(a) - y * sinf(a))) <
                            4e-3f);
                assert_true(fabsf(turned.key[2][t * 64 + c + 16] -
                                  (y * cosf(a) + x * sinf(a))) < 4e-3f);
            }
    }
    fake_kv_free(&plain);
    fake_kv_free(&turned);
}

/* Pages of 32 tokens: position 64 is the third of each layer. */
static void hole(quire_status status, uint8_t mark)
{
    uint8_t pages[FAKE_LAYERS * 7];
    struct fake_kv kv = blank(200);
    struct quire_fetch args = fake_fetch_args(&kv, 0, 200);

    args.page_status = pages;
    assert_int_equal(quire_fetch_pages(session, &args), sizeof(pages));
    assert_status(status, quire_fetch(session, &args));
    assert_int_equal(quire_last_error()->layer, 0);
    assert_int_equal(quire_last_error()->position, 64);
    assert_int_equal(quire_last_error()->tokens, 32);
    for (uint32_t i = 0; i < sizeof(pages); i++)
        assert_int_equal(pages[i], i % 7 == 2 ? mark : 0);
    check_rows(&kv, 0, 0, 64);
    check_rows(&kv, 0, 96, 104);
    for (size_t i = 64 * 64; i < 96 * 64; i++)
        assert_true(kv.key[1][i] == UNTOUCHED);
    fake_kv_free(&kv);
}

static void a_missing_page_leaves_its_rows_untouched(void **state)
{
    (void)state;
    append_all(200);
    fake.hole_position = 64;
    hole(QUIRE_EMISSING, 1);
}

static void a_flipped_bit_is_corrupt_and_not_data(void **state)
{
    (void)state;
    append_all(200);
    fake.break_position = 64;
    hole(QUIRE_ECORRUPT, 2);
}

static void a_page_of_another_place_is_corrupt(void **state)
{
    (void)state;
    append_all(200);
    for (size_t i = 0; i < fake.count; i++)
        if (fake.parts[i].page && fake.parts[i].position == 64)
            fake.parts[i].position = 64;
        else if (fake.parts[i].page && fake.parts[i].position == 32)
            for (size_t j = 0; j < fake.count; j++)
                if (fake.parts[j].position == 64 && fake.parts[j].layer == fake.parts[i].layer)
                    memcpy(fake.parts[j].bytes, fake.parts[i].bytes, 512);
    hole(QUIRE_ECORRUPT, 2);
}

static void a_stream_that_ends_early_is_an_error(void **state)
{
    struct fake_kv kv = blank(200);
    const struct quire_fetch args = fake_fetch_args(&kv, 0, 200);

    (void)state;
    append_all(199);
    assert_status(QUIRE_EINTERNAL, quire_fetch(session, &args));
    fake_kv_free(&kv);
}

static void layers_are_announced_in_order(void **state)
{
    quire_op *op;
    struct fake_kv kv = blank(200);
    const struct quire_fetch args = fake_fetch_args(&kv, 0, 200);

    (void)state;
    append_all(200);
    assert_ok(quire_fetch_submit(session, &args, &op));
    for (uint32_t l = 0; l < FAKE_LAYERS; l++)
        assert_ok(quire_op_wait_layer(op, l, UINT32_MAX));
    assert_status(QUIRE_EINVAL, quire_op_wait_layer(op, FAKE_LAYERS, 0));
    assert_ok(quire_op_wait(op, UINT32_MAX));
    check_rows(&kv, 0, 0, 200);
    quire_op_free(&op);
    fake_kv_free(&kv);
}

static void a_page_comes_as_it_is_stored(void **state)
{
    size_t bytes = 0;
    struct quire_page_at at = {.position = 70, .layer = 1, .head = 1};
    uint8_t *page = aligned_alloc(64, 1 << 16);
    struct qr_page_view view;

    (void)state;
    append_all(200);
    assert_status(QUIRE_ETOOBIG, quire_session_page(session, &at, page, 512, &bytes));
    assert_ok(quire_session_page(session, &at, page, 1 << 16, &bytes));
    assert_ok(qr_page_open(page, bytes, &view, NULL));
    assert_int_equal(view.header->first_position, 64);
    at.position = 199;
    assert_status(QUIRE_ERANGE, quire_session_page(session, &at, page, 1 << 16, &bytes));
    free(page);
}

static void a_broken_connection_is_tried_once_more(void **state)
{
    struct fake_kv kv = blank(100);
    const struct quire_fetch args = fake_fetch_args(&kv, 0, 100);

    (void)state;
    append_all(200);
    fake.fail_first = 1;
    assert_ok(quire_fetch(session, &args));
    check_rows(&kv, 0, 0, 100);
    fake.fail_first = 2;
    assert_status(QUIRE_EUNAVAILABLE, quire_fetch(session, &args));
    fake_kv_free(&kv);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_setup, fake_teardown)
    const struct CMUnitTest tests[] = {
        TEST(brings_back_what_was_appended),
        TEST(cuts_any_range_at_both_ends),
        TEST(head_major_one_head_lands_where_strides_say),
        TEST(rotates_by_position_and_shift),
        TEST(a_missing_page_leaves_its_rows_untouched),
        TEST(a_flipped_bit_is_corrupt_and_not_data),
        TEST(a_page_of_another_place_is_corrupt),
        TEST(a_stream_that_ends_early_is_an_error),
        TEST(layers_are_announced_in_order),
        TEST(a_page_comes_as_it_is_stored),
        TEST(a_broken_connection_is_tried_once_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
