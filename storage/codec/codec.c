/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec table and the choice of kernels for this CPU. Must not know how a
 * codec computes.
 */
#include "kernels.h"

#include <string.h>

#include "proto/cpu.h"
#include "proto/spec_parts.h"
#include "stage.h"

/** The codec that works on the rows themselves, by id; rot has none: its stage puts chan in. */
static const struct qr_codec_ops *plain(uint16_t id)
{
    switch (id) {
    case QR_CODEC_RAW:
        return &qr_codec_raw;
    case QR_CODEC_FP8:
        return &qr_codec_fp8;
    case QR_CODEC_LM:
        return &qr_codec_lm;
    case QR_CODEC_NUQ:
        return &qr_codec_nuq;
    default:
        return &qr_codec_chan;
    }
}

static void encode(const struct qr_tensor *t, const struct qr_rows *in,
                   const uint8_t *raw_bitmap, uint8_t *codes, uint8_t *scales)
{
    const struct qr_codec_ops *ops = plain(t->spec.codec);
    if (qr_stage_needed(&t->spec))
        qr_stage_encode(ops, t, in, raw_bitmap, codes, scales);
    else
        ops->encode(t, in, raw_bitmap, codes, scales);
    if (t->spec.codec == QR_CODEC_NUQ) {
        struct qr_spec_parts parts = {0};
        (void)qr_spec_parts(&t->spec, t->tokens, t->heads, t->dim, &parts);
        memcpy(scales + parts.levels, t->levels, sizeof(*t->levels) << t->spec.bits);
    }
}

static void expand(const struct qr_tensor *t, const uint8_t *codes, const uint8_t *scales,
                   const struct qr_expand *to)
{
    const struct qr_codec_ops *ops = plain(t->spec.codec);
    if (qr_stage_needed(&t->spec))
        qr_stage_expand(ops, t, codes, scales, to);
    else
        ops->expand(t, codes, scales, to);
}

static quire_status check(const struct qr_tensor *t, struct qr_error *e)
{
    return qr_spec_check_tensor(&t->spec, t->tokens, t->heads, t->dim, "tensor", e);
}

static const struct qr_codec_ops codecs[] = {
    {QR_CODEC_RAW, "raw", check, encode, expand},
    {QR_CODEC_CHAN, "chan", check, encode, expand},
    {QR_CODEC_FP8, "fp8", check, encode, expand},
    {QR_CODEC_ROT, "rot", check, encode, expand},
    {QR_CODEC_LM, "lm", check, encode, expand},
    {QR_CODEC_NUQ, "nuq", check, encode, expand},
};

const struct qr_codec_ops *qr_codec(uint16_t id)
{
    for (size_t i = 0; i < sizeof(codecs) / sizeof(codecs[0]); i++)
        if (codecs[i].id == id)
            return &codecs[i];
    return NULL;
}

static quire_status check_tensor(const struct qr_tensor *tensor, const char *which,
                                 struct qr_error *e)
{
    if (tensor->dim < QR_DIM_MIN || tensor->dim > QR_DIM_MAX || tensor->dim % 8)
        return qr_error_set(e, QUIRE_EINVAL, "%s dim %u is not a multiple of 8 in %d..%d",
                            which, tensor->dim, QR_DIM_MIN, QR_DIM_MAX);
    return qr_spec_check_tensor(&tensor->spec, tensor->tokens, tensor->heads, tensor->dim,
                                which, e);
}

quire_status qr_codec_check(const struct qr_page_identity *id, struct qr_error *e)
{
    const struct qr_tensor key = {id->key, id->page_tokens, id->heads, id->key_dim, NULL};
    const struct qr_tensor value = {id->value, id->page_tokens, id->heads, id->value_dim, NULL};
    if (!id->heads || id->heads > QR_HEADS_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "%u heads; a lane has 1..%d", id->heads,
                            QR_HEADS_MAX);
    if (!id->page_tokens || id->page_tokens > QR_PAGE_TOKENS_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "%u tokens a page; allowed are 1..%d",
                            id->page_tokens, QR_PAGE_TOKENS_MAX);
    const quire_status status = check_tensor(&key, "key", e);
    return status ? status : check_tensor(&value, "value", e);
}

quire_status qr_codec_check_encode(const struct qr_page_identity *id, struct qr_error *e)
{
    const bool key = id->key.codec == QR_CODEC_NUQ && !id->key_levels;
    const bool value = id->value.codec == QR_CODEC_NUQ && !id->value_levels;
    const quire_status status = qr_codec_check(id, e);
    if (!status && (key || value))
        return qr_error_set(e, QUIRE_EINVAL,
                            "%s of layer %u: nuq of %u bits needs level tables: a model with a "
                            "calibration (quire calibrate) of these bits expected",
                            key ? "keys" : "values", id->layer,
                            key ? id->key.bits : id->value.bits);
    return status;
}

const struct qr_row_kernels *qr_row_kernels(void)
{
#if defined(__x86_64__)
    if (qr_isa() >= QR_ISA_AVX512)
        return &qr_rows_avx512;
    if (qr_isa() >= QR_ISA_AVX2)
        return &qr_rows_avx2;
#endif
    return &qr_rows_scalar;
}

const struct qr_chan_kernels *qr_chan_kernels(void)
{
#if defined(__x86_64__)
    if (qr_isa() >= QR_ISA_AVX512)
        return &qr_chan_avx512;
    if (qr_isa() >= QR_ISA_AVX2)
        return &qr_chan_avx2;
#endif
    return &qr_chan_scalar;
}
