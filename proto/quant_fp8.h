/* SPDX-License-Identifier: Apache-2.0
 *
 * FP8 as docs/FORMULAS.md has it: E4M3FN (no infinities, largest 448) and E5M2
 * (largest finite 57344), round to nearest even, saturating. C11, C++ and nvcc.
 * Must not know scales or pages.
 */
#ifndef QR_QUANT_FP8_H
#define QR_QUANT_FP8_H

#include "quant.h"

/** Largest finite value; format: 0 E4M3FN, 1 E5M2. */
QR_FORMULA float qr_fp8_top(uint32_t format)
{
    return format ? 57344.0f : 448.0f;
}

/** Whether a code is one that is never written: E4M3FN's NaN, E5M2's infinity and NaNs. */
QR_FORMULA int qr_fp8_reserved(uint32_t code, uint32_t format)
{
    return (code & 0x7fu) >= (format ? 0x7cu : 0x7fu);
}

/** Code of x, |x| finite; past the largest value it saturates. */
QR_FORMULA uint32_t qr_fp8_from_f32(float x, uint32_t format)
{
    const uint32_t mantissa = format ? 2u : 3u, drop = 23u - mantissa;
    const uint32_t least = format ? 113u : 121u; /* biased FP32 exponent of the least normal */
    const uint32_t bits = qr_f32_bits(x), sign = bits >> 24 & 0x80u;
    uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t top = qr_f32_bits(qr_fp8_top(format));
    magnitude = magnitude > top ? top : magnitude;
    if (magnitude < least << 23) { /* the FP32 adder rounds to the least unit for us */
        const uint32_t magic = (least + drop) << 23;
        const float shifted = qr_f32_from_bits(magnitude) + qr_f32_from_bits(magic);
        return sign | (qr_f32_bits(shifted) - magic);
    }
    const uint32_t odd = magnitude >> drop & 1u;
    return sign | ((magnitude - ((least - 1u) << 23) + (1u << (drop - 1u)) - 1u + odd) >> drop);
}

/** Value of a code: exact. Reserved codes give finite values, too (480, 65536 and up). */
QR_FORMULA float qr_fp8_to_f32(uint32_t code, uint32_t format)
{
    const uint32_t drop = format ? 21u : 20u;
    const float x = qr_f32_from_bits((code & 0x7fu) << drop) * (format ? 0x1p112f : 0x1p120f);
    return qr_f32_from_bits((code & 0x80u) << 24 | qr_f32_bits(x));
}

/** FP32 scale of values whose largest magnitude is `peak`, and what they are multiplied by. */
QR_FORMULA float qr_fp8_scale(float peak, uint32_t format)
{
    return peak / qr_fp8_top(format);
}

QR_FORMULA float qr_fp8_reciprocal(float peak, uint32_t format)
{
    return peak > 0.0f ? qr_fp8_top(format) / peak : 0.0f;
}

#endif
