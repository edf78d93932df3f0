/* SPDX-License-Identifier: Apache-2.0
 *
 * The packings that were candidates, as row expanders to FP16 for dim 128 and
 * groups along tokens; only the bench includes this.
 */
#ifndef QR_BENCH_PACKINGS_H
#define QR_BENCH_PACKINGS_H

#include <stddef.h>
#include <stdint.h>

/** Expand 32 rows of 128 codes; rows follow each other, outputs are `stride` elements apart. */
typedef void packing_fn(const uint8_t *codes, const float *scale, const float *minimum,
                        uint16_t *dst, size_t stride);

struct packing {
    const char *name;
    uint32_t bits;
    packing_fn *expand;
};

extern const struct packing packings[];
extern const size_t packing_count;

#endif
