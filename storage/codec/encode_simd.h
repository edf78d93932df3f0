/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding of `chan` in vector words, for every shape; included by chan_avx2.c
 * and chan_avx512.c after the words of their width. Batches of rows become
 * 16-bit codes first, planes of words then, so that no row waits for its own
 * stores. Same bits as chan_scalar.c.
 */
#ifndef QR_ENCODE_SIMD_H
#define QR_ENCODE_SIMD_H

#include <string.h>

#include "kernels.h"
#include "proto/packing.h"
#include "proto/quant.h"

#define HALVES (2 * LANES)
#define NEGATIVE_ZERO 0x8000
#define PAD HALVES /* lanes past the last that whole vectors may touch */

/* ---- 16-bit codes to planes of words ---- */

/** Codes of a batch; a row has zeros after its last code, where a 1-bit plane may look. */
struct code_rows {
    uint16_t code[QR_TOKENS_BATCH * (QR_DIM_MAX + PAD) + PAD];
};

/** Word w of the plane gets bits [skip, skip + width) of the codes w, w + words, ... */
static inline __attribute__((always_inline)) void
pack_plane(const uint16_t *codes, uint32_t words, int width, int skip, uint8_t *plane)
{
    const vk mask = vk_set((int16_t)((1 << width) - 1));
    for (uint32_t w = 0; w < words; w += HALVES) {
        vk x = vk_set(0);
        for (int p = 16 / width - 1; p >= 0; p--) {
            vk q = vk_load_words(codes + (uint32_t)p * words + w);
            if (width < 4) /* only 3 bits have more than their plane takes */
                q = vk_and(vk_shift_right(q, skip), mask);
            x = vk_or(vk_shift_left(x, width), q);
        }
        vk_store_words(plane + 2 * w, x, words - w);
    }
}

static inline void pack_row(const uint16_t *codes, uint32_t dim, uint32_t bits, uint8_t *row)
{
    switch (bits) {
    case 2:
        pack_plane(codes, dim / 8, 2, 0, row);
        break;
    case 3:
        pack_plane(codes, dim / 8, 2, 0, row);
        pack_plane(codes, qr_plane_words(dim, 1), 1, 2, row + dim / 4);
        break;
    case 4:
        pack_plane(codes, dim / 4, 4, 0, row);
        break;
    default:
        pack_plane(codes, dim / 2, 8, 0, row);
        break;
    }
}

/* ---- scales ---- */

/** What codes are computed with, per channel or per group of a batch; padded to whole vectors.
 */
struct factors {
    uint16_t low[QR_DIM_MAX + PAD], high[QR_DIM_MAX + PAD], scale[QR_DIM_MAX + PAD];
    float minimum[QR_DIM_MAX + PAD], reciprocal[QR_DIM_MAX + PAD];
};

/** Scales and factors of n lanes from their minima and maxima. */
static inline void finish_factors(struct factors *f, uint32_t n, uint32_t bits)
{
    const vf top = vf_set((float)qr_quant_top(bits));
    for (uint32_t i = 0; i < n; i += LANES) {
        const vf low = vf_from_f16(vh_load(f->low + i, LANES));
        const vf high = vf_from_f16(vh_load(f->high + i, LANES));
        const vh rounded = vf_to_f16(vf_div(vf_sub(high, low), top));
        const vf end = vf_add(low, vf_mul(top, vf_from_f16(rounded)));
        const vh scale = vh_select_ge(end, vf_set(65520.0f), vh_decrement(rounded), rounded);
        vh_store(f->scale + i, scale, LANES);
        vf_store(f->minimum + i, low, LANES);
        vf_store(f->reciprocal + i, vf_reciprocal(vf_from_f16(scale)), LANES);
    }
}

/** Whether any of n minima is -0. Keys put it below +0; the formula says that the last zero of
 * a group wins. */
static inline bool any_negative_zero(const uint16_t *low, uint32_t n)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++)
        found |= low[i] == NEGATIVE_ZERO;
    return found != 0;
}

static inline void store_codes(const uint16_t *x, vf minimum, vf reciprocal, vh top,
                               uint16_t *codes, uint32_t n)
{
    const vf offset = vf_sub(vf_from_f16(vh_load(x, n)), minimum);
    vh_store(codes, vh_codes(vf_mul(offset, reciprocal), top), n);
}

/* ---- groups along tokens ---- */

/** The tokens of a group that are not raw. */
struct members {
    uint16_t token[QR_PAGE_TOKENS_MAX];
    uint32_t count;
};

