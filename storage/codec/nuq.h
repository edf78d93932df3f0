/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to nuq*.c: which elements of a head are kept exactly, and the loop
 * that finds codes, once per instruction set.
 */
#ifndef QR_NUQ_H
#define QR_NUQ_H

#include "codec.h"

/** One head of a tensor, and where its outliers go. */
struct qr_nuq_head {
    const struct qr_tensor *tensor;
    const uint16_t *x; /* token t at x + t * stride */
    size_t stride;
    const uint8_t *raw;
    uint16_t *outliers; /* count, positions[most], values[most] */
    uint32_t most;
};

/** Elements that leave their groups: marks bit position % 64 of word position / 64 of `marks`,
 * which is zero, and fills head->outliers in ascending order. position: token * dim + channel.
 */
void qr_nuq_choose(const struct qr_nuq_head *head, uint64_t *marks);

/** What codes of a channel are computed with. */
struct qr_nuq_factors {
    const float *middle, *reciprocal;
    float borders[16]; /* between levels; the first 2^bits - 1 count */
    uint32_t bits;
};

/** codes[i] = number of borders at or below (x[i] - middle[i]) * reciprocal[i]. */
typedef void qr_nuq_encode_fn(const float *x, uint32_t n, const struct qr_nuq_factors *f,
                              uint16_t *codes);
qr_nuq_encode_fn qr_nuq_encode_scalar, qr_nuq_encode_avx2, qr_nuq_encode_avx512;

#endif
