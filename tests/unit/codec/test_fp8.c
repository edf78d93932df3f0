/* SPDX-License-Identifier: Apache-2.0
 *
 * FP8 by its definition: every code has the value that sign, exponent and mantissa say, every
 * FP16 number goes to the nearest code (the even one of two), and whole tensors come back
 * within half a step of their own scale.
 */
#include "proto/packing.h"
#include "proto/quant_fp8.h"
#include "storage/codec/codec.h"
#include "tests/test.h"

#define TOKENS 32
#define HEADS 2
#define DIM 24

/** Value of a code from the format's definition. */
static double value_of(uint32_t code, uint32_t format)
{
    const int mantissa_bits = format ? 2 : 3, bias = format ? 15 : 7;
    const int exponent = (int)(code & 0x7f) >> mantissa_bits;
    const int mantissa = (int)code & ((1 << mantissa_bits) - 1);
    const double magnitude =
        exponent ? ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
                 : ldexp(mantissa, 1 - bias - mantissa_bits);
    return code & 0x80 ? -magnitude : magnitude;
}

static void codes_have_their_values(void **state)
{
    (void)state;
    for (uint32_t format = 0; format < 2; format++)
        for (uint32_t code = 0; code < 256; code++)
            if (!qr_fp8_reserved(code, format))
                assert_true((double)qr_fp8_to_f32(code, format) == value_of(code, format));
    assert_true(qr_fp8_reserved(0x7f, 0) && !qr_fp8_reserved(0xfe, 0));
    assert_true(qr_fp8_reserved(0xfc, 1) && !qr_fp8_reserved(0x7b, 1));
    assert_true(value_of(0x7e, 0) == 448 && value_of(0x7b, 1) == 57344);
}

/** Nearest finite code by looking at all of them; of two, the even one. */
static uint32_t nearest(double x, uint32_t format)
{
    uint32_t best = 0;
    for (uint32_t code = 1; !qr_fp8_reserved(code, format); code++) {
        const double d = fabs(value_of(code, format) - x);
        const double have = fabs(value_of(best, format) - x);
        if (d < have || (d == have && code % 2 == 0))
            best = code;
    }
    return best;
}

static void numbers_go_to_the_nearest_code(void **state)
{
    (void)state;
    for (uint32_t format = 0; format < 2; format++)
        for (uint32_t h = 0; h < QR_F16_INF_BITS; h++) {
            const float x = qr_f16_to_f32((uint16_t)h);
            const uint32_t want = nearest((double)x, format);
            assert_int_equal(qr_fp8_from_f32(x, format), want);
            assert_int_equal(qr_fp8_from_f32(-x, format), want | 0x80);
        }
    assert_int_equal(qr_fp8_from_f32(1e30f, 0), 0x7e);
    assert_int_equal(qr_fp8_from_f32(-1e30f, 1), 0xfb);
}

static uint16_t x[TOKENS * HEADS * DIM], raw_rows[HEADS * DIM], out[TOKENS * HEADS * DIM];
static _Alignas(64) uint8_t codes[TOKENS * HEADS * DIM];
static _Alignas(64) float scales[TOKENS * HEADS];

/** Rows whose size differs by token and head; token 5 is raw and huge. */
static void round_trip(struct qr_codec_spec spec)
{
    const struct qr_tensor t = {.spec = spec, .tokens = TOKENS, .heads = HEADS, .dim = DIM};
    const struct qr_rows in = {x, HEADS * DIM, DIM};
    const uint8_t raw[QR_PAGE_TOKENS_MAX / 8] = {1u << 5};
    const struct qr_codec_ops *ops = qr_codec(QR_CODEC_FP8);
    for (uint32_t i = 0; i < TOKENS * HEADS * DIM; i++) {
        const uint32_t token = i / (HEADS * DIM), head = i / DIM % HEADS;
        const double size = ldexp(1.0 + 5 * head, (int)(token % 7) - 3);
        x[i] = qr_f16_from_f32((float)(token == 5 ? 60000 : size * sin(i * 12.9898)));
    }
    memcpy(raw_rows, x + 5 * HEADS * DIM, sizeof(raw_rows));
    assert_ok(ops->check(&t, NULL));
    assert_true(qr_spec_scales_bytes(&spec, TOKENS, HEADS, DIM) <= sizeof(scales));
    ops->encode(&t, &in, raw, codes, (uint8_t *)scales);
    const struct qr_expand to = {.token_count = TOKENS,
                                 .head_count = HEADS,
                                 .raw_bitmap = raw,
                                 .raw_rows = raw_rows,
                                 .dtype = QR_F16,
                                 .dst = out,
                                 .token_stride = HEADS * DIM * 2,
                                 .head_stride = DIM * 2};
    ops->expand(&t, codes, (uint8_t *)scales, &to);
}

static double peak_of(uint32_t token, uint32_t head, bool whole_head)
{
    double most = 0;
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t c = 0; c < DIM && t != 5; c++)
            if (whole_head || t == token)
                most = fmax(most, fabs((double)qr_f16_to_f32(x[(t * HEADS + head) * DIM + c])));
    return most;
}

static void tensors_come_back(void **state)
{
    (void)state;
    for (uint32_t format = 0; format < 2; format++)
        for (uint32_t axis = QR_AXIS_TOKEN; axis <= QR_AXIS_HEAD; axis++) {
            round_trip((struct qr_codec_spec){
                .codec = QR_CODEC_FP8, .bits = 8, .axis = (uint8_t)axis, .param = {0, format}});
            for (uint32_t i = 0; i < TOKENS * HEADS * DIM; i++) {
                const uint32_t token = i / (HEADS * DIM), head = i / DIM % HEADS;
                const double want = (double)qr_f16_to_f32(x[i]);
                const double got = (double)qr_f16_to_f32(out[i]);
                const double peak = peak_of(token, head, axis == QR_AXIS_HEAD);
                /* Half a step of the mantissa, or of the least unit at this scale, and the
                 * roundings of scale and output. */
                const double step = ldexp(1, format ? -3 : -4);
                const double least = peak / (format ? 57344 * 65536.0 * 2 : 448 * 512.0 * 2);
                const double bound = fabs(want) * (step + ldexp(1, -10)) + least + 1e-7;
                if (token == 5)
                    assert_int_equal(out[i], x[i]);
                else if (fabs(got - want) > bound)
                    fail_msg("format %u axis %u: %g came back as %g, bound %g", format, axis,
                             want, got, bound);
            }
        }
}

/** The largest value of a token keeps its full size: scales do not shrink what they cover. */
static void peaks_are_kept(void **state)
{
    (void)state;
    round_trip((struct qr_codec_spec){.codec = QR_CODEC_FP8, .bits = 8, .axis = QR_AXIS_TOKEN});
    for (uint32_t token = 0; token < TOKENS; token++)
        for (uint32_t head = 0; head < HEADS && token != 5; head++) {
            uint32_t most = 0;
            for (uint32_t c = 0; c < DIM; c++) {
                const uint32_t q = qr_row_get(codes + (head * TOKENS + token) * DIM, DIM, 8, c);
                most = (q & 0x7f) > most ? q & 0x7f : most;
            }
            assert_int_equal(most, 0x7e);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_have_their_values),
        cmocka_unit_test(numbers_go_to_the_nearest_code),
        cmocka_unit_test(tensors_come_back),
        cmocka_unit_test(peaks_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
