/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of the error report as they read at every vector width. The including file
 * defines the vector (LANES, TILE_ROWS, TILE_VECTORS, vf and the v_ operations) first, and is
 * the only one that names instructions.
 */
#ifndef QR_EVAL_SIMD_H
#define QR_EVAL_SIMD_H

#include "eval_kernels.h"

#include <math.h>

#define INLINE static inline __attribute__((always_inline))
#define INNER_BLOCK 128u   /* rows of b at a time: a panel of them stays in the first cache */
#define COMPARE_BLOCK 512u /* pairs added up in FP32 before they go to FP64 */

/** `rows` x `vectors` elements of c from row i, column j on; constants where it is inlined. */
INLINE void multiply_tile(const struct qr_eval_product *p, uint32_t i, uint32_t j,
                          uint32_t first, uint32_t last, uint32_t rows, uint32_t vectors)
{
    const float *b = p->b + j / QR_EVAL_PANEL * p->b_panel + j % QR_EVAL_PANEL;
    const float *a = p->a + i * p->a_stride;
    float *c = p->c + i * p->c_stride + j;
    vf sum[TILE_ROWS][TILE_VECTORS];
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t v = 0; v < vectors; v++)
            sum[r][v] = v_load(c + r * p->c_stride + v * LANES);
    for (uint32_t k = first; k < last; k++) {
        vf x[TILE_VECTORS];
        for (uint32_t v = 0; v < vectors; v++)
            x[v] = v_load(b + k * p->b_stride + v * LANES);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t v = 0; v < vectors; v++)
                sum[r][v] = v_fma(v_set1(a[r * p->a_stride + k]), x[v], sum[r][v]);
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t v = 0; v < vectors; v++)
            v_store(c + r * p->c_stride + v * LANES, sum[r][v]);
}

/** All rows of the columns from j on. */
INLINE void multiply_strip(const struct qr_eval_product *p, uint32_t j, uint32_t first,
                           uint32_t last, uint32_t vectors)
{
    uint32_t i = 0;
    for (; i + TILE_ROWS <= p->rows; i += TILE_ROWS)
        multiply_tile(p, i, j, first, last, TILE_ROWS, vectors);
    for (; i < p->rows; i++)
        multiply_tile(p, i, j, first, last, 1, vectors);
}

static void multiply(const struct qr_eval_product *p)
{
    for (uint32_t first = 0; first < p->inner; first += INNER_BLOCK) {
        const uint32_t last = first + INNER_BLOCK < p->inner ? first + INNER_BLOCK : p->inner;
        uint32_t j = 0;
        for (; j + TILE_VECTORS * LANES <= p->columns; j += TILE_VECTORS * LANES)
            multiply_strip(p, j, first, last, TILE_VECTORS);
        for (; j < p->columns; j += LANES)
            multiply_strip(p, j, first, last, 1);
    }
}

