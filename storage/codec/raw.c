/* SPDX-License-Identifier: Apache-2.0
 *
 * `raw`: FP16 rows kept as they are, and the raw rows that any codec's page
 * may carry. Must not know instruction sets.
 */
#include "kernels.h"

#include <string.h>

static quire_status check(const struct qr_tensor *t, struct qr_error *e)
{
    const struct qr_codec_spec *s = &t->spec;
    if (s->bits != 16 || s->axis || s->group || s->packing || s->param[0] || s->param[1])
        return qr_error_set(
            e, QUIRE_EINVAL,
            "raw with bits %u, axis %u, group %u, packing %u, parameters %u and "
            "%u; it takes 16 bits and the rest 0",
            s->bits, s->axis, s->group, s->packing, s->param[0], s->param[1]);
    return QUIRE_OK;
}

static void encode(const struct qr_tensor *t, const struct qr_rows *in,
                   const uint8_t *raw_bitmap, uint8_t *codes, uint8_t *scales)
{
    const size_t row_bytes = 2u * t->dim;
    (void)scales;
    for (uint32_t head = 0; head < t->heads; head++)
        for (uint32_t token = 0; token < t->tokens; token++, codes += row_bytes) {
            const uint16_t *x = in->data + token * in->token_stride + head * in->head_stride;
            if (qr_page_is_raw(raw_bitmap, token))
                memset(codes, 0, row_bytes);
            else
                memcpy(codes, x, row_bytes);
        }
}

void qr_row_expand(const uint16_t *x, uint32_t dim, uint32_t token, uint32_t head,
                   const struct qr_expand *to)
{
    const struct qr_row_kernels *rows = qr_row_kernels();
    const struct qr_emit how = qr_expand_emit(to, token);
    _Alignas(64) float row[QR_DIM_MAX];
    rows->widen(x, dim, row);
    rows->emit(row, dim, &how, qr_expand_at(to, token, head));
}

uint32_t qr_raw_rank(const uint8_t *raw_bitmap, uint32_t token)
{
    uint32_t rank = 0;
    for (uint32_t byte = 0; byte < token / 8; byte++)
        rank += (uint32_t)__builtin_popcount(raw_bitmap[byte]);
    return rank +
           (uint32_t)__builtin_popcount(raw_bitmap[token / 8] & ((1u << token % 8) - 1u));
}

void qr_raw_rows_expand(uint32_t heads, uint32_t dim, const struct qr_expand *to)
{
    if (!to->raw_rows)
        return;
    for (uint32_t i = 0; i < to->token_count; i++) {
        const uint32_t token = to->first_token + i;
        if (!qr_page_is_raw(to->raw_bitmap, token))
            continue;
        const uint16_t *x =
            to->raw_rows + (size_t)qr_raw_rank(to->raw_bitmap, token) * heads * dim;
        for (uint32_t head = to->first_head; head < to->first_head + to->head_count; head++)
            qr_row_expand(x + (size_t)head * dim, dim, token, head, to);
    }
}

static void expand(const struct qr_tensor *t, const uint8_t *codes, const uint8_t *scales,
                   const struct qr_expand *to)
{
    const uint16_t *x = (const uint16_t *)(const void *)codes;
    (void)scales;
    for (uint32_t head = to->first_head; head < to->first_head + to->head_count; head++)
        for (uint32_t i = 0; i < to->token_count; i++) {
            const uint32_t token = to->first_token + i;
            if (!qr_page_is_raw(to->raw_bitmap, token))
                qr_row_expand(x + ((size_t)head * t->tokens + token) * t->dim, t->dim, token,
                              head, to);
        }
    qr_raw_rows_expand(t->heads, t->dim, to);
    qr_row_kernels()->fence();
}

const struct qr_codec_ops qr_codec_raw = {QR_CODEC_RAW, "raw", check, encode, expand};
