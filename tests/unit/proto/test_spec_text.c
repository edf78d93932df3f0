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
        cmocka_unit_test(texts_come_back),
        cmocka_unit_test(defaults_fill_the_rest),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(damaged_specs_are_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
