/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding of `chan` with the hybrid option: each group takes the asymmetric
 * scale and minimum, or those of a range symmetric around 0, whichever errs less
 * (docs/FORMULAS.md). Pages decode as those of plain chan do. Must not know
 * instruction sets.
 */
#include <string.h>

#include "hybrid.h"
#include "kernels.h"
#include "levels.h"
#include "proto/cpu.h"
#include "proto/packing.h"
#include "proto/quant.h"

const struct qr_hybrid_kernels *qr_hybrid_kernels(void)
{
#if defined(__x86_64__)
    if (qr_isa() >= QR_ISA_AVX512)
        return &qr_hybrid_avx512;
    if (qr_isa() >= QR_ISA_AVX2)
        return &qr_hybrid_avx2;
#endif
    return &qr_hybrid_scalar;
}

/** Factors of every channel of a row, one way or the other. */
struct factors {
    uint16_t scale16[QR_DIM_MAX], minimum16[QR_DIM_MAX];
    float scale[QR_DIM_MAX], minimum[QR_DIM_MAX], reciprocal[QR_DIM_MAX];
};

/** Both ways, and their sums of squared errors. */
struct choice {
    struct factors plain, symmetric;
    float low[QR_DIM_MAX], high[QR_DIM_MAX], errors[2][QR_DIM_MAX];
};

static void set_factors(struct factors *f, uint32_t c, uint16_t scale, uint16_t minimum)
{
    f->scale16[c] = scale;
    f->minimum16[c] = minimum;
    f->scale[c] = qr_f16_to_f32(scale);
    f->minimum[c] = qr_f16_to_f32(minimum);
    f->reciprocal[c] = qr_quant_reciprocal(scale);
}

static void make_factors(struct choice *w, uint32_t c, uint32_t bits)
{
    const uint16_t low = qr_f16_from_f32(w->low[c]), high = qr_f16_from_f32(w->high[c]);
    const uint16_t scale = qr_quant_symmetric_scale(low, high, bits);
    set_factors(&w->plain, c, qr_quant_scale(low, high, bits), low);
    set_factors(&w->symmetric, c, scale, qr_quant_symmetric_minimum(scale, bits));
}

static struct qr_hybrid_factors view(const struct factors *f, uint32_t bits)
{
    return (struct qr_hybrid_factors){f->scale, f->minimum, f->reciprocal,
                                      (float)qr_quant_top(bits)};
}

/** Errors that are not finite (a minimum past FP16) never win. */
static bool symmetric_wins(float plain, float symmetric)
{
    return symmetric < plain;
}

static void take_symmetric(struct choice *w, uint32_t c)
{
    set_factors(&w->plain, c, w->symmetric.scale16[c], w->symmetric.minimum16[c]);
}

static void pack(const float *x, const struct choice *w, uint32_t dim, uint32_t bits,
                 uint8_t *row)
{
    const struct qr_hybrid_factors f = view(&w->plain, bits);
    uint16_t codes[QR_DIM_MAX + QR_LEVELS_PAD];
    qr_hybrid_kernels()->encode(x, dim, &f, codes);
    memset(codes + dim, 0, QR_LEVELS_PAD * sizeof(*codes));
    if (bits < 8) {
        qr_levels_kernels()->pack(codes, dim, bits, row);
        return;
    }
    for (uint32_t i = 0; i < dim / 2; i++) {
        row[2 * i] = (uint8_t)codes[i];
        row[2 * i + 1] = (uint8_t)codes[dim / 2 + i];
    }
}

/* ---- groups along tokens ---- */

static void range_of_tokens(const struct qr_channel_group *g, struct choice *w)
{
    float row[QR_DIM_MAX];
    bool any = false;
    for (uint32_t c = 0; c < g->dim; c++)
        w->low[c] = w->high[c] = w->errors[0][c] = w->errors[1][c] = 0.0f;
    for (uint32_t t = 0; t < g->tokens; t++) {
        if (qr_page_is_raw(g->raw, g->first + t))
            continue;
        qr_row_kernels()->widen(g->x + t * g->stride, g->dim, row);
        if (!any) {
            memcpy(w->low, row, g->dim * sizeof(float));
            memcpy(w->high, row, g->dim * sizeof(float));
        }
        any = true;
        qr_hybrid_kernels()->range(row, g->dim, w->low, w->high);
    }
}

