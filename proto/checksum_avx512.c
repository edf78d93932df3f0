/* SPDX-License-Identifier: Apache-2.0
 *
 * XXH3-64 with AVX-512 accumulators: xxhash.h picks them from the flags that
 * this file is compiled with.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "checksum.h"

uint64_t qr_checksum_avx512(const void *bytes, size_t n)
{
    return XXH3_64bits(bytes, n);
}

uint64_t qr_checksum_spans_avx512(const struct qr_span *spans, size_t n)
{
    return checksum_spans(spans, n);
}
