/* SPDX-License-Identifier: Apache-2.0
 *
 * Which elements of a head `nuq` keeps exactly: one after the other, the one
 * whose leaving shrinks its group's range most (docs/FORMULAS.md). FP32 on exact
 * FP16 values in a fixed order, so every CPU chooses the same.
 */
#include <string.h>

#include "nuq.h"
#include "proto/quant.h"
#include "proto/spec_parts.h"

#define GROUPS_MAX (QR_NUQ_HEAD_MAX / 8u)

/** Groups of a head: member i of group g is at position first + i * step. */
struct grouping {
    uint32_t count, along, dim; /* groups; groups side by side; channels */
    uint32_t size;
    bool channels; /* groups run along tokens */
};

static struct grouping grouping_of(const struct qr_tensor *t)
{
    const bool channels = t->spec.axis == QR_AXIS_CHANNEL;
    const uint32_t along = channels ? t->dim : (t->dim + t->spec.group - 1u) / t->spec.group;
    return (struct grouping){channels ? t->tokens / t->spec.group * along : t->tokens * along,
                             along, t->dim, t->spec.group, channels};
}

static uint32_t group_at(const struct grouping *g, uint32_t position)
{
    const uint32_t token = position / g->dim, channel = position % g->dim;
    return g->channels ? token / g->size * g->along + channel
                       : token * g->along + channel / g->size;
}

struct candidate {
    float gain;
    uint16_t position;
};

/** The two least and the two greatest members, and where the extremes are. */
struct extremes {
    float low[2], high[2];
    uint32_t low_at, high_at, members;
};

static void take(struct extremes *x, float value, uint32_t position)
{
    if (value < x->low[0]) {
        x->low[1] = x->low[0];
        x->low[0] = value;
        x->low_at = position;
    } else if (value < x->low[1]) {
        x->low[1] = value;
    }
    if (value > x->high[0]) {
        x->high[1] = x->high[0];
        x->high[0] = value;
        x->high_at = position;
    } else if (value > x->high[1]) {
        x->high[1] = value;
    }
    x->members++;
}

static bool marked(const uint64_t *marks, uint32_t position)
{
    return marks[position / 64] >> position % 64 & 1u;
}

static void mark(uint64_t *marks, uint32_t position)
{
    marks[position / 64] |= 1ull << position % 64;
}

/** What the group gains: the drop of its range's square, times its members. */
static struct candidate judge(const struct qr_nuq_head *h, const struct grouping *g,
                              const uint64_t *marks, uint32_t group)
{
    struct extremes x = {{INFINITY, INFINITY}, {-INFINITY, -INFINITY}, 0, 0, 0};
    const uint32_t row = group / g->along, lane = group % g->along;
    const uint32_t last =
        g->channels ? g->size
                    : (g->dim - lane * g->size < g->size ? g->dim - lane * g->size : g->size);
    for (uint32_t i = 0; i < last; i++) {
        const uint32_t token = g->channels ? row * g->size + i : row;
        const uint32_t channel = g->channels ? lane : lane * g->size + i;
        const uint32_t position = token * g->dim + channel;
        if (!qr_page_is_raw(h->raw, token) && !marked(marks, position))
            take(&x, qr_f16_to_f32(h->x[token * h->stride + channel]), position);
    }
    if (x.members < 3)
        return (struct candidate){0.0f, 0};
    const float range = x.high[0] - x.low[0];
    const float without_high = x.high[1] - x.low[0], without_low = x.high[0] - x.low[1];
    const bool high = without_high < without_low;
    const float rest = high ? without_high : without_low;
    return (struct candidate){(range * range - rest * rest) * (float)x.members,
                              (uint16_t)(high ? x.high_at : x.low_at)};
}

void qr_nuq_choose(const struct qr_nuq_head *h, uint64_t *marks)
{
    struct candidate of[GROUPS_MAX];
    const struct qr_tensor *t = h->tensor;
    const struct grouping g = grouping_of(t);
    uint16_t *positions = h->outliers + 1, *values = positions + h->most, count = 0;
    of[0] = (struct candidate){0.0f, 0};
    for (uint32_t i = 0; i < g.count; i++)
        of[i] = judge(h, &g, marks, i);
    for (uint32_t n = 0; n < h->most; n++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < g.count; i++)
            best = of[i].gain > of[best].gain ? i : best;
        if (!(of[best].gain > 0.0f))
            break;
        mark(marks, of[best].position);
        of[best] = judge(h, &g, marks, group_at(&g, of[best].position));
    }
    memset(h->outliers, 0, (1u + 2u * h->most) * sizeof(*h->outliers));
    for (uint32_t word = 0; word < (t->tokens * t->dim + 63u) / 64u; word++)
        for (uint64_t rest = marks[word]; rest; rest &= rest - 1, count++) {
            const uint32_t position = word * 64u + (uint32_t)__builtin_ctzll(rest);
            positions[count] = (uint16_t)position;
            values[count] = h->x[position / t->dim * h->stride + position % t->dim];
        }
    h->outliers[0] = count;
}
