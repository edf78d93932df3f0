/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop that finds codes of `nuq`, written so that the compiler vectorizes
 * it: borders ascend, so counting those that were reached is finding the first
 * that was not. Compiled by nuq_avx2.c and nuq_avx512.c; same codes as nuq_scalar.c.
 */
#ifndef QR_NUQ_KERNEL_H
#define QR_NUQ_KERNEL_H

#include "nuq.h"

static inline __attribute__((always_inline)) void encode_as(const float *restrict x, uint32_t n,
                                                            const struct qr_nuq_factors *f,
                                                            uint32_t bits,
                                                            uint16_t *restrict codes)
{
    const float *restrict middle = f->middle, *restrict reciprocal = f->reciprocal;
    for (uint32_t i = 0; i < n; i++) {
        const float z = (x[i] - middle[i]) * reciprocal[i];
        uint32_t code = 0;
        for (uint32_t k = 0; k < (1u << bits) - 1u; k++)
            code += z >= f->borders[k] ? 1u : 0u;
        codes[i] = (uint16_t)code;
    }
}

static inline void encode(const float *x, uint32_t n, const struct qr_nuq_factors *f,
                          uint16_t *codes)
{
    if (f->bits == 2)
        encode_as(x, n, f, 2, codes);
    else if (f->bits == 3)
        encode_as(x, n, f, 3, codes);
    else
        encode_as(x, n, f, 4, codes);
}

#endif
