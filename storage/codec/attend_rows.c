/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over FP16 rows (tails): each block of rows is widened and rotated
 * in scratch, then the FP32 kernels run over it. Must not know pages.
 */
#include "attend_kernels.h"

#include <string.h>

struct span {
    uint32_t first, last;
};

struct rows_source {
    struct qr_attend_source base; /* first: what the driver hands back */
    const uint16_t *key, *value;
    size_t key_stride, value_stride;
    const float *rotation;
    uint32_t rotary_dim;
    enum qr_rope_layout layout;
};

/** Rows of keys or of values, where they are and how wide the kernels read them. */
struct rows {
    const uint16_t *data;
    size_t stride;
    uint32_t dim, wide;
    bool rotate;
};

/** Widen, pad with zeros and rotate tokens [at, at + n) into `block`. */
static void load_block(const struct rows_source *s, const struct rows *rows, uint32_t at,
                       uint32_t n, float *block)
{
    for (uint32_t i = 0; i < n; i++) {
        float *to = block + (size_t)i * rows->wide;
        const float *rotation =
            rows->rotate ? s->rotation + (size_t)(at + i) * s->rotary_dim : NULL;
        qr_attend_kernels()->load(rows->data + (at + i) * rows->stride, rows->dim, rotation,
                                  s->rotary_dim, s->layout, to);
        memset(to + rows->dim, 0, (rows->wide - rows->dim) * sizeof(float));
    }
}

/** Run a kernel over tokens [first, last): on the rows themselves where they are whole vectors
 * and need no rotation. */
static void run(const struct rows_source *s, const struct rows *rows,
                const struct qr_attend_part *part, struct span span,
                void (*kernel)(const struct qr_attend_part *, uint32_t, uint32_t,
                               const struct qr_attend_block *))
{
    float *block = (float *)(void *)part->scratch;
    const struct qr_attend_block loaded = {block, rows->wide, false};
    if (!rows->rotate && rows->wide == rows->dim) {
        const struct qr_attend_block own = {rows->data + span.first * rows->stride,
                                            rows->stride, true};
        kernel(part, span.first, span.last - span.first, &own);
        return;
    }
    for (uint32_t at = span.first, n; at < span.last; at += n) {
        n = span.last - at < QR_ATTEND_BLOCK ? span.last - at : QR_ATTEND_BLOCK;
        load_block(s, rows, at, n, block);
        kernel(part, at, n, &loaded);
    }
}

static void scores(const struct qr_attend_source *source, const struct qr_attend_part *part,
                   uint32_t first, uint32_t last)
{
    const struct rows_source *s = (const struct rows_source *)source;
    const struct rows rows = {s->key, s->key_stride, source->key_dim, part->key_dim,
                              s->rotation != NULL};
    run(s, &rows, part, (struct span){first, last}, qr_attend_kernels()->scores);
}

static void add(const struct qr_attend_source *source, const struct qr_attend_part *part,
                uint32_t first, uint32_t last)
{
    const struct rows_source *s = (const struct rows_source *)source;
    const struct rows rows = {s->value, s->value_stride, source->value_dim, part->value_dim,
                              false};
    run(s, &rows, part, (struct span){first, last}, qr_attend_kernels()->add);
}

/* NOLINTNEXTLINE(readability-function-size): attend.h's contract, rows of two strides */
void qr_attend_rows(const uint16_t *key, size_t key_stride, uint32_t key_dim,
                    const uint16_t *value, size_t value_stride, uint32_t value_dim,
                    uint32_t tokens, uint64_t first_position,
                    const struct qr_attend_queries *queries, const float *rotation,
                    uint32_t rotary_dim, enum qr_rope_layout layout, struct qr_attend_acc *acc,
                    void *scratch)
{
    for (uint32_t at = 0, n; at < tokens; at += n) {
        n = tokens - at < QR_PAGE_TOKENS_MAX ? tokens - at : QR_PAGE_TOKENS_MAX;
        const struct rows_source source = {
            .base = {n, key_dim, value_dim, first_position + at, scores, add},
            .key = key + at * key_stride,
            .value = value + at * value_stride,
            .key_stride = key_stride,
            .value_stride = value_stride,
            .rotation = rotation ? rotation + (size_t)at * rotary_dim : NULL,
            .rotary_dim = rotary_dim,
            .layout = layout,
        };
        qr_attend_run(&source.base, queries, acc, scratch);
    }
}
