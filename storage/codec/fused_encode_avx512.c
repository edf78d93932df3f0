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

ALWAYS __m512i load_keys(const uint16_t *x)
{
    return keys_of(_mm512_loadu_si512(x));
}

ALWAYS uint32_t channel_of(uint32_t words, uint32_t first, int units, int v)
{
    return first + (uint32_t)(v / units) * words + 16u * (uint32_t)(v % units);
}

/** Words of 32 codes a plane, two units at a time: vectors of FP32 integers 0 .. top in q. */
ALWAYS void pack_units(const __m512i *q, int planes, int units, uint32_t top, uint8_t *to)
{
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    for (int u = 0; u < units; u += 2) {
        __m512i words = _mm512_setzero_si512();
        for (int p = 0; p < planes; p++) {
            const __m512i code =
                _mm512_min_epu16(_mm512_packus_epi32(q[p * units + u], q[p * units + u + 1]),
                                 _mm512_set1_epi16((short)top));
            words = _mm512_or_si512(words, _mm512_slli_epi16(code, 16 / planes * p));
        }
        _mm512_storeu_si512(to + 32 * u, _mm512_permutexvar_epi64(order, words));
    }
}

/** The same for rows of 16 words: two planes at a time. */
ALWAYS void pack_planes(const __m512i *q, int planes, uint32_t top, uint8_t *to)
{
    const __m512i evens = _mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6);
    const int width = 16 / planes;
    __m512i words = _mm512_setzero_si512();
    for (int p = 0; p < planes; p += 2) {
        const __m512i code = _mm512_min_epu16(_mm512_packus_epi32(q[p], q[p + 1]),
                                              _mm512_set1_epi16((short)top));
        const __m512i low = _mm512_set1_epi16((short)(width * p));
        const __m512i shift =
            _mm512_mask_add_epi16(low, 0xf0f0f0f0u, low, _mm512_set1_epi16((short)width));
        words = _mm512_or_si512(words, _mm512_sllv_epi16(code, shift));
    }
    words = _mm512_or_si512(words, _mm512_shuffle_epi32(words, _MM_PERM_BADC));
    _mm256_storeu_si256((void *)to,
                        _mm512_castsi512_si256(_mm512_permutexvar_epi64(evens, words)));
}

ALWAYS __m512i codes_of(const uint16_t *x, __m512 minimum, __m512 reciprocal)
{
    const __m512 wide = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)x));
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_sub_ps(wide, minimum), reciprocal));
}

/** One block of a row: codes of `planes` x `units` vectors, packed. */
ALWAYS void encode_block(const uint16_t *x, uint32_t words, uint32_t first, int planes,
                         int units, const __m512 *minimum, const __m512 *reciprocal,
                         uint8_t *row)
{
    const uint32_t top = qr_quant_top((uint32_t)(16 / planes));
    __m512i q[VECTORS];
    for (int v = 0; v < VECTORS; v++)
        q[v] = codes_of(x + channel_of(words, first, units, v), minimum[v], reciprocal[v]);
    if (units == 1)
        pack_planes(q, planes, top, row + 2 * first);
    else
        pack_units(q, planes, units, top, row + 2 * first);
}

/* ---- groups along tokens ---- */

struct ranges {
    uint16_t low[128], high[128];
    float minimum[128], reciprocal[128];
};

/** Minima and maxima of the channels of a block over the tokens that are not raw. */
ALWAYS void find_ranges(const struct qr_channel_group *g, uint32_t words, uint32_t first,
                        int units, struct ranges *out)
{
    __m512i low[4], high[4];
    uint32_t from[4];
    for (int i = 0; i < 4; i++) {
        low[i] = _mm512_set1_epi16(INT16_MAX);
        high[i] = _mm512_set1_epi16(INT16_MIN);
        from[i] = channel_of(words, first, units, 2 * i);
    }
    for (uint32_t t = 0; t < g->tokens; t++) {
        if (qr_page_is_raw(g->raw, g->first + t))
            continue;
        for (int i = 0; i < 4; i++) {
            ahead(g->x + (t + g->tokens) * g->stride + from[i]);
            const __m512i key = load_keys(g->x + t * g->stride + from[i]);
            low[i] = _mm512_min_epi16(low[i], key);
            high[i] = _mm512_max_epi16(high[i], key);
        }
    }
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(out->low + 32 * i, keys_of(low[i]));
        _mm512_storeu_si512(out->high + 32 * i, keys_of(high[i]));
    }
}

