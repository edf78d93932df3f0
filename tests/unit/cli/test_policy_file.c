/* SPDX-License-Identifier: Apache-2.0
 *
 * Policy files: what is written reads back, and every mistake is named by its key.
 */
#include "client/cli/policy_file.h"
#include "tests/test.h"

#define HEAD "{\"format\": \"quire.policy\", \"version\": 1"

static void what_is_written_reads_back(void **state)
{
    struct qr_policy policy;
    struct quire_policy back;
    struct qr_error e = {0};
    (void)state;
    qr_policy_default(&policy);
    policy.window = 256;
    policy.outlier_rows = 2;
    policy.key.bits = 3;
    policy.key.group = 128;
    policy.value.axis = QR_AXIS_CHANNEL;
    policy.override_count = 2;
    policy.overrides[0] =
        (struct qr_override){0, 1, QR_TENSOR_BOTH, 0, {.codec = QR_CODEC_RAW, .bits = 16}};
    policy.overrides[1] = (struct qr_override){7, 7, QR_TENSOR_VALUE, 0, policy.value};
    policy.overrides[1].spec.bits = 8;
    cJSON *root = qr_policy_file_json(&policy);
    cJSON_AddObjectToObject(root, "tuned"); /* what tune measured is passed over */
    char *text = cJSON_Print(root);
    if (qr_policy_file_parse(text, &back, &e) != QUIRE_OK)
        fail_msg("%s", e.text);
    cJSON_free(text);
    cJSON_Delete(root);
    assert_int_equal(back.page_tokens, 128);
    assert_int_equal(back.window, 256);
    assert_int_equal(back.sink_rows, 4);
    assert_int_equal(back.outlier_rows, 2);
    assert_int_equal(back.key.codec, QUIRE_CODEC_CHAN);
    assert_int_equal(back.key.bits, 3);
    assert_int_equal(back.key.group, 128);
    assert_int_equal(back.value.axis, QUIRE_AXIS_CHANNEL);
    assert_int_equal(back.override_count, 2);
    assert_int_equal(back.overrides[0].last_layer, 1);
    assert_int_equal(back.overrides[0].tensors, 3);
    assert_int_equal(back.overrides[0].spec.codec, QUIRE_CODEC_RAW);
    assert_int_equal(back.overrides[1].first_layer, 7);
    assert_int_equal(back.overrides[1].tensors, 2);
    assert_int_equal(back.overrides[1].spec.bits, 8);
}

static void what_is_left_out_is_the_default(void **state)
{
    struct quire_policy back, standard;
    (void)state;
    quire_policy_default(&standard);
    assert_ok(qr_policy_file_parse(HEAD ", \"key\": \"raw\"}", &back, NULL));
    assert_int_equal(back.key.codec, QUIRE_CODEC_RAW);
    assert_int_equal(back.value.bits, standard.value.bits);
    assert_int_equal(back.sink_rows, standard.sink_rows);
}

static void mistakes_are_named(void **state)
{
    static const struct {
        const char *text, *says;
        quire_status status;
    } cases[] = {
        {"", "not JSON", QUIRE_EINVAL},
        {"{} x", "not JSON", QUIRE_EINVAL},
        {"[]", "not a JSON object", QUIRE_EINVAL},
        {"{}", "format", QUIRE_EINVAL},
        {"{\"format\": \"quire.policy\", \"version\": 2}", "version: must be 1",
         QUIRE_EUNSUPPORTED},
        {HEAD ", \"windou\": 3}", "windou: is not a key", QUIRE_EINVAL},
        {HEAD ", \"window\": 3, \"window\": 4}", "window: is given twice", QUIRE_EINVAL},
        {HEAD ", \"window\": -1}", "window: must be a whole number", QUIRE_EINVAL},
        {HEAD ", \"window\": 1e30}", "window: must be a whole number", QUIRE_EINVAL},
        {HEAD ", \"sink_rows\": 1.5}", "sink_rows: must be a whole number", QUIRE_EINVAL},
        {HEAD ", \"outlier_rows\": 5}", "up to 4", QUIRE_EINVAL},
        {HEAD ", \"key\": 4}", "key: must be text", QUIRE_EINVAL},
        {HEAD ", \"key\": \"chin\"}", "key: codec \"chin\"", QUIRE_EUNSUPPORTED},
        {HEAD ", \"value\": \"chan:bits=9\"}", "value: ", QUIRE_EINVAL},
        {HEAD ", \"overrides\": 3}", "overrides: must be an array", QUIRE_EINVAL},
        {HEAD ", \"overrides\": [3]}", "overrides: must be an array", QUIRE_EINVAL},
        {HEAD ", \"overrides\": [\"3/q=raw\"]}", "overrides: ", QUIRE_EINVAL},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct quire_policy out = {.window = 77};
        struct qr_error e = {0};
        const quire_status status = qr_policy_file_parse(cases[i].text, &out, &e);
        if (status != cases[i].status || strstr(e.text, cases[i].says) == NULL)
            fail_msg("'%s' gives %d '%s', not %d '%s'", cases[i].text, status, e.text,
                     cases[i].status, cases[i].says);
        assert_int_equal(out.window, 77); /* untouched */
    }
    struct quire_policy out;
    struct qr_error e = {0};
    assert_status(QUIRE_EIO, qr_policy_file_read("/no/such/file", &out, &e));
    assert_non_null(strstr(e.text, "/no/such/file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(what_is_left_out_is_the_default),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
