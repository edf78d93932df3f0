/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over one page: on the codes where this CPU has kernels for their
 * form, else over blocks that the codec expands into scratch. Raw rows are
 * taken from their section either way. Must not know instruction sets.
 */
#include "attend_kernels.h"

#include <assert.h>
#include <string.h>

struct page_source {
    struct qr_attend_source base; /* first: what the driver hands back */
    const struct qr_page_view *page;
    uint32_t head;
    const float *rotation, *by_channel;
    uint32_t rotary_dim;
};

void qr_attend_rotation_by_channel(const float *rotation, uint32_t tokens, uint32_t rotary_dim,
                                   float *out)
{
    const uint32_t tile = tokens < QR_ATTEND_TILE ? tokens : QR_ATTEND_TILE;
    const struct qr_attend_kernels *k = qr_attend_kernels();
    if (k->tile_rotation && tokens % QR_ATTEND_TILE == 0 && rotary_dim % 4 == 0) {
        k->tile_rotation(rotation, tokens, rotary_dim, out);
        return;
    }
    for (uint32_t first = 0; first < tokens; first += tile)
        for (uint32_t i = 0; i < rotary_dim; i++)
            for (uint32_t t = first; t < first + tile; t++)
                *out++ = rotation[(size_t)t * rotary_dim + i];
}

/** A page that is mostly raw rows gains nothing on the codes. */
static bool few_raw(const struct qr_page_header *h)
{
    return h->raw_rows <= h->tokens / 4;
}

/** Codes times scales are the values themselves: nothing was done to the rows before. */
static bool plain_chan(const struct qr_codec_spec *s)
{
    return s->codec == QR_CODEC_CHAN && !(s->param[QR_PARAM_FLAGS] & ~(uint32_t)QR_SPEC_HYBRID);
}

static bool key_on_codes(const struct qr_page_header *h)
{
    const struct qr_codec_spec *s = &h->key;
    return qr_attend_kernels()->key_codes && plain_chan(s) && s->axis == QR_AXIS_CHANNEL &&
           (s->bits == 2 || s->bits == 4) && s->group >= 32 &&
           h->key_dim * s->bits % 128 == 0 && few_raw(h);
}

static bool value_on_codes(const struct qr_page_header *h)
{
    const struct qr_codec_spec *s = &h->value;
    return qr_attend_kernels()->value_codes && plain_chan(s) && s->axis == QR_AXIS_TOKEN &&
           (s->bits == 2 || s->bits == 4) && h->value_dim * s->bits % 128 == 0 && few_raw(h);
}

/** Index of raw row `token` in the raw-row sections. */
static uint32_t raw_rank(const uint8_t *bitmap, uint32_t token)
{
    uint32_t rank = 0;
    for (uint32_t byte = 0; byte < token / 8; byte++)
        rank += (uint32_t)__builtin_popcount(bitmap[byte]);
    return rank + (uint32_t)__builtin_popcount(bitmap[token / 8] & ((1u << token % 8) - 1u));
}

/** Scores of the raw rows in [first, last), over what the codes gave there. */
static void raw_scores(const struct page_source *s, const struct qr_attend_part *part,
                       uint32_t first, uint32_t last)
{
    const struct qr_page_header *h = s->page->header;
    float *row = (float *)(void *)part->scratch;
    if (!h->raw_rows)
        return;
    memset(row, 0, part->key_dim * sizeof(float));
    for (uint32_t t = first; t < last; t++) {
        if (!qr_page_is_raw(h->raw_bitmap, t))
            continue;
        const size_t at = (size_t)raw_rank(h->raw_bitmap, t) * h->heads + s->head;
        qr_attend_kernels()->load(s->page->key_raw + at * h->key_dim, h->key_dim,
                                  s->rotation ? s->rotation + t * s->rotary_dim : NULL,
                                  s->rotary_dim, (enum qr_rope_layout)h->rope_layout, row);
        qr_attend_kernels()->scores(part, t, 1, &(struct qr_attend_block){row, 0, false});
    }
}

/** Add the raw rows in [first, last). On the codes they count nothing: their per-token scales
 * and minima are 0 (docs/FORMULAS.md). */
static void raw_add(const struct page_source *s, const struct qr_attend_part *part,
                    uint32_t first, uint32_t last)
{
    const struct qr_page_header *h = s->page->header;
    float *row = (float *)(void *)part->scratch;
    if (!h->raw_rows)
        return;
    memset(row, 0, part->value_dim * sizeof(float));
    for (uint32_t t = first; t < last; t++) {
        if (!qr_page_is_raw(h->raw_bitmap, t))
            continue;
        const size_t at = (size_t)raw_rank(h->raw_bitmap, t) * h->heads + s->head;
        qr_attend_kernels()->load(s->page->value_raw + at * h->value_dim, h->value_dim, NULL, 0,
                                  QR_ROPE_HALF, row);
        qr_attend_kernels()->add(part, t, 1, &(struct qr_attend_block){row, 0, false});
    }
}

