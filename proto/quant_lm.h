/* SPDX-License-Identifier: Apache-2.0
 *
 * Lloyd-Max levels of the normal distribution (docs/FORMULAS.md): 4, 8 and 16
 * levels, symmetric, each the mean of N(0, 1) between the midpoints around it.
 * C11, C++ and nvcc. Must not know norms or pages.
 */
#ifndef QR_QUANT_LM_H
#define QR_QUANT_LM_H

#include "quant.h"

#define QR_LM_HALF_MAX 8u

/** Positive levels of 2, 3 or 4 bits, ascending, 2^(bits-1) of them; the rest is 0. */
QR_FORMULA void qr_lm_levels(uint32_t bits, float out[QR_LM_HALF_MAX])
{
    static const float levels[3][QR_LM_HALF_MAX] = {
        {0x1.cfa592p-2f, 0x1.82aabap+0f},
        {0x1.f5f3f0p-3f, 0x1.831320p-1f, 0x1.580a70p+0f, 0x1.1372f4p+1f},
        {0x1.06f3fap-3f, 0x1.8d5c88p-2f, 0x1.5042bcp-1f, 0x1.e27a72p-1f, 0x1.41985ep+0f,
         0x1.9e384ap+0f, 0x1.08d58ep+1f, 0x1.5dc57ep+1f},
    };
    for (uint32_t i = 0; i < QR_LM_HALF_MAX; i++)
        out[i] = levels[bits - 2u][i];
}

/** Where level i begins to be nearer than level i - 1 (i >= 1). */
QR_FORMULA float qr_lm_border(const float levels[QR_LM_HALF_MAX], uint32_t i)
{
    return (levels[i - 1u] + levels[i]) * 0.5f;
}

/** Index of the level of a magnitude. */
QR_FORMULA uint32_t qr_lm_index(float magnitude, const float levels[QR_LM_HALF_MAX],
                                uint32_t bits)
{
    uint32_t index = 0;
    for (uint32_t i = 1; i < 1u << (bits - 1u); i++)
        index += magnitude >= qr_lm_border(levels, i);
    return index;
}

/** Codes ascend with the values: the level of index i is half + i, its negative half - 1 - i.
 */
QR_FORMULA uint32_t qr_lm_code(uint32_t index, int negative, uint32_t bits)
{
    const uint32_t half = 1u << (bits - 1u);
    return negative ? half - 1u - index : half + index;
}

/** Value of each code times scale; codes past 2^bits repeat those before. */
QR_FORMULA void qr_lm_table(uint32_t bits, float scale, float out[16])
{
    float levels[QR_LM_HALF_MAX];
    const uint32_t half = 1u << (bits - 1u);
    qr_lm_levels(bits, levels);
    for (uint32_t code = 0; code < 16u; code++) {
        const uint32_t q = code & (2u * half - 1u);
        out[code] = (q < half ? -levels[half - 1u - q] : levels[q - half]) * scale;
    }
}

#endif
