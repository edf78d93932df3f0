/* SPDX-License-Identifier: Apache-2.0
 *
 * Expansion of 2- and 4-bit `chan` codes to FP16 for AVX2 through levels: a
 * group has only 4 or 16 values, so they are rounded to FP16 once and then
 * selected or looked up. Same bits as the general kernels.
 */
#include <immintrin.h>

#include "fused.h"
#include "proto/packing.h"
#include "vector_avx2.h"

#define ALWAYS static inline __attribute__((always_inline))

/** Where a tensor's head lies and how far the caller wants it. */
struct head {
    const struct qr_tensor *tensor;
    const struct qr_expand *to;
    const uint8_t *codes;
    const uint16_t *scales;
    uint32_t index, row_bytes, words;
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
                         qr_plane_words(t->dim, t->spec.bits)};
}

static bool plain_f16(const struct qr_expand *to)
{
    return to->dtype == QR_F16 && !to->rotation;
}

ALWAYS __m256i load(const void *p)
{
    return _mm256_loadu_si256(p);
}

/** Into a register: where it is used more than once, loads are what limits. */
ALWAYS __m256i load_once(const void *p)
{
    __m256i x = load(p);
    __asm__("" : "+x"(x));
    return x;
}

ALWAYS void put(uint16_t *to, __m256i x, bool stream)
{
    if (stream)
        _mm256_stream_si256((void *)to, x);
    else
        _mm256_storeu_si256((void *)to, x);
}

/* ---- 2 bits, groups along tokens: four levels per channel, two tests, three selects ---- */

#define ROWS 2 /* that share loads of levels; more would open too many lines at once */

/** FP16 of the four codes: [code][channel]. */
ALWAYS void levels_of(const uint16_t *scales, uint32_t dim, uint16_t *out)
{
    for (uint32_t c = 0; c < dim; c += LANES) {
        const vf scale = vf_from_f16(vh_load(scales + c, LANES));
        const vf minimum = vf_from_f16(vh_load(scales + dim + c, LANES));
        for (uint32_t q = 0; q < 4; q++)
            vh_store(out + q * dim + c, vf_to_f16(vf_fma(vf_set((float)q), scale, minimum)),
                     LANES);
    }
}

/** Bytes 0 or 1 of each word, twice: then a bit of both bytes tests at once. */
ALWAYS __m256i both_bytes(__m256i words, int byte)
{
    const __m128i pick =
        _mm_add_epi8(_mm_setr_epi8(0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14),
                     _mm_set1_epi8((char)byte));
    return _mm256_shuffle_epi8(words, _mm256_broadcastsi128_si256(pick));
}

/** The four planes in one byte of the words from `word` on, of `rows` rows. */
/* NOLINTNEXTLINE(readability-function-size): inlined, its sizes are constants at each call */
ALWAYS void select_planes(const uint16_t *levels, const uint8_t *codes, uint32_t words,
                          uint32_t word, uint32_t byte, int rows, uint16_t *to, size_t stride,
                          bool stream)
{
    const size_t dim = 8 * words;
    __m256i bits[ROWS]; /* the plane at hand is on top of each byte */
    for (int r = 0; r < rows; r++)
        bits[r] = both_bytes(load(codes + 2 * ((size_t)r * words + word)), (int)byte);
    for (int step = 0; step < 4; step++) {
        const uint32_t plane = 4 * byte + 3 - (uint32_t)step;
        const uint16_t *level = levels + plane * words + word;
        const __m256i l0 = load_once(level), l1 = load_once(level + dim);
        const __m256i l2 = load_once(level + 2 * dim), l3 = load_once(level + 3 * dim);
        for (int r = 0; r < rows; r++) {
            const __m256i low = _mm256_add_epi8(bits[r], bits[r]);
            const __m256i below = _mm256_blendv_epi8(l0, l1, low);
            const __m256i above = _mm256_blendv_epi8(l2, l3, low);
            put(to + (size_t)r * stride + plane * words + word,
                _mm256_blendv_epi8(below, above, bits[r]), stream);
            bits[r] = _mm256_add_epi8(low, low);
        }
    }
}

