/* SPDX-License-Identifier: Apache-2.0
 *
 * The stage kernels for AVX-512. Must not be entered on a CPU without it.
 */
#include "vector_avx512.h"

/** The order of operands is qr_rotate_limit's. */
static inline vf vf_limit(vf x)
{
    return _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-65504.0f)), _mm512_set1_ps(65504.0f));
}

static inline vf vf_abs(vf x)
{
    return _mm512_abs_ps(x);
}

/** a > b ? a : b */
static inline vf vf_greater(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

/** partner + x in lanes whose bit is 0, partner - x in the others. */
static inline vf vf_butterfly(vf x, vf partner, __mmask16 minus)
{
    return _mm512_mask_sub_ps(_mm512_add_ps(partner, x), minus, partner, x);
}

/** Butterflies of lanes 1, 2 and 4 apart. */
static inline vf vf_near_8(vf x)
{
    x = vf_butterfly(x, _mm512_permute_ps(x, 0xb1), 0xaaaa);
    x = vf_butterfly(x, _mm512_permute_ps(x, 0x4e), 0xcccc);
    return vf_butterfly(x, _mm512_shuffle_f32x4(x, x, 0xb1), 0xf0f0);
}

/** And 8 apart. */
static inline vf vf_near(vf x)
{
    x = vf_near_8(x);
    return vf_butterfly(x, _mm512_shuffle_f32x4(x, x, 0x4e), 0xff00);
}

#include "stage_simd.h"

const struct qr_stage_kernels qr_stage_avx512 = {shift,  restore, limit, hadamard, flip,
                                                 narrow, sum,     peak,  clip};
