/* SPDX-License-Identifier: Apache-2.0
 *
 * Endless keys and values: a real sample repeated over tokens, heads, channels and layers.
 * Each repeat after the first has other noise in the three lowest bits of every FP16
 * mantissa (at most 0.7 % of a value), so that no two pages are equal. Row t of layer l is a
 * pure function of (seed, l, t): blocks can be made again for comparison.
 */
#ifndef QR_KV_TILE_H
#define QR_KV_TILE_H

#include "kv_file.h"

struct qr_kv_tile {
    const struct qr_kv_file *kv; /* FP16 */
    uint64_t seed;
};

/** Rows [tokens][heads][dim], contiguous FP16, of keys or else values, from `position` on. */
struct qr_kv_tile_shape {
    uint32_t layer, heads, dim;
    bool key;
};
void qr_kv_tile_rows(const struct qr_kv_tile *tile, const struct qr_kv_tile_shape *shape,
                     uint64_t position, uint32_t tokens, uint16_t *out);

#endif
