/* SPDX-License-Identifier: Apache-2.0
 *
 * cos/sin of token positions, as docs/FORMULAS.md defines them: FP32 angle,
 * then sine and cosine of that angle. Must not know keys or pages.
 */
#include "rotation_kernel.h"

#include "codec.h"
#include "proto/cpu.h"

static void row_scalar(const float *inv_freq, uint32_t pairs, float position, float factor,
                       float *cosines, float *sines)
{
    rotation_row(inv_freq, pairs, position, factor, cosines, sines);
}

/** Any angle at all: tables given by a caller may have frequencies above 1. */
static void row_libm(const float *inv_freq, uint32_t pairs, float position, float factor,
                     float *cosines, float *sines)
{
    for (uint32_t i = 0; i < pairs; i++) {
        const double angle = (double)(position * inv_freq[i]);
        cosines[i] = (float)cos(angle) * factor;
        sines[i] = (float)sin(angle) * factor;
    }
}

static rotation_row_fn *row_for(const struct qr_rope *rope, uint32_t pairs, uint64_t last)
{
    for (uint32_t i = 0; i < pairs; i++)
        if (!(fabsf((float)last * rope->inv_freq[i]) <= QR_ROTATION_ANGLE_MAX))
            return row_libm;
#if defined(__x86_64__)
    if (qr_isa() >= QR_ISA_AVX512)
        return qr_rotation_row_avx512;
    if (qr_isa() >= QR_ISA_AVX2)
        return qr_rotation_row_avx2;
#endif
    return row_scalar;
}

void qr_rotation_make(const struct qr_rope *rope, uint64_t first_position, uint32_t tokens,
                      float *out)
{
    const uint32_t pairs = rope->rotary_dim / 2;
    rotation_row_fn *row = row_for(rope, pairs, first_position + tokens);
    for (uint32_t t = 0; t < tokens; t++, out += rope->rotary_dim)
        row(rope->inv_freq, pairs, (float)(first_position + t), rope->attention_factor, out,
            out + pairs);
}
