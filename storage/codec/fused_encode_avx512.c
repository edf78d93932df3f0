/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding of `chan` in blocks of 128 channels: codes go from registers to
 * packed words. For groups along channels the ranges of several rows are found
 * first, so that their divisions do not hold up the codes. Same bits as the
 * general kernels; everything else is left to them.
 */
#include <immintrin.h>
#include <string.h>

#include "fused.h"
#include "proto/packing.h"
#include "proto/quant.h"

#define ALWAYS static inline __attribute__((always_inline))
#define VECTORS 8 /* of 16 channels in a block */
#define RUN 32    /* channels of a group along channels */
#define BATCH QR_TOKENS_BATCH
#define NEGATIVE_ZERO 0x8000

/** Keys that order FP16 values as signed integers, -0 just below +0. Its own inverse. */
ALWAYS __m512i keys_of(__m512i x)
{
    /* (x >> 15 & 0x7fff) ^ x */
    return _mm512_ternarylogic_epi32(_mm512_srai_epi16(x, 15), _mm512_set1_epi16(0x7fff), x,
                                     0x6a);
}

/** Rows of the group after this one: the hardware does not see across rows of other heads. The
 * address may lie past the input; a prefetch never faults. */
ALWAYS void ahead(const uint16_t *x)
{
    _mm_prefetch((const char *)x, _MM_HINT_T1);
}

ALWAYS uint32_t channel_of(uint32_t words, uint32_t first, int units, int v)
{
    return first + (uint32_t)(v / units) * words + 16u * (uint32_t)(v % units);
}

/** 16-bit lanes from two vectors of codes, in the order of packus. Codes past the top exist
 * only where a scale is subnormal (scales_of). */
ALWAYS __m512i halves_of(__m512i a, __m512i b, uint32_t top, bool clamp)
{
    const __m512i code = _mm512_packus_epi32(a, b);
    return clamp ? _mm512_min_epu16(code, _mm512_set1_epi16((short)top)) : code;
}

/** Words of 32 codes a plane, two units at a time: vectors of FP32 integers 0 .. top in q. */
ALWAYS void pack_units(const __m512i *q, int planes, int units, uint32_t top, bool clamp,
                       uint8_t *to)
{
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    for (int u = 0; u < units; u += 2) {
        __m512i words = _mm512_setzero_si512();
        for (int p = 0; p < planes; p++) {
            const __m512i code = halves_of(q[p * units + u], q[p * units + u + 1], top, clamp);
            words = _mm512_or_si512(words, _mm512_slli_epi16(code, 16 / planes * p));
        }
        _mm512_storeu_si512(to + 32 * u, _mm512_permutexvar_epi64(order, words));
    }
}

/** The same for rows of 16 words: two planes at a time. */
ALWAYS void pack_planes(const __m512i *q, int planes, uint32_t top, bool clamp, uint8_t *to)
{
    const __m512i evens = _mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6);
    const int width = 16 / planes;
    __m512i words = _mm512_setzero_si512();
    for (int p = 0; p < planes; p += 2) {
        const __m512i code = halves_of(q[p], q[p + 1], top, clamp);
        const __m512i low = _mm512_set1_epi16((short)(width * p));
        const __m512i shift =
            _mm512_mask_add_epi16(low, 0xf0f0f0f0u, low, _mm512_set1_epi16((short)width));
        words = _mm512_or_si512(words, _mm512_sllv_epi16(code, shift));
    }
    words = _mm512_or_si512(words, _mm512_shuffle_epi32(words, _MM_PERM_BADC));
    _mm256_storeu_si256((void *)to,
                        _mm512_castsi512_si256(_mm512_permutexvar_epi64(evens, words)));
}

ALWAYS __m256i load_half(const uint16_t *x)
{
    return _mm256_loadu_si256((const void *)x);
}

ALWAYS __m512 load_wide(const uint16_t *x)
{
    return _mm512_cvtph_ps(load_half(x));
}

