/* SPDX-License-Identifier: Apache-2.0
 *
 * The encoding loop of `lm` for AVX2. Must not be entered on a CPU without it.
 */
#include "lm_kernel.h"

struct qr_lm_fit qr_lm_encode_avx2(const uint16_t *x, uint32_t dim, uint32_t bits, float r,
                                   uint16_t *codes)
{
    return encode_row(x, dim, bits, r, codes);
}
