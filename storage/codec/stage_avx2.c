/* SPDX-License-Identifier: Apache-2.0
 *
 * The stage kernels for AVX2. Must not be entered on a CPU without it.
 */
#include "vector_avx2.h"

/** The order of operands is qr_rotate_limit's. */
static inline vf vf_limit(vf x)
{
    return _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-65504.0f)), _mm256_set1_ps(65504.0f));
}

static inline vf vf_abs(vf x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

/** a > b ? a : b */
static inline vf vf_greater(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

/** Butterflies of lanes 1, 2 and 4 apart: the partner, plus the lane itself or minus it. */
static inline vf vf_near(vf x)
{
    const vf odd = _mm256_setr_ps(0, -0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f);
    const vf second = _mm256_setr_ps(0, 0, -0.0f, -0.0f, 0, 0, -0.0f, -0.0f);
    const vf high = _mm256_setr_ps(0, 0, 0, 0, -0.0f, -0.0f, -0.0f, -0.0f);
    x = _mm256_add_ps(_mm256_permute_ps(x, 0xb1), _mm256_xor_ps(x, odd));
    x = _mm256_add_ps(_mm256_permute_ps(x, 0x4e), _mm256_xor_ps(x, second));
    return _mm256_add_ps(_mm256_permute2f128_ps(x, x, 0x01), _mm256_xor_ps(x, high));
}

static inline vf vf_near_8(vf x)
{
    return vf_near(x);
}

#include "stage_simd.h"

const struct qr_stage_kernels qr_stage_avx2 = {shift,  restore, limit, hadamard, flip,
                                               narrow, sum,     peak,  clip};
