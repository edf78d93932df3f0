/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding of `chan` with groups along tokens, in blocks of up to 128 channels:
 * ranges, then codes of a group. Same bits as the general kernels; everything
 * else is left to them.
 */
#include <string.h>

#include "fused_encode_simd.h"

struct ranges {
    uint16_t low[128], high[128];
    float minimum[128], reciprocal[128];
};

/**
 * Running minimum and maximum without keys: as unsigned numbers the negative values come last,
 * the farthest from zero at the end; as signed ones the positive values do.
 */
struct extremes {
    __m512i most, highest, lowest; /* unsigned maximum, signed maximum, signed minimum */
};

ALWAYS void extremes_add(struct extremes *e, __m512i x)
{
    __asm__("" : "+v"(x)); /* loaded once: loads are what limits this pass */
    e->most = _mm512_max_epu16(e->most, x);
    e->highest = _mm512_max_epi16(e->highest, x);
    e->lowest = _mm512_min_epi16(e->lowest, x);
}

/** Any negative value: the farthest one. None: the signed minimum. */
ALWAYS __m512i extremes_minimum(const struct extremes *e)
{
    return _mm512_mask_mov_epi16(e->lowest, _mm512_movepi16_mask(e->most), e->most);
}

/** Any positive value: the farthest one. None: the negative one nearest to zero. */
ALWAYS __m512i extremes_maximum(const struct extremes *e)
{
    return _mm512_mask_mov_epi16(e->highest, _mm512_movepi16_mask(e->highest), e->lowest);
}

/** Minima and maxima of the channels of a block over the tokens that are not raw. */
ALWAYS void find_ranges(const struct qr_channel_group *g, uint32_t words, uint32_t first,
                        int planes, int units, struct ranges *out)
{
    struct extremes all[4];
    uint32_t from[4], next[4];
    const int pairs = planes * units / 2;
    for (int i = 0; i < pairs; i++) {
        all[i] = (struct extremes){_mm512_setzero_si512(), _mm512_set1_epi16(INT16_MIN),
                                   _mm512_set1_epi16(INT16_MAX)};
        from[i] = channel_of(words, first, units, 2 * i);
        next[i] = channel_of(words, first, units, 2 * i + 1);
    }
    for (uint32_t t = 0; t < g->tokens; t++) {
        if (qr_page_is_raw(g->raw, g->first + t))
            continue;
        const uint16_t *x = g->x + t * g->stride;
        for (int i = 0; i < pairs; i++)
            extremes_add(&all[i], units > 1 || words == 16
                                      ? _mm512_loadu_si512(x + from[i])
                                      : join_halves(x + from[i], x + next[i]));
    }
    for (int i = 0; i < pairs; i++) {
        _mm512_storeu_si512(out->low + 32 * i, extremes_minimum(&all[i]));
        _mm512_storeu_si512(out->high + 32 * i, extremes_maximum(&all[i]));
    }
}

/** -0 came out as the minimum where +0 is as low; the formula says that the last zero of a
 * group wins. */
static void settle_zeros(struct qr_channel_group g, uint32_t words, uint32_t first, int planes,
                         int units, uint16_t *low)
{
    for (int i = 0; i < 16 * planes * units; i++) {
        const uint16_t *x = g.x + channel_of(words, first, units, i / 16) + i % 16;
        for (uint32_t t = g.tokens; low[i] == NEGATIVE_ZERO && t-- > 0;)
            if (!qr_page_is_raw(g.raw, g.first + t) && (uint16_t)(x[t * g.stride] << 1) == 0) {
                low[i] = x[t * g.stride];
                break;
            }
    }
}

ALWAYS bool any_negative_zero(const uint16_t *low, int halves)
{
    __mmask32 found = 0;
    for (int i = 0; i < halves; i++)
        found |= _mm512_cmpeq_epi16_mask(_mm512_loadu_si512(low + 32 * i),
                                         _mm512_set1_epi16((short)NEGATIVE_ZERO));
    return found != 0;
}

