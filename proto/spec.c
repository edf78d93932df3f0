/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes that follow from a codec spec and the packing (PACKING.md). Must not
 * know how codes are computed.
 */
#include "packing.h"
#include "spec_parts.h"

static bool dim_valid(uint32_t dim)
{
    return dim >= QR_DIM_MIN && dim <= QR_DIM_MAX && dim % 8 == 0;
}

static bool shape_valid(uint32_t tokens, uint32_t heads)
{
    return tokens >= 1 && tokens <= QR_PAGE_TOKENS_MAX && heads >= 1 && heads <= QR_HEADS_MAX;
}

size_t qr_spec_row_bytes(const struct qr_codec_spec *spec, uint32_t dim)
{
    if (qr_spec_check(spec, "", NULL) || !dim_valid(dim))
        return 0;
    return spec->codec == QR_CODEC_RAW ? 2u * dim : qr_row_bytes(dim, spec->bits);
}

size_t qr_spec_codes_bytes(const struct qr_codec_spec *spec, uint32_t tokens, uint32_t heads,
                           uint32_t dim)
{
    if (!shape_valid(tokens, heads))
        return 0;
    return qr_spec_row_bytes(spec, dim) * tokens * heads;
}

/** Scales of one head without options; 0: none, or a group that does not divide the tokens. */
static size_t head_bytes(const struct qr_codec_spec *spec, uint32_t tokens, uint32_t dim)
{
    switch (spec->codec) {
    case QR_CODEC_RAW:
        return 0;
    case QR_CODEC_FP8:
        return (spec->axis == QR_AXIS_TOKEN ? tokens : 1u) * sizeof(float);
    case QR_CODEC_LM:
        return tokens * sizeof(uint16_t);
    default: /* {scale, minimum} or {scale, middle} of each group */
        if (spec->axis == QR_AXIS_TOKEN)
            return (size_t)tokens * ((dim + spec->group - 1u) / spec->group) * 4u;
        return tokens % spec->group ? 0 : (size_t)(tokens / spec->group) * dim * 4u;
    }
}

/** Elements of a head that nuq may keep exactly. */
static uint32_t outliers_a_head(const struct qr_codec_spec *spec, uint32_t tokens, uint32_t dim)
{
    return spec->codec == QR_CODEC_NUQ
               ? (uint32_t)((uint64_t)tokens * dim * spec->param[QR_PARAM_NUMBER] / 10000u)
               : 0;
}

bool qr_spec_parts(const struct qr_codec_spec *spec, uint32_t tokens, uint32_t heads,
                   uint32_t dim, struct qr_spec_parts *out)
{
    if (!shape_valid(tokens, heads) || !dim_valid(dim) || qr_spec_check(spec, "", NULL))
        return false;
    const uint32_t flags = spec->param[QR_PARAM_FLAGS];
    const size_t row_bytes = (size_t)heads * dim * sizeof(uint16_t);
    *out = (struct qr_spec_parts){.head_bytes = head_bytes(spec, tokens, dim)};
    if (out->head_bytes == 0 && spec->codec != QR_CODEC_RAW)
        return false;
    out->outliers = outliers_a_head(spec, tokens, dim);
    if (out->outliers) {
        out->head_outliers = out->head_bytes;
        out->head_bytes += (1 + 2 * (size_t)out->outliers) * sizeof(uint16_t);
    }
    size_t end = out->head_bytes * heads;
    if (spec->codec == QR_CODEC_NUQ) {
        if (tokens * dim > QR_NUQ_HEAD_MAX)
            return false;
        out->levels = end;
        end += sizeof(uint16_t) << spec->bits;
    }
    if (flags & QR_SPEC_CENTER) {
        out->means = end;
        end += row_bytes;
    }
    if (flags & QR_SPEC_NORMALIZE) {
        out->norms = end;
        end += row_bytes;
    }
    if (flags & QR_SPEC_REORDER) {
        if (heads * dim > QR_SPEC_ORDER_MAX)
            return false;
        out->order = end;
        end += row_bytes;
    }
    out->bytes = end;
    return true;
}

size_t qr_spec_scales_bytes(const struct qr_codec_spec *spec, uint32_t tokens, uint32_t heads,
                            uint32_t dim)
{
    struct qr_spec_parts parts;
    return qr_spec_parts(spec, tokens, heads, dim, &parts) ? parts.bytes : 0;
}
