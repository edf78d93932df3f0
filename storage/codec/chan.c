/* SPDX-License-Identifier: Apache-2.0
 *
 * `chan`: asymmetric integer groups along tokens or along channels
 * (docs/FORMULAS.md). This file walks heads, groups and tokens; the arithmetic
 * is in the kernels. Must not know instruction sets.
 */
#include "kernels.h"

#include <assert.h>
#include <string.h>

#include "proto/packing.h"

static quire_status check(const struct qr_tensor *t, struct qr_error *e)
{
    const struct qr_codec_spec *s = &t->spec;
    if (s->bits != 2 && s->bits != 3 && s->bits != 4 && s->bits != 8)
        return qr_error_set(e, QUIRE_EUNSUPPORTED, "chan with %u bits; it has 2, 3, 4 and 8",
                            s->bits);
    if (s->group != 16 && s->group != 32 && s->group != 64 && s->group != 128)
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "chan with group %u; it has 16, 32, 64 and 128", s->group);
    if (s->axis != QR_AXIS_CHANNEL && s->axis != QR_AXIS_TOKEN)
        return qr_error_set(e, QUIRE_EINVAL, "chan axis %u; it is 1 (channel) or 2 (token)",
                            s->axis);
    const quire_status status = qr_spec_check(s, "chan", e);
    if (status)
        return status;
    if (s->axis == QR_AXIS_CHANNEL && t->tokens % s->group)
        return qr_error_set(e, QUIRE_EINVAL,
                            "%u tokens a page is no multiple of the per-channel group %u",
                            t->tokens, s->group);
    return QUIRE_OK;
}

static size_t pairs_per_row(const struct qr_tensor *t)
{
    return (t->dim + t->spec.group - 1u) / t->spec.group;
}

/** One head's part of a tensor. */
struct part {
    struct qr_rows in;
    uint8_t *codes;
    uint16_t *scales;
};

static void encode_channels(const struct qr_tensor *t, const struct part *p,
                            const uint8_t *raw_bitmap, uint32_t first)
{
    const uint32_t group = t->spec.group;
    const struct qr_channel_group g = {
        .x = p->in.data + first * p->in.token_stride,
        .stride = p->in.token_stride,
        .tokens = group,
        .dim = t->dim,
        .bits = t->spec.bits,
        .raw = raw_bitmap,
        .first = first,
        .codes = p->codes + (size_t)first * qr_row_bytes(t->dim, t->spec.bits),
        .scales = p->scales + (size_t)(first / group) * 2 * t->dim,
    };
    if (t->spec.param[QR_PARAM_FLAGS] & QR_SPEC_HYBRID)
        qr_hybrid_encode_channels(&g);
    else
        qr_chan_kernels()->encode_channels(&g);
}

/** Raw rows are encoded with the others, then cleared. */
static void encode_tokens(const struct qr_tensor *t, const struct part *p,
                          const uint8_t *raw_bitmap, uint32_t first)
{
    const size_t row_bytes = qr_row_bytes(t->dim, t->spec.bits), pairs = pairs_per_row(t);
    const uint32_t left = t->tokens - first;
    const struct qr_token_batch batch = {
        .x = p->in.data + first * p->in.token_stride,
        .stride = p->in.token_stride,
        .count = left < QR_TOKENS_BATCH ? left : QR_TOKENS_BATCH,
        .dim = t->dim,
        .bits = t->spec.bits,
        .group = t->spec.group,
        .codes = p->codes + first * row_bytes,
        .pairs = p->scales + first * pairs * 2,
    };
    if (t->spec.param[QR_PARAM_FLAGS] & QR_SPEC_HYBRID)
        qr_hybrid_encode_tokens(&batch);
    else
        qr_chan_kernels()->encode_tokens(&batch);
    for (uint32_t i = 0; i < batch.count; i++)
        if (qr_page_is_raw(raw_bitmap, first + i)) {
            memset(batch.codes + i * row_bytes, 0, row_bytes);
            memset(batch.pairs + i * pairs * 2, 0, pairs * 4);
        }
}