/** x - minimum as x * 1 - minimum, rounded once as well: multipliers idle here, while adders
 * share their ports with both conversions. */
ALWAYS __m512i codes_of(const uint16_t *x, __m512 minimum, __m512 reciprocal, __m512 one)
{
    const __m512 offset = _mm512_fmsub_ps(load_wide(x), one, minimum);
    return _mm512_cvtps_epi32(_mm512_mul_ps(offset, reciprocal));
}

/** 1, unknown to the compiler. */
ALWAYS __m512 opaque_one(void)
{
    __m512 one = _mm512_set1_ps(1.0f);
    __asm__("" : "+v"(one));
    return one;
}

/** One block of a row: codes of `planes` x `units` vectors, packed. */
ALWAYS void encode_block(const uint16_t *x, uint32_t words, uint32_t first, int planes,
                         int units, const __m512 *minimum, const __m512 *reciprocal, bool clamp,
                         uint8_t *row)
{
    const uint32_t top = qr_quant_top((uint32_t)(16 / planes));
    const __m512 one = opaque_one();
    __m512i q[VECTORS];
    for (int v = 0; v < VECTORS; v++)
        q[v] = codes_of(x + channel_of(words, first, units, v), minimum[v], reciprocal[v], one);
    if (units == 1)
        pack_planes(q, planes, top, clamp, row + 2 * first);
    else
        pack_units(q, planes, units, top, clamp, row + 2 * first);
}

/* ---- groups along tokens ---- */

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
                        int units, struct ranges *out)
{
    struct extremes all[4];
    uint32_t from[4];
    for (int i = 0; i < 4; i++) {
        all[i] = (struct extremes){_mm512_setzero_si512(), _mm512_set1_epi16(INT16_MIN),
                                   _mm512_set1_epi16(INT16_MAX)};
        from[i] = channel_of(words, first, units, 2 * i);
    }
    for (uint32_t t = 0; t < g->tokens; t++) {
        if (qr_page_is_raw(g->raw, g->first + t))
            continue;
        for (int i = 0; i < 4; i++) {
            extremes_add(&all[i], _mm512_loadu_si512(g->x + t * g->stride + from[i]));
        }
    }
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(out->low + 32 * i, extremes_minimum(&all[i]));
        _mm512_storeu_si512(out->high + 32 * i, extremes_maximum(&all[i]));
    }
}

/** -0 came out as the minimum where +0 is as low; the formula says that the last zero of a
 * group wins. */
static void settle_zeros(const struct qr_channel_group *g, uint32_t words, uint32_t first,
                         int units, uint16_t *low)
{
    for (int i = 0; i < 128; i++) {
        const uint16_t *x = g->x + channel_of(words, first, units, i / 16) + i % 16;
        for (uint32_t t = g->tokens; low[i] == NEGATIVE_ZERO && t-- > 0;)
            if (!qr_page_is_raw(g->raw, g->first + t) &&
                (uint16_t)(x[t * g->stride] << 1) == 0) {
                low[i] = x[t * g->stride];
                break;
            }
    }
}

ALWAYS bool any_negative_zero(const uint16_t *low)
{
    __mmask32 found = 0;
    for (int i = 0; i < 4; i++)
        found |= _mm512_cmpeq_epi16_mask(_mm512_loadu_si512(low + 32 * i),
                                         _mm512_set1_epi16((short)NEGATIVE_ZERO));
    return found != 0;
}

/** x / top, correctly rounded: the remainder is exact, and no quotient by an odd number of 8
 * bits lies closer to a midpoint than 2^-34 of itself. */
ALWAYS __m512 divide_by_top(__m512 x, uint32_t bits)
{
    const __m512 top = _mm512_set1_ps((float)qr_quant_top(bits));
    const __m512 inverse = _mm512_set1_ps(1.0f / (float)qr_quant_top(bits));
    const __m512 q = _mm512_mul_ps(x, inverse);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(q, top, x), inverse, q);
}

