/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of the error report for AVX2 with FMA.
 */
#include "eval_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define LANES 8u
#define TILE_ROWS 6u
#define TILE_VECTORS 2u
typedef __m256 vf;

#define v_load(p) _mm256_loadu_ps(p)
#define v_store(p, x) _mm256_storeu_ps(p, x)
#define v_set1(x) _mm256_set1_ps(x)
#define v_add(a, b) _mm256_add_ps(a, b)
#define v_sub(a, b) _mm256_sub_ps(a, b)
#define v_mul(a, b) _mm256_mul_ps(a, b)
#define v_div(a, b) _mm256_div_ps(a, b)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_min(a, b) _mm256_min_ps(a, b)
#define v_max(a, b) _mm256_max_ps(a, b)
#define v_abs(x) _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x)
#define v_round(x) _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

/** p * 2^n, the result a normal number. */
static inline vf v_scale2(vf p, vf n)
{
    const __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
}

/** x where size > 0, else 0. */
static inline vf v_where_positive(vf size, vf x)
{
    return _mm256_and_ps(_mm256_cmp_ps(size, _mm256_setzero_ps(), _CMP_GT_OQ), x);
}

#include "eval_simd.h"

const struct qr_eval_kernels qr_eval_kernels_avx2 = {multiply, softmax, compare};
#endif
