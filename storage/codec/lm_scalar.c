/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of `lm`, one value at a time from proto/quant_lm.h.
 */
#include "lm.h"

#include "proto/quant_lm.h"

static float fold(float lanes[16])
{
    for (uint32_t width = 8; width; width /= 2)
        for (uint32_t i = 0; i < width; i++)
            lanes[i] += lanes[i + width];
    return lanes[0];
}

struct qr_lm_fit qr_lm_encode_scalar(const uint16_t *x, uint32_t dim, uint32_t bits, float r,
                                     uint16_t *codes)
{
    float levels[QR_LM_HALF_MAX], dot[16] = {0}, squares[16] = {0};
    qr_lm_levels(bits, levels);
    for (uint32_t c = 0; c < dim; c++) {
        const float magnitude = qr_f16_to_f32(x[c] & 0x7fffu);
        const uint32_t index = qr_lm_index(magnitude * r, levels, bits);
        codes[c] = (uint16_t)qr_lm_code(index, x[c] >> 15, bits);
        dot[c % 16] += magnitude * levels[index];
        squares[c % 16] += levels[index] * levels[index];
    }
    return (struct qr_lm_fit){fold(dot), fold(squares)};
}
