/* SPDX-License-Identifier: Apache-2.0
 *
 * `nuq`: groups scaled to -1..1, codes into the level table of the layer, and
 * the few elements that would stretch their groups kept exactly beside them
 * (docs/FORMULAS.md). This file walks heads, groups and tokens. Must not know
 * instruction sets, nor where a table comes from.
 */
#include "nuq.h"

#include <math.h>
#include <string.h>

#include "hybrid.h"
#include "kernels.h"
#include "levels.h"
#include "proto/cpu.h"
#include "proto/packing.h"
#include "proto/quant.h"
#include "proto/quant_rotate.h"
#include "proto/spec_parts.h"
#include "stage_measure.h"

static qr_nuq_encode_fn *encode_row(void)
{
#if defined(__x86_64__)
    if (qr_isa() >= QR_ISA_AVX512)
        return qr_nuq_encode_avx512;
    if (qr_isa() >= QR_ISA_AVX2)
        return qr_nuq_encode_avx2;
#endif
    return qr_nuq_encode_scalar;
}

static quire_status check(const struct qr_tensor *t, struct qr_error *e)
{
    return qr_spec_check_tensor(&t->spec, t->tokens, t->heads, t->dim, "nuq", e);
}

/** Range, scale and middle of every channel of a row. */
struct ranges {
    float low[QR_DIM_MAX], high[QR_DIM_MAX];
    float scale[QR_DIM_MAX], middle[QR_DIM_MAX], reciprocal[QR_DIM_MAX];
    uint16_t scale16[QR_DIM_MAX], middle16[QR_DIM_MAX];
};

/** A head that is encoded, with its outliers known. */
struct work {
    const struct qr_nuq_head *head;
    const uint64_t *marks;
    struct qr_nuq_factors factors;
    struct ranges r;
    float row[QR_DIM_MAX];
};

static bool marked(const struct work *w, uint32_t token, uint32_t channel)
{
    const uint32_t position = token * w->head->tensor->dim + channel;
    return w->marks[position / 64] >> position % 64 & 1u;
}

/** The next channel at or after `from` that is an outlier of the token; dim when none is. */
static uint32_t next_mark(const struct work *w, uint32_t token, uint32_t from)
{
    const uint32_t dim = w->head->tensor->dim;
    while (from < dim && !marked(w, token, from)) {
        const uint32_t position = token * dim + from;
        const uint64_t rest = w->marks[position / 64] >> position % 64;
        const uint32_t skip = rest ? (uint32_t)__builtin_ctzll(rest) : 64u - position % 64u;
        from = from + skip < dim ? from + skip : dim;
    }
    return from;
}

static void load_row(struct work *w, uint32_t token)
{
    const struct qr_nuq_head *h = w->head;
    qr_row_kernels()->widen(h->x + token * h->stride, h->tensor->dim, w->row);
}

static void finish_range(struct ranges *r, uint32_t c)
{
    const bool any = r->low[c] <= r->high[c];
    const float low = any ? r->low[c] : 0.0f, high = any ? r->high[c] : 0.0f;
    r->middle16[c] = qr_f16_from_f32((low + high) * 0.5f);
    r->middle[c] = qr_f16_to_f32(r->middle16[c]);
    const float above = high - r->middle[c], below = r->middle[c] - low;
    r->scale16[c] = qr_f16_from_f32(qr_rotate_limit(above > below ? above : below));
    r->scale[c] = qr_f16_to_f32(r->scale16[c]);
    r->reciprocal[c] = qr_quant_reciprocal(r->scale16[c]);
}

/** Codes of a token whose ranges are known; outliers get code 0. */
static void encode_token(struct work *w, uint32_t token, uint8_t *codes)
{
    const struct qr_tensor *t = w->head->tensor;
    uint16_t found[QR_DIM_MAX + QR_LEVELS_PAD];
    encode_row()(w->row, t->dim, &w->factors, found);
    for (uint32_t c = 0; (c = next_mark(w, token, c)) < t->dim; c++)
        found[c] = 0;
    memset(found + t->dim, 0, QR_LEVELS_PAD * sizeof(*found));
    qr_levels_kernels()->pack(found, t->dim, t->spec.bits, codes);
}

/* ---- groups along tokens ---- */

static void widen_ranges(struct work *w, uint32_t token)
{
    const uint32_t dim = w->head->tensor->dim;
    if (next_mark(w, token, 0) == dim) {
        qr_hybrid_kernels()->range(w->row, dim, w->r.low, w->r.high);
        return;
    }
    for (uint32_t c = 0; c < dim; c++) {
        if (marked(w, token, c))
            continue;
        w->r.low[c] = w->row[c] <= w->r.low[c] ? w->row[c] : w->r.low[c];
        w->r.high[c] = w->row[c] >= w->r.high[c] ? w->row[c] : w->r.high[c];
    }
}

