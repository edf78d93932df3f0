/* SPDX-License-Identifier: Apache-2.0
 *
 * See calibrate.h. Values are normalized, and outliers left out, by the codec's
 * own rules.
 */
#include "calibrate.h"

#include <math.h>
#include <string.h>

#include "proto/quant.h"
#include "storage/codec/nuq.h"

#define ROUNDS 300
#define LEVELS_MAX 16

/* ---- the distribution ---- */

/** One group: its members' place in a page of one head. */
struct group {
    uint32_t first, step, count; /* positions first, first + step, ... */
};

static bool member(const struct qr_nuq_head *h, const uint64_t *marks, uint32_t position)
{
    return !(marks[position / 64] >> position % 64 & 1u) &&
           !qr_page_is_raw(h->raw, position / h->tensor->dim);
}

static float value_at(const struct qr_nuq_head *h, uint32_t position)
{
    const uint32_t dim = h->tensor->dim;
    return qr_f16_to_f32(h->x[position / dim * h->stride + position % dim]);
}

static void add_group(const struct qr_nuq_head *h, const uint64_t *marks, const struct group *g,
                      const float *cost, struct qr_calibrate_histogram *out)
{
    float low = INFINITY, high = -INFINITY;
    for (uint32_t i = 0, p = g->first; i < g->count; i++, p += g->step)
        if (member(h, marks, p)) {
            low = fminf(low, value_at(h, p));
            high = fmaxf(high, value_at(h, p));
        }
    const double middle = ((double)low + (double)high) / 2;
    const double scale = ((double)high - (double)low) / 2;
    if (!(scale > 0))
        return;
    for (uint32_t i = 0, p = g->first; i < g->count; i++, p += g->step) {
        if (!member(h, marks, p))
            continue;
        const double z = ((double)value_at(h, p) - middle) / scale;
        const double at = (z + 1) / 2 * QR_CALIBRATE_BINS;
        const uint32_t bin = at < 0                    ? 0
                             : at >= QR_CALIBRATE_BINS ? QR_CALIBRATE_BINS - 1
                                                       : (uint32_t)at;
        const double each = cost ? (double)cost[p % h->tensor->dim] : 1.0;
        out->weight[bin] +=
            each * scale * scale; /* an error in z is scale times as large in x */
    }
}

static void add_head(const struct qr_nuq_head *h, const uint64_t *marks, const float *cost,
                     struct qr_calibrate_histogram *out)
{
    const uint32_t dim = h->tensor->dim, size = h->tensor->spec.group;
    if (h->tensor->spec.axis == QR_AXIS_CHANNEL) {
        for (uint32_t token = 0; token < h->tensor->tokens; token += size)
            for (uint32_t c = 0; c < dim; c++)
                add_group(h, marks, &(struct group){token * dim + c, dim, size}, cost, out);
        return;
    }
    for (uint32_t token = 0; token < h->tensor->tokens; token++)
        for (uint32_t c = 0; c < dim; c += size) {
            const uint32_t n = dim - c < size ? dim - c : size;
            add_group(h, marks, &(struct group){token * dim + c, 1, n}, cost, out);
        }
}

void qr_calibrate_add(const struct qr_calibrate_rows *rows, struct qr_calibrate_histogram *out)
{
    static _Thread_local uint16_t outliers[1 + 2 * QR_NUQ_HEAD_MAX / 10 + 2];
    const struct qr_tensor tensor = {
        .spec = rows->spec, .tokens = QR_CALIBRATE_PAGE, .heads = 1, .dim = rows->dim};
    const size_t stride = (size_t)rows->heads * rows->dim;
    for (uint32_t first = 0; first + QR_CALIBRATE_PAGE <= rows->tokens;
         first += QR_CALIBRATE_PAGE) {
        uint8_t raw[QR_PAGE_TOKENS_MAX / 8] = {0};
        for (uint32_t t = first; t < rows->sinks && t < QR_CALIBRATE_PAGE; t++)
            raw[t / 8] = (uint8_t)(raw[t / 8] | 1u << t % 8);
        for (uint32_t head = 0; head < rows->heads; head++) {
            uint64_t marks[QR_NUQ_HEAD_MAX / 64] = {0};
            const struct qr_nuq_head h = {
                .tensor = &tensor,
                .x = rows->data + first * stride + (size_t)head * rows->dim,
                .stride = stride,
                .raw = raw,
                .outliers = outliers,
                .most =
                    QR_CALIBRATE_PAGE * rows->dim * rows->spec.param[QR_PARAM_NUMBER] / 10000u,
            };
            qr_nuq_choose(&h, marks);
            add_head(&h, marks, rows->cost ? rows->cost + (size_t)head * rows->dim : NULL, out);
        }
    }
}