ALWAYS void channels_codes(const struct qr_channel_group *g, uint32_t words, uint32_t first,
                           int planes, int units, const __m512 *minimum,
                           const __m512 *reciprocal, bool clamp)
{
    const uint32_t row_bytes = qr_row_bytes(g->dim, g->bits);
    for (uint32_t t = 0; t < g->tokens; t++) {
        const uint16_t *x = g->x + t * g->stride;
        for (int i = 0; i < planes * units / 2; i++)
            ahead(x + g->tokens * g->stride + channel_of(words, first, units, 2 * i));
        if (!qr_page_is_raw(g->raw, g->first + t))
            encode_block(x, words, first, planes, units, minimum, reciprocal, clamp,
                         g->codes + t * row_bytes);
    }
}

ALWAYS void channels_block(const struct qr_channel_group *g, uint32_t words, uint32_t first,
                           int planes, int units)
{
    struct ranges r;
    __m512 minimum[VECTORS], reciprocal[VECTORS];
    bool clamp = false;
    find_ranges(g, words, first, planes, units, &r);
    if (any_negative_zero(r.low, planes * units / 2))
        settle_zeros(*g, words, first, planes, units, r.low);
    for (int v = 0; v < planes * units; v += CHAINS) {
        __m512 high[CHAINS];
        __m256i scale[CHAINS];
        for (int i = 0; i < CHAINS; i++) {
            minimum[v + i] = load_wide(r.low + 16 * (v + i));
            high[i] = load_wide(r.high + 16 * (v + i));
        }
        clamp |= scales_of(minimum + v, high, g->bits, scale, reciprocal + v, CHAINS);
        for (int i = 0; i < CHAINS; i++) {
            uint16_t *scales = g->scales + channel_of(words, first, units, v + i);
            _mm256_storeu_si256((void *)scales, scale[i]);
            _mm256_storeu_si256((void *)(scales + g->dim), load_half(r.low + 16 * (v + i)));
        }
    }
    if (clamp)
        channels_codes(g, words, first, planes, units, minimum, reciprocal, true);
    else
        channels_codes(g, words, first, planes, units, minimum, reciprocal, false);
}

/** Rows of zeros for raw tokens; true when all of them are. */
static bool clear_raw(const struct qr_channel_group *g)
{
    const uint32_t row_bytes = qr_row_bytes(g->dim, g->bits);
    uint32_t raw = 0;
    for (uint32_t t = 0; t < g->tokens; t++)
        if (qr_page_is_raw(g->raw, g->first + t)) {
            memset(g->codes + t * row_bytes, 0, row_bytes);
            raw++;
        }
    return raw == g->tokens;
}

/** All blocks of the rows; the last one begins earlier when blocks do not fit, and gives words
 * of the one before once more. */
ALWAYS void channels_blocks(const struct qr_channel_group *group, uint32_t words, int planes,
                            int units)
{
    const struct qr_channel_group copy = *group, *g = &copy; /* stays in registers */
    const uint32_t width = 16u * (uint32_t)units;
    for (uint32_t first = 0; first < words; first += width)
        channels_block(g, words, first + width <= words ? first : words - width, planes, units);
}

static bool shape_fits(const struct qr_channel_group *g)
{
    return g->bits != 3 && g->dim >= (g->bits == 2 ? 128 : 64);
}

bool qr_fused_encode_channels(const struct qr_channel_group *g)
{
    const uint32_t words = g->dim * g->bits / 16;
    if (!shape_fits(g))
        return false;
    if (clear_raw(g))
        memset(g->scales, 0, 4u * g->dim);
    else if (g->bits == 2 && words == 16)
        channels_blocks(g, 16, 8, 1);
    else if (g->bits == 2)
        channels_blocks(g, words, 8, 1);
    else if (g->bits == 4 && words == 16)
        channels_blocks(g, 16, 4, 1);
    else if (g->bits == 4 && words < 32)
        channels_blocks(g, words, 4, 1);
    else if (g->bits == 4 && words == 32)
        channels_blocks(g, 32, 4, 2);
    else if (g->bits == 4)
        channels_blocks(g, words, 4, 2);
    else if (words < 64)
        channels_blocks(g, words, 2, 2);
    else
        channels_blocks(g, words, 2, 4);
    return true;
}
