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

/** Where the codes of a channel are in the transposed tile, and tables of the group. */
struct tile {
    uint32_t words[QR_DIM_MAX / 8 * TILE]; /* [dword of a row][token] */
    float scales[2 * QR_DIM_MAX];          /* dim scales, then dim minima */
    uint32_t offset[QR_DIM_MAX], shift[QR_DIM_MAX];
    float turned[QR_DIM_MAX * TILE]; /* rotation of these tokens, when the caller has none */
};

_Static_assert(sizeof(struct tile) <= QR_ATTEND_TILE_BYTES, "part of the scratch");

static void place_channels(const struct qr_attend_key_codes *key, struct tile *tile)
{
    const uint32_t words = key->dim * key->bits / 16;
    uint32_t channel = 0;
    for (uint32_t shift = 0; shift < 16; shift += key->bits)
        for (uint32_t word = 0; word < words; word++, channel++) {
            tile->offset[channel] = word / 2 * TILE;
            tile->shift[channel] = shift + word % 2 * 16;
        }
}

static void widen_scales(const uint16_t *in, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256(
                                      (const __m256i *)(const void *)(in + i))));
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

/** Values of one channel for the 32 tokens. A lookup uses 4 bits of its index: for 2-bit codes
 * `iota` repeats, so that the bits above do not matter. */
INLINE void decode(const struct tile *tile, uint32_t dim, uint32_t channel, __m512 iota,
                   __m512 out[2])
{
    const __m512 table = _mm512_fmadd_ps(iota, _mm512_set1_ps(tile->scales[channel]),
                                         _mm512_set1_ps(tile->scales[dim + channel]));
    const uint32_t *words = tile->words + tile->offset[channel];
    const __m512i shift = _mm512_set1_epi32((int)tile->shift[channel]);
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

/** Memory is slower than this loop and pages of memory end a hardware prefetch: fetch a piece
 * of the next tile and of this tile's values with every channel. */
struct ahead {
    const uint8_t *codes, *values, *scales;
    size_t step, scales_step;
};

INLINE void prefetch(const struct ahead *ahead, uint32_t channel)
{
    _mm_prefetch((const char *)ahead->codes + channel * ahead->step, _MM_HINT_T0);
    _mm_prefetch((const char *)ahead->values + channel * ahead->step, _MM_HINT_T1);
    _mm_prefetch((const char *)ahead->scales + channel * ahead->scales_step, _MM_HINT_T0);
}

/** Scores of 32 tokens for `rows` rows. */
INLINE void score_tile(const struct qr_attend_part *part, uint32_t row, uint32_t rows,
                       const struct qr_attend_key_codes *key, const struct tile *tile,
                       const float *turn, uint32_t first)
{
    const uint32_t dim = part->key_dim, pairs = key->rotary_dim / 2;
    const uint32_t step = key->layout == QR_ROPE_HALF ? 1 : 2;
    const uint32_t partner = key->layout == QR_ROPE_HALF ? pairs : 1;
    const float *q = part->q + row * dim;
    const __m512 iota =
        key->bits == 4 ? _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
                       : _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
    const uint8_t *next =
        (const uint8_t *)(key->scales + (first / key->group + 1) * 2 * key->dim);
    const struct ahead ahead = {
        key->codes + (size_t)(first + TILE) * key->row_bytes,
        key->prefetch + (size_t)first * key->row_bytes,
        next,
        TILE * key->row_bytes / key->dim,
        4,
    };
    __m512 z[4][2];
    for (uint32_t r = 0; r < rows; r++)
        z[r][0] = z[r][1] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < pairs; i++) {
        const uint32_t c1 = i * step, c2 = c1 + partner;
        const float *cosine = turn + i * TILE, *sine = cosine + pairs * TILE;
        __m512 x1[2], x2[2];
        prefetch(&ahead, i * 2);
        _mm_prefetch((const char *)(cosine + 8 * TILE), _MM_HINT_T0);
        _mm_prefetch((const char *)(cosine + 8 * TILE + 16), _MM_HINT_T0);
        _mm_prefetch((const char *)(sine + 8 * TILE), _MM_HINT_T0);
        _mm_prefetch((const char *)(sine + 8 * TILE + 16), _MM_HINT_T0);
        decode(tile, key->dim, c1, iota, x1);
        decode(tile, key->dim, c2, iota, x2);
        for (uint32_t h = 0; h < 2; h++)
            rotate(&x1[h], &x2[h], cosine + 16 * h, sine + 16 * h);
        for (uint32_t r = 0; r < rows; r++) {
            const __m512 q1 = _mm512_set1_ps(q[r * dim + c1]);
            const __m512 q2 = _mm512_set1_ps(q[r * dim + c2]);
            for (uint32_t h = 0; h < 2; h++)
                z[r][h] = _mm512_fmadd_ps(q2, x2[h], _mm512_fmadd_ps(q1, x1[h], z[r][h]));
        }
    }
    for (uint32_t c = 2 * pairs; c < key->dim; c++) {
        __m512 x[2];
        prefetch(&ahead, c);
        decode(tile, key->dim, c, iota, x);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t h = 0; h < 2; h++)
                z[r][h] = _mm512_fmadd_ps(_mm512_set1_ps(q[r * dim + c]), x[h], z[r][h]);
    }
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

/** Rotation of the tile at token `first`: the caller's, or made here. */
static const float *turn_tile(const struct qr_attend_key_codes *key, struct tile *tile,
                              uint32_t first)
{
    if (!key->rotation)
        return NULL;
    if (key->by_channel)
        return key->by_channel + (size_t)first * key->rotary_dim;
    const float *from = key->rotation + (size_t)first * key->rotary_dim;
    const size_t row = key->rotary_dim * sizeof(float);
    if (row % 16) {
        qr_attend_rotation_by_channel(from, TILE, key->rotary_dim, tile->turned);
        return tile->turned;
    }
    uint32_t *to = (uint32_t *)(void *)tile->turned;
    transpose16((const uint8_t *)from, row, to);
    transpose16((const uint8_t *)from + 16 * row, row, to + 16);
    return tile->turned;
}

void qr_attend_key_codes_avx512(const struct qr_attend_part *part,
                                const struct qr_attend_key_codes *key, uint32_t first,
                                uint32_t last)
{
    struct tile *tile = (struct tile *)(void *)part->scratch;
    place_channels(key, tile);
    for (uint32_t at = first; at < last; at += TILE) {
        const uint8_t *codes = key->codes + (size_t)at * key->row_bytes;
        const uint16_t *scales = key->scales + (size_t)(at / key->group) * 2 * key->dim;
        if (at == first || at % key->group == 0)
            widen_scales(scales, 2 * key->dim, tile->scales);
        transpose16(codes, key->row_bytes, tile->words);
        transpose16(codes + 16 * key->row_bytes, key->row_bytes, tile->words + 16);
        score_rows(part, key, tile, turn_tile(key, tile, at), at);
    }
}
#endif
