/* SPDX-License-Identifier: Apache-2.0
 *
 * The scalar formulas: conversions agree with the compiler's FP16, the scale
 * never decodes to infinity, packing is a bijection without wasted bytes.
 */
#include "proto/packing.h"
#include "proto/page.h"
#include "proto/quant.h"
#include "tests/test.h"

static uint64_t random_state;

static uint32_t random_u32(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static void every_f16_widens_exactly(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const uint16_t bits = (uint16_t)h;
        _Float16 value;
        memcpy(&value, &bits, sizeof(value));
        const float want = (float)value, got = qr_f16_to_f32(bits);
        if (isnan(want))
            assert_true(isnan(got));
        else
            assert_int_equal(qr_f32_bits(want), qr_f32_bits(got));
    }
}

static void assert_narrows(float x)
{
    const _Float16 value = (_Float16)x;
    uint16_t want;
    memcpy(&want, &value, sizeof(want));
    if (isnan(x))
        assert_true(isnan(qr_f16_to_f32(qr_f16_from_f32(x))));
    else
        assert_int_equal(want, qr_f16_from_f32(x));
}

static void f32_narrows_to_nearest_even(void **state)
{
    (void)state;
    random_state = 11;
    for (uint32_t h = 0; h < 0x7c00; h++) { /* every tie, and one step to each side of it */
        const float low = qr_f16_to_f32((uint16_t)h);
        const float high = h == 0x7bff ? 65536.0f : qr_f16_to_f32((uint16_t)(h + 1));
        const uint32_t tie = qr_f32_bits(low + (high - low) / 2);
        for (uint32_t near = tie - 1; near <= tie + 1; near++) {
            assert_narrows(qr_f32_from_bits(near));
            assert_narrows(-qr_f32_from_bits(near));
        }
    }
    for (int i = 0; i < 1000000; i++)
        assert_narrows(qr_f32_from_bits(random_u32()));
}

static void bf16_narrows_to_nearest_even(void **state)
{
    (void)state;
    assert_int_equal(qr_bf16_from_f32(1.0f), 0x3f80);
    assert_int_equal(qr_bf16_from_f32(qr_f32_from_bits(0x3f808000)), 0x3f80);
    assert_int_equal(qr_bf16_from_f32(qr_f32_from_bits(0x3f818000)), 0x3f82);
    assert_int_equal(qr_bf16_from_f32(qr_f32_from_bits(0x3f808001)), 0x3f81);
    assert_true(isnan(qr_bf16_to_f32(qr_bf16_from_f32(qr_f32_from_bits(0x7f800001)))));
}

static void keys_order_f16(void **state)
{
    (void)state;
    assert_int_equal(qr_f16_key(0x8000), qr_f16_key(0x0000));
    for (uint32_t h = 1; h < 0x7c00; h++) {
        assert_true(qr_f16_key((uint16_t)h) > qr_f16_key((uint16_t)(h - 1)));
        assert_true(qr_f16_key((uint16_t)(h | 0x8000)) < qr_f16_key((uint16_t)(h - 1)));
    }
}

static void the_last_zero_gives_its_sign_to_the_minimum(void **state)
{
    (void)state;
    assert_int_equal(qr_quant_minimum(0x8000, 0x0000), 0x0000);
    assert_int_equal(qr_quant_minimum(0x0000, 0x8000), 0x8000);
    assert_int_equal(qr_quant_minimum(0x8000, 0x3c00), 0x8000);
    assert_int_equal(qr_quant_scale(0x8000, 0x8000, 4), 0);
}

static void no_group_decodes_to_infinity(void **state)
{
    static const uint32_t all_bits[] = {2, 3, 4, 8};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(all_bits); i++)
        for (uint32_t low = 0; low < 0x7c00; low++) {
            const uint16_t minimum = (uint16_t)(low | 0x8000);
            const uint16_t s = qr_quant_scale(minimum, QR_F16_MAX_BITS, all_bits[i]);
            const float top = qr_quant_value(qr_quant_top(all_bits[i]), qr_f16_to_f32(s),
                                             qr_f16_to_f32(minimum));
            assert_true(qr_f16_from_f32(top) < QR_F16_INF_BITS);
        }
}