static inline void list_members(const struct qr_channel_group *g, struct members *out)
{
    const uint32_t row_bytes = qr_row_bytes(g->dim, g->bits);
    out->count = 0;
    for (uint32_t t = 0; t < g->tokens; t++)
        if (qr_page_is_raw(g->raw, g->first + t))
            memset(g->codes + t * row_bytes, 0, row_bytes);
        else
            out->token[out->count++] = (uint16_t)t;
}

static inline uint16_t last_zero(const struct qr_channel_group *g, const struct members *m,
                                 uint32_t channel)
{
    for (uint32_t i = m->count; i-- > 0;) {
        const uint16_t x = g->x[m->token[i] * g->stride + channel];
        if ((uint16_t)(x << 1) == 0)
            return x;
    }
    return NEGATIVE_ZERO;
}

static inline void ranges_of_channels(const struct qr_channel_group *g, const struct members *m,
                                      struct factors *f)
{
    for (uint32_t c = 0; c < g->dim; c += HALVES) {
        vk low = vk_set(INT16_MAX), high = vk_set(INT16_MIN);
        for (uint32_t i = 0; i < m->count; i++) {
            const vk x = vk_load(g->x + m->token[i] * g->stride + c, g->dim - c);
            low = vk_min(low, x);
            high = vk_max(high, x);
        }
        vk_store_values(f->low + c, low, g->dim - c);
        vk_store_values(f->high + c, high, g->dim - c);
    }
    const bool zeros = any_negative_zero(f->low, g->dim);
    for (uint32_t c = 0; zeros && c < g->dim; c++)
        if (f->low[c] == NEGATIVE_ZERO)
            f->low[c] = last_zero(g, m, c);
}

static inline void codes_of_channels(const uint16_t *x, const struct factors *f, uint32_t dim,
                                     vh top, uint16_t *codes)
{
    uint32_t c = 0;
    for (; c + LANES <= dim; c += LANES)
        store_codes(x + c, vf_load(f->minimum + c, LANES), vf_load(f->reciprocal + c, LANES),
                    top, codes + c, LANES);
    if (c < dim)
        store_codes(x + c, vf_load(f->minimum + c, LANES), vf_load(f->reciprocal + c, LANES),
                    top, codes + c, dim - c);
    memset(codes + dim, 0, 16);
}

/** Fetch the row of the next group: hardware does not see across rows of other heads. The
 * address may lie past the input; a prefetch never faults. */
static inline void fetch_row(const uint16_t *x, uint32_t dim)
{
    for (uint32_t c = 0; c < dim; c += 32)
        _mm_prefetch((const char *)(x + c), _MM_HINT_T1);
}

static void encode_channels(const struct qr_channel_group *g)
{
    const uint32_t row_bytes = qr_row_bytes(g->dim, g->bits), stride = g->dim + PAD;
    const vh top = vh_set((uint16_t)qr_quant_top(g->bits));
    _Alignas(64) struct factors f;
    _Alignas(64) struct code_rows rows;
    struct members m;
    list_members(g, &m);
    if (m.count == 0) {
        memset(g->scales, 0, 4u * g->dim);
        return;
    }
    ranges_of_channels(g, &m, &f);
    finish_factors(&f, g->dim, g->bits);
    memcpy(g->scales, f.scale, 2u * g->dim);
    memcpy(g->scales + g->dim, f.low, 2u * g->dim);
    for (uint32_t first = 0, count; first < m.count; first += count) {
        count = m.count - first < QR_TOKENS_BATCH ? m.count - first : QR_TOKENS_BATCH;
        for (uint32_t i = 0; i < count; i++) {
            const uint16_t *x = g->x + m.token[first + i] * g->stride;
            fetch_row(x + g->tokens * g->stride, g->dim);
            codes_of_channels(x, &f, g->dim, top, rows.code + i * stride);
        }
        for (uint32_t i = 0; i < count; i++)
            pack_row(rows.code + i * stride, g->dim, g->bits,
                     g->codes + m.token[first + i] * row_bytes);
    }
}

/* ---- groups along channels ---- */

/** Where the groups of a batch lie: group i is number i % groups of row i / groups. */
struct batch_groups {
    const struct qr_token_batch *batch;
    uint32_t groups, size_log2;
};

/** Smallest of 8 keys; minpos is unsigned, so the sign bit is flipped on both sides. */
static inline uint16_t smallest(__m128i keys)
{
    const __m128i sign = _mm_set1_epi16(INT16_MIN);
    return (uint16_t)(_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(keys, sign))) ^ 0x8000);
}

