/* SPDX-License-Identifier: Apache-2.0
 *
 * One layer through its steps: rotate, encode the pages of every variant, and for each KV head
 * expand them, compare what is stored, attend. See eval_layer.h.
 */
#include "eval_threads.h"
#include "eval_work.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN 64u

void *qr_eval_get(size_t count, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total) || total > SIZE_MAX - ALIGN)
        return NULL;
    void *p = aligned_alloc(ALIGN, (total + ALIGN) / ALIGN * ALIGN);
    if (p != NULL)
        memset(p, 0, total);
    return p;
}

uint32_t qr_eval_pages(const struct qr_eval_work *w, uint32_t variant)
{
    return w->rows->tokens / w->variants[variant].policy.page_tokens;
}

/** Most pages of any variant. */
uint32_t qr_eval_most_pages(const struct qr_eval_work *w)
{
    uint32_t most = 0;
    for (uint32_t v = 0; v < w->count; v++)
        most = qr_eval_pages(w, v) > most ? qr_eval_pages(w, v) : most;
    return most;
}

static void identity(const struct qr_eval_work *w, uint32_t variant, uint32_t page,
                     struct qr_page_identity *id)
{
    const struct qr_eval_rows *rows = w->rows;
    const struct qr_policy *policy = &w->variants[variant].policy;
    *id = (struct qr_page_identity){
        .layer = rows->layer,
        .heads = (uint16_t)rows->kv_heads,
        .key_dim = (uint16_t)rows->key_dim,
        .value_dim = (uint16_t)rows->value_dim,
        .page_tokens = policy->page_tokens,
        .first_position = (uint64_t)page * policy->page_tokens,
    };
    qr_policy_specs(policy, rows->layer, &id->key, &id->value);
    if (rows->calibration && id->key.codec == QR_CODEC_NUQ)
        id->key_levels = qr_calibration_levels(rows->calibration, rows->layer, 0, id->key.bits);
    if (rows->calibration && id->value.codec == QR_CODEC_NUQ)
        id->value_levels =
            qr_calibration_levels(rows->calibration, rows->layer, 1, id->value.bits);
}

/** The FP16 keys that a variant encodes, from `token` on. */
struct qr_rows qr_eval_key_rows(const struct qr_eval_work *w, const struct qr_eval_variant *v,
                                uint32_t token)
{
    const struct qr_eval_rows *rows = w->rows;
    const size_t stride = (size_t)rows->kv_heads * rows->key_dim;
    const uint16_t *data = v != NULL && v->after_rope && w->turned ? w->turned : rows->key;
    return (struct qr_rows){data + token * stride, stride, rows->key_dim};
}

struct qr_rows qr_eval_value_rows(const struct qr_eval_work *w, uint32_t token)
{
    const size_t stride = (size_t)w->rows->kv_heads * w->rows->value_dim;
    return (struct qr_rows){w->rows->value + token * stride, stride, w->rows->value_dim};
}

/** How keys from `token` on are rotated when they are expanded. */
void qr_eval_rotate(const struct qr_eval_work *w, uint32_t token, struct qr_expand *to)
{
    if (w->rotation == NULL)
        return;
    to->rotation = w->rotation + (size_t)token * w->rows->rope->rotary_dim;
    to->rotary_dim = w->rows->rope->rotary_dim;
    to->rope_layout = w->rows->rope->layout;
}

static quire_status turn_keys(struct qr_eval_work *w, struct qr_error *e)
{
    const struct qr_eval_rows *rows = w->rows;
    bool wanted = false;
    if (rows->rope == NULL)
        return QUIRE_OK;
    w->rotation = qr_eval_get((size_t)rows->tokens * rows->rope->rotary_dim, sizeof(float));
    if (w->rotation == NULL)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for rotations");
    qr_rotation_make(rows->rope, 0, rows->tokens, w->rotation);
    for (uint32_t v = 0; v < w->count; v++)
        wanted |= w->variants[v].after_rope;
    if (!wanted)
        return QUIRE_OK;
    const struct qr_rows in = qr_eval_key_rows(w, NULL, 0);
    w->turned = qr_eval_get((size_t)rows->tokens * in.token_stride, sizeof(uint16_t));
    if (w->turned == NULL)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for rotated keys");
    struct qr_expand to = {.token_count = rows->tokens,
                           .head_count = rows->kv_heads,
                           .dtype = QR_F16,
                           .dst = w->turned,
                           .token_stride = 2 * in.token_stride,
                           .head_stride = 2 * in.head_stride};
    qr_eval_rotate(w, 0, &to);
    qr_rows_expand(&in, rows->tokens, rows->kv_heads, rows->key_dim, &to);
    return QUIRE_OK;
}

/* ---- pages ------------------------------------------------------------------------------ */