/** Keys put -0 below +0; the formula says that the last zero of a group wins. */
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

/** Scale (FP16) and reciprocal of 16 groups. */
ALWAYS __m256i scales_of(__m512 low, __m512 high, uint32_t bits, __m512 *reciprocal)
{
    const __m512 top = _mm512_set1_ps((float)qr_quant_top(bits));
    const __m512 exact = _mm512_div_ps(_mm512_sub_ps(high, low), top);
    __m256i scale = _mm512_cvtps_ph(exact, _MM_FROUND_TO_NEAREST_INT);
    const __m512 end = _mm512_add_ps(low, _mm512_mul_ps(top, _mm512_cvtph_ps(scale)));
    const __mmask16 over = _mm512_cmp_ps_mask(end, _mm512_set1_ps(65520.0f), _CMP_GE_OQ);
    scale = _mm256_mask_sub_epi16(scale, over, scale, _mm256_set1_epi16(1));
    const __m512 s = _mm512_cvtph_ps(scale);
    const __mmask16 positive = _mm512_cmp_ps_mask(s, _mm512_setzero_ps(), _CMP_GT_OQ);
    *reciprocal = _mm512_maskz_div_ps(positive, _mm512_set1_ps(1.0f), s);
    return scale;
}

ALWAYS void channels_block(const struct qr_channel_group *g, uint32_t words, uint32_t first,
                           int planes, int units)
{
    const uint32_t row_bytes = qr_row_bytes(g->dim, g->bits);
    struct ranges r;
    __m512 minimum[VECTORS], reciprocal[VECTORS];
    find_ranges(g, words, first, units, &r);
    if (any_negative_zero(r.low))
        settle_zeros(g, words, first, units, r.low);
    for (int v = 0; v < VECTORS; v++) {
        uint16_t *scales = g->scales + channel_of(words, first, units, v);
        const __m256i low = _mm256_loadu_si256((const void *)(r.low + 16 * v));
        const __m256i high = _mm256_loadu_si256((const void *)(r.high + 16 * v));
        minimum[v] = _mm512_cvtph_ps(low);
        const __m256i scale =
            scales_of(minimum[v], _mm512_cvtph_ps(high), g->bits, &reciprocal[v]);
        _mm256_storeu_si256((void *)scales, scale);
        _mm256_storeu_si256((void *)(scales + g->dim), low);
    }
    for (uint32_t t = 0; t < g->tokens; t++)
        if (!qr_page_is_raw(g->raw, g->first + t))
            encode_block(g->x + t * g->stride, words, first, planes, units, minimum, reciprocal,
                         g->codes + t * row_bytes);
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

/** Four vectors of 32 keys to four 128-bit lanes of 8, by `op`. */
#define FOLD(op, a, b, c, d)                                                                   \
    FOLD_LANES(op, op(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee)),     \
               op(_mm512_shuffle_i64x2(c, d, 0x44), _mm512_shuffle_i64x2(c, d, 0xee)))
#define FOLD_LANES(op, ab, cd)                                                                 \
    op(_mm512_shuffle_i64x2(ab, cd, 0x88), _mm512_shuffle_i64x2(ab, cd, 0xdd))

