/* SPDX-License-Identifier: Apache-2.0
 *
 * A model is refused with the field's name and value when it breaks a limit, and its
 * fingerprint depends on everything that changes a cache, and on nothing else.
 */
#include "tests/test.h"

#include "proto/model.h"

static struct qr_model model;

static int fresh_model(void **state)
{
    (void)state;
    memset(&model, 0, sizeof(model));
    strcpy(model.name, "tiny");
    strcpy(model.revision, "r1");
    model.layer_count = 2;
    model.rope_count = 1;
    for (int i = 0; i < 2; i++)
        model.layers[i] = (struct qr_layer){.query_heads = 9,
                                            .kv_heads = 3,
                                            .key_dim = 64,
                                            .value_dim = 64,
                                            .rope_stored = QR_ROPE_PRE};
    model.ropes[0].layout = QR_ROPE_HALF;
    model.ropes[0].rotary_dim = 64;
    model.ropes[0].attention_factor = 1;
    for (int i = 0; i < 32; i++)
        model.ropes[0].inv_freq[i] = 1.0f / (float)(1 << (i / 2));
    return 0;
}

static void hex_of(const uint8_t *hash, char out[65])
{
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", hash[i]);
}

/* The value was computed with Python's hashlib over the serialization in proto/README.md. */
static void fingerprint_is_the_canonical_hash(void **state)
{
    char hex[65];
    (void)state;
    assert_ok(qr_model_seal(&model, NULL));
    hex_of(model.fingerprint, hex);
    assert_string_equal(hex,
                        "a5260768c3ab42c00ae590f0cac2a489ca248619173e6d183160076641f2ab34");
}

static void expect_refused(const char *text)
{
    struct qr_error e;
    assert_status(QUIRE_EINVAL, qr_model_seal(&model, &e));
    assert_int_equal(e.status, QUIRE_EINVAL);
    if (!strstr(e.text, text))
        fail_msg("'%s' does not contain '%s'", e.text, text);
    assert_status(QUIRE_EINVAL, qr_model_seal(&model, NULL));
    fresh_model(NULL);
}

static void layer_limits_are_named(void **state)
{
    (void)state;
    model.layer_count = 0;
    expect_refused("model has 0 layers");
    model.layer_count = QR_LAYERS_MAX + 1;
    expect_refused("model has 513 layers");
    model.layers[1].key_dim = 60;
    expect_refused("layers[1]: key_dim 60");
    model.layers[1].value_dim = 8;
    expect_refused("value_dim 8");
    model.layers[1].key_dim = 1032;
    expect_refused("key_dim 1032");
    model.layers[0].query_heads = 8;
    expect_refused("layers[0].query_heads is 8: a multiple of kv_heads 3");
    model.layers[0].query_heads = 0;
    expect_refused("query_heads is 0");
    model.layers[0].kv_heads = 1025;
    expect_refused("kv_heads is 1025");
    model.layers[0].kv_heads = model.layers[1].kv_heads = 0;
    expect_refused("no layer of the model has KV heads");
}

static void rope_limits_are_named(void **state)
{
    (void)state;
    model.rope_count = 5;
    expect_refused("model has 5 ropes");
    model.layers[1].rope = 1;
    expect_refused("layers[1].rope is 1: the model has 1 ropes");
    model.layers[1].rope_stored = 3;
    expect_refused("rope_stored is 3");
    model.ropes[0].layout = 0;
    expect_refused("ropes[0].layout is 0");
    model.ropes[0].rotary_dim = 31;
    expect_refused("rotary_dim is 31");
    model.ropes[0].rotary_dim = 66;
    expect_refused("rotary_dim 66 is larger than key_dim 64");
    model.ropes[0].attention_factor = NAN;
    expect_refused("attention_factor is nan");
    model.ropes[0].inv_freq[31] = INFINITY;
    expect_refused("inv_freq[31] is inf");
    model.ropes[0].inv_freq[0] = -1;
    expect_refused("inv_freq[0] is -1");
}

static void name_limits_are_named(void **state)
{
    (void)state;
    model.name[0] = 0;
    expect_refused("model name is empty");
    memset(model.revision, 'x', sizeof(model.revision));
    expect_refused("model revision is longer than 255 bytes");
    strcpy(model.adapter, "a\nb");
    expect_refused("model adapter has a control character at byte 1");
}

