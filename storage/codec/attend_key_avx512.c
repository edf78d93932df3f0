/* SPDX-License-Identifier: Apache-2.0
 *
 * Scores on the key codes with AVX-512: tokens in lanes, so that a channel's
 * scale and minimum become one 16-entry table per group, a decoded value is one
 * lookup, and no sum crosses lanes. ATTEND.md says why. Must not know pages.
 */
#include "attend_codes_avx512.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define TILE QR_ATTEND_TILE /* tokens at a time: one group, or a part of one */

/**
 * Channels are taken two at a time: the RoPE pairs first, then any two of the rest. Arrays of a
 * fixed size keep the loop at one pointer for all of them.
 */
struct tile {
    uint32_t words[QR_DIM_MAX / 8 * TILE];                      /* [dword of a row][token] */
    float scale[2][QR_DIM_MAX / 2], minimum[2][QR_DIM_MAX / 2]; /* [first or second][pair] */
    uint32_t offset[2][QR_DIM_MAX / 2];                         /* of its dword in words */
    uint32_t shift[2][QR_DIM_MAX / 2];
    float turned[QR_DIM_MAX * TILE]; /* rotation of these tokens, when the caller has none */
};
_Static_assert(sizeof(struct tile) <= QR_ATTEND_TILE_BYTES, "part of the scratch");

/** Channels `first + step i` and `second + step i` are pair `pair + i`, i < count. */
struct run {
    uint32_t pair, count, first, second, step;
};

static void runs_of(const struct qr_attend_key_codes *key, struct run runs[2])
{
    const uint32_t turned = key->rotary_dim, rest = key->dim - turned;
    const bool half = key->layout == QR_ROPE_HALF;
    runs[0] = half ? (struct run){0, turned / 2, 0, turned / 2, 1}
                   : (struct run){0, turned / 2, 0, 1, 2};
    runs[1] = (struct run){turned / 2, rest / 2, turned, turned + rest / 2, 1};
}

/** Places of channels first, first + step, ...: those of one field of the words at a time. */
static void place_run(const struct qr_attend_key_codes *key, uint32_t first, struct run run,
                      uint32_t *offset, uint32_t *shift)
{
    const uint32_t words = key->dim * key->bits / 16;
    uint32_t field = first / words, word = first % words;
    for (uint32_t i = 0; i < run.count; field++) {
        uint32_t n = (words - word + run.step - 1) / run.step;
        n = n < run.count - i ? n : run.count - i;
        for (uint32_t j = 0; j < n; j++) {
            const uint32_t w = word + j * run.step;
            offset[run.pair + i + j] = w / 2 * TILE;
            shift[run.pair + i + j] = field * key->bits + w % 2 * 16;
        }
        i += n;
        word = word + n * run.step - words;
    }
}

static void place_channels(const struct qr_attend_key_codes *key, struct tile *tile)
{
    struct run runs[2];
    runs_of(key, runs);
    for (uint32_t r = 0; r < 2; r++) {
        place_run(key, runs[r].first, runs[r], tile->offset[0], tile->shift[0]);
        place_run(key, runs[r].second, runs[r], tile->offset[1], tile->shift[1]);
    }
}

/** n consecutive FP16 values to FP32. */
INLINE void widen(const uint16_t *in, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 some = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1u) : 0xffff;
        const __m512 x = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, in + i));
        _mm512_mask_storeu_ps(out + i, some, x);
    }
}

/** dim FP16 values of channels to the order of pairs. */
static void widen_pairs(const struct run runs[2], const uint16_t *in,
                        float out[2][QR_DIM_MAX / 2])
{
    for (uint32_t r = 0; r < 2; r++) {
        const struct run run = runs[r];
        if (run.step == 1) {
            widen(in + run.first, run.count, out[0] + run.pair);
            widen(in + run.second, run.count, out[1] + run.pair);
            continue;
        }
        for (uint32_t i = 0; i < run.count; i++) {
            out[0][run.pair + i] = _cvtsh_ss(in[run.first + run.step * i]);
            out[1][run.pair + i] = _cvtsh_ss(in[run.second + run.step * i]);
        }
    }
}