/** 1 / s of an FP16 value s > 0, correctly rounded: the second residual is exact and its square
 * below 2^-46; the reciprocal of 11 bits lies 2^-36 or more from a midpoint, or is exact. */
ALWAYS __m512 reciprocal_of(__m512 s)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 y = _mm512_rcp14_ps(s);
    y = _mm512_fmadd_ps(_mm512_fnmadd_ps(s, y, one), y, y);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(s, y, one), y, y);
}

#define CHAINS                                                                                 \
    4 /* vectors of 16 groups whose scales are computed side by side: long latencies */

/**
 * Scales (FP16) and reciprocals of CHAINS x 16 groups. True when codes may pass the top: only
 * below 2^-14 is a scale so coarse. A normal one is at most 1.5 x 2^-10 less than range / top,
 * so that the largest quotient stays below 255 x (1 + 1.5 x 2^-10) < 255.5.
 */
ALWAYS bool scales_of(const __m512 *low, const __m512 *high, uint32_t bits, __m256i *scale,
                      __m512 *reciprocal)
{
    const __m512 top = _mm512_set1_ps((float)qr_quant_top(bits));
    __m512 x[CHAINS];
    __mmask16 coarse = 0;
    for (int i = 0; i < CHAINS; i++)
        x[i] = divide_by_top(_mm512_sub_ps(high[i], low[i]), bits);
    for (int i = 0; i < CHAINS; i++) {
        scale[i] = _mm512_cvtps_ph(x[i], _MM_FROUND_TO_NEAREST_INT);
        x[i] = _mm512_cvtph_ps(scale[i]);
    }
    for (int i = 0; i < CHAINS; i++) {
        const __m512 end = _mm512_add_ps(low[i], _mm512_mul_ps(top, x[i]));
        const __mmask16 over = _mm512_cmp_ps_mask(end, _mm512_set1_ps(65520.0f), _CMP_GE_OQ);
        scale[i] = _mm256_mask_sub_epi16(scale[i], over, scale[i], _mm256_set1_epi16(1));
        x[i] = _mm512_cvtph_ps(scale[i]);
    }
    for (int i = 0; i < CHAINS; i++) {
        const __mmask16 positive = _mm512_cmp_ps_mask(x[i], _mm512_setzero_ps(), _CMP_GT_OQ);
        reciprocal[i] = _mm512_maskz_mov_ps(positive, reciprocal_of(x[i]));
        coarse |= _mm512_mask_cmp_ps_mask(positive, x[i], _mm512_set1_ps(0x1p-14f), _CMP_LT_OQ);
    }
    return coarse != 0;
}

ALWAYS void channels_codes(const struct qr_channel_group *g, uint32_t words, uint32_t first,
                           int planes, int units, const __m512 *minimum,
                           const __m512 *reciprocal, bool clamp)
{
    const uint32_t row_bytes = qr_row_bytes(g->dim, g->bits);
    for (uint32_t t = 0; t < g->tokens; t++) {
        const uint16_t *x = g->x + t * g->stride;
        for (int i = 0; i < 4; i++)
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
    find_ranges(g, words, first, units, &r);
    if (any_negative_zero(r.low))
        settle_zeros(g, words, first, units, r.low);
    for (int v = 0; v < VECTORS; v += CHAINS) {
        __m512 high[CHAINS];
        __m256i scale[CHAINS];
        for (int i = 0; i < CHAINS; i++) {
            minimum[v + i] = load_wide(r.low + 16 * (v + i));
            high[i] = load_wide(r.high + 16 * (v + i));
        }
        clamp |= scales_of(minimum + v, high, g->bits, scale, reciprocal + v);
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

bool qr_fused_encode_channels(const struct qr_channel_group *g)
{
    const bool shape = g->bits == 2 ? g->dim == 128 : g->bits != 3 && g->dim % 128 == 0;
    if (!shape)
        return false;
    if (clear_raw(g)) {
        memset(g->scales, 0, 4u * g->dim);
        return true;
    }
    if (g->bits == 2)
        channels_block(g, 16, 0, 8, 1);
    else if (g->bits == 4 && g->dim == 128)
        channels_block(g, 32, 0, 4, 2);
    else if (g->bits == 4)
        for (uint32_t first = 0; first < g->dim / 4; first += 32)
            channels_block(g, g->dim / 4, first, 4, 2);
    else
        for (uint32_t first = 0; first < g->dim / 2; first += 64)
            channels_block(g, g->dim / 2, first, 2, 4);
    return true;
}

/* ---- groups of 32 along channels ---- */

/** Lanes of the lower half of `low` and of the upper half of `high`; loads, no shuffles. */
ALWAYS __m512i join_halves(const uint16_t *low, const uint16_t *high)
{
    const __m512i x = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)low));
    return _mm512_mask_broadcast_i64x4(x, 0xf0, _mm256_loadu_si256((const void *)high));
}