ALWAYS void select_rows(const struct head *h, const uint16_t *levels, uint32_t token,
                        uint32_t words, int rows, bool stream)
{
    const uint8_t *codes = h->codes + (size_t)token * h->row_bytes;
    uint16_t *to = qr_expand_at(h->to, token, h->index);
    for (uint32_t word = 0; word < words; word += 16) {
        select_planes(levels, codes, words, word, 0, rows, to, h->to->token_stride / 2, stream);
        select_planes(levels, codes, words, word, 1, rows, to, h->to->token_stride / 2, stream);
    }
}

ALWAYS void select_span(const struct head *h, uint32_t first, uint32_t last, uint32_t words,
                        bool stream)
{
    const uint32_t group = h->tensor->spec.group, dim = 8 * words;
    _Alignas(64) uint8_t area[4 * 2 * QR_DIM_MAX + QR_APART_BYTES];
    uint16_t *levels = qr_apart(area, qr_expand_at(h->to, first, h->index), 2 * dim);
    levels_of(h->scales + (size_t)(first / group) * 2 * dim, dim, levels);
    for (; first + ROWS <= last; first += ROWS)
        select_rows(h, levels, first, words, ROWS, stream);
    for (; first < last; first++)
        select_rows(h, levels, first, words, 1, stream);
}

bool qr_fused_select_avx2(const struct qr_tensor *t, const uint8_t *codes,
                          const uint8_t *scales, const struct qr_expand *to)
{
    if (t->spec.bits != 2 || t->spec.axis != QR_AXIS_CHANNEL || !plain_f16(to) || t->dim % 128)
        return false;
    const bool stream = qr_expand_streams(to);
    const uint32_t last = to->first_token + to->token_count, step = t->spec.group;
    for (uint32_t i = 0; i < to->head_count; i++) { /* heads outside: codes are read in order */
        const struct head h = head_of(t, codes, scales, to, to->first_head + i);
        for (uint32_t first = to->first_token, next; first < last; first = next) {
            next = first - first % step + step;
            next = next < last ? next : last;
            if (t->dim != 128)
                select_span(&h, first, next, h.words, stream);
            else if (stream)
                select_span(&h, first, next, 16, true);
            else
                select_span(&h, first, next, 16, false);
        }
    }
    return true;
}

/* ---- groups of 32 channels: levels of a row's groups, looked up by code, byte by byte ---- */

/** Low and high bytes of 16 FP16 levels. */
struct table {
    _Alignas(16) uint8_t low[16], high[16];
};

#define BATCH 16 /* rows whose tables are made before the first is used: latencies are long */

ALWAYS void table_of(__m128i first, __m128i second, struct table *out)
{
    const __m128i byte = _mm_set1_epi16(0xff);
    _mm_store_si128((void *)out->low,
                    _mm_packus_epi16(_mm_and_si128(first, byte), _mm_and_si128(second, byte)));
    _mm_store_si128((void *)out->high,
                    _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8)));
}

/** The 16 levels of each of `count` groups. */
ALWAYS void tables_of_16(const uint16_t *pairs, uint32_t count, struct table *out)
{
    const vf codes = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
    const vf upper = _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15);
    _Alignas(32) float wide[2 * 4 * BATCH];
    for (uint32_t i = 0; i < count; i += 4)
        _mm256_store_ps(wide + 2 * i, vf_from_f16(vh_load(pairs + 2 * i, LANES)));
    for (uint32_t i = 0; i < count; i++) {
        const vf scale = _mm256_broadcast_ss(wide + 2 * i);
        const vf minimum = _mm256_broadcast_ss(wide + 2 * i + 1);
        table_of(vf_to_f16(vf_fma(codes, scale, minimum)),
                 vf_to_f16(vf_fma(upper, scale, minimum)), &out[i]);
    }
}

/** The 4 levels of each of `count` groups, four groups a table in the order of pairs 0, 2, 1,
 * 3. */
