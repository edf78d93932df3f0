/* SPDX-License-Identifier: Apache-2.0
 *
 * The `chan` kernels in vector words, for every shape; included by chan_avx2.c
 * and chan_avx512.c after the words of their width. Codes pass through one byte
 * each. Same bits as chan_scalar.c.
 */
#ifndef QR_CHAN_SIMD_H
#define QR_CHAN_SIMD_H

#include <string.h>

#include "kernels.h"
#include "proto/packing.h"
#include "proto/quant.h"

/** Codes of a row as bytes; whole words of 1-bit planes may run 8 past the last channel. */
#define CODES_MAX (QR_DIM_MAX + 16)

/* ---- planes and bytes: 8 words at a time, the last 8 overlap those before ---- */

static inline uint32_t next_words(uint32_t word, uint32_t words)
{
    return word + 16 <= words ? word + 8 : words - 8;
}

/** Codes of a plane, put `shift` bits up and ored into what is in `codes` when shift > 0. */
static inline void unpack_plane(const uint8_t *plane, uint32_t dim, uint32_t width,
                                uint32_t shift, uint8_t *codes)
{
    const uint32_t words = qr_plane_words(dim, width), planes = 16 / width;
    const __m128i mask = _mm_set1_epi16((short)((1u << width) - 1u));
    for (uint32_t c = 0; words < 8 && c < dim; c++) {
        const uint32_t q = qr_plane_get(plane, dim, width, c) << shift;
        codes[c] = (uint8_t)(shift ? codes[c] | q : q);
    }
    for (uint32_t w = 0; words >= 8; w = next_words(w, words)) {
        __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(plane + 2 * w));
        for (uint32_t p = 0; p < planes; p++, x = _mm_srli_epi16(x, (int)width)) {
            __m128i *to = (__m128i *)(void *)(codes + p * words + w);
            __m128i q = _mm_slli_epi16(_mm_and_si128(x, mask), (int)shift);
            q = _mm_packus_epi16(q, q);
            _mm_storel_epi64(to, shift ? _mm_or_si128(q, _mm_loadl_epi64(to)) : q);
        }
        if (w + 8 == words)
            break;
    }
}

static inline void unpack_row(const uint8_t *row, uint32_t dim, uint32_t bits, uint8_t *codes)
{
    switch (bits) {
    case 2:
        unpack_plane(row, dim, 2, 0, codes);
        break;
    case 3:
        unpack_plane(row, dim, 2, 0, codes);
        unpack_plane(row + 2 * qr_plane_words(dim, 2), dim, 1, 2, codes);
        break;
    case 4:
        unpack_plane(row, dim, 4, 0, codes);
        break;
    default:
        unpack_plane(row, dim, 8, 0, codes);
        break;
    }
}

/** Pack bits [shift, shift + width) of each code; codes past dim are 0 up to whole words. */
static inline void pack_plane(const uint8_t *codes, uint32_t dim, uint32_t width,
                              uint32_t shift, uint8_t *plane)
{
    const uint32_t words = qr_plane_words(dim, width), planes = 16 / width;
    const uint32_t mask = (1u << width) - 1u;
    if (words < 8) {
        memset(plane, 0, 2 * words);
        for (uint32_t c = 0; c < dim; c++)
            qr_plane_put(plane, dim, width, c, (uint32_t)(codes[c] >> shift) & mask);
        return;
    }
    for (uint32_t w = 0;; w = next_words(w, words)) {
        __m128i x = _mm_setzero_si128();
        for (uint32_t p = planes; p-- > 0;) {
            const __m128i q = _mm_cvtepu8_epi16(
                _mm_loadl_epi64((const __m128i *)(const void *)(codes + p * words + w)));
            x = _mm_or_si128(
                _mm_slli_epi16(x, (int)width),
                _mm_and_si128(_mm_srli_epi16(q, (int)shift), _mm_set1_epi16((short)mask)));
        }
        _mm_storeu_si128((__m128i *)(void *)(plane + 2 * w), x);
        if (w + 8 == words)
            break;
    }
}