/** keys_of, the sign by a multiplication: shifts share the ports of the shuffles below. */
ALWAYS __m512i keys_by_product(__m512i x)
{
    return _mm512_ternarylogic_epi32(_mm512_mulhi_epi16(x, _mm512_set1_epi16(1)),
                                     _mm512_set1_epi16(0x7fff), x, 0x6a);
}

/** Four runs of 32 of a row, one a 128-bit lane: 4 keys of which the least is the minimum, 4
 * inverted keys of which the least is the maximum's. */
ALWAYS __m512i narrow_runs(const uint16_t *x)
{
    const __m512i ab = keys_by_product(join_halves(x, x + RUN));
    const __m512i ba = keys_by_product(join_halves(x + 16, x + RUN + 16));
    const __m512i cd = keys_by_product(join_halves(x + 2 * RUN, x + 3 * RUN));
    const __m512i dc = keys_by_product(join_halves(x + 2 * RUN + 16, x + 3 * RUN + 16));
    const __m512i least[] = {_mm512_min_epi16(ab, ba), _mm512_min_epi16(cd, dc)};
    const __m512i most[] = {_mm512_max_epi16(ab, ba), _mm512_max_epi16(cd, dc)};
    const __m512i low = _mm512_min_epi16(_mm512_shuffle_i64x2(least[0], least[1], 0x88),
                                         _mm512_shuffle_i64x2(least[0], least[1], 0xdd));
    const __m512i high = _mm512_max_epi16(_mm512_shuffle_i64x2(most[0], most[1], 0x88),
                                          _mm512_shuffle_i64x2(most[0], most[1], 0xdd));
    const __m512i inverted = _mm512_xor_si512(high, _mm512_set1_epi32(-1));
    return _mm512_min_epi16(_mm512_unpacklo_epi64(low, inverted),
                            _mm512_unpackhi_epi64(low, inverted));
}

