/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding of `chan` with groups of 32 along channels: ranges and scales of a
 * batch of rows first, so that their latencies do not hold up the codes. Same
 * bits as the general kernels; everything else is left to them.
 */
#include "fused_encode_simd.h"

#define RUN 32 /* channels of a group */
#define BATCH QR_TOKENS_BATCH

/** keys_of, the sign by a multiplication: shifts share the ports of the shuffles below. */
ALWAYS __m512i keys_by_product(__m512i x)
{
    return _mm512_ternarylogic_epi32(_mm512_mulhi_epi16(x, _mm512_set1_epi16(1)),
                                     _mm512_set1_epi16(0x7fff), x, 0x6a);
}

#define RUNS_MAX (BATCH * QR_DIM_MAX / RUN)

/** The runs of a batch, row by row. A table saves divisions, but rows of four runs need
 * neither. */
struct runs {
    const uint16_t *x;
    size_t stride;
    uint32_t groups; /* of a row */
    const uint16_t *const *table;
};

ALWAYS const uint16_t *run_at(const struct runs *r, uint32_t i)
{
    return r->groups == 4 ? r->x + i / 4 * r->stride + i % 4 * RUN : r->table[i];
}

/** Four runs, one a 128-bit lane: 4 keys of which the least is the minimum, 4 inverted keys of
 * which the least is the maximum's. */
ALWAYS __m512i narrow_runs(const struct runs *r, uint32_t at)
{
    const uint16_t *run[] = {run_at(r, at), run_at(r, at + 1), run_at(r, at + 2),
                             run_at(r, at + 3)};
    const __m512i ab = keys_by_product(join_halves(run[0], run[1]));
    const __m512i ba = keys_by_product(join_halves(run[0] + 16, run[1] + 16));
    const __m512i cd = keys_by_product(join_halves(run[2], run[3]));
    const __m512i dc = keys_by_product(join_halves(run[2] + 16, run[3] + 16));
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

ALWAYS __m512i narrow_fours(__m512i a, __m512i b)
{
    const __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
    return _mm512_min_epi16(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                            _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
}

/** FP16 minima of runs at .. at + 15, then their maxima. */
ALWAYS __m512i ranges_of_runs(const struct runs *r, uint32_t at)
{
    const __m512i a = narrow_fours(narrow_runs(r, at), narrow_runs(r, at + 4));
    const __m512i b = narrow_fours(narrow_runs(r, at + 8), narrow_runs(r, at + 12));
    const __m512i even = _mm512_mask_mov_epi16(a, 0xaaaaaaaau, _mm512_slli_epi32(b, 16));
    const __m512i odd = _mm512_mask_mov_epi16(b, 0x55555555u, _mm512_srli_epi32(a, 16));
    __m512i both =
        _mm512_min_epi16(even, odd); /* lane: run of four; words: fours 0, 2; then 1, 3 */
    both = keys_of(_mm512_mask_xor_epi32(both, 0xaaaa, both, _mm512_set1_epi32(-1)));
    const __m512i order = _mm512_set_epi16(
        31, 23, 15, 7, 27, 19, 11, 3, 30, 22, 14, 6, 26, 18, 10, 2, /* maxima of fours 3 .. 0 */
        29, 21, 13, 5, 25, 17, 9, 1, 28, 20, 12, 4, 24, 16, 8, 0);
    return _mm512_permutexvar_epi16(order, both);
}

/** Minimum and reciprocal of the groups of a batch, row by row. */
struct factors {
    float minimum[RUNS_MAX], reciprocal[RUNS_MAX];
    bool clamp;
};

/** Ranges, scales and pairs of chains x 16 runs. False: a minimum is -0, whose sign takes a
 * closer look. */
ALWAYS bool factors_of(const struct runs *r, uint32_t bits, uint16_t *pairs, struct factors *f,
                       uint32_t at, int chains)
{
    _Alignas(64) uint16_t ranges[CHAINS][2][16]; /* minima, then maxima */
    __m512 low[CHAINS], high[CHAINS], inverse[CHAINS];
    __m256i scale[CHAINS];
    uint32_t zeros = 0;
    for (int i = 0; i < chains; i++) {
        const __m512i both = ranges_of_runs(r, at + 16u * (uint32_t)i);
        zeros |=
            0xffffu & _mm512_cmpeq_epi16_mask(both, _mm512_set1_epi16((short)NEGATIVE_ZERO));
        _mm512_store_si512(ranges[i], both);
    }
    if (zeros)
        return false;
    for (int i = 0; i < chains; i++) {
        low[i] = load_wide(ranges[i][0]);
        high[i] = load_wide(ranges[i][1]);
    }
    f->clamp |= scales_of(low, high, bits, scale, inverse, chains);
    for (int i = 0; i < chains; i++) {
        const __m512i words =
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(ranges[i][0])), 16);
        _mm512_storeu_si512(pairs + 2 * at + 32 * i,
                            _mm512_or_si512(words, _mm512_cvtepu16_epi32(scale[i])));
        _mm512_storeu_ps(f->minimum + at + 16 * i, low[i]);
        _mm512_storeu_ps(f->reciprocal + at + 16 * i, inverse[i]);
    }
    return true;
}

