/* SPDX-License-Identifier: Apache-2.0
 *
 * The `chan` kernels for AVX2. Must not be entered on a CPU without it.
 */
#include "vector_avx2.h"

#include "chan_simd.h"
#include "encode_simd.h"
#include "fused.h"

static bool expand_fused(const struct qr_tensor *tensor, const uint8_t *codes,
                         const uint8_t *scales, const struct qr_expand *to)
{
    return qr_fused_select_avx2(tensor, codes, scales, to) ||
           qr_fused_lookup_avx2(tensor, codes, scales, to) ||
           qr_fused_multiply_avx2(tensor, codes, scales, to);
}

static void encode_channels_fused(const struct qr_channel_group *group)
{
    if (!qr_fused_encode_channels_avx2(group))
        encode_channels(group);
}

static void encode_tokens_fused(const struct qr_token_batch *batch)
{
    if (!qr_fused_encode_tokens_avx2(batch))
        encode_tokens(batch);
}

const struct qr_chan_kernels qr_chan_avx2 = {encode_channels_fused, encode_tokens_fused,
                                             decode_channels, decode_token, expand_fused};
