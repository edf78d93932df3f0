/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done to rows before a codec sees them, and undone after it: channel
 * means and norms, order, signs, Hadamard rotation (docs/FORMULAS.md). A stage
 * wraps any codec's ops. Private to storage/codec; must not know pages.
 */
#ifndef QR_STAGE_H
#define QR_STAGE_H

#include "codec.h"

/** Most elements of a head that a stage holds at once, as FP16. */
#define QR_STAGE_ELEMENTS (128u * 1024u)
/** Most channels that are rotated or ordered together: 4 heads, or all heads that are sorted.
 */
#define QR_STAGE_CHANNELS 8192u

struct qr_stage_kernels {
    /** x[i] = (x[i] - means[i]) * factors[i]. */
    void (*shift)(float *x, uint32_t n, const float *means, const float *factors);
    /** x[i] = fmaf(x[i], norms[i], means[i]), kept within +-65504. */
    void (*restore)(float *x, uint32_t n, const float *norms, const float *means);
    /** x[i] within +-65504. */
    void (*limit)(float *x, uint32_t n);
    /** Sylvester-Hadamard transform of each run of `block` (a power of two, at least 8)
     * channels, times 1 / sqrt(block): its own inverse. */
    void (*hadamard)(float *x, uint32_t n, uint32_t block);
    /** Negate where signs[i] is 0x80000000; else it is 0. */
    void (*flip)(float *x, uint32_t n, const uint32_t *signs);
    /** out[i] = FP16 of x[i] kept within +-65504. */
    void (*narrow)(const float *x, uint32_t n, uint16_t *out);
    /** sums[i] += x[i]; peaks[i] = max(peaks[i], |x[i] - means[i]|). */
    void (*sum)(const float *x, uint32_t n, float *sums);
    void (*peak)(const float *x, uint32_t n, const float *means, float *peaks);
    /** Pull FP16 values of a group towards 0: to its minimum and maximum (those of them that
     * are not on the other side of 0) times ratio. */
    void (*clip)(uint16_t *x, uint32_t n, float ratio);
};

extern const struct qr_stage_kernels qr_stage_scalar, qr_stage_avx2, qr_stage_avx512;

/** Whether a spec needs a stage at all; else its codec works on the rows themselves. */
bool qr_stage_needed(const struct qr_codec_spec *spec);
/** The spec of the codec within. */
struct qr_codec_spec qr_stage_inner(const struct qr_codec_spec *spec);

/** Ops of codec.h around the plain ops of the codec within. */
void qr_stage_encode(const struct qr_codec_ops *inner, const struct qr_tensor *tensor,
                     const struct qr_rows *in, const uint8_t *raw_bitmap, uint8_t *codes,
                     uint8_t *scales);
void qr_stage_expand(const struct qr_codec_ops *inner, const struct qr_tensor *tensor,
                     const uint8_t *codes, const uint8_t *scales, const struct qr_expand *to);

#endif
