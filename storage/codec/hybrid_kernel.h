/* SPDX-License-Identifier: Apache-2.0
 *
 * The hybrid loops written so that the compiler vectorizes them; compiled by
 * hybrid_avx2.c and hybrid_avx512.c. Same bits as hybrid_scalar.c.
 */
#ifndef QR_HYBRID_KERNEL_H
#define QR_HYBRID_KERNEL_H

#include <math.h>

#include "hybrid.h"

static void range(const float *restrict x, uint32_t n, float *restrict low,
                  float *restrict high)
{
    for (uint32_t i = 0; i < n; i++) {
        low[i] = x[i] <= low[i] ? x[i] : low[i];
        high[i] = x[i] >= high[i] ? x[i] : high[i];
    }
}

static inline __attribute__((always_inline)) float code(float x, float minimum,
                                                        float reciprocal, float top)
{
    const float q = rintf((x - minimum) * reciprocal);
    const float below = q < top ? q : top;
    return below > 0.0f ? below : 0.0f;
}

static void add_errors(const float *restrict x, uint32_t n, const struct qr_hybrid_factors *f,
                       float *restrict errors)
{
    const float *restrict scale = f->scale, *restrict minimum = f->minimum;
    const float *restrict reciprocal = f->reciprocal, top = f->top;
    for (uint32_t i = 0; i < n; i++) {
        const float q = code(x[i], minimum[i], reciprocal[i], top);
        const float e = x[i] - fmaf(q, scale[i], minimum[i]);
        errors[i] += e * e;
    }
}

static void encode(const float *restrict x, uint32_t n, const struct qr_hybrid_factors *f,
                   uint16_t *restrict codes)
{
    const float *restrict minimum = f->minimum, *restrict reciprocal = f->reciprocal;
    const float top = f->top;
    for (uint32_t i = 0; i < n; i++)
        codes[i] = (uint16_t)(int32_t)code(x[i], minimum[i], reciprocal[i], top);
}

#endif
