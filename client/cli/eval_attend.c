/* SPDX-License-Identifier: Apache-2.0
 *
 * One block of queries: attention over the original keys and values once, then over each
 * variant's, compared row by row where a query may look. Must not know pages.
 */
#include "eval_work.h"

#include <math.h>
#include <string.h>

/** One block in hand. */
struct block {
    const struct qr_eval_work *work;
    struct qr_eval_scratch *scratch;
    uint32_t first, rows; /* absolute token of the first query */
    uint32_t columns;     /* tokens that the last query sees, padded */
    const float *query;   /* of the query head in hand, stride query_heads * key_dim */
};

uint32_t qr_eval_blocks(const struct qr_eval_rows *rows)
{
    return (rows->queries + QR_EVAL_BLOCK - 1) / QR_EVAL_BLOCK;
}

/** Tokens of which the query at `position` sees the pages. */
static uint32_t sealed(const struct qr_eval_variant *v, uint32_t position)
{
    const uint32_t length = position + 1;
    if (!v->served)
        return length;
    return length <= v->policy.window
               ? 0
               : (length - v->policy.window) / v->policy.page_tokens * v->policy.page_tokens;
}

static void scores(const struct block *b, const float *key, float *out)
{
    const struct qr_eval_work *w = b->work;
    const uint32_t dim = w->rows->key_dim;
    memset(out, 0, b->rows * w->token_stride * sizeof(*out));
    const struct qr_eval_product product = {
        .rows = b->rows,
        .inner = dim,
        .columns = b->columns,
        .a = b->query,
        .b = key,
        .c = out,
        .a_stride = (size_t)w->rows->query_heads * dim,
        .b_stride = QR_EVAL_PANEL,
        .b_panel = (size_t)QR_EVAL_PANEL * dim,
        .c_stride = w->token_stride,
    };
    w->kernels->multiply(&product);
    const float scale = (float)(1.0 / sqrt(dim));
    for (uint32_t r = 0; r < b->rows; r++)
        for (uint32_t t = 0; t < b->columns; t++)
            out[r * w->token_stride + t] *= scale;
}

/** Add weights of rows [first, first + rows) over tokens [from, to) times values. */
static void add_output(const struct block *b, const float *weight, const float *value,
                       const uint32_t range[4], float *out)
{
    const struct qr_eval_work *w = b->work;
    const uint32_t first = range[0], rows = range[1], from = range[2], to = range[3];
    const struct qr_eval_product product = {
        .rows = rows,
        .inner = to > from ? to - from : 0,
        .columns = (uint32_t)w->value_stride,
        .a = weight + first * w->token_stride + from,
        .b = value + from * w->value_stride,
        .c = out + first * w->value_stride,
        .a_stride = w->token_stride,
        .b_stride = w->value_stride,
        .b_panel = QR_EVAL_PANEL,
        .c_stride = w->value_stride,
    };
    w->kernels->multiply(&product);
}

/** Output of the block; values of pages where `v` has them sealed, else the originals'. */
static void outputs(const struct block *b, const float *weight, const float *encoded,
                    const struct qr_eval_variant *v, float *out)
{
    const struct qr_eval_work *w = b->work;
    memset(out, 0, b->rows * w->value_stride * sizeof(*out));
    if (encoded == NULL || v == NULL || !v->served) {
        const uint32_t all[] = {0, b->rows, 0, b->first + b->rows};
        add_output(b, weight, encoded ? encoded : w->original.value, all, out);
        return;
    }
    for (uint32_t r = 0, next; r < b->rows; r = next) {
        const uint32_t border = sealed(v, b->first + r);
        for (next = r + 1; next < b->rows && sealed(v, b->first + next) == border;)
            next++;
        const uint32_t old[] = {r, next - r, 0, border};
        const uint32_t young[] = {r, next - r, border, b->first + next};
        add_output(b, weight, encoded, old, out);
        add_output(b, weight, w->original.value, young, out);
    }
}

