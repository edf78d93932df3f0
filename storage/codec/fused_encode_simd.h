/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to fused_encode_*_avx512.c: a block of a row, codes from registers to
 * packed words, and scales of many groups side by side. Same bits as the
 * general kernels.
 */
#ifndef QR_FUSED_ENCODE_SIMD_H
#define QR_FUSED_ENCODE_SIMD_H

#include <immintrin.h>

#include "fused.h"
#include "proto/packing.h"
#include "proto/quant.h"

#define ALWAYS static inline __attribute__((always_inline))
#define VECTORS 8 /* of 16 channels in the largest block */
#define NEGATIVE_ZERO 0x8000

/** Keys that order FP16 values as signed integers, -0 just below +0. Its own inverse. */
ALWAYS __m512i keys_of(__m512i x)
{
    /* (x >> 15 & 0x7fff) ^ x */
    return _mm512_ternarylogic_epi32(_mm512_srai_epi16(x, 15), _mm512_set1_epi16(0x7fff), x,
                                     0x6a);
}

/** Rows of the group after this one: the hardware does not see across rows of other heads. The
 * address may lie past the input; a prefetch never faults. */
ALWAYS void ahead(const uint16_t *x)
{
    _mm_prefetch((const char *)x, _MM_HINT_T1);
}

ALWAYS uint32_t channel_of(uint32_t words, uint32_t first, int units, int v)
{
    return first + (uint32_t)(v / units) * words + 16u * (uint32_t)(v % units);
}

/** 16-bit lanes from two vectors of codes, in the order of packus. Codes past the top exist
 * only where a scale is subnormal (scales_of). */
ALWAYS __m512i halves_of(__m512i a, __m512i b, uint32_t top, bool clamp)
{
    const __m512i code = _mm512_packus_epi32(a, b);
    return clamp ? _mm512_min_epu16(code, _mm512_set1_epi16((short)top)) : code;
}

/** Words of 32 codes a plane, two units at a time: vectors of FP32 integers 0 .. top in q. */
ALWAYS void pack_units(const __m512i *q, int planes, int units, uint32_t top, bool clamp,
                       uint8_t *to)
{
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    for (int u = 0; u < units; u += 2) {
        __m512i words = _mm512_setzero_si512();
        for (int p = 0; p < planes; p++) {
            const __m512i code = halves_of(q[p * units + u], q[p * units + u + 1], top, clamp);
            words = _mm512_or_si512(words, _mm512_slli_epi16(code, 16 / planes * p));
        }
        _mm512_storeu_si512(to + 32 * u, _mm512_permutexvar_epi64(order, words));
    }
}

/** The same for rows of 16 words: two planes at a time. */
ALWAYS void pack_planes(const __m512i *q, int planes, uint32_t top, bool clamp, uint8_t *to)
{
    const __m512i evens = _mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6);
    const int width = 16 / planes;
    __m512i words = _mm512_setzero_si512();
    for (int p = 0; p < planes; p += 2) {
        const __m512i code = halves_of(q[p], q[p + 1], top, clamp);
        const __m512i low = _mm512_set1_epi16((short)(width * p));
        const __m512i shift =
            _mm512_mask_add_epi16(low, 0xf0f0f0f0u, low, _mm512_set1_epi16((short)width));
        words = _mm512_or_si512(words, _mm512_sllv_epi16(code, shift));
    }
    words = _mm512_or_si512(words, _mm512_shuffle_epi32(words, _MM_PERM_BADC));
    _mm256_storeu_si256((void *)to,
                        _mm512_castsi512_si256(_mm512_permutexvar_epi64(evens, words)));
}

ALWAYS __m256i load_half(const uint16_t *x)
{
    return _mm256_loadu_si256((const void *)x);
}

ALWAYS __m512 load_wide(const uint16_t *x)
{
    return _mm512_cvtph_ps(load_half(x));
}

/** x - minimum as x * 1 - minimum, rounded once as well: multipliers idle here, while adders
 * share their ports with both conversions. */
ALWAYS __m512i codes_of(const uint16_t *x, __m512 minimum, __m512 reciprocal, __m512 one)
{
    const __m512 offset = _mm512_fmsub_ps(load_wide(x), one, minimum);
    return _mm512_cvtps_epi32(_mm512_mul_ps(offset, reciprocal));
}

/** 1, unknown to the compiler. */
ALWAYS __m512 opaque_one(void)
{
    __m512 one = _mm512_set1_ps(1.0f);
    __asm__("" : "+v"(one));
    return one;
}

