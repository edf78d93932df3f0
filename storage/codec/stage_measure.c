/* SPDX-License-Identifier: Apache-2.0
 *
 * See stage_measure.h. Sums run over tokens in ascending order, so that every
 * CPU gets the same bits.
 */
#include "stage_measure.h"

#include <math.h>

#include "kernels.h"
#include "proto/quant.h"

/** One head's channels. */
struct head {
    const uint16_t *x;
    size_t stride;
    uint32_t tokens, dim;
    const uint8_t *raw;
    uint32_t members; /* tokens that are not raw */
};

static void sum_head(const struct head *h, float *sums)
{
    _Alignas(64) float row[QR_DIM_MAX];
    for (uint32_t c = 0; c < h->dim; c++)
        sums[c] = 0.0f;
    for (uint32_t t = 0; t < h->tokens; t++) {
        if (qr_page_is_raw(h->raw, t))
            continue;
        qr_row_kernels()->widen(h->x + t * h->stride, h->dim, row);
        qr_stage_kernels()->sum(row, h->dim, sums);
    }
}

/** FP16 means; as floats into `means`, too. */
static void mean_head(const struct head *h, uint16_t *out, float *means)
{
    sum_head(h, means);
    for (uint32_t c = 0; c < h->dim; c++)
        means[c] = h->members ? means[c] / (float)h->members : 0.0f;
    qr_stage_kernels()->narrow(means, h->dim, out);
    qr_row_kernels()->widen(out, h->dim, means);
}

/** FP16 of sqrt(max |x - mean|), at least the least FP16 above 0; 1 where all are the mean. */
static void norm_head(const struct head *h, const float *means, uint16_t *out)
{
    _Alignas(64) float row[QR_DIM_MAX], peaks[QR_DIM_MAX];
    for (uint32_t c = 0; c < h->dim; c++)
        peaks[c] = 0.0f;
    for (uint32_t t = 0; t < h->tokens; t++) {
        if (qr_page_is_raw(h->raw, t))
            continue;
        qr_row_kernels()->widen(h->x + t * h->stride, h->dim, row);
        qr_stage_kernels()->peak(row, h->dim, means, peaks);
    }
    for (uint32_t c = 0; c < h->dim; c++)
        out[c] = peaks[c] > 0.0f ? qr_f16_from_f32(sqrtf(peaks[c])) : 0x3c00;
}

/** An FP32 as an integer of the same order. */
static uint32_t ordered_bits(float x)
{
    const uint32_t bits = qr_f32_bits(x + 0.0f); /* -0 is 0 */
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/** Sift `keys[at]` down a heap of n. */
static void sift(uint64_t *keys, uint32_t at, uint32_t n)
{
    const uint64_t key = keys[at];
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        child += child + 1 < n && keys[child + 1] > keys[child];
        if (keys[child] <= key)
            break;
        keys[at] = keys[child];
    }
    keys[at] = key;
}

static void sort(uint64_t *keys, uint32_t n)
{
    for (uint32_t at = n / 2; at-- > 0;)
        sift(keys, at, n);
    for (uint32_t end = n; end-- > 1;) {
        const uint64_t top = keys[0];
        keys[0] = keys[end];
        keys[end] = top;
        sift(keys, 0, end);
    }
}

static uint32_t count_members(const uint8_t *raw, uint32_t tokens)
{
    uint32_t members = 0;
    for (uint32_t t = 0; t < tokens; t++)
        members += !qr_page_is_raw(raw, t);
    return members;
}

void qr_stage_measure(const struct qr_tensor *t, const struct qr_spec_parts *parts,
                      const struct qr_rows *in, const uint8_t *raw_bitmap, uint8_t *scales)
{
    uint64_t keys[QR_STAGE_CHANNELS];
    _Alignas(64) float sums[QR_DIM_MAX];
    uint16_t *at = (uint16_t *)(void *)scales;
    const uint32_t members = count_members(raw_bitmap, t->tokens);
    if (!parts->means && !parts->norms && !parts->order)
        return;
    for (uint32_t head = 0; head < t->heads; head++) {
        const size_t first = (size_t)head * t->dim;
        const struct head h = {in->data + head * in->head_stride,
                               in->token_stride,
                               t->tokens,
                               t->dim,
                               raw_bitmap,
                               members};
        if (parts->order) {
            sum_head(&h, sums);
            for (uint32_t c = 0; c < t->dim; c++)
                keys[first + c] = (uint64_t)ordered_bits(sums[c]) << 32 | (first + c);
        }
        for (uint32_t c = 0; c < t->dim; c++)
            sums[c] = 0.0f;
        if (parts->means)
            mean_head(&h, at + parts->means / 2 + first, sums);
        if (parts->norms)
            norm_head(&h, sums, at + parts->norms / 2 + first);
    }
    if (!parts->order)
        return;
    sort(keys, t->heads * t->dim);
    for (uint32_t i = 0; i < t->heads * t->dim; i++)
        at[parts->order / 2 + i] = (uint16_t)keys[i];
}
