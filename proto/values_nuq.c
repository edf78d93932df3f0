/* SPDX-License-Identifier: Apache-2.0
 *
 * What must hold of the scales section of `nuq`: its level table, its outliers,
 * and that its numbers are finite.
 */
#include <stdio.h>

#include "quant.h"
#include "values_codec.h"

static const uint16_t *halves(const uint8_t *at)
{
    return (const uint16_t *)(const void *)at;
}

static quire_status check_outliers(const struct qr_page_header *header, uint32_t elements,
                                   uint32_t most, const uint16_t *outliers, const char *tensor,
                                   struct qr_error *e)
{
    const uint32_t count = outliers[0], dim = elements / header->tokens;
    const uint16_t *positions = outliers + 1, *values = positions + most;
    if (count > most)
        return qr_error_set(e, QUIRE_ECORRUPT, "%s: %u outliers in a head: at most %u expected",
                            tensor, count, most);
    for (uint32_t i = 0; i < count; i++)
        if (positions[i] >= elements || (i > 0 && positions[i] <= positions[i - 1]) ||
            qr_page_is_raw(header->raw_bitmap, positions[i] / dim))
            return qr_error_set(e, QUIRE_ECORRUPT,
                                "%s: outlier %u is at %u: ascending places below %u, none of a "
                                "raw row expected",
                                tensor, i, positions[i], elements);
    for (uint32_t i = count; i < most; i++)
        if (positions[i] || values[i])
            return qr_error_set(e, QUIRE_ECORRUPT,
                                "%s: place %u after the last of %u outliers is not zero",
                                tensor, i, count);
    return QUIRE_OK;
}

quire_status qr_values_check_nuq_structure(const struct qr_page_header *header,
                                           const struct qr_codec_spec *spec,
                                           const struct qr_spec_parts *parts,
                                           const uint8_t *scales, const char *tensor,
                                           struct qr_error *e)
{
    char what[48];
    const uint32_t dim = spec == &header->key ? header->key_dim : header->value_dim;
    snprintf(what, sizeof(what), "%s level table", tensor);
    quire_status status = qr_levels_check(halves(scales + parts->levels), spec->bits, what, e);
    if (status && e)
        e->status = QUIRE_ECORRUPT;
    if (status)
        return QUIRE_ECORRUPT;
    for (uint32_t head = 0; parts->outliers && head < header->heads && !status; head++)
        status = check_outliers(
            header, header->tokens * dim, parts->outliers,
            halves(scales + head * parts->head_bytes + parts->head_outliers), tensor, e);
    return status;
}

quire_status qr_values_check_nuq(const struct qr_page_header *header,
                                 const struct qr_spec_parts *parts, const uint8_t *scales,
                                 const char *tensor, struct qr_error *e)
{
    const size_t pairs = (parts->outliers ? parts->head_outliers : parts->head_bytes) / 2;
    for (uint32_t head = 0; head < header->heads; head++) {
        const uint16_t *at = halves(scales + head * parts->head_bytes);
        for (size_t i = 0; i < parts->head_bytes / 2; i++) {
            const bool position = i >= pairs && i < pairs + 1 + parts->outliers;
            if (!position && (at[i] & 0x7fffu) >= QR_F16_INF_BITS)
                return qr_error_set(e, QUIRE_EVALUE,
                                    "%s scales: number %zu of head %u is 0x%04x: finite FP16 "
                                    "expected",
                                    tensor, i, head, at[i]);
        }
    }
    return QUIRE_OK;
}