ALWAYS void tables_of_4(const uint16_t *pairs, uint32_t count, struct table *out)
{
    const vf codes = _mm256_setr_ps(0, 1, 2, 3, 0, 1, 2, 3);
    for (uint32_t i = 0; i < count; i += 4, out++) {
        const vf x = vf_from_f16(vh_load(pairs + 2 * i, LANES));
        table_of(
            vf_to_f16(vf_fma(codes, _mm256_permute_ps(x, 0x00), _mm256_permute_ps(x, 0x55))),
            vf_to_f16(vf_fma(codes, _mm256_permute_ps(x, 0xaa), _mm256_permute_ps(x, 0xff))),
            out);
    }
}

ALWAYS __m256i both(const uint8_t *half)
{
    return _mm256_broadcastsi128_si256(_mm_load_si128((const void *)half));
}

/** Values of the codes in the lower, then in the upper 8 bytes of each half. */
ALWAYS __m256i lower_values(const struct table *t, __m256i codes)
{
    return _mm256_unpacklo_epi8(_mm256_shuffle_epi8(both(t->low), codes),
                                _mm256_shuffle_epi8(both(t->high), codes));
}

ALWAYS __m256i upper_values(const struct table *t, __m256i codes)
{
    return _mm256_unpackhi_epi8(_mm256_shuffle_epi8(both(t->low), codes),
                                _mm256_shuffle_epi8(both(t->high), codes));
}

/** Low bytes of words, then their high bytes, by halves. */
ALWAYS __m256i split_bytes(__m256i words)
{
    return _mm256_packus_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0xff)),
                               _mm256_srli_epi16(words, 8));
}

/** Codes of 2 bits `plane` planes up in each byte, with the group's place in the table. */
ALWAYS __m256i codes_of_2(__m256i bytes, int plane, __m256i groups)
{
    const __m256i code =
        _mm256_and_si256(_mm256_srli_epi16(bytes, 2 * plane), _mm256_set1_epi8(3));
    return _mm256_or_si256(code, groups);
}

/** A row of 128 channels. */
ALWAYS void lookup_2_128(const uint8_t *row, const struct table *t, uint16_t *to, bool stream)
{
    const __m256i bytes = split_bytes(load(row));
    for (int plane = 0; plane < 4; plane++) {
        const long long first = plane < 2 ? 0 : 0x0808080808080808;
        const __m256i codes = codes_of_2(bytes, plane,
                                         _mm256_setr_epi64x(first, first | 0x0404040404040404,
                                                            first, first | 0x0404040404040404));
        put(to + 16 * plane, lower_values(t, codes), stream);
        put(to + 64 + 16 * plane, upper_values(t, codes), stream);
    }
}

/** Two rows of 64 channels, one in each half. */
ALWAYS void lookup_2_64(const uint8_t *rows, const struct table *t, uint16_t *to, size_t stride,
                        bool stream)
{
    const __m256i bytes = split_bytes(load(rows));
    const __m256i groups =
        _mm256_setr_epi64x(0, 0x0808080808080808, 0x0404040404040404, 0x0c0c0c0c0c0c0c0c);
    __m256i x[8];
    for (int plane = 0; plane < 4; plane++) {
        const __m256i codes = codes_of_2(bytes, plane, groups);
        x[plane] = lower_values(t, codes);
        x[plane + 4] = upper_values(t, codes);
    }
    for (int i = 0; i < 8; i += 2)
        put(to + 8 * i, _mm256_permute2x128_si256(x[i], x[i + 1], 0x20), stream);
    for (int i = 0; i < 8; i += 2)
        put(to + stride + 8 * i, _mm256_permute2x128_si256(x[i], x[i + 1], 0x31), stream);
}

ALWAYS __m256i nibbles(__m256i bytes, int upper)
{
    return _mm256_and_si256(upper ? _mm256_srli_epi16(bytes, 4) : bytes, _mm256_set1_epi8(15));
}

/** A row of 128 channels. */
ALWAYS void lookup_4_128(const uint8_t *row, const struct table *t, uint16_t *to, bool stream)
{
    const __m256i w0 = load(row), w1 = load(row + 32), byte = _mm256_set1_epi16(0xff);
    const __m256i bytes[2] = {
        _mm256_packus_epi16(_mm256_and_si256(w0, byte), _mm256_and_si256(w1, byte)),
        _mm256_packus_epi16(_mm256_srli_epi16(w0, 8), _mm256_srli_epi16(w1, 8))};
    for (int plane = 0; plane < 4; plane++) {
        const __m256i codes = nibbles(bytes[plane / 2], plane % 2);
        put(to + 32 * plane, lower_values(t + plane, codes), stream);
        put(to + 32 * plane + 16, upper_values(t + plane, codes), stream);
    }
}

