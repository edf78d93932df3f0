/* SPDX-License-Identifier: Apache-2.0
 *
 * Expansion of `chan` without a detour over FP32 rows, for the common
 * shapes: codes of 2, 4 or 8 bits, rows of whole blocks of 128 channels (or one
 * of 64), no rotation or half-layout rotation of the whole row. Same bits as
 * the general kernels; everything else is left to them.
 */
#include <immintrin.h>

#include "fused.h"
#include "proto/packing.h"
#include "vector_avx512.h"

#define ALWAYS static inline __attribute__((always_inline))
#define VECTORS 8 /* of 16 channels in a block of 128 */

/**
 * How a block of channels lies in its row: `planes` x `units` vectors of 16 words, vector
 * (p, u) holding channels first + p * words + 16 * u; words: of the whole row.
 */
struct block {
    uint32_t words, first; /* channels of plane 0: first .. first + 16 * units */
};

ALWAYS uint32_t channel_of(const struct block *b, int units, int v)
{
    return b->first + (uint32_t)(v / units) * b->words + 16u * (uint32_t)(v % units);
}

ALWAYS __m256i to_f16(__m512 x)
{
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

/** How rows leave: known at each call. */
struct way {
    enum qr_dtype dtype;
    bool turns, stream;
};

/** Store 32 channels that follow each other, as 2-byte values. Two halves measured faster into
 * the caches, whole lines past them. */
ALWAYS void put_halves(uint8_t *to, __m256i low, __m256i high, bool stream)
{
    if (stream) {
        const __m512i line = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        _mm512_stream_si512((void *)to, line);
    } else {
        _mm256_storeu_si256((void *)to, low);
        _mm256_storeu_si256((void *)(to + 32), high);
    }
}

/** 32 channels from `channel` of the row at `row`. */
ALWAYS void put(uint8_t *row, uint32_t channel, __m512 low, __m512 high, struct way way)
{
    if (way.dtype == QR_F16) {
        put_halves(row + 2 * channel, to_f16(low), to_f16(high), way.stream);
    } else if (way.dtype == QR_BF16) {
        put_halves(row + 2 * channel, vf_to_bf16(low), vf_to_bf16(high), way.stream);
    } else if (way.stream) {
        _mm512_stream_ps((void *)(row + 4 * channel), low);
        _mm512_stream_ps((void *)(row + 4 * channel + 64), high);
    } else {
        _mm512_storeu_ps((void *)(row + 4 * channel), low);
        _mm512_storeu_ps((void *)(row + 4 * channel + 64), high);
    }
}

/**
 * One block of `planes` x `units` vectors of a token. Codes are not shifted down: the scale of
 * plane p carries 2^(-width * p), which is exact.
 */
/* NOLINTNEXTLINE(readability-function-size): one inlined kernel, widths known at each call */
ALWAYS void expand_block(const uint8_t *row, const struct block *b, int planes, int units,
                         const __m512 *scale, const __m512 *minimum, const float *turn,
                         uint32_t half, uint8_t *to, struct way way)
{
    const int width = 16 / planes, vectors = planes * units;
    __m512i words[4];
    __m512 x[VECTORS];
    for (int u = 0; u < units; u++)
        words[u] = _mm512_cvtepu16_epi32(
            _mm256_loadu_si256((const void *)(row + 2 * (b->first + 16u * (uint32_t)u))));
    for (int v = 0; v < vectors; v++) {
        const int mask = ((1 << width) - 1) << (width * (v / units));
        const __m512i q = _mm512_and_si512(words[v % units], _mm512_set1_epi32(mask));
        x[v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(q), scale[v], minimum[v]);
    }
    for (int v = 0; turn && v < vectors / 2; v++) {
        const uint32_t at = channel_of(b, units, v);
        const __m512 c = _mm512_loadu_ps(turn + at), s = _mm512_loadu_ps(turn + half + at);
        const __m512 x1 = x[v], x2 = x[v + vectors / 2];
        x[v] = _mm512_fmsub_ps(x1, c, _mm512_mul_ps(x2, s));
        x[v + vectors / 2] = _mm512_fmadd_ps(x2, c, _mm512_mul_ps(x1, s));
    }
    for (int v = 0; v < vectors; v += 2) /* one unit: words == 16, the next plane follows */
        put(to, channel_of(b, units, v), x[v], x[v + 1], way);
}

/** The rows of one head that share scales, and where they go. */
struct span {
    const uint8_t *codes; /* row of token 0 */
    const void *scales;   /* of this head */
    uint32_t head, first, last, row_bytes;
};

ALWAYS bool skips(const struct qr_expand *to, uint32_t token)
{
    return qr_page_is_raw(to->raw_bitmap, token);
}

/** 2^(-width * plane) of vector v. */
ALWAYS __m512 down(int planes, int units, int v)
{
    return _mm512_set1_ps(1.0f / (float)(1u << (16 / planes * (v / units))));
}

/** Groups along tokens: scales stay in registers for the whole span. */
ALWAYS void span_channels(const struct qr_tensor *t, const struct span *s,
                          const struct block *b, int planes, int units,
                          const struct qr_expand *to, const float *turn, struct way way)
{
    const uint16_t *scales =
        (const uint16_t *)s->scales + (size_t)(s->first / t->spec.group) * 2 * t->dim;
    __m512 scale[VECTORS], minimum[VECTORS];
    for (int v = 0; v < planes * units; v++) {
        const uint16_t *at = scales + channel_of(b, units, v);
        scale[v] = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_loadu_si256((const void *)at)),
                                 down(planes, units, v));
        minimum[v] = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(at + t->dim)));
    }
    const uint8_t *row = s->codes + (size_t)s->first * s->row_bytes;
    uint8_t *at = qr_expand_at(to, s->first, s->head);
    const size_t dim = t->dim;
    turn = turn ? turn + s->first * dim : NULL;
    for (uint32_t token = s->first; token < s->last; token++) {
        if (!skips(to, token))
            expand_block(row, b, planes, units, scale, minimum, turn, (uint32_t)dim / 2, at,
                         way);
        row += s->row_bytes;
        at += to->token_stride;
        turn = turn ? turn + dim : NULL;
    }
}