/** All groups of a batch, chains x 16 at a time; when that does not divide them, the last ones
 * begin earlier. */
ALWAYS bool batch_factors(const struct qr_token_batch *b, uint32_t groups, struct factors *f,
                          int chains)
{
    const uint16_t *table[RUNS_MAX];
    const struct runs r = {b->x, b->stride, groups, table};
    const uint32_t runs = BATCH * groups, step = 16u * (uint32_t)chains;
    for (uint32_t i = 0, t = 0; groups != 4 && t < BATCH; t++)
        for (uint32_t k = 0; k < groups; k++)
            table[i++] = b->x + t * b->stride + k * RUN;
    f->clamp = false;
    for (uint32_t i = 0; i < runs; i += step) {
        const uint32_t at = runs == step ? 0 : i + step <= runs ? i : runs - step;
        if (!factors_of(&r, b->bits, b->pairs, f, at, chains))
            return false;
    }
    return true;
}

/** A block of all rows. */
ALWAYS void tokens_block(const struct qr_token_batch *b, uint32_t words, uint32_t first,
                         int planes, int units, const struct factors *f, bool clamp)
{
    const uint32_t row_bytes = 2 * words, groups = words * (uint32_t)planes / RUN;
    for (uint32_t t = 0; t < BATCH; t++) {
        const uint16_t *x = b->x + t * b->stride;
        __m512 minimum[VECTORS], reciprocal[VECTORS];
        for (int v = 0; v < planes * units; v += 2)
            ahead(x + BATCH * b->stride + channel_of(words, first, units, v));
        for (int v = 0; v < planes * units; v++) {
            const uint32_t at = channel_of(words, first, units, v), i = t * groups + at / RUN;
            minimum[v] = _mm512_set1_ps(f->minimum[i]);
            reciprocal[v] = _mm512_set1_ps(f->reciprocal[i]);
        }
        encode_block(x, words, first, planes, units, minimum, reciprocal, clamp,
                     b->codes + t * row_bytes);
    }
}

/** All blocks of a batch; the last one begins earlier when blocks do not fit. */
ALWAYS bool tokens_blocks(const struct qr_token_batch *batch, uint32_t words, int planes,
                          int units)
{
    const struct qr_token_batch copy = *batch, *b = &copy; /* stays in registers */
    const uint32_t width = 16u * (uint32_t)units;
    struct factors f;
    if (!batch_factors(b, words * (uint32_t)planes / RUN, &f,
                       planes * units < VECTORS ? 2 : CHAINS))
        return false;
    for (uint32_t i = 0; i < words; i += width) {
        const uint32_t first = i + width <= words ? i : words - width;
        if (f.clamp)
            tokens_block(b, words, first, planes, units, &f, true);
        else
            tokens_block(b, words, first, planes, units, &f, false);
    }
    return true;
}

/** Whole batches; groups are whole runs; vectors of 16 channels lie in one group. */
static bool shape_fits(const struct qr_token_batch *b, uint32_t words)
{
    return b->count == BATCH && b->group == RUN && b->dim % RUN == 0 && b->bits != 3 &&
           b->dim >= (b->bits == 2 ? 128 : 64) && words % 16 == 0;
}

bool qr_fused_encode_tokens(const struct qr_token_batch *b)
{
    const uint32_t words = b->dim * b->bits / 16;
    if (!shape_fits(b, words))
        return false;
    if (b->bits == 2)
        return words == 16 ? tokens_blocks(b, 16, 8, 1) : tokens_blocks(b, words, 8, 1);
    if (b->bits == 4 && words == 16)
        return tokens_blocks(b, 16, 4, 1);
    if (b->bits == 4)
        return words == 32 ? tokens_blocks(b, 32, 4, 2) : tokens_blocks(b, words, 4, 2);
    if (words < 64)
        return tokens_blocks(b, words, 2, 2);
    return words == 64 ? tokens_blocks(b, 64, 2, 4) : tokens_blocks(b, words, 2, 4);
}