static quire_status allocate_pages(struct qr_eval_work *w, struct qr_error *e)
{
    w->pages = qr_eval_get(w->count, sizeof(*w->pages));
    for (uint32_t v = 0; v < w->count && w->pages != NULL; v++) {
        struct qr_page_identity id;
        identity(w, v, 0, &id);
        quire_status status = qr_policy_check(&w->variants[v].policy, e);
        if (status == QUIRE_OK)
            status = qr_codec_check_encode(&id, e);
        if (status != QUIRE_OK)
            return status;
        w->pages[v] = qr_eval_get(qr_eval_pages(w, v), sizeof(**w->pages));
        if (w->pages[v] == NULL)
            return qr_error_set(e, QUIRE_ENOMEM, "no memory for pages");
        for (uint32_t p = 0; p < qr_eval_pages(w, v); p++) {
            identity(w, v, p, &id);
            w->pages[v][p] = qr_eval_get(qr_page_bytes_max(&id, &w->variants[v].policy), 1);
            if (w->pages[v][p] == NULL)
                return qr_error_set(e, QUIRE_ENOMEM, "no memory for pages");
        }
    }
    return w->pages ? QUIRE_OK : qr_error_set(e, QUIRE_ENOMEM, "no memory for pages");
}

/** Encodings that were checked before cannot fail; one that does leaves a page of zeros, which
 * count_bytes refuses. */
static void encode_unit(void *arg, size_t unit, uint32_t worker)
{
    struct qr_eval_work *w = arg;
    const uint32_t most = qr_eval_most_pages(w);
    const uint32_t variant = (uint32_t)(unit / most), page = (uint32_t)(unit % most);
    const struct qr_eval_variant *v = &w->variants[variant];
    struct qr_page_identity id;
    size_t bytes;
    (void)worker;
    if (page >= qr_eval_pages(w, variant))
        return;
    identity(w, variant, page, &id);
    const uint32_t token = page * v->policy.page_tokens;
    const struct qr_rows key = qr_eval_key_rows(w, v, token),
                         value = qr_eval_value_rows(w, token);
    (void)qr_page_encode(&id, &v->policy, &key, &value, w->pages[variant][page],
                         qr_page_bytes_max(&id, &v->policy), &bytes, NULL);
}

void qr_eval_open_page(const struct qr_eval_work *w, uint32_t variant, uint32_t page,
                       struct qr_page_view *view)
{
    const struct qr_page_header *h = (const void *)w->pages[variant][page];
    *view = (struct qr_page_view){0};
    if (qr_page_open(h, h->page_bytes, view, NULL) != QUIRE_OK)
        view->header = NULL;
}

static void add_sections(const struct qr_page_header *h, struct qr_eval_bytes *sum)
{
    sum->page += h->page_bytes;
    for (uint16_t i = 0; i < h->section_count; i++) {
        const struct qr_page_section *s = &h->sections[i];
        const bool key = s->type == QR_SECTION_KEY_CODES || s->type == QR_SECTION_KEY_SCALES ||
                         s->type == QR_SECTION_KEY_RAW;
        if (key)
            sum->key += s->bytes;
        else if (s->type != QR_SECTION_ROW_DIGESTS)
            sum->value += s->bytes;
    }
}

static quire_status count_bytes(const struct qr_eval_work *w, struct qr_eval_bytes *bytes,
                                struct qr_error *e)
{
    const struct qr_eval_rows *rows = w->rows;
    for (uint32_t v = 0; v < w->count; v++) {
        bytes[v] = (struct qr_eval_bytes){0};
        bytes[v].key_elements = (uint64_t)rows->tokens * rows->kv_heads * rows->key_dim;
        bytes[v].value_elements = (uint64_t)rows->tokens * rows->kv_heads * rows->value_dim;
        for (uint32_t p = 0; p < qr_eval_pages(w, v); p++) {
            struct qr_page_view view;
            qr_eval_open_page(w, v, p, &view);
            if (view.header == NULL)
                return qr_error_set(e, QUIRE_EINTERNAL, "%s: page %u of layer %u is not valid",
                                    w->variants[v].name, p, rows->layer);
            add_sections(view.header, &bytes[v]);
        }
    }
    return QUIRE_OK;
}

/* ---- the layer -------------------------------------------------------------------------- */

static quire_status allocate_matrix(const struct qr_eval_work *w, bool key, bool value,
                                    struct qr_eval_matrix *out)
{
    const size_t panels = (w->rows->tokens + QR_EVAL_PANEL - 1) / QR_EVAL_PANEL;
    if (key)
        out->key = qr_eval_get(panels * QR_EVAL_PANEL * w->rows->key_dim, sizeof(float));
    if (value)
        out->value = qr_eval_get(w->rows->tokens * w->value_stride, sizeof(float));
    return (!key || out->key) && (!value || out->value) ? QUIRE_OK : QUIRE_ENOMEM;
}

