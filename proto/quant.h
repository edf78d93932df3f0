/* SPDX-License-Identifier: Apache-2.0
 *
 * The scalar formulas of docs/FORMULAS.md: FP16 and BF16 conversion, group
 * scale, code, decoded value, RoPE pair. One definition for the scalar codec,
 * the tests and the CUDA kernels (C11, C++ and nvcc); SIMD must give the same
 * bits. Must not know pages or tensors.
 */
#ifndef QR_QUANT_H
#define QR_QUANT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define QR_FORMULA static inline __host__ __device__
#else
#define QR_FORMULA static inline
#endif

#define QR_F16_MAX_BITS 0x7bffu /* 65504 */
#define QR_F16_INF_BITS 0x7c00u

QR_FORMULA uint32_t qr_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

QR_FORMULA float qr_f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/** Exact, for every FP16 value, subnormals, infinities and NaN included. */
QR_FORMULA float qr_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t magnitude = (uint32_t)(h & 0x7fffu) << 13;
    if (magnitude >= QR_F16_INF_BITS << 13)
        return qr_f32_from_bits(sign | 0x7f800000u | magnitude);
    if (magnitude < 0x0400u << 13) { /* zero or subnormal: a multiple of 2^-24 */
        const float x = (float)(h & 0x7fffu) * 0x1p-24f;
        return qr_f32_from_bits(sign | qr_f32_bits(x));
    }
    return qr_f32_from_bits(sign | (magnitude + (112u << 23)));
}

/** Round to nearest even; 65520 and more give infinity, NaN stays NaN. */
QR_FORMULA uint16_t qr_f16_from_f32(float x)
{
    const uint32_t bits = qr_f32_bits(x);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u)
        return (uint16_t)(sign | QR_F16_INF_BITS);
    if (magnitude < 0x38800000u) { /* below 2^-14: the FP32 adder rounds to 2^-24 for us */
        const float shifted = qr_f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (qr_f32_bits(shifted) - 0x3f000000u));
    }
    const uint32_t odd = (magnitude >> 13) & 1u;
    return (uint16_t)(sign | ((magnitude - (112u << 23) + 0xfffu + odd) >> 13));
}

QR_FORMULA float qr_bf16_to_f32(uint16_t h)
{
    return qr_f32_from_bits((uint32_t)h << 16);
}

/** Round to nearest even; NaN stays NaN. */
QR_FORMULA uint16_t qr_bf16_from_f32(float x)
{
    const uint32_t bits = qr_f32_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/** Orders finite FP16 values as integers; -0 and +0 are equal. */
QR_FORMULA int16_t qr_f16_key(uint16_t h)
{
    const int16_t magnitude = (int16_t)(h & 0x7fffu);
    return (int16_t)(h & 0x8000u ? -magnitude : magnitude);
}

/** Minimum of a running minimum and the next member: the later one when they are equal, so
 * that a minimum of zero has the sign of the group's last zero. */
QR_FORMULA uint16_t qr_quant_minimum(uint16_t minimum, uint16_t next)
{
    return qr_f16_key(next) <= qr_f16_key(minimum) ? next : minimum;
}

QR_FORMULA uint16_t qr_quant_maximum(uint16_t maximum, uint16_t next)
{
    return qr_f16_key(next) >= qr_f16_key(maximum) ? next : maximum;
}

/** Largest code: 2^bits - 1. */
QR_FORMULA uint32_t qr_quant_top(uint32_t bits)
{
    return (1u << bits) - 1u;
}

/** FP16 scale of a group with FP16 minimum and maximum. */
QR_FORMULA uint16_t qr_quant_scale(uint16_t minimum, uint16_t maximum, uint32_t bits)
{
    const float low = qr_f16_to_f32(minimum);
    const float top = (float)qr_quant_top(bits);
    const uint16_t scale = qr_f16_from_f32((qr_f16_to_f32(maximum) - low) / top);
    const int overflows = low + top * qr_f16_to_f32(scale) >= 65520.0f;
    return (uint16_t)(scale - overflows);
}

/** FP16 scale of a range symmetric around 0; codes 1 .. top are -top/2 .. top/2 times it. */
QR_FORMULA uint16_t qr_quant_symmetric_scale(uint16_t minimum, uint16_t maximum, uint32_t bits)
{
    const float low = fabsf(qr_f16_to_f32(minimum)), high = fabsf(qr_f16_to_f32(maximum));
    const float top = (float)((1u << (bits - 1u)) - 1u);
    const uint16_t scale = qr_f16_from_f32((low > high ? low : high) / top);
    return (uint16_t)(scale - (top * qr_f16_to_f32(scale) >= 65520.0f));
}

/** FP16 minimum that goes with it: a power of two times the scale, exact or infinite. */
QR_FORMULA uint16_t qr_quant_symmetric_minimum(uint16_t scale, uint32_t bits)
{
    return qr_f16_from_f32(-(float)(1u << (bits - 1u)) * qr_f16_to_f32(scale));
}

/** What members are multiplied by: one FP32 division per group. */
QR_FORMULA float qr_quant_reciprocal(uint16_t scale)
{
    const float s = qr_f16_to_f32(scale);
    return s > 0.0f ? 1.0f / s : 0.0f;
}

/** Code of a member x >= minimum; reciprocal as qr_quant_reciprocal gives it. */
QR_FORMULA uint32_t qr_quant_code(float x, float minimum, float reciprocal, uint32_t top)
{
    const float q = rintf((x - minimum) * reciprocal);
    return q >= (float)top ? top : q > 0.0f ? (uint32_t)q : 0u;
}

/** Decoded value before it is rounded to the output type. */
QR_FORMULA float qr_quant_value(uint32_t code, float scale, float minimum)
{
    return fmaf((float)code, scale, minimum);
}

/** Rotate a RoPE pair in place; cosine and sine already carry the attention factor. */
QR_FORMULA void qr_rope_pair(float *x1, float *x2, float cosine, float sine)
{
    const float a = *x1, b = *x2;
    *x1 = fmaf(a, cosine, -(b * sine));
    *x2 = fmaf(b, cosine, a * sine);
}

#endif
