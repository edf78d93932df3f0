/* SPDX-License-Identifier: Apache-2.0
 *
 * The error report as tables of text, and as JSON. See eval_report.h.
 */
#include "eval_report.h"
#include "output.h"

#include <string.h>

#define CELL_MAX 24

enum metric { FROBENIUS, MEAN_RATIO, COSINE, LARGEST, METRICS };

static const char *const metric_titles[METRICS] = {
    "relative Frobenius error, percent: ||e|| / ||x||", "mean |e / x| over nonzero x, percent",
    "1 - cosine, percent", "largest |e|, absolute"};

static void cell_text(char text[CELL_MAX], const struct qr_eval_metrics *m, enum metric metric)
{
    const double figures[METRICS] = {100 * m->frobenius, 100 * m->mean_ratio,
                                     100 * (1 - m->cosine), m->largest};
    const double figure = figures[metric];
    if (metric == LARGEST || (figure != 0 && figure < 0.1) || figure >= 1e4)
        snprintf(text, CELL_MAX, "%.3g", figure);
    else
        snprintf(text, CELL_MAX, "%.2f", figure);
}

/** Cells of all quantities of one row, each with a tab before it. */
static void row_text(const struct qr_eval_report *r, uint32_t variant, uint32_t layer,
                     uint32_t head, enum metric metric,
                     char text[QR_EVAL_QUANTITIES * CELL_MAX])
{
    char *end = text;
    *end = 0;
    for (int q = 0; q < QR_EVAL_QUANTITIES; q++) {
        char cell[CELL_MAX] = "-";
        struct qr_eval_metrics m;
        if (qr_eval_applies(&r->variants[variant], (enum qr_eval_quantity)q)) {
            qr_eval_report_mean(r, variant, layer, head, (enum qr_eval_quantity)q, &m);
            cell_text(cell, &m, metric);
        }
        end += sprintf(end, "\t%s", cell);
    }
}

static void add_titles(struct qr_table *t, const char *first)
{
    char text[QR_EVAL_QUANTITIES * CELL_MAX], *end = text;
    for (int q = 0; q < QR_EVAL_QUANTITIES; q++)
        end += sprintf(end, "\t%s", qr_eval_quantity_title((enum qr_eval_quantity)q));
    qr_table_row(t, "%s%s", first, text);
    qr_table_rule(t);
}

static void print_totals(const struct qr_eval_report *r, enum metric metric, FILE *out)
{
    char text[QR_EVAL_QUANTITIES * CELL_MAX];
    struct qr_table *t = qr_table_create("lrrrrrrrrr");
    fprintf(out, "\n%s\n", metric_titles[metric]);
    add_titles(t, "encoding\tbits K\tbits V");
    for (uint32_t v = 0; v < r->variant_count; v++) {
        struct qr_eval_bits bits;
        qr_eval_report_bits(r, v, &bits);
        row_text(r, v, QR_EVAL_ALL, QR_EVAL_ALL, metric, text);
        qr_table_row(t, "%s\t%.2f\t%.2f%s", r->variants[v].name, bits.key, bits.value, text);
    }
    qr_table_print(t, out);
    qr_table_destroy(&t);
}

static void print_layers(const struct qr_eval_report *r, uint32_t variant, bool heads,
                         FILE *out)
{
    char text[QR_EVAL_QUANTITIES * CELL_MAX];
    struct qr_table *t = qr_table_create("lrrrrrrr");
    fprintf(out, "\n%s, by layer: %s\n", r->variants[variant].name, metric_titles[FROBENIUS]);
    add_titles(t, "layer");
    for (uint32_t l = 0; l < r->layer_count; l++) {
        row_text(r, variant, l, QR_EVAL_ALL, FROBENIUS, text);
        qr_table_row(t, "%u%s", r->layers[l].number, text);
        for (uint32_t h = 0; heads && h < r->layers[l].kv_heads; h++) {
            row_text(r, variant, l, h, FROBENIUS, text);
            qr_table_row(t, "  head %u%s", h, text);
        }
    }
    qr_table_print(t, out);
    qr_table_destroy(&t);
}

static void print_basis(const struct qr_eval_report *r, FILE *out)
{
    fprintf(out,
            "%u tokens, %u layers, queries of the last %u positions; figures are means over "
            "layers and KV heads\n",
            r->tokens, r->layer_count, r->queries);
}

void qr_eval_print_text(const struct qr_eval_report *r, bool heads, FILE *out)
{
    print_basis(r, out);
    for (int metric = 0; metric < METRICS; metric++)
        print_totals(r, (enum metric)metric, out);
    for (uint32_t v = 0; v < r->variant_count; v++)
        print_layers(r, v, heads, out);
}

