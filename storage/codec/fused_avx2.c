/* SPDX-License-Identifier: Apache-2.0
 *
 * Expansion of `chan` for AVX2 without a detour over FP32 rows: codes of 2, 4
 * or 8 bits whose planes are whole vectors, no rotation or half-layout rotation
 * of the whole row. Same bits as the general kernels; everything else is left
 * to them.
 */
#include <immintrin.h>

#include "fused.h"
#include "proto/packing.h"
#include "vector_avx2.h"

#define ALWAYS static inline __attribute__((always_inline))
#define UNITS_MAX 4    /* vectors of 8 words in a block: a plane of it is a line */
#define TURN_TOKENS 32 /* whose angles stay in the first cache */

/** What is known where a kernel is compiled: its loops unroll, its branches go. */
struct shape {
    int planes, units; /* codes of a word; vectors of 8 words in a block */
    enum qr_axis axis;
    enum qr_dtype dtype;
    bool turns, stream;
};

/** One row of a head: where its codes lie, where its values go. */
struct row {
    const uint8_t *codes;
    uint8_t *to;
    const float *turn;  /* cosines, then sines, of its token */
    const float *pairs; /* groups along channels: {scale, minimum} of each */
};

/** What the rows of a span have in common. */
struct span {
    uint32_t words, dim, group_log2;
    /* Groups along tokens. The scale of plane p carries 2^(-width * p), which is exact: codes
     * are masked where they stand, not shifted down. */
    _Alignas(64) float factors[2 * QR_DIM_MAX]; /* 8 scales, 8 minima, and so on */
};

ALWAYS __m256 down(const struct shape *h, int plane)
{
    return _mm256_set1_ps(1.0f / (float)(1u << (16 / h->planes * plane)));
}

struct factors {
    __m256 scale, minimum;
};

/** Factors of the 8 channels at `channel`, in plane `plane`. */
ALWAYS struct factors factors_at(const struct shape *h, const struct span *s,
                                 const struct row *row, uint32_t channel, int plane)
{
    if (h->axis == QR_AXIS_CHANNEL)
        return (struct factors){_mm256_load_ps(s->factors + 2 * channel),
                                _mm256_load_ps(s->factors + 2 * channel + LANES)};
    const float *pair = row->pairs + 2 * (channel >> s->group_log2);
    return (struct factors){_mm256_mul_ps(_mm256_broadcast_ss(pair), down(h, plane)),
                            _mm256_broadcast_ss(pair + 1)};
}

ALWAYS __m256 decode(const struct shape *h, __m256i words, int plane, struct factors f)
{
    const int width = 16 / h->planes;
    const __m256i mask = _mm256_set1_epi32(((1 << width) - 1) << (width * plane));
    const __m256 q = _mm256_cvtepi32_ps(_mm256_and_si256(words, mask));
    return _mm256_fmadd_ps(q, f.scale, f.minimum);
}

/** 8 * units channels from `channel` of a row: whole lines leave in one burst, which
 * write-combining buffers need. */
ALWAYS void put(const struct shape *h, uint8_t *row, uint32_t channel, const __m256 *x)
{
    float *wide = (float *)(void *)row + channel;
    uint16_t *to = (uint16_t *)(void *)row + channel;
    __m128i y[UNITS_MAX];
    for (int u = 0; u < h->units && h->dtype == QR_F32; u++)
        vf_store(wide + LANES * u, x[u], LANES);
    if (h->dtype == QR_F32)
        return;
    for (int u = 0; u < h->units; u++)
        y[u] = h->dtype == QR_F16 ? vf_to_f16(x[u]) : vf_to_bf16(x[u]);
    for (int u = 0; u < h->units; u++)
        if (!h->stream)
            vh_store(to + LANES * u, y[u], LANES);
        else if (h->units == 1)
            vh_stream(to, y[u]);
        else if (u % 2)
            _mm256_stream_si256((void *)(to + LANES * (u - 1)),
                                _mm256_set_m128i(y[u], y[u - 1]));
}

/** Words first .. first + 8 * units - 1 of one row, plane by plane, with partners half the row
 * further when rows turn. */
