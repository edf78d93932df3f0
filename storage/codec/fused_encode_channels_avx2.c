/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding of `chan` with groups along tokens for AVX2: ranges of lines of 32
 * channels, then codes of two rows at a time. Same bits as the general kernels;
 * shapes whose planes are not whole vectors are left to them.
 */
#include <string.h>

#include "fused_encode_avx2.h"

/** A group: which of its rows take part, and what their codes are computed with. */
struct group {
    const struct qr_channel_group *g;
    uint32_t words, row_bytes, count;
    uint16_t member[QR_PAGE_TOKENS_MAX]; /* tokens that are not raw */
    _Alignas(32) uint16_t low[QR_DIM_MAX], high[QR_DIM_MAX];
    _Alignas(64) float factors[2 * QR_DIM_MAX]; /* 8 minima, 8 reciprocals, and so on */
};

/** Rows of zeros for raw tokens, a list of the others. */
static void list_members(struct group *m)
{
    const struct qr_channel_group *g = m->g;
    m->count = 0;
    for (uint32_t t = 0; t < g->tokens; t++)
        if (qr_page_is_raw(g->raw, g->first + t))
            memset(g->codes + t * m->row_bytes, 0, m->row_bytes);
        else
            m->member[m->count++] = (uint16_t)t;
}

/**
 * Running minimum and maximum without keys: as unsigned numbers the negative values come last,
 * the farthest from zero at the end; as signed ones the positive values do.
 */
struct extremes {
    __m256i most, highest, lowest; /* unsigned maximum, signed maximum, signed minimum */
};

/** Any negative value: the farthest one. None: the signed minimum. */
ALWAYS __m256i extremes_minimum(const struct extremes *e)
{
    return _mm256_blendv_epi8(e->lowest, e->most, _mm256_srai_epi16(e->most, 15));
}

/** Any positive value: the farthest one. None: the negative one nearest to zero. */
ALWAYS __m256i extremes_maximum(const struct extremes *e)
{
    return _mm256_blendv_epi8(e->highest, e->lowest, _mm256_srai_epi16(e->highest, 15));
}

/** Minima and maxima of `vectors` x 16 channels. */
ALWAYS void find_ranges(struct group *m, uint32_t channel, int vectors)
{
    struct extremes e[2];
    for (int v = 0; v < vectors; v++)
        e[v] = (struct extremes){_mm256_setzero_si256(), _mm256_set1_epi16(INT16_MIN),
                                 _mm256_set1_epi16(INT16_MAX)};
    for (uint32_t i = 0; i < m->count; i++) {
        const uint16_t *at = m->g->x + m->member[i] * m->g->stride + channel;
        for (int v = 0; v < vectors; v++) {
            const __m256i x = _mm256_loadu_si256((const void *)(at + 16 * v));
            e[v].most = _mm256_max_epu16(e[v].most, x);
            e[v].highest = _mm256_max_epi16(e[v].highest, x);
            e[v].lowest = _mm256_min_epi16(e[v].lowest, x);
        }
    }
    for (int v = 0; v < vectors; v++) {
        _mm256_storeu_si256((void *)(m->low + channel + 16 * v), extremes_minimum(&e[v]));
        _mm256_storeu_si256((void *)(m->high + channel + 16 * v), extremes_maximum(&e[v]));
    }
}

/** -0 came out as the minimum where +0 is as low; the formula says that the last zero of a
 * group wins. */
static void settle_zeros(struct group *m)
{
    for (uint32_t c = 0; c < m->g->dim; c++)
        for (uint32_t i = m->count; m->low[c] == NEGATIVE_ZERO && i-- > 0;) {
            const uint16_t x = m->g->x[m->member[i] * m->g->stride + c];
            if ((uint16_t)(x << 1) == 0) {
                m->low[c] = x;
                break;
            }
        }
}

static bool any_negative_zero(const struct group *m)
{
    __m256i found = _mm256_setzero_si256();
    for (uint32_t c = 0; c < m->g->dim; c += 16) {
        const __m256i x = _mm256_load_si256((const void *)(m->low + c));
        found = _mm256_or_si256(found,
                                _mm256_cmpeq_epi16(x, _mm256_set1_epi16((short)NEGATIVE_ZERO)));
    }
    return _mm256_movemask_epi8(found) != 0;
}

/** Scales and minima to the page, factors for the codes. True: codes must be clamped. */
ALWAYS bool finish_group(struct group *m, uint32_t bits)
{
    uint16_t *scales = m->g->scales;
    bool clamp = false;
    for (uint32_t c = 0; c < m->g->dim; c += LANES) {
        const vh low = vh_load(m->low + c, LANES);
        struct factors f;
        vh scale;
        clamp |= scales_of(low, vh_load(m->high + c, LANES), bits, &scale, &f);
        vh_store(scales + c, scale, LANES);
        vh_store(scales + m->g->dim + c, low, LANES);
        _mm256_store_ps(m->factors + 2 * c, f.minimum);
        _mm256_store_ps(m->factors + 2 * c + LANES, f.reciprocal);
    }
    return clamp;
}