/** A row of 64 channels. */
ALWAYS void lookup_4_64(const uint8_t *row, const struct table *t, uint16_t *to, bool stream)
{
    const __m256i bytes = split_bytes(load(row));
    const __m256i low = nibbles(bytes, 0), high = nibbles(bytes, 1);
    put(to, lower_values(t, low), stream);
    put(to + 16, lower_values(t, high), stream);
    put(to + 32, upper_values(t + 1, low), stream);
    put(to + 48, upper_values(t + 1, high), stream);
}

/** At most BATCH rows from `token`, all of them or an even number. */
ALWAYS void lookup_batch(const struct head *h, uint32_t token, uint32_t count, uint32_t bits,
                         uint32_t dim, bool stream)
{
    const size_t stride = h->to->token_stride / 2, row_bytes = dim * bits / 8;
    const uint32_t groups = dim / 32, rows = bits == 2 && dim == 64 ? 2 : 1;
    const uint32_t tables = bits == 2 ? 1 : groups; /* of `rows` rows */
    const uint16_t *pairs = h->scales + (size_t)token * 2 * groups;
    const uint8_t *row = h->codes + token * row_bytes;
    uint16_t *to = qr_expand_at(h->to, token, h->index);
    _Alignas(64) uint8_t area[sizeof(struct table) * 4 * BATCH + QR_APART_BYTES];
    struct table *t = qr_apart(area, to, 2 * dim);
    if (bits == 2)
        tables_of_4(pairs, count * groups, t);
    else
        tables_of_16(pairs, count * groups, t);
    for (uint32_t i = 0; i < count; i += rows) {
        if (bits == 2 && dim == 64)
            lookup_2_64(row, t, to, stride, stream);
        else if (bits == 2)
            lookup_2_128(row, t, to, stream);
        else if (dim == 64)
            lookup_4_64(row, t, to, stream);
        else
            lookup_4_128(row, t, to, stream);
        row += rows * row_bytes;
        to += rows * stride;
        t += tables;
    }
}

ALWAYS void lookup_heads(const struct qr_tensor *t, const uint8_t *codes, const uint8_t *scales,
                         const struct qr_expand *to, uint32_t bits, uint32_t dim, bool stream)
{
    const uint32_t end = to->first_token + to->token_count;
    for (uint32_t token = to->first_token, count; token < end; token += count) {
        count = end - token < BATCH ? end - token : BATCH;
        for (uint32_t i = 0; i < to->head_count; i++) {
            const struct head h = head_of(t, codes, scales, to, to->first_head + i);
            if (count == BATCH)
                lookup_batch(&h, token, BATCH, bits, dim, stream);
            else if (count > 1)
                lookup_batch(&h, token, count & ~1u, bits, dim, stream);
            if (count % 2) /* and one again */
                lookup_batch(&h, token + count - 2, 2, bits, dim, stream);
        }
    }
}

bool qr_fused_lookup_avx2(const struct qr_tensor *t, const uint8_t *codes,
                          const uint8_t *scales, const struct qr_expand *to)
{
    const uint32_t bits = t->spec.bits, dim = t->dim;
    const bool stream = qr_expand_streams(to);
    if ((bits != 2 && bits != 4) || t->spec.axis != QR_AXIS_TOKEN || t->spec.group != 32 ||
        !plain_f16(to) || (dim != 64 && dim != 128) || to->token_count < 2)
        return false;
    if (bits == 2 && dim == 64)
        lookup_heads(t, codes, scales, to, 2, 64, stream);
    else if (bits == 2)
        lookup_heads(t, codes, scales, to, 2, 128, stream);
    else if (dim == 64)
        lookup_heads(t, codes, scales, to, 4, 64, stream);
    else
        lookup_heads(t, codes, scales, to, 4, 128, stream);
    return true;
}
