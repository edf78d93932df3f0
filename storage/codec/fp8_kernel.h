/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of `fp8` written so that the compiler vectorizes them: no branches
 * inside, all lanes alike; compiled by fp8_avx2.c and fp8_avx512.c. Same bits as
 * fp8_scalar.c.
 */
#ifndef QR_FP8_KERNEL_H
#define QR_FP8_KERNEL_H

#include "fp8.h"
#include "kernels.h"
#include "proto/quant_fp8.h"

static uint32_t peak(const uint16_t *x, uint32_t n)
{
    uint16_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint16_t magnitude = x[i] & 0x7fffu;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

/** qr_fp8_from_f32 with both ways computed and one chosen. */
static inline __attribute__((always_inline)) uint8_t code_of(float x, uint32_t mantissa,
                                                             uint32_t least, uint32_t top)
{
    const uint32_t drop = 23u - mantissa, magic = (least + drop) << 23;
    const uint32_t bits = qr_f32_bits(x);
    uint32_t magnitude = bits & 0x7fffffffu;
    magnitude = magnitude > top ? top : magnitude;
    const float shifted = qr_f32_from_bits(magnitude) + qr_f32_from_bits(magic);
    const uint32_t small = qr_f32_bits(shifted) - magic;
    const uint32_t odd = magnitude >> drop & 1u;
    const uint32_t normal =
        (magnitude - ((least - 1u) << 23) + (1u << (drop - 1u)) - 1u + odd) >> drop;
    return (uint8_t)((bits >> 24 & 0x80u) | (magnitude < least << 23 ? small : normal));
}

static inline __attribute__((always_inline)) void encode_as(const float *restrict x,
                                                            uint32_t dim, uint32_t format,
                                                            float r, uint8_t *restrict row)
{
    const uint32_t half = dim / 2, mantissa = format ? 2u : 3u, least = format ? 113u : 121u;
    const uint32_t top = qr_f32_bits(qr_fp8_top(format));
    _Alignas(64) uint8_t codes[QR_DIM_MAX];
    for (uint32_t c = 0; c < dim; c++)
        codes[c] = code_of(x[c] * r, mantissa, least, top);
    for (uint32_t w = 0; w < half; w++) {
        row[2 * w] = codes[w];
        row[2 * w + 1] = codes[half + w];
    }
}

static void encode(const float *x, uint32_t dim, uint32_t format, float r, uint8_t *row)
{
    if (format)
        encode_as(x, dim, QR_FP8_E5M2, r, row);
    else
        encode_as(x, dim, QR_FP8_E4M3, r, row);
}

static inline __attribute__((always_inline)) void decode_as(const uint8_t *restrict row,
                                                            uint32_t dim, uint32_t format,
                                                            float scale, float *restrict out)
{
    const uint32_t half = dim / 2;
    for (uint32_t w = 0; w < half; w++) {
        out[w] = qr_fp8_to_f32(row[2 * w], format) * scale;
        out[half + w] = qr_fp8_to_f32(row[2 * w + 1], format) * scale;
    }
}

static void decode(const uint8_t *row, uint32_t dim, uint32_t format, float scale, float *out)
{
    if (format)
        decode_as(row, dim, QR_FP8_E5M2, scale, out);
    else
        decode_as(row, dim, QR_FP8_E4M3, scale, out);
}

#endif
