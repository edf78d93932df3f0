/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of the hybrid loops, from proto/quant.h.
 */
#include "hybrid.h"

#include "proto/quant.h"

static void range(const float *x, uint32_t n, float *low, float *high)
{
    for (uint32_t i = 0; i < n; i++) {
        low[i] = x[i] <= low[i] ? x[i] : low[i];
        high[i] = x[i] >= high[i] ? x[i] : high[i];
    }
}

static uint32_t code(float x, const struct qr_hybrid_factors *f, uint32_t i)
{
    return qr_quant_code(x, f->minimum[i], f->reciprocal[i], (uint32_t)f->top);
}

static void add_errors(const float *x, uint32_t n, const struct qr_hybrid_factors *f,
                       float *errors)
{
    for (uint32_t i = 0; i < n; i++) {
        const float e = x[i] - qr_quant_value(code(x[i], f, i), f->scale[i], f->minimum[i]);
        errors[i] += e * e;
    }
}

static void encode(const float *x, uint32_t n, const struct qr_hybrid_factors *f,
                   uint16_t *codes)
{
    for (uint32_t i = 0; i < n; i++)
        codes[i] = (uint16_t)code(x[i], f, i);
}

const struct qr_hybrid_kernels qr_hybrid_scalar = {range, add_errors, encode};
