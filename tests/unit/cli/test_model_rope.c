/* SPDX-License-Identifier: Apache-2.0
 *
 * RoPE tables from public parameters: computed ones and given ones.
 */
#include "client/cli/model_file.h"
#include "tests/test.h"

static void the_default_table_is_a_power_series(void **state)
{
    const struct quire_rope rope = {
        .type = QUIRE_ROPE_DEFAULT, .layout = QUIRE_ROPE_HALF, .rotary_dim = 64, .theta = 1e5};
    static struct qr_rope table;
    struct qr_error e = {0};
    (void)state;
    assert_ok(qr_model_file_rope(&rope, &table, &e));
    assert_int_equal(table.rotary_dim, 64);
    assert_true(table.attention_factor == 1.0f);
    assert_true(table.inv_freq[0] == 1.0f);
    assert_true(fabs((double)table.inv_freq[16] - pow(1e5, -0.5)) < 1e-9);
}

static void a_given_table_is_taken_as_it_is(void **state)
{
    const float inv_freq[] = {1.0f, 0.125f};
    struct quire_rope rope = {
        .type = QUIRE_ROPE_TABLE, .layout = QUIRE_ROPE_INTERLEAVED, .rotary_dim = 4};
    static struct qr_rope table;
    struct qr_error e = {0};
    (void)state;
    assert_status(QUIRE_EINVAL, qr_model_file_rope(&rope, &table, &e));
    assert_non_null(strstr(e.text, "inv_freq"));
    rope.inv_freq = inv_freq;
    rope.attention_factor = 1.5;
    assert_ok(qr_model_file_rope(&rope, &table, &e));
    assert_int_equal(table.layout, QR_ROPE_INTERLEAVED);
    assert_true(table.inv_freq[1] == 0.125f && table.attention_factor == 1.5f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_table_is_a_power_series),
        cmocka_unit_test(a_given_table_is_taken_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