ALWAYS void expand_block(const struct shape *h, const struct span *s, const struct row *row,
                         uint32_t first)
{
    const uint32_t half = s->dim / 2;
    __m256i words[UNITS_MAX];
    for (int u = 0; u < h->units; u++)
        words[u] = _mm256_cvtepu16_epi32(
            _mm_loadu_si128((const void *)(row->codes + 2 * (first + 8u * (uint32_t)u))));
    for (int plane = 0; plane < (h->turns ? h->planes / 2 : h->planes); plane++) {
        const int partner = plane + h->planes / 2;
        const uint32_t channel = (uint32_t)plane * s->words + first;
        __m256 x[UNITS_MAX], y[UNITS_MAX];
        for (int u = 0; u < h->units; u++) {
            const uint32_t at = channel + 8u * (uint32_t)u;
            const __m256 x1 = decode(h, words[u], plane, factors_at(h, s, row, at, plane));
            x[u] = x1;
            if (!h->turns)
                continue;
            const __m256 x2 =
                decode(h, words[u], partner, factors_at(h, s, row, at + half, partner));
            const __m256 c = _mm256_loadu_ps(row->turn + at);
            const __m256 sine = _mm256_loadu_ps(row->turn + half + at);
            x[u] = vf_fms(x1, c, vf_mul(x2, sine));
            y[u] = vf_fma(x2, c, vf_mul(x1, sine));
        }
        put(h, row->to, channel, x);
        if (h->turns)
            put(h, row->to, channel + half, y);
    }
}

/** A whole row. Widths of blocks are compiled in: whole lines first. */
ALWAYS void expand_row(struct shape h, const struct span *s, const struct row *row)
{
    uint32_t first = 0;
    for (h.units = 4; first + 32 <= s->words; first += 32)
        expand_block(&h, s, row, first);
    for (h.units = 2; first + 16 <= s->words; first += 16)
        expand_block(&h, s, row, first);
    for (h.units = 1; first < s->words; first += 8)
        expand_block(&h, s, row, first);
}

/** Factors of one group along tokens. */
ALWAYS void load_factors(const struct shape *h, struct span *s, const uint16_t *scales)
{
    for (int plane = 0; plane < h->planes; plane++)
        for (uint32_t w = 0; w < s->words; w += LANES) {
            const uint32_t at = (uint32_t)plane * s->words + w;
            const __m256 scale = vf_from_f16(vh_load(scales + at, LANES));
            _mm256_store_ps(s->factors + 2 * at, _mm256_mul_ps(scale, down(h, plane)));
            _mm256_store_ps(s->factors + 2 * at + LANES,
                            vf_from_f16(vh_load(scales + s->dim + at, LANES)));
        }
}

/** One head's part of a tensor. */
struct part {
    const uint8_t *codes;
    const uint16_t *scales;
    uint32_t head;
};

/** FP32 of the pairs of a row; nothing behind them is read. */
ALWAYS void widen_pairs(const uint16_t *in, uint32_t count, float *out)
{
    for (; count >= 4; count -= 4, in += 8, out += 8)
        _mm256_store_ps(out, vf_from_f16(vh_load(in, LANES)));
    for (; count >= 1; count--, in += 2, out += 2)
        _mm_storel_pi((void *)out, _mm_cvtph_ps(_mm_loadu_si32(in)));
}

/** Tokens first .. last - 1 of a head, all of one group when groups run along tokens. */
ALWAYS void expand_span(const struct shape *h, const struct qr_tensor *t, const struct part *p,
                        uint32_t first, uint32_t last, const struct qr_expand *to)
{
    const uint32_t row_bytes = qr_row_bytes(t->dim, t->spec.bits);
    const uint32_t groups = (t->dim + t->spec.group - 1u) / t->spec.group;
    _Alignas(64) uint8_t area[sizeof(struct span) + QR_APART_BYTES];
    _Alignas(32) float pairs[2 * QR_DIM_MAX / 16];
    struct span *s = qr_apart(area, qr_expand_at(to, first, p->head), 2 * t->dim);
    s->dim = t->dim;
    s->words = qr_plane_words(t->dim, t->spec.bits);
    s->group_log2 = (uint32_t)__builtin_ctz(t->spec.group);
    if (h->axis == QR_AXIS_CHANNEL)
        load_factors(h, s, p->scales + (size_t)(first / t->spec.group) * 2 * t->dim);
    for (uint32_t token = first; token < last; token++) { /* raw rows come later */
        const struct row row = {p->codes + token * row_bytes, qr_expand_at(to, token, p->head),
                                h->turns ? to->rotation + (size_t)token * t->dim : NULL, pairs};
        if (h->axis == QR_AXIS_TOKEN)
            widen_pairs(p->scales + (size_t)token * 2 * groups, groups, pairs);
        expand_row(*h, s, &row);
    }
}