static inline void pack_row(const uint8_t *codes, uint32_t dim, uint32_t bits, uint8_t *row)
{
    switch (bits) {
    case 2:
        pack_plane(codes, dim, 2, 0, row);
        break;
    case 3:
        pack_plane(codes, dim, 2, 0, row);
        pack_plane(codes, dim, 1, 2, row + 2 * qr_plane_words(dim, 2));
        break;
    case 4:
        pack_plane(codes, dim, 4, 0, row);
        break;
    default:
        pack_plane(codes, dim, 8, 0, row);
        break;
    }
}

/* ---- scales ---- */

/** What codes are computed with, per channel or per group; padded to whole vectors. */
struct factors {
    uint16_t low[QR_DIM_MAX], high[QR_DIM_MAX], scale[QR_DIM_MAX];
    float minimum[QR_DIM_MAX], reciprocal[QR_DIM_MAX];
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

/** Keys put -0 below +0; the formula says that the last zero of a group wins. `low` is -0. */
static inline uint16_t last_zero(const uint16_t *x, size_t stride, const uint16_t *members,
                                 uint32_t count)
{
    while (count-- > 0)
        if ((uint16_t)(x[members[count] * stride] << 1) == 0)
            return x[members[count] * stride];
    return 0x8000;
}

static inline void store_codes(const uint16_t *x, vf minimum, vf reciprocal, uint32_t top,
                               uint8_t *codes, uint32_t n)
{
    const vf offset = vf_sub(vf_from_f16(vh_load(x, n)), minimum);
    vf_store_codes(codes, vf_mul(offset, reciprocal), top, n);
}

/* ---- groups along tokens ---- */

static inline void ranges_of_channels(const struct qr_channel_group *g, const uint16_t *members,
                                      uint32_t count, struct factors *f)
{
    bool zero = false;
    for (uint32_t c = 0; c < g->dim; c += 2 * LANES) {
        vk low = vk_set(INT16_MAX), high = vk_set(INT16_MIN);
        for (uint32_t i = 0; i < count; i++) {
            const vk x = vk_load(g->x + members[i] * g->stride + c, g->dim - c);
            low = vk_min(low, x);
            high = vk_max(high, x);
        }
        vk_store_values(f->low + c, low, g->dim - c);
        vk_store_values(f->high + c, high, g->dim - c);
    }
    for (uint32_t c = 0; c < g->dim; c++)
        zero |= f->low[c] == 0x8000;
    for (uint32_t c = 0; zero && c < g->dim; c++)
        if (f->low[c] == 0x8000)
            f->low[c] = last_zero(g->x + c, g->stride, members, count);
}

static void encode_channels(const struct qr_channel_group *g)
{
    const uint32_t row_bytes = qr_row_bytes(g->dim, g->bits), top = qr_quant_top(g->bits);
    _Alignas(64) struct factors f;
    uint8_t codes[CODES_MAX] = {0};
    uint16_t members[QR_PAGE_TOKENS_MAX];
    uint32_t count = 0;
    for (uint32_t t = 0; t < g->tokens; t++)
        if (qr_page_is_raw(g->raw, g->first + t))
            memset(g->codes + t * row_bytes, 0, row_bytes);
        else
            members[count++] = (uint16_t)t;
    if (count == 0) {
        memset(g->scales, 0, 4u * g->dim);
        return;
    }
    ranges_of_channels(g, members, count, &f);
    finish_factors(&f, g->dim, g->bits);
    memcpy(g->scales, f.scale, 2u * g->dim);
    memcpy(g->scales + g->dim, f.low, 2u * g->dim);
    for (uint32_t i = 0; i < count; i++) {
        const uint16_t *x = g->x + members[i] * g->stride;
        for (uint32_t c = 0; c < g->dim; c += LANES)
            store_codes(x + c, vf_load(f.minimum + c, LANES), vf_load(f.reciprocal + c, LANES),
                        top, codes + c, g->dim - c);
        pack_row(codes, g->dim, g->bits, g->codes + members[i] * row_bytes);
    }
}

/* ---- groups along channels ---- */

/** Smallest of 8 keys; minpos is unsigned, so the sign bit is flipped on both sides. */
static inline int16_t smallest(__m128i keys)
{
    const __m128i sign = _mm_set1_epi16(INT16_MIN);
    return (int16_t)(_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(keys, sign))) ^ 0x8000);
}

