/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to chan_hybrid.c and hybrid_*.c: loops over channels of `chan` with
 * the hybrid option, once per instruction set. Every channel has its own factors.
 */
#ifndef QR_HYBRID_H
#define QR_HYBRID_H

#include <stdint.h>

/** What codes of a channel are computed with. */
struct qr_hybrid_factors {
    const float *scale, *minimum, *reciprocal;
    float top; /* largest code */
};

struct qr_hybrid_kernels {
    /** low[i] = x[i] <= low[i] ? x[i] : low[i], high likewise: the later of equals. */
    void (*range)(const float *x, uint32_t n, float *low, float *high);
    /** errors[i] += square of x[i] less its decoded value. */
    void (*add_errors)(const float *x, uint32_t n, const struct qr_hybrid_factors *f,
                       float *errors);
    /** Codes, one a word. */
    void (*encode)(const float *x, uint32_t n, const struct qr_hybrid_factors *f,
                   uint16_t *codes);
};

/** Kernels of the instruction set in use. */
const struct qr_hybrid_kernels *qr_hybrid_kernels(void);

extern const struct qr_hybrid_kernels qr_hybrid_scalar, qr_hybrid_avx2, qr_hybrid_avx512;

#endif