/** Some tokens of a head. */
ALWAYS void expand_part(const struct shape *h, const struct qr_tensor *t, const struct part *p,
                        uint32_t first, uint32_t end, const struct qr_expand *to)
{
    const uint32_t group = h->axis == QR_AXIS_CHANNEL ? t->spec.group : QR_PAGE_TOKENS_MAX;
    for (uint32_t last; first < end; first = last) {
        last = first - first % group + group;
        last = last < end ? last : end;
        expand_span(h, t, p, first, last, to);
    }
}

/** Heads outside: their codes follow each other, and memory is read in order. Rows that turn
 * are taken TURN_TOKENS at a time, so that their angles stay in the cache for all heads. */
ALWAYS void expand_tensor(struct shape h, const struct qr_tensor *t, const uint8_t *codes,
                          const uint8_t *scales, const struct qr_expand *to)
{
    const size_t codes_bytes = (size_t)t->tokens * qr_row_bytes(t->dim, t->spec.bits);
    const size_t scales_bytes = qr_spec_scales_bytes(&t->spec, t->tokens, 1, t->dim);
    const uint32_t end = to->first_token + to->token_count;
    for (uint32_t first = to->first_token, last; first < end; first = last) {
        last = h.turns ? first - first % TURN_TOKENS + TURN_TOKENS : end;
        last = last < end ? last : end;
        for (uint32_t i = 0; i < to->head_count; i++) {
            const uint32_t head = to->first_head + i;
            const struct part p = {codes + head * codes_bytes,
                                   (const void *)(scales + head * scales_bytes), head};
            expand_part(&h, t, &p, first, last, to);
        }
    }
}

/* ---- one function per shape ---- */

typedef void expand_fn(const struct qr_tensor *t, const uint8_t *codes, const uint8_t *scales,
                       const struct qr_expand *to);

#define SHAPE(name, planes, axis, dtype, turns, stream)                                        \
    static void name(const struct qr_tensor *t, const uint8_t *codes, const uint8_t *scales,   \
                     const struct qr_expand *to)                                               \
    {                                                                                          \
        expand_tensor((struct shape){planes, 0, axis, dtype, turns, stream}, t, codes, scales, \
                      to);                                                                     \
    }
#define STORES(name, planes, axis, dtype, turns)                                               \
    SHAPE(name##_cached, planes, axis, dtype, turns, false)                                    \
    SHAPE(name##_streamed, planes, axis, dtype, turns, true)
#define TYPES(name, planes, axis, turns)                                                       \
    STORES(name##_f16, planes, axis, QR_F16, turns)                                            \
    STORES(name##_bf16, planes, axis, QR_BF16, turns)                                          \
    SHAPE(name##_f32_cached, planes, axis, QR_F32, turns, false)
#define WAYS(bits, planes)                                                                     \
    TYPES(channel_##bits, planes, QR_AXIS_CHANNEL, false)                                      \
    TYPES(turned_##bits, planes, QR_AXIS_CHANNEL, true)                                        \
    TYPES(token_##bits, planes, QR_AXIS_TOKEN, false)
WAYS(2, 8)
WAYS(4, 4)
WAYS(8, 2)

#define LIST_TYPES(name)                                                                       \
    {                                                                                          \
        {name##_f16_cached, name##_f16_streamed}, {name##_bf16_cached, name##_bf16_streamed},  \
        {                                                                                      \
            name##_f32_cached, name##_f32_cached                                               \
        }                                                                                      \
    }
#define LIST_WAYS(bits)                                                                        \
    {                                                                                          \
        LIST_TYPES(channel_##bits), LIST_TYPES(turned_##bits), LIST_TYPES(token_##bits)        \
    }

bool qr_fused_multiply_avx2(const struct qr_tensor *t, const uint8_t *codes,
                            const uint8_t *scales, const struct qr_expand *to)
{
    /* bits 2, 4, 8; channel, channel and turned, token; type; cached, streamed */
    static expand_fn *const functions[3][3][3][2] = {LIST_WAYS(2), LIST_WAYS(4), LIST_WAYS(8)};
    const uint32_t bits = t->spec.bits,
                   way = t->spec.axis == QR_AXIS_TOKEN ? 2 : !!to->rotation;
    const uint32_t multiple = bits == 3 ? 0 : 128 / bits;
    if (!multiple || t->dim % multiple)
        return false;
    if (to->rotation &&
        (way == 2 || to->rope_layout != QR_ROPE_HALF || to->rotary_dim != t->dim))
        return false;
    /* Lines must fill in order; planes of other rows start in the middle of a vector. */
    const uint32_t words = qr_plane_words(t->dim, bits);
    const bool stream = qr_expand_streams(to) && (words % 16 == 0 || words == 8);
    functions[bits / 4][way][to->dtype - QR_F16][stream](t, codes, scales, to);
    return true;
}