static void packing_is_a_bijection_and_dense(void **state)
{
    static const uint32_t all_bits[] = {2, 3, 4, 8};
    (void)state;
    random_state = 12;
    for (size_t i = 0; i < ARRAY_LEN(all_bits); i++)
        for (uint32_t dim = 16; dim <= 1024; dim += 8) {
            uint8_t row[1024 + 2] = {0}, codes[1024];
            const uint32_t bits = all_bits[i];
            for (uint32_t c = 0; c < dim; c++) {
                codes[c] = (uint8_t)(random_u32() & qr_quant_top(bits));
                qr_row_put(row, dim, bits, c, codes[c]);
            }
            for (uint32_t c = 0; c < dim; c++)
                assert_int_equal(qr_row_get(row, dim, bits, c), codes[c]);
            const uint32_t bytes = qr_row_bytes(dim, bits);
            assert_int_equal(bytes, (dim * bits + 7) / 8 + (bits == 3 && dim % 16 ? 1 : 0));
            assert_int_equal(row[bytes] | row[bytes + 1], 0);
        }
}

static void the_documented_example_holds(void **state)
{
    uint8_t row[8] = {0};
    (void)state;
    for (uint32_t c = 0; c < 16; c++)
        qr_row_put(row, 16, 4, c, c);
    static const uint8_t want[8] = {0x40, 0xc8, 0x51, 0xd9, 0x62, 0xea, 0x73, 0xfb};
    assert_memory_equal(row, want, sizeof(want));
}

static void section_sizes_follow_the_packing(void **state)
{
    const struct qr_codec_spec k4 = {QR_CODEC_CHAN, 4, QR_AXIS_CHANNEL, 32, 0, {0, 0}};
    const struct qr_codec_spec v3 = {QR_CODEC_CHAN, 3, QR_AXIS_TOKEN, 32, 0, {0, 0}};
    const struct qr_codec_spec raw = {QR_CODEC_RAW, 16, 0, 0, 0, {0, 0}};
    (void)state;
    assert_int_equal(qr_spec_codes_bytes(&k4, 128, 8, 128), 8 * 128 * 64);
    assert_int_equal(qr_spec_scales_bytes(&k4, 128, 8, 128), 8 * 4 * 128 * 4);
    assert_int_equal(qr_spec_codes_bytes(&v3, 128, 2, 80), 2 * 128 * 30);
    assert_int_equal(qr_spec_scales_bytes(&v3, 128, 2, 80), 2 * 128 * 3 * 4);
    assert_int_equal(qr_spec_codes_bytes(&raw, 16, 1, 24), 16 * 48);
    assert_int_equal(qr_spec_scales_bytes(&raw, 16, 1, 24), 0);
}

static void bad_specs_have_no_size(void **state)
{
    static const struct qr_codec_spec bad[] = {
        {QR_CODEC_CHAN, 5, QR_AXIS_TOKEN, 32, 0, {0, 0}},
        {QR_CODEC_CHAN, 4, 0, 32, 0, {0, 0}},
        {QR_CODEC_CHAN, 4, QR_AXIS_TOKEN, 48, 0, {0, 0}},
        {QR_CODEC_CHAN, 4, QR_AXIS_TOKEN, 32, 1, {0, 0}},
        {QR_CODEC_CHAN, 4, QR_AXIS_TOKEN, 32, 0, {0, 1}},
        {QR_CODEC_RAW, 16, 1, 0, 0, {0, 0}},
        {99, 4, QR_AXIS_TOKEN, 32, 0, {0, 0}},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(qr_spec_row_bytes(&bad[i], 128), 0);
    const struct qr_codec_spec k4 = {QR_CODEC_CHAN, 4, QR_AXIS_CHANNEL, 32, 0, {0, 0}};
    assert_int_equal(qr_spec_row_bytes(&k4, 20), 0);
    assert_int_equal(qr_spec_row_bytes(&k4, 1032), 0);
    assert_int_equal(qr_spec_scales_bytes(&k4, 48, 1, 64), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_f16_widens_exactly),
        cmocka_unit_test(f32_narrows_to_nearest_even),
        cmocka_unit_test(bf16_narrows_to_nearest_even),
        cmocka_unit_test(keys_order_f16),
        cmocka_unit_test(the_last_zero_gives_its_sign_to_the_minimum),
        cmocka_unit_test(no_group_decodes_to_infinity),
        cmocka_unit_test(packing_is_a_bijection_and_dense),
        cmocka_unit_test(the_documented_example_holds),
        cmocka_unit_test(section_sizes_follow_the_packing),
        cmocka_unit_test(bad_specs_have_no_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