static void utf8_is_checked(void **state)
{
    static const struct {
        const char *name;
        int ok;
    } cases[] = {
        {"", 1},
        {"plain", 1},
        {"\xc3\xa9", 1},
        {"\xe2\x82\xac", 1},
        {"\xf0\x9f\x98\x80", 1},
        {"\xf4\x8f\xbf\xbf", 1},
        {"\xc3", 0},
        {"\x80", 0},
        {"\xc0\xaf", 0},
        {"\xe0\x80\xaf", 0},
        {"\xf0\x80\x80\xaf", 0},
        {"\xed\xa0\x80", 0},
        {"\xf4\x90\x80\x80", 0},
        {"\xff", 0},
        {"a\xe2\x82", 0},
        {"\x7f", 0},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if ((qr_name_check(cases[i].name, "name", NULL) == QUIRE_OK) != cases[i].ok)
            fail_msg("case %zu", i);
}

static void expect_changes(bool changes)
{
    uint8_t before[32];
    struct qr_model changed = model;
    fresh_model(NULL);
    assert_ok(qr_model_seal(&model, NULL));
    memcpy(before, model.fingerprint, 32);
    assert_ok(qr_model_seal(&changed, NULL));
    assert_int_equal(memcmp(before, changed.fingerprint, 32) != 0, changes);
}

static void what_changes_a_cache_changes_the_fingerprint(void **state)
{
    (void)state;
    strcpy(model.name, "tinz");
    expect_changes(true);
    strcpy(model.revision, "r");
    strcpy(model.adapter, "1");
    expect_changes(true);
    model.layers[1].query_heads = 12;
    expect_changes(true);
    model.layers[1].rope_stored = QR_ROPE_POST;
    expect_changes(true);
    model.layers[0].sliding_window = 1;
    expect_changes(true);
    model.ropes[0].inv_freq[31] = 0;
    expect_changes(true);
    model.ropes[0].layout = QR_ROPE_INTERLEAVED;
    expect_changes(true);
}

static void what_is_not_used_does_not_change_it(void **state)
{
    (void)state;
    model.ropes[0].inv_freq[32] = 7;
    expect_changes(false);
    model.name[100] = 'x';
    expect_changes(false);
    model.layers[2].key_dim = 99;
    expect_changes(false);
    memset(model.fingerprint, 0xff, 32);
    expect_changes(false);
}

static void dtypes_have_sizes(void **state)
{
    (void)state;
    assert_int_equal(qr_dtype_bytes(QR_F16), 2);
    assert_int_equal(qr_dtype_bytes(QR_BF16), 2);
    assert_int_equal(qr_dtype_bytes(QR_F32), 4);
    assert_int_equal(qr_dtype_bytes((enum qr_dtype)0), 0);
    assert_int_equal(qr_dtype_bytes((enum qr_dtype)4), 0);
}

/* Values: Python's hashlib over the fields of proto/README.md, as for the model above. */
static void ids_are_the_documented_hashes(void **state)
{
    uint8_t parent[32], uuid[16], out[32];
    const uint32_t tokens[] = {1, 2, 0x01020304};
    char hex[65];
    (void)state;
    for (int i = 0; i < 32; i++)
        parent[i] = (uint8_t)i;
    memset(uuid, 0xab, sizeof(uuid));

    qr_block_id_tokens(parent, tokens, 3, out);
    hex_of(out, hex);
    assert_string_equal(hex,
                        "a5fe69ab4dcbce3ce3292356c572660e004bc98d706ed06a90ceb0f8584e6124");
    qr_block_id_unique(parent, uuid, 0x1122334455667788u, out);
    hex_of(out, hex);
    assert_string_equal(hex,
                        "493197cdf0a1032c6d6e5ee6d40df9cac97a127058d114cdd9a16c44ea0b6410");
}

static void page_id_depends_on_all_but_the_window(void **state)
{
    uint8_t secret[32] = {1}, block[32] = {2}, base[32], out[32];
    struct qr_policy policy;
    char hex[65];
    (void)state;
    qr_policy_default(&policy);
    qr_page_id(secret, block, 5, 2, 4, &policy, base);
    hex_of(base, hex);
    assert_string_equal(hex,
                        "c63c448f5916a5798b1640085214831484768cdbc881c9fe2f6cb3fbe50baba2");

    policy.window = 0;
    qr_page_id(secret, block, 5, 2, 4, &policy, out);
    assert_memory_equal(out, base, 32);
    policy.value.bits = 2;
    qr_page_id(secret, block, 5, 2, 4, &policy, out);
    assert_memory_not_equal(out, base, 32);
    qr_policy_default(&policy);
    secret[31] = 1;
    qr_page_id(secret, block, 5, 2, 4, &policy, out);
    assert_memory_not_equal(out, base, 32);
    secret[31] = 0;
    qr_page_id(secret, block, 5, 4, 2, &policy, out);
    assert_memory_not_equal(out, base, 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(fingerprint_is_the_canonical_hash, fresh_model),
        cmocka_unit_test_setup(layer_limits_are_named, fresh_model),
        cmocka_unit_test_setup(rope_limits_are_named, fresh_model),
        cmocka_unit_test_setup(name_limits_are_named, fresh_model),
        cmocka_unit_test(utf8_is_checked),
        cmocka_unit_test_setup(what_changes_a_cache_changes_the_fingerprint, fresh_model),
        cmocka_unit_test_setup(what_is_not_used_does_not_change_it, fresh_model),
        cmocka_unit_test(dtypes_have_sizes),
        cmocka_unit_test(ids_are_the_documented_hashes),
        cmocka_unit_test(page_id_depends_on_all_but_the_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
