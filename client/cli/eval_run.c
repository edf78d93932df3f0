/* SPDX-License-Identifier: Apache-2.0
 *
 * A whole file, layer by layer: rows to FP16, queries rotated, each layer judged. See
 * eval_report.h.
 */
#include "client/client_model.h"
#include "eval_report.h"
#include "eval_threads.h"
#include "output.h"
#include "query.h"
#include "storage/codec/codec.h"

#include <stdlib.h>

struct run {
    const struct qr_kv_file *kv;
    const struct qr_model_file *model;
    const struct qr_eval_variant *variants;
    uint32_t count, threads, tokens, queries;
    const struct qr_model *sealed; /* of a model with a calibration, else NULL */
};

/** Geometry of model layer `number`; NULL when the model has no such layer. */
static const struct quire_layers *model_layer(const struct quire_model *model, uint32_t number)
{
    for (uint32_t i = 0; i < model->layer_runs; i++) {
        if (number < model->layers[i].count)
            return &model->layers[i];
        number -= model->layers[i].count;
    }
    return NULL;
}

static uint32_t count_layers(const struct quire_model *model)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < model->layer_runs; i++)
        count += model->layers[i].count;
    return count;
}

static quire_status convert(const struct qr_safetensor *t, enum quire_dtype dtype,
                            uint32_t tokens, uint32_t layer, uint16_t **out, struct qr_error *e)
{
    const uint32_t heads = (uint32_t)t->shape[1], dim = (uint32_t)t->shape[2];
    const size_t element = dtype == QUIRE_F32 ? 4 : 2, width = (size_t)heads * dim;
    *out = malloc(tokens * width * sizeof(**out));
    if (*out == NULL)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for layer %u", layer);
    const quire_status status =
        qr_rows_convert(t->data, (enum qr_dtype)dtype, width * element, dim * element, tokens,
                        heads, dim, *out, width, dim, e);
    if (status == QUIRE_EVALUE)
        return qr_error_set(e, status,
                            "%s: token %llu, head %u, channel %u is not finite in FP16",
                            t->name, (unsigned long long)e->position, e->head, e->channel);
    return status;
}

static quire_status check_layer(const struct run *run, const struct qr_kv_layer *l,
                                struct qr_error *e)
{
    const uint64_t queries = l->query->shape[1], heads = l->key->shape[1];
    if (queries % heads != 0 || l->query->shape[2] != l->key->shape[2])
        return qr_error_set(e, QUIRE_EINVAL,
                            "layer %u has %llu query heads of %llu channels and %llu KV heads "
                            "of %llu: a multiple, and equal channels expected",
                            l->number, (unsigned long long)queries,
                            (unsigned long long)l->query->shape[2], (unsigned long long)heads,
                            (unsigned long long)l->key->shape[2]);
    if (heads > QR_HEADS_MAX || queries > QR_HEADS_MAX || l->key->shape[2] > QR_DIM_MAX ||
        l->value->shape[2] > QR_DIM_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "layer %u: at most %d heads of %d channels",
                            l->number, QR_HEADS_MAX, QR_DIM_MAX);
    (void)run;
    return QUIRE_OK;
}

static quire_status take_rope(const struct run *run, uint32_t index, struct qr_rope *rope,
                              enum quire_rope_stored *stored, struct qr_error *e)
{
    const struct quire_model *model = &run->model->model;
    const uint32_t number = qr_kv_model_layer(run->kv, index, count_layers(model));
    const struct quire_layers *layer = model_layer(model, number);
    if (layer == NULL)
        return qr_error_set(e, QUIRE_EINVAL, "the model has %u layers, the file has layer %u",
                            count_layers(model), number);
    *stored = layer->rope_stored;
    if (*stored == QUIRE_ROPE_NONE)
        return QUIRE_OK;
    if (layer->rope >= model->rope_count)
        return qr_error_set(e, QUIRE_EINVAL, "layer %u: RoPE %u of %u", number, layer->rope,
                            model->rope_count);
    const quire_status status = qr_model_file_rope(&model->ropes[layer->rope], rope, e);
    if (status == QUIRE_OK && rope->rotary_dim > run->kv->layers[index].key->shape[2])
        return qr_error_set(e, QUIRE_EINVAL, "layer %u: rotary_dim %u, keys have %llu channels",
                            number, rope->rotary_dim,
                            (unsigned long long)run->kv->layers[index].key->shape[2]);
    return status;
}

