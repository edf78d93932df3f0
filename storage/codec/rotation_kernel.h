/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to rotation*.c: sine and cosine in FP32 for |a| <= 2^24, written so
 * that the compiler vectorizes it and every instruction set gives the same
 * bits. Included once per instruction set.
 */
#ifndef QR_ROTATION_KERNEL_H
#define QR_ROTATION_KERNEL_H

#include <math.h>
#include <stdint.h>

/** Largest |position * inv_freq| that sincos_f32 reduces exactly enough. */
#define QR_ROTATION_ANGLE_MAX 0x1p24f

/* pi/2 = HIGH + LOW to 2^-50: the fused products are exact, so a - k * pi/2 is off by two
 * roundings of values around 1, whatever k < 2^24 is. */
#define HALF_PI_HIGH 0x1.921fb6p+0f
#define HALF_PI_LOW -0x1.777a5cp-25f
#define TWO_OVER_PI 0x1.45f306p-1f

/** sin and cos of |r| <= pi/4 + 2^-20; minimax polynomials of degree 7 and 8. */
static inline void sincos_reduced(float r, float *sine, float *cosine)
{
    const float z = r * r;
    const float s = fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f);
    const float c =
        fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f);
    *sine = fmaf(s * z, r, r);
    *cosine = fmaf(c * z, z, fmaf(-0.5f, z, 1.0f));
}

static inline void sincos_f32(float a, float *sine, float *cosine)
{
    /* The first quotient may be off by one, because a * 2/pi is rounded; the second mends it.
     */
    const float k0 = rintf(a * TWO_OVER_PI);
    const float r0 = fmaf(-k0, HALF_PI_LOW, fmaf(-k0, HALF_PI_HIGH, a));
    const float k1 = rintf(r0 * TWO_OVER_PI);
    const float r1 = fmaf(-k1, HALF_PI_LOW, fmaf(-k1, HALF_PI_HIGH, r0));
    const int32_t quadrant = (int32_t)k0 + (int32_t)k1;
    float s, c;
    sincos_reduced(r1, &s, &c);
    const float s_or_c = quadrant & 1 ? c : s;
    const float c_or_s = quadrant & 1 ? s : c;
    *sine = quadrant & 2 ? -s_or_c : s_or_c;
    *cosine = (quadrant + 1) & 2 ? -c_or_s : c_or_s;
}

/** cos and sin of position * inv_freq[0..pairs), times factor. */
static inline void rotation_row(const float *restrict inv_freq, uint32_t pairs, float position,
                                float factor, float *restrict cosines, float *restrict sines)
{
    for (uint32_t i = 0; i < pairs; i++) {
        float s, c;
        sincos_f32(position * inv_freq[i], &s, &c);
        cosines[i] = c * factor;
        sines[i] = s * factor;
    }
}

typedef void rotation_row_fn(const float *inv_freq, uint32_t pairs, float position,
                             float factor, float *cosines, float *sines);
rotation_row_fn qr_rotation_row_avx2, qr_rotation_row_avx512;

#endif
