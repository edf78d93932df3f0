/* SPDX-License-Identifier: Apache-2.0
 *
 * Weighted sums on the value codes, for one vector width; included once per
 * width and dot-product instruction by a file that defines NAME(x), BYTES, the
 * vector types vi and vf and the w_ operations. No include guard on purpose.
 * Knows the packing (proto/PACKING.md) and the plan of its includer.
 */

#define WORDS (BYTES / 2u)  /* words of a row that one vector holds */
#define FLOATS (BYTES / 4u) /* lanes */

/**
 * Interleave the codes of 4 tokens (a quad), so that a 32-bit lane holds the same byte of each.
 * to[column][part][quad]: part j of a column has bytes 16 l + 4 j .. + 3 of each lane l.
 */
static void NAME(interleave)(const struct plan *plan, const uint8_t *codes)
{
    const size_t row = plan->value->row_bytes, step = (size_t)plan->quads * BYTES;
    for (uint32_t column = 0; column < row / BYTES; column++)
        for (uint32_t quad = 0; quad < plan->quads; quad++) {
            const uint8_t *from = codes + 4 * quad * row + column * BYTES;
            const vi a = w_load(from), b = w_load(from + row);
            const vi c = w_load(from + 2 * row), d = w_load(from + 3 * row);
            const vi ab0 = w_unpacklo8(a, b), ab1 = w_unpackhi8(a, b);
            const vi cd0 = w_unpacklo8(c, d), cd1 = w_unpackhi8(c, d);
            uint8_t *to = plan->bytes + 4 * column * step + quad * BYTES;
            w_store(to, w_unpacklo16(ab0, cd0));
            w_store(to + step, w_unpackhi16(ab0, cd0));
            w_store(to + 2 * step, w_unpacklo16(ab1, cd1));
            w_store(to + 3 * step, w_unpackhi16(ab1, cd1));
        }
}

/** Two fields of one part, `rows` rows, all quads: sums of code x high and x low weight byte.
 */
INLINE void NAME(dot)(const struct plan *plan, const uint8_t *bytes, uint32_t field,
                      uint32_t rows, vi low[2][4], vi high[2][4])
{
    const uint32_t bits = plan->value->bits;
    const vi mask = w_set8((char)((1 << bits) - 1));
    const __m128i shift0 = _mm_cvtsi32_si128((int)(field * bits));
    const __m128i shift1 = _mm_cvtsi32_si128((int)((field + 1) * bits));
    const uint8_t *w[2] = {plan->weights[field], plan->weights[field + 1]};
    for (uint32_t f = 0; f < 2; f++)
        for (uint32_t r = 0; r < rows; r++)
            low[f][r] = high[f][r] = w_zero();
    for (uint32_t quad = 0; quad < plan->quads; quad++) {
        const vi x = w_load(bytes + quad * BYTES);
        const vi code[2] = {w_and(w_srl16(x, shift0), mask), w_and(w_srl16(x, shift1), mask)};
        for (uint32_t f = 0; f < 2; f++)
            for (uint32_t r = 0; r < rows; r++) {
                const uint8_t *at = w[f] + r * plan->weight_stride + 16 * quad;
                low[f][r] = w_dot(low[f][r], w_set64(at), code[f]);
                high[f][r] = w_dot(high[f][r], w_set64(at + 8), code[f]);
            }
    }
}

/** Sums of the four parts, in lane order, back to channel order: even lanes are WORDS channels
 * from the first byte of each word, odd ones from the second. */
INLINE void NAME(store)(const struct plan *plan, const vf part[4], uint32_t row, uint32_t even,
                        uint32_t odd)
{
    const vf even_lo = w_evens(part[0], part[1]), even_hi = w_evens(part[2], part[3]);
    const vf odd_lo = w_odds(part[0], part[1]), odd_hi = w_odds(part[2], part[3]);
    const float *min = plan->minimum + row;
    const uint32_t group = plan->value->group;
    w_add_lanes(plan->out + row * plan->out_stride + even, even_lo, even_hi,
                min[4 * (even / group)]);
    w_add_lanes(plan->out + row * plan->out_stride + odd, odd_lo, odd_hi,
                min[4 * (odd / group)]);
}

/** All channels of fields `field` and `field + 1` of one column. */
INLINE void NAME(fields)(const struct plan *plan, uint32_t column, uint32_t field,
                         uint32_t rows)
{
    const uint32_t bits = plan->value->bits;
    const uint32_t words = plan->value->row_bytes / 2, per_byte = 8 / bits;
    const size_t step = (size_t)plan->quads * BYTES;
    vf sum[2][4][4];
    for (uint32_t j = 0; j < 4; j++) {
        vi low[2][4], high[2][4];
        NAME(dot)(plan, plan->bytes + (4 * column + j) * step, field, rows, low, high);
        for (uint32_t f = 0; f < 2; f++)
            for (uint32_t r = 0; r < rows; r++) {
                const vi all = w_add32(w_sll8(high[f][r]), low[f][r]);
                const float *unit = plan->unit[field + f] + 2 * r;
                sum[f][r][j] = w_mul(w_float(all), w_set64f(unit));
            }
    }
    for (uint32_t f = 0; f < 2; f++) {
        const uint32_t even = words * (field + f) + column * WORDS;
        for (uint32_t r = 0; r < rows; r++)
            NAME(store)(plan, sum[f][r], r, even, even + words * per_byte);
    }
}

INLINE void NAME(rows)(struct plan *plan, uint32_t rows)
{
    const uint32_t per_byte = 8 / plan->value->bits;
    const uint32_t columns = plan->value->row_bytes / BYTES;
    measure(plan, rows);
    for (uint32_t column = 0; column < columns; column++)
        for (uint32_t field = 0; field < per_byte; field += 2) {
            make_weights(plan, column * WORDS, field, rows);
            NAME(fields)(plan, column, field, rows);
        }
}

static void NAME(run)(struct plan *plan, uint32_t rows)
{
    switch (rows) {
    case 1:
        NAME(rows)(plan, 1);
        break;
    case 2:
        NAME(rows)(plan, 2);
        break;
    case 3:
        NAME(rows)(plan, 3);
        break;
    default:
        NAME(rows)(plan, 4);
    }
}

#undef WORDS
#undef FLOATS
