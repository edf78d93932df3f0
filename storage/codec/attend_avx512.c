/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention kernels for AVX-512 (F, BW, DQ, VL) over FP32 rows. The ones that
 * work on codes are in attend_key_avx512.c and attend_value_avx512.c.
 */
#include "attend_codes_avx512.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>

#define LANES 16u
#define ADD_ROWS 4u
#define ADD_VECTORS 4u
typedef __m512 vf;

#define v_load(p) _mm512_loadu_ps(p)
#define v_load_half(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define v_store(p, x) _mm512_storeu_ps(p, x)
#define v_set1(x) _mm512_set1_ps(x)
#define v_add(a, b) _mm512_add_ps(a, b)
#define v_sub(a, b) _mm512_sub_ps(a, b)
#define v_mul(a, b) _mm512_mul_ps(a, b)
#define v_div(a, b) _mm512_div_ps(a, b)
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_min(a, b) _mm512_min_ps(a, b)
#define v_max(a, b) _mm512_max_ps(a, b)
#define v_round(x) _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define v_scale2(p, n) _mm512_scalef_ps(p, n)
#define v_reduce_add(x) _mm512_reduce_add_ps(x)
#define v_reduce_max(x) _mm512_reduce_max_ps(x)

/** x where low <= column + lane < high, else other. */
static inline vf v_keep(vf x, uint32_t column, uint32_t low, uint32_t high, vf other)
{
    const __m512i lane =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_add_epi32(_mm512_set1_epi32((int)column), lane);
    const __mmask16 from = _mm512_cmpge_epu32_mask(at, _mm512_set1_epi32((int)low));
    return _mm512_mask_mov_ps(
        other, _mm512_mask_cmplt_epu32_mask(from, at, _mm512_set1_epi32((int)high)), x);
}

static inline void v_widen8(const uint16_t *in, float *out)
{
    _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)in)));
}

#include "attend_simd.h"

/** Sums of the four vectors of each row of `x`: lane group r of the result is row r. */
INLINE vf lanes_of_rows(vf a, vf b, vf c, vf d)
{
    const vf ab = v_add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const vf cd = v_add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    return v_add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

/** 16 sums at once: element 4 r + t of the result is the sum of x[r][t]. */
INLINE vf reduce4x4(vf x[4][4])
{
    vf y[4];
    for (uint32_t t = 0; t < 4; t++)
        y[t] = lanes_of_rows(x[0][t], x[1][t], x[2][t], x[3][t]);
    const __m512d ab =
        _mm512_castps_pd(v_add(_mm512_unpacklo_ps(y[0], y[1]), _mm512_unpackhi_ps(y[0], y[1])));
    const __m512d cd =
        _mm512_castps_pd(v_add(_mm512_unpacklo_ps(y[2], y[3]), _mm512_unpackhi_ps(y[2], y[3])));
    return v_add(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                 _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
}

/** 4 rows x 4 tokens from `token` on. */
INLINE void dot4x4(const struct qr_attend_part *part, uint32_t row,
                   const struct qr_attend_block *key, bool half, uint32_t token, float *z)
{
    const uint32_t dim = part->key_dim;
    const float *q = part->q + row * QR_ATTEND_Q_STRIDE;
    vf sum[4][4];
    for (uint32_t r = 0; r < 4; r++)
        for (uint32_t t = 0; t < 4; t++)
            sum[r][t] = v_set1(0.0f);
    for (uint32_t i = 0; i < dim; i += LANES) {
        vf k[4];
        for (uint32_t t = 0; t < 4; t++)
            k[t] = load_row(key, (token + t) * key->stride + i, half);
        for (uint32_t r = 0; r < 4; r++) {
            const vf x = v_load(q + r * QR_ATTEND_Q_STRIDE + i);
            for (uint32_t t = 0; t < 4; t++)
                sum[r][t] = v_fma(x, k[t], sum[r][t]);
        }
    }
    const vf all = reduce4x4(sum);
    _mm_storeu_ps(z, _mm512_castps512_ps128(all));
    _mm_storeu_ps(z + part->z_stride, _mm512_extractf32x4_ps(all, 1));
    _mm_storeu_ps(z + 2 * part->z_stride, _mm512_extractf32x4_ps(all, 2));
    _mm_storeu_ps(z + 3 * part->z_stride, _mm512_extractf32x4_ps(all, 3));
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
    const uint32_t dim = part->key_dim, fours = tokens & ~3u, quads = part->rows & ~3u;
    for (uint32_t t = 0; t < fours; t += 4)
        for (uint32_t row = 0; row < quads; row += 4) {
            float *z = part->z + row * part->z_stride + first + t;
            if (key->half)
                dot4x4(part, row, key, true, t, z);
            else
                dot4x4(part, row, key, false, t, z);
        }
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t row = t < fours ? quads : 0; row < part->rows; row++)
            part->z[row * part->z_stride + first + t] =
                dot1(part->q + row * QR_ATTEND_Q_STRIDE, key, t, dim);
}

const struct qr_attend_kernels qr_attend_avx512 = {
    .scores = scores,
    .softmax = softmax,
    .add = add,
    .load = load,
    .scale = scale,
    .tile_rotation = qr_attend_tile_rotation_avx512,
    .key_codes = qr_attend_key_codes_avx512,
    .value_codes = qr_attend_value_codes_avx512,
};
#endif
