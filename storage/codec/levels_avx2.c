/* SPDX-License-Identifier: Apache-2.0
 *
 * The level kernels for AVX2. Must not be entered on a CPU without it.
 */
#include "vector_avx2.h"

#define WORDS_STEP 8

typedef __m256i vi; /* indices in 32-bit lanes */
typedef struct {
    __m256 low, high;
} vt; /* a table of 16 floats */

static inline vi vi_load_words(const uint16_t *p, uint32_t n)
{
    (void)n;
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

static inline vi vi_shift_right(vi x, int n)
{
    return _mm256_srl_epi32(x, _mm_cvtsi32_si128(n));
}

/** Two low bits of a, the lowest of b above them; the rest of no meaning below bit 3. */
static inline vi vi_insert_high(vi a, vi b)
{
    const __m256i low = _mm256_and_si256(a, _mm256_set1_epi32(3));
    return _mm256_or_si256(low,
                           _mm256_slli_epi32(_mm256_and_si256(b, _mm256_set1_epi32(1)), 2));
}

static inline vt vt_load(const float table[16])
{
    return (vt){_mm256_loadu_ps(table), _mm256_loadu_ps(table + 8)};
}

static inline vf vt_lookup(vt t, vi code)
{
    const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(code, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.low, code),
                            _mm256_permutevar8x32_ps(t.high, code), upper);
}

#include "levels_simd.h"

const struct qr_levels_kernels qr_levels_avx2 = {lookup, pack};
