/* SPDX-License-Identifier: Apache-2.0
 *
 * See eval_variant.h.
 */
#include "eval_variant.h"

#include "proto/spec_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 256

static bool read_number(const char *text, uint32_t most, uint16_t *out)
{
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return false;
    const unsigned long value = strtoul(text, &end, 10);
    if (*end != 0 || value > most)
        return false;
    *out = (uint16_t)value;
    return true;
}

static quire_status parse_setting(const char *word, struct qr_eval_variant *out,
                                  struct qr_error *e)
{
    const struct {
        const char *name;
        uint16_t *to;
    } numbers[] = {{"sinks=", &out->policy.sink_rows},
                   {"outliers=", &out->policy.outlier_rows},
                   {"window=", &out->policy.window},
                   {"page=", &out->policy.page_tokens}};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        const size_t length = strlen(numbers[i].name);
        if (strncmp(word, numbers[i].name, length) == 0 &&
            read_number(word + length, QR_WINDOW_MAX, numbers[i].to))
            return QUIRE_OK;
    }
    if (strcmp(word, "post") == 0)
        out->after_rope = true;
    else if (strcmp(word, "served") == 0)
        out->served = true;
    else
        return qr_error_set(e, QUIRE_EINVAL,
                            "setting \"%.40s\" is not understood: sinks=N, outliers=N, "
                            "window=N, page=N, post, served expected",
                            word);
    return QUIRE_OK;
}

quire_status qr_eval_variant_parse(const char *text, const struct qr_eval_variant *base,
                                   struct qr_eval_variant *out, struct qr_error *e)
{
    char key[TEXT_MAX], value[TEXT_MAX];
    struct qr_eval_variant v = *base;
    if (strlen(text) >= QR_EVAL_NAME_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "encoding of %zu bytes: at most %d expected",
                            strlen(text), QR_EVAL_NAME_MAX - 1);
    snprintf(v.name, sizeof(v.name), "%s", text);
    snprintf(key, sizeof(key), "%s", text);
    char *settings = strchr(key, '@');
    if (settings != NULL)
        *settings++ = 0;
    char *slash = strchr(key, '/');
    if (slash != NULL)
        *slash++ = 0;
    snprintf(value, sizeof(value), "%s", slash ? slash : key);
    quire_status status = qr_spec_parse(key, true, &v.policy.key, e);
    if (status == QUIRE_OK)
        status = qr_spec_parse(value, false, &v.policy.value, e);
    for (char *word = settings; word != NULL && status == QUIRE_OK; word = settings) {
        settings = strchr(word, ',');
        if (settings != NULL)
            *settings++ = 0;
        status = parse_setting(word, &v, e);
    }
    if (status == QUIRE_OK)
        status = qr_policy_check(&v.policy, e);
    if (status == QUIRE_OK)
        *out = v;
    return status;
}

static void add_axis(const struct qr_eval_variant *base, struct qr_codec_spec spec, bool key,
                     uint16_t sinks, struct qr_eval_variant *out)
{
    const struct qr_codec_spec raw = {.codec = QR_CODEC_RAW, .bits = 16};
    char sink_text[24] = "";
    *out = *base;
    out->served = false;
    out->policy.sink_rows = sinks;
    out->policy.outlier_rows = 0;
    out->policy.key = key ? spec : raw;
    out->policy.value = key ? raw : spec;
    if (sinks > 0)
        snprintf(sink_text, sizeof(sink_text), ", %u sinks raw", sinks);
    snprintf(out->name, sizeof(out->name), "%s per %s%s%s", key ? "K" : "V",
             spec.axis == QR_AXIS_CHANNEL ? "channel" : "token",
             !key               ? ""
             : base->after_rope ? ", after RoPE"
                                : ", before RoPE",
             sink_text);
}

uint32_t qr_eval_variants_axes(const struct qr_eval_variant *base, uint32_t bits,
                               uint32_t group, bool before_rope, struct qr_eval_variant *out)
{
    static const uint8_t axes[] = {QR_AXIS_CHANNEL, QR_AXIS_TOKEN};
    uint32_t count = 0;
    for (int key = 1; key >= 0; key--)
        for (int after = before_rope ? 0 : 1; after <= (before_rope && key ? 1 : !before_rope);
             after++)
            for (int axis = 0; axis < 2; axis++)
                for (uint16_t sinks = 0; sinks <= 4; sinks += 4) {
                    struct qr_eval_variant from = *base;
                    const struct qr_codec_spec spec = {.codec = QR_CODEC_CHAN,
                                                       .bits = (uint8_t)bits,
                                                       .axis = axes[key ? axis : 1 - axis],
                                                       .group = (uint16_t)group};
                    from.after_rope = after != 0;
                    add_axis(&from, spec, key != 0, sinks, &out[count++]);
                }
    return count;
}

static struct qr_eval_variant *add_step(const struct qr_eval_variant *base, const char *what,
                                        struct qr_eval_variant *out, uint32_t *count)
{
    struct qr_eval_variant *v = &out[(*count)++];
    *v = *base;
    snprintf(v->name, sizeof(v->name), "%.120s: %s", base->name, what);
    return v;
}

uint32_t qr_eval_variants_sweep(const struct qr_eval_variant *base, struct qr_eval_variant *out)
{
    static const uint16_t windows[] = {0, 32, 128}, rows[] = {0, 1, 4};
    char what[32];
    uint32_t count = 0;
    add_step(base, "all encoded", out, &count)->served = false;
    for (size_t i = 0; i < 3; i++) {
        snprintf(what, sizeof(what), "served, window %u", windows[i]);
        struct qr_eval_variant *v = add_step(base, what, out, &count);
        v->served = true;
        v->policy.window = windows[i];
    }
    for (size_t i = 0; i < 3; i++) {
        snprintf(what, sizeof(what), "sinks %u", rows[i]);
        add_step(base, what, out, &count)->policy.sink_rows = rows[i];
    }
    for (size_t i = 0; i < 3; i++) {
        snprintf(what, sizeof(what), "outliers %u", rows[i]);
        add_step(base, what, out, &count)->policy.outlier_rows = rows[i];
    }
    return count;
}
