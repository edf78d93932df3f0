/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of `quire tune`. Errors of keys and of values are taken as independent: their
 * squares add up. See tune.h.
 */
#include "tune.h"

#include "proto/spec_text.h"
#include "storage/codec/codec.h"
#include "tune_search.h"

#include <stdlib.h>
#include <string.h>

/* What is tried when nobody says otherwise; a codec that this build has not is left out. */
static const char *const key_standard[] = {
    "chan:bits=%u,group=32",       "chan:bits=%u,group=64",
    "chan:bits=%u,group=128",      "lm:bits=%u",
    "lm:bits=%u,center",           "rot:bits=%u,group=32",
    "rot:bits=%u,group=64,center", "chan:bits=%u,group=32,axis=token",
};
static const char *const value_standard[] = {
    "chan:bits=%u,group=32",
    "chan:bits=%u,group=64",
    "chan:bits=%u,group=32,axis=channel",
    "chan:bits=%u,group=128,axis=channel",
    "lm:bits=%u",
    "lm:bits=%u,center",
    "rot:bits=%u,group=32",
    "rot:bits=%u,group=64",
};

static void add_candidate(struct qr_tune_side *side, const struct qr_codec_spec *spec)
{
    for (uint32_t i = 0; i < side->count; i++)
        if (memcmp(&side->specs[i], spec, sizeof(*spec)) == 0)
            return;
    if (side->count < QR_TUNE_CANDIDATES_MAX)
        side->specs[side->count++] = *spec;
}

static int add_given(struct qr_cli *cli, struct qr_tune_side *side)
{
    for (size_t i = 0; i < side->given.count; i++) {
        struct qr_codec_spec spec;
        struct qr_error e = {0};
        if (qr_spec_parse(side->given.items[i], side->key, &spec, &e) != QUIRE_OK)
            return qr_cli_fail_usage(cli, "--%s-codec %s: %s", side->key ? "key" : "value",
                                     side->given.items[i], e.text);
        add_candidate(side, &spec);
    }
    return QR_EXIT_OK;
}

/** Whether the file's layers can be encoded so: some codecs want certain dims or heads. */
static bool fits(const struct qr_tune *job, const struct qr_tune_side *side,
                 const struct qr_codec_spec *spec)
{
    struct qr_page_identity id = {
        .page_tokens = (uint16_t)job->page, .key = job->policy.key, .value = job->policy.value};
    *(side->key ? &id.key : &id.value) = *spec;
    for (uint32_t i = 0; i < job->kv.count; i++) {
        const struct qr_kv_layer *l = &job->kv.layers[i];
        id.heads = (uint16_t)l->key->shape[1];
        id.key_dim = (uint16_t)l->key->shape[2];
        id.value_dim = (uint16_t)l->value->shape[2];
        if (qr_codec_check(&id, NULL) != QUIRE_OK)
            return false;
    }
    return true;
}

static void add_standard(const struct qr_tune *job, struct qr_tune_side *side)
{
    static const uint32_t widths[] = {2, 3, 4, 8};
    const char *const *list = side->key ? key_standard : value_standard;
    const size_t count = side->key ? sizeof(key_standard) / sizeof(key_standard[0])
                                   : sizeof(value_standard) / sizeof(value_standard[0]);
    struct qr_codec_spec spec;
    for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++)
        for (size_t i = 0; i < count; i++) {
            char text[QR_SPEC_TEXT_MAX], *at;
            snprintf(text, sizeof(text), "%s", list[i]);
            at = strstr(text, "%u");
            at[0] = (char)('0' + widths[w]);
            memmove(at + 1, at + 2, strlen(at + 2) + 1);
            if (qr_spec_parse(text, side->key, &spec, NULL) == QUIRE_OK &&
                fits(job, side, &spec))
                add_candidate(side, &spec);
        }
    if (qr_spec_parse("fp8", side->key, &spec, NULL) == QUIRE_OK && fits(job, side, &spec))
        add_candidate(side, &spec);
}

static int make_variants(struct qr_cli *cli, struct qr_tune *job, uint32_t *count)
{
    const struct qr_codec_spec raw = {.codec = QR_CODEC_RAW, .bits = 16};
    *count = 0;
    for (int s = 0; s < 2; s++) {
        struct qr_tune_side *side = &job->side[s];
        const int stop = add_given(cli, side);
        if (stop != QR_EXIT_OK)
            return stop;
        if (side->given.count == 0)
            add_standard(job, side);
        side->first = *count;
        for (uint32_t c = 0; c < side->count; c++) {
            struct qr_eval_variant *v = &job->variants[(*count)++];
            *v = (struct qr_eval_variant){.policy = job->policy, .served = job->served};
            v->policy.key = side->key ? side->specs[c] : raw;
            v->policy.value = side->key ? raw : side->specs[c];
            qr_spec_format(&side->specs[c], v->name);
        }
    }
    return QR_EXIT_OK;
}

/** Mean over heads of the squared relative output error of one layer. */
static double squared_error(const struct qr_tune *job, const struct qr_tune_side *side,
                            uint32_t layer, uint32_t choice)
{
    const struct qr_eval_layer_result *r = &job->report.layers[layer];
    double sum = 0;
    for (uint32_t h = 0; h < r->kv_heads; h++) {
        struct qr_eval_metrics m;
        qr_eval_report_mean(&job->report, side->first + choice, layer, h,
                            side->key ? QR_EVAL_KEY_OUTPUT : QR_EVAL_VALUE_OUTPUT, &m);
        sum += m.frobenius * m.frobenius;
    }
    return sum / r->kv_heads;
}

