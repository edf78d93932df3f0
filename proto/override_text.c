/* SPDX-License-Identifier: Apache-2.0
 *
 * Overrides of a policy as people write them; see spec_text.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spec_text.h"

/** A layer number; what follows it goes to *end. */
static bool take_layer(const char *text, char **end, uint16_t *out)
{
    if (*text < '0' || *text > '9')
        return false;
    const unsigned long n = strtoul(text, end, 10);
    *out = (uint16_t)n;
    return n < QR_LAYERS_MAX;
}

/** N or N-M up to the slash, then k, v or kv up to the equals sign; gives the codec's text. */
static const char *take_place(const char *text, struct qr_override *out)
{
    char *at;
    if (!take_layer(text, &at, &out->first_layer))
        return NULL;
    out->last_layer = out->first_layer;
    if (*at == '-' && !take_layer(at + 1, &at, &out->last_layer))
        return NULL;
    if (*at++ != '/' || out->last_layer < out->first_layer)
        return NULL;
    for (; *at == 'k' || *at == 'v'; at++)
        out->tensors |= *at == 'k' ? QR_TENSOR_KEY : QR_TENSOR_VALUE;
    return *at == '=' && out->tensors ? at + 1 : NULL;
}

static quire_status take_override(const char *text, struct qr_policy *policy,
                                  struct qr_error *e)
{
    struct qr_override override = {0};
    const char *codec = take_place(text, &override);
    if (!codec)
        return qr_error_set(e, QUIRE_EINVAL,
                            "override \"%.60s\" is not understood: layers, k or v or kv, and a "
                            "codec expected, such as 0-1/kv=chan:bits=8",
                            text);
    if (policy->override_count == QR_OVERRIDES_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "override \"%.60s\" is the %dth: at most %d", text,
                            QR_OVERRIDES_MAX + 1, QR_OVERRIDES_MAX);
    const bool key = override.tensors != QR_TENSOR_VALUE;
    quire_status status = qr_spec_parse(codec, key, &override.spec, e);
    if (status)
        return status;
    policy->overrides[policy->override_count++] = override;
    struct qr_codec_spec value;
    status = qr_spec_parse(codec, false, &value, e);
    if (status || override.tensors != QR_TENSOR_BOTH ||
        memcmp(&value, &override.spec, sizeof(value)) == 0)
        return status;
    /* A codec whose defaults for values are others: one override each. */
    policy->overrides[policy->override_count - 1].tensors = QR_TENSOR_KEY;
    if (policy->override_count == QR_OVERRIDES_MAX)
        return qr_error_set(e, QUIRE_EINVAL,
                            "override \"%.60s\" takes two places: at most %d in "
                            "all",
                            text, QR_OVERRIDES_MAX);
    override.tensors = QR_TENSOR_VALUE;
    override.spec = value;
    policy->overrides[policy->override_count++] = override;
    return QUIRE_OK;
}

quire_status qr_overrides_parse(const char *text, struct qr_policy *policy, struct qr_error *e)
{
    struct qr_policy made = *policy;
    char part[QR_OVERRIDE_TEXT_MAX];
    for (const char *at = text; *at;) {
        const size_t n = strcspn(at, ";");
        if (n >= sizeof(part))
            return qr_error_set(e, QUIRE_EINVAL, "override of %zu bytes: at most %zu expected",
                                n, sizeof(part) - 1);
        memcpy(part, at, n);
        part[n] = '\0';
        const quire_status status = take_override(part, &made, e);
        if (status)
            return status;
        at += n + (at[n] == ';');
    }
    *policy = made;
    return QUIRE_OK;
}

void qr_override_format(const struct qr_override *override, char out[QR_OVERRIDE_TEXT_MAX])
{
    static const char *const tensors[] = {"?", "k", "v", "kv"};
    char spec[QR_SPEC_TEXT_MAX], last[8] = "";
    qr_spec_format(&override->spec, spec);
    if (override->last_layer != override->first_layer)
        snprintf(last, sizeof(last), "-%u", override->last_layer);
    snprintf(out, QR_OVERRIDE_TEXT_MAX, "%u%s/%s=%s", override->first_layer, last,
             override->tensors <= QR_TENSOR_BOTH ? tensors[override->tensors] : "?", spec);
}
