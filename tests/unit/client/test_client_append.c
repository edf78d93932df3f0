/* SPDX-License-Identifier: Apache-2.0
 *
 * How an append goes out: pages where the rule lets blocks be sealed, rows for the
 * rest, ascending in each lane; values are judged before anything is sent; bad
 * arguments are named and never sent.
 */
#include "fake_store.h"

#include "client/client_plan.h"

static struct fake_kv kv;

static int setup(void **state)
{
    if (fake_setup(state))
        return -1;
    kv = fake_kv_make(0, 4000);
    return 0;
}

static int teardown(void **state)
{
    fake_kv_free(&kv);
    return fake_teardown(state);
}

/* Every lane got tokens [position, end), in order, without gaps. */
static void check_order(uint64_t position, uint64_t end)
{
    for (uint32_t l = 0; l < FAKE_LAYERS; l++) {
        uint64_t at = position;
        for (size_t i = 0; i < fake.count; i++)
            if (fake.parts[i].layer == l) {
                assert_int_equal(fake.parts[i].position, at);
                at += fake.parts[i].tokens;
            }
        assert_int_equal(at, end);
    }
}

static void seals_exactly_what_the_rule_allows(void **state)
{
    /* Pages and window of 32: block i may be sealed when (i+1) 32 + 32 <= n. */
    static const struct {
        uint32_t position, tokens, pages;
    } cases[] = {{0, 63, 0},   {0, 64, 1},  {0, 95, 1}, {0, 96, 2},
                 {40, 100, 1}, {32, 64, 1}, {1, 30, 0}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct quire_append args = fake_append_args(&kv, cases[i].position, cases[i].tokens);
        uint32_t pages = 0;
        assert_ok(quire_append(session, &args, NULL));
        check_order(cases[i].position, cases[i].position + cases[i].tokens);
        for (size_t p = 0; p < fake.count; p++) {
            pages += fake.parts[p].page;
            assert_true(!fake.parts[p].page || fake.parts[p].position % 32 == 0);
            free(fake.parts[p].bytes);
        }
        assert_int_equal(pages, cases[i].pages * FAKE_LAYERS);
        fake.count = 0;
    }
}

static void cuts_long_appends_and_keeps_the_order(void **state)
{
    struct quire_append args = fake_append_args(&kv, 0, 4000);
    uint64_t length = 0;

    (void)state;
    assert_ok(quire_append(session, &args, &length));
    assert_int_equal(length, 4000);
    check_order(0, 4000);
    assert_true(fake.messages > 3);
}

/* The store restores a lost block only from all of its rows: a message ends where a block does.
 */
static void messages_of_rows_end_at_blocks(void **state)
{
    static const struct {
        uint16_t heads; /* a block of 128 tokens takes heads x 64 KiB */
        uint64_t message_bytes_max;
        bool whole;
    } cases[] = {{4, 4u << 20, true},  {10, 4u << 20, true},  {40, 4u << 20, true},
                 {63, 4u << 20, true}, {64, 4u << 20, false}, {20, 1u << 20, false},
                 {1, 4u << 20, true},  {3, 4u << 20, true}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct quire_client to = {.message_bytes_max = cases[i].message_bytes_max};
        struct quire_session from = {.client = &to, .head_shards = 1};
        const struct quire_append args = {.position = 100, .tokens = 5000, .layers = 1};
        struct qr_plan plan;
        struct qr_cell cell;
        uint64_t at = 100;
        from.model.layer_count = 1;
        from.model.layers[0] = (struct qr_layer){.query_heads = cases[i].heads,
                                                 .kv_heads = cases[i].heads,
                                                 .key_dim = 128,
                                                 .value_dim = 128};
        qr_policy_default(&from.policy);
        qr_plan_start(&plan, &from, &args, false);
        while (qr_plan_next(&plan, &cell)) {
            assert_int_equal(cell.first_token + 100u, at);
            at += cell.tokens;
            assert_true(cell.tokens * qr_plan_row_bytes(&from, 0) + 8192 <=
                        cases[i].message_bytes_max);
            assert_true(!cases[i].whole || at % 128 == 0 || at == 5100);
        }
        assert_int_equal(at, 5100);
    }
}

