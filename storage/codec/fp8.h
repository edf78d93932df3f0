/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to fp8*.c: the loops of `fp8` that exist once per instruction set.
 * Every level gives the same bits. Must not know pages.
 */
#ifndef QR_FP8_H
#define QR_FP8_H

#include <stdint.h>

struct qr_fp8_kernels {
    /** Largest magnitude of n finite FP16 values, as FP16 bits without the sign. */
    uint32_t (*peak)(const uint16_t *x, uint32_t n);
    /** Codes of dim values times r into a row (PACKING.md, 8 bits). */
    void (*encode)(const float *x, uint32_t dim, uint32_t format, float r, uint8_t *row);
    /** out = value of each code times scale. */
    void (*decode)(const uint8_t *row, uint32_t dim, uint32_t format, float scale, float *out);
};

extern const struct qr_fp8_kernels qr_fp8_scalar, qr_fp8_avx2, qr_fp8_avx512;

#endif
