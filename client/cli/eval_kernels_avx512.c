/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of the error report for AVX-512.
 */
#include "eval_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define LANES 16u
#define TILE_ROWS 8u
#define TILE_VECTORS 2u
typedef __m512 vf;

#define v_load(p) _mm512_loadu_ps(p)
#define v_store(p, x) _mm512_storeu_ps(p, x)
#define v_set1(x) _mm512_set1_ps(x)
#define v_add(a, b) _mm512_add_ps(a, b)
#define v_sub(a, b) _mm512_sub_ps(a, b)
#define v_mul(a, b) _mm512_mul_ps(a, b)
#define v_div(a, b) _mm512_div_ps(a, b)
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_min(a, b) _mm512_min_ps(a, b)
#define v_max(a, b) _mm512_max_ps(a, b)
#define v_abs(x) _mm512_abs_ps(x)
#define v_round(x) _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define v_scale2(p, n) _mm512_scalef_ps(p, n)

/** x where size > 0, else 0. */
static inline vf v_where_positive(vf size, vf x)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(size, _mm512_setzero_ps(), _CMP_GT_OQ), x);
}

#include "eval_simd.h"

const struct qr_eval_kernels qr_eval_kernels_avx512 = {multiply, softmax, compare};
#endif