static void load_scales(const struct qr_attend_key_codes *key, uint32_t first,
                        struct tile *tile)
{
    const uint16_t *scales = key->scales + (size_t)(first / key->group) * 2 * key->dim;
    struct run runs[2];
    runs_of(key, runs);
    widen_pairs(runs, scales, tile->scale);
    widen_pairs(runs, scales + key->dim, tile->minimum);
}

/** 16 bytes of tokens 0, 4, 8 and 12 from `row` on, in the four lanes. */
INLINE __m512i load_lanes(const uint8_t *row, size_t row_bytes)
{
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)row));
    x = _mm512_inserti32x4(
        x, _mm_loadu_si128((const __m128i *)(const void *)(row + 4 * row_bytes)), 1);
    x = _mm512_inserti32x4(
        x, _mm_loadu_si128((const __m128i *)(const void *)(row + 8 * row_bytes)), 2);
    return _mm512_inserti32x4(
        x, _mm_loadu_si128((const __m128i *)(const void *)(row + 12 * row_bytes)), 3);
}

/** Transpose 16 tokens: dword d of each row to words[d * TILE ...]. */
INLINE void transpose16(const uint8_t *codes, size_t row_bytes, uint32_t *words)
{
    for (size_t at = 0; at < row_bytes; at += 16) {
        __m512i x[4];
        for (uint32_t i = 0; i < 4; i++)
            x[i] = load_lanes(codes + i * row_bytes + at, row_bytes);
        const __m512i lo01 = _mm512_unpacklo_epi32(x[0], x[1]);
        const __m512i hi01 = _mm512_unpackhi_epi32(x[0], x[1]);
        const __m512i lo23 = _mm512_unpacklo_epi32(x[2], x[3]);
        const __m512i hi23 = _mm512_unpackhi_epi32(x[2], x[3]);
        uint32_t *to = words + at / 4 * TILE;
        _mm512_store_si512(to, _mm512_unpacklo_epi64(lo01, lo23));
        _mm512_store_si512(to + TILE, _mm512_unpackhi_epi64(lo01, lo23));
        _mm512_store_si512(to + 2 * TILE, _mm512_unpacklo_epi64(hi01, hi23));
        _mm512_store_si512(to + 3 * TILE, _mm512_unpackhi_epi64(hi01, hi23));
    }
}

/** Values of the first or second channel of a pair for the 32 tokens. A lookup uses 4 bits of
 * its index: for 2-bit codes `iota` repeats, so that the bits above do not matter. */
INLINE void decode(const struct tile *tile, uint32_t which, size_t pair, __m512 iota,
                   __m512 out[2])
{
    const __m512 table = _mm512_fmadd_ps(iota, _mm512_set1_ps(tile->scale[which][pair]),
                                         _mm512_set1_ps(tile->minimum[which][pair]));
    const uint32_t *words = tile->words + tile->offset[which][pair];
    const __m512i shift = _mm512_set1_epi32((int)tile->shift[which][pair]);
    out[0] = _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_load_si512(words), shift), table);
    out[1] =
        _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_load_si512(words + 16), shift), table);
}

/** In a register from here on: folded into two instructions each, these loads cost more than
 * the arithmetic. */
INLINE __m512 load_once(const float *p)
{
    __m512 x = _mm512_loadu_ps(p);
    __asm__("" : "+v"(x));
    return x;
}

INLINE void rotate(__m512 *x1, __m512 *x2, const float *cosine, const float *sine)
{
    const __m512 c = load_once(cosine), s = load_once(sine);
    const __m512 y1 = _mm512_fmsub_ps(*x1, c, _mm512_mul_ps(*x2, s));
    *x2 = _mm512_fmadd_ps(*x2, c, _mm512_mul_ps(*x1, s));
    *x1 = y1;
}

