/* SPDX-License-Identifier: Apache-2.0
 *
 * qr_checksum: XXH3-64 in the widest form this CPU runs, baseline otherwise.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "checksum.h"
#include "cpu.h"
#include "page.h"

uint64_t qr_checksum(const void *bytes, size_t n)
{
    switch (qr_isa()) {
    case QR_ISA_AVX512:
        return qr_checksum_avx512(bytes, n);
    case QR_ISA_AVX2:
        return qr_checksum_avx2(bytes, n);
    case QR_ISA_SCALAR:
        break;
    }
    return XXH3_64bits(bytes, n);
}

uint64_t qr_checksum_spans(const struct qr_span *spans, size_t n)
{
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (size_t i = 0; i < n; i++)
        for (uint32_t piece = 0; piece < spans[i].count; piece++)
            XXH3_64bits_update(&state,
                               (const uint8_t *)spans[i].first + piece * spans[i].stride,
                               spans[i].bytes);
    return XXH3_64bits_digest(&state);
}
