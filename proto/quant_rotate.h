/* SPDX-License-Identifier: Apache-2.0
 *
 * The scalar formulas of rotations (docs/FORMULAS.md): block length and factor
 * of the Hadamard transform, random signs, limits and clipping. C11, C++ and
 * nvcc. Must not know pages or tensors.
 */
#ifndef QR_QUANT_ROTATE_H
#define QR_QUANT_ROTATE_H

#include "quant.h"

/** Length of the Hadamard transform of n channels: the largest power of two that divides n. */
QR_FORMULA uint32_t qr_rotate_block(uint32_t n)
{
    return n & (0u - n);
}

/** 1 / sqrt(block) in FP32; block: a power of two. */
QR_FORMULA float qr_rotate_factor(uint32_t block)
{
    return 1.0f / sqrtf((float)block);
}

/** Sign of channel c of a random rotation: 0x80000000 to negate, else 0. */
QR_FORMULA uint32_t qr_rotate_sign(uint32_t seed, uint32_t c)
{
    uint32_t x = seed + (c + 1u) * 0x9e3779b9u; /* murmur3's finalizer mixes the bits */
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return (x ^ x >> 16) << 31;
}

/** What FP16 holds. */
QR_FORMULA float qr_rotate_limit(float x)
{
    const float above = x > -65504.0f ? x : -65504.0f;
    return above < 65504.0f ? above : 65504.0f;
}

/** The FP16 bits of a key of qr_f16_key. */
QR_FORMULA uint16_t qr_rotate_unkey(int16_t key)
{
    return (uint16_t)(key < 0 ? 0x8000 | -key : key);
}

/** Key of the FP16 value nearest to ratio times the value of `key`. */
QR_FORMULA int16_t qr_rotate_clipped(int16_t key, float ratio)
{
    return qr_f16_key(qr_f16_from_f32(qr_f16_to_f32(qr_rotate_unkey(key)) * ratio));
}

#endif