static void the_same_bytes_whatever_the_dtype_and_strides(void **state)
{
    uint16_t *key = calloc(40 * 2 * 64, 2), *value = calloc(40 * 2 * 64, 2);
    const void *keys[] = {key}, *values[] = {value};
    struct quire_append args = fake_append_args(&kv, 0, 40);
    const struct quire_append halves = {.tokens = 40,
                                        .layers = 1,
                                        .dtype = QUIRE_F16,
                                        .key = keys,
                                        .value = values,
                                        .key_token_stride = 2 * 64 * 2,
                                        .key_head_stride = 64 * 2,
                                        .value_token_stride = 64 * 2,
                                        .value_head_stride = 40 * 64 * 2};

    (void)state;
    args.layers = 1;
    for (uint32_t t = 0; t < 40; t++)
        for (uint32_t h = 0; h < 2; h++) {
            qr_rows_convert(kv.key[0] + (t * 2 + h) * 32, QR_F32, 128, 128, 1, 1, 32,
                            key + (t * 2 + h) * 64, 32, 32, NULL);
            qr_rows_convert(kv.value[0] + (t * 2 + h) * 48, QR_F32, 192, 192, 1, 1, 48,
                            value + (h * 40 + t) * 64, 48, 48, NULL);
        }
    assert_ok(quire_append(session, &args, NULL));
    assert_ok(quire_append(session, &halves, NULL));
    assert_int_equal(fake.count, 2);
    assert_int_equal(fake.parts[0].n, fake.parts[1].n);
    assert_memory_equal(fake.parts[0].bytes, fake.parts[1].bytes, fake.parts[0].n);
    free(key);
    free(value);
}

static void a_bad_value_is_named_and_nothing_is_sent(void **state)
{
    struct quire_append args = fake_append_args(&kv, 100, 200);

    (void)state;
    kv.value[2][(150 * 2 + 1) * 48 + 7] = NAN;
    assert_status(QUIRE_EVALUE, quire_append(session, &args, NULL));
    const struct quire_error *e = quire_last_error();
    assert_int_equal(e->layer, 2);
    assert_int_equal(e->head, 1);
    assert_int_equal(e->position, 250);
    assert_int_equal(e->channel, 7);
    assert_int_equal(fake.count, 0);
    kv.value[2][(150 * 2 + 1) * 48 + 7] = 65520;
    assert_status(QUIRE_EVALUE, quire_append(session, &args, NULL));
    assert_int_equal(fake.count, 0);
}

static void a_bad_half_is_found_wherever_it_lies(void **state)
{
    static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e01, 0xffff};
    uint16_t *key = calloc(100 * 64, 2), *value = calloc(100 * 96, 2);
    const void *keys[] = {key}, *values[] = {value};
    const struct quire_append args = {
        .tokens = 100, .layers = 1, .dtype = QUIRE_F16, .key = keys, .value = values};

    (void)state;
    for (uint32_t i = 0; i < 40; i++) {
        const uint32_t at = i * 2399 % (100 * 96);
        value[at] = bad[i % 4];
        assert_status(QUIRE_EVALUE, quire_append(session, &args, NULL));
        assert_int_equal(quire_last_error()->position, at / 96);
        assert_int_equal(quire_last_error()->head, at / 48 % 2);
        assert_int_equal(quire_last_error()->channel, at % 48);
        value[at] = 0x7bff; /* 65504 is fine */
    }
    assert_int_equal(fake.messages, 0);
    assert_ok(quire_append(session, &args, NULL));
    free(key);
    free(value);
}

