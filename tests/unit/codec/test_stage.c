/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotations, levels and options by what they promise: the transform is orthogonal and its own
 * inverse, levels are those of the normal distribution, whole tensors come back within what
 * their codec allows (raw rows exactly), and what an option is for does get better.
 */
#include "storage/codec/stage.h"

#include "proto/cpu.h"
#include "proto/quant_lm.h"
#include "proto/quant_rotate.h"
#include "proto/spec_text.h"
#include "tests/golden.h"

#define TOKENS 128
#define HEADS 3
#define DIM 64
#define ROW (HEADS * DIM)

static uint16_t x[TOKENS * ROW], raw_rows[TOKENS * ROW], out[TOKENS * ROW];
static _Alignas(64) uint8_t codes[TOKENS * ROW * 2], scales[TOKENS * ROW * 4];
static uint8_t raw[QR_PAGE_TOKENS_MAX / 8];

static void hadamard_is_orthogonal_and_its_own_inverse(void **state)
{
    static const uint32_t blocks[] = {8, 16, 32, 64, 128, 1024};
    (void)state;
    for (size_t b = 0; b < ARRAY_LEN(blocks); b++) {
        static _Alignas(64) float y[2048];
        const uint32_t n = 2 * blocks[b];
        double before = 0, after = 0;
        for (uint32_t i = 0; i < n; i++) {
            y[i] = (float)sin(i * 0.7 + 1);
            before += (double)y[i] * (double)y[i];
        }
        qr_stage_scalar.hadamard(y, n, blocks[b]);
        for (uint32_t i = 0; i < n; i++)
            after += (double)y[i] * (double)y[i];
        assert_true(fabs(after - before) < 1e-4 * before);
        /* Entry 1 of a block is the alternating sum. */
        double alternating = 0;
        for (uint32_t i = 0; i < blocks[b]; i++)
            alternating += (i % 2 ? -1 : 1) * sin(i * 0.7 + 1);
        assert_true(fabs((double)y[1] - alternating / sqrt(blocks[b])) < 1e-4);
        qr_stage_scalar.hadamard(y, n, blocks[b]);
        for (uint32_t i = 0; i < n; i++)
            assert_true(fabs((double)y[i] - sin(i * 0.7 + 1)) < 1e-5);
    }
}

static void blocks_are_the_powers_of_two_in_a_length(void **state)
{
    (void)state;
    assert_int_equal(qr_rotate_block(64), 64);
    assert_int_equal(qr_rotate_block(80), 16);
    assert_int_equal(qr_rotate_block(24), 8);
    assert_int_equal(qr_rotate_block(192), 64);
}

static double density(double z)
{
    return exp(-z * z / 2) / sqrt(2 * 3.14159265358979323846);
}

static double below(double z)
{
    return 0.5 * (1 + erf(z / sqrt(2)));
}

/** Lloyd-Max: a level is the mean of N(0, 1) between the borders around it. */
static void levels_are_means_between_their_borders(void **state)
{
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits++) {
        float levels[QR_LM_HALF_MAX];
        const uint32_t half = 1u << (bits - 1);
        qr_lm_levels(bits, levels);
        for (uint32_t i = 0; i < half; i++) {
            const double a = i ? (double)qr_lm_border(levels, i) : 0;
            const double b = i + 1 < half ? (double)qr_lm_border(levels, i + 1) : 40;
            const double mean = (density(a) - density(b)) / (below(b) - below(a));
            assert_true(fabs(mean - (double)levels[i]) < 2e-6);
        }
        float table[16];
        qr_lm_table(bits, 2.0f, table);
        for (uint32_t i = 0; i < half; i++) {
            assert_true(table[qr_lm_code(i, 0, bits)] == 2.0f * levels[i]);
            assert_true(table[qr_lm_code(i, 1, bits)] == -2.0f * levels[i]);
        }
    }
}

/** Half of the signs of a seed are negative, and another seed has others. */
static void signs_are_random(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 20; seed++) {
        uint32_t negative = 0, differ = 0;
        for (uint32_t c = 0; c < 1024; c++) {
            const uint32_t sign = qr_rotate_sign(seed, c);
            assert_true(sign == 0 || sign == 0x80000000u);
            negative += sign != 0;
            differ += sign != qr_rotate_sign(seed + 1, c);
        }
        /* 512 +- 16: five deviations. */
        assert_in_range(negative, 432, 592);
        assert_in_range(differ, 432, 592);
    }
}

static double error_of(const char *text)
{
    struct qr_codec_spec spec;
    assert_ok(qr_spec_parse(text, true, &spec, NULL));
    const struct qr_tensor t = {.spec = spec, .tokens = TOKENS, .heads = HEADS, .dim = DIM};
    const struct qr_rows in = {x, ROW, DIM};
    const struct qr_codec_ops *ops = qr_codec(spec.codec);
    assert_ok(ops->check(&t, NULL));
    assert_true(qr_spec_scales_bytes(&spec, TOKENS, HEADS, DIM) <= sizeof(scales));
    ops->encode(&t, &in, raw, codes, scales);
    const struct qr_expand to = {.token_count = TOKENS,
                                 .head_count = HEADS,
                                 .raw_bitmap = raw,
                                 .raw_rows = raw_rows,
                                 .dtype = QR_F16,
                                 .dst = out,
                                 .token_stride = ROW * 2,
                                 .head_stride = DIM * 2};
    ops->expand(&t, codes, scales, &to);
    double error = 0, size = 0;
    for (uint32_t token = 0; token < TOKENS; token++) {
        if (qr_page_is_raw(raw, token)) {
            assert_memory_equal(out + token * ROW, x + token * ROW, ROW * 2);
            continue;
        }
        for (uint32_t i = token * ROW; i < (token + 1) * ROW; i++) {
            const double a = (double)qr_f16_to_f32(x[i]), b = (double)qr_f16_to_f32(out[i]);
            error += (a - b) * (a - b);
            size += a * a;
        }
    }
    return sqrt(error / size);
}

