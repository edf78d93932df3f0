/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention kernels for AVX2 with FMA and F16C, over rows; pages are expanded
 * block by block first.
 */
#include "attend_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>

#define LANES 8u
#define ADD_ROWS 4u
#define ADD_VECTORS 2u
typedef __m256 vf;

#define v_load(p) _mm256_loadu_ps(p)
#define v_load_half(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define v_store(p, x) _mm256_storeu_ps(p, x)
#define v_set1(x) _mm256_set1_ps(x)
#define v_add(a, b) _mm256_add_ps(a, b)
#define v_sub(a, b) _mm256_sub_ps(a, b)
#define v_mul(a, b) _mm256_mul_ps(a, b)
#define v_div(a, b) _mm256_div_ps(a, b)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_min(a, b) _mm256_min_ps(a, b)
#define v_max(a, b) _mm256_max_ps(a, b)
#define v_round(x) _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

/** p * 2^n, the result a normal number. */
static inline vf v_scale2(vf p, vf n)
{
    const __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
}

/** x where low <= column + lane < high, else other. */
static inline vf v_keep(vf x, uint32_t column, uint32_t low, uint32_t high, vf other)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i at = _mm256_add_epi32(_mm256_set1_epi32((int)column), lane);
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)low), at);
    const __m256i inside = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)high), at);
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(_mm256_andnot_si256(below, inside)));
}

static inline float v_reduce_add(vf x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline float v_reduce_max(vf x)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static inline void v_widen8(const uint16_t *in, float *out)
{
    _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)in)));
}

#include "attend_simd.h"

/** Sums of four vectors, in order. */
INLINE __m128 reduce4(vf a, vf b, vf c, vf d)
{
    const vf x = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
}

/** 4 tokens from `token` on x `rows` rows (1 or 2): 8 accumulators at most. */
INLINE void dot4(const struct qr_attend_part *part, uint32_t row, uint32_t rows,
                 const struct qr_attend_block *key, uint32_t token, float *z)
{
    const uint32_t dim = part->key_dim;
    const float *q = part->q + row * QR_ATTEND_Q_STRIDE;
    const bool half = key->half;
    vf sum[2][4];
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t t = 0; t < 4; t++)
            sum[r][t] = v_set1(0.0f);
    for (uint32_t i = 0; i < dim; i += LANES) {
        vf k[4];
        for (uint32_t t = 0; t < 4; t++)
            k[t] = load_row(key, (token + t) * key->stride + i, half);
        for (uint32_t r = 0; r < rows; r++) {
            const vf x = v_load(q + r * QR_ATTEND_Q_STRIDE + i);
            for (uint32_t t = 0; t < 4; t++)
                sum[r][t] = v_fma(x, k[t], sum[r][t]);
        }
    }
    for (uint32_t r = 0; r < rows; r++)
        _mm_storeu_ps(z + r * part->z_stride,
                      reduce4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]));
}

static float dot1(const float *q, const struct qr_attend_block *key, uint32_t token,
                  uint32_t dim)
{
    vf sum = v_set1(0.0f);
    for (uint32_t i = 0; i < dim; i += LANES)
        sum = v_fma(v_load(q + i), load_row(key, token * key->stride + i, key->half), sum);
    return v_reduce_add(sum);
}

static void scores(const struct qr_attend_part *part, uint32_t first, uint32_t tokens,
                   const struct qr_attend_block *key)
{
    const uint32_t dim = part->key_dim, fours = tokens & ~3u;
    for (uint32_t t = 0; t < fours; t += 4) {
        float *z = part->z + first + t;
        uint32_t row = 0;
        for (; row + 2 <= part->rows; row += 2)
            dot4(part, row, 2, key, t, z + row * part->z_stride);
        if (row < part->rows)
            dot4(part, row, 1, key, t, z + row * part->z_stride);
    }
    for (uint32_t t = fours; t < tokens; t++)
        for (uint32_t row = 0; row < part->rows; row++)
            part->z[row * part->z_stride + first + t] =
                dot1(part->q + row * QR_ATTEND_Q_STRIDE, key, t, dim);
}

const struct qr_attend_kernels qr_attend_avx2 = {
    .scores = scores, .softmax = softmax, .add = add, .load = load, .scale = scale};
#endif