void qr_eval_print_axes(const struct qr_eval_report *r, FILE *out)
{
    struct qr_table *t = qr_table_create("lrrrrr");
    print_basis(r, out);
    fprintf(out, "%s\n", metric_titles[FROBENIUS]);
    qr_table_row(t, "\tbits\tstored\tscores\tsoftmax\tattention output");
    qr_table_rule(t);
    for (uint32_t v = 0; v < r->variant_count; v++) {
        const bool key = r->variants[v].policy.key.codec != QR_CODEC_RAW;
        char cells[4][CELL_MAX] = {"", "", "", ""};
        struct qr_eval_bits bits;
        static const enum qr_eval_quantity of[2][4] = {
            {QR_EVAL_VALUE_STORED, QR_EVAL_QUANTITIES, QR_EVAL_QUANTITIES,
             QR_EVAL_VALUE_OUTPUT},
            {QR_EVAL_KEY_STORED, QR_EVAL_KEY_SCORE, QR_EVAL_KEY_SOFTMAX, QR_EVAL_KEY_OUTPUT}};
        for (int i = 0; i < 4; i++) {
            struct qr_eval_metrics m;
            if (of[key][i] == QR_EVAL_QUANTITIES)
                continue;
            qr_eval_report_mean(r, v, QR_EVAL_ALL, QR_EVAL_ALL, of[key][i], &m);
            cell_text(cells[i], &m, FROBENIUS);
        }
        qr_eval_report_bits(r, v, &bits);
        qr_table_row(t, "%s\t%.2f\t%s\t%s\t%s\t%s", r->variants[v].name,
                     key ? bits.key : bits.value, cells[0], cells[1], cells[2], cells[3]);
    }
    qr_table_print(t, out);
    qr_table_destroy(&t);
}

/* ---- JSON ------------------------------------------------------------------------------- */

static cJSON *metrics_json(const struct qr_eval_metrics *m)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddNumberToObject(object, "frobenius", m->frobenius);
    cJSON_AddNumberToObject(object, "mean_ratio", m->mean_ratio);
    cJSON_AddNumberToObject(object, "cosine", m->cosine);
    cJSON_AddNumberToObject(object, "largest", m->largest);
    return object;
}

static cJSON *mean_json(const struct qr_eval_report *r, uint32_t variant, uint32_t layer,
                        uint32_t head)
{
    cJSON *object = cJSON_CreateObject();
    for (int q = 0; q < QR_EVAL_QUANTITIES; q++) {
        struct qr_eval_metrics m;
        if (!qr_eval_applies(&r->variants[variant], (enum qr_eval_quantity)q))
            continue;
        qr_eval_report_mean(r, variant, layer, head, (enum qr_eval_quantity)q, &m);
        cJSON_AddItemToObject(object, qr_eval_quantity_key((enum qr_eval_quantity)q),
                              metrics_json(&m));
    }
    return object;
}

static void add_layers(cJSON *to, const struct qr_eval_report *r, uint32_t variant)
{
    cJSON *layers = cJSON_AddArrayToObject(to, "layers");
    for (uint32_t l = 0; l < r->layer_count; l++) {
        cJSON *layer = cJSON_CreateObject(), *heads;
        cJSON_AddNumberToObject(layer, "layer", r->layers[l].number);
        cJSON_AddItemToObject(layer, "mean", mean_json(r, variant, l, QR_EVAL_ALL));
        heads = cJSON_AddArrayToObject(layer, "heads");
        for (uint32_t h = 0; h < r->layers[l].kv_heads; h++)
            cJSON_AddItemToArray(heads, mean_json(r, variant, l, h));
        cJSON_AddItemToArray(layers, layer);
    }
}

static cJSON *variant_json(const struct qr_eval_report *r, uint32_t variant)
{
    const struct qr_eval_variant *v = &r->variants[variant];
    cJSON *object = cJSON_CreateObject();
    struct qr_eval_bits bits;
    qr_eval_report_bits(r, variant, &bits);
    cJSON_AddStringToObject(object, "name", v->name);
    cJSON_AddBoolToObject(object, "after_rope", v->after_rope);
    cJSON_AddBoolToObject(object, "served", v->served);
    cJSON_AddNumberToObject(object, "page_tokens", v->policy.page_tokens);
    cJSON_AddNumberToObject(object, "window", v->policy.window);
    cJSON_AddNumberToObject(object, "sink_rows", v->policy.sink_rows);
    cJSON_AddNumberToObject(object, "outlier_rows", v->policy.outlier_rows);
    cJSON *b = cJSON_AddObjectToObject(object, "bits");
    cJSON_AddNumberToObject(b, "key", bits.key);
    cJSON_AddNumberToObject(b, "value", bits.value);
    cJSON_AddNumberToObject(b, "both", bits.both);
    cJSON_AddNumberToObject(b, "page", bits.page);
    cJSON_AddItemToObject(object, "mean", mean_json(r, variant, QR_EVAL_ALL, QR_EVAL_ALL));
    cJSON *pooled = cJSON_AddObjectToObject(object, "pooled");
    for (int q = 0; q < QR_EVAL_QUANTITIES; q++) {
        struct qr_eval_metrics m;
        if (!qr_eval_applies(v, (enum qr_eval_quantity)q))
            continue;
        qr_eval_report_pooled(r, variant, (enum qr_eval_quantity)q, &m);
        cJSON_AddItemToObject(pooled, qr_eval_quantity_key((enum qr_eval_quantity)q),
                              metrics_json(&m));
    }
    add_layers(object, r, variant);
    return object;
}

cJSON *qr_eval_json(const struct qr_eval_report *r)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "file", r->path);
    cJSON_AddNumberToObject(root, "tokens", r->tokens);
    cJSON_AddNumberToObject(root, "queries", r->queries);
    cJSON_AddNumberToObject(root, "seconds", r->seconds);
    cJSON *variants = cJSON_AddArrayToObject(root, "encodings");
    for (uint32_t v = 0; v < r->variant_count; v++)
        cJSON_AddItemToArray(variants, variant_json(r, v));
    return root;
}
