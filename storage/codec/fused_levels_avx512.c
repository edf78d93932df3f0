/* SPDX-License-Identifier: Apache-2.0
 *
 * Expansion of 2- and 4-bit `chan` codes to FP16 through tables of levels: a
 * group has only 4 or 16 values, so they are rounded to FP16 once and then
 * picked, 32 channels at a time. Same bits as the general kernels.
 */
#include <immintrin.h>

#include "fused.h"
#include "proto/packing.h"

#define ALWAYS static inline __attribute__((always_inline))
#define RUNS 4 /* runs of 32 channels in a block of 128 */

/** How the 32 codes of a run are brought into 16-bit lanes: words of the row, then a shift. */
struct run {
    __m512i shift;  /* per lane, bits */
    uint32_t first; /* first word */
};

/** Words of a row: 8, 16, or a multiple of 32, so that a run reads whole planes. */
static bool words_fit(uint32_t words)
{
    return words == 8 || words == 16 || words % 32 == 0;
}

/** The words that hold channels run->first ..: repeated when a run spans several planes. */
ALWAYS __m512i load_run(const uint8_t *row, const struct run *run, uint32_t words)
{
    const uint8_t *at = row + 2 * run->first;
    if (words == 8)
        return _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)at));
    if (words == 16)
        return _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)at));
    return _mm512_loadu_si512(at);
}

/** 0 .. 31 */
ALWAYS __m512i lane_numbers(void)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
}

/** The run of channels channel .. channel + 31. */
ALWAYS struct run plan_run(uint32_t words, uint32_t width, uint32_t channel)
{
    const uint32_t first = channel / words * width;
    const short lanes_a_plane = words == 8 ? 3 : words == 16 ? 4 : 5; /* log2 */
    const __m512i planes = _mm512_srlv_epi16(lane_numbers(), _mm512_set1_epi16(lanes_a_plane));
    return (struct run){
        _mm512_add_epi16(_mm512_set1_epi16((short)first),
                         _mm512_mullo_epi16(planes, _mm512_set1_epi16((short)width))),
        words >= 32 ? channel % words : 0};
}

ALWAYS void put(uint16_t *to, __m512i x, bool stream)
{
    if (stream)
        _mm512_stream_si512((void *)to, x);
    else
        _mm512_storeu_si512(to, x);
}

ALWAYS __m512i levels_of(const uint16_t *scale, const uint16_t *minimum, float code)
{
    const __m512 q = _mm512_set1_ps(code);
    __m256i half[2];
    for (int i = 0; i < 2; i++) {
        const __m512 s = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(scale + 16 * i)));
        const __m512 m = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(minimum + 16 * i)));
        half[i] = _mm512_cvtps_ph(_mm512_fmadd_ps(q, s, m), _MM_FROUND_TO_NEAREST_INT);
    }
    return _mm512_inserti64x4(_mm512_castsi256_si512(half[0]), half[1], 1);
}

/** Where a tensor's head lies and how far the caller wants it. */
struct head {
    const struct qr_tensor *tensor;
    const struct qr_expand *to;
    const uint8_t *codes;
    const uint16_t *scales;
    uint32_t index, row_bytes, words;
    bool stream;
};

static struct head head_of(const struct qr_tensor *t, const uint8_t *codes,
                           const uint8_t *scales, const struct qr_expand *to, uint32_t index)
{
    const uint32_t row_bytes = qr_row_bytes(t->dim, t->spec.bits);
    const size_t head_scales = qr_spec_scales_bytes(&t->spec, t->tokens, 1, t->dim);
    return (struct head){t,
                         to,
                         codes + (size_t)index * t->tokens * row_bytes,
                         (const void *)(scales + index * head_scales),
                         index,
                         row_bytes,
                         qr_plane_words(t->dim, t->spec.bits),
                         qr_expand_streams(to)};
}

/* ---- 2 bits, groups along tokens: four levels per channel, two tests, three selects ---- */