/** Factors in registers: rows that share them need not load them again. */
ALWAYS struct factors factors_at(const struct group *m, uint32_t channel)
{
    struct factors f = {_mm256_load_ps(m->factors + 2 * channel),
                        _mm256_load_ps(m->factors + 2 * channel + LANES)};
    __asm__("" : "+x"(f.minimum), "+x"(f.reciprocal));
    return f;
}

/** The 8 words from `word` on of both rows. */
ALWAYS void pack_unit(const struct group *m, const struct row_pair *rows, uint32_t words,
                      uint32_t word, int planes, bool clamp, __m256i out[2])
{
    const int width = 16 / planes;
    for (int p = 0; p < planes; p++) {
        const uint32_t channel = (uint32_t)p * words + word;
        const struct factors f = factors_at(m, channel);
        for (int r = 0; r < 2; r++) {
            const __m256i q = codes_of(rows->x[r] + channel, f, width, clamp);
            out[r] = p ? _mm256_or_si256(out[r], _mm256_slli_epi32(q, width * p)) : q;
        }
    }
}

ALWAYS void pack_rows(const struct group *m, const struct row_pair *rows, uint32_t words,
                      int planes, bool clamp)
{
    uint32_t word = 0;
    __m256i a[2], b[2];
    for (; word + 16 <= words; word += 16) {
        pack_unit(m, rows, words, word, planes, clamp, a);
        pack_unit(m, rows, words, word + 8, planes, clamp, b);
        for (int r = 0; r < 2; r++)
            store_16_words(rows->codes[r] + 2 * word, a[r], b[r]);
    }
    if (word < words) {
        pack_unit(m, rows, words, word, planes, clamp, a);
        for (int r = 0; r < 2; r++)
            store_8_words(rows->codes[r] + 2 * word, a[r]);
    }
}

/** Fetch a row of the next group: hardware does not see across rows of other heads. The
 * address may lie past the input; a prefetch never faults. */
ALWAYS void fetch(const uint16_t *x, uint32_t dim)
{
    for (uint32_t c = 0; c < dim; c += 32)
        _mm_prefetch((const char *)(x + c), _MM_HINT_T1);
}

/** All rows, two at a time; an odd one is its own partner. */
ALWAYS void pack_group(const struct group *m, uint32_t words, int planes, bool clamp)
{
    const struct qr_channel_group *g = m->g;
    for (uint32_t i = 0; i < m->count; i += 2) {
        const uint32_t t[2] = {m->member[i], m->member[i + 1 < m->count ? i + 1 : i]};
        const struct row_pair rows = {
            {g->x + t[0] * g->stride, g->x + t[1] * g->stride},
            {g->codes + t[0] * m->row_bytes, g->codes + t[1] * m->row_bytes}};
        for (int r = 0; r < 2; r++)
            fetch(rows.x[r] + g->tokens * g->stride, g->dim);
        pack_rows(m, &rows, words, planes, clamp);
    }
}

ALWAYS void encode_group(struct group *m, int planes)
{
    const uint32_t bits = (uint32_t)(16 / planes), dim = m->g->dim,
                   words = dim / (uint32_t)planes;
    uint32_t c = 0;
    for (; c + 32 <= dim; c += 32)
        find_ranges(m, c, 2);
    for (; c < dim; c += 16)
        find_ranges(m, c, 1);
    if (any_negative_zero(m))
        settle_zeros(m);
    if (finish_group(m, bits))
        pack_group(m, words, planes, true);
    else if (dim == 128)
        pack_group(m, 128 / (uint32_t)planes, planes, false);
    else if (dim == 64)
        pack_group(m, 64 / (uint32_t)planes, planes, false);
    else
        pack_group(m, words, planes, false);
}

bool qr_fused_encode_channels_avx2(const struct qr_channel_group *g)
{
    struct group m;
    if (g->bits == 3 || g->dim % 16 || g->dim * g->bits % 128)
        return false;
    m.g = g;
    m.row_bytes = qr_row_bytes(g->dim, g->bits);
    list_members(&m);
    if (m.count == 0)
        memset(g->scales, 0, 4u * g->dim);
    else if (g->bits == 2)
        encode_group(&m, 8);
    else if (g->bits == 4)
        encode_group(&m, 4);
    else
        encode_group(&m, 2);
    return true;
}