/** One block of a row, words first .. first + 16 * units - 1: codes of `planes` x `units`
 * vectors, packed. */
/* NOLINTNEXTLINE(readability-function-size): inlined, its sizes are constants at each call */
ALWAYS void encode_block(const uint16_t *x, uint32_t words, uint32_t first, int planes,
                         int units, const __m512 *minimum, const __m512 *reciprocal, bool clamp,
                         uint8_t *row)
{
    const uint32_t top = qr_quant_top((uint32_t)(16 / planes));
    const __m512 one = opaque_one();
    __m512i q[VECTORS];
    for (int v = 0; v < planes * units; v++)
        q[v] = codes_of(x + channel_of(words, first, units, v), minimum[v], reciprocal[v], one);
    if (units == 1)
        pack_planes(q, planes, top, clamp, row + 2 * first);
    else
        pack_units(q, planes, units, top, clamp, row + 2 * first);
}

/** The 16 values at `low`, then those at `high`; loads, no shuffles. */
ALWAYS __m512i join_halves(const uint16_t *low, const uint16_t *high)
{
    const __m512i x = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)low));
    return _mm512_mask_broadcast_i64x4(x, 0xf0, _mm256_loadu_si256((const void *)high));
}

/** x / top, correctly rounded: the remainder is exact, and no quotient by an odd number of 8
 * bits lies closer to a midpoint than 2^-34 of itself. */
ALWAYS __m512 divide_by_top(__m512 x, uint32_t bits)
{
    const __m512 top = _mm512_set1_ps((float)qr_quant_top(bits));
    const __m512 inverse = _mm512_set1_ps(1.0f / (float)qr_quant_top(bits));
    const __m512 q = _mm512_mul_ps(x, inverse);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(q, top, x), inverse, q);
}

/** 1 / s of an FP16 value s > 0, correctly rounded: the second residual is exact and its square
 * below 2^-46; the reciprocal of 11 bits lies 2^-36 or more from a midpoint, or is exact. */
ALWAYS __m512 reciprocal_of(__m512 s)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 y = _mm512_rcp14_ps(s);
    y = _mm512_fmadd_ps(_mm512_fnmadd_ps(s, y, one), y, y);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(s, y, one), y, y);
}

#define CHAINS 4

/**
 * Scales (FP16) and reciprocals of chains x 16 groups, at most CHAINS, side by side: latencies
 * are long. True when codes may pass the top: only below 2^-14 is a scale so coarse. A normal
 * one is at most 1.5 x 2^-10 less than range / top, so that the largest quotient stays below
 * 255 x (1 + 1.5 x 2^-10) < 255.5.
 */
ALWAYS bool scales_of(const __m512 *low, const __m512 *high, uint32_t bits, __m256i *scale,
                      __m512 *reciprocal, int chains)
{
    const __m512 top = _mm512_set1_ps((float)qr_quant_top(bits));
    __m512 x[CHAINS];
    __mmask16 coarse = 0;
    for (int i = 0; i < chains; i++)
        x[i] = divide_by_top(_mm512_sub_ps(high[i], low[i]), bits);
    for (int i = 0; i < chains; i++) {
        scale[i] = _mm512_cvtps_ph(x[i], _MM_FROUND_TO_NEAREST_INT);
        x[i] = _mm512_cvtph_ps(scale[i]);
    }
    for (int i = 0; i < chains; i++) {
        const __m512 end = _mm512_add_ps(low[i], _mm512_mul_ps(top, x[i]));
        const __mmask16 over = _mm512_cmp_ps_mask(end, _mm512_set1_ps(65520.0f), _CMP_GE_OQ);
        scale[i] = _mm256_mask_sub_epi16(scale[i], over, scale[i], _mm256_set1_epi16(1));
        x[i] = _mm512_cvtph_ps(scale[i]);
    }
    for (int i = 0; i < chains; i++) {
        const __mmask16 positive = _mm512_cmp_ps_mask(x[i], _mm512_setzero_ps(), _CMP_GT_OQ);
        reciprocal[i] = _mm512_maskz_mov_ps(positive, reciprocal_of(x[i]));
        coarse |= _mm512_mask_cmp_ps_mask(positive, x[i], _mm512_set1_ps(0x1p-14f), _CMP_LT_OQ);
    }
    return coarse != 0;
}

#endif
