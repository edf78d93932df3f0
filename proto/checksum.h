/* SPDX-License-Identifier: Apache-2.0
 *
 * XXH3-64 compiled once per instruction set; qr_checksum picks. Only
 * checksum*.c include this.
 */
#ifndef QR_CHECKSUM_H
#define QR_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#include "page.h"

uint64_t qr_checksum_avx2(const void *bytes, size_t n);
uint64_t qr_checksum_avx512(const void *bytes, size_t n);
uint64_t qr_checksum_spans_avx2(const struct qr_span *spans, size_t n);
uint64_t qr_checksum_spans_avx512(const struct qr_span *spans, size_t n);

#ifdef XXH_INLINE_ALL /* the includer's instruction set */
static inline uint64_t checksum_spans(const struct qr_span *spans, size_t n)
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
#endif

#endif
