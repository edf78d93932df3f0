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

/** How rows turn: half layout of the whole row or of its first half; neighbours of the whole
 * row. In the half layouts partners are whole planes apart. */
enum turn { TURN_NONE, TURN_ROW, TURN_HALF_ROW, TURN_PAIRS };

/** What is known where a kernel is compiled: its loops unroll, its branches go. */
struct shape {
    int planes, units; /* codes of a word; vectors of 8 words in a block */
    enum qr_axis axis;
    enum qr_dtype dtype;
    enum turn turn;
    bool stream;
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

/** Planes whose partners are as many planes further on. */
ALWAYS int turned_planes(const struct shape *h)
{
    return h->turn == TURN_ROW ? h->planes / 2 : h->turn == TURN_HALF_ROW ? h->planes / 4 : 0;
}

/** One plane that stays as it is, or whose neighbours turn. */
ALWAYS void expand_plane(const struct shape *h, const struct span *s, const struct row *row,
                         const __m256i *words, uint32_t first, int plane)
{
    const uint32_t channel = (uint32_t)plane * s->words + first;
    __m256 x[UNITS_MAX];
    for (int u = 0; u < h->units; u++) {
        const uint32_t at = channel + 8u * (uint32_t)u;
        x[u] = decode(h, words[u], plane, factors_at(h, s, row, at, plane));
        if (h->turn != TURN_PAIRS)
            continue;
        const vf c = vf_load_twice(row->turn + at / 2, LANES / 2);
        const vf sine = vf_load_twice(row->turn + s->dim / 2 + at / 2, LANES / 2);
        x[u] = vf_fma_alternating(x[u], c, vf_mul(vf_swap_pairs(x[u]), sine));
    }
    put(h, row->to, channel, x);
}

/** A plane and its partner, turned. */
ALWAYS void turn_planes(const struct shape *h, const struct span *s, const struct row *row,
                        const __m256i *words, uint32_t first, int plane)
{
    const int partner = plane + turned_planes(h);
    const uint32_t half = (uint32_t)turned_planes(h) * s->words;
    const uint32_t channel = (uint32_t)plane * s->words + first;
    __m256 x[UNITS_MAX], y[UNITS_MAX];
    for (int u = 0; u < h->units; u++) {
        const uint32_t at = channel + 8u * (uint32_t)u;
        const vf x1 = decode(h, words[u], plane, factors_at(h, s, row, at, plane));
        const vf x2 = decode(h, words[u], partner, factors_at(h, s, row, at + half, partner));
        const vf c = _mm256_loadu_ps(row->turn + at);
        const vf sine = _mm256_loadu_ps(row->turn + half + at);
        x[u] = vf_fms(x1, c, vf_mul(x2, sine));
        y[u] = vf_fma(x2, c, vf_mul(x1, sine));
    }
    put(h, row->to, channel, x);
    put(h, row->to, channel + half, y);
}

/** Words first .. first + 8 * units - 1 of one row, plane by plane. */
ALWAYS void expand_block(const struct shape *h, const struct span *s, const struct row *row,
                         uint32_t first)
{
    const int turned = turned_planes(h);
    __m256i words[UNITS_MAX];
    for (int u = 0; u < h->units; u++)
        words[u] = _mm256_cvtepu16_epi32(
            _mm_loadu_si128((const void *)(row->codes + 2 * (first + 8u * (uint32_t)u))));
    for (int plane = 0; plane < turned; plane++)
        turn_planes(h, s, row, words, first, plane);
    for (int plane = 2 * turned; plane < h->planes; plane++)
        expand_plane(h, s, row, words, first, plane);
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
                                h->turn ? to->rotation + (size_t)token * to->rotary_dim : NULL,
                                pairs};
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
        last = h.turn ? first - first % TURN_TOKENS + TURN_TOKENS : end;
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

#define SHAPE(name, planes, axis, dtype, turn, stream)                                         \
    static void name(const struct qr_tensor *t, const uint8_t *codes, const uint8_t *scales,   \
                     const struct qr_expand *to)                                               \
    {                                                                                          \
        expand_tensor((struct shape){planes, 0, axis, dtype, turn, stream}, t, codes, scales,  \
                      to);                                                                     \
    }
#define STORES(name, planes, axis, dtype, turn)                                                \
    SHAPE(name##_cached, planes, axis, dtype, turn, false)                                     \
    SHAPE(name##_streamed, planes, axis, dtype, turn, true)
#define TYPES(name, planes, axis, turn)                                                        \
    STORES(name##_f16, planes, axis, QR_F16, turn)                                             \
    STORES(name##_bf16, planes, axis, QR_BF16, turn)                                           \
    SHAPE(name##_f32, planes, axis, QR_F32, turn, false)
#define WAYS(bits, planes)                                                                     \
    TYPES(token_##bits, planes, QR_AXIS_TOKEN, TURN_NONE)                                      \
    TYPES(channel_##bits, planes, QR_AXIS_CHANNEL, TURN_NONE)                                  \
    TYPES(row_##bits, planes, QR_AXIS_CHANNEL, TURN_ROW)                                       \
    TYPES(half_##bits, planes, QR_AXIS_CHANNEL, TURN_HALF_ROW)                                 \
    TYPES(pairs_##bits, planes, QR_AXIS_CHANNEL, TURN_PAIRS)
WAYS(2, 8)
WAYS(4, 4)
WAYS(8, 2) /* half_8 is not called: half of a plane is no plane */

#define LIST_TYPES(name)                                                                       \
    {                                                                                          \
        {name##_f16_cached, name##_f16_streamed}, {name##_bf16_cached, name##_bf16_streamed},  \
        {                                                                                      \
            name##_f32, name##_f32                                                             \
        }                                                                                      \
    }
#define LIST_WAYS(bits)                                                                        \
    {                                                                                          \
        LIST_TYPES(channel_##bits), LIST_TYPES(row_##bits), LIST_TYPES(half_##bits),           \
            LIST_TYPES(pairs_##bits), LIST_TYPES(token_##bits)                                 \
    }
#define WAY_TOKEN 4 /* after the turns */
#define WAY_OTHER 5

static uint32_t way_of(const struct qr_tensor *t, const struct qr_expand *to)
{
    const bool token = t->spec.axis == QR_AXIS_TOKEN;
    if (!to->rotation)
        return token ? WAY_TOKEN : (uint32_t)TURN_NONE;
    if (token || (to->rotary_dim != t->dim && 2 * to->rotary_dim != t->dim))
        return WAY_OTHER;
    if (to->rope_layout == QR_ROPE_INTERLEAVED)
        return to->rotary_dim == t->dim ? (uint32_t)TURN_PAIRS : WAY_OTHER;
    if (to->rotary_dim == t->dim)
        return TURN_ROW;
    return t->spec.bits < 8 ? (uint32_t)TURN_HALF_ROW : WAY_OTHER;
}

bool qr_fused_multiply_avx2(const struct qr_tensor *t, const uint8_t *codes,
                            const uint8_t *scales, const struct qr_expand *to)
{
    /* bits 2, 4, 8; turns, token; type; cached, streamed */
    static expand_fn *const functions[3][WAY_OTHER][3][2] = {LIST_WAYS(2), LIST_WAYS(4),
                                                             LIST_WAYS(8)};
    const uint32_t bits = t->spec.bits, way = way_of(t, to);
    const uint32_t multiple = bits == 3 ? 0 : 128 / bits;
    if (!multiple || t->dim % multiple || way == WAY_OTHER)
        return false;
    /* Lines must fill in order; planes of other rows start in the middle of a vector. */
    const uint32_t words = qr_plane_words(t->dim, bits);
    const bool stream = qr_expand_streams(to) && (words % 16 == 0 || words == 8);
    functions[bits / 4][way][to->dtype - QR_F16][stream](t, codes, scales, to);
    return true;
}