/** FP16 minimum and maximum of four runs of 32: {min, max} words, four times. */
ALWAYS __m128i ranges_of_runs(const uint16_t *x)
{
    const __m512i a = load_keys(x), b = load_keys(x + RUN), c = load_keys(x + 2 * RUN),
                  d = load_keys(x + 3 * RUN);
    const __m512i ones = _mm512_set1_epi32(-1);
    const __m512i low = FOLD(_mm512_min_epi16, a, b, c, d);
    const __m512i high = _mm512_xor_si512(FOLD(_mm512_max_epi16, a, b, c, d), ones);
    __m512i both =
        _mm512_min_epi16(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
    both = _mm512_min_epi16(both, _mm512_shuffle_epi32(both, _MM_PERM_CDAB));
    both = _mm512_min_epi16(both, _mm512_rol_epi32(both, 16));
    both = _mm512_mask_xor_epi64(both, 0xaa, both, ones);
    return _mm512_cvtepi64_epi16(keys_of(both));
}

/** Minimum and reciprocal of the four groups of each row of a batch. */
struct factors {
    float minimum[4 * BATCH], reciprocal[4 * BATCH];
};

/** Ranges, scales and pairs of BATCH rows. False: a minimum is -0, whose sign takes a closer
 * look. */
ALWAYS bool batch_factors(const uint16_t *x, size_t stride, uint32_t bits, uint16_t *pairs,
                          struct factors *f)
{
    _Alignas(64) uint32_t ranges[4 * BATCH]; /* minimum, and maximum above it */
    for (uint32_t t = 0; t < BATCH; t++) {
        for (uint32_t run = 0; run < 4; run++)
            ahead(x + (t + BATCH) * stride + run * RUN);
        _mm_store_si128((void *)(ranges + 4 * t), ranges_of_runs(x + t * stride));
    }
    for (uint32_t i = 0; i < 4 * BATCH; i += 16) {
        const __m512i both = _mm512_load_si512(ranges + i);
        const __m256i low = _mm512_cvtepi32_epi16(both);
        const __m256i high = _mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16));
        const __m512 minimum = _mm512_cvtph_ps(low);
        __m512 reciprocal;
        if (_mm256_cmpeq_epi16_mask(low, _mm256_set1_epi16((short)NEGATIVE_ZERO)))
            return false;
        const __m256i scale = scales_of(minimum, _mm512_cvtph_ps(high), bits, &reciprocal);
        const __m512i words = _mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16);
        _mm512_storeu_si512(pairs + 2 * i,
                            _mm512_or_si512(words, _mm512_cvtepu16_epi32(scale)));
        _mm512_storeu_ps(f->minimum + i, minimum);
        _mm512_storeu_ps(f->reciprocal + i, reciprocal);
    }
    return true;
}

ALWAYS bool tokens_batch(const uint16_t *x, size_t stride, int planes, int units,
                         uint32_t row_bytes, uint8_t *codes, uint16_t *pairs)
{
    struct factors f;
    if (!batch_factors(x, stride, (uint32_t)(16 / planes), pairs, &f))
        return false;
    for (uint32_t t = 0; t < BATCH; t++) {
        __m512 minimum[VECTORS], reciprocal[VECTORS];
        for (uint32_t v = 0; v < VECTORS; v++) {
            minimum[v] = _mm512_set1_ps(f.minimum[4 * t + v / 2]);
            reciprocal[v] = _mm512_set1_ps(f.reciprocal[4 * t + v / 2]);
        }
        encode_block(x + t * stride, 128 / (uint32_t)planes, 0, planes, units, minimum,
                     reciprocal, codes + t * row_bytes);
    }
    return true;
}

bool qr_fused_encode_tokens(const struct qr_tensor *t, const uint16_t *x, size_t stride,
                            uint8_t *codes, uint16_t *pairs)
{
    const uint32_t row_bytes = qr_row_bytes(t->dim, t->spec.bits);
    if (t->dim != 128 || t->spec.group != RUN)
        return false;
    switch (t->spec.bits) {
    case 2:
        return tokens_batch(x, stride, 8, 1, row_bytes, codes, pairs);
    case 4:
        return tokens_batch(x, stride, 4, 2, row_bytes, codes, pairs);
    case 8:
        return tokens_batch(x, stride, 2, 4, row_bytes, codes, pairs);
    default:
        return false;
    }
}
