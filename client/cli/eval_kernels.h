/* SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic of the error report, one table for each instruction set: matrix products,
 * softmax, sums of errors. FP32 inside, FP64 across rows; a product is summed in the same
 * order whatever its operands are, so equal inputs give an error of exactly zero. Must not
 * know codecs, pages or attention.
 */
#ifndef QR_EVAL_KERNELS_H
#define QR_EVAL_KERNELS_H

#include "eval_sum.h"

#include <stddef.h>

#define QR_EVAL_PANEL 32u /* columns of a panel of the right operand */
#define QR_EVAL_PAD 16u   /* columns are a multiple of this */

/**
 * c[i][j] += sum over k of a[i][k] b[k][j]. Element (k, j) of b stands at
 * b + j / QR_EVAL_PANEL * b_panel + k * b_stride + j % QR_EVAL_PANEL. Strides in elements; b
 * and c 64-byte aligned, their strides multiples of QR_EVAL_PAD.
 */
struct qr_eval_product {
    uint32_t rows, inner, columns;
    const float *a, *b;
    float *c;
    size_t a_stride, b_stride, b_panel, c_stride;
};

/** Pure; any thread. */
struct qr_eval_kernels {
    void (*multiply)(const struct qr_eval_product *product);
    /** Softmax of row[0..n) in place (n >= 1), row[n..padded) = 0; 64-byte aligned, padded a
     * multiple of QR_EVAL_PAD. */
    void (*softmax)(float *row, uint32_t n, uint32_t padded);
    /** Add n pairs to the sums. */
    void (*compare)(const float *value, const float *reference, uint32_t n,
                    struct qr_eval_sum *sum);
};

/** Those of the instruction set in use. */
const struct qr_eval_kernels *qr_eval_kernels(void);

extern const struct qr_eval_kernels qr_eval_kernels_scalar, qr_eval_kernels_avx2,
    qr_eval_kernels_avx512;

#endif
