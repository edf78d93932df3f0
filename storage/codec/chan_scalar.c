/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of `chan`, one code at a time from proto/quant.h and
 * proto/packing.h. Clarity before speed: the vector kernels are tested against it.
 */
#include "kernels.h"

#include <string.h>

#include "proto/packing.h"
#include "proto/quant.h"

struct range {
    uint16_t low, high;
    bool any;
};

static void widen_range(struct range *r, uint16_t x)
{
    r->low = r->any ? qr_quant_minimum(r->low, x) : x;
    r->high = r->any ? qr_quant_maximum(r->high, x) : x;
    r->any = true;
}

static void finish_range(const struct range *r, uint32_t bits, uint16_t *scale,
                         uint16_t *minimum)
{
    *minimum = r->any ? r->low : 0;
    *scale = r->any ? qr_quant_scale(r->low, r->high, bits) : 0;
}

static uint32_t code_of(uint16_t x, uint16_t scale, uint16_t minimum, uint32_t bits)
{
    return qr_quant_code(qr_f16_to_f32(x), qr_f16_to_f32(minimum), qr_quant_reciprocal(scale),
                         qr_quant_top(bits));
}

static void encode_channel(const struct qr_channel_group *g, uint32_t channel)
{
    const size_t row_bytes = qr_row_bytes(g->dim, g->bits);
    uint16_t *scale = g->scales + channel, *minimum = g->scales + g->dim + channel;
    struct range range = {0};
    for (uint32_t t = 0; t < g->tokens; t++)
        if (!qr_page_is_raw(g->raw, g->first + t))
            widen_range(&range, g->x[t * g->stride + channel]);
    finish_range(&range, g->bits, scale, minimum);
    for (uint32_t t = 0; t < g->tokens; t++)
        if (!qr_page_is_raw(g->raw, g->first + t))
            qr_row_put(g->codes + t * row_bytes, g->dim, g->bits, channel,
                       code_of(g->x[t * g->stride + channel], *scale, *minimum, g->bits));
}

static void encode_channels(const struct qr_channel_group *g)
{
    memset(g->codes, 0, (size_t)qr_row_bytes(g->dim, g->bits) * g->tokens);
    for (uint32_t channel = 0; channel < g->dim; channel++)
        encode_channel(g, channel);
}

static void encode_token(const uint16_t *x, uint32_t dim, uint32_t bits, uint32_t group,
                         uint8_t *row, uint16_t *pairs)
{
    memset(row, 0, qr_row_bytes(dim, bits));
    for (uint32_t first = 0; first < dim; first += group, pairs += 2) {
        const uint32_t last = first + group < dim ? first + group : dim;
        struct range range = {0};
        for (uint32_t c = first; c < last; c++)
            widen_range(&range, x[c]);
        finish_range(&range, bits, &pairs[0], &pairs[1]);
        for (uint32_t c = first; c < last; c++)
            qr_row_put(row, dim, bits, c, code_of(x[c], pairs[0], pairs[1], bits));
    }
}

static void encode_tokens(const struct qr_token_batch *b)
{
    const size_t pairs = (b->dim + b->group - 1u) / b->group * 2u;
    for (uint32_t row = 0; row < b->count; row++)
        encode_token(b->x + row * b->stride, b->dim, b->bits, b->group,
                     b->codes + (size_t)row * qr_row_bytes(b->dim, b->bits),
                     b->pairs + row * pairs);
}

static void decode_channels(const uint8_t *row, uint32_t dim, uint32_t bits,
                            const float *scales, float *out)
{
    for (uint32_t c = 0; c < dim; c++)
        out[c] = qr_quant_value(qr_row_get(row, dim, bits, c), scales[c], scales[dim + c]);
}

static void decode_token(const uint8_t *row, uint32_t dim, uint32_t bits, uint32_t group,
                         const uint16_t *pairs, float *out)
{
    for (uint32_t c = 0; c < dim; c++) {
        const uint16_t *pair = pairs + 2 * (c / group);
        out[c] = qr_quant_value(qr_row_get(row, dim, bits, c), qr_f16_to_f32(pair[0]),
                                qr_f16_to_f32(pair[1]));
    }
}

const struct qr_chan_kernels qr_chan_scalar = {encode_channels, encode_tokens, decode_channels,
                                               decode_token, NULL};