static inline uint16_t value_of_key(int16_t key)
{
    return (uint16_t)(key < 0 ? key ^ 0x7fff : key);
}

/** Minimum and maximum of x[first, last) into lane i. */
static inline void range_of_group(const uint16_t *x, uint32_t first, uint32_t last, uint32_t i,
                                  struct factors *f)
{
    __m128i low = _mm_set1_epi16(INT16_MAX), high = _mm_set1_epi16(INT16_MIN);
    for (uint32_t c = first; c < last; c += 8) {
        const __m128i raw = _mm_loadu_si128((const __m128i *)(const void *)(x + c));
        const __m128i key = _mm_xor_si128(raw, _mm_srli_epi16(_mm_srai_epi16(raw, 15), 1));
        low = _mm_min_epi16(low, key);
        high = _mm_max_epi16(high, key);
    }
    f->low[i] = value_of_key(smallest(low));
    f->high[i] = value_of_key((int16_t)~smallest(_mm_xor_si128(high, _mm_set1_epi16(-1))));
    for (uint32_t c = last; f->low[i] == 0x8000 && c-- > first;)
        if ((uint16_t)(x[c] << 1) == 0) {
            f->low[i] = x[c];
            break;
        }
}

static void encode_token(const uint16_t *x, uint32_t dim, uint32_t bits, uint32_t group,
                         uint8_t *row, uint16_t *pairs)
{
    const uint32_t groups = (dim + group - 1) / group, top = qr_quant_top(bits);
    _Alignas(64) struct factors f;
    uint8_t codes[CODES_MAX];
    memset(codes + dim, 0, 8);
    memset(f.low, 0, sizeof(f.low[0]) * LANES);
    memset(f.high, 0, sizeof(f.high[0]) * LANES);
    for (uint32_t i = 0; i < groups; i++)
        range_of_group(x, i * group, (i + 1) * group < dim ? (i + 1) * group : dim, i, &f);
    finish_factors(&f, groups, bits);
    for (uint32_t i = 0; i < groups; i++) {
        pairs[2 * i] = f.scale[i];
        pairs[2 * i + 1] = f.low[i];
    }
    for (uint32_t c = 0; c < dim; c += LANES) {
        const uint32_t i = c / group;
        store_codes(x + c, vf_set(f.minimum[i]), vf_set(f.reciprocal[i]), top, codes + c,
                    dim - c);
    }
    pack_row(codes, dim, bits, row);
}

/* ---- decoding ---- */

static void decode_channels(const uint8_t *row, uint32_t dim, uint32_t bits,
                            const float *scales, float *out)
{
    uint8_t codes[CODES_MAX];
    unpack_row(row, dim, bits, codes);
    for (uint32_t c = 0; c < dim; c += LANES)
        vf_store(out + c,
                 vf_fma(vf_from_u8(codes + c, dim - c), vf_load(scales + c, dim - c),
                        vf_load(scales + dim + c, dim - c)),
                 dim - c);
}

static void decode_token(const uint8_t *row, uint32_t dim, uint32_t bits, uint32_t group,
                         const uint16_t *pairs, float *out)
{
    uint8_t codes[CODES_MAX];
    unpack_row(row, dim, bits, codes);
    for (uint32_t c = 0; c < dim; c += LANES) {
        const uint16_t *pair = pairs + 2 * (c / group);
        const vf scale = vf_set(_cvtsh_ss(pair[0])), minimum = vf_set(_cvtsh_ss(pair[1]));
        vf_store(out + c, vf_fma(vf_from_u8(codes + c, dim - c), scale, minimum), dim - c);
    }
}

#endif
