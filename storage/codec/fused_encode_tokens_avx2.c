/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding of `chan` with groups of 32 along channels for AVX2: ranges of 16
 * groups side by side, scales of a batch of rows, then codes. Same bits as the
 * general kernels; everything else is left to them.
 */
#include "fused_encode_avx2.h"

#define RUN 32 /* channels of a group */
#define BATCH QR_TOKENS_BATCH
#define GROUPS_MAX (BATCH * QR_DIM_MAX / RUN)
#define SIDE_BY_SIDE 16

/** Scales of the groups of a batch, row by row. */
struct groups {
    const struct qr_token_batch *batch;
    uint32_t row_groups, words, row_bytes;
    _Alignas(32) uint16_t low[GROUPS_MAX], high[GROUPS_MAX];
    _Alignas(32) float minimum[GROUPS_MAX], reciprocal[GROUPS_MAX];
};

ALWAYS __m256i least(__m256i a, __m256i b, bool most)
{
    return most ? _mm256_max_epi16(a, b) : _mm256_min_epi16(a, b);
}

/** Halves of each lane of a, then of b. */
ALWAYS __m256i fold_eights(__m256i a, __m256i b, bool most)
{
    return least(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b), most);
}

ALWAYS __m256i fold_fours(__m256i a, __m256i b, bool most)
{
    const __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
    return least(_mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)),
                 _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd)), most);
}

/** Words of a and b alternate. */
ALWAYS __m256i fold_twos(__m256i a, __m256i b, bool most)
{
    return least(_mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa),
                 _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xaa), most);
}

/** Keys of 8 groups, in order, in each lane: of two halves of the groups. */
ALWAYS __m256i fold_groups(const __m256i *x, bool most)
{
    const __m256i even =
        fold_fours(fold_eights(x[0], x[2], most), fold_eights(x[4], x[6], most), most);
    const __m256i odd =
        fold_fours(fold_eights(x[1], x[3], most), fold_eights(x[5], x[7], most), most);
    return fold_twos(even, odd, most);
}

/** Least or greatest keys of 16 groups. */
ALWAYS __m256i fold_lanes(__m256i a, __m256i b, bool most)
{
    return least(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31),
                 most);
}

/** Ranges of 16 groups from number `at` on. */
ALWAYS void find_ranges(struct groups *s, uint32_t at)
{
    __m256i low[2], high[2];
    for (uint32_t half = 0; half < 2; half++) {
        __m256i least_keys[8], most_keys[8];
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t n = at + 8 * half + i;
            const uint16_t *x =
                s->batch->x + n / s->row_groups * s->batch->stride + n % s->row_groups * RUN;
            const __m256i a = vk_load(x, 16), b = vk_load(x + 16, 16);
            least_keys[i] = _mm256_min_epi16(a, b);
            most_keys[i] = _mm256_max_epi16(a, b);
        }
        low[half] = fold_groups(least_keys, false);
        high[half] = fold_groups(most_keys, true);
    }
    vk_store_values(s->low + at, fold_lanes(low[0], low[1], false), 16);
    vk_store_values(s->high + at, fold_lanes(high[0], high[1], true), 16);
}

/** -0 came out as the minimum where +0 is as low; the formula says that the last zero of a
 * group wins. */
static void settle_zero(struct groups *s, uint32_t n)
{
    const uint16_t *x =
        s->batch->x + n / s->row_groups * s->batch->stride + n % s->row_groups * RUN;
    for (uint32_t c = RUN; c-- > 0;)
        if ((uint16_t)(x[c] << 1) == 0) {
            s->low[n] = x[c];
            return;
        }
}

static void settle_zeros(struct groups *s, uint32_t at)
{
    for (uint32_t n = at; n < at + SIDE_BY_SIDE; n++)
        if (s->low[n] == NEGATIVE_ZERO)
            settle_zero(s, n);
}

