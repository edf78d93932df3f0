/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether stored FP16 numbers can be decoded into finite ones: loops that the
 * compiler vectorizes, compiled once per instruction set. Only page_values*.c
 * include this.
 */
#ifndef QR_VALUES_KERNEL_H
#define QR_VALUES_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quant.h"

/** FP16 scales and minima of `count` groups, `stride` (1 or 2) elements apart. */
struct values_groups {
    const uint16_t *scales, *minima;
    size_t stride, count;
    uint32_t bits;
};

bool qr_values_finite_avx2(const uint16_t *values, size_t n);
bool qr_values_finite_avx512(const uint16_t *values, size_t n);
bool qr_values_groups_avx2(const struct values_groups *groups);
bool qr_values_groups_avx512(const struct values_groups *groups);

static inline bool values_finite(const uint16_t *values, size_t n)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad |= (values[i] & 0x7fffu) >= QR_F16_INF_BITS;
    return !bad;
}

/* FP16 magnitude bits as FP32: exact for subnormals too, without a branch. */
static inline float values_widen(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    return qr_f32_from_bits(sign | (uint32_t)(h & 0x7fffu) << 13) * 0x1p112f;
}

/* Scale at least +0, both finite, and the largest code below what rounds to infinity. */
static inline uint32_t values_group_bad(uint16_t scale, uint16_t minimum, float top)
{
    const float largest = values_widen(minimum) + top * values_widen(scale);
    return (uint32_t)(scale >= QR_F16_INF_BITS) |
           (uint32_t)((minimum & 0x7fffu) >= QR_F16_INF_BITS) | (uint32_t)(largest >= 65520.0f);
}

static inline bool values_groups(const struct values_groups *groups)
{
    const uint16_t *scales = groups->scales, *minima = groups->minima;
    const float top = (float)qr_quant_top(groups->bits);
    uint32_t bad = 0;
    if (groups->stride == 1)
        for (size_t i = 0; i < groups->count; i++)
            bad |= values_group_bad(scales[i], minima[i], top);
    else
        for (size_t i = 0; i < groups->count; i++)
            bad |= values_group_bad(scales[2 * i], minima[2 * i], top);
    return !bad;
}

#endif
