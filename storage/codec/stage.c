/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks a tensor in units of heads that are worked on together: rows are
 * shifted, ordered, rotated and rounded to FP16 before the codec within encodes
 * them; what it decodes goes back the same way. The arithmetic is in the
 * kernels, what is measured on the page in stage_measure.c.
 */
#include "stage.h"

#include <assert.h>
#include <string.h>

#include "kernels.h"
#include "proto/cpu.h"
#include "proto/quant_rotate.h"
#include "stage_measure.h"

#define WIDE_ELEMENTS 16384u /* FP32 elements that are decoded at a time */

const struct qr_stage_kernels *qr_stage_kernels(void)
{
#if defined(__x86_64__)
    if (qr_isa() >= QR_ISA_AVX512)
        return &qr_stage_avx512;
    if (qr_isa() >= QR_ISA_AVX2)
        return &qr_stage_avx2;
#endif
    return &qr_stage_scalar;
}

bool qr_stage_needed(const struct qr_codec_spec *spec)
{
    return spec->codec == QR_CODEC_ROT || spec->codec == QR_CODEC_LM ||
           (spec->param[QR_PARAM_FLAGS] & (QR_SPEC_CENTER | QR_SPEC_NORMALIZE)) != 0;
}

struct qr_codec_spec qr_stage_inner(const struct qr_codec_spec *spec)
{
    struct qr_codec_spec inner = *spec;
    inner.param[QR_PARAM_FLAGS] &= QR_SPEC_HYBRID;
    if (spec->codec == QR_CODEC_ROT) {
        inner.codec = QR_CODEC_CHAN;
        inner.param[QR_PARAM_NUMBER] = 0;
    }
    return inner;
}

/** One tensor's way through the stage, and the unit of heads at hand. */
struct stage {
    const struct qr_tensor *tensor;
    const struct qr_stage_kernels *k;
    struct qr_spec_parts parts;
    uint32_t run;                   /* channels rotated together; 0: no rotation */
    bool affine, flips;             /* means or norms; random signs */
    const uint16_t *order;          /* channel of each place of the rotated row, or NULL */
    uint32_t head, heads, channels; /* of the unit */
    float means[QR_STAGE_CHANNELS], norms[QR_STAGE_CHANNELS]; /* encoding: 1 / norm */
    uint32_t signs[QR_DIM_MAX];
    _Alignas(64) float row[QR_STAGE_CHANNELS]; /* encoding: the token at hand */
};

static void start(struct stage *s, const struct qr_tensor *t)
{
    const uint32_t flags = t->spec.param[QR_PARAM_FLAGS];
    const bool rotates = t->spec.codec == QR_CODEC_ROT || t->spec.codec == QR_CODEC_LM;
    const bool sized = qr_spec_parts(&t->spec, t->tokens, t->heads, t->dim, &s->parts);
    assert(sized);
    (void)sized;
    s->tensor = t;
    s->k = qr_stage_kernels();
    s->run = !rotates ? 0 : flags & QR_SPEC_HEADS4 ? 4 * t->dim : t->dim;
    s->affine = (flags & (QR_SPEC_CENTER | QR_SPEC_NORMALIZE)) != 0;
    s->flips = t->spec.codec == QR_CODEC_LM;
    s->order = NULL;
    for (uint32_t c = 0; s->flips && c < t->dim; c++)
        s->signs[c] = qr_rotate_sign(t->spec.param[QR_PARAM_NUMBER], c);
}

/** The unit that begins at `head`, its means and norms as floats. */
static void enter_unit(struct stage *s, const uint8_t *scales, uint32_t head)
{
    const struct qr_tensor *t = s->tensor;
    const uint32_t most = qr_spec_unit_heads(&t->spec, t->heads);
    const size_t first = (size_t)head * t->dim;
    s->head = head;
    s->heads = t->heads - head < most ? t->heads - head : most;
    s->channels = s->heads * t->dim;
    if (!s->affine)
        return;
    const uint16_t *at = (const uint16_t *)(const void *)scales;
    for (uint32_t i = 0; i < s->channels; i++) {
        s->means[i] = 0.0f;
        s->norms[i] = 1.0f;
    }
    if (s->parts.means)
        qr_row_kernels()->widen(at + s->parts.means / 2 + first, s->channels, s->means);
    if (s->parts.norms)
        qr_row_kernels()->widen(at + s->parts.norms / 2 + first, s->channels, s->norms);
}

