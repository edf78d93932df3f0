/* SPDX-License-Identifier: Apache-2.0
 *
 * See spec_text.h.
 */
#include "spec_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct word {
    const char *name;
    uint32_t value;
} axes[] = {{"channel", QR_AXIS_CHANNEL}, {"token", QR_AXIS_TOKEN}, {"head", QR_AXIS_HEAD}},
  formats[] = {{"e4m3", QR_FP8_E4M3}, {"e5m2", QR_FP8_E5M2}},
  options[] = {{"center", QR_SPEC_CENTER},
               {"normalize", QR_SPEC_NORMALIZE},
               {"hybrid", QR_SPEC_HYBRID},
               {"heads4", QR_SPEC_HEADS4},
               {"reorder", QR_SPEC_REORDER}};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const struct word *find(const struct word *words, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(words[i].name, name) == 0)
            return &words[i];
    return NULL;
}

static const char *name_of(const struct word *words, size_t count, uint32_t value)
{
    for (size_t i = 0; i < count; i++)
        if (words[i].value == value)
            return words[i].name;
    return "?";
}

void qr_spec_default(uint16_t codec, bool key, struct qr_codec_spec *out)
{
    *out =
        (struct qr_codec_spec){.codec = codec, .bits = 4, .axis = QR_AXIS_TOKEN, .group = 32};
    switch (codec) {
    case QR_CODEC_RAW:
        *out = (struct qr_codec_spec){.codec = codec, .bits = 16};
        break;
    case QR_CODEC_FP8:
        out->bits = 8;
        out->group = 0;
        break;
    case QR_CODEC_LM:
        out->group = 0;
        break;
    case QR_CODEC_NUQ:
        out->param[QR_PARAM_NUMBER] = 100; /* 1 % */
        out->axis = key ? QR_AXIS_CHANNEL : QR_AXIS_TOKEN;
        break;
    case QR_CODEC_CHAN:
        out->axis = key ? QR_AXIS_CHANNEL : QR_AXIS_TOKEN;
        break;
    default:
        break;
    }
}

/** A whole number up to `most`, no sign. */
static bool take_number(const char *text, uint32_t most, uint32_t *out)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    const unsigned long long n = strtoull(text, &end, 10);
    *out = (uint32_t)n;
    return *end == '\0' && n <= most;
}

/** A fraction of 0 to 1 in units of 1 / `unit`, rounded. */
static bool take_fraction(const char *text, uint32_t unit, uint32_t *out)
{
    char *end;
    const double x = strtod(text, &end);
    if (end == text || *end != '\0' || !(x >= 0 && x <= 1))
        return false;
    *out = (uint32_t)(x * unit + 0.5);
    return true;
}

/** NAME=VALUE of a setting; `value` is after the =. */
static bool take_setting(const char *name, const char *value, struct qr_codec_spec *out)
{
    uint32_t n = 0;
    const struct word *word;
    if (strcmp(name, "bits") == 0) {
        const bool ok = take_number(value, UINT8_MAX, &n);
        out->bits = (uint8_t)n;
        return ok;
    }
    if (strcmp(name, "group") == 0) {
        const bool ok = take_number(value, UINT16_MAX, &n);
        out->group = (uint16_t)n;
        return ok;
    }
    if (strcmp(name, "axis") == 0) {
        word = find(axes, COUNT(axes), value);
        out->axis = word ? (uint8_t)word->value : 0;
        return word != NULL;
    }
    uint32_t *number = &out->param[QR_PARAM_NUMBER];
    if (strcmp(name, "format") == 0 && out->codec == QR_CODEC_FP8) {
        word = find(formats, COUNT(formats), value);
        *number = word ? word->value : 0;
        return word != NULL;
    }
    if (strcmp(name, "clip") == 0 && out->codec == QR_CODEC_ROT) {
        const bool ok = take_fraction(value, 1000, number);
        *number = *number == 1000 ? 0 : *number; /* 1: nothing is clipped */
        return ok;
    }
    if (strcmp(name, "seed") == 0 && out->codec == QR_CODEC_LM)
        return take_number(value, UINT32_MAX, number);
    if (strcmp(name, "outliers") == 0 && out->codec == QR_CODEC_NUQ)
        return take_fraction(value, 10000, number);
    return false;
}

static bool take_item(char *item, struct qr_codec_spec *out)
{
    char *equals = strchr(item, '=');
    if (equals) {
        *equals = '\0';
        const bool ok = take_setting(item, equals + 1, out);
        *equals = '=';
        return ok;
    }
    const struct word *option = find(options, COUNT(options), item);
    if (option)
        out->param[QR_PARAM_FLAGS] |= option->value;
    return option != NULL;
}