/** Expand tokens [at, at + n) to FP32 rows of `wide` floats. */
static void expand_block(const struct page_source *s, enum qr_which which, uint32_t at,
                         uint32_t n, float *block, uint32_t wide)
{
    const bool key = which == QR_KEY;
    const struct qr_expand to = {
        .first_token = at,
        .token_count = n,
        .first_head = s->head,
        .head_count = 1,
        .rotation = key ? s->rotation : NULL,
        .rotary_dim = key ? s->rotary_dim : 0,
        .rope_layout = (enum qr_rope_layout)s->page->header->rope_layout,
        .dtype = QR_F32,
        .dst = block,
        .token_stride = wide * sizeof(float),
        .head_stride = wide * sizeof(float),
    };
    qr_page_expand(s->page, which, &to);
}

static void run_blocks(const struct page_source *s, enum qr_which which,
                       const struct qr_attend_part *part, uint32_t first, uint32_t last)
{
    const struct qr_attend_kernels *k = qr_attend_kernels();
    const uint32_t wide = which == QR_KEY ? part->key_dim : part->value_dim;
    float *block = (float *)(void *)part->scratch;
    const struct qr_attend_block rows = {block, wide, false};
    memset(block, 0, QR_ATTEND_BLOCK * wide * sizeof(float)); /* padding stays zero */
    for (uint32_t at = first, n; at < last; at += n) {
        n = last - at < QR_ATTEND_BLOCK ? last - at : QR_ATTEND_BLOCK;
        expand_block(s, which, at, n, block, wide);
        (which == QR_KEY ? k->scores : k->add)(part, at, n, &rows);
    }
}

static void key_scores(const struct page_source *s, const struct qr_attend_part *part,
                       uint32_t first, uint32_t last)
{
    const struct qr_page_header *h = s->page->header;
    const size_t row_bytes = qr_spec_row_bytes(&h->key, h->key_dim);
    const size_t value_bytes = qr_spec_row_bytes(&h->value, h->value_dim);
    const size_t scales_bytes =
        qr_spec_scales_bytes(&h->value, h->tokens, 1, h->value_dim) / h->tokens;
    const struct qr_attend_key_codes key = {
        .codes = s->page->key_codes + s->head * h->tokens * row_bytes,
        .scales = (const uint16_t *)(const void *)s->page->key_scales +
                  (size_t)s->head * (h->tokens / h->key.group) * 2 * h->key_dim,
        .dim = h->key_dim,
        .bits = h->key.bits,
        .group = h->key.group,
        .row_bytes = (uint32_t)row_bytes,
        .rotation = s->rotation,
        .by_channel = s->by_channel,
        .rotary_dim = s->rotation ? s->rotary_dim : 0,
        .layout = (enum qr_rope_layout)h->rope_layout,
        .prefetch = s->page->value_codes + s->head * h->tokens * value_bytes,
        .prefetch_scales =
            scales_bytes ? s->page->value_scales + s->head * h->tokens * scales_bytes : NULL,
        .prefetch_scales_bytes = (uint32_t)scales_bytes,
    };
    qr_attend_kernels()->key_codes(part, &key, first & ~31u, (last + 31u) & ~31u);
    raw_scores(s, part, first, last);
}

static void scores(const struct qr_attend_source *source, const struct qr_attend_part *part,
                   uint32_t first, uint32_t last)
{
    const struct page_source *s = (const struct page_source *)source;
    if (key_on_codes(s->page->header))
        key_scores(s, part, first, last);
    else
        run_blocks(s, QR_KEY, part, first, last);
}

static void add(const struct qr_attend_source *source, const struct qr_attend_part *part,
                uint32_t first, uint32_t last)
{
    const struct page_source *s = (const struct page_source *)source;
    const struct qr_page_header *h = s->page->header;
    if (!value_on_codes(h)) {
        run_blocks(s, QR_VALUE, part, first, last);
        return;
    }
    const size_t row_bytes = qr_spec_row_bytes(&h->value, h->value_dim);
    const uint32_t groups = (h->value_dim + h->value.group - 1u) / h->value.group;
    const struct qr_attend_value_codes value = {
        .codes = s->page->value_codes + s->head * h->tokens * row_bytes,
        .scales = (const uint16_t *)(const void *)s->page->value_scales +
                  (size_t)s->head * h->tokens * groups * 2,
        .dim = h->value_dim,
        .bits = h->value.bits,
        .group = h->value.group,
        .groups = groups,
        .row_bytes = (uint32_t)row_bytes,
    };
    raw_add(s, part, first, last);
    qr_attend_kernels()->value_codes(part, &value, first & ~15u, qr_attend_round16(last));
}

void qr_attend_page(const struct qr_page_view *page, uint32_t head,
                    const struct qr_attend_queries *queries, const float *rotation,
                    uint32_t rotary_dim, struct qr_attend_acc *acc, void *scratch)
{
    const struct qr_page_header *h = page->header;
    assert(head < h->heads && rotary_dim <= h->key_dim);
    const struct page_source source = {
        .base = {h->tokens, h->key_dim, h->value_dim, h->first_position, scores, add},
        .page = page,
        .head = head,
        .rotation = rotation,
        .by_channel = rotation ? queries->rotation_by_channel : NULL,
        .rotary_dim = rotary_dim,
    };
    qr_attend_run(&source.base, queries, acc, scratch);
}