/** Every run of the unit; the last one may be shorter. */
static void rotate(const struct stage *s, float *x)
{
    for (uint32_t at = 0, n; s->run && at < s->channels; at += n) {
        n = s->channels - at < s->run ? s->channels - at : s->run;
        s->k->hadamard(x + at, n, qr_rotate_block(n));
    }
}

/* Functions of their own: their stack, probed page by page, is not for every token. */

/** x[place] = what x had in the channel that belongs there. */
static __attribute__((noinline)) void order(const struct stage *s, float *x)
{
    float before[QR_STAGE_CHANNELS];
    memcpy(before, x, s->channels * sizeof(*x));
    for (uint32_t i = 0; i < s->channels; i++)
        x[i] = before[s->order[i]];
}

static __attribute__((noinline)) void order_back(const struct stage *s, float *x)
{
    float before[QR_STAGE_CHANNELS];
    memcpy(before, x, s->channels * sizeof(*x));
    for (uint32_t i = 0; i < s->channels; i++)
        x[s->order[i]] = before[i];
}

/** One token of the unit to FP16 as the codec within sees it. */
static void forward(struct stage *s, const struct qr_rows *in, uint32_t token, uint16_t *out)
{
    const struct qr_codec_spec *spec = &s->tensor->spec;
    const uint32_t dim = s->tensor->dim;
    float *x = s->row;
    for (uint32_t h = 0; h < s->heads; h++)
        qr_row_kernels()->widen(in->data + token * in->token_stride +
                                    (s->head + h) * in->head_stride,
                                dim, x + (size_t)h * dim);
    if (s->affine)
        s->k->shift(x, s->channels, s->means, s->norms);
    if (s->order)
        order(s, x);
    if (s->flips)
        s->k->flip(x, dim, s->signs);
    rotate(s, x);
    s->k->narrow(x, s->channels, out);
    const uint32_t clip = spec->param[QR_PARAM_NUMBER];
    if (spec->codec != QR_CODEC_ROT || clip == 0)
        return;
    for (uint32_t h = 0; h < s->heads; h++)
        for (uint32_t c = 0; c < dim; c += spec->group) {
            const uint32_t n = dim - c < spec->group ? dim - c : spec->group;
            s->k->clip(out + (size_t)h * dim + c, n, (float)clip / 1000.0f);
        }
}

/** Tokens that the codec within can encode by themselves. */
static uint32_t block_tokens(const struct qr_tensor *t)
{
    if (t->spec.axis == QR_AXIS_TOKEN && t->spec.codec != QR_CODEC_NUQ)
        return QR_TOKENS_BATCH;
    return t->spec.codec == QR_CODEC_CHAN ? t->spec.group : t->tokens;
}

static void encode_block(const struct stage *s, const struct qr_codec_ops *inner,
                         const uint16_t *rows, uint32_t first, uint32_t count,
                         const uint8_t *raw_bitmap, uint8_t *codes, uint8_t *scales)
{
    const struct qr_tensor *t = s->tensor;
    const struct qr_tensor part = {qr_stage_inner(&t->spec), count, 1, t->dim, t->levels};
    const size_t row_bytes = qr_spec_row_bytes(&t->spec, t->dim);
    for (uint32_t h = 0; h < s->heads; h++) {
        const struct qr_rows in = {rows + (size_t)h * t->dim, s->channels, t->dim};
        const size_t head = s->head + h;
        inner->encode(
            &part, &in, raw_bitmap + first / 8, codes + (head * t->tokens + first) * row_bytes,
            scales + head * s->parts.head_bytes + s->parts.head_bytes * first / t->tokens);
    }
}