/* ---- the levels ---- */

static double bin_center(uint32_t bin)
{
    return (bin + 0.5) * 2 / QR_CALIBRATE_BINS - 1;
}

static double mean_error(const struct qr_calibrate_histogram *h, const double *levels,
                         uint32_t count)
{
    double error = 0, weight = 0;
    uint32_t level = 0;
    for (uint32_t bin = 0; bin < QR_CALIBRATE_BINS; bin++) {
        const double z = bin_center(bin);
        while (level + 1 < count && z >= (levels[level] + levels[level + 1]) / 2)
            level++;
        error += h->weight[bin] * (z - levels[level]) * (z - levels[level]);
        weight += h->weight[bin];
    }
    return weight > 0 ? error / weight : 0;
}

/** Where many levels would stand: equal shares of the cube root of the density. */
static void start(const struct qr_calibrate_histogram *h, double *levels, uint32_t count)
{
    double total = 0, seen = 0;
    uint32_t level = 0;
    for (uint32_t bin = 0; bin < QR_CALIBRATE_BINS; bin++)
        total += cbrt(h->weight[bin]);
    for (uint32_t bin = 0; bin < QR_CALIBRATE_BINS && level < count; bin++) {
        seen += cbrt(h->weight[bin]);
        while (level < count && seen >= total * (level + 0.5) / count)
            levels[level++] = bin_center(bin);
    }
    for (; level < count; level++)
        levels[level] = 1;
}

/** Each level to the mean of what is nearest to it; a level that nothing is near stays. */
static void improve(const struct qr_calibrate_histogram *h, double *levels, uint32_t count)
{
    double sum[LEVELS_MAX] = {0}, weight[LEVELS_MAX] = {0};
    uint32_t level = 0;
    for (uint32_t bin = 0; bin < QR_CALIBRATE_BINS; bin++) {
        const double z = bin_center(bin);
        while (level + 1 < count && z >= (levels[level] + levels[level + 1]) / 2)
            level++;
        sum[level] += h->weight[bin] * z;
        weight[level] += h->weight[bin];
    }
    for (level = 0; level < count; level++)
        if (weight[level] > 0)
            levels[level] = sum[level] / weight[level];
}

/** To FP16, each at least the next one above the level before it. */
static void round_levels(const double *levels, uint32_t count, uint16_t *out)
{
    float before = -2;
    for (uint32_t i = 0; i < count; i++) {
        uint16_t half = qr_f16_from_f32((float)levels[i]);
        while (!(qr_f16_to_f32(half) > before))
            half = (uint16_t)(half & 0x8000 ? (half == 0x8000 ? 0x0001 : half - 1) : half + 1);
        out[i] = half;
        before = qr_f16_to_f32(half);
    }
    for (uint32_t i = count; i-- > 0 && qr_f16_to_f32(out[i]) > 1.0f;)
        out[i] =
            (uint16_t)(0x3c00 - (count - 1 - i)); /* pushed past 1: the last ones below it */
}

double qr_calibrate_levels(const struct qr_calibrate_histogram *h, uint32_t bits,
                           uint16_t *levels, double *uniform)
{
    const uint32_t count = 1u << bits;
    double z[LEVELS_MAX] = {0};
    for (uint32_t i = 0; i < count; i++)
        z[i] = 2.0 * i / (count - 1) - 1;
    *uniform = mean_error(h, z, count);
    start(h, z, count);
    for (uint32_t round = 0; round < ROUNDS; round++)
        improve(h, z, count);
    round_levels(z, count, levels);
    for (uint32_t i = 0; i < count; i++)
        z[i] = (double)qr_f16_to_f32(levels[i]);
    return mean_error(h, z, count);
}
