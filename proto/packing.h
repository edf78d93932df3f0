/* SPDX-License-Identifier: Apache-2.0
 *
 * Where each code of a row stands (PACKING.md has prose and figures). This is
 * the definition that the SIMD codecs, the kernels and the tests agree with,
 * one code at a time; C11, C++ and nvcc. Must not know what a code means.
 */
#ifndef QR_PACKING_H
#define QR_PACKING_H

#include <stdint.h>

#ifdef __CUDACC__
#define QR_PACKED static inline __host__ __device__
#else
#define QR_PACKED static inline
#endif

/** qr_codec_spec.packing of every codec of version 1. */
#define QR_PACKING_STRIDED16 0

/** 16-bit words of a plane of `width`-bit codes (1, 2, 4 or 8) over `dim` channels. */
QR_PACKED uint32_t qr_plane_words(uint32_t dim, uint32_t width)
{
    return (dim * width + 15u) / 16u;
}

/** Word and shift of channel `channel` in a plane of `words` words. */
QR_PACKED uint32_t qr_plane_word(uint32_t words, uint32_t channel)
{
    return channel % words;
}

QR_PACKED uint32_t qr_plane_shift(uint32_t words, uint32_t width, uint32_t channel)
{
    return channel / words * width;
}

QR_PACKED uint32_t qr_plane_get(const uint8_t *plane, uint32_t dim, uint32_t width,
                                uint32_t channel)
{
    const uint32_t words = qr_plane_words(dim, width);
    const uint8_t *w = plane + 2u * qr_plane_word(words, channel);
    const uint32_t word = (uint32_t)w[0] | (uint32_t)w[1] << 8;
    return (word >> qr_plane_shift(words, width, channel)) & ((1u << width) - 1u);
}

/** Or `code` into a plane that was zero there. */
QR_PACKED void qr_plane_put(uint8_t *plane, uint32_t dim, uint32_t width, uint32_t channel,
                            uint32_t code)
{
    const uint32_t words = qr_plane_words(dim, width);
    uint8_t *w = plane + 2u * qr_plane_word(words, channel);
    const uint32_t placed = code << qr_plane_shift(words, width, channel);
    w[0] = (uint8_t)(w[0] | (placed & 0xffu));
    w[1] = (uint8_t)(w[1] | (placed >> 8));
}

/** Width of the first plane of a row: 3-bit codes are a 2-bit plane, then a 1-bit plane. */
QR_PACKED uint32_t qr_row_low_width(uint32_t bits)
{
    return bits == 3u ? 2u : bits;
}

/** Bytes of a row of `dim` codes of 2, 3, 4 or 8 bits. */
QR_PACKED uint32_t qr_row_bytes(uint32_t dim, uint32_t bits)
{
    const uint32_t words = qr_plane_words(dim, qr_row_low_width(bits));
    return 2u * (bits == 3u ? words + qr_plane_words(dim, 1) : words);
}

QR_PACKED uint32_t qr_row_get(const uint8_t *row, uint32_t dim, uint32_t bits, uint32_t channel)
{
    const uint32_t width = qr_row_low_width(bits);
    const uint32_t low = qr_plane_get(row, dim, width, channel);
    if (bits != 3u)
        return low;
    return low | qr_plane_get(row + 2u * qr_plane_words(dim, 2), dim, 1, channel) << 2;
}

/** Put a code into a row that was zero there. */
QR_PACKED void qr_row_put(uint8_t *row, uint32_t dim, uint32_t bits, uint32_t channel,
                          uint32_t code)
{
    const uint32_t width = qr_row_low_width(bits);
    qr_plane_put(row, dim, width, channel, code & ((1u << width) - 1u));
    if (bits == 3u)
        qr_plane_put(row + 2u * qr_plane_words(dim, 2), dim, 1, channel, code >> 2);
}

#endif