/** What a run of pairs is scored with; pointers are those of its first pair. */
struct work {
    const struct tile *tile;
    const float *cosine, *sine;    /* [pair][TILE] */
    const float *first, *second;   /* query rows, QR_ATTEND_Q_STRIDE apart */
    const uint8_t *codes, *values; /* fetched ahead, 64 bytes with every second pair */
    size_t next_turn;              /* floats to the next tile's rotation */
    __m512 iota;
};

/** Decoded, rotated values of a pair. Memory is slower than the loop and pages of memory end a
 * hardware prefetch: a piece of the next tile, of its rotation and of this tile's values is
 * fetched with every pair. */
INLINE void next_pair(struct work *w, size_t pair, bool turn, __m512 x1[2], __m512 x2[2])
{
    _mm_prefetch((const char *)w->codes, _MM_HINT_T0);
    _mm_prefetch((const char *)w->values, _MM_HINT_T1);
    for (uint32_t i = 0; turn && i < TILE; i += 16) {
        _mm_prefetch((const char *)(w->cosine + w->next_turn + i), _MM_HINT_T1);
        _mm_prefetch((const char *)(w->sine + w->next_turn + i), _MM_HINT_T1);
    }
    decode(w->tile, 0, pair, w->iota, x1);
    decode(w->tile, 1, pair, w->iota, x2);
    for (uint32_t h = 0; turn && h < 2; h++)
        rotate(&x1[h], &x2[h], w->cosine + 16 * h, w->sine + 16 * h);
    w->cosine += TILE;
    w->sine += TILE;
    w->codes += 32;
    w->values += 32;
}

INLINE void add_pair(struct work *w, uint32_t rows, uint32_t step, const __m512 x1[2],
                     const __m512 x2[2], __m512 z[4][2])
{
    for (uint32_t r = 0; r < rows; r++) {
        const __m512 q1 = _mm512_set1_ps(w->first[r * QR_ATTEND_Q_STRIDE]);
        const __m512 q2 = _mm512_set1_ps(w->second[r * QR_ATTEND_Q_STRIDE]);
        for (uint32_t h = 0; h < 2; h++)
            z[r][h] = _mm512_fmadd_ps(q2, x2[h], _mm512_fmadd_ps(q1, x1[h], z[r][h]));
    }
    w->first += step;
    w->second += step;
}

/** Add pairs [pair, last) of 32 tokens to the scores of `rows` rows; a pair is decoded before
 * the one ahead of it is used, so that products never wait. */
INLINE void score_pairs(struct work w, size_t pair, size_t last, uint32_t rows, uint32_t step,
                        bool turn, __m512 z[4][2])
{
    __m512 x1[2], x2[2];
    if (pair >= last)
        return;
    next_pair(&w, pair, turn, x1, x2);
    while (++pair < last) {
        __m512 y1[2], y2[2];
        next_pair(&w, pair, turn, y1, y2);
        add_pair(&w, rows, step, x1, x2, z);
        x1[0] = y1[0], x1[1] = y1[1], x2[0] = y2[0], x2[1] = y2[1];
    }
    add_pair(&w, rows, step, x1, x2, z);
}

