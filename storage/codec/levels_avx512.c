/* SPDX-License-Identifier: Apache-2.0
 *
 * The level kernels for AVX-512. Must not be entered on a CPU without it.
 */
#include "vector_avx512.h"

#define WORDS_STEP 1

typedef __m512i vi; /* indices in 32-bit lanes */
typedef __m512 vt;  /* a table of 16 floats */

static inline vi vi_load_words(const uint16_t *p, uint32_t n)
{
    return _mm512_cvtepu16_epi32(vh_load(p, n));
}

static inline vi vi_shift_right(vi x, int n)
{
    return _mm512_srl_epi32(x, _mm_cvtsi32_si128(n));
}

/** Two low bits of a, the lowest of b above them. */
static inline vi vi_insert_high(vi a, vi b)
{
    const __m512i low = _mm512_and_si512(a, _mm512_set1_epi32(3));
    return _mm512_or_si512(low,
                           _mm512_slli_epi32(_mm512_and_si512(b, _mm512_set1_epi32(1)), 2));
}

static inline vt vt_load(const float table[16])
{
    return _mm512_loadu_ps(table);
}

static inline vf vt_lookup(vt t, vi code)
{
    return _mm512_permutexvar_ps(code, t);
}

#include "levels_simd.h"

const struct qr_levels_kernels qr_levels_avx512 = {lookup, pack};
