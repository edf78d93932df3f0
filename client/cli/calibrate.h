/* SPDX-License-Identifier: Apache-2.0
 *
 * Level tables of `nuq` from real keys and values: how normalized values are
 * distributed, weighted by what an error costs, and the levels that cost least.
 * Must not know files.
 */
#ifndef QR_CALIBRATE_H
#define QR_CALIBRATE_H

#include "proto/page.h"

#define QR_CALIBRATE_BINS 4096
#define QR_CALIBRATE_PAGE 128u /* tokens that are normalized as a page of nuq would */

/** Weight of normalized values, in equal bins over -1 to 1. */
struct qr_calibrate_histogram {
    double weight[QR_CALIBRATE_BINS];
};

/** Keys or values of one layer. */
struct qr_calibrate_rows {
    const uint16_t *data; /* FP16 [tokens][heads][dim], finite */
    uint32_t tokens, heads, dim;
    uint32_t sinks;            /* first tokens that stay raw */
    const float *cost;         /* [heads][dim]: of a squared error in that channel; NULL: 1 */
    struct qr_codec_spec spec; /* nuq: axis, group, outliers */
};

/** Add whole pages of a layer. Any thread; pure. */
void qr_calibrate_add(const struct qr_calibrate_rows *rows, struct qr_calibrate_histogram *out);

/**
 * 2^bits levels by weighted k-means (Lloyd's iteration from the quantiles of the cube root of
 * the density, which is where many levels would stand). Ascending FP16 in -1 to 1. Gives the
 * mean squared error, and in *uniform that of equally spaced levels.
 */
double qr_calibrate_levels(const struct qr_calibrate_histogram *histogram, uint32_t bits,
                           uint16_t *levels, double *uniform);

#endif
