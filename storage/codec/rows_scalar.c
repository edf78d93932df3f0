/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of the row kernels: widen, rotate and convert, narrow,
 * sums of squares. The vector kernels are tested against it.
 */
#include "kernels.h"

#include "proto/quant.h"

static void widen(const uint16_t *in, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = qr_f16_to_f32(in[i]);
}

static void rotate(float *row, const struct qr_emit *how)
{
    const uint32_t pairs = how->rotary_dim / 2;
    const float *cosine = how->rotation, *sine = how->rotation + pairs;
    const bool half = how->layout == QR_ROPE_HALF;
    for (uint32_t i = 0; i < pairs; i++)
        qr_rope_pair(&row[half ? i : 2 * i], &row[half ? i + pairs : 2 * i + 1], cosine[i],
                     sine[i]);
}

static void emit(float *row, uint32_t dim, const struct qr_emit *how, void *dst)
{
    if (how->rotation)
        rotate(row, how);
    if (how->dtype == QR_F32)
        memcpy(dst, row, dim * sizeof(float));
    else if (how->dtype == QR_F16)
        for (uint32_t i = 0; i < dim; i++)
            ((uint16_t *)dst)[i] = qr_f16_from_f32(row[i]);
    else
        for (uint32_t i = 0; i < dim; i++)
            ((uint16_t *)dst)[i] = qr_bf16_from_f32(row[i]);
}

static uint16_t narrow_one(const void *src, enum qr_dtype dtype, uint32_t i)
{
    switch (dtype) {
    case QR_F16:
        return ((const uint16_t *)src)[i];
    case QR_BF16:
        return qr_f16_from_f32(qr_bf16_to_f32(((const uint16_t *)src)[i]));
    default:
        return qr_f16_from_f32(((const float *)src)[i]);
    }
}

static uint32_t narrow(const void *src, enum qr_dtype dtype, uint32_t n, uint16_t *dst)
{
    for (uint32_t i = 0; i < n; i++) {
        dst[i] = narrow_one(src, dtype, i);
        if ((dst[i] & 0x7fffu) >= QR_F16_INF_BITS)
            return i;
    }
    return n;
}

static float square(const uint16_t *in, uint32_t n)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++) {
        const float x = qr_f16_to_f32(in[i]);
        lanes[i % 16] += x * x;
    }
    for (uint32_t width = 8; width; width /= 2)
        for (uint32_t i = 0; i < width; i++)
            lanes[i] += lanes[i + width];
    return lanes[0];
}

static float squares(const uint16_t *in, size_t stride, uint32_t rows, uint32_t n)
{
    float sum = 0.0f;
    for (uint32_t row = 0; row < rows; row++)
        sum += square(in + row * stride, n);
    return sum;
}

static void fence(void)
{
}

const struct qr_row_kernels qr_rows_scalar = {widen, emit, narrow, squares, fence};
