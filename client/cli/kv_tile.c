/* SPDX-License-Identifier: Apache-2.0
 *
 * See kv_tile.h.
 */
#include "kv_tile.h"

#include <string.h>

#define NOISE_BITS 0x0007000700070007u

/** SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/** Four elements a word: a sign or an exponent never changes, so finite stays finite. */
static void add_noise(uint16_t *row, size_t count, uint64_t key)
{
    for (size_t i = 0; i + 4 <= count; i += 4) {
        uint64_t four;
        memcpy(&four, row + i, sizeof(four));
        four ^= mix(key + i) & NOISE_BITS;
        memcpy(row + i, &four, sizeof(four));
    }
}

/** One head of one token: the sample's channels, repeated. */
static void copy_head(const uint16_t *from, uint32_t have, uint16_t *to, uint32_t want)
{
    for (uint32_t c = 0; c < want; c += have)
        memcpy(to + c, from, (want - c < have ? want - c : have) * sizeof(*to));
}

void qr_kv_tile_rows(const struct qr_kv_tile *tile, const struct qr_kv_tile_shape *shape,
                     uint64_t position, uint32_t tokens, uint16_t *out)
{
    const struct qr_kv_layer *layer = &tile->kv->layers[shape->layer % tile->kv->count];
    const struct qr_safetensor *t = shape->key ? layer->key : layer->value;
    const uint32_t heads = (uint32_t)t->shape[1], dim = (uint32_t)t->shape[2];
    const size_t width = (size_t)shape->heads * shape->dim;
    const uint64_t stream = mix(tile->seed ^ (shape->layer * 2u + shape->key));
    for (uint32_t n = 0; n < tokens; n++, out += width) {
        const uint64_t at = position + n, row = at % tile->kv->tokens;
        const uint16_t *from = (const uint16_t *)(const void *)t->data + row * heads * dim;
        for (uint32_t h = 0; h < shape->heads; h++)
            copy_head(from + (size_t)(h % heads) * dim, dim, out + (size_t)h * shape->dim,
                      shape->dim);
        if (at >= tile->kv->tokens)
            add_noise(out, width, mix(stream + at));
    }
}
