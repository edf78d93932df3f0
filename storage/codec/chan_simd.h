/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding of `chan` in vector words, for every shape; included by chan_avx2.c
 * and chan_avx512.c after the words of their width. Codes pass through one byte
 * each. Same bits as chan_scalar.c.
 */
#ifndef QR_CHAN_SIMD_H
#define QR_CHAN_SIMD_H

#include <string.h>

#include "kernels.h"
#include "proto/packing.h"
#include "proto/quant.h"

/** Codes of a row as bytes; whole words of 1-bit planes may run 8 past the last channel. */
#define CODES_MAX (QR_DIM_MAX + 16)

/* ---- planes and bytes: 8 words at a time, the last 8 overlap those before ---- */

static inline uint32_t next_words(uint32_t word, uint32_t words)
{
    return word + 16 <= words ? word + 8 : words - 8;
}

/** Codes of a plane, put `shift` bits up and ored into what is in `codes` when shift > 0. */
static inline void unpack_plane(const uint8_t *plane, uint32_t dim, uint32_t width,
                                uint32_t shift, uint8_t *codes)
{
    const uint32_t words = qr_plane_words(dim, width), planes = 16 / width;
    const __m128i mask = _mm_set1_epi16((short)((1u << width) - 1u));
    for (uint32_t c = 0; words < 8 && c < dim; c++) {
        const uint32_t q = qr_plane_get(plane, dim, width, c) << shift;
        codes[c] = (uint8_t)(shift ? codes[c] | q : q);
    }
    for (uint32_t w = 0; words >= 8; w = next_words(w, words)) {
        __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(plane + 2 * w));
        for (uint32_t p = 0; p < planes; p++, x = _mm_srli_epi16(x, (int)width)) {
            __m128i *to = (__m128i *)(void *)(codes + p * words + w);
            __m128i q = _mm_slli_epi16(_mm_and_si128(x, mask), (int)shift);
            q = _mm_packus_epi16(q, q);
            _mm_storel_epi64(to, shift ? _mm_or_si128(q, _mm_loadl_epi64(to)) : q);
        }
        if (w + 8 == words)
            break;
    }
}

static inline void unpack_row(const uint8_t *row, uint32_t dim, uint32_t bits, uint8_t *codes)
{
    switch (bits) {
    case 2:
        unpack_plane(row, dim, 2, 0, codes);
        break;
    case 3:
        unpack_plane(row, dim, 2, 0, codes);
        unpack_plane(row + 2 * qr_plane_words(dim, 2), dim, 1, 2, codes);
        break;
    case 4:
        unpack_plane(row, dim, 4, 0, codes);
        break;
    default:
        unpack_plane(row, dim, 8, 0, codes);
        break;
    }
}

/* ---- decoding ---- */

static void decode_channels(const uint8_t *row, uint32_t dim, uint32_t bits,
                            const float *scales, float *out)
{
    uint8_t codes[CODES_MAX];
    unpack_row(row, dim, bits, codes);
    for (uint32_t c = 0; c < dim; c += LANES)
        vf_store(out + c,
                 vf_fma(vf_from_u8(codes + c, dim - c), vf_load(scales + c, dim - c),
                        vf_load(scales + dim + c, dim - c)),
                 dim - c);
}

static void decode_token(const uint8_t *row, uint32_t dim, uint32_t bits, uint32_t group,
                         const uint16_t *pairs, float *out)
{
    uint8_t codes[CODES_MAX];
    unpack_row(row, dim, bits, codes);
    for (uint32_t c = 0; c < dim; c += LANES) {
        const uint16_t *pair = pairs + 2 * (c / group);
        const vf scale = vf_set(_cvtsh_ss(pair[0])), minimum = vf_set(_cvtsh_ss(pair[1]));
        vf_store(out + c, vf_fma(vf_from_u8(codes + c, dim - c), scale, minimum), dim - c);
    }
}

#endif
