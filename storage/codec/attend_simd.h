/* SPDX-License-Identifier: Apache-2.0
 *
 * The attention kernels that read the same at every vector width: softmax,
 * weighted sum of FP32 rows, loading of FP16 rows. The including file defines
 * the vector (LANES, vf and the v_ operations) first, and is the only one that
 * names instructions.
 */
#ifndef QR_ATTEND_SIMD_H
#define QR_ATTEND_SIMD_H

#define INLINE static inline __attribute__((always_inline))

/**
 * e^x within 2 ulp for -87 <= x <= 88; smaller x give e^-87, larger ones e^88.
 * x = n ln 2 + r, |r| <= ln 2 / 2, Taylor series to r^6 (next term: 1.2e-7 of the value).
 */
INLINE vf v_exp(vf x)
{
    x = v_min(v_set1(88.0f), v_max(v_set1(-87.0f), x)); /* in this order NaN stays NaN */
    const vf n = v_round(v_mul(x, v_set1(0x1.715476p+0f)));
    vf r = v_fma(n, v_set1(-0x1.62e4p-1f), x); /* ln 2 in two parts, n * first is exact */
    r = v_fma(n, v_set1(-0x1.7f7d1cp-20f), r);
    vf p = v_fma(r, v_set1(1.0f / 720), v_set1(1.0f / 120));
    p = v_fma(p, r, v_set1(1.0f / 24));
    p = v_fma(p, r, v_set1(1.0f / 6));
    p = v_fma(p, r, v_set1(0.5f));
    p = v_fma(p, r, v_set1(1.0f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_scale2(p, n);
}

/**
 * softcap * tanh(z / softcap), tanh(x) = 1 - 2 / (e^2x + 1): absolute error 1e-7 softcap. Where
 * that is too much, for small x, it is clamped between x - x^3/3 and x - x^3/3 + 2x^5/15, which
 * have tanh(x) between them for any x: relative error 3e-6.
 */
INLINE vf v_cap(vf z, float softcap)
{
    const vf nine = v_set1(9.0f); /* tanh is 1 in FP32, and no power overflows */
    const vf x = v_min(nine, v_max(v_sub(v_set1(0.0f), nine), v_div(z, v_set1(softcap))));
    const vf e = v_exp(v_add(x, x));
    const vf t = v_sub(v_set1(1.0f), v_div(v_set1(2.0f), v_add(e, v_set1(1.0f))));
    const vf square = v_mul(x, x), cube = v_mul(square, x);
    const vf third = v_fma(cube, v_set1(-1.0f / 3), x);
    const vf fifth = v_fma(v_mul(cube, square), v_set1(2.0f / 15), third);
    return v_mul(v_set1(softcap), v_min(v_max(third, fifth), v_max(v_min(third, fifth), t)));
}

/** Columns the row does not see get `other`; a row that sees all of them pays nothing. */
INLINE vf keep(vf x, uint32_t column, const struct qr_attend_softmax *s, bool all, float other)
{
    return all ? x : v_keep(x, column, s->low, s->high, v_set1(other));
}

INLINE vf softmax_scores(float *z, const struct qr_attend_softmax *s, bool capped, bool all)
{
    vf max = v_set1(s->max);
    for (uint32_t t = s->first; t < s->last; t += LANES) {
        vf x = v_mul(v_load(z + t), v_set1(s->scale));
        if (capped)
            x = v_cap(x, s->softcap);
        x = keep(x, t, s, all, -INFINITY);
        v_store(z + t, x);
        max = v_max(x, max);
    }
    return max;
}

INLINE vf softmax_weights(float *z, const struct qr_attend_softmax *s, float max, bool all)
{
    vf sum = v_set1(0.0f);
    for (uint32_t t = s->first; t < s->last; t += LANES) {
        const vf p = v_exp(v_sub(v_load(z + t), v_set1(max)));
        const vf kept = keep(p, t, s, all, 0.0f);
        v_store(z + t, kept);
        sum = v_add(sum, kept);
    }
    return sum;
}

static void softmax(float *z, struct qr_attend_softmax *s)
{
    const bool all = s->low <= s->first && s->high >= s->last, capped = s->softcap > 0.0f;
    const float old = s->max;
    const float max = v_reduce_max(capped ? softmax_scores(z, s, true, false)
                                   : all  ? softmax_scores(z, s, false, true)
                                          : softmax_scores(z, s, false, false));
    const vf sum = all ? softmax_weights(z, s, max, true) : softmax_weights(z, s, max, false);
    s->rescale = old == max ? 1.0f : expf(old - max);
    s->max = max;
    s->sum = s->sum * s->rescale + v_reduce_add(sum);
}

/** What add_columns works on; constant where it is inlined. */
struct tile_shape {
    uint32_t rows, vectors, channel;
    bool half;
};

static void scale(float *x, uint32_t n, float factor)
{
    for (uint32_t i = 0; i < n; i += LANES)
        v_store(x + i, v_mul(v_load(x + i), v_set1(factor)));
}

/** LANES channels of a row from element `at` on. */
INLINE vf load_row(const struct qr_attend_block *block, size_t at, bool half)
{
    return half ? v_load_half((const uint16_t *)block->data + at)
                : v_load((const float *)block->data + at);
}

/** `rows` rows, `vectors` vectors of channels from `channel` on: the accumulators stay in
 * registers over all tokens. z: weights of the first row. */
INLINE void add_columns(const struct qr_attend_part *part, const float *z, uint32_t tokens,
                        const struct qr_attend_block *value, const struct tile_shape shape,
                        float *out)
{
    vf sum[ADD_ROWS][ADD_VECTORS];
    for (uint32_t r = 0; r < shape.rows; r++)
        for (uint32_t v = 0; v < shape.vectors; v++)
            sum[r][v] = v_load(out + r * part->out_stride + v * LANES);
    for (uint32_t t = 0; t < tokens; t++) {
        vf x[ADD_VECTORS];
        for (uint32_t v = 0; v < shape.vectors; v++)
            x[v] = load_row(value, t * value->stride + shape.channel + v * LANES, shape.half);
        for (uint32_t r = 0; r < shape.rows; r++) {
            const vf w = v_set1(z[r * part->z_stride + t]);
            for (uint32_t v = 0; v < shape.vectors; v++)
                sum[r][v] = v_fma(w, x[v], sum[r][v]);
        }
    }
    for (uint32_t r = 0; r < shape.rows; r++)
        for (uint32_t v = 0; v < shape.vectors; v++)
            v_store(out + r * part->out_stride + v * LANES, sum[r][v]);
}

INLINE void add_rows(const struct qr_attend_part *part, const float *z, uint32_t tokens,
                     const struct qr_attend_block *value, struct tile_shape shape, float *out)
{
    for (; shape.channel + ADD_VECTORS * LANES <= part->value_dim;
         shape.channel += ADD_VECTORS * LANES) {
        shape.vectors = ADD_VECTORS;
        add_columns(part, z, tokens, value, shape, out + shape.channel);
    }
    for (; shape.channel < part->value_dim; shape.channel += LANES) {
        shape.vectors = 1;
        add_columns(part, z, tokens, value, shape, out + shape.channel);
    }
}

static void add(const struct qr_attend_part *part, uint32_t first, uint32_t tokens,
                const struct qr_attend_block *value)
{
    for (uint32_t row = 0, rows; row < part->rows; row += rows) {
        const float *z = part->z + row * part->z_stride + first;
        float *out = part->out + row * part->out_stride;
        rows = part->rows - row >= ADD_ROWS ? ADD_ROWS : 1;
        if (rows == ADD_ROWS && value->half)
            add_rows(part, z, tokens, value, (struct tile_shape){ADD_ROWS, 0, 0, true}, out);
        else if (rows == ADD_ROWS)
            add_rows(part, z, tokens, value, (struct tile_shape){ADD_ROWS, 0, 0, false}, out);
        else if (value->half)
            add_rows(part, z, tokens, value, (struct tile_shape){1, 0, 0, true}, out);
        else
            add_rows(part, z, tokens, value, (struct tile_shape){1, 0, 0, false}, out);
    }
}

INLINE void rotate_half(float *restrict x1, float *restrict x2, const float *restrict cosine,
                        const float *restrict sine, uint32_t pairs)
{
    for (uint32_t i = 0; i < pairs; i++) {
        const float a = x1[i], b = x2[i];
        x1[i] = fmaf(a, cosine[i], -(b * sine[i]));
        x2[i] = fmaf(b, cosine[i], a * sine[i]);
    }
}

INLINE void rotate_interleaved(float *restrict x, const float *restrict cosine,
                               const float *restrict sine, uint32_t pairs)
{
    for (uint32_t i = 0; i < pairs; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = fmaf(a, cosine[i], -(b * sine[i]));
        x[2 * i + 1] = fmaf(b, cosine[i], a * sine[i]);
    }
}

static void load(const uint16_t *row, uint32_t dim, const float *rotation, uint32_t rotary_dim,
                 enum qr_rope_layout layout, float *out)
{
    for (uint32_t i = 0; i < dim; i += 8) /* dims are multiples of 8 */
        v_widen8(row + i, out + i);
    if (!rotation)
        return;
    const uint32_t pairs = rotary_dim / 2;
    if (layout == QR_ROPE_HALF)
        rotate_half(out, out + pairs, rotation, rotation + pairs, pairs);
    else
        rotate_interleaved(out, rotation, rotation + pairs, pairs);
}

#endif