/** Groups along channels: scales are broadcast row by row. */
ALWAYS void span_tokens(const struct qr_tensor *t, const struct span *s, const struct block *b,
                        int planes, int units, const struct qr_expand *to, const float *turn,
                        struct way way)
{
    const uint32_t group_bits = (uint32_t)__builtin_ctz(t->spec.group);
    const size_t groups = (t->dim + t->spec.group - 1u) >> group_bits;
    for (uint32_t token = s->first; token < s->last; token++) {
        const uint16_t *pairs = (const uint16_t *)s->scales + token * groups * 2;
        __m512 scale[VECTORS], minimum[VECTORS];
        for (int v = 0; v < planes * units; v++) {
            const uint16_t *pair = pairs + 2 * (channel_of(b, units, v) >> group_bits);
            scale[v] =
                _mm512_mul_ps(_mm512_set1_ps(_cvtsh_ss(pair[0])), down(planes, units, v));
            minimum[v] = _mm512_set1_ps(_cvtsh_ss(pair[1]));
        }
        if (!skips(to, token))
            expand_block(s->codes + (size_t)token * s->row_bytes, b, planes, units, scale,
                         minimum, turn ? turn + (size_t)token * t->dim : NULL, t->dim / 2,
                         qr_expand_at(to, token, s->head), way);
    }
}

/** All blocks of a span; `words` of a row, 0: only known at run time. */
ALWAYS void span_blocks(const struct qr_tensor *t, const struct span *s, int planes, int units,
                        uint32_t words, const struct qr_expand *to, struct way way)
{
    const float *turn = way.turns ? to->rotation : NULL;
    struct block b = {words ? words : t->dim / (uint32_t)planes, 0};
    for (; b.first < b.words; b.first += 16u * (uint32_t)units)
        if (t->spec.axis == QR_AXIS_CHANNEL)
            span_channels(t, s, &b, planes, units, to, turn, way);
        else
            span_tokens(t, s, &b, planes, units, to, turn, way);
}

