/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of `fp8`, one code at a time from proto/quant_fp8.h and
 * proto/packing.h. The vector kernels are tested against it.
 */
#include "fp8.h"

#include <string.h>

#include "proto/packing.h"
#include "proto/quant_fp8.h"

static uint32_t peak(const uint16_t *x, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = (x[i] & 0x7fffu) > most ? x[i] & 0x7fffu : most;
    return most;
}

static void encode(const float *x, uint32_t dim, uint32_t format, float r, uint8_t *row)
{
    memset(row, 0, qr_row_bytes(dim, 8));
    for (uint32_t c = 0; c < dim; c++)
        qr_row_put(row, dim, 8, c, qr_fp8_from_f32(x[c] * r, format));
}

static void decode(const uint8_t *row, uint32_t dim, uint32_t format, float scale, float *out)
{
    for (uint32_t c = 0; c < dim; c++)
        out[c] = qr_fp8_to_f32(qr_row_get(row, dim, 8, c), format) * scale;
}

const struct qr_fp8_kernels qr_fp8_scalar = {peak, encode, decode};