/** e^x within 2 ulp for -87 <= x <= 88, as in storage/codec/attend_simd.h. */
INLINE vf v_exp(vf x)
{
    x = v_min(v_set1(88.0f), v_max(v_set1(-87.0f), x));
    const vf n = v_round(v_mul(x, v_set1(0x1.715476p+0f)));
    vf r = v_fma(n, v_set1(-0x1.62e4p-1f), x);
    r = v_fma(n, v_set1(-0x1.7f7d1cp-20f), r);
    vf p = v_fma(r, v_set1(1.0f / 720), v_set1(1.0f / 120));
    p = v_fma(p, r, v_set1(1.0f / 24));
    p = v_fma(p, r, v_set1(1.0f / 6));
    p = v_fma(p, r, v_set1(0.5f));
    p = v_fma(p, r, v_set1(1.0f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_scale2(p, n);
}

INLINE float lanes_add(vf x)
{
    _Alignas(64) float lane[LANES];
    float sum = 0;
    v_store(lane, x);
    for (uint32_t i = 0; i < LANES; i++)
        sum += lane[i];
    return sum;
}

INLINE float lanes_max(vf x)
{
    _Alignas(64) float lane[LANES];
    v_store(lane, x);
    float most = lane[0];
    for (uint32_t i = 1; i < LANES; i++)
        most = lane[i] > most ? lane[i] : most;
    return most;
}

static void softmax(float *row, uint32_t n, uint32_t padded)
{
    for (uint32_t t = n; t < padded; t++)
        row[t] = -INFINITY;
    vf most = v_set1(-INFINITY), sum = v_set1(0.0f);
    for (uint32_t t = 0; t < padded; t += LANES)
        most = v_max(v_load(row + t), most);
    const vf top = v_set1(lanes_max(most));
    const uint32_t whole = n / LANES * LANES;
    for (uint32_t t = 0; t < whole; t += LANES) {
        const vf p = v_exp(v_sub(v_load(row + t), top));
        v_store(row + t, p);
        sum = v_add(sum, p);
    }
    if (whole < n) {
        v_store(row + whole, v_exp(v_sub(v_load(row + whole), top)));
        for (uint32_t t = n; t < whole + LANES; t++)
            row[t] = 0;
        sum = v_add(sum, v_load(row + whole));
    }
    const vf factor = v_set1(1.0f / lanes_add(sum));
    for (uint32_t t = 0; t < n; t += LANES)
        v_store(row + t, v_mul(v_load(row + t), factor));
    for (uint32_t t = n; t < padded; t++)
        row[t] = 0;
}

/** Sums of one vector of pairs. */
struct lanes {
    vf error, reference, value, product, ratio, ratios, largest, largest_of;
};

INLINE void compare_lanes(struct lanes *s, vf y, vf x)
{
    const vf e = v_sub(y, x), size = v_abs(x);
    s->error = v_fma(e, e, s->error);
    s->reference = v_fma(x, x, s->reference);
    s->value = v_fma(y, y, s->value);
    s->product = v_fma(x, y, s->product);
    s->ratio = v_add(s->ratio, v_where_positive(size, v_div(v_abs(e), size)));
    s->ratios = v_add(s->ratios, v_where_positive(size, v_set1(1.0f)));
    s->largest = v_max(v_abs(e), s->largest);
    s->largest_of = v_max(size, s->largest_of);
}

static void compare_block(const float *value, const float *reference, uint32_t n,
                          struct qr_eval_sum *sum)
{
    const vf zero = v_set1(0.0f);
    struct lanes s = {zero, zero, zero, zero, zero, zero, zero, zero};
    uint32_t t = 0;
    for (; t + LANES <= n; t += LANES)
        compare_lanes(&s, v_load(value + t), v_load(reference + t));
    if (t < n) {
        _Alignas(64) float y[LANES] = {0}, x[LANES] = {0};
        for (uint32_t i = 0; t + i < n; i++) {
            y[i] = value[t + i];
            x[i] = reference[t + i];
        }
        compare_lanes(&s, v_load(y), v_load(x));
    }
    sum->error_squares += (double)lanes_add(s.error);
    sum->reference_squares += (double)lanes_add(s.reference);
    sum->value_squares += (double)lanes_add(s.value);
    sum->product += (double)lanes_add(s.product);
    sum->ratio += (double)lanes_add(s.ratio);
    sum->ratios += (uint64_t)lanes_add(s.ratios);
    sum->largest = fmax(sum->largest, (double)lanes_max(s.largest));
    sum->largest_of = fmax(sum->largest_of, (double)lanes_max(s.largest_of));
}

static void compare(const float *value, const float *reference, uint32_t n,
                    struct qr_eval_sum *sum)
{
    for (uint32_t t = 0; t < n; t += COMPARE_BLOCK)
        compare_block(value + t, reference + t, n - t < COMPARE_BLOCK ? n - t : COMPARE_BLOCK,
                      sum);
}

#endif
