/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of the loop that finds codes of `nuq`.
 */
#include "nuq.h"

void qr_nuq_encode_scalar(const float *x, uint32_t n, const struct qr_nuq_factors *f,
                          uint16_t *codes)
{
    for (uint32_t i = 0; i < n; i++) {
        const float z = (x[i] - f->middle[i]) * f->reciprocal[i];
        uint32_t code = 0;
        while (code < (1u << f->bits) - 1u && z >= f->borders[code])
            code++;
        codes[i] = (uint16_t)code;
    }
}
