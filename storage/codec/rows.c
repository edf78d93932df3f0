/* SPDX-License-Identifier: Apache-2.0
 *
 * FP16 rows outside pages: conversion on append, delivery of tails, digests.
 * Must not know codecs or instruction sets.
 */
#include "kernels.h"

#include "proto/quant.h"

static quire_status value_error(const void *row, enum qr_dtype dtype, uint32_t token,
                                uint32_t head, uint32_t channel, struct qr_error *e)
{
    const uint16_t *half = row;
    float x;
    if (dtype == QR_F32)
        memcpy(&x, (const uint8_t *)row + channel * sizeof(float), sizeof(x));
    else
        x = dtype == QR_BF16 ? qr_bf16_to_f32(half[channel]) : qr_f16_to_f32(half[channel]);
    qr_error_set(e, QUIRE_EVALUE,
                 "value %g at token %u, head %u, channel %u does not fit FP16; finite values "
                 "up to 65504 do",
                 (double)x, token, head, channel);
    if (e) {
        e->position = token;
        e->head = head;
        e->channel = channel;
    }
    return QUIRE_EVALUE;
}

/* The signature is codec.h's. */
/* NOLINTNEXTLINE(readability-function-size) */
quire_status qr_rows_convert(const void *src, enum qr_dtype dtype, size_t token_stride,
                             size_t head_stride, uint32_t tokens, uint32_t heads, uint32_t dim,
                             uint16_t *dst, size_t dst_token_stride, size_t dst_head_stride,
                             struct qr_error *e)
{
    const struct qr_row_kernels *rows = qr_row_kernels();
    if (dtype != QR_F16 && dtype != QR_BF16 && dtype != QR_F32)
        return qr_error_set(e, QUIRE_EINVAL, "dtype %d; known are 1 (F16), 2 (BF16), 3 (F32)",
                            (int)dtype);
    for (uint32_t token = 0; token < tokens; token++)
        for (uint32_t head = 0; head < heads; head++) {
            const void *row = (const uint8_t *)src + token * token_stride + head * head_stride;
            uint16_t *out = dst + token * dst_token_stride + head * dst_head_stride;
            const uint32_t good = rows->narrow(row, dtype, dim, out);
            if (good < dim)
                return value_error(row, dtype, token, head, good, e);
        }
    return QUIRE_OK;
}

void qr_rows_expand(const struct qr_rows *in, uint32_t tokens, uint32_t heads, uint32_t dim,
                    const struct qr_expand *to)
{
    (void)tokens;
    (void)heads;
    for (uint32_t i = 0; i < to->token_count; i++) {
        const uint32_t token = to->first_token + i;
        const uint16_t *x = in->data + token * in->token_stride;
        for (uint32_t head = to->first_head; head < to->first_head + to->head_count; head++)
            qr_row_expand(x + head * in->head_stride, dim, token, head, to);
    }
    qr_row_kernels()->fence();
}

uint32_t qr_row_digest(const uint16_t *k, size_t k_elements, const uint16_t *v,
                       size_t v_elements)
{
    const struct qr_span spans[] = {{k, k_elements * sizeof(*k), 0, 1},
                                    {v, v_elements * sizeof(*v), 0, 1}};
    return (uint32_t)qr_checksum_spans(spans, 2);
}