void qr_stage_encode(const struct qr_codec_ops *inner, const struct qr_tensor *t,
                     const struct qr_rows *in, const uint8_t *raw_bitmap, uint8_t *codes,
                     uint8_t *scales)
{
    struct stage s;
    _Alignas(64) uint16_t rows[QR_STAGE_ELEMENTS];
    const uint32_t step = block_tokens(t);
    start(&s, t);
    qr_stage_measure(t, &s.parts, in, raw_bitmap, scales);
    s.order = s.parts.order ? (uint16_t *)(void *)(scales + s.parts.order) : NULL;
    for (uint32_t head = 0; head < t->heads; head += s.heads) {
        enter_unit(&s, scales, head);
        for (uint32_t i = 0; s.affine && i < s.channels; i++)
            s.norms[i] = 1.0f / s.norms[i];
        assert((size_t)step * s.channels <= QR_STAGE_ELEMENTS);
        for (uint32_t first = 0; first < t->tokens; first += step) {
            for (uint32_t i = 0; i < step; i++) {
                uint16_t *row = rows + (size_t)i * s.channels;
                if (qr_page_is_raw(raw_bitmap, first + i))
                    memset(row, 0, s.channels * sizeof(*row));
                else
                    forward(&s, in, first + i, row);
            }
            encode_block(&s, inner, rows, first, step, raw_bitmap, codes, scales);
        }
    }
}

/** One decoded token of the unit back to what it was, and out. */
static void backward(const struct stage *s, float *x, uint32_t token,
                     const struct qr_expand *to)
{
    const struct qr_row_kernels *rows = qr_row_kernels();
    const uint32_t dim = s->tensor->dim;
    rotate(s, x);
    if (s->flips)
        s->k->flip(x, dim, s->signs);
    if (s->order)
        order_back(s, x);
    if (s->affine)
        s->k->restore(x, s->channels, s->norms, s->means);
    else
        s->k->limit(x, s->channels);
    const struct qr_emit how = qr_expand_emit(to, token);
    for (uint32_t h = 0; h < s->heads; h++) {
        const uint32_t head = s->head + h;
        if (head >= to->first_head && head < to->first_head + to->head_count)
            rows->emit(x + (size_t)h * dim, dim, &how, qr_expand_at(to, token, head));
    }
}

static void expand_unit(const struct stage *s, const struct qr_codec_ops *inner,
                        const uint8_t *codes, const uint8_t *scales, const struct qr_expand *to)
{
    const struct qr_tensor within = {qr_stage_inner(&s->tensor->spec), s->tensor->tokens,
                                     s->tensor->heads, s->tensor->dim, NULL};
    _Alignas(64) float wide[WIDE_ELEMENTS];
    const uint32_t fit = WIDE_ELEMENTS / s->channels;
    const uint32_t step = fit < QR_TOKENS_BATCH ? fit : QR_TOKENS_BATCH;
    const uint32_t last = to->first_token + to->token_count;
    for (uint32_t first = to->first_token, n; first < last; first += n) {
        n = last - first < step ? last - first : step;
        const struct qr_expand block = {
            .first_token = first,
            .token_count = n,
            .first_head = s->head,
            .head_count = s->heads,
            .raw_bitmap = to->raw_bitmap,
            .dtype = QR_F32,
            .dst = wide,
            .token_stride = s->channels * sizeof(float),
            .head_stride = s->tensor->dim * sizeof(float),
        };
        inner->expand(&within, codes, scales, &block);
        for (uint32_t i = 0; i < n; i++)
            if (!qr_page_is_raw(to->raw_bitmap, first + i))
                backward(s, wide + (size_t)i * s->channels, first + i, to);
    }
}

void qr_stage_expand(const struct qr_codec_ops *inner, const struct qr_tensor *t,
                     const uint8_t *codes, const uint8_t *scales, const struct qr_expand *to)
{
    struct stage s;
    start(&s, t);
    s.order = s.parts.order ? (const uint16_t *)(const void *)(scales + s.parts.order) : NULL;
    for (uint32_t head = 0; head < t->heads; head += s.heads) {
        enter_unit(&s, scales, head);
        if (head + s.heads > to->first_head && head < to->first_head + to->head_count)
            expand_unit(&s, inner, codes, scales, to);
    }
    qr_raw_rows_expand(t->heads, t->dim, to);
    qr_row_kernels()->fence();
}
