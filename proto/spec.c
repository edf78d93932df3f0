/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes that follow from a codec spec and the packing (PACKING.md). Must not
 * know how codes are computed.
 */
#include "packing.h"
#include "page.h"

static bool dim_valid(uint32_t dim)
{
    return dim >= QR_DIM_MIN && dim <= QR_DIM_MAX && dim % 8 == 0;
}

static bool shape_valid(uint32_t tokens, uint32_t heads)
{
    return tokens >= 1 && tokens <= QR_PAGE_TOKENS_MAX && heads >= 1 && heads <= QR_HEADS_MAX;
}

static bool chan_valid(const struct qr_codec_spec *spec)
{
    const bool bits = spec->bits == 2 || spec->bits == 3 || spec->bits == 4 || spec->bits == 8;
    const bool group =
        spec->group == 16 || spec->group == 32 || spec->group == 64 || spec->group == 128;
    const bool axis = spec->axis == QR_AXIS_CHANNEL || spec->axis == QR_AXIS_TOKEN;
    return bits && group && axis;
}

static bool spec_valid(const struct qr_codec_spec *spec)
{
    if (spec->packing != QR_PACKING_STRIDED16 || spec->param[0] || spec->param[1])
        return false;
    if (spec->codec == QR_CODEC_RAW)
        return spec->bits == 16 && spec->axis == 0 && spec->group == 0;
    return spec->codec == QR_CODEC_CHAN && chan_valid(spec);
}

size_t qr_spec_row_bytes(const struct qr_codec_spec *spec, uint32_t dim)
{
    if (!spec_valid(spec) || !dim_valid(dim))
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

size_t qr_spec_scales_bytes(const struct qr_codec_spec *spec, uint32_t tokens, uint32_t heads,
                            uint32_t dim)
{
    if (!shape_valid(tokens, heads) || !spec_valid(spec) || !dim_valid(dim))
        return 0;
    if (spec->codec == QR_CODEC_RAW)
        return 0;
    if (spec->axis == QR_AXIS_TOKEN)
        return (size_t)heads * tokens * ((dim + spec->group - 1u) / spec->group) * 4u;
    if (tokens % spec->group)
        return 0;
    return (size_t)heads * (tokens / spec->group) * dim * 4u;
}
