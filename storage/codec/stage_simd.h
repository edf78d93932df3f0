/* SPDX-License-Identifier: Apache-2.0
 *
 * The stage kernels in vector words, for every shape; included by stage_avx2.c
 * and stage_avx512.c after the words of their width. Plain loops are left to the
 * compiler. Same bits as stage_scalar.c.
 */
#ifndef QR_STAGE_SIMD_H
#define QR_STAGE_SIMD_H

#include "proto/quant.h"
#include "proto/quant_rotate.h"
#include "stage.h"

static void shift(float *restrict x, uint32_t n, const float *restrict means,
                  const float *restrict factors)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = (x[i] - means[i]) * factors[i];
}

static void restore(float *restrict x, uint32_t n, const float *restrict norms,
                    const float *restrict means)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        const vf y =
            vf_fma(vf_load(x + i, n - i), vf_load(norms + i, n - i), vf_load(means + i, n - i));
        vf_store(x + i, vf_limit(y), n - i);
    }
}

static void limit(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES)
        vf_store(x + i, vf_limit(vf_load(x + i, n - i)), n - i);
}

/** Butterflies between channels `half` apart, in whole vectors. */
static inline void far_butterflies(float *x, uint32_t block, uint32_t half)
{
    for (uint32_t first = 0; first < block; first += 2 * half)
        for (uint32_t i = first; i < first + half; i += LANES) {
            const vf a = vf_load(x + i, LANES), b = vf_load(x + i + half, LANES);
            vf_store(x + i, vf_add(a, b), LANES);
            vf_store(x + i + half, vf_sub(a, b), LANES);
        }
}

static void hadamard(float *x, uint32_t n, uint32_t block)
{
    const vf factor = vf_set(qr_rotate_factor(block));
    if (block < LANES) { /* 8 on AVX-512: two blocks a vector */
        for (uint32_t i = 0; i < n; i += LANES)
            vf_store(x + i, vf_mul(vf_near_8(vf_load(x + i, n - i)), factor), n - i);
        return;
    }
    for (float *end = x + n; x < end; x += block) {
        for (uint32_t i = 0; i < block; i += LANES) {
            const vf y = vf_near(vf_load(x + i, LANES));
            vf_store(x + i, block == LANES ? vf_mul(y, factor) : y, LANES);
        }
        for (uint32_t half = LANES; half < block / 2; half *= 2)
            far_butterflies(x, block, half);
        for (uint32_t i = 0; block > LANES && i < block / 2; i += LANES) {
            const vf a = vf_load(x + i, LANES), b = vf_load(x + i + block / 2, LANES);
            vf_store(x + i, vf_mul(vf_add(a, b), factor), LANES);
            vf_store(x + i + block / 2, vf_mul(vf_sub(a, b), factor), LANES);
        }
    }
}

static void flip(float *restrict x, uint32_t n, const uint32_t *restrict signs)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = qr_f32_from_bits(qr_f32_bits(x[i]) ^ signs[i]);
}

static void narrow(const float *x, uint32_t n, uint16_t *out)
{
    for (uint32_t i = 0; i < n; i += LANES)
        vh_store(out + i, vf_to_f16(vf_limit(vf_load(x + i, n - i))), n - i);
}

static void sum(const float *restrict x, uint32_t n, float *restrict sums)
{
    for (uint32_t i = 0; i < n; i++)
        sums[i] += x[i];
}

static void peak(const float *restrict x, uint32_t n, const float *restrict means,
                 float *restrict peaks)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        const vf size = vf_abs(vf_sub(vf_load(x + i, n - i), vf_load(means + i, n - i)));
        vf_store(peaks + i, vf_greater(size, vf_load(peaks + i, n - i)), n - i);
    }
}

static void clip(uint16_t *x, uint32_t n, float ratio)
{
    int16_t low = 0, high = 0;
    for (uint32_t i = 0; i < n; i++) {
        const int16_t magnitude = (int16_t)(x[i] & 0x7fff);
        const int16_t key = (int16_t)(x[i] & 0x8000 ? -magnitude : magnitude);
        low = key < low ? key : low;
        high = key > high ? key : high;
    }
    const int16_t least = qr_rotate_clipped(low, ratio), most = qr_rotate_clipped(high, ratio);
    const uint16_t at_least = qr_rotate_unkey(least), at_most = qr_rotate_unkey(most);
    for (uint32_t i = 0; i < n; i++) {
        const int16_t magnitude = (int16_t)(x[i] & 0x7fff);
        const int16_t key = (int16_t)(x[i] & 0x8000 ? -magnitude : magnitude);
        const uint16_t below = key < least ? at_least : x[i];
        x[i] = key > most ? at_most : below;
    }
}

#endif