ALWAYS __m512i narrow_rows(__m512i a, __m512i b)
{
    const __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
    return _mm512_min_epi16(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                            _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
}

/** FP16 minima of the runs of four rows (row by row), then their maxima. */
ALWAYS __m512i ranges_of_rows(const uint16_t *x, size_t stride)
{
    const __m512i a = narrow_rows(narrow_runs(x), narrow_runs(x + stride));
    const __m512i b = narrow_rows(narrow_runs(x + 2 * stride), narrow_runs(x + 3 * stride));
    const __m512i even = _mm512_mask_mov_epi16(a, 0xaaaaaaaau, _mm512_slli_epi32(b, 16));
    const __m512i odd = _mm512_mask_mov_epi16(b, 0x55555555u, _mm512_srli_epi32(a, 16));
    __m512i both = _mm512_min_epi16(even, odd); /* lane: run; words: rows 0, 2; then 1, 3 */
    both = keys_of(_mm512_mask_xor_epi32(both, 0xaaaa, both, _mm512_set1_epi32(-1)));
    const __m512i order = _mm512_set_epi16(
        31, 23, 15, 7, 27, 19, 11, 3, 30, 22, 14, 6, 26, 18, 10, 2, /* maxima of rows 3 .. 0 */
        29, 21, 13, 5, 25, 17, 9, 1, 28, 20, 12, 4, 24, 16, 8, 0);
    return _mm512_permutexvar_epi16(order, both);
}

/** Minimum and reciprocal of the four groups of each row of a batch. */
struct factors {
    float minimum[4 * BATCH], reciprocal[4 * BATCH];
    bool clamp;
};

/** Ranges, scales and pairs of BATCH rows. False: a minimum is -0, whose sign takes a closer
 * look. */
ALWAYS bool batch_factors(const uint16_t *x, size_t stride, uint32_t bits, uint16_t *pairs,
                          struct factors *f)
{
    _Alignas(64) uint16_t ranges[CHAINS][2][16]; /* minima, then maxima, of four rows */
    __m512 low[CHAINS], high[CHAINS], reciprocal[CHAINS];
    __m256i scale[CHAINS];
    uint32_t zeros = 0;
    for (uint32_t i = 0; i < CHAINS; i++) {
        const __m512i both = ranges_of_rows(x + 4 * i * stride, stride);
        zeros |=
            0xffffu & _mm512_cmpeq_epi16_mask(both, _mm512_set1_epi16((short)NEGATIVE_ZERO));
        _mm512_store_si512(ranges[i], both);
    }
    if (zeros)
        return false;
    for (uint32_t i = 0; i < CHAINS; i++) {
        low[i] = load_wide(ranges[i][0]);
        high[i] = load_wide(ranges[i][1]);
    }
    f->clamp = scales_of(low, high, bits, scale, reciprocal);
    for (uint32_t i = 0; i < CHAINS; i++) {
        const __m512i words =
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(ranges[i][0])), 16);
        _mm512_storeu_si512(pairs + 32 * i,
                            _mm512_or_si512(words, _mm512_cvtepu16_epi32(scale[i])));
        _mm512_storeu_ps(f->minimum + 16 * i, low[i]);
        _mm512_storeu_ps(f->reciprocal + 16 * i, reciprocal[i]);
    }
    return true;
}

ALWAYS void tokens_codes(const uint16_t *x, size_t stride, int planes, int units,
                         const struct factors *f, bool clamp, uint8_t *codes)
{
    for (uint32_t t = 0; t < BATCH; t++) {
        __m512 minimum[VECTORS], reciprocal[VECTORS];
        for (uint32_t run = 0; run < 4; run++)
            ahead(x + (t + BATCH) * stride + run * RUN);
        for (uint32_t v = 0; v < VECTORS; v++) {
            minimum[v] = _mm512_set1_ps(f->minimum[4 * t + v / 2]);
            reciprocal[v] = _mm512_set1_ps(f->reciprocal[4 * t + v / 2]);
        }
        encode_block(x + t * stride, 128 / (uint32_t)planes, 0, planes, units, minimum,
                     reciprocal, clamp, codes + t * 256 / (uint32_t)planes);
    }
}

ALWAYS bool tokens_batch(const uint16_t *x, size_t stride, int planes, int units,
                         uint8_t *codes, uint16_t *pairs)
{
    struct factors f;
    if (!batch_factors(x, stride, (uint32_t)(16 / planes), pairs, &f))
        return false;
    if (f.clamp)
        tokens_codes(x, stride, planes, units, &f, true, codes);
    else
        tokens_codes(x, stride, planes, units, &f, false, codes);
    return true;
}

bool qr_fused_encode_tokens(const struct qr_token_batch *b)
{
    if (b->dim != 128 || b->group != RUN || b->count != BATCH)
        return false;
    switch (b->bits) {
    case 2:
        return tokens_batch(b->x, b->stride, 8, 1, b->codes, b->pairs);
    case 4:
        return tokens_batch(b->x, b->stride, 4, 2, b->codes, b->pairs);
    case 8:
        return tokens_batch(b->x, b->stride, 2, 4, b->codes, b->pairs);
    default:
        return false;
    }
}
