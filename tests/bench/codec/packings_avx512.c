/* SPDX-License-Identifier: Apache-2.0
 *
 * Three ways to pack 2- and 4-bit codes, expanded as well as each allows:
 * sequential (channel after channel), strided over the 16-bit words of a row
 * (the one in use), strided over its 32-bit words. Measured, not used.
 */
#include <immintrin.h>

#include "packings.h"

#define ALWAYS static inline __attribute__((always_inline))
#define ROWS 32

struct factors {
    __m512 scale[8], minimum[8];
};

ALWAYS struct factors load_factors(const float *scale, const float *minimum)
{
    struct factors f;
    for (int v = 0; v < 8; v++) {
        f.scale[v] = _mm512_loadu_ps(scale + 16 * v);
        f.minimum[v] = _mm512_loadu_ps(minimum + 16 * v);
    }
    return f;
}

ALWAYS void put(uint16_t *to, __m512i q, const struct factors *f, int v)
{
    const __m512 x = _mm512_fmadd_ps(_mm512_cvtepi32_ps(q), f->scale[v], f->minimum[v]);
    _mm256_storeu_si256((void *)(to + 16 * v), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

/** 16 codes from 2 x bits bytes: spread the words over lanes, shift each lane by its own count.
 */
ALWAYS void sequential(const uint8_t *codes, const float *scale, const float *minimum,
                       uint16_t *dst, size_t stride, int bits)
{
    const struct factors f = load_factors(scale, minimum);
    const __m512i lane =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i word = _mm512_srli_epi32(lane, bits == 4 ? 3 : 4);
    const __m512i shift = _mm512_mullo_epi32(
        _mm512_and_si512(lane, _mm512_set1_epi32(32 / bits - 1)), _mm512_set1_epi32(bits));
    const __m512i mask = _mm512_set1_epi32((1 << bits) - 1);
    for (int t = 0; t < ROWS; t++, codes += 16 * bits, dst += stride)
        for (int v = 0; v < 8; v++) {
            const __m128i some = _mm_loadu_si64(codes + 2 * bits * v);
            const __m512i spread = _mm512_permutexvar_epi32(word, _mm512_castsi128_si512(some));
            put(dst, _mm512_and_si512(_mm512_srlv_epi32(spread, shift), mask), &f, v);
        }
}

/** Planes of 16-bit words; scales carry the shift. */
ALWAYS void strided16(const uint8_t *codes, const float *scale, const float *minimum,
                      uint16_t *dst, size_t stride, int bits)
{
    const int planes = 16 / bits, units = 8 / planes;
    struct factors f = load_factors(scale, minimum);
    for (int v = 0; v < 8; v++)
        f.scale[v] =
            _mm512_mul_ps(f.scale[v], _mm512_set1_ps(1.0f / (float)(1 << bits * (v / units))));
    for (int t = 0; t < ROWS; t++, codes += 16 * bits, dst += stride) {
        __m512i words[2];
        for (int u = 0; u < units; u++)
            words[u] =
                _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(codes + 32 * u)));
        for (int v = 0; v < 8; v++) {
            const int mask = ((1 << bits) - 1) << bits * (v / units);
            put(dst, _mm512_and_si512(words[v % units], _mm512_set1_epi32(mask)), &f, v);
        }
    }
}

/** Planes of 32-bit words: 16 words at 4 bits, 8 (repeated) at 2. */
ALWAYS void strided32(const uint8_t *codes, const float *scale, const float *minimum,
                      uint16_t *dst, size_t stride, int bits)
{
    const struct factors f = load_factors(scale, minimum);
    const __m512i mask = _mm512_set1_epi32((1 << bits) - 1);
    const __m512i upper = _mm512_mask_set1_epi32(_mm512_setzero_si512(), 0xff00, bits);
    for (int t = 0; t < ROWS; t++, codes += 16 * bits, dst += stride) {
        const __m512i words =
            bits == 4 ? _mm512_loadu_si512(codes)
                      : _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)codes));
        for (int v = 0; v < 8; v++) {
            const __m512i shift = bits == 4 ? _mm512_set1_epi32(4 * v)
                                            : _mm512_add_epi32(_mm512_set1_epi32(4 * v), upper);
            put(dst, _mm512_and_si512(_mm512_srlv_epi32(words, shift), mask), &f, v);
        }
    }
}

#define EXPANDER(packing, bits)                                                                \
    static void packing##_##bits(const uint8_t *codes, const float *scale,                     \
                                 const float *minimum, uint16_t *dst, size_t stride)           \
    {                                                                                          \
        packing(codes, scale, minimum, dst, stride, bits);                                     \
    }
EXPANDER(sequential, 2)
EXPANDER(sequential, 4)
EXPANDER(strided16, 2)
EXPANDER(strided16, 4)
EXPANDER(strided32, 2)
EXPANDER(strided32, 4)

const struct packing packings[] = {
    {"sequential", 2, sequential_2},
    {"strided over 16-bit words", 2, strided16_2},
    {"strided over 32-bit words", 2, strided32_2},
    {"sequential", 4, sequential_4},
    {"strided over 16-bit words", 4, strided16_4},
    {"strided over 32-bit words", 4, strided32_4},
};
const size_t packing_count = sizeof(packings) / sizeof(packings[0]);
