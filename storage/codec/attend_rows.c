/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over FP16 rows (tails): each block of rows is widened and rotated
 * in scratch, then the FP32 kernels run over it. Must not know pages.
 */
#include "attend_kernels.h"

#include <string.h>

struct rows_source {
    struct qr_attend_source base; /* first: what the driver hands back */
    const uint16_t *key, *value;
    size_t key_stride, value_stride;
    const float *rotation;
    uint32_t rotary_dim;
    enum qr_rope_layout layout;
};

/** Zero the padding of a block's rows, which loads leave alone. */
static void clear_padding(float *block, uint32_t dim, uint32_t wide)
{
    if (wide != dim)
        for (uint32_t i = 0; i < QR_ATTEND_BLOCK; i++)
            memset(block + i * wide + dim, 0, (wide - dim) * sizeof(float));
}

static void scores(const struct qr_attend_source *source, const struct qr_attend_part *part,
                   uint32_t first, uint32_t last)
{
    const struct rows_source *s = (const struct rows_source *)source;
    const struct qr_attend_kernels *k = qr_attend_kernels();
    float *block = (float *)(void *)part->scratch;
    clear_padding(block, source->key_dim, part->key_dim);
    for (uint32_t at = first, n; at < last; at += n) {
        n = last - at < QR_ATTEND_BLOCK ? last - at : QR_ATTEND_BLOCK;
        for (uint32_t i = 0; i < n; i++) {
            const float *rotation =
                s->rotation ? s->rotation + (size_t)(at + i) * s->rotary_dim : NULL;
            k->load(s->key + (at + i) * s->key_stride, source->key_dim, rotation, s->rotary_dim,
                    s->layout, block + i * part->key_dim);
        }
        k->scores(part, at, n, block);
    }
}

static void add(const struct qr_attend_source *source, const struct qr_attend_part *part,
                uint32_t first, uint32_t last)
{
    const struct rows_source *s = (const struct rows_source *)source;
    const struct qr_attend_kernels *k = qr_attend_kernels();
    float *block = (float *)(void *)part->scratch;
    clear_padding(block, source->value_dim, part->value_dim);
    for (uint32_t at = first, n; at < last; at += n) {
        n = last - at < QR_ATTEND_BLOCK ? last - at : QR_ATTEND_BLOCK;
        for (uint32_t i = 0; i < n; i++)
            k->load(s->value + (at + i) * s->value_stride, source->value_dim, NULL, 0,
                    s->layout, block + i * part->value_dim);
        k->add(part, at, n, block);
    }
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
