/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding policy: the default and the limits. What a codec spec may say is in
 * spec_check.c.
 */
#include "model.h"

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
    return QUIRE_OK;
}
