/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables and attention factors of every variant are those that the transformers package
 * computes, to 2 FP32 ulp; parameters out of range are refused by name.
 */
#include "tests/golden.h"

#include "proto/model.h"

#define ULP_MAX 2

static struct qr_rope_params params;
static struct qr_rope rope;

static double number_or(const cJSON *object, const char *key, double otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) ? item->valuedouble : otherwise;
}

static void factors_of(const cJSON *object, const char *key, float *out)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(object, key);
    for (int i = 0; list && i < cJSON_GetArraySize(list); i++)
        out[i] = (float)cJSON_GetArrayItem(list, i)->valuedouble;
}

static enum qr_rope_type type_of(const char *name)
{
    static const char *const names[] = {"",     "default", "linear",   "dynamic",
                                        "yarn", "llama3",  "longrope", "table"};
    for (size_t i = 1; i < ARRAY_LEN(names); i++)
        if (strcmp(names[i], name) == 0)
            return (enum qr_rope_type)i;
    fail_msg("unknown rope_type %s", name);
    return 0;
}

static void params_of(const cJSON *item)
{
    const cJSON *p = cJSON_GetObjectItemCaseSensitive(item, "params");
    params = (struct qr_rope_params){
        .type = type_of(golden_string(p, "rope_type")),
        .layout = QR_ROPE_HALF,
        .rotary_dim = (uint32_t)golden_number(item, "head_dim"),
        .theta = golden_number(p, "theta"),
        .factor = number_or(p, "factor", 0),
        .beta_fast = number_or(p, "beta_fast", 0),
        .beta_slow = number_or(p, "beta_slow", 0),
        .low_freq_factor = number_or(p, "low_freq_factor", 0),
        .high_freq_factor = number_or(p, "high_freq_factor", 0),
        .original_max_position = (uint32_t)number_or(p, "original_max_position_embeddings", 0),
        .max_position = (uint32_t)number_or(p, "maxpos", 8192), /* the vectors' default */
        .seq_len = (uint32_t)number_or(p, "seq_len", 0),
    };
    factors_of(p, "short_factor", params.short_factor);
    factors_of(p, "long_factor", params.long_factor);
}

/* Both positive and finite: their bit patterns are in order. */
static long ulps(float a, float b)
{
    int32_t bits[2];
    memcpy(&bits[0], &a, 4);
    memcpy(&bits[1], &b, 4);
    return labs((long)bits[0] - bits[1]);
}

static void golden_tables_match(void **state)
{
    struct golden g;
    const cJSON *item;
    int cases = 0;
    (void)state;
    golden_open(&g, "rope");
    cJSON_ArrayForEach(item, g.cases)
    {
        const char *name = golden_string(item, "name");
        uint32_t shape[4];
        const uint8_t *want = golden_case_tensor(&g, item, "inv_freq", shape);
        params_of(item);
        assert_ok(qr_rope_make(&params, &rope, NULL));
        assert_int_equal(shape[0], rope.rotary_dim / 2);
        for (uint32_t i = 0; i < shape[0]; i++) {
            float expected;
            memcpy(&expected, want + 4 * i, 4);
            if (ulps(rope.inv_freq[i], expected) > ULP_MAX)
                fail_msg("%s inv_freq[%u]: %a, expected %a", name, i, (double)rope.inv_freq[i],
                         (double)expected);
        }
        const float factor = (float)golden_number(item, "attention_factor");
        if (ulps(rope.attention_factor, factor) > ULP_MAX)
            fail_msg("%s attention_factor: %a, expected %a", name,
                     (double)rope.attention_factor, (double)factor);
        cases++;
    }
    assert_true(cases >= 7);
    golden_close(&g);
}

static int plain(void **state)
{
    (void)state;
    params = (struct qr_rope_params){.type = QR_ROPE_DEFAULT,
                                     .layout = QR_ROPE_INTERLEAVED,
                                     .rotary_dim = 64,
                                     .theta = 10000};
    return 0;
}

static void yarn_params(void)
{
    plain(NULL);
    params.type = QR_ROPE_YARN;
    params.factor = 40;
    params.original_max_position = 4096;
}

static void table_is_taken_as_it_is(void **state)
{
    (void)state;
    params.type = QR_ROPE_TABLE;
    params.theta = 0;
    params.attention_factor = 1.25;
    for (int i = 0; i < 32; i++)
        params.inv_freq[i] = (float)i;
    assert_ok(qr_rope_make(&params, &rope, NULL));
    assert_memory_equal(rope.inv_freq, params.inv_freq, 32 * sizeof(float));
    assert_true(rope.attention_factor == 1.25f);
    assert_int_equal(rope.layout, QR_ROPE_INTERLEAVED);
    assert_true(rope.inv_freq[32] == 0);
}

/* DeepSeek-V2: mscale == mscale_all_dim cancels, so the attention factor is 1. */
static void yarn_mscales_divide(void **state)
{
    (void)state;
    yarn_params();
    params.mscale = params.mscale_all_dim = 0.707;
    assert_ok(qr_rope_make(&params, &rope, NULL));
    assert_true(rope.attention_factor == 1.0f);
    params.mscale = 1;
    assert_ok(qr_rope_make(&params, &rope, NULL));
    const double want = (0.1 * log(40) + 1) / (0.1 * 0.707 * log(40) + 1);
    assert_true(fabs((double)rope.attention_factor - want) < 1e-6);
    params.attention_factor = 2;
    assert_ok(qr_rope_make(&params, &rope, NULL));
    assert_true(rope.attention_factor == 2.0f);
}