static quire_status judge_layer(const struct run *run, uint32_t index,
                                struct qr_eval_layer_result *out, struct qr_error *e)
{
    const struct qr_kv_layer *l = &run->kv->layers[index];
    static _Thread_local struct qr_rope rope;
    enum quire_rope_stored stored = QUIRE_ROPE_NONE;
    uint16_t *key = NULL, *value = NULL;
    out->model_layer = qr_kv_model_layer(run->kv, index, count_layers(&run->model->model));
    quire_status status = check_layer(run, l, e);
    if (status == QUIRE_OK)
        status = take_rope(run, index, &rope, &stored, e);
    if (status != QUIRE_OK)
        return status;
    struct qr_eval_rows rows = {
        .tokens = run->tokens,
        .queries = run->queries,
        .layer = qr_kv_model_layer(run->kv, index, count_layers(&run->model->model)),
        .calibration = run->sealed ? &run->sealed->calibration : NULL};
    rows.query_heads = (uint32_t)l->query->shape[1];
    rows.kv_heads = (uint32_t)l->key->shape[1];
    rows.key_dim = (uint32_t)l->key->shape[2];
    rows.value_dim = (uint32_t)l->value->shape[2];
    rows.rope = stored == QUIRE_ROPE_PRE ? &rope : NULL;
    float *query =
        malloc((size_t)run->queries * rows.query_heads * rows.key_dim * sizeof(*query));
    out->number = l->number;
    out->kv_heads = rows.kv_heads;
    out->cells = calloc((size_t)run->count * rows.kv_heads, sizeof(*out->cells));
    out->bytes = calloc(run->count, sizeof(*out->bytes));
    if (query == NULL || out->cells == NULL || out->bytes == NULL)
        status = qr_error_set(e, QUIRE_ENOMEM, "no memory for layer %u", l->number);
    if (status == QUIRE_OK)
        status = convert(l->key, run->kv->dtype, run->tokens, l->number, &key, e);
    if (status == QUIRE_OK)
        status = convert(l->value, run->kv->dtype, run->tokens, l->number, &value, e);
    if (status == QUIRE_OK) {
        const uint32_t first = run->tokens - run->queries;
        qr_query_rows(l->query, run->kv->dtype, first, run->queries, first,
                      stored != QUIRE_ROPE_NONE ? &rope : NULL, query);
        rows.key = key;
        rows.value = value;
        rows.query = query;
        status = qr_eval_layer(&rows, run->variants, run->count, run->threads, out->cells,
                               out->bytes, e);
    }
    free(key);
    free(value);
    free(query);
    return status;
}

/** As many tokens as fill whole pages of every variant. */
static uint32_t whole_pages(const struct qr_kv_file *kv, const struct qr_eval_variant *variants,
                            uint32_t count)
{
    uint32_t page = 16;
    for (uint32_t v = 0; v < count; v++)
        page = variants[v].policy.page_tokens > page ? variants[v].policy.page_tokens : page;
    const uint64_t most = kv->tokens < QR_POSITION_MAX ? kv->tokens : QR_POSITION_MAX;
    return (uint32_t)(most / page * page);
}

/* NOLINTNEXTLINE(readability-function-size): that of eval_report.h, and the sealed model */
static quire_status run_sealed(const struct qr_kv_file *kv, const struct qr_model_file *model,
                               const struct qr_model *sealed,
                               const struct qr_eval_options *options,
                               const struct qr_eval_variant *variants, uint32_t count,
                               FILE *progress, struct qr_eval_report *out, struct qr_error *e)
{
    const uint32_t tokens = whole_pages(kv, variants, count);
    const bool all = options->queries == 0 || options->queries > tokens;
    const struct run run = {kv,
                            model,
                            variants,
                            count,
                            options->threads ? options->threads : qr_eval_threads(),
                            tokens,
                            all ? tokens : options->queries,
                            sealed};
    struct qr_progress bar;
    quire_status status = QUIRE_OK;
    const double start = qr_seconds();
    *out = (struct qr_eval_report){.tokens = tokens, .queries = run.queries};
    out->file_tokens = kv->tokens;
    out->variants = variants;
    out->variant_count = count;
    out->layer_count = kv->count;
    if (tokens == 0)
        return qr_error_set(e, QUIRE_EINVAL, "%llu tokens do not fill a page",
                            (unsigned long long)kv->tokens);
    out->layers = calloc(kv->count, sizeof(*out->layers));
    if (out->layers == NULL)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for %u layers", kv->count);
    qr_progress_begin(&bar, progress, "layers", kv->count);
    for (uint32_t i = 0; i < kv->count && status == QUIRE_OK; i++) {
        qr_progress_update(&bar, i);
        status = judge_layer(&run, i, &out->layers[i], e);
    }
    qr_progress_end(&bar);
    out->seconds = qr_seconds() - start;
    return status;
}

/* Only a calibration needs the model's fingerprint, so only then must the model be whole. */
quire_status qr_eval_run(const struct qr_kv_file *kv, const struct qr_model_file *model,
                         const struct qr_eval_options *options,
                         const struct qr_eval_variant *variants, uint32_t count, FILE *progress,
                         struct qr_eval_report *out, struct qr_error *e)
{
    struct qr_model *sealed = NULL;
    quire_status status = QUIRE_OK;
    if (model->model.calibration_bytes > 0) {
        sealed = malloc(sizeof(*sealed));
        status = sealed ? qr_client_model_from(&model->model, sealed, e)
                        : qr_error_set(e, QUIRE_ENOMEM, "no memory for the model");
    }
    if (status == QUIRE_OK)
        status = run_sealed(kv, model, sealed, options, variants, count, progress, out, e);
    free(sealed);
    return status;
}

void qr_eval_report_free(struct qr_eval_report *report)
{
    for (uint32_t i = 0; report->layers != NULL && i < report->layer_count; i++) {
        free(report->layers[i].cells);
        free(report->layers[i].bytes);
    }
    free(report->layers);
    report->layers = NULL;
}
