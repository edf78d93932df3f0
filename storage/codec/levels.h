/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to storage/codec: rows of codes that point into a table of levels
 * (`lm`, `nuq`), once per instruction set. Must not know what levels mean.
 */
#ifndef QR_LEVELS_H
#define QR_LEVELS_H

#include <stdint.h>

#define QR_LEVELS_PAD 16u /* codes that qr_levels_kernels.pack reads past the last, zero */

struct qr_levels_kernels {
    /** out[c] = table[code of channel c]; bits 2, 3 or 4, table entry i + 2^bits = entry i. */
    void (*lookup)(const uint8_t *row, uint32_t dim, uint32_t bits, const float table[16],
                   float *out);
    /** A row of codes of 2, 3 or 4 bits from one code a word. */
    void (*pack)(const uint16_t *codes, uint32_t dim, uint32_t bits, uint8_t *row);
};

extern const struct qr_levels_kernels qr_levels_scalar, qr_levels_avx2, qr_levels_avx512;

const struct qr_levels_kernels *qr_levels_kernels(void);

#endif
