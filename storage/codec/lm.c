/* SPDX-License-Identifier: Apache-2.0
 *
 * `lm`: rows that a stage has rotated at random, so that their channels are
 * nearly normal, as Lloyd-Max levels and one factor a token (docs/FORMULAS.md).
 * Must not know instruction sets or the rotation.
 */
#include "lm.h"

#include <math.h>
#include <string.h>

#include "kernels.h"
#include "levels.h"
#include "proto/cpu.h"
#include "proto/packing.h"
#include "proto/quant_lm.h"
#include "proto/quant_rotate.h"

static qr_lm_encode_fn *encode_row(void)
{
#if defined(__x86_64__)
    if (qr_isa() >= QR_ISA_AVX512)
        return qr_lm_encode_avx512;
    if (qr_isa() >= QR_ISA_AVX2)
        return qr_lm_encode_avx2;
#endif
    return qr_lm_encode_scalar;
}

/** The factor is stored instead of the norm: it keeps the norm's place and gives the least
 * error that these levels can have. */
static void encode_token(const struct qr_tensor *t, const uint16_t *x, uint8_t *row,
                         uint16_t *factor)
{
    _Alignas(64) uint16_t codes[QR_DIM_MAX + QR_LEVELS_PAD];
    const float squares = qr_row_kernels()->squares(x, 0, 1, t->dim);
    const float norm = sqrtf(squares / (float)t->dim), r = norm > 0.0f ? 1.0f / norm : 0.0f;
    const struct qr_lm_fit fit = encode_row()(x, t->dim, t->spec.bits, r, codes);
    memset(codes + t->dim, 0, QR_LEVELS_PAD * sizeof(*codes));
    *factor = qr_f16_from_f32(qr_rotate_limit(fit.dot / fit.squares));
    qr_levels_kernels()->pack(codes, t->dim, t->spec.bits, row);
}

static void encode(const struct qr_tensor *t, const struct qr_rows *in,
                   const uint8_t *raw_bitmap, uint8_t *codes, uint8_t *scales)
{
    const size_t row_bytes = qr_row_bytes(t->dim, t->spec.bits);
    uint16_t *factors = (uint16_t *)(void *)scales;
    for (uint32_t head = 0; head < t->heads; head++)
        for (uint32_t token = 0; token < t->tokens; token++, codes += row_bytes, factors++) {
            if (qr_page_is_raw(raw_bitmap, token)) {
                memset(codes, 0, row_bytes);
                *factors = 0;
                continue;
            }
            encode_token(t, in->data + token * in->token_stride + head * in->head_stride, codes,
                         factors);
        }
}

static void expand(const struct qr_tensor *t, const uint8_t *codes, const uint8_t *scales,
                   const struct qr_expand *to)
{
    const struct qr_row_kernels *rows = qr_row_kernels();
    const uint16_t *factors = (const uint16_t *)(const void *)scales;
    const size_t row_bytes = qr_row_bytes(t->dim, t->spec.bits);
    _Alignas(64) float row[QR_DIM_MAX], unit[16], table[16];
    qr_lm_table(t->spec.bits, 1.0f, unit);
    for (uint32_t head = to->first_head; head < to->first_head + to->head_count; head++)
        for (uint32_t i = 0; i < to->token_count; i++) {
            const uint32_t token = to->first_token + i;
            const size_t at = (size_t)head * t->tokens + token;
            if (qr_page_is_raw(to->raw_bitmap, token))
                continue;
            const float factor = qr_f16_to_f32(factors[at]);
            for (uint32_t q = 0; q < 16; q++)
                table[q] = unit[q] * factor;
            qr_levels_kernels()->lookup(codes + at * row_bytes, t->dim, t->spec.bits, table,
                                        row);
            const struct qr_emit how = qr_expand_emit(to, token);
            rows->emit(row, t->dim, &how, qr_expand_at(to, token, head));
        }
    qr_raw_rows_expand(t->heads, t->dim, to);
    rows->fence();
}

static quire_status check(const struct qr_tensor *t, struct qr_error *e)
{
    return qr_spec_check_tensor(&t->spec, t->tokens, t->heads, t->dim, "lm", e);
}

const struct qr_codec_ops qr_codec_lm = {QR_CODEC_LM, "lm", check, encode, expand};
