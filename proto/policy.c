/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding policy: the default and the limits. What a codec spec may say is in
 * spec_check.c.
 */
#include "model.h"

#include <stdio.h>

void qr_policy_default(struct qr_policy *policy)
{
    *policy = (struct qr_policy){
        .page_tokens = 128,
        .window = 128,
        .sink_rows = 4,
        .outlier_rows = 4,
        .key = {.codec = QR_CODEC_CHAN, .bits = 4, .axis = QR_AXIS_CHANNEL, .group = 32},
        .value = {.codec = QR_CODEC_CHAN, .bits = 4, .axis = QR_AXIS_TOKEN, .group = 32},
    };
}

quire_status qr_spec_check_tokens(const struct qr_codec_spec *spec, uint32_t page_tokens,
                                  const char *tensor, struct qr_error *e)
{
    const quire_status status = qr_spec_check(spec, tensor, e);
    if (status)
        return status;
    if (page_tokens < 16 || page_tokens > QR_PAGE_TOKENS_MAX ||
        (page_tokens & (page_tokens - 1)) != 0)
        return qr_error_set(e, QUIRE_EINVAL,
                            "page_tokens is %u: a power of two in 16..%d expected", page_tokens,
                            QR_PAGE_TOKENS_MAX);
    if (spec->axis == QR_AXIS_CHANNEL && page_tokens % spec->group)
        return qr_error_set(e, QUIRE_EINVAL,
                            "page_tokens is %u: a multiple of the %s group %u expected",
                            page_tokens, tensor, spec->group);
    return QUIRE_OK;
}

void qr_policy_specs(const struct qr_policy *policy, uint32_t layer, struct qr_codec_spec *key,
                     struct qr_codec_spec *value)
{
    *key = policy->key;
    *value = policy->value;
    for (uint32_t i = 0; i < policy->override_count; i++) {
        const struct qr_override *o = &policy->overrides[i];
        if (layer < o->first_layer || layer > o->last_layer)
            continue;
        if (o->tensors & QR_TENSOR_KEY)
            *key = o->spec;
        if (o->tensors & QR_TENSOR_VALUE)
            *value = o->spec;
    }
}

quire_status qr_policy_check_layers(const struct qr_policy *policy, uint32_t layer_count,
                                    struct qr_error *e)
{
    for (uint32_t i = 0; i < policy->override_count; i++)
        if (policy->overrides[i].last_layer >= layer_count)
            return qr_error_set(e, QUIRE_EINVAL,
                                "override %u is for layers %u to %u: the model has layers 0 to "
                                "%u",
                                i, policy->overrides[i].first_layer,
                                policy->overrides[i].last_layer, layer_count - 1);
    return QUIRE_OK;
}

static quire_status check_overrides(const struct qr_policy *policy, struct qr_error *e)
{
    char name[32];
    if (policy->override_count > QR_OVERRIDES_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "%u overrides: at most %d", policy->override_count,
                            QR_OVERRIDES_MAX);
    for (uint32_t i = 0; i < policy->override_count; i++) {
        const struct qr_override *o = &policy->overrides[i];
        if (o->first_layer > o->last_layer || o->last_layer >= QR_LAYERS_MAX)
            return qr_error_set(e, QUIRE_EINVAL,
                                "override %u: layers %u to %u: ascending, below %d expected", i,
                                o->first_layer, o->last_layer, QR_LAYERS_MAX);
        if (o->tensors < QR_TENSOR_KEY || o->tensors > QR_TENSOR_BOTH || o->reserved)
            return qr_error_set(e, QUIRE_EINVAL,
                                "override %u: tensors %u: 1 (keys), 2 (values) or 3 (both) "
                                "expected",
                                i, o->tensors);
        snprintf(name, sizeof(name), "override %u", i);
        const quire_status status =
            qr_spec_check_tokens(&o->spec, policy->page_tokens, name, e);
        if (status)
            return status;
    }
    return QUIRE_OK;
}

quire_status qr_policy_check(const struct qr_policy *policy, struct qr_error *e)
{
    quire_status status = qr_spec_check_tokens(&policy->key, policy->page_tokens, "key", e);
    if (!status)
        status = qr_spec_check_tokens(&policy->value, policy->page_tokens, "value", e);
    if (status)
        return status;
    if (policy->window > QR_WINDOW_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "window is %u tokens: at most %d", policy->window,
                            QR_WINDOW_MAX);
    if (policy->sink_rows > policy->page_tokens)
        return qr_error_set(e, QUIRE_EINVAL, "sink_rows is %u: at most page_tokens %u",
                            policy->sink_rows, policy->page_tokens);
    if (policy->outlier_rows > QR_OUTLIERS_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "outlier_rows is %u: at most %d",
                            policy->outlier_rows, QR_OUTLIERS_MAX);
    return check_overrides(policy, e);
}
