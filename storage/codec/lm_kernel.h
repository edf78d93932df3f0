/* SPDX-License-Identifier: Apache-2.0
 *
 * The encoding loop of `lm` written so that the compiler vectorizes it: 16
 * channels at a time, compares and selections instead of look-ups; compiled by
 * lm_avx2.c and lm_avx512.c. Same bits as lm_scalar.c.
 */
#ifndef QR_LM_KERNEL_H
#define QR_LM_KERNEL_H

#include "kernels.h"
#include "lm.h"
#include "proto/quant_lm.h"

/** One chunk of 16 channels: their codes, their parts of the sums. */
static inline __attribute__((always_inline)) void
encode_16(const float *restrict x, uint32_t bits, float r, const float *restrict levels,
          uint16_t *restrict codes, float *restrict dot, float *restrict squares)
{
    const uint32_t half = 1u << (bits - 1u);
    for (uint32_t i = 0; i < 16; i++) {
        const float magnitude = fabsf(x[i]), z = magnitude * r;
        uint32_t index = 0;
        float level = levels[0];
        for (uint32_t k = 1; k < half; k++) {
            const int beyond = z >= qr_lm_border(levels, k);
            index += beyond ? 1u : 0u;
            level = beyond ? levels[k] : level;
        }
        codes[i] = (uint16_t)(qr_f32_bits(x[i]) >> 31 ? half - 1u - index : half + index);
        dot[i] += magnitude * level;
        squares[i] += level * level;
    }
}

static inline __attribute__((always_inline)) struct qr_lm_fit
encode_as(const uint16_t *x, uint32_t dim, uint32_t bits, float r, uint16_t *codes)
{
    _Alignas(64) float wide[QR_DIM_MAX + 16], levels[QR_LM_HALF_MAX];
    _Alignas(64) float dot[16] = {0}, squares[16] = {0}, unused[2][16] = {{0}};
    uint16_t last[16];
    const uint32_t whole = dim / 16 * 16;
    qr_row_kernels()->widen(x, dim, wide);
    qr_lm_levels(bits, levels);
    for (uint32_t c = 0; c < whole; c += 16)
        encode_16(wide + c, bits, r, levels, codes + c, dot, squares);
    if (whole < dim) { /* 8 more: lanes 0 .. 7 */
        for (uint32_t i = 8; i < 16; i++)
            wide[whole + i] = 0.0f;
        encode_16(wide + whole, bits, r, levels, last, unused[0], unused[1]);
        for (uint32_t i = 0; i < 8; i++) {
            codes[whole + i] = last[i];
            dot[i] += unused[0][i];
            squares[i] += unused[1][i];
        }
    }
    for (uint32_t width = 8; width; width /= 2)
        for (uint32_t i = 0; i < width; i++) {
            dot[i] += dot[i + width];
            squares[i] += squares[i + width];
        }
    return (struct qr_lm_fit){dot[0], squares[0]};
}

static inline __attribute__((always_inline)) struct qr_lm_fit
encode_row(const uint16_t *x, uint32_t dim, uint32_t bits, float r, uint16_t *codes)
{
    return bits == 2   ? encode_as(x, dim, 2, r, codes)
           : bits == 3 ? encode_as(x, dim, 3, r, codes)
                       : encode_as(x, dim, 4, r, codes);
}

#endif
