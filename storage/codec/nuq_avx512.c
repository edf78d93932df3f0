/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop that finds codes of `nuq` for AVX-512. Must not be entered on a CPU
 * without it.
 */
#include "nuq_kernel.h"

void qr_nuq_encode_avx512(const float *x, uint32_t n, const struct qr_nuq_factors *f,
                          uint16_t *codes)
{
    encode(x, n, f, codes);
}
