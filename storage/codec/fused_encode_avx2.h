/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to fused_encode_*_avx2.c: codes from registers to packed words, and
 * scales of groups side by side. Same bits as the general kernels.
 */
#ifndef QR_FUSED_ENCODE_AVX2_H
#define QR_FUSED_ENCODE_AVX2_H

#include "fused.h"
#include "proto/packing.h"
#include "proto/quant.h"
#include "vector_avx2.h"

#define ALWAYS static inline __attribute__((always_inline))
#define NEGATIVE_ZERO 0x8000

/** Of two rows at a time. */
struct row_pair {
    const uint16_t *x[2];
    uint8_t *codes[2];
};

/** What codes of 8 channels are computed with. */
struct factors {
    __m256 minimum, reciprocal;
};

/** 8 codes as 32-bit integers. Codes past the top exist only where a scale is subnormal
 * (scales_of). */
ALWAYS __m256i codes_of(const uint16_t *x, struct factors f, int width, bool clamp)
{
    const vf offset = vf_sub(vf_from_f16(vh_load(x, LANES)), f.minimum);
    const __m256i q = _mm256_cvtps_epi32(vf_mul(offset, f.reciprocal));
    return clamp ? _mm256_min_epi32(q, _mm256_set1_epi32((1 << width) - 1)) : q;
}

/** x / top, correctly rounded: the remainder is exact, and no quotient by an odd number of 8
 * bits lies closer to a midpoint than 2^-34 of itself. */
ALWAYS vf divide_by_top(vf x, uint32_t bits)
{
    const vf top = vf_set((float)qr_quant_top(bits));
    const vf inverse = vf_set(1.0f / (float)qr_quant_top(bits));
    const vf q = vf_mul(x, inverse);
    return vf_fma(_mm256_fnmadd_ps(q, top, x), inverse, q);
}

/**
 * FP16 scales of 8 groups, and their factors. True when codes may pass the top: only below
 * 2^-14 is a scale so coarse. A normal one is at most 1.5 x 2^-10 less than range / top, so
 * that the largest quotient stays below 255 x (1 + 1.5 x 2^-10) < 255.5.
 */
ALWAYS bool scales_of(vh low, vh high, uint32_t bits, vh *scale, struct factors *f)
{
    const vf top = vf_set((float)qr_quant_top(bits)), minimum = vf_from_f16(low);
    const vf range = vf_sub(vf_from_f16(high), minimum);
    const vh rounded = vf_to_f16(divide_by_top(range, bits));
    const vf end = vf_add(minimum, vf_mul(top, vf_from_f16(rounded)));
    *scale = vh_select_ge(end, vf_set(65520.0f), vh_decrement(rounded), rounded);
    const vf s = vf_from_f16(*scale);
    *f = (struct factors){minimum, vf_reciprocal(s)};
    const vf coarse = _mm256_and_ps(_mm256_cmp_ps(s, vf_set(0x1p-14f), _CMP_LT_OQ),
                                    _mm256_cmp_ps(s, vf_set(0.0f), _CMP_GT_OQ));
    return _mm256_movemask_ps(coarse) != 0;
}

/** 16 words, or 8, from 32-bit lanes. */
ALWAYS void store_16_words(uint8_t *to, __m256i a, __m256i b)
{
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
    _mm256_storeu_si256((void *)to, words);
}

ALWAYS void store_8_words(uint8_t *to, __m256i a)
{
    _mm_storeu_si128((void *)to, _mm_packus_epi32(_mm256_castsi256_si128(a),
                                                  _mm256_extracti128_si256(a, 1)));
}

#endif