static void encode_channels(struct work *w, uint32_t first, uint8_t *codes, uint16_t *scales)
{
    const struct qr_tensor *t = w->head->tensor;
    const uint32_t row_bytes = qr_row_bytes(t->dim, t->spec.bits);
    for (uint32_t c = 0; c < t->dim; c++) {
        w->r.low[c] = INFINITY;
        w->r.high[c] = -INFINITY;
    }
    for (uint32_t i = 0; i < t->spec.group; i++) {
        if (qr_page_is_raw(w->head->raw, first + i))
            continue;
        load_row(w, first + i);
        widen_ranges(w, first + i);
    }
    for (uint32_t c = 0; c < t->dim; c++)
        finish_range(&w->r, c);
    memcpy(scales, w->r.scale16, t->dim * sizeof(*scales));
    memcpy(scales + t->dim, w->r.middle16, t->dim * sizeof(*scales));
    for (uint32_t i = 0; i < t->spec.group; i++) {
        uint8_t *row = codes + (size_t)(first + i) * row_bytes;
        if (qr_page_is_raw(w->head->raw, first + i)) {
            memset(row, 0, row_bytes);
            continue;
        }
        load_row(w, first + i);
        encode_token(w, first + i, row);
    }
}

/* ---- groups along channels ---- */

static void encode_groups(struct work *w, uint32_t token, uint8_t *codes, uint16_t *pairs)
{
    const struct qr_tensor *t = w->head->tensor;
    struct ranges *r = &w->r;
    load_row(w, token);
    for (uint32_t first = 0, n; first < t->dim; first += n, pairs += 2) {
        n = t->dim - first < t->spec.group ? t->dim - first : t->spec.group;
        r->low[first] = INFINITY;
        r->high[first] = -INFINITY;
        for (uint32_t c = first; c < first + n; c++) {
            if (marked(w, token, c))
                continue;
            r->low[first] = w->row[c] <= r->low[first] ? w->row[c] : r->low[first];
            r->high[first] = w->row[c] >= r->high[first] ? w->row[c] : r->high[first];
        }
        finish_range(r, first);
        pairs[0] = r->scale16[first];
        pairs[1] = r->middle16[first];
        for (uint32_t c = first + 1; c < first + n; c++) {
            r->middle[c] = r->middle[first];
            r->reciprocal[c] = r->reciprocal[first];
        }
    }
    encode_token(w, token, codes);
}

static void encode_head(const struct qr_nuq_head *h, uint8_t *codes, uint16_t *scales)
{
    const struct qr_tensor *t = h->tensor;
    uint64_t marks[QR_NUQ_HEAD_MAX / 64] = {0};
    struct work w = {
        .head = h,
        .marks = marks,
        .factors = {.middle = w.r.middle, .reciprocal = w.r.reciprocal, .bits = t->spec.bits}};
    const uint32_t row_bytes = qr_row_bytes(t->dim, t->spec.bits);
    const size_t pairs = (t->dim + t->spec.group - 1u) / t->spec.group * 2u;
    for (uint32_t i = 0; i + 1 < 1u << t->spec.bits; i++)
        w.factors.borders[i] =
            (qr_f16_to_f32(t->levels[i]) + qr_f16_to_f32(t->levels[i + 1])) * 0.5f;
    if (h->most)
        qr_nuq_choose(h, marks);
    if (t->spec.axis == QR_AXIS_CHANNEL) {
        for (uint32_t first = 0; first < t->tokens; first += t->spec.group)
            encode_channels(&w, first, codes,
                            scales + (size_t)(first / t->spec.group) * 2 * t->dim);
        return;
    }
    for (uint32_t token = 0; token < t->tokens; token++)
        if (qr_page_is_raw(h->raw, token)) {
            memset(codes + (size_t)token * row_bytes, 0, row_bytes);
            memset(scales + token * pairs, 0, pairs * sizeof(*scales));
        } else {
            encode_groups(&w, token, codes + (size_t)token * row_bytes, scales + token * pairs);
        }
}

static void encode(const struct qr_tensor *t, const struct qr_rows *in,
                   const uint8_t *raw_bitmap, uint8_t *codes, uint8_t *scales)
{
    struct qr_spec_parts parts = {0};
    (void)qr_spec_parts(&t->spec, t->tokens, t->heads, t->dim, &parts);
    const size_t codes_bytes = qr_row_bytes(t->dim, t->spec.bits) * (size_t)t->tokens;
    for (uint32_t head = 0; head < t->heads; head++) {
        uint8_t *at = scales + head * parts.head_bytes;
        const struct qr_nuq_head h = {
            .tensor = t,
            .x = in->data + head * in->head_stride,
            .stride = in->token_stride,
            .raw = raw_bitmap,
            .outliers = (uint16_t *)(void *)(at + parts.head_outliers),
            .most = parts.outliers,
        };
        encode_head(&h, codes + head * codes_bytes, (uint16_t *)(void *)at);
    }
}

