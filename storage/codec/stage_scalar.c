/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of the stage kernels, one value at a time. The vector
 * kernels are tested against it.
 */
#include "stage.h"

#include "proto/quant.h"
#include "proto/quant_rotate.h"

static void shift(float *x, uint32_t n, const float *means, const float *factors)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = (x[i] - means[i]) * factors[i];
}

static void restore(float *x, uint32_t n, const float *norms, const float *means)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = qr_rotate_limit(fmaf(x[i], norms[i], means[i]));
}

static void limit(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = qr_rotate_limit(x[i]);
}

static void hadamard(float *x, uint32_t n, uint32_t block)
{
    const float factor = qr_rotate_factor(block);
    for (uint32_t first = 0; first < n; first += block)
        for (uint32_t half = 1; half < block; half *= 2)
            for (uint32_t i = 0; i < block; i++) {
                float *a = &x[first + i];
                if (i & half)
                    continue;
                const float low = a[0], high = a[half];
                a[0] = low + high;
                a[half] = low - high;
            }
    for (uint32_t i = 0; i < n; i++)
        x[i] *= factor;
}

static void flip(float *x, uint32_t n, const uint32_t *signs)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = qr_f32_from_bits(qr_f32_bits(x[i]) ^ signs[i]);
}

static void narrow(const float *x, uint32_t n, uint16_t *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = qr_f16_from_f32(qr_rotate_limit(x[i]));
}

static void sum(const float *x, uint32_t n, float *sums)
{
    for (uint32_t i = 0; i < n; i++)
        sums[i] += x[i];
}

static void peak(const float *x, uint32_t n, const float *means, float *peaks)
{
    for (uint32_t i = 0; i < n; i++) {
        const float size = fabsf(x[i] - means[i]);
        peaks[i] = size > peaks[i] ? size : peaks[i];
    }
}

static void clip(uint16_t *x, uint32_t n, float ratio)
{
    int16_t low = 0, high = 0;
    for (uint32_t i = 0; i < n; i++) {
        const int16_t key = qr_f16_key(x[i]);
        low = key < low ? key : low;
        high = key > high ? key : high;
    }
    const int16_t least = qr_rotate_clipped(low, ratio), most = qr_rotate_clipped(high, ratio);
    for (uint32_t i = 0; i < n; i++) {
        const int16_t key = qr_f16_key(x[i]);
        if (key < least || key > most)
            x[i] = qr_rotate_unkey(key < least ? least : most);
    }
}

const struct qr_stage_kernels qr_stage_scalar = {shift,  restore, limit, hadamard, flip,
                                                 narrow, sum,     peak,  clip};
