/* SPDX-License-Identifier: Apache-2.0
 *
 * Codecs as people write them: what is written is read back, defaults fill the rest, and what
 * is not understood is named.
 */
#include "proto/spec_text.h"

#include "proto/page.h"
#include "tests/test.h"

static void texts_come_back(void **state)
{
    static const char *const texts[] = {
        "raw",
        "chan:bits=4,axis=channel,group=32",
        "chan:bits=3,axis=token,group=128",
        "fp8:bits=8,axis=token,format=e4m3",
        "fp8:bits=8,axis=head,format=e5m2",
        "chan:bits=2,axis=token,group=64,center,normalize,hybrid",
        "rot:bits=4,axis=token,group=32",
        "rot:bits=2,axis=token,group=128,clip=0.95,center,heads4,reorder",
        "rot:bits=3,axis=token,group=16,clip=0.501",
        "lm:bits=3,axis=token,seed=0",
        "lm:bits=2,axis=token,seed=4294967295,center",
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct qr_codec_spec spec;
        char out[QR_SPEC_TEXT_MAX];
        struct qr_error e = {0};
        if (qr_spec_parse(texts[i], true, &spec, &e))
            fail_msg("%s: %s", texts[i], e.text);
        qr_spec_format(&spec, out);
        assert_string_equal(out, texts[i]);
    }
}

static void defaults_fill_the_rest(void **state)
{
    struct qr_codec_spec spec;
    struct qr_policy policy;
    (void)state;
    qr_policy_default(&policy);
    assert_ok(qr_spec_parse("chan", true, &spec, NULL));
    assert_memory_equal(&spec, &policy.key, sizeof(spec));
    assert_ok(qr_spec_parse("chan", false, &spec, NULL));
    assert_memory_equal(&spec, &policy.value, sizeof(spec));
    assert_ok(qr_spec_parse("fp8", true, &spec, NULL));
    assert_int_equal(spec.axis, QR_AXIS_TOKEN);
}

static void expect(quire_status status, const char *text, const char *part)
{
    struct qr_codec_spec spec;
    struct qr_error e = {0};
    assert_status(status, qr_spec_parse(text, false, &spec, &e));
    if (!strstr(e.text, part))
        fail_msg("%s: '%s' does not contain '%s'", text, e.text, part);
}

static void mistakes_are_named(void **state)
{
    static char word[QR_SPEC_TEXT_MAX + 8];
    (void)state;
    expect(QUIRE_EUNSUPPORTED, "zip", "codec \"zip\" is not known: one of raw, chan, fp8");
    expect(QUIRE_EINVAL, "chan:bits=x", "\"bits=x\" is not understood");
    expect(QUIRE_EINVAL, "chan:bits=-4", "\"bits=-4\" is not understood");
    expect(QUIRE_EINVAL, "chan:bits=260", "\"bits=260\" is not understood");
    expect(QUIRE_EINVAL, "chan:", "\"\" is not understood");
    expect(QUIRE_EINVAL, "chan:format=e4m3", "\"format=e4m3\" is not understood");
    expect(QUIRE_EINVAL, "chan:bits=5", "value: chan with 5 bits: 2, 3, 4 or 8 expected");
    expect(QUIRE_EINVAL, "fp8:axis=channel", "value: axis of fp8 is 1: 2 (token) or 3 (head)");
    expect(QUIRE_EINVAL, "fp8:group=32", "value: group of fp8 is 32: 0 expected");
    expect(QUIRE_EINVAL, "rot:clip=1.5", "\"clip=1.5\" is not understood");
    expect(QUIRE_EUNSUPPORTED, "rot:clip=0.4", "number of rot is 400");
    expect(QUIRE_EINVAL, "rot:axis=channel", "axis of rot is 1: 2 (token) expected");
    expect(QUIRE_EINVAL, "lm:bits=8", "lm with 8 bits: 2, 3 or 4 expected");
    expect(QUIRE_EINVAL, "lm:seed=4294967296", "\"seed=4294967296\" is not understood");
    expect(QUIRE_EUNSUPPORTED, "lm:hybrid", "option flags 0x4 of lm are not known");
    expect(QUIRE_EUNSUPPORTED, "chan:heads4", "option flags 0x8 of chan are not known");
    memset(word, 'x', sizeof(word) - 1);
    expect(QUIRE_EINVAL, word, "codec of 135 bytes: at most 127 expected");
}

