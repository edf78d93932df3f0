/* SPDX-License-Identifier: Apache-2.0
 *
 * `chan` gives the golden codes, scales, minima and values bit for bit, on
 * every instruction set of this machine.
 */
#include "proto/cpu.h"
#include "proto/packing.h"
#include "storage/codec/codec.h"
#include "tests/golden.h"

#define TOKENS_MAX 128
#define DIM_MAX 128

/** A golden case, encoded by us. */
struct encoded {
    struct qr_tensor tensor;
    uint16_t x[TOKENS_MAX * DIM_MAX], y[TOKENS_MAX * DIM_MAX], raw_rows[TOKENS_MAX * DIM_MAX];
    uint8_t raw_bitmap[QR_PAGE_TOKENS_MAX / 8];
    uint32_t raw_count;
    _Alignas(64) uint8_t codes[TOKENS_MAX * DIM_MAX * 2];
    _Alignas(64) uint8_t scales[TOKENS_MAX * DIM_MAX * 2];
};

static void load(struct encoded *c, const struct golden *g, const cJSON *item)
{
    uint32_t shape[4];
    memset(c, 0, sizeof(*c));
    const void *x = golden_case_tensor(g, item, "x", shape);
    const uint8_t *raw = golden_case_tensor(g, item, "raw", NULL);
    assert_true(shape[0] <= TOKENS_MAX && shape[1] <= DIM_MAX);
    memcpy(c->x, x, shape[0] * shape[1] * 2);
    for (uint32_t t = 0; t < shape[0]; t++)
        if (raw[t]) {
            c->raw_bitmap[t / 8] |= (uint8_t)(1u << t % 8);
            memcpy(c->raw_rows + c->raw_count++ * shape[1], c->x + t * shape[1], shape[1] * 2);
        }
    const bool channels = strcmp(golden_string(item, "axis"), "per-channel") == 0;
    c->tensor = (struct qr_tensor){.spec = {QR_CODEC_CHAN,
                                            (uint8_t)golden_number(item, "bits"),
                                            channels ? QR_AXIS_CHANNEL : QR_AXIS_TOKEN,
                                            (uint16_t)golden_number(item, "group"),
                                            QR_PACKING_STRIDED16,
                                            {0, 0}},
                                   .tokens = shape[0],
                                   .heads = 1,
                                   .dim = shape[1]};
}

static void run(struct encoded *c)
{
    const struct qr_codec_ops *ops = qr_codec(QR_CODEC_CHAN);
    const struct qr_rows in = {c->x, c->tensor.dim, 0};
    const struct qr_expand to = {.token_count = c->tensor.tokens,
                                 .head_count = 1,
                                 .raw_bitmap = c->raw_bitmap,
                                 .raw_rows = c->raw_rows,
                                 .dtype = QR_F16,
                                 .dst = c->y,
                                 .token_stride = c->tensor.dim * 2};
    assert_ok(ops->check(&c->tensor, NULL));
    ops->encode(&c->tensor, &in, c->raw_bitmap, c->codes, c->scales);
    ops->expand(&c->tensor, c->codes, c->scales, &to);
}

static void compare_codes(const struct encoded *c, const uint8_t *want, const char *name)
{
    const uint32_t dim = c->tensor.dim, bits = c->tensor.spec.bits;
    for (uint32_t t = 0; t < c->tensor.tokens; t++)
        for (uint32_t i = 0; i < dim; i++) {
            const uint8_t *row = c->codes + t * qr_row_bytes(dim, bits);
            const uint32_t got = qr_row_get(row, dim, bits, i);
            if (got != want[t * dim + i])
                fail_msg("%s: code of token %u channel %u is %u, not %u", name, t, i, got,
                         want[t * dim + i]);
        }
}

/** Scales and minima, golden [groups][dim] or [tokens][groups], against our section. */
static void compare_scales(const struct encoded *c, const uint8_t *scales,
                           const uint8_t *minima, const uint32_t shape[4], const char *name)
{
    const bool channels = c->tensor.spec.axis == QR_AXIS_CHANNEL;
    const uint16_t *ours = (const uint16_t *)(const void *)c->scales;
    for (uint32_t i = 0; i < shape[0] * shape[1]; i++) {
        const uint32_t row = i / shape[1], column = i % shape[1];
        const uint32_t at = channels ? row * 2 * shape[1] + column : 2 * i;
        if (memcmp(&ours[at], scales + 2 * i, 2) != 0 ||
            memcmp(&ours[at + (channels ? shape[1] : 1)], minima + 2 * i, 2) != 0)
            fail_msg("%s: scale or minimum of group %u differs", name, i);
    }
}

static void golden_cases_match(void)
{
    struct golden g;
    static struct encoded c;
    const cJSON *item;
    golden_open(&g, "chan");
    int cases = 0;
    cJSON_ArrayForEach(item, g.cases)
    {
        uint32_t shape[4];
        const char *name = golden_string(item, "name");
        load(&c, &g, item);
        run(&c);
        compare_codes(&c, golden_case_tensor(&g, item, "codes", NULL), name);
        const uint8_t *scales = golden_case_tensor(&g, item, "scale", shape);
        compare_scales(&c, scales, golden_case_tensor(&g, item, "min", NULL), shape, name);
        const uint8_t *decoded = golden_case_tensor(&g, item, "decoded", shape);
        for (uint32_t i = 0; i < shape[0] * shape[1]; i++)
            if (memcmp(&c.y[i], decoded + 2 * i, 2) != 0)
                fail_msg("%s: value %u is %04x", name, i, c.y[i]);
        cases++;
    }
    assert_true(cases > 0);
    golden_close(&g);
}

static void golden_scalar(void **state)
{
    (void)state;
    assert_true(qr_isa_force(QR_ISA_SCALAR));
    golden_cases_match();
}

static void golden_avx2(void **state)
{
    (void)state;
    if (!qr_isa_force(QR_ISA_AVX2))
        skip();
    golden_cases_match();
}

static void golden_avx512(void **state)
{
    (void)state;
    if (!qr_isa_force(QR_ISA_AVX512))
        skip();
    golden_cases_match();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_scalar),
        cmocka_unit_test(golden_avx2),
        cmocka_unit_test(golden_avx512),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