/** One function per shape, straight code for each output type, with and without rotation; FP16
 * also for each kind of store. */
#define SPAN_OF(name, planes, units, words)                                                    \
    static void name(const struct qr_tensor *t, const struct span *s,                          \
                     const struct qr_expand *to, bool stream)                                  \
    {                                                                                          \
        if (to->dtype == QR_F16 && stream)                                                     \
            SPAN_TURNS(planes, units, words, QR_F16, true);                                    \
        else if (to->dtype == QR_F16)                                                          \
            SPAN_TURNS(planes, units, words, QR_F16, false);                                   \
        else if (to->dtype == QR_BF16)                                                         \
            SPAN_TURNS(planes, units, words, QR_BF16, stream);                                 \
        else                                                                                   \
            SPAN_TURNS(planes, units, words, QR_F32, stream);                                  \
    }
#define SPAN_TURNS(planes, units, words, dtype, stream)                                        \
    do {                                                                                       \
        if (to->rotation)                                                                      \
            span_blocks(t, s, planes, units, words, to, (struct way){dtype, true, stream});    \
        else                                                                                   \
            span_blocks(t, s, planes, units, words, to, (struct way){dtype, false, stream});   \
    } while (0)
SPAN_OF(span_2_128, 8, 1, 16)
SPAN_OF(span_4_64, 4, 1, 16)
SPAN_OF(span_4_128, 4, 2, 32)
SPAN_OF(span_4_any, 4, 2, 0)
SPAN_OF(span_8_64, 2, 2, 32)
SPAN_OF(span_8_128, 2, 4, 64)
SPAN_OF(span_8_any, 2, 4, 0)

typedef void span_fn(const struct qr_tensor *t, const struct span *s,
                     const struct qr_expand *to, bool stream);

static span_fn *span_for(const struct qr_tensor *t)
{
    static const struct {
        uint32_t bits, dim; /* dim 0: any multiple of 128 */
        span_fn *span;
    } spans[] = {{2, 128, span_2_128}, {4, 64, span_4_64}, {4, 128, span_4_128},
                 {4, 0, span_4_any},   {8, 64, span_8_64}, {8, 128, span_8_128},
                 {8, 0, span_8_any}};
    for (size_t i = 0; i < sizeof(spans) / sizeof(spans[0]); i++)
        if (spans[i].bits == t->spec.bits &&
            (spans[i].dim ? spans[i].dim == t->dim : t->dim % 128 == 0))
            return spans[i].span;
    return NULL;
}

bool qr_fused_multiply(const struct qr_tensor *t, const uint8_t *codes, const uint8_t *scales,
                       const struct qr_expand *to)
{
    const bool turns = to->rotation != NULL;
    span_fn *span = span_for(t);
    if (!span || (turns && (to->rope_layout != QR_ROPE_HALF || to->rotary_dim != t->dim)))
        return false;
    const size_t row_bytes = qr_row_bytes(t->dim, t->spec.bits);
    const size_t head_scales = qr_spec_scales_bytes(&t->spec, t->tokens, 1, t->dim);
    const uint32_t last = to->first_token + to->token_count, step = t->spec.group;
    const bool stream = qr_expand_streams(to);
    for (uint32_t i = 0; i < to->head_count; i++) { /* heads outside: codes are read in order */
        struct span s = {.codes = codes + (to->first_head + i) * t->tokens * row_bytes,
                         .scales = scales + (to->first_head + i) * head_scales,
                         .head = to->first_head + i,
                         .last = to->first_token,
                         .row_bytes = (uint32_t)row_bytes};
        while (s.last < last) {
            s.first = s.last;
            s.last = s.first - s.first % step + step;
            s.last = s.last < last ? s.last : last;
            span(t, &s, to, stream);
        }
    }
    return true;
}