static void overrides_come_back(void **state)
{
    static const char *const texts[] = {"0/k=raw", "0-1/kv=fp8:bits=8,axis=head,format=e4m3",
                                        "29-511/v=lm:bits=2,axis=token,seed=5,center"};
    struct qr_policy policy;
    char joined[512], out[QR_OVERRIDE_TEXT_MAX];
    struct qr_error e;
    (void)state;
    qr_policy_default(&policy);
    snprintf(joined, sizeof(joined), "%s;%s;%s", texts[0], texts[1], texts[2]);
    if (qr_overrides_parse(joined, &policy, &e))
        fail_msg("%s", e.text);
    assert_int_equal(policy.override_count, 3);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        qr_override_format(&policy.overrides[i], out);
        assert_string_equal(out, texts[i]);
    }
    assert_ok(qr_policy_check(&policy, NULL));
    assert_ok(qr_policy_check_layers(&policy, 512, NULL));
    assert_status(QUIRE_EINVAL, qr_policy_check_layers(&policy, 30, &e));
    assert_non_null(
        strstr(e.text, "override 2 is for layers 29 to 511: the model has layers 0 to 29"));
}

/** The last override of a layer wins, each tensor by itself. */
static void overrides_choose_by_layer(void **state)
{
    struct qr_policy policy;
    struct qr_codec_spec key, value;
    (void)state;
    qr_policy_default(&policy);
    assert_ok(qr_overrides_parse("2-5/kv=chan:bits=8;5/k=raw;", &policy, NULL));
    assert_int_equal(policy.override_count, 3); /* chan has other axes for keys and values */
    qr_policy_specs(&policy, 1, &key, &value);
    assert_memory_equal(&key, &policy.key, sizeof(key));
    assert_memory_equal(&value, &policy.value, sizeof(value));
    qr_policy_specs(&policy, 2, &key, &value);
    assert_int_equal(key.bits, 8);
    assert_int_equal(key.axis, QR_AXIS_CHANNEL);
    assert_int_equal(value.bits, 8);
    assert_int_equal(value.axis, QR_AXIS_TOKEN);
    qr_policy_specs(&policy, 5, &key, &value);
    assert_int_equal(key.codec, QR_CODEC_RAW);
    assert_int_equal(value.bits, 8);
}

static void expect_override(const char *text, const char *part)
{
    struct qr_policy policy, before;
    struct qr_error e = {0};
    qr_policy_default(&policy);
    before = policy;
    assert_true(qr_overrides_parse(text, &policy, &e) != QUIRE_OK);
    assert_memory_equal(&policy, &before, sizeof(policy));
    if (!strstr(e.text, part))
        fail_msg("%s: '%s' does not contain '%s'", text, e.text, part);
}

static void bad_overrides_are_named(void **state)
{
    char many[512] = "";
    (void)state;
    expect_override("k=raw", "override \"k=raw\" is not understood");
    expect_override("0-/k=raw", "\"0-/k=raw\" is not understood");
    expect_override("3-1/k=raw", "\"3-1/k=raw\" is not understood");
    expect_override("512/k=raw", "\"512/k=raw\" is not understood");
    expect_override("0/q=raw", "\"0/q=raw\" is not understood");
    expect_override("0/=raw", "\"0/=raw\" is not understood");
    expect_override("0/k=raw;1/k=zip", "codec \"zip\" is not known");
    expect_override("0/k=chan:bits=9", "chan with 9 bits");
    for (int i = 0; i < 17; i++)
        strcat(many, "0/k=raw;");
    expect_override(many, "at most 16");
}

static void damaged_specs_are_shown(void **state)
{
    const struct qr_codec_spec bad = {.codec = 77, .bits = 9, .param = {1, 2}};
    char out[QR_SPEC_TEXT_MAX];
    (void)state;
    qr_spec_format(&bad, out);
    assert_non_null(strstr(out, "codec 77"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_come_back),         cmocka_unit_test(defaults_fill_the_rest),
        cmocka_unit_test(overrides_come_back),     cmocka_unit_test(overrides_choose_by_layer),
        cmocka_unit_test(bad_overrides_are_named), cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(damaged_specs_are_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
