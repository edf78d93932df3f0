/* SPDX-License-Identifier: Apache-2.0
 *
 * The default policy is allowed, and each limit is refused with the value and what would be
 * right.
 */
#include "tests/test.h"

#include "proto/model.h"

static struct qr_policy policy;

static void expect(quire_status status, const char *text)
{
    struct qr_error e = {0};
    assert_status(status, qr_policy_check(&policy, &e));
    if (!strstr(e.text, text))
        fail_msg("'%s' does not contain '%s'", e.text, text);
    qr_policy_default(&policy);
}

static void default_is_allowed(void **state)
{
    (void)state;
    qr_policy_default(&policy);
    assert_ok(qr_policy_check(&policy, NULL));
    assert_int_equal(policy.key.axis, QR_AXIS_CHANNEL);
    assert_int_equal(policy.value.axis, QR_AXIS_TOKEN);
}

static void limits_are_named(void **state)
{
    (void)state;
    qr_policy_default(&policy);
    policy.page_tokens = 96;
    expect(QUIRE_EINVAL, "page_tokens is 96");
    policy.page_tokens = 1024;
    expect(QUIRE_EINVAL, "page_tokens is 1024");
    policy.page_tokens = 0;
    expect(QUIRE_EINVAL, "page_tokens is 0");
    policy.page_tokens = 16;
    expect(QUIRE_EINVAL, "a multiple of the key group 32");
    policy.window = 4097;
    expect(QUIRE_EINVAL, "window is 4097");
    policy.sink_rows = 129;
    expect(QUIRE_EINVAL, "sink_rows is 129");
    policy.outlier_rows = 5;
    expect(QUIRE_EINVAL, "outlier_rows is 5");
    policy.key.bits = 1;
    expect(QUIRE_EINVAL, "key: chan with 1 bits");
    policy.value.group = 48;
    expect(QUIRE_EINVAL, "value: group of chan is 48");
    policy.value.axis = 0;
    expect(QUIRE_EINVAL, "value: axis of chan is 0");
    policy.key.codec = QR_CODEC_RAW;
    expect(QUIRE_EINVAL, "key: raw with 4 bits");
    policy.key.codec = 0;
    expect(QUIRE_EUNSUPPORTED, "key: codec 0 is not known");
    policy.key.packing = 77;
    expect(QUIRE_EUNSUPPORTED, "key: packing 77");
    policy.key.param[0] = 1u << 30;
    expect(QUIRE_EUNSUPPORTED, "key: option flags 0x40000000 of chan");
    policy.value.param[1] = 3;
    expect(QUIRE_EUNSUPPORTED, "value: number of chan is 3: 0 expected");
    policy.value.axis = QR_AXIS_HEAD;
    expect(QUIRE_EINVAL, "value: axis of chan is 3");
}

static void bad_overrides_are_named(void **state)
{
    const struct qr_codec_spec raw = {.codec = QR_CODEC_RAW, .bits = 16};
    const struct qr_override good = {.last_layer = 3, .tensors = QR_TENSOR_BOTH, .spec = raw};
    (void)state;
    qr_policy_default(&policy);
    policy.override_count = 17;
    expect(QUIRE_EINVAL, "17 overrides: at most 16");
    policy.override_count = 1;
    policy.overrides[0] = good;
    assert_ok(qr_policy_check(&policy, NULL));
    policy.overrides[0].first_layer = 4;
    expect(QUIRE_EINVAL, "override 0: layers 4 to 3");
    policy.override_count = 2;
    policy.overrides[0] = policy.overrides[1] = good;
    policy.overrides[1].tensors = 4;
    expect(QUIRE_EINVAL, "override 1: tensors 4");
    policy.override_count = 1;
    policy.overrides[0] = good;
    policy.overrides[0].spec.bits = 4;
    expect(QUIRE_EINVAL, "override 0: raw with 4 bits");
}

static void every_documented_combination_is_allowed(void **state)
{
    static const uint8_t bits[] = {2, 3, 4, 8};
    (void)state;
    qr_policy_default(&policy);
    for (size_t b = 0; b < ARRAY_LEN(bits); b++)
        for (uint16_t group = 16; group <= 128; group = (uint16_t)(group * 2))
            for (uint8_t axis = 1; axis <= 2; axis++) {
                policy.key.bits = policy.value.bits = bits[b];
                policy.key.group = policy.value.group = group;
                policy.key.axis = policy.value.axis = axis;
                assert_ok(qr_policy_check(&policy, NULL));
            }
    policy.key = policy.value = (struct qr_codec_spec){.codec = QR_CODEC_RAW, .bits = 16};
    policy.page_tokens = 16;
    policy.sink_rows = policy.window = policy.outlier_rows = 0;
    assert_ok(qr_policy_check(&policy, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_is_allowed),
        cmocka_unit_test(limits_are_named),
        cmocka_unit_test(bad_overrides_are_named),
        cmocka_unit_test(every_documented_combination_is_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
