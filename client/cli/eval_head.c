/* SPDX-License-Identifier: Apache-2.0
 *
 * One KV head of a layer: the originals and every variant's pages to FP32, what is stored
 * compared, all blocks of queries, and the sums put together in a fixed order.
 */
#include "eval_threads.h"
#include "eval_work.h"

#include <string.h>

static float *key_at(const struct qr_eval_work *w, float *matrix, uint32_t token)
{
    return matrix + (size_t)(token / QR_EVAL_PANEL) * QR_EVAL_PANEL * w->rows->key_dim +
           token % QR_EVAL_PANEL;
}

/** Rows [tokens][dim] into the panels of a matrix. */
static void transpose(const struct qr_eval_work *w, const float *rows, uint32_t first,
                      uint32_t tokens, float *matrix)
{
    const uint32_t dim = w->rows->key_dim;
    for (uint32_t t = 0; t < tokens; t++) {
        float *out = key_at(w, matrix, first + t);
        for (uint32_t d = 0; d < dim; d++)
            out[(size_t)d * QR_EVAL_PANEL] = rows[(size_t)t * dim + d];
    }
}

/** Where one head's rows go: [count][stride] FP32 from `token` on of a page or of rows. */
static struct qr_expand into(const struct qr_eval_work *w, uint32_t count, float *dst,
                             size_t stride)
{
    return (struct qr_expand){.token_count = count,
                              .first_head = w->head,
                              .head_count = 1,
                              .dtype = QR_F32,
                              .dst = dst,
                              .token_stride = stride * sizeof(float),
                              .head_stride = stride * sizeof(float)};
}

/** The original rows of the head in FP32: keys (those that `v` encodes) or values. */
static void widen(const struct qr_eval_work *w, const struct qr_rows *in, uint32_t dim,
                  struct qr_expand *to)
{
    struct qr_rows head = *in;
    head.data += (size_t)w->head * in->head_stride;
    to->first_head = 0;
    qr_rows_expand(&head, to->token_count, 1, dim, to);
}

static void expand_keys(struct qr_eval_work *w, uint32_t variant, uint32_t page,
                        const struct qr_page_view *view, const struct qr_eval_scratch *r)
{
    const struct qr_eval_variant *v = &w->variants[variant];
    const uint32_t count = v->policy.page_tokens, first = page * count, dim = w->rows->key_dim;
    const struct qr_rows in = qr_eval_key_rows(w, v, first);
    struct qr_expand to = into(w, count, r->stored, dim);
    qr_page_expand(view, QR_KEY, &to);
    struct qr_expand plain = into(w, count, r->original, dim);
    widen(w, &in, dim, &plain);
    w->kernels->compare(r->stored, r->original, count * dim,
                        &w->stored[((size_t)variant * qr_eval_most_pages(w) + page) * 2]);
    if (!v->after_rope && w->rotation != NULL) {
        qr_eval_rotate(w, first, &to);
        qr_page_expand(view, QR_KEY, &to);
    }
    transpose(w, r->stored, first, count, w->encoded[variant].key);
}

static void expand_values(struct qr_eval_work *w, uint32_t variant, uint32_t page,
                          const struct qr_page_view *view, const struct qr_eval_scratch *r)
{
    const uint32_t count = w->variants[variant].policy.page_tokens, first = page * count;
    const uint32_t dim = w->rows->value_dim;
    const struct qr_rows in = qr_eval_value_rows(w, first);
    struct qr_expand to = into(w, count, r->stored, dim);
    qr_page_expand(view, QR_VALUE, &to);
    struct qr_expand plain = into(w, count, r->original, dim);
    widen(w, &in, dim, &plain);
    w->kernels->compare(r->stored, r->original, count * dim,
                        &w->stored[((size_t)variant * qr_eval_most_pages(w) + page) * 2 + 1]);
    for (uint32_t t = 0; t < count; t++)
        memcpy(w->encoded[variant].value + (size_t)(first + t) * w->value_stride,
               r->stored + (size_t)t * dim, dim * sizeof(float));
}

static void expand_unit(void *arg, size_t unit, uint32_t worker)
{
    struct qr_eval_work *w = arg;
    const uint32_t most = qr_eval_most_pages(w);
    const uint32_t variant = (uint32_t)(unit / most), page = (uint32_t)(unit % most);
    struct qr_page_view view;
    if (page >= qr_eval_pages(w, variant))
        return;
    const struct qr_eval_scratch *r = &w->scratch[worker];
    qr_eval_open_page(w, variant, page, &view);
    if (w->encoded[variant].key != NULL)
        expand_keys(w, variant, page, &view, r);
    if (w->encoded[variant].value != NULL)
        expand_values(w, variant, page, &view, r);
}

/** The originals of the head, rotated. */
static void expand_originals(struct qr_eval_work *w)
{
    const uint32_t tokens = w->rows->tokens, step = 16;
    for (uint32_t first = 0; first < tokens; first += step) {
        struct qr_rows in = qr_eval_key_rows(w, NULL, first);
        struct qr_expand to = into(w, step, w->scratch[0].stored, w->rows->key_dim);
        qr_eval_rotate(w, first, &to);
        widen(w, &in, w->rows->key_dim, &to);
        transpose(w, w->scratch[0].stored, first, step, w->original.key);
        in = qr_eval_value_rows(w, first);
        to = into(w, step, w->original.value + first * w->value_stride, w->value_stride);
        widen(w, &in, w->rows->value_dim, &to);
    }
}

static void gather(const struct qr_eval_work *w, size_t units, struct qr_eval_cell *cells)
{
    static const enum qr_eval_quantity quantity[QR_EVAL_CONSUMED] = {
        QR_EVAL_KEY_SCORE, QR_EVAL_KEY_SOFTMAX, QR_EVAL_KEY_OUTPUT, QR_EVAL_VALUE_OUTPUT,
        QR_EVAL_BOTH_OUTPUT};
    for (uint32_t v = 0; v < w->count; v++) {
        struct qr_eval_cell *cell = &cells[v * w->rows->kv_heads + w->head];
        for (uint32_t p = 0; p < qr_eval_pages(w, v); p++) {
            const struct qr_eval_sum *s =
                w->stored + ((size_t)v * qr_eval_most_pages(w) + p) * 2;
            qr_eval_sum_merge(&cell->sum[QR_EVAL_KEY_STORED], &s[0]);
            qr_eval_sum_merge(&cell->sum[QR_EVAL_VALUE_STORED], &s[1]);
        }
        for (size_t unit = 0; unit < units; unit++)
            for (uint32_t i = 0; i < QR_EVAL_CONSUMED; i++)
                qr_eval_sum_merge(&cell->sum[quantity[i]],
                                  &w->consumed[(unit * w->count + v) * QR_EVAL_CONSUMED + i]);
    }
}

void qr_eval_head(struct qr_eval_work *w, uint32_t head, struct qr_eval_cell *cells)
{
    const uint32_t pages = qr_eval_most_pages(w);
    const size_t units =
        (size_t)w->rows->query_heads / w->rows->kv_heads * qr_eval_blocks(w->rows);
    w->head = head;
    memset(w->stored, 0, (size_t)w->count * pages * 2 * sizeof(*w->stored));
    memset(w->consumed, 0, units * w->count * QR_EVAL_CONSUMED * sizeof(*w->consumed));
    expand_originals(w);
    qr_eval_parallel(w->threads, (size_t)w->count * pages, expand_unit, w);
    qr_eval_parallel(w->threads, units, qr_eval_attend_block, w);
    gather(w, units, cells);
}
