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

/** Squares of FP16 values are exact in FP32, so fused steps give the same sums. */
static float square(const uint16_t *in, uint32_t n)
{
    vf sum[16 / LANES];
    uint32_t i = 0;
    for (uint32_t k = 0; k < 16 / LANES; k++)
        sum[k] = vf_set(0.0f);
    for (; i + 16 <= n; i += 16)
        for (uint32_t k = 0; k < 16 / LANES; k++) {
            const vf x = vf_from_f16(vh_load(in + i + k * LANES, LANES));
            sum[k] = vf_fma(x, x, sum[k]);
        }
    if (i < n) { /* 8 more: lanes 0 .. 7 */
        const vf x = vf_from_f16(vh_load(in + i, n - i));
        sum[0] = vf_fma(x, x, sum[0]);
    }
    return vf_sum16(sum);
}

#endif