/** Keys, the maximum's inverted, of the minimum and maximum of n values, a multiple of 8. */
static inline void range_of_group(const uint16_t *x, uint32_t n, uint16_t *low, uint16_t *high)
{
    vk least = vk_set(INT16_MAX), most = vk_set(INT16_MIN);
    uint32_t c = 0;
    for (; c + HALVES <= n; c += HALVES) {
        const vk key = vk_load(x + c, HALVES);
        least = vk_min(least, key);
        most = vk_max(most, key);
    }
    __m128i down = vk_fold_min(least), up = vk_fold_max(most);
    for (; c < n; c += 8) {
        const __m128i raw = _mm_loadu_si128((const __m128i *)(const void *)(x + c));
        const __m128i key = _mm_xor_si128(raw, _mm_srli_epi16(_mm_srai_epi16(raw, 15), 1));
        down = _mm_min_epi16(down, key);
        up = _mm_max_epi16(up, key);
    }
    *low = smallest(down);
    *high = smallest(_mm_xor_si128(up, _mm_set1_epi16(-1)));
}

static inline uint16_t last_zero_of_row(const uint16_t *x, uint32_t n)
{
    while (n-- > 0)
        if ((uint16_t)(x[n] << 1) == 0)
            return x[n];
    return NEGATIVE_ZERO;
}

static inline void ranges_of_tokens(const struct batch_groups *b, struct factors *f)
{
    const struct qr_token_batch *t = b->batch;
    const uint32_t n = t->count * b->groups, size = 1u << b->size_log2;
    memset(f->low + n, 0, sizeof(*f->low) * PAD);
    memset(f->high + n, 0, sizeof(*f->high) * PAD);
    for (uint32_t row = 0, i = 0; row < t->count; row++)
        for (uint32_t c = 0; c < t->dim; c += size, i++)
            range_of_group(t->x + row * t->stride + c, c + size < t->dim ? size : t->dim - c,
                           f->low + i, f->high + i);
    for (uint32_t i = 0; i < n; i += HALVES) {
        const vk high = vk_load_words(f->high + i);
        vk_store_values(f->low + i, vk_load_words(f->low + i), HALVES);
        vk_store_values(f->high + i, vk_xor(high, vk_set(-1)), HALVES);
    }
    const bool zeros = any_negative_zero(f->low, n);
    for (uint32_t i = 0; zeros && i < n; i++) {
        const uint32_t c = i % b->groups << b->size_log2;
        if (f->low[i] == NEGATIVE_ZERO)
            f->low[i] = last_zero_of_row(t->x + i / b->groups * t->stride + c,
                                         c + size < t->dim ? size : t->dim - c);
    }
}

static inline void codes_of_token(const uint16_t *x, const float *minimum,
                                  const float *reciprocal, const struct batch_groups *b, vh top,
                                  uint16_t *codes)
{
    const uint32_t dim = b->batch->dim;
    uint32_t c = 0;
    for (; c + LANES <= dim; c += LANES)
        store_codes(x + c, vf_set(minimum[c >> b->size_log2]),
                    vf_set(reciprocal[c >> b->size_log2]), top, codes + c, LANES);
    if (c < dim)
        store_codes(x + c, vf_set(minimum[c >> b->size_log2]),
                    vf_set(reciprocal[c >> b->size_log2]), top, codes + c, dim - c);
    memset(codes + dim, 0, 16);
}

static void encode_tokens(const struct qr_token_batch *t)
{
    const struct batch_groups b = {t, (t->dim + t->group - 1u) / t->group,
                                   (uint32_t)__builtin_ctz(t->group)};
    const uint32_t row_bytes = qr_row_bytes(t->dim, t->bits), stride = t->dim + PAD;
    const vh top = vh_set((uint16_t)qr_quant_top(t->bits));
    _Alignas(64) struct factors f;
    _Alignas(64) struct code_rows rows;
    ranges_of_tokens(&b, &f);
    finish_factors(&f, t->count * b.groups, t->bits);
    for (uint32_t i = 0; i < t->count * b.groups; i++) {
        t->pairs[2 * i] = f.scale[i];
        t->pairs[2 * i + 1] = f.low[i];
    }
    for (uint32_t row = 0; row < t->count; row++) {
        const uint16_t *x = t->x + row * t->stride;
        fetch_row(x + QR_TOKENS_BATCH * t->stride, t->dim);
        codes_of_token(x, f.minimum + row * b.groups, f.reciprocal + row * b.groups, &b, top,
                       rows.code + row * stride);
    }
    for (uint32_t row = 0; row < t->count; row++)
        pack_row(rows.code + row * stride, t->dim, t->bits, t->codes + row * row_bytes);
}

#endif
