/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to lm*.c: the encoding loop of `lm`, once per instruction set.
 */
#ifndef QR_LM_H
#define QR_LM_H

#include <stdint.h>

/** What is stored is dot / squares: the factor with which the levels are nearest to x. */
struct qr_lm_fit {
    float dot, squares; /* of x and its levels, of the levels */
};

/** Codes of the FP16 row x times r, one a word. Sums run in 16 lanes as those of
 * qr_row_kernels.squares do. */
typedef struct qr_lm_fit qr_lm_encode_fn(const uint16_t *x, uint32_t dim, uint32_t bits,
                                         float r, uint16_t *codes);
qr_lm_encode_fn qr_lm_encode_scalar, qr_lm_encode_avx2, qr_lm_encode_avx512;

#endif