ALWAYS void select_block(const struct head *h, uint32_t first, uint32_t last, uint32_t channel,
                         int count, uint32_t words, bool stream)
{
    const struct qr_tensor *t = h->tensor;
    const uint16_t *scales = h->scales + (size_t)(first / t->spec.group) * 2 * t->dim + channel;
    struct run runs[RUNS];
    __m512i level[RUNS][4], low[RUNS];
    for (int r = 0; r < count; r++) {
        runs[r] = plan_run(words, 2, channel + 32 * (uint32_t)r);
        low[r] = _mm512_sllv_epi16(_mm512_set1_epi16(1), runs[r].shift);
        for (int q = 0; q < 4; q++)
            level[r][q] = levels_of(scales + 32 * r, scales + t->dim + 32 * r, (float)q);
    }
    for (uint32_t token = first; token < last; token++) {
        const uint8_t *row = h->codes + (size_t)token * h->row_bytes;
        uint16_t *to = (uint16_t *)qr_expand_at(h->to, token, h->index) + channel;
        if (qr_page_is_raw(h->to->raw_bitmap, token))
            continue;
        for (int r = 0; r < count; r++) {
            const __m512i x = load_run(row, &runs[r], words);
            const __mmask32 bit0 = _mm512_test_epi16_mask(x, low[r]);
            const __mmask32 bit1 = _mm512_test_epi16_mask(x, _mm512_add_epi16(low[r], low[r]));
            const __m512i below = _mm512_mask_blend_epi16(bit0, level[r][0], level[r][1]);
            const __m512i above = _mm512_mask_blend_epi16(bit0, level[r][2], level[r][3]);
            put(to + 32 * r, _mm512_mask_blend_epi16(bit1, below, above), stream);
        }
    }
}

ALWAYS void select_span(const struct head *h, uint32_t first, uint32_t last, bool stream)
{
    if (h->words == 8)
        select_block(h, first, last, 0, 2, 8, stream);
    else if (h->words == 16)
        select_block(h, first, last, 0, RUNS, 16, stream);
    else
        for (uint32_t channel = 0; channel < h->tensor->dim; channel += 32 * RUNS)
            select_block(h, first, last, channel, RUNS, h->words, stream);
}

static bool plain_f16(const struct qr_expand *to)
{
    return to->dtype == QR_F16 && !to->rotation;
}

bool qr_fused_select(const struct qr_tensor *t, const uint8_t *codes, const uint8_t *scales,
                     const struct qr_expand *to)
{
    if (t->spec.bits != 2 || t->spec.axis != QR_AXIS_CHANNEL || !plain_f16(to) ||
        !words_fit(qr_plane_words(t->dim, 2)))
        return false;
    const uint32_t last = to->first_token + to->token_count, step = t->spec.group;
    for (uint32_t i = 0; i < to->head_count; i++) { /* heads outside: codes are read in order */
        const struct head h = head_of(t, codes, scales, to, to->first_head + i);
        for (uint32_t first = to->first_token, next; first < last; first = next) {
            next = first - first % step + step;
            next = next < last ? next : last;
            if (h.stream)
                select_span(&h, first, next, true);
            else
                select_span(&h, first, next, false);
        }
    }
    return true;
}

/* ---- groups of 32 or more channels: levels of a row's groups, looked up by code ---- */

/** 16 levels in both halves, for 4-bit codes: bit 4 of an index does not matter. */
ALWAYS __m512i table_of_16(const float *pair)
{
    const __m512 codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 levels =
        _mm512_fmadd_ps(codes, _mm512_set1_ps(pair[0]), _mm512_set1_ps(pair[1]));
    return _mm512_broadcast_i64x4(_mm512_cvtps_ph(levels, _MM_FROUND_TO_NEAREST_INT));
}

/** 4 levels of each of 4 groups, for 2-bit codes. */
ALWAYS __m512i table_of_4(__m256 pairs)
{
    const __m512 codes = _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
    const __m512i at = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
    const __m512i next = _mm512_add_epi32(at, _mm512_set1_epi32(1));
    const __m512 wide = _mm512_castps256_ps512(pairs);
    const __m512 s = _mm512_permutexvar_ps(at, wide), m = _mm512_permutexvar_ps(next, wide);
    return _mm512_castsi256_si512(
        _mm512_cvtps_ph(_mm512_fmadd_ps(codes, s, m), _MM_FROUND_TO_NEAREST_INT));
}