void qr_hybrid_encode_channels(const struct qr_channel_group *g)
{
    struct choice w;
    float row[QR_DIM_MAX];
    const uint32_t row_bytes = qr_row_bytes(g->dim, g->bits);
    range_of_tokens(g, &w);
    for (uint32_t c = 0; c < g->dim; c++)
        make_factors(&w, c, g->bits);
    const struct qr_hybrid_factors plain = view(&w.plain, g->bits);
    const struct qr_hybrid_factors symmetric = view(&w.symmetric, g->bits);
    for (uint32_t t = 0; t < g->tokens; t++) {
        if (qr_page_is_raw(g->raw, g->first + t))
            continue;
        qr_row_kernels()->widen(g->x + t * g->stride, g->dim, row);
        qr_hybrid_kernels()->add_errors(row, g->dim, &plain, w.errors[0]);
        qr_hybrid_kernels()->add_errors(row, g->dim, &symmetric, w.errors[1]);
    }
    for (uint32_t c = 0; c < g->dim; c++)
        if (symmetric_wins(w.errors[0][c], w.errors[1][c]))
            take_symmetric(&w, c);
    memcpy(g->scales, w.plain.scale16, g->dim * sizeof(*g->scales));
    memcpy(g->scales + g->dim, w.plain.minimum16, g->dim * sizeof(*g->scales));
    for (uint32_t t = 0; t < g->tokens; t++) {
        if (qr_page_is_raw(g->raw, g->first + t)) {
            memset(g->codes + (size_t)t * row_bytes, 0, row_bytes);
            continue;
        }
        qr_row_kernels()->widen(g->x + t * g->stride, g->dim, row);
        pack(row, &w, g->dim, g->bits, g->codes + (size_t)t * row_bytes);
    }
}

/* ---- groups along channels ---- */

/** Sum of n errors: error i goes to lane i % 16 in order, then lanes i and i + 8, 4, 2, 1. */
static float sum_16(const float *errors, uint32_t n)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        lanes[i % 16] += errors[i];
    for (uint32_t width = 8; width; width /= 2)
        for (uint32_t i = 0; i < width; i++)
            lanes[i] += lanes[i + width];
    return lanes[0];
}

static void encode_token(const struct qr_token_batch *b, const uint16_t *x, uint8_t *codes,
                         uint16_t *pairs)
{
    struct choice w;
    float row[QR_DIM_MAX];
    qr_row_kernels()->widen(x, b->dim, row);
    for (uint32_t first = 0, n; first < b->dim; first += n) {
        n = b->dim - first < b->group ? b->dim - first : b->group;
        float low = row[first], high = row[first];
        for (uint32_t i = 1; i < n; i++) {
            low = row[first + i] <= low ? row[first + i] : low;
            high = row[first + i] >= high ? row[first + i] : high;
        }
        w.low[first] = low;
        w.high[first] = high;
        make_factors(&w, first, b->bits);
        for (uint32_t c = first; c < first + n; c++) {
            set_factors(&w.plain, c, w.plain.scale16[first], w.plain.minimum16[first]);
            set_factors(&w.symmetric, c, w.symmetric.scale16[first],
                        w.symmetric.minimum16[first]);
            w.errors[0][c] = w.errors[1][c] = 0.0f;
        }
    }
    const struct qr_hybrid_factors plain = view(&w.plain, b->bits);
    const struct qr_hybrid_factors symmetric = view(&w.symmetric, b->bits);
    qr_hybrid_kernels()->add_errors(row, b->dim, &plain, w.errors[0]);
    qr_hybrid_kernels()->add_errors(row, b->dim, &symmetric, w.errors[1]);
    for (uint32_t first = 0, n; first < b->dim; first += n, pairs += 2) {
        n = b->dim - first < b->group ? b->dim - first : b->group;
        const bool wins =
            symmetric_wins(sum_16(w.errors[0] + first, n), sum_16(w.errors[1] + first, n));
        for (uint32_t c = first; wins && c < first + n; c++)
            take_symmetric(&w, c);
        pairs[0] = w.plain.scale16[first];
        pairs[1] = w.plain.minimum16[first];
    }
    pack(row, &w, b->dim, b->bits, codes);
}

void qr_hybrid_encode_tokens(const struct qr_token_batch *b)
{
    const size_t pairs = (b->dim + b->group - 1u) / b->group * 2u;
    for (uint32_t i = 0; i < b->count; i++)
        encode_token(b, b->x + i * b->stride,
                     b->codes + (size_t)i * qr_row_bytes(b->dim, b->bits),
                     b->pairs + i * pairs);
}