/* Truncated, the blend starts and ends on whole channels; without it, between them. */
static void yarn_truncate_moves_the_range(void **state)
{
    (void)state;
    yarn_params();
    assert_ok(qr_rope_make(&params, &rope, NULL));
    const struct qr_rope truncated = rope;
    params.truncate_off = true;
    assert_ok(qr_rope_make(&params, &rope, NULL));
    const double fast = 64 * log(4096 / (32 * 2 * M_PI)) / (2 * log(10000));
    const int first = (int)ceil(fast);
    assert_true(rope.inv_freq[first] != truncated.inv_freq[first]);
    assert_true(rope.inv_freq[0] == truncated.inv_freq[0]);
    assert_true(rope.inv_freq[31] == truncated.inv_freq[31]);
}

static void factor_follows_from_the_lengths(void **state)
{
    (void)state;
    yarn_params();
    assert_ok(qr_rope_make(&params, &rope, NULL));
    const struct qr_rope given = rope;
    params.factor = 0;
    params.max_position = 40 * 4096;
    assert_ok(qr_rope_make(&params, &rope, NULL));
    assert_memory_equal(&rope, &given, sizeof(rope));
}

static void longrope_switches_with_the_length(void **state)
{
    (void)state;
    params.type = QR_ROPE_LONGROPE;
    params.factor = 4;
    params.original_max_position = 4096;
    for (int i = 0; i < 32; i++) {
        params.short_factor[i] = 1;
        params.long_factor[i] = 2;
    }
    params.seq_len = 4096;
    assert_ok(qr_rope_make(&params, &rope, NULL));
    const float close_by = rope.inv_freq[5];
    params.seq_len = 4097;
    assert_ok(qr_rope_make(&params, &rope, NULL));
    assert_true(rope.inv_freq[5] == close_by / 2);
}

static void dynamic_is_plain_up_to_the_trained_length(void **state)
{
    struct qr_rope base;
    (void)state;
    assert_ok(qr_rope_make(&params, &base, NULL));
    params.type = QR_ROPE_DYNAMIC;
    params.factor = 2;
    params.original_max_position = 4096;
    params.seq_len = 100;
    assert_ok(qr_rope_make(&params, &rope, NULL));
    assert_memory_equal(&rope, &base, sizeof(base));
    params.seq_len = 4097;
    assert_ok(qr_rope_make(&params, &rope, NULL));
    assert_true(rope.inv_freq[31] < base.inv_freq[31]);
}

static void expect_refused(const char *text)
{
    struct qr_error e;
    const struct qr_rope before = rope;
    assert_status(QUIRE_EINVAL, qr_rope_make(&params, &rope, &e));
    assert_memory_equal(&rope, &before, sizeof(rope));
    if (!strstr(e.text, text))
        fail_msg("'%s' does not contain '%s'", e.text, text);
    plain(NULL);
}

static void bad_parameters_are_named(void **state)
{
    (void)state;
    params.type = 0;
    expect_refused("type is 0");
    params.type = (enum qr_rope_type)8;
    expect_refused("type is 8");
    params.layout = 0;
    expect_refused("layout is 0");
    params.rotary_dim = 63;
    expect_refused("rotary_dim is 63");
    params.rotary_dim = 1026;
    expect_refused("rotary_dim is 1026");
    params.theta = 1;
    expect_refused("theta is 1");
    params.theta = NAN;
    expect_refused("theta is nan");
    params.attention_factor = -1;
    expect_refused("attention_factor is -1");
    params.attention_factor = 1e300;
    expect_refused("attention_factor is inf");
    params.theta = 1e200; /* infinite in FP32 */
    expect_refused("theta is 1e+200");
    params.type = QR_ROPE_LINEAR;
    expect_refused("factor is 0");
    params.type = QR_ROPE_DYNAMIC;
    params.factor = 2;
    expect_refused("original_max_position is 0");
    params.type = QR_ROPE_LLAMA3;
    params.factor = 8;
    params.low_freq_factor = params.high_freq_factor = 4;
    expect_refused("high_freq_factor is 4");
    params.type = QR_ROPE_YARN;
    params.original_max_position = 4096;
    expect_refused("factor is 0");
    yarn_params();
    params.beta_slow = 33;
    expect_refused("beta_fast is 32");
    params.type = QR_ROPE_LONGROPE;
    params.factor = 2;
    params.original_max_position = 4096;
    expect_refused("short_factor is 0");
    params.type = QR_ROPE_TABLE;
    params.inv_freq[3] = NAN;
    expect_refused("inv_freq[3] is nan");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_tables_match),
        cmocka_unit_test_setup(table_is_taken_as_it_is, plain),
        cmocka_unit_test(yarn_mscales_divide),
        cmocka_unit_test(yarn_truncate_moves_the_range),
        cmocka_unit_test(factor_follows_from_the_lengths),
        cmocka_unit_test_setup(longrope_switches_with_the_length, plain),
        cmocka_unit_test_setup(dynamic_is_plain_up_to_the_trained_length, plain),
        cmocka_unit_test_setup(bad_parameters_are_named, plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
