/* SPDX-License-Identifier: Apache-2.0
 *
 * What a codec spec may say, codec by codec: one list of limits. Sizes that
 * follow from it are in spec.c. Must not know how a codec computes.
 */
#include <stdio.h>

#include "packing.h"
#include "page.h"

#define BITS(n) (1u << (n))
#define AXIS(n) (1u << (n))
#define COMMON (QR_SPEC_CENTER | QR_SPEC_NORMALIZE)

/** Limits of one codec. */
struct limits {
    const char *name;
    uint32_t bits, axes; /* sets of BITS, AXIS */
    bool groups;         /* 16, 32, 64 or 128; else 0 */
    uint32_t flags;
    uint32_t number_max;
    const char *bits_text, *axes_text, *number_text;
};

#define CHAN_BITS (BITS(2) | BITS(3) | BITS(4) | BITS(8))
#define LOW_BITS (BITS(2) | BITS(3) | BITS(4))

static const struct limits limits[] = {
    [QR_CODEC_RAW] = {"raw", BITS(16), AXIS(0), false, 0, 0, "16", "0", "0"},
    [QR_CODEC_CHAN] = {"chan", CHAN_BITS, AXIS(QR_AXIS_CHANNEL) | AXIS(QR_AXIS_TOKEN), true,
                       COMMON | QR_SPEC_HYBRID, 0, "2, 3, 4 or 8", "1 (channel) or 2 (token)",
                       "0"},
    [QR_CODEC_FP8] = {"fp8", BITS(8), AXIS(QR_AXIS_TOKEN) | AXIS(QR_AXIS_HEAD), false, COMMON,
                      QR_FP8_E5M2, "8", "2 (token) or 3 (head)", "format 0 (e4m3) or 1 (e5m2)"},
    [QR_CODEC_ROT] = {"rot", CHAN_BITS, AXIS(QR_AXIS_TOKEN), true,
                      COMMON | QR_SPEC_HEADS4 | QR_SPEC_REORDER, 999, "2, 3, 4 or 8",
                      "2 (token)", "a clip ratio of 500 to 999 thousandths, or 0"},
    [QR_CODEC_LM] = {"lm", LOW_BITS, AXIS(QR_AXIS_TOKEN), false, COMMON, UINT32_MAX,
                     "2, 3 or 4", "2 (token)", "a seed"},
    [QR_CODEC_NUQ] = {"nuq", LOW_BITS, AXIS(QR_AXIS_CHANNEL) | AXIS(QR_AXIS_TOKEN), true,
                      COMMON, QR_OUTLIER_RATE_MAX, "2, 3 or 4", "1 (channel) or 2 (token)",
                      "outliers, 0 to 1000 in ten thousand elements"},
};
#define LIMITS_COUNT (sizeof(limits) / sizeof(limits[0]))

static const struct limits *limits_of(uint16_t codec)
{
    return codec < LIMITS_COUNT && limits[codec].name ? &limits[codec] : NULL;
}

const char *qr_codec_name(uint16_t id)
{
    const struct limits *l = limits_of(id);
    return l ? l->name : NULL;
}

static quire_status unknown_codec(uint16_t codec, const char *tensor, struct qr_error *e)
{
    char known[128] = "";
    size_t used = 0;
    for (uint32_t id = 0; id < LIMITS_COUNT; id++)
        if (limits[id].name)
            used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%u (%s)",
                                     used ? ", " : "", id, limits[id].name);
    return qr_error_set(e, QUIRE_EUNSUPPORTED, "%s: codec %u is not known: one of %s expected",
                        tensor, codec, known);
}

static bool in_set(uint32_t set, uint32_t member)
{
    return member < 32 && (set >> member & 1u);
}

static quire_status check_numbers(const struct qr_codec_spec *spec, const struct limits *l,
                                  const char *tensor, struct qr_error *e)
{
    const bool power =
        spec->group >= 16 && spec->group <= 128 && (spec->group & (spec->group - 1u)) == 0;
    if (!in_set(l->bits, spec->bits))
        return qr_error_set(e, QUIRE_EINVAL, "%s: %s with %u bits: %s expected", tensor,
                            l->name, spec->bits, l->bits_text);
    if (!in_set(l->axes, spec->axis))
        return qr_error_set(e, QUIRE_EINVAL, "%s: axis of %s is %u: %s expected", tensor,
                            l->name, spec->axis, l->axes_text);
    if (l->groups ? !power : spec->group != 0)
        return qr_error_set(e, QUIRE_EINVAL, "%s: group of %s is %u: %s expected", tensor,
                            l->name, spec->group, l->groups ? "16, 32, 64 or 128" : "0");
    return QUIRE_OK;
}

static bool number_ok(const struct qr_codec_spec *spec, const struct limits *l)
{
    const uint32_t number = spec->param[QR_PARAM_NUMBER];
    if (spec->codec == QR_CODEC_ROT && number != 0 && number < QR_CLIP_MIN)
        return false;
    return number <= l->number_max;
}

quire_status qr_spec_check(const struct qr_codec_spec *spec, const char *tensor,
                           struct qr_error *e)
{
    const struct limits *l = limits_of(spec->codec);
    if (!l)
        return unknown_codec(spec->codec, tensor, e);
    const quire_status status = check_numbers(spec, l, tensor, e);
    if (status)
        return status;
    if (spec->packing != QR_PACKING_STRIDED16)
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "%s: packing %u of %s is not known: 0 expected", tensor,
                            spec->packing, l->name);
    if (spec->param[QR_PARAM_FLAGS] & ~l->flags)
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "%s: option flags 0x%x of %s are not known: bits of 0x%x expected",
                            tensor, spec->param[QR_PARAM_FLAGS], l->name, l->flags);
    if (!number_ok(spec, l))
        return qr_error_set(e, QUIRE_EUNSUPPORTED, "%s: number of %s is %u: %s expected",
                            tensor, l->name, spec->param[QR_PARAM_NUMBER], l->number_text);
    return QUIRE_OK;
}

quire_status qr_spec_check_tensor(const struct qr_codec_spec *spec, uint32_t tokens,
                                  uint32_t heads, uint32_t dim, const char *tensor,
                                  struct qr_error *e)
{
    const quire_status status = qr_spec_check_tokens(spec, tokens, tensor, e);
    const uint32_t flags = spec->param[QR_PARAM_FLAGS];
    if (status)
        return status;
    if (flags & QR_SPEC_REORDER && heads * dim > QR_SPEC_ORDER_MAX)
        return qr_error_set(e, QUIRE_EINVAL,
                            "%s: reorder with %u heads of %u channels: at most %u channels in "
                            "all expected",
                            tensor, heads, dim, QR_SPEC_ORDER_MAX);
    if (spec->codec == QR_CODEC_FP8 && spec->axis == QR_AXIS_HEAD && flags & COMMON &&
        tokens * dim > QR_SPEC_HEAD_MAX)
        return qr_error_set(e, QUIRE_EINVAL,
                            "%s: fp8 by head with options in pages of %u tokens of %u "
                            "channels: at most %u elements a head expected",
                            tensor, tokens, dim, QR_SPEC_HEAD_MAX);
    if (spec->codec == QR_CODEC_NUQ && tokens * dim > QR_NUQ_HEAD_MAX)
        return qr_error_set(e, QUIRE_EINVAL,
                            "%s: nuq in pages of %u tokens of %u channels: at most %u elements "
                            "a head expected",
                            tensor, tokens, dim, QR_NUQ_HEAD_MAX);
    return QUIRE_OK;
}
