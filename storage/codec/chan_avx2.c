/* SPDX-License-Identifier: Apache-2.0
 *
 * The `chan` kernels for AVX2. Must not be entered on a CPU without it.
 */
#include "vector_avx2.h"

#include "chan_simd.h"
#include "encode_simd.h"
#include "fused.h"

const struct qr_chan_kernels qr_chan_avx2 = {encode_channels, encode_tokens, decode_channels,
                                             decode_token, qr_fused_multiply_avx2};