static quire_status take_codec(const char *name, bool key, struct qr_codec_spec *out,
                               struct qr_error *e)
{
    char known[96] = "";
    for (uint32_t id = QR_CODEC_RAW; id <= QR_CODEC_NUQ; id++) {
        const char *have = qr_codec_name((uint16_t)id);
        if (!have)
            continue;
        if (strcmp(have, name) == 0) {
            qr_spec_default((uint16_t)id, key, out);
            return QUIRE_OK;
        }
        const size_t used = strlen(known);
        snprintf(known + used, sizeof(known) - used, "%s%s", used ? ", " : "", have);
    }
    return qr_error_set(e, QUIRE_EUNSUPPORTED,
                        "codec \"%.40s\" is not known: one of %s expected", name, known);
}

quire_status qr_spec_parse(const char *text, bool key, struct qr_codec_spec *out,
                           struct qr_error *e)
{
    char copy[QR_SPEC_TEXT_MAX];
    if (strlen(text) >= sizeof(copy))
        return qr_error_set(e, QUIRE_EINVAL, "codec of %zu bytes: at most %zu expected",
                            strlen(text), sizeof(copy) - 1);
    memcpy(copy, text, strlen(text) + 1);
    char *rest = strchr(copy, ':');
    if (rest)
        *rest++ = '\0';
    struct qr_codec_spec spec;
    const quire_status status = take_codec(copy, key, &spec, e);
    if (status)
        return status;
    for (char *item = rest; item; item = rest) {
        rest = strchr(item, ',');
        if (rest)
            *rest++ = '\0';
        if (!take_item(item, &spec))
            return qr_error_set(
                e, QUIRE_EINVAL,
                "codec %s: \"%.20s\" is not understood: bits=N, group=N, "
                "axis=channel|token|head, center, normalize; chan: hybrid; fp8: "
                "format=e4m3|e5m2; rot: clip=0.5..1, heads4, reorder; lm: seed=N; nuq: "
                "outliers=0..0.1",
                copy, item);
    }
    const quire_status checked = qr_spec_check(&spec, key ? "key" : "value", e);
    if (!checked)
        *out = spec;
    return checked;
}

static void append_word(char *out, const char *before, const char *word)
{
    const size_t used = strlen(out);
    snprintf(out + used, QR_SPEC_TEXT_MAX - used, "%s%s", before, word);
}

static void append_number(char *out, const char *before, double value)
{
    const size_t used = strlen(out);
    snprintf(out + used, QR_SPEC_TEXT_MAX - used, "%s%.10g", before, value);
}

static void format_number(const struct qr_codec_spec *spec, char *out)
{
    const uint32_t number = spec->param[QR_PARAM_NUMBER];
    if (spec->codec == QR_CODEC_FP8)
        append_word(out, ",format=", name_of(formats, COUNT(formats), number));
    else if (spec->codec == QR_CODEC_ROT && number)
        append_number(out, ",clip=", number / 1000.0);
    else if (spec->codec == QR_CODEC_LM)
        append_number(out, ",seed=", number);
    else if (spec->codec == QR_CODEC_NUQ)
        append_number(out, ",outliers=", number / 10000.0);
}

void qr_spec_format(const struct qr_codec_spec *spec, char out[QR_SPEC_TEXT_MAX])
{
    const char *name = qr_codec_name(spec->codec);
    if (qr_spec_check(spec, "", NULL)) {
        snprintf(out, QR_SPEC_TEXT_MAX,
                 "%s (codec %u), bits %u, axis %u, group %u, packing %u, "
                 "flags 0x%x, number %u",
                 name ? name : "?", spec->codec, spec->bits, spec->axis, spec->group,
                 spec->packing, spec->param[0], spec->param[1]);
        return;
    }
    snprintf(out, QR_SPEC_TEXT_MAX, "%s", name);
    if (spec->codec == QR_CODEC_RAW)
        return;
    append_number(out, ":bits=", spec->bits);
    append_word(out, ",axis=", name_of(axes, COUNT(axes), spec->axis));
    if (spec->group)
        append_number(out, ",group=", spec->group);
    format_number(spec, out);
    for (size_t i = 0; i < COUNT(options); i++)
        if (spec->param[QR_PARAM_FLAGS] & options[i].value)
            append_word(out, ",", options[i].name);
}
