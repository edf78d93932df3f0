/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding policy: the default and the limits. Must not know how a codec packs
 * or computes; which packings exist it asks qr_spec_codes_bytes.
 */
#include "model.h"

#include <string.h>

#include "page.h"

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

static quire_status check_raw(const struct qr_codec_spec *spec, const char *tensor,
                              struct qr_error *e)
{
    if (spec->bits != 16 || spec->axis || spec->group || spec->packing)
        return qr_error_set(e, QUIRE_EINVAL,
                            "%s: codec raw with bits %u, axis %u, group %u, packing %u: 16, 0, "
                            "0, 0 expected",
                            tensor, spec->bits, spec->axis, spec->group, spec->packing);
    return QUIRE_OK;
}

static quire_status check_chan(const struct qr_codec_spec *spec, const char *tensor,
                               struct qr_error *e)
{
    if (spec->bits != 2 && spec->bits != 3 && spec->bits != 4 && spec->bits != 8)
        return qr_error_set(e, QUIRE_EINVAL, "%s: chan with %u bits: 2, 3, 4 or 8 expected",
                            tensor, spec->bits);
    if (spec->axis != QR_AXIS_CHANNEL && spec->axis != QR_AXIS_TOKEN)
        return qr_error_set(e, QUIRE_EINVAL,
                            "%s: axis is %u: 1 (channel) or 2 (token) expected", tensor,
                            spec->axis);
    if (spec->group != 16 && spec->group != 32 && spec->group != 64 && spec->group != 128)
        return qr_error_set(e, QUIRE_EINVAL, "%s: group is %u: 16, 32, 64 or 128 expected",
                            tensor, spec->group);
    if (qr_spec_codes_bytes(spec, 128, 1, QR_DIM_MIN) == 0)
        return qr_error_set(e, QUIRE_EUNSUPPORTED, "%s: packing %u of %u bits is not known",
                            tensor, spec->packing, spec->bits);
    return QUIRE_OK;
}

quire_status qr_spec_check(const struct qr_codec_spec *spec, const char *tensor,
                           struct qr_error *e)
{
    if (spec->param[0] || spec->param[1])
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "%s: codec parameters %u, %u are not known: 0, 0 expected", tensor,
                            spec->param[0], spec->param[1]);
    if (spec->codec == QR_CODEC_RAW)
        return check_raw(spec, tensor, e);
    if (spec->codec == QR_CODEC_CHAN)
        return check_chan(spec, tensor, e);
    return qr_error_set(e, QUIRE_EUNSUPPORTED,
                        "%s: codec %u is not known: 1 (raw) or 2 (chan) expected", tensor,
                        spec->codec);
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