ALWAYS void lookup_block(const struct head *h, uint32_t channel, int bits, int count,
                         uint32_t words, bool stream)
{
    const struct qr_tensor *t = h->tensor;
    const uint32_t group_bits = (uint32_t)__builtin_ctz(t->spec.group);
    const size_t groups = (t->dim + t->spec.group - 1u) >> group_bits;
    const uint32_t last = h->to->first_token + h->to->token_count;
    const uint32_t first_group = channel >> group_bits;
    const uint32_t here = ((32u * (uint32_t)count - 1u) >> group_bits) + 1u;
    struct run runs[RUNS];
    __m512i part[RUNS]; /* of the table of 4 groups, per run */
    for (int r = 0; r < count; r++) {
        runs[r] = plan_run(words, (uint32_t)bits, channel + 32 * (uint32_t)r);
        part[r] = _mm512_set1_epi16((short)(4u * ((32u * (uint32_t)r) >> group_bits)));
    }
    for (uint32_t token = h->to->first_token; token < last; token++) {
        const uint8_t *row = h->codes + (size_t)token * h->row_bytes;
        const uint16_t *pairs = h->scales + 2 * (token * groups + first_group);
        uint16_t *to = (uint16_t *)qr_expand_at(h->to, token, h->index) + channel;
        if (qr_page_is_raw(h->to->raw_bitmap, token))
            continue;
        const __m256 wide =
            _mm256_cvtph_ps(_mm_maskz_loadu_epi32((__mmask8)((1u << here) - 1u), pairs));
        const __m512i fours = bits == 2 ? table_of_4(wide) : _mm512_setzero_si512();
        _Alignas(32) float pair[8];
        _mm256_store_ps(pair, wide);
        for (int r = 0; r < count; r++) {
            const __m512i x = _mm512_srlv_epi16(load_run(row, &runs[r], words), runs[r].shift);
            /* (x & 3) | part */
            const __m512i index =
                bits == 2 ? _mm512_ternarylogic_epi32(x, _mm512_set1_epi16(3), part[r], 0xea)
                          : x;
            const __m512i table =
                bits == 2 ? fours : table_of_16(pair + 2 * ((32u * (uint32_t)r) >> group_bits));
            put(to + 32 * r, _mm512_permutexvar_epi16(index, table), stream);
        }
    }
}

ALWAYS void lookup_head(const struct head *h, int bits, bool stream)
{
    if (h->words == 8)
        lookup_block(h, 0, bits, bits == 2 ? 2 : 1, 8, stream);
    else if (h->words == 16)
        lookup_block(h, 0, bits, bits == 2 ? RUNS : 2, 16, stream);
    else
        for (uint32_t channel = 0; channel < h->tensor->dim; channel += 32 * RUNS)
            lookup_block(h, channel, bits, RUNS, h->words, stream);
}

bool qr_fused_lookup(const struct qr_tensor *t, const uint8_t *codes, const uint8_t *scales,
                     const struct qr_expand *to)
{
    const int bits = t->spec.bits;
    if ((bits != 2 && bits != 4) || t->spec.axis != QR_AXIS_TOKEN || t->spec.group < 32 ||
        !plain_f16(to) || !words_fit(qr_plane_words(t->dim, (uint32_t)bits)))
        return false;
    for (uint32_t i = 0; i < to->head_count; i++) {
        const struct head h = head_of(t, codes, scales, to, to->first_head + i);
        if (bits == 2 && h.stream)
            lookup_head(&h, 2, true);
        else if (bits == 2)
            lookup_head(&h, 2, false);
        else if (h.stream)
            lookup_head(&h, 4, true);
        else
            lookup_head(&h, 4, false);
    }
    return true;
}