static void softmax(const struct block *b, float *rows)
{
    for (uint32_t r = 0; r < b->rows; r++)
        b->work->kernels->softmax(rows + r * b->work->token_stride, b->first + r + 1,
                                  b->columns);
}

/** Causal entries of two [rows][token_stride]. */
static void compare_causal(const struct block *b, const float *value, const float *reference,
                           struct qr_eval_sum *sum)
{
    for (uint32_t r = 0; r < b->rows; r++)
        b->work->kernels->compare(value + r * b->work->token_stride,
                                  reference + r * b->work->token_stride, b->first + r + 1, sum);
}

static void compare_outputs(const struct block *b, struct qr_eval_sum *sum)
{
    const struct qr_eval_work *w = b->work;
    for (uint32_t r = 0; r < b->rows; r++)
        w->kernels->compare(b->scratch->changed + r * w->value_stride,
                            b->scratch->output + r * w->value_stride, w->rows->value_dim, sum);
}

/** Scores of the variant's keys; those of tokens that are not sealed yet stay. */
static void variant_scores(const struct block *b, const struct qr_eval_variant *v,
                           const float *key)
{
    const struct qr_eval_scratch *s = b->scratch;
    scores(b, key, s->other);
    for (uint32_t r = 0; v->served && r < b->rows; r++) {
        const size_t at = r * b->work->token_stride, border = sealed(v, b->first + r);
        memcpy(s->other + at + border, s->score + at + border,
               (b->first + r + 1 - border) * sizeof(float));
    }
}

static void judge(const struct block *b, uint32_t variant, struct qr_eval_sum *sums)
{
    const struct qr_eval_variant *v = &b->work->variants[variant];
    const struct qr_eval_matrix *m = &b->work->encoded[variant];
    const struct qr_eval_scratch *s = b->scratch;
    const float *weight = s->weight;
    if (m->key != NULL) {
        variant_scores(b, v, m->key);
        compare_causal(b, s->other, s->score, &sums[0]);
        softmax(b, s->other);
        compare_causal(b, s->other, s->weight, &sums[1]);
        outputs(b, s->other, NULL, NULL, s->changed);
        compare_outputs(b, &sums[2]);
        weight = s->other;
    }
    if (m->value != NULL) {
        outputs(b, s->weight, m->value, v, s->changed);
        compare_outputs(b, &sums[3]);
    }
    if (m->key == NULL || m->value == NULL) {
        sums[4] = m->key != NULL ? sums[2] : sums[3];
        return;
    }
    outputs(b, weight, m->value, v, s->changed);
    compare_outputs(b, &sums[4]);
}

void qr_eval_attend_block(void *arg, size_t unit, uint32_t worker)
{
    const struct qr_eval_work *w = arg;
    const struct qr_eval_rows *rows = w->rows;
    const uint32_t blocks = qr_eval_blocks(rows), at = (uint32_t)(unit % blocks);
    const uint32_t group = rows->query_heads / rows->kv_heads;
    const uint32_t query_head = w->head * group + (uint32_t)(unit / blocks);
    const uint32_t skipped = at * QR_EVAL_BLOCK, left = rows->queries - skipped;
    struct block b = {.work = w, .scratch = &w->scratch[worker]};
    b.first = rows->tokens - rows->queries + skipped;
    b.rows = left < QR_EVAL_BLOCK ? left : QR_EVAL_BLOCK;
    b.columns = (b.first + b.rows + QR_EVAL_PAD - 1) / QR_EVAL_PAD * QR_EVAL_PAD;
    b.query = rows->query + ((size_t)skipped * rows->query_heads + query_head) * rows->key_dim;
    scores(&b, w->original.key, b.scratch->score);
    memcpy(b.scratch->weight, b.scratch->score,
           b.rows * w->token_stride * sizeof(*b.scratch->weight));
    softmax(&b, b.scratch->weight);
    outputs(&b, b.scratch->weight, NULL, NULL, b.scratch->output);
    for (uint32_t v = 0; v < w->count; v++)
        judge(&b, v, w->consumed + (unit * w->count + v) * QR_EVAL_CONSUMED);
}