static void bad_arguments_are_named(void **state)
{
    const struct quire_append good = fake_append_args(&kv, 0, 10);
    const void *hole[FAKE_LAYERS] = {kv.key[0], NULL, kv.key[2]};
    const void *odd[FAKE_LAYERS] = {(const char *)kv.key[0] + 1, kv.key[1], kv.key[2]};
    struct {
        struct quire_append args;
        const char *named;
        quire_status status;
    } cases[12];
    size_t n = 0;

#define CASE(name, code, change)                                                               \
    cases[n].args = good;                                                                      \
    cases[n].args.change;                                                                      \
    cases[n].named = name;                                                                     \
    cases[n++].status = code
    (void)state;
    CASE("tokens", QUIRE_EINVAL, tokens = 0);
    CASE("16777216", QUIRE_ETOOBIG, position = QR_POSITION_MAX - 8);
    CASE("layers [0, +4)", QUIRE_EINVAL, layers = 4);
    CASE("layers [3, +3)", QUIRE_EINVAL, first_layer = 3);
    CASE("dtype is 9", QUIRE_EINVAL, dtype = (enum quire_dtype)9);
    CASE("durability is 7", QUIRE_EINVAL, durability = (enum quire_durability)7);
    CASE("value is NULL", QUIRE_EINVAL, value = NULL);
    CASE("key[1] is NULL", QUIRE_EINVAL, key = hole);
    CASE("element's 4 bytes", QUIRE_EINVAL, key = odd);
    CASE("key_token_stride is 8", QUIRE_EINVAL, key_token_stride = 8);
    CASE("overflow", QUIRE_EINVAL, value_token_stride = SIZE_MAX / 8 * 4);
    CASE("element's 4 bytes", QUIRE_EINVAL, value_head_stride = 194);
    for (size_t i = 0; i < n; i++) {
        assert_status(cases[i].status, quire_append(session, &cases[i].args, NULL));
        if (!strstr(quire_last_error()->text, cases[i].named))
            fail_msg("case %zu: \"%s\" does not name %s", i, quire_last_error()->text,
                     cases[i].named);
    }
    assert_status(QUIRE_EINVAL, quire_append(NULL, &good, NULL));
    assert_status(QUIRE_EINVAL, quire_append(session, NULL, NULL));
    assert_int_equal(fake.messages, 0);
}

static void bad_fetches_are_named(void **state)
{
    const struct quire_fetch good = fake_fetch_args(&kv, 0, 10);
    struct {
        struct quire_fetch args;
        const char *named;
        quire_status status;
    } cases[12];
    size_t n = 0;

    (void)state;
    CASE("at least 1", QUIRE_EINVAL, tokens = 0);
    CASE("16777216", QUIRE_ERANGE, tokens = UINT64_MAX);
    CASE("layers [0, +9)", QUIRE_EINVAL, layers = 9);
    CASE("heads [1, +2)", QUIRE_EINVAL, first_head = 1; cases[n].args.heads = 2);
    CASE("dtype is 0", QUIRE_EINVAL, dtype = (enum quire_dtype)0);
    CASE("layout is 5", QUIRE_EINVAL, layout = (enum quire_layout)5);
    CASE("key and value are NULL", QUIRE_EINVAL, key = NULL; cases[n].args.value = NULL);
    CASE("position_shift is -1", QUIRE_EINVAL, rotate = true;
         cases[n].args.position_shift = -1);
    CASE("overflow", QUIRE_EINVAL, key_token_stride = SIZE_MAX / 8 * 4);
    CASE("value_token_stride is 4", QUIRE_EINVAL, value_token_stride = 4);
    for (size_t i = 0; i < n; i++) {
        assert_status(cases[i].status, quire_fetch(session, &cases[i].args));
        if (!strstr(quire_last_error()->text, cases[i].named))
            fail_msg("case %zu: \"%s\" does not name %s", i, quire_last_error()->text,
                     cases[i].named);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(seals_exactly_what_the_rule_allows),
        TEST(cuts_long_appends_and_keeps_the_order),
        cmocka_unit_test(messages_of_rows_end_at_blocks),
        TEST(the_same_bytes_whatever_the_dtype_and_strides),
        TEST(a_bad_value_is_named_and_nothing_is_sent),
        TEST(a_bad_half_is_found_wherever_it_lies),
        TEST(bad_arguments_are_named),
        TEST(bad_fetches_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