static int take_figures(struct qr_cli *cli, const struct qr_tune *job,
                        struct qr_tune_side *side)
{
    const uint32_t layers = job->report.layer_count;
    side->errors = calloc((size_t)layers * side->count, sizeof(*side->errors));
    side->picks = calloc(layers, sizeof(*side->picks));
    if (side->errors == NULL || side->picks == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory");
    for (uint32_t l = 0; l < layers; l++) {
        const struct qr_eval_bytes *b = &job->report.layers[l].bytes[side->first];
        side->elements += (double)(side->key ? b->key_elements : b->value_elements);
    }
    for (uint32_t c = 0; c < side->count; c++) {
        struct qr_eval_bits bits;
        qr_eval_report_bits(&job->report, side->first + c, &bits);
        /* Raw rows stand beside codes: what the sinks add is 16 bits for each of their
         * elements. */
        side->bits[c] = (side->key ? bits.key : bits.value) -
                        16.0 * job->policy.sink_rows / job->report.tokens;
        for (uint32_t l = 0; l < layers; l++) {
            side->errors[(size_t)l * side->count + c] = squared_error(job, side, l, c);
            side->total[c] += side->errors[(size_t)l * side->count + c] / layers;
        }
    }
    return QR_EXIT_OK;
}

double qr_tune_bits(const struct qr_tune *job, uint32_t key, uint32_t value)
{
    const struct qr_tune_side *k = &job->side[0], *v = &job->side[1];
    return (k->bits[key] * k->elements + v->bits[value] * v->elements) /
           (k->elements + v->elements);
}

bool qr_tune_pair(const struct qr_tune *job, double budget, uint32_t best[2], double *error)
{
    bool found = false;
    for (uint32_t k = 0; k < job->side[0].count; k++)
        for (uint32_t v = 0; v < job->side[1].count; v++) {
            const double sum = job->side[0].total[k] + job->side[1].total[v];
            if (qr_tune_bits(job, k, v) > budget * (1 + 1e-9) || (found && sum >= *error))
                continue;
            found = true;
            best[0] = k;
            best[1] = v;
            *error = sum;
        }
    return found;
}

/** Each layer's keys and values on their own: what overrides without number would bring. */
static int search_layers(struct qr_cli *cli, struct qr_tune *job)
{
    const uint32_t layers = job->report.layer_count;
    struct qr_tune_item *items = calloc(2 * (size_t)layers, sizeof(*items));
    uint32_t *picks = calloc(2 * (size_t)layers, sizeof(*picks));
    if (items == NULL || picks == NULL) {
        free(items);
        free(picks);
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory");
    }
    for (uint32_t i = 0; i < 2 * layers; i++) {
        const struct qr_tune_side *side = &job->side[i % 2];
        const struct qr_eval_bytes *b = &job->report.layers[i / 2].bytes[side->first];
        items[i] = (struct qr_tune_item){
            .bits = side->bits,
            .errors = side->errors + (size_t)(i / 2) * side->count,
            .elements = (double)(side->key ? b->key_elements : b->value_elements),
            .choices = side->count};
    }
    (void)qr_tune_choose(items, 2 * layers, job->bits, picks);
    double bits = 0, elements = 0;
    for (uint32_t i = 0; i < 2 * layers; i++) {
        job->layers_error += items[i].errors[picks[i]] / layers;
        bits += items[i].bits[picks[i]] * items[i].elements;
        elements += items[i].elements;
    }
    job->layers_bits = bits / elements;
    free(items);
    free(picks);
    return QR_EXIT_OK;
}

int qr_tune_run(struct qr_cli *cli, struct qr_tune *job)
{
    struct qr_error e = {0};
    uint32_t count;
    const struct qr_eval_options options = {job->queries, job->threads};
    struct qr_model_file *model = malloc(sizeof(*model));
    if (model == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory");
    int result = make_variants(cli, job, &count);
    quire_status status = QUIRE_OK;
    if (result == QR_EXIT_OK)
        status = qr_model_args_take(&job->model, &job->kv, model, &e);
    if (result == QR_EXIT_OK && status == QUIRE_OK)
        status = qr_eval_run(&job->kv, model, &options, job->variants, count,
                             cli->terminal && !cli->quiet && !cli->json ? cli->err : NULL,
                             &job->report, &e);
    free(model);
    if (result == QR_EXIT_OK && status != QUIRE_OK)
        result = qr_cli_fail(cli, status, "%s: %s", job->path, e.text);
    for (int s = 0; s < 2 && result == QR_EXIT_OK; s++)
        result = take_figures(cli, job, &job->side[s]);
    if (result == QR_EXIT_OK)
        result = search_layers(cli, job);
    if (result == QR_EXIT_OK && !qr_tune_pair(job, job->bits, job->best, &job->best_error))
        result = qr_cli_fail(cli, QUIRE_EINVAL,
                             "no encoding takes at most %g bits; the smallest takes %.2f",
                             job->bits, job->layers_bits);
    if (result == QR_EXIT_OK && !qr_tune_mix(job))
        result = qr_cli_fail(cli, QUIRE_ENOMEM, "no memory");
    return result;
}

void qr_tune_free(struct qr_tune *job)
{
    qr_eval_report_free(&job->report);
    for (int s = 0; s < 2; s++) {
        free(job->side[s].errors);
        free(job->side[s].picks);
        job->side[s].errors = NULL;
        job->side[s].picks = NULL;
    }
}
