/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of the level kernels, from proto/packing.h, and the choice
 * of kernels for this CPU.
 */
#include "levels.h"

#include <string.h>

#include "proto/cpu.h"
#include "proto/packing.h"

static void lookup(const uint8_t *row, uint32_t dim, uint32_t bits, const float table[16],
                   float *out)
{
    for (uint32_t c = 0; c < dim; c++)
        out[c] = table[qr_row_get(row, dim, bits, c)];
}

static void pack(const uint16_t *codes, uint32_t dim, uint32_t bits, uint8_t *row)
{
    memset(row, 0, qr_row_bytes(dim, bits));
    for (uint32_t c = 0; c < dim; c++)
        qr_row_put(row, dim, bits, c, codes[c]);
}

const struct qr_levels_kernels qr_levels_scalar = {lookup, pack};

const struct qr_levels_kernels *qr_levels_kernels(void)
{
#if defined(__x86_64__)
    if (qr_isa() >= QR_ISA_AVX512)
        return &qr_levels_avx512;
    if (qr_isa() >= QR_ISA_AVX2)
        return &qr_levels_avx2;
#endif
    return &qr_levels_scalar;
}
