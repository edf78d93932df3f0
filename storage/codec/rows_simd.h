/* SPDX-License-Identifier: Apache-2.0
 *
 * The row kernels in vector words; included by rows_avx2.c and rows_avx512.c
 * after the words of their width. Same bits as rows_scalar.c.
 */
#ifndef QR_ROWS_SIMD_H
#define QR_ROWS_SIMD_H

#include <string.h>

#include "kernels.h"
#include "proto/quant.h"

static void widen(const uint16_t *in, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i += LANES)
        vf_store(out + i, vf_from_f16(vh_load(in + i, n - i)), n - i);
}

static void rotate_half(float *row, const float *cosines, const float *sines, uint32_t pairs)
{
    uint32_t i = 0;
    for (; i + LANES <= pairs; i += LANES) {
        const vf c = vf_load(cosines + i, LANES), s = vf_load(sines + i, LANES);
        const vf x1 = vf_load(row + i, LANES), x2 = vf_load(row + pairs + i, LANES);
        vf_store(row + i, vf_fms(x1, c, vf_mul(x2, s)), LANES);
        vf_store(row + pairs + i, vf_fma(x2, c, vf_mul(x1, s)), LANES);
    }
    for (; i < pairs; i++)
        qr_rope_pair(&row[i], &row[pairs + i], cosines[i], sines[i]);
}

static void rotate_interleaved(float *row, const float *cosines, const float *sines,
                               uint32_t pairs)
{
    uint32_t i = 0;
    for (; i + LANES / 2 <= pairs; i += LANES / 2) {
        const vf c = vf_load_twice(cosines + i, LANES / 2);
        const vf s = vf_load_twice(sines + i, LANES / 2);
        const vf x = vf_load(row + 2 * i, LANES);
        const vf y = vf_fma_alternating(x, c, vf_mul(vf_swap_pairs(x), s));
        vf_store(row + 2 * i, y, LANES);
    }
    for (; i < pairs; i++)
        qr_rope_pair(&row[2 * i], &row[2 * i + 1], cosines[i], sines[i]);
}

static void emit_f32(const float *row, uint32_t dim, float *dst, bool stream)
{
    const bool aligned = stream && (uintptr_t)dst % sizeof(vf) == 0;
    for (uint32_t i = 0; i < dim; i += LANES)
        if (aligned && i + LANES <= dim)
            vf_stream(dst + i, vf_load(row + i, LANES));
        else
            vf_store(dst + i, vf_load(row + i, dim - i), dim - i);
}

static inline void emit_halves(const float *row, uint32_t dim, uint16_t *dst, bool stream,
                               vh convert(vf))
{
    const bool aligned = stream && (uintptr_t)dst % sizeof(vh) == 0;
    for (uint32_t i = 0; i < dim; i += LANES) {
        const vh y = convert(vf_load(row + i, dim - i));
        if (aligned && i + LANES <= dim)
            vh_stream(dst + i, y);
        else
            vh_store(dst + i, y, dim - i);
    }
}

static void emit(float *row, uint32_t dim, const struct qr_emit *how, void *dst)
{
    const uint32_t pairs = how->rotary_dim / 2;
    if (how->rotation && how->layout == QR_ROPE_HALF)
        rotate_half(row, how->rotation, how->rotation + pairs, pairs);
    else if (how->rotation)
        rotate_interleaved(row, how->rotation, how->rotation + pairs, pairs);
    if (how->dtype == QR_F32)
        emit_f32(row, dim, dst, how->stream);
    else if (how->dtype == QR_F16)
        emit_halves(row, dim, dst, how->stream, vf_to_f16);
    else
        emit_halves(row, dim, dst, how->stream, vf_to_bf16);
}

static vh narrow_lanes(const void *src, enum qr_dtype dtype, uint32_t i, uint32_t n)
{
    const uint16_t *half = src;
    if (dtype == QR_F16)
        return vh_load(half + i, n);
    if (dtype == QR_BF16)
        return vf_to_f16(vf_from_bf16(vh_load(half + i, n)));
    return vf_to_f16(vf_load((const float *)src + i, n));
}

static uint32_t narrow(const void *src, enum qr_dtype dtype, uint32_t n, uint16_t *dst)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        const vh x = narrow_lanes(src, dtype, i, n - i);
        const uint32_t bad = vh_not_finite(x);
        if (bad)
            return i + (uint32_t)__builtin_ctz(bad);
        vh_store(dst + i, x, n - i);
    }
    return n;
}

/** Lanes of `count` rows side by side: their sums do not wait for each other. Squares of FP16
 * values are exact in FP32, so fused steps give the same sums. */
static inline __attribute__((always_inline)) void
square_rows(const uint16_t *in, size_t stride, uint32_t n, uint32_t count, __m256 *lanes)
{
    vf sum[4][16 / LANES];
    const uint32_t whole = n / 16 * 16;
    for (uint32_t r = 0; r < count; r++)
        for (uint32_t k = 0; k < 16 / LANES; k++)
            sum[r][k] = vf_set(0.0f);
    for (uint32_t i = 0; i < whole; i += 16)
        for (uint32_t r = 0; r < count; r++)
            for (uint32_t k = 0; k < 16 / LANES; k++) {
                const vf x = vf_from_f16(vh_load(in + r * stride + i + k * LANES, LANES));
                sum[r][k] = vf_fma(x, x, sum[r][k]);
            }
    for (uint32_t r = 0; r < count; r++) {
        if (whole < n) { /* 8 more: lanes 0 .. 7 */
            const vf x = vf_from_f16(vh_load(in + r * stride + whole, n - whole));
            sum[r][0] = vf_fma(x, x, sum[r][0]);
        }
        lanes[r] = vf_fold16(sum[r]);
    }
}

/** Lanes i and i + 4 of each of four rows add up, then i + 2, i + 1. */
static inline void sums_of_rows(const __m256 rows[4], float sums[4])
{
    const __m256 ab = _mm256_add_ps(_mm256_permute2f128_ps(rows[0], rows[1], 0x20),
                                    _mm256_permute2f128_ps(rows[0], rows[1], 0x31));
    const __m256 cd = _mm256_add_ps(_mm256_permute2f128_ps(rows[2], rows[3], 0x20),
                                    _mm256_permute2f128_ps(rows[2], rows[3], 0x31));
    const __m256 two =
        _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    float all[8]; /* rows a, -, c, -, b, -, d, - */
    _mm256_storeu_ps(all, _mm256_add_ps(two, _mm256_movehdup_ps(two)));
    sums[0] = all[0];
    sums[1] = all[4];
    sums[2] = all[2];
    sums[3] = all[6];
}

static float squares(const uint16_t *in, size_t stride, uint32_t rows, uint32_t n)
{
    float sum = 0.0f, sums[4];
    __m256 lanes[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                       _mm256_setzero_ps()};
    for (; rows >= 4; rows -= 4, in += 4 * stride) {
        square_rows(in, stride, n, 4, lanes);
        sums_of_rows(lanes, sums);
        for (uint32_t i = 0; i < 4; i++)
            sum += sums[i];
    }
    for (; rows > 0; rows--, in += stride) {
        square_rows(in, stride, n, 1, lanes);
        sums_of_rows(lanes, sums);
        sum += sums[0];
    }
    return sum;
}

#endif
