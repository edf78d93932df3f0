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
    switch (qr_isa()) {
    case QR_ISA_AVX512:
        return qr_checksum_spans_avx512(spans, n);
    case QR_ISA_AVX2:
        return qr_checksum_spans_avx2(spans, n);
    case QR_ISA_SCALAR:
        break;
    }
    return checksum_spans(spans, n);
}