/* ---- decoding ---- */

/** Scales and middles of the channels of a token. */
static void load_factors(const struct qr_tensor *t, const uint16_t *scales, uint32_t token,
                         struct ranges *r)
{
    const uint32_t group = t->spec.group;
    if (t->spec.axis == QR_AXIS_CHANNEL) {
        const uint16_t *at = scales + (size_t)(token / group) * 2 * t->dim;
        qr_row_kernels()->widen(at, t->dim, r->scale);
        qr_row_kernels()->widen(at + t->dim, t->dim, r->middle);
        return;
    }
    const uint16_t *pair = scales + (size_t)token * ((t->dim + group - 1u) / group) * 2;
    for (uint32_t first = 0; first < t->dim; first += group, pair += 2) {
        const float scale = qr_f16_to_f32(pair[0]), middle = qr_f16_to_f32(pair[1]);
        for (uint32_t c = first; c < first + group && c < t->dim; c++) {
            r->scale[c] = scale;
            r->middle[c] = middle;
        }
    }
}

/** Index of the first outlier at or after a position. */
static uint32_t first_outlier(const uint16_t *positions, uint32_t count, uint32_t position)
{
    uint32_t low = 0;
    for (uint32_t high = count; low < high;) {
        const uint32_t middle = (low + high) / 2;
        if (positions[middle] < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void expand_head(const struct qr_tensor *t, const struct qr_spec_parts *parts,
                        const uint8_t *codes, const uint8_t *scales, const float table[16],
                        uint32_t head, const struct qr_expand *to)
{
    const uint16_t *outliers = (const uint16_t *)(const void *)(scales + parts->head_outliers);
    const uint32_t count = parts->outliers && outliers[0] <= parts->outliers ? outliers[0] : 0;
    const uint16_t *positions = outliers + 1, *values = positions + parts->outliers;
    const size_t row_bytes = qr_row_bytes(t->dim, t->spec.bits);
    struct ranges r;
    float row[QR_DIM_MAX];
    uint32_t next = count ? first_outlier(positions, count, to->first_token * t->dim) : 0;
    uint32_t loaded = UINT32_MAX; /* group of tokens whose factors are there */
    for (uint32_t token = to->first_token; token < to->first_token + to->token_count; token++) {
        const uint32_t end = (token + 1) * t->dim;
        if (qr_page_is_raw(to->raw_bitmap, token))
            continue;
        const uint32_t group = t->spec.axis == QR_AXIS_CHANNEL ? token / t->spec.group : token;
        if (group != loaded)
            load_factors(t, (const uint16_t *)(const void *)scales, token, &r);
        loaded = group;
        qr_levels_kernels()->lookup(codes + token * row_bytes, t->dim, t->spec.bits, table,
                                    row);
        qr_stage_kernels()->restore(row, t->dim, r.scale, r.middle);
        while (next < count && positions[next] < token * t->dim)
            next++; /* of raw rows, in pages that somebody else made */
        for (; next < count && positions[next] < end; next++)
            row[positions[next] % t->dim] = qr_f16_to_f32(values[next]);
        const struct qr_emit how = qr_expand_emit(to, token);
        qr_row_kernels()->emit(row, t->dim, &how, qr_expand_at(to, token, head));
    }
}

static void expand(const struct qr_tensor *t, const uint8_t *codes, const uint8_t *scales,
                   const struct qr_expand *to)
{
    struct qr_spec_parts parts = {0};
    float table[16];
    (void)qr_spec_parts(&t->spec, t->tokens, t->heads, t->dim, &parts);
    const uint16_t *levels = (const uint16_t *)(const void *)(scales + parts.levels);
    const size_t codes_bytes = qr_row_bytes(t->dim, t->spec.bits) * (size_t)t->tokens;
    for (uint32_t i = 0; i < 16; i++)
        table[i] = qr_f16_to_f32(levels[i & qr_quant_top(t->spec.bits)]);
    for (uint32_t head = to->first_head; head < to->first_head + to->head_count; head++)
        expand_head(t, &parts, codes + head * codes_bytes, scales + head * parts.head_bytes,
                    table, head, to);
    qr_raw_rows_expand(t->heads, t->dim, to);
    qr_row_kernels()->fence();
}

const struct qr_codec_ops qr_codec_nuq = {QR_CODEC_NUQ, "nuq", check, encode, expand};
