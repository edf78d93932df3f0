/* SPDX-License-Identifier: Apache-2.0
 *
 * `fp8`: E4M3FN or E5M2 with one FP32 scale a token and head, or a head of the
 * page (docs/FORMULAS.md). This file walks heads and tokens; the arithmetic is
 * in the kernels. Must not know instruction sets.
 */
#include "fp8.h"

#include <string.h>

#include "kernels.h"
#include "proto/cpu.h"
#include "proto/quant_fp8.h"

static const struct qr_fp8_kernels *kernels(void)
{
#if defined(__x86_64__)
    if (qr_isa() >= QR_ISA_AVX512)
        return &qr_fp8_avx512;
    if (qr_isa() >= QR_ISA_AVX2)
        return &qr_fp8_avx2;
#endif
    return &qr_fp8_scalar;
}

static quire_status check(const struct qr_tensor *t, struct qr_error *e)
{
    return qr_spec_check_tensor(&t->spec, t->tokens, t->heads, t->dim, "fp8", e);
}

/** Largest magnitude of a head's tokens that are not raw. */
static float head_peak(const struct qr_tensor *t, const uint16_t *x, size_t stride,
                       const uint8_t *raw_bitmap)
{
    uint32_t most = 0;
    for (uint32_t token = 0; token < t->tokens; token++) {
        if (qr_page_is_raw(raw_bitmap, token))
            continue;
        const uint32_t peak = kernels()->peak(x + token * stride, t->dim);
        most = peak > most ? peak : most;
    }
    return qr_f16_to_f32((uint16_t)most);
}

static void encode_head(const struct qr_tensor *t, const uint16_t *x, size_t stride,
                        const uint8_t *raw_bitmap, uint8_t *codes, float *scales)
{
    const struct qr_fp8_kernels *k = kernels();
    const struct qr_row_kernels *rows = qr_row_kernels();
    const uint32_t format = t->spec.param[QR_PARAM_NUMBER];
    const bool by_token = t->spec.axis == QR_AXIS_TOKEN;
    float peak = by_token ? 0.0f : head_peak(t, x, stride, raw_bitmap);
    _Alignas(64) float wide[QR_DIM_MAX];
    scales[0] = qr_fp8_scale(peak, format);
    for (uint32_t token = 0; token < t->tokens; token++, x += stride, codes += t->dim) {
        const bool raw = qr_page_is_raw(raw_bitmap, token);
        if (by_token) {
            peak = raw ? 0.0f : qr_f16_to_f32((uint16_t)k->peak(x, t->dim));
            scales[token] = qr_fp8_scale(peak, format);
        }
        if (raw) {
            memset(codes, 0, t->dim);
            continue;
        }
        rows->widen(x, t->dim, wide);
        k->encode(wide, t->dim, format, qr_fp8_reciprocal(peak, format), codes);
    }
}

static uint32_t scales_a_head(const struct qr_tensor *t)
{
    return t->spec.axis == QR_AXIS_TOKEN ? t->tokens : 1;
}

static void encode(const struct qr_tensor *t, const struct qr_rows *in,
                   const uint8_t *raw_bitmap, uint8_t *codes, uint8_t *scales)
{
    float *at = (float *)(void *)scales;
    for (uint32_t head = 0; head < t->heads; head++, at += scales_a_head(t))
        encode_head(t, in->data + head * in->head_stride, in->token_stride, raw_bitmap,
                    codes + (size_t)head * t->tokens * t->dim, at);
}

static void expand(const struct qr_tensor *t, const uint8_t *codes, const uint8_t *scales,
                   const struct qr_expand *to)
{
    const struct qr_row_kernels *rows = qr_row_kernels();
    const float *all = (const float *)(const void *)scales;
    const uint32_t format = t->spec.param[QR_PARAM_NUMBER];
    const bool by_token = t->spec.axis == QR_AXIS_TOKEN;
    _Alignas(64) float row[QR_DIM_MAX];
    for (uint32_t head = to->first_head; head < to->first_head + to->head_count; head++)
        for (uint32_t i = 0; i < to->token_count; i++) {
            const uint32_t token = to->first_token + i;
            if (qr_page_is_raw(to->raw_bitmap, token))
                continue;
            const float scale = all[head * scales_a_head(t) + (by_token ? token : 0)];
            kernels()->decode(codes + ((size_t)head * t->tokens + token) * t->dim, t->dim,
                              format, scale, row);
            const struct qr_emit how = qr_expand_emit(to, token);
            rows->emit(row, t->dim, &how, qr_expand_at(to, token, head));
        }
    qr_raw_rows_expand(t->heads, t->dim, to);
    rows->fence();
}

const struct qr_codec_ops qr_codec_fp8 = {QR_CODEC_FP8, "fp8", check, encode, expand};