/** Keys (before RoPE) or values of layer 18 of the sample, tokens 128 to 255; two rows raw. */
static void load(char kind)
{
    struct golden data;
    uint32_t shape[4];
    char name[32];
    snprintf(name, sizeof(name), "%c_layer18", kind);
    golden_open_data(&data, "smollm2_kv");
    const uint16_t *rows = golden_tensor(&data, name, shape);
    assert_int_equal(shape[1] * shape[2], ROW);
    memcpy(x, rows + 128 * ROW, sizeof(x));
    golden_close(&data);
    memset(raw, 0, sizeof(raw));
    raw[0] = 1 << 2;
    raw[8] = 1 << 7;
    memcpy(raw_rows, x + 2 * ROW, ROW * 2);
    memcpy(raw_rows + ROW, x + 71 * ROW, ROW * 2);
}

static void expect(const char *text, double least, double most)
{
    const double error = error_of(text);
    if (!(error >= least && error <= most))
        fail_msg("%s: error %g, %g to %g expected", text, error, least, most);
}

/** Lloyd-Max errors of N(0, 1) are 0.343, 0.186 and 0.0975; rotated rows are nearly normal. */
static void real_rows_come_back(void **state)
{
    (void)state;
    if (getenv("QUIRE_DATA"))
        skip();
    load('v');
    expect("lm:bits=2", 0.30, 0.36);
    expect("lm:bits=3", 0.15, 0.20);
    expect("lm:bits=4", 0.07, 0.11);
    expect("rot:bits=8,group=32", 0.001, 0.01);
    expect("rot:bits=4,group=32", 0.05, 0.10);
    load('k');
    expect("rot:bits=8,group=32", 0.001, 0.01);
    expect("chan:bits=8,center,normalize", 0.0005, 0.01);
    expect("fp8:center", 0.005, 0.04);
}

static void better(const char *with, const char *without, double most)
{
    const double a = error_of(with), b = error_of(without);
    if (!(a <= most * b))
        fail_msg("%s errs by %g, %s by %g: at most %g of it expected", with, a, without, b,
                 most);
}

/** Keys have channels far from 0: rotation and means help where groups lie along channels. */
static void options_do_what_they_are_for(void **state)
{
    (void)state;
    if (getenv("QUIRE_DATA"))
        skip();
    load('k');
    better("chan:axis=token,center", "chan:axis=token", 0.8);
    better("chan:axis=token,normalize", "chan:axis=token", 0.95);
    better("rot", "chan:axis=token", 0.9);
    better("lm:bits=2,center", "lm:bits=2", 0.7);
    better("chan:bits=3,hybrid", "chan:bits=3", 1.0);
    better("chan:bits=3,axis=token,hybrid", "chan:bits=3,axis=token", 1.0);
}

/** Groups around 0 with one level exactly there: symmetric has no error, asymmetric does. */
static void hybrid_takes_the_better_range(void **state)
{
    (void)state;
    memset(raw, 0, sizeof(raw));
    for (uint32_t i = 0; i < TOKENS * ROW; i++) {
        static const float of[] = {-3, 0, 3, 1, -1, 2, -2, 0};
        x[i] = qr_f16_from_f32(of[(i % DIM + i / ROW) % 8]);
    }
    assert_true(error_of("chan:bits=3,hybrid") == 0);
    assert_true(error_of("chan:bits=3") > 0.01);
    assert_true(error_of("chan:bits=3,axis=token,hybrid") == 0);
}

/** The ends of FP16 survive every way there and back as finite numbers. */
static void extremes_stay_finite(void **state)
{
    static const char *const texts[] = {"rot",
                                        "rot:bits=2,clip=0.5,center,normalize,heads4",
                                        "rot:reorder",
                                        "lm:bits=2",
                                        "lm:center,normalize",
                                        "chan:center",
                                        "chan:normalize,hybrid,bits=8",
                                        "fp8:center,axis=head",
                                        "chan:hybrid"};
    (void)state;
    memset(raw, 0, sizeof(raw));
    for (uint32_t i = 0; i < TOKENS * ROW; i++)
        x[i] = (uint16_t)(0x7bff | (i * 2654435761u >> 31) << 15);
    for (size_t n = 0; n < ARRAY_LEN(texts); n++) {
        assert_true(error_of(texts[n]) < 2);
        for (uint32_t i = 0; i < TOKENS * ROW; i++)
            if ((out[i] & 0x7fff) >= QR_F16_INF_BITS)
                fail_msg("%s: value %u is 0x%04x", texts[n], i, out[i]);
    }
    memset(x, 0, sizeof(x));
    memset(raw, 0xff, sizeof(raw));
    memset(raw_rows, 0, sizeof(raw_rows));
    for (size_t n = 0; n < ARRAY_LEN(texts); n++)
        assert_true(isnan(error_of(texts[n]))); /* all rows raw: nothing to err on, all exact */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hadamard_is_orthogonal_and_its_own_inverse),
        cmocka_unit_test(blocks_are_the_powers_of_two_in_a_length),
        cmocka_unit_test(levels_are_means_between_their_borders),
        cmocka_unit_test(signs_are_random),
        cmocka_unit_test(real_rows_come_back),
        cmocka_unit_test(options_do_what_they_are_for),
        cmocka_unit_test(hybrid_takes_the_better_range),
        cmocka_unit_test(extremes_stay_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
