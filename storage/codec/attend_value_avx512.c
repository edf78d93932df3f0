/* SPDX-License-Identifier: Apache-2.0
 *
 * Weighted sums on the value codes with AVX-512. A weight times its token's
 * scale becomes a 16-bit integer relative to the largest one of the page, codes
 * are bytes, and VNNI (or its stand-in) multiplies four tokens at once; the sums
 * are exact integers, so both give the same bits. ATTEND.md has the error
 * bound. Must not know pages.
 */
#include "attend_codes_avx512.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define STEPS 65535.0f /* a weight is a multiple of 1 / STEPS of the largest one */

/** The working set, carved out of the scratch. */
struct plan {
    const struct qr_attend_value_codes *value;
    uint32_t tokens, quads;
    const float *z; /* [rows][z_stride]: weights of the first token on */
    size_t z_stride;
    float *out;
    size_t out_stride;
    uint8_t *bytes;           /* interleaved codes */
    float *scales, *minima;   /* [groups][tokens] */
    float *largest, *minimum; /* [group][4 rows]: max of weight x scale, sum of weight x min */
    uint8_t *weights[4];      /* by field: [row][quad]{lows, highs of two groups} */
    size_t weight_stride;     /* bytes of a row */
    float unit[4][8];         /* by field: [row][2] value of one step */
};

static inline uint64_t load64(const void *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof(x));
    return x;
}

/** {scale, minimum} pairs of 16 tokens of one group, token order, to two FP32 rows. */
INLINE void widen_pairs(__m512i pairs, float *scale, float *minimum)
{
    const __m512i high = _mm512_srli_epi32(pairs, 16);
    _mm512_storeu_ps(scale, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs)));
    _mm512_storeu_ps(minimum, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(high)));
}

/** 16 tokens of 4 groups each: a 4 x 4 transposition in lanes, then tokens in order. */
INLINE void transpose_groups4(const uint16_t *from, __m512i pairs[4])
{
    const __m512i order =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i x[4];
    for (uint32_t i = 0; i < 4; i++)
        x[i] = _mm512_loadu_si512(from + 32 * i);
    const __m512i lo01 = _mm512_unpacklo_epi32(x[0], x[1]);
    const __m512i hi01 = _mm512_unpackhi_epi32(x[0], x[1]);
    const __m512i lo23 = _mm512_unpacklo_epi32(x[2], x[3]);
    const __m512i hi23 = _mm512_unpackhi_epi32(x[2], x[3]);
    pairs[0] = _mm512_permutexvar_epi32(order, _mm512_unpacklo_epi64(lo01, lo23));
    pairs[1] = _mm512_permutexvar_epi32(order, _mm512_unpackhi_epi64(lo01, lo23));
    pairs[2] = _mm512_permutexvar_epi32(order, _mm512_unpacklo_epi64(hi01, hi23));
    pairs[3] = _mm512_permutexvar_epi32(order, _mm512_unpackhi_epi64(hi01, hi23));
}

/** Scales and minima of all tokens, group by group. */
static void split_scales(const struct plan *plan, const uint16_t *scales)
{
    const uint32_t groups = plan->value->groups;
    for (uint32_t t = 0; t < plan->tokens; t += 16) {
        const uint16_t *from = scales + (size_t)t * groups * 2;
        __m512i pairs[4];
        if (groups == 4)
            transpose_groups4(from, pairs);
        for (uint32_t g = 0; g < groups; g++) {
            if (groups != 4)
                for (uint32_t i = 0; i < 16; i++)
                    memcpy((uint8_t *)&pairs[g % 4] + 4 * i, from + 2 * (i * groups + g), 4);
            widen_pairs(pairs[g % 4], plan->scales + g * plan->tokens + t,
                        plan->minima + g * plan->tokens + t);
        }
    }
}

/** Maxima (or sums) of the elements of four vectors, in order. */
INLINE __m128 fold4(const __m512 x[4], bool maximum)
{
    __m512 y[2];
    for (uint32_t i = 0; i < 2; i++) {
        const __m512 lo = _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x44);
        const __m512 hi = _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xee);
        y[i] = maximum ? _mm512_max_ps(lo, hi) : _mm512_add_ps(lo, hi);
    }
    const __m512 even = _mm512_shuffle_f32x4(y[0], y[1], 0x88);
    const __m512 odd = _mm512_shuffle_f32x4(y[0], y[1], 0xdd);
    __m512 z = maximum ? _mm512_max_ps(even, odd) : _mm512_add_ps(even, odd);
    for (uint32_t step = 0; step < 2; step++) {
        const __m512 other = step ? _mm512_permute_ps(z, 0xb1) : _mm512_permute_ps(z, 0x4e);
        z = maximum ? _mm512_max_ps(z, other) : _mm512_add_ps(z, other);
    }
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, z));
}

/** Per row and group: the largest weight x scale, and the part of the minima. */
INLINE void measure(const struct plan *plan, uint32_t rows)
{
    for (uint32_t g = 0; g < plan->value->groups; g++) {
        const float *s = plan->scales + g * plan->tokens;
        const float *m = plan->minima + g * plan->tokens;
        __m512 largest[4], sum[4];
        for (uint32_t r = 0; r < 4; r++)
            largest[r] = sum[r] = _mm512_setzero_ps();
        for (uint32_t t = 0; t < plan->tokens; t += 16) {
            const __m512 scale = _mm512_loadu_ps(s + t), minimum = _mm512_loadu_ps(m + t);
            for (uint32_t r = 0; r < rows; r++) {
                const __m512 x = _mm512_loadu_ps(plan->z + r * plan->z_stride + t);
                largest[r] = _mm512_max_ps(_mm512_mul_ps(x, scale), largest[r]);
                sum[r] = _mm512_fmadd_ps(x, minimum, sum[r]);
            }
        }
        _mm_storeu_ps(plan->largest + 4 * g, fold4(largest, true));
        _mm_storeu_ps(plan->minimum + 4 * g, fold4(sum, false));
    }
}

