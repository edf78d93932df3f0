/* SPDX-License-Identifier: Apache-2.0
 *
 * Figures out of a report: means, pooled sums, bits. See eval_report.h.
 */
#include "eval_report.h"

#include <math.h>

static const struct {
    const char *title, *key;
} quantities[QR_EVAL_QUANTITIES] = {
    {"K stored", "key_stored"},    {"K scores", "key_score"},    {"K softmax", "key_softmax"},
    {"K output", "key_output"},    {"V stored", "value_stored"}, {"V output", "value_output"},
    {"K+V output", "both_output"},
};

const char *qr_eval_quantity_title(enum qr_eval_quantity quantity)
{
    return quantities[quantity].title;
}

const char *qr_eval_quantity_key(enum qr_eval_quantity quantity)
{
    return quantities[quantity].key;
}

bool qr_eval_applies(const struct qr_eval_variant *variant, enum qr_eval_quantity quantity)
{
    bool key = variant->policy.key.codec != QR_CODEC_RAW;
    bool value = variant->policy.value.codec != QR_CODEC_RAW;
    for (uint32_t i = 0; i < variant->policy.override_count; i++) {
        const struct qr_override *o = &variant->policy.overrides[i];
        key |= (o->tensors & QR_TENSOR_KEY) && o->spec.codec != QR_CODEC_RAW;
        value |= (o->tensors & QR_TENSOR_VALUE) && o->spec.codec != QR_CODEC_RAW;
    }
    if (quantity == QR_EVAL_BOTH_OUTPUT)
        return key || value;
    return quantity == QR_EVAL_VALUE_STORED || quantity == QR_EVAL_VALUE_OUTPUT ? value : key;
}

void qr_eval_report_mean(const struct qr_eval_report *report, uint32_t variant, uint32_t layer,
                         uint32_t head, enum qr_eval_quantity quantity,
                         struct qr_eval_metrics *out)
{
    uint32_t count = 0;
    *out = (struct qr_eval_metrics){0};
    for (uint32_t l = 0; l < report->layer_count; l++) {
        const struct qr_eval_layer_result *r = &report->layers[l];
        for (uint32_t h = 0; h < r->kv_heads; h++) {
            struct qr_eval_metrics m;
            if ((layer != QR_EVAL_ALL && layer != l) || (head != QR_EVAL_ALL && head != h))
                continue;
            qr_eval_sum_metrics(&r->cells[variant * r->kv_heads + h].sum[quantity], &m);
            out->frobenius += m.frobenius;
            out->mean_ratio += m.mean_ratio;
            out->cosine += m.cosine;
            out->largest = fmax(out->largest, m.largest);
            count++;
        }
    }
    if (count == 0)
        return;
    out->frobenius /= count;
    out->mean_ratio /= count;
    out->cosine /= count;
}

void qr_eval_report_pooled(const struct qr_eval_report *report, uint32_t variant,
                           enum qr_eval_quantity quantity, struct qr_eval_metrics *out)
{
    struct qr_eval_sum sum = {0};
    for (uint32_t l = 0; l < report->layer_count; l++) {
        const struct qr_eval_layer_result *r = &report->layers[l];
        for (uint32_t h = 0; h < r->kv_heads; h++)
            qr_eval_sum_merge(&sum, &r->cells[variant * r->kv_heads + h].sum[quantity]);
    }
    qr_eval_sum_metrics(&sum, out);
}

void qr_eval_report_bits(const struct qr_eval_report *report, uint32_t variant,
                         struct qr_eval_bits *out)
{
    struct qr_eval_bytes sum = {0};
    for (uint32_t l = 0; l < report->layer_count; l++) {
        const struct qr_eval_bytes *b = &report->layers[l].bytes[variant];
        sum.key += b->key;
        sum.value += b->value;
        sum.page += b->page;
        sum.key_elements += b->key_elements;
        sum.value_elements += b->value_elements;
    }
    const double elements = (double)(sum.key_elements + sum.value_elements);
    *out = (struct qr_eval_bits){
        .key = 8.0 * (double)sum.key / (double)sum.key_elements,
        .value = 8.0 * (double)sum.value / (double)sum.value_elements,
        .both = 8.0 * (double)(sum.key + sum.value) / elements,
        .page = 8.0 * (double)sum.page / elements,
    };
}