/** Scores of 32 tokens for `rows` rows. */
INLINE void score_tile(const struct qr_attend_part *part, uint32_t row, uint32_t rows,
                       const struct qr_attend_key_codes *key, const struct tile *tile,
                       const float *turn, uint32_t first)
{
    const float *q = part->q + row * QR_ATTEND_Q_STRIDE;
    struct run runs[2];
    runs_of(key, runs);
    struct work w = {
        .tile = tile,
        .cosine = turn,
        .sine = turn ? turn + runs[0].count * TILE : NULL,
        .first = q + runs[0].first,
        .second = q + runs[0].second,
        .codes = key->codes + (size_t)(first + TILE) * key->row_bytes,
        .values = key->prefetch + (size_t)first * key->row_bytes,
        .next_turn = (size_t)key->rotary_dim * TILE,
        .iota = key->bits == 4
                    ? _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
                    : _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3),
    };
    __m512 z[4][2];
    for (uint32_t r = 0; r < rows; r++)
        z[r][0] = z[r][1] = _mm512_setzero_ps();
    if (runs[0].step == 1)
        score_pairs(w, 0, runs[0].count, rows, 1, true, z);
    else
        score_pairs(w, 0, runs[0].count, rows, 2, true, z);
    w.first = q + runs[1].first;
    w.second = q + runs[1].second;
    score_pairs(w, runs[1].pair, runs[1].pair + runs[1].count, rows, 1, false, z);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t h = 0; h < 2; h++)
            _mm512_storeu_ps(part->z + (row + r) * part->z_stride + first + 16 * h, z[r][h]);
}

static void score_rows(const struct qr_attend_part *part, const struct qr_attend_key_codes *key,
                       const struct tile *tile, const float *turn, uint32_t first)
{
    for (uint32_t row = 0; row < part->rows; row += 4) {
        switch (part->rows - row) {
        case 1:
            score_tile(part, row, 1, key, tile, turn, first);
            break;
        case 2:
            score_tile(part, row, 2, key, tile, turn, first);
            break;
        case 3:
            score_tile(part, row, 3, key, tile, turn, first);
            break;
        default:
            score_tile(part, row, 4, key, tile, turn, first);
        }
    }
}

void qr_attend_tile_rotation_avx512(const float *rotation, uint32_t tokens, uint32_t rotary_dim,
                                    float *out)
{
    const size_t row = rotary_dim * sizeof(float);
    for (uint32_t t = 0; t < tokens; t += TILE) {
        const uint8_t *from = (const uint8_t *)rotation + t * row;
        uint32_t *to = (uint32_t *)(void *)(out + (size_t)t * rotary_dim);
        transpose16(from, row, to);
        transpose16(from + 16 * row, row, to + 16);
    }
}

/** Rotation of the tile at token `first`: the caller's, or made here. */
static const float *turn_tile(const struct qr_attend_key_codes *key, struct tile *tile,
                              uint32_t first)
{
    const size_t at = (size_t)first * key->rotary_dim;
    if (!key->rotation)
        return NULL;
    if (key->by_channel)
        return key->by_channel + at;
    qr_attend_rotation_by_channel(key->rotation + at, TILE, key->rotary_dim, tile->turned);
    return tile->turned;
}

static void prefetch_scales(const struct qr_attend_key_codes *key, uint32_t first)
{
    const uint16_t *next = key->scales + (size_t)((first + TILE) / key->group) * 2 * key->dim;
    for (uint32_t i = 0; i < 2 * key->dim; i += 32)
        _mm_prefetch((const char *)(next + i), _MM_HINT_T0);
    for (uint32_t i = 0; i < TILE * key->prefetch_scales_bytes; i += 64)
        _mm_prefetch((const char *)key->prefetch_scales + first * key->prefetch_scales_bytes +
                         i,
                     _MM_HINT_T1);
}

void qr_attend_key_codes_avx512(const struct qr_attend_part *part,
                                const struct qr_attend_key_codes *key, uint32_t first,
                                uint32_t last)
{
    struct tile *tile = (struct tile *)(void *)part->scratch;
    place_channels(key, tile);
    for (uint32_t at = first; at < last; at += TILE) {
        const uint8_t *codes = key->codes + (size_t)at * key->row_bytes;
        if (at == first || at % key->group == 0)
            load_scales(key, at, tile);
        prefetch_scales(key, at);
        transpose16(codes, key->row_bytes, tile->words);
        transpose16(codes + 16 * key->row_bytes, key->row_bytes, tile->words + 16);
        score_rows(part, key, tile, turn_tile(key, tile, at), at);
    }
}
#endif
