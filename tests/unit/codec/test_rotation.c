/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotation tables against double libm up to position 2^24, the golden rotated
 * rows, and the same bits on every instruction set.
 */
#include "proto/cpu.h"
#include "proto/quant.h"
#include "storage/codec/codec.h"
#include "tests/golden.h"

/* docs/FORMULAS.md bounds the output; qr_rotation_make promises this for the table. */
#define TABLE_BOUND 0x1p-20

static struct qr_rope rope_of(uint32_t rotary_dim, double theta)
{
    struct qr_rope rope = {
        .layout = QR_ROPE_HALF, .rotary_dim = rotary_dim, .attention_factor = 1.0f};
    for (uint32_t i = 0; i < rotary_dim / 2; i++)
        rope.inv_freq[i] = (float)(1.0 / pow(theta, 2.0 * i / rotary_dim));
    return rope;
}

static void table_is_close_to_libm(void **state)
{
    static const uint64_t starts[] = {0, 1000, 65530, 1000000, (1u << 24) - 64};
    static _Alignas(64) float table[64 * 128];
    const struct qr_rope rope = rope_of(128, 10000);
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(starts); i++) {
        qr_rotation_make(&rope, starts[i], 64, table);
        for (uint32_t t = 0; t < 64; t++)
            for (uint32_t p = 0; p < 64; p++) {
                const double a = (double)((float)(starts[i] + t) * rope.inv_freq[p]);
                assert_true(fabs((double)table[t * 128 + p] - cos(a)) <= TABLE_BOUND);
                assert_true(fabs((double)table[t * 128 + 64 + p] - sin(a)) <= TABLE_BOUND);
            }
    }
}

static void angles_near_quadrant_borders_hold(void **state)
{
    static _Alignas(64) float table[2 * 1024];
    struct qr_rope rope = rope_of(1024, 10000);
    (void)state;
    for (uint32_t k = 1; k < 10000000; k = k * 2 + 1) {
        for (uint32_t i = 0; i < 512; i++) { /* FP32 angles around k * pi/4, at position 1 */
            const float near = (float)(k * 0.78539816339744830962);
            rope.inv_freq[i] = qr_f32_from_bits(qr_f32_bits(near) + i - 256);
        }
        qr_rotation_make(&rope, 1, 1, table);
        for (uint32_t i = 0; i < 512; i++) {
            const double a = (double)rope.inv_freq[i];
            assert_true(fabs((double)table[i] - cos(a)) <= TABLE_BOUND);
            assert_true(fabs((double)table[512 + i] - sin(a)) <= TABLE_BOUND);
        }
    }
}

static void frequencies_past_the_fast_range_use_libm(void **state)
{
    static _Alignas(64) float table[16];
    struct qr_rope rope = rope_of(16, 10000);
    (void)state;
    rope.inv_freq[3] = 1e6f;
    qr_rotation_make(&rope, 1u << 20, 1, table);
    const double a = (double)((float)(1u << 20) * 1e6f);
    assert_true(fabs((double)table[3] - cos(a)) <= TABLE_BOUND);
    assert_true(fabs((double)table[11] - sin(a)) <= TABLE_BOUND);
}

static void every_isa_makes_the_same_table(void **state)
{
    static _Alignas(64) float want[33 * 80], got[33 * 80];
    struct qr_rope rope = rope_of(80, 500000);
    (void)state;
    rope.attention_factor = 1.1386294f;
    assert_true(qr_isa_force(QR_ISA_SCALAR));
    qr_rotation_make(&rope, 777777, 33, want);
    for (int isa = QR_ISA_AVX2; isa <= QR_ISA_AVX512 && qr_isa_force((enum qr_isa)isa); isa++) {
        qr_rotation_make(&rope, 777777, 33, got);
        assert_memory_equal(want, got, sizeof(want));
    }
}

/** 1 FP16 ulp, or 2^-11 of the pair's norm: the bound of docs/FORMULAS.md. */
static void assert_pair_close(const uint16_t want[2], const uint16_t got[2])
{
    double w[2], g[2];
    for (int i = 0; i < 2; i++) {
        w[i] = (double)qr_f16_to_f32(want[i]);
        g[i] = (double)qr_f16_to_f32(got[i]);
    }
    const double norm = sqrt(w[0] * w[0] + w[1] * w[1]);
    for (int i = 0; i < 2; i++)
        if (abs(qr_f16_key(want[i]) - qr_f16_key(got[i])) > 1)
            assert_true(fabs(w[i] - g[i]) <= norm * 0x1p-11);
}

static void check_rows(const struct golden *g, const cJSON *item, const struct qr_rope *rope,
                       const char *key)
{
    uint32_t shape[4];
    const uint8_t *positions = golden_case_tensor(g, item, "positions", shape);
    const uint32_t rows = shape[0], dim = (uint32_t)golden_number(item, "head_dim");
    const uint8_t *x = golden_case_tensor(g, item, "x", NULL);
    const uint8_t *y = golden_case_tensor(g, item, key, NULL);
    const bool half = rope->layout == QR_ROPE_HALF;
    for (uint32_t r = 0; r < rows; r++) {
        uint16_t in[1024], want[1024], got[1024];
        _Alignas(64) float table[1024];
        int64_t position;
        memcpy(&position, positions + r * 8, 8);
        memcpy(in, x + r * dim * 2, dim * 2);
        memcpy(want, y + r * dim * 2, dim * 2);
        qr_rotation_make(rope, (uint64_t)position, 1, table);
        const struct qr_rows src = {in, dim, dim};
        const struct qr_expand to = {.token_count = 1,
                                     .head_count = 1,
                                     .rotation = table,
                                     .rotary_dim = rope->rotary_dim,
                                     .rope_layout = rope->layout,
                                     .dtype = QR_F16,
                                     .dst = got};
        qr_rows_expand(&src, 1, 1, dim, &to);
        for (uint32_t i = 0; i < dim / 2; i++) {
            const uint32_t a = half ? i : 2 * i, b = half ? i + dim / 2 : 2 * i + 1;
            assert_pair_close((uint16_t[2]){want[a], want[b]}, (uint16_t[2]){got[a], got[b]});
        }
    }
}

static void golden_rows_match(void **state)
{
    struct golden g;
    const cJSON *item;
    (void)state;
    golden_open(&g, "rope");
    for (int isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512 && qr_isa_force((enum qr_isa)isa); isa++)
        cJSON_ArrayForEach(item, g.cases)
        {
            const uint32_t dim = (uint32_t)golden_number(item, "head_dim");
            struct qr_rope rope = {.rotary_dim = dim,
                                   .attention_factor =
                                       (float)golden_number(item, "attention_factor")};
            memcpy(rope.inv_freq, golden_case_tensor(&g, item, "inv_freq", NULL), dim / 2 * 4);
            rope.layout = QR_ROPE_HALF;
            check_rows(&g, item, &rope, "y_half");
            rope.layout = QR_ROPE_INTERLEAVED;
            check_rows(&g, item, &rope, "y_interleaved");
        }
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_close_to_libm),
        cmocka_unit_test(angles_near_quadrant_borders_hold),
        cmocka_unit_test(frequencies_past_the_fast_range_use_libm),
        cmocka_unit_test(every_isa_makes_the_same_table),
        cmocka_unit_test(golden_rows_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