static quire_status allocate_scratch(const struct qr_eval_work *w, struct qr_eval_scratch *s)
{
    const size_t matrix = QR_EVAL_BLOCK * w->token_stride,
                 output = QR_EVAL_BLOCK * w->value_stride;
    const uint32_t dim =
        w->rows->key_dim > w->rows->value_dim ? w->rows->key_dim : w->rows->value_dim;
    const size_t page = (size_t)QR_PAGE_TOKENS_MAX * dim;
    s->score = qr_eval_get(matrix, sizeof(float));
    s->weight = qr_eval_get(matrix, sizeof(float));
    s->other = qr_eval_get(matrix, sizeof(float));
    s->output = qr_eval_get(output, sizeof(float));
    s->changed = qr_eval_get(output, sizeof(float));
    s->stored = qr_eval_get(page, sizeof(float));
    s->original = qr_eval_get(page, sizeof(float));
    const bool all = s->score && s->weight && s->other && s->output && s->changed &&
                     s->stored && s->original;
    return all ? QUIRE_OK : QUIRE_ENOMEM;
}

static quire_status allocate(struct qr_eval_work *w)
{
    const struct qr_eval_rows *rows = w->rows;
    const size_t units = (size_t)rows->query_heads / rows->kv_heads * qr_eval_blocks(rows);
    w->encoded = qr_eval_get(w->count, sizeof(*w->encoded));
    w->scratch = qr_eval_get(w->threads, sizeof(*w->scratch));
    w->stored = qr_eval_get((size_t)w->count * qr_eval_most_pages(w) * 2, sizeof(*w->stored));
    w->consumed = qr_eval_get(units * w->count * QR_EVAL_CONSUMED, sizeof(*w->consumed));
    if (!w->encoded || !w->scratch || !w->stored || !w->consumed)
        return QUIRE_ENOMEM;
    quire_status status = allocate_matrix(w, true, true, &w->original);
    for (uint32_t v = 0; v < w->count && status == QUIRE_OK; v++)
        status =
            allocate_matrix(w, w->variants[v].policy.key.codec != QR_CODEC_RAW,
                            w->variants[v].policy.value.codec != QR_CODEC_RAW, &w->encoded[v]);
    for (uint32_t t = 0; t < w->threads && status == QUIRE_OK; t++)
        status = allocate_scratch(w, &w->scratch[t]);
    return status;
}

static void release(struct qr_eval_work *w)
{
    for (uint32_t v = 0; v < w->count && w->pages != NULL; v++) {
        for (uint32_t p = 0; w->pages[v] != NULL && p < qr_eval_pages(w, v); p++)
            free(w->pages[v][p]);
        free(w->pages[v]);
    }
    for (uint32_t v = 0; v < w->count && w->encoded != NULL; v++) {
        free(w->encoded[v].key);
        free(w->encoded[v].value);
    }
    for (uint32_t t = 0; t < w->threads && w->scratch != NULL; t++) {
        const struct qr_eval_scratch *s = &w->scratch[t];
        float *const owned[] = {s->score,   s->weight, s->other,   s->output,
                                s->changed, s->stored, s->original};
        for (size_t i = 0; i < sizeof(owned) / sizeof(owned[0]); i++)
            free(owned[i]);
    }
    void *const owned[] = {w->turned,         w->rotation, w->pages,
                           w->encoded,        w->scratch,  w->original.key,
                           w->original.value, w->stored,   w->consumed};
    for (size_t i = 0; i < sizeof(owned) / sizeof(owned[0]); i++)
        free(owned[i]);
}

quire_status qr_eval_layer(const struct qr_eval_rows *rows,
                           const struct qr_eval_variant *variants, uint32_t count,
                           uint32_t threads, struct qr_eval_cell *cells,
                           struct qr_eval_bytes *bytes, struct qr_error *e)
{
    struct qr_eval_work w = {.rows = rows, .variants = variants, .kernels = qr_eval_kernels()};
    w.count = count;
    w.threads = threads;
    w.token_stride = (rows->tokens + QR_EVAL_PAD - 1) / QR_EVAL_PAD * QR_EVAL_PAD;
    w.value_stride = (rows->value_dim + QR_EVAL_PAD - 1) / QR_EVAL_PAD * QR_EVAL_PAD;
    memset(cells, 0, (size_t)count * rows->kv_heads * sizeof(*cells));
    quire_status status = allocate_pages(&w, e);
    if (status == QUIRE_OK)
        status = turn_keys(&w, e);
    if (status == QUIRE_OK) {
        qr_eval_parallel(threads, (size_t)count * qr_eval_most_pages(&w), encode_unit, &w);
        status = count_bytes(&w, bytes, e);
    }
    if (status == QUIRE_OK) {
        status = allocate(&w);
        if (status != QUIRE_OK)
            qr_error_set(e, status, "no memory for %u encodings of %u tokens", count,
                         rows->tokens);
    }
    for (uint32_t head = 0; head < rows->kv_heads && status == QUIRE_OK; head++)
        qr_eval_head(&w, head, cells);
    release(&w);
    return status;
}
