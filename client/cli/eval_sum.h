/* SPDX-License-Identifier: Apache-2.0
 *
 * The error metrics of docs/FORMULAS.md as sums that add up: over rows, heads, layers. Must
 * not know what the numbers are of.
 */
#ifndef QR_EVAL_SUM_H
#define QR_EVAL_SUM_H

#include <stdint.h>

/** Sums over pairs of a value y and its reference x, e = y - x. All zero: nothing added. */
struct qr_eval_sum {
    double error_squares, reference_squares, value_squares, product; /* e^2, x^2, y^2, x y */
    double ratio;      /* |e / x| where x is not zero */
    uint64_t ratios;   /* how many those are */
    double largest;    /* |e| */
    double largest_of; /* |x| */
};

/** What is reported of a sum. */
struct qr_eval_metrics {
    double frobenius;  /* ||e|| / ||x||; 0 when nothing was added */
    double mean_ratio; /* mean |e / x| over nonzero x */
    double cosine;     /* 1 when nothing was added */
    double largest;    /* max |e| */
};

void qr_eval_sum_merge(struct qr_eval_sum *into, const struct qr_eval_sum *from);
void qr_eval_sum_metrics(const struct qr_eval_sum *sum, struct qr_eval_metrics *out);

#endif