/** Weights of one row for two groups, 16 tokens at a time: each quad becomes 16 bytes, the low
 * bytes of the even group's 4 tokens, of the odd group's, then the high bytes likewise. */
static void pack_weights(const struct plan *plan, uint32_t row, uint32_t even, uint32_t odd,
                         uint8_t *to)
{
    const float *p = plan->z + row * plan->z_stride;
    const float *s0 = plan->scales + even * plan->tokens;
    const float *s1 = plan->scales + odd * plan->tokens;
    const float max0 = plan->largest[4 * even + row];
    const float max1 = plan->largest[4 * odd + row];
    const __m512 by0 = _mm512_set1_ps(max0 > 0.0f ? STEPS / max0 : 0.0f);
    const __m512 by1 = _mm512_set1_ps(max1 > 0.0f ? STEPS / max1 : 0.0f);
    const __m512i pick0 = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, 1, 5, 9, 13, -1, -1, -1, -1));
    const __m512i pick1 = _mm512_broadcast_i32x4(
        _mm_setr_epi8(-1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, 1, 5, 9, 13));
    for (uint32_t t = 0; t < plan->tokens; t += 16) {
        const __m512 x = _mm512_loadu_ps(p + t);
        const __m512 w0 = _mm512_mul_ps(_mm512_mul_ps(x, _mm512_loadu_ps(s0 + t)), by0);
        const __m512 w1 = _mm512_mul_ps(_mm512_mul_ps(x, _mm512_loadu_ps(s1 + t)), by1);
        const __m512i b0 = _mm512_shuffle_epi8(_mm512_cvtps_epi32(w0), pick0);
        const __m512i b1 = _mm512_shuffle_epi8(_mm512_cvtps_epi32(w1), pick1);
        _mm512_storeu_si512(to + 4 * t, _mm512_or_si512(b0, b1));
    }
}

/** Weights of fields `field` and `field + 1` for the groups of the words from `word` on. */
static void make_weights(struct plan *plan, uint32_t word, uint32_t field, uint32_t rows)
{
    const uint32_t bits = plan->value->bits, group = plan->value->group;
    const uint32_t words = plan->value->row_bytes / 2;
    uint32_t even_before = UINT32_MAX, odd_before = UINT32_MAX;
    for (uint32_t f = field; f < field + 2; f++) {
        const uint32_t even = (words * f + word) / group;
        const uint32_t odd = (words * (f + 8 / bits) + word) / group;
        if (even == even_before && odd == odd_before) {
            memcpy(plan->unit[f], plan->unit[f - 1], sizeof(plan->unit[f]));
            plan->weights[f] = plan->weights[f - 1];
            continue;
        }
        plan->weights[f] = plan->weights[0] + (f & 1) * 4 * plan->weight_stride;
        for (uint32_t r = 0; r < rows; r++) {
            plan->unit[f][2 * r] = plan->largest[4 * even + r] / STEPS;
            plan->unit[f][2 * r + 1] = plan->largest[4 * odd + r] / STEPS;
            pack_weights(plan, r, even, odd, plan->weights[f] + r * plan->weight_stride);
        }
        even_before = even;
        odd_before = odd;
    }
}

#include "attend_value_widths_avx512.h"

static uint8_t *carve(uint8_t **scratch, size_t bytes)
{
    uint8_t *p = *scratch;
    *scratch += (bytes + 63) & ~(size_t)63;
    return p;
}

void qr_attend_value_codes_avx512(const struct qr_attend_part *part,
                                  const struct qr_attend_value_codes *value, uint32_t first,
                                  uint32_t last)
{
    uint8_t *scratch = part->scratch;
    const uint32_t tokens = last - first, quads = tokens / 4;
    const size_t grid = (size_t)tokens * value->groups * sizeof(float);
    struct plan plan = {
        .value = value,
        .tokens = tokens,
        .quads = quads,
        .z_stride = part->z_stride,
        .out_stride = part->out_stride,
        .bytes = carve(&scratch, (size_t)tokens * value->row_bytes),
        .scales = (float *)(void *)carve(&scratch, grid),
        .minima = (float *)(void *)carve(&scratch, grid),
        .largest = (float *)(void *)carve(&scratch, 4 * value->groups * sizeof(float)),
        .minimum = (float *)(void *)carve(&scratch, 4 * value->groups * sizeof(float)),
        .weight_stride = 16 * quads,
    };
    plan.weights[0] = carve(&scratch, 8 * plan.weight_stride);
    const struct width *width = choose_width(value);
    width->interleave(&plan, value->codes + (size_t)first * value->row_bytes);
    split_scales(&plan, value->scales + (size_t)first * value->groups * 2);
    for (uint32_t row = 0; row < part->rows; row += 4) {
        const uint32_t rows = part->rows - row < 4 ? part->rows - row : 4;
        plan.z = part->z + row * part->z_stride + first;
        plan.out = part->out + row * part->out_stride;
        width->run(&plan, rows);
    }
}
#endif