/** Tokens outside, heads inside: the input of a few tokens is read in whole. */
static void encode(const struct qr_tensor *t, const struct qr_rows *in,
                   const uint8_t *raw_bitmap, uint8_t *codes, uint8_t *scales)
{
    const bool channels = t->spec.axis == QR_AXIS_CHANNEL;
    const uint32_t step = channels ? t->spec.group : QR_TOKENS_BATCH;
    const size_t codes_bytes = qr_row_bytes(t->dim, t->spec.bits) * (size_t)t->tokens;
    const size_t scales_bytes = qr_spec_scales_bytes(&t->spec, t->tokens, 1, t->dim);
    assert(scales_bytes);
    for (uint32_t first = 0; first < t->tokens; first += step)
        for (uint32_t head = 0; head < t->heads; head++) {
            const struct part p = {{in->data + head * in->head_stride, in->token_stride, 0},
                                   codes + head * codes_bytes,
                                   (uint16_t *)(void *)(scales + head * scales_bytes)};
            if (channels)
                encode_channels(t, &p, raw_bitmap, first);
            else
                encode_tokens(t, &p, raw_bitmap, first);
        }
}

/** Rows [first, last) of a head, all in one token group when groups run along tokens. */
static void expand_span(const struct qr_tensor *t, const uint8_t *codes, const uint16_t *scales,
                        uint32_t head, uint32_t first, uint32_t last,
                        const struct qr_expand *to)
{
    const struct qr_chan_kernels *k = qr_chan_kernels();
    const struct qr_row_kernels *rows = qr_row_kernels();
    const size_t row_bytes = qr_row_bytes(t->dim, t->spec.bits);
    const size_t pairs = pairs_per_row(t);
    const bool channels = t->spec.axis == QR_AXIS_CHANNEL;
    _Alignas(64) float wide[2 * QR_DIM_MAX], row[QR_DIM_MAX];
    if (channels)
        rows->widen(scales + (size_t)(first / t->spec.group) * 2 * t->dim, 2 * t->dim, wide);
    for (uint32_t token = first; token < last; token++) {
        if (qr_page_is_raw(to->raw_bitmap, token))
            continue;
        const uint8_t *code = codes + token * row_bytes;
        if (channels)
            k->decode_channels(code, t->dim, t->spec.bits, wide, row);
        else
            k->decode_token(code, t->dim, t->spec.bits, t->spec.group,
                            scales + token * pairs * 2, row);
        const struct qr_emit how = qr_expand_emit(to, token);
        rows->emit(row, t->dim, &how, qr_expand_at(to, token, head));
    }
}

static void expand_head(const struct qr_tensor *t, const uint8_t *codes, const uint16_t *scales,
                        uint32_t head, const struct qr_expand *to)
{
    const uint32_t last = to->first_token + to->token_count;
    const uint32_t step = t->spec.axis == QR_AXIS_CHANNEL ? t->spec.group : QR_PAGE_TOKENS_MAX;
    for (uint32_t first = to->first_token, next; first < last; first = next) {
        next = first - first % step + step;
        next = next < last ? next : last;
        expand_span(t, codes, scales, head, first, next, to);
    }
}

static void expand(const struct qr_tensor *t, const uint8_t *codes, const uint8_t *scales,
                   const struct qr_expand *to)
{
    const struct qr_chan_kernels *k = qr_chan_kernels();
    const size_t codes_bytes = qr_row_bytes(t->dim, t->spec.bits) * (size_t)t->tokens;
    const size_t scales_bytes = qr_spec_scales_bytes(&t->spec, t->tokens, 1, t->dim);
    if (!k->expand_fused || !k->expand_fused(t, codes, scales, to))
        for (uint32_t i = 0; i < to->head_count; i++) {
            const uint32_t head = to->first_head + i;
            expand_head(t, codes + head * codes_bytes,
                        (const uint16_t *)(const void *)(scales + head * scales_bytes), head,
                        to);
        }
    qr_raw_rows_expand(t->heads, t->dim, to);
    qr_row_kernels()->fence();
}

const struct qr_codec_ops qr_codec_chan = {QR_CODEC_CHAN, "chan", check, encode, expand};
