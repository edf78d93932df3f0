/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to fused*_avx*.c and chan_avx*.c: expansion of `chan` straight to
 * FP16 for common shapes. Each says false for a shape that it leaves to others.
 */
#ifndef QR_FUSED_H
#define QR_FUSED_H

#include "kernels.h"

typedef bool qr_fused_fn(const struct qr_tensor *tensor, const uint8_t *codes,
                         const uint8_t *scales, const struct qr_expand *to);

/** Codes to FP32, multiply-add, half-layout rotation of whole rows. */
qr_fused_fn qr_fused_multiply, qr_fused_multiply_avx2;
/** 2-bit codes per channel: select among four FP16 levels. */
qr_fused_fn qr_fused_select, qr_fused_select_avx2;
/** 2- and 4-bit codes per token: look up FP16 levels. */
qr_fused_fn qr_fused_lookup, qr_fused_lookup_avx2;

/** Encode one group along tokens; false: not for this shape. */
bool qr_fused_encode_channels(const struct qr_channel_group *group);
bool qr_fused_encode_channels_avx2(const struct qr_channel_group *group);
/** Encode rows with groups along channels; false: not for this shape or content. */
bool qr_fused_encode_tokens(const struct qr_token_batch *batch);
bool qr_fused_encode_tokens_avx2(const struct qr_token_batch *batch);

#endif
