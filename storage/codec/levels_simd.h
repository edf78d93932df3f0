/* SPDX-License-Identifier: Apache-2.0
 *
 * The level kernels in vector words; included by levels_avx2.c and
 * levels_avx512.c after the words of their width. Consecutive words of a plane
 * hold consecutive channels (PACKING.md), so a shift makes indices of them. Same
 * bits as levels_scalar.c.
 */
#ifndef QR_LEVELS_SIMD_H
#define QR_LEVELS_SIMD_H

#include <string.h>

#include "levels.h"
#include "proto/packing.h"

/** Channels [at, at + n) whose codes are the words of a plane, `shift` bits up; the table
 * repeats, so bits above a code do not matter. */
static inline void lookup_run(const uint16_t *words, uint32_t n, int shift, vt table,
                              float *out)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        const vi code = vi_shift_right(vi_load_words(words + i, n - i), shift);
        vf_store(out + i, vt_lookup(table, code), n - i);
    }
}

/** 3 bits: a run is as long as the plane of high bits. */
static inline void lookup_3_bits(const uint16_t *words, uint32_t dim, vt table, float *out)
{
    const uint32_t low = dim / 8, run = dim / 16;
    for (uint32_t p = 0; p < 16; p++)
        for (uint32_t i = 0; i < run; i += LANES) {
            const vi a = vi_shift_right(vi_load_words(words + (p & 1) * run + i, run - i),
                                        (int)(p / 2 * 2));
            const vi b = vi_shift_right(vi_load_words(words + low + i, run - i), (int)p);
            vf_store(out + p * run + i, vt_lookup(table, vi_insert_high(a, b)), run - i);
        }
}

static void lookup(const uint8_t *row, uint32_t dim, uint32_t bits, const float table[16],
                   float *out)
{
    const uint32_t words = qr_plane_words(dim, bits == 3 ? 1 : bits);
    const uint16_t *at = (const uint16_t *)(const void *)row;
    if (words % WORDS_STEP || (bits == 3 && dim % 16)) { /* no whole vectors of words */
        for (uint32_t c = 0; c < dim; c++)
            out[c] = table[qr_row_get(row, dim, bits, c)];
        return;
    }
    const vt t = vt_load(table);
    if (bits == 3) {
        lookup_3_bits(at, dim, t, out);
        return;
    }
    for (uint32_t p = 0; p < 16 / bits; p++)
        lookup_run(at, words, (int)(p * bits), t, out + p * words);
}

/** Bits [skip, skip + width) of the codes w, w + words, ... into word w. */
static inline __attribute__((always_inline)) void pack_plane(const uint16_t *restrict codes,
                                                             uint32_t words, uint32_t width,
                                                             uint32_t skip,
                                                             uint16_t *restrict plane)
{
    const uint32_t mask = (1u << width) - 1u;
    for (uint32_t w = 0; w < words; w++) {
        uint32_t x = 0;
        for (uint32_t p = 0; p < 16 / width; p++)
            x |= (codes[p * words + w] >> skip & mask) << p * width;
        plane[w] = (uint16_t)x;
    }
}

static void pack(const uint16_t *codes, uint32_t dim, uint32_t bits, uint8_t *row)
{
    uint16_t *at = (uint16_t *)(void *)row;
    if (bits == 4) {
        pack_plane(codes, dim / 4, 4, 0, at);
        return;
    }
    pack_plane(codes, dim / 8, 2, 0, at);
    if (bits == 3)
        pack_plane(codes, qr_plane_words(dim, 1), 1, 2, at + dim / 8);
}

#endif