/** Ranges, scales and factors of 16 groups. True: codes must be clamped. */
ALWAYS bool finish_groups(struct groups *s, uint32_t at, uint32_t bits)
{
    bool clamp = false;
    find_ranges(s, at);
    const __m256i zeros = _mm256_cmpeq_epi16(_mm256_loadu_si256((const void *)(s->low + at)),
                                             _mm256_set1_epi16((short)NEGATIVE_ZERO));
    if (_mm256_movemask_epi8(zeros))
        settle_zeros(s, at);
    for (uint32_t n = at; n < at + SIDE_BY_SIDE; n += LANES) {
        const vh low = vh_load(s->low + n, LANES);
        uint16_t *pairs = s->batch->pairs + 2 * n;
        struct factors f;
        vh scale;
        clamp |= scales_of(low, vh_load(s->high + n, LANES), bits, &scale, &f);
        vh_store(pairs, _mm_unpacklo_epi16(scale, low), LANES);
        vh_store(pairs + LANES, _mm_unpackhi_epi16(scale, low), LANES);
        _mm256_storeu_ps(s->minimum + n, f.minimum);
        _mm256_storeu_ps(s->reciprocal + n, f.reciprocal);
    }
    return clamp;
}

/** The 8 words from `word` on of row `row`. */
ALWAYS __m256i pack_unit(const struct groups *s, uint32_t row, uint32_t words, uint32_t word,
                         int planes, bool clamp)
{
    const uint16_t *x = s->batch->x + row * s->batch->stride;
    const int width = 16 / planes;
    __m256i out = _mm256_setzero_si256();
    for (int p = 0; p < planes; p++) {
        const uint32_t channel = (uint32_t)p * words + word;
        const uint32_t group = row * s->row_groups + channel / RUN;
        const struct factors f = {_mm256_broadcast_ss(s->minimum + group),
                                  _mm256_broadcast_ss(s->reciprocal + group)};
        const __m256i q = codes_of(x + channel, f, width, clamp);
        out = _mm256_or_si256(out, _mm256_slli_epi32(q, width * p));
    }
    return out;
}

ALWAYS void pack_row(const struct groups *s, uint32_t row, uint32_t words, int planes,
                     bool clamp)
{
    uint8_t *to = s->batch->codes + row * s->row_bytes;
    uint32_t word = 0;
    for (; word + 16 <= words; word += 16)
        store_16_words(to + 2 * word, pack_unit(s, row, words, word, planes, clamp),
                       pack_unit(s, row, words, word + 8, planes, clamp));
    if (word < words)
        store_8_words(to + 2 * word, pack_unit(s, row, words, word, planes, clamp));
}

ALWAYS void pack_batch(const struct groups *s, uint32_t words, int planes, bool clamp)
{
    for (uint32_t row = 0; row < BATCH; row++) {
        const uint16_t *next = s->batch->x + (row + BATCH) * s->batch->stride;
        for (uint32_t c = 0; c < s->batch->dim; c += 32) /* may lie past the input */
            _mm_prefetch((const char *)(next + c), _MM_HINT_T1);
        pack_row(s, row, words, planes, clamp);
    }
}

ALWAYS void encode_batch(struct groups *s, int planes)
{
    const uint32_t bits = (uint32_t)(16 / planes), dim = s->batch->dim;
    bool clamp = false;
    for (uint32_t at = 0; at < BATCH * s->row_groups; at += SIDE_BY_SIDE)
        clamp |= finish_groups(s, at, bits);
    if (clamp)
        pack_batch(s, s->words, planes, true);
    else if (dim == 128)
        pack_batch(s, 128 / (uint32_t)planes, planes, false);
    else if (dim == 64)
        pack_batch(s, 64 / (uint32_t)planes, planes, false);
    else
        pack_batch(s, s->words, planes, false);
}

/** Whole batches; groups are whole runs; vectors of 8 channels lie in one group. */
bool qr_fused_encode_tokens_avx2(const struct qr_token_batch *b)
{
    struct groups s;
#ifdef __clang_analyzer__
    memset(&s, 0, sizeof(s)); /* it does not see that every group's factors are written first */
#endif
    if (b->bits == 3 || b->count != BATCH || b->group != RUN || b->dim % RUN ||
        b->dim * b->bits % 128)
        return false;
    s.batch = b;
    s.row_groups = b->dim / RUN;
    s.words = b->dim * b->bits / 16;
    s.row_bytes = 2 * s.words;
    if (b->bits == 2)
        encode_batch(&s, 8);
    else if (b->bits == 4)
        encode_batch(&s, 4);
    else
        encode_batch(&s, 2);
    return true;
}
