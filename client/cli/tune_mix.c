/* SPDX-License-Identifier: Apache-2.0
 *
 * Policies with overrides: for keys and for values two encodings each, of which every layer
 * gets one, in few enough runs of layers. See tune.h.
 */
#include "tune.h"
#include "tune_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/** Two choices of a side, the cheaper one first; equal: one for all layers. */
struct pair {
    uint32_t choice[2];
};

/** One combination: items 2 l are the keys of layer l, 2 l + 1 its values. */
struct mix {
    struct qr_tune *tune;
    struct pair pair[2];
    struct qr_tune_item *items; /* [2 layers] */
    double (*errors)[2];        /* [2 layers] */
    double bits[2][2];
    uint32_t *picks; /* [2 layers]: 0 or 1 */
};

/** Choices that no other one beats in bits and error both; at most `most` of them. */
static uint32_t useful(const struct qr_tune_side *side, uint32_t most, uint32_t *out)
{
    uint32_t count = 0;
    for (uint32_t c = 0; c < side->count && count < most; c++) {
        bool beaten = false;
        for (uint32_t o = 0; o < side->count; o++)
            beaten |= side->bits[o] <= side->bits[c] && side->total[o] < side->total[c];
        if (!beaten)
            out[count++] = c;
    }
    return count;
}

static uint32_t make_pairs(const struct qr_tune_side *side, struct pair *out)
{
    uint32_t choice[QR_TUNE_CANDIDATES_MAX], pairs = 0;
    const uint32_t count = useful(side, QR_TUNE_USEFUL_MAX, choice);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = i; j < count; j++) {
            const bool swap = side->bits[choice[j]] < side->bits[choice[i]];
            out[pairs++] = (struct pair){{choice[swap ? j : i], choice[swap ? i : j]}};
        }
    return pairs;
}

static void fill_items(struct mix *m)
{
    const uint32_t layers = m->tune->report.layer_count;
    for (uint32_t i = 0; i < 2 * layers; i++) {
        const struct qr_tune_side *side = &m->tune->side[i % 2];
        const struct qr_eval_bytes *b = &m->tune->report.layers[i / 2].bytes[side->first];
        for (int c = 0; c < 2; c++) {
            const uint32_t choice = m->pair[i % 2].choice[c];
            m->errors[i][c] = side->errors[(size_t)(i / 2) * side->count + choice];
            m->bits[i % 2][c] = side->bits[choice];
        }
        m->items[i] = (struct qr_tune_item){
            .bits = m->bits[i % 2],
            .errors = m->errors[i],
            .elements = (double)(side->key ? b->key_elements : b->value_elements),
            .choices = m->pair[i % 2].choice[0] == m->pair[i % 2].choice[1] ? 1 : 2};
    }
}

/** Layers [first, first + *length) of a side that all have the dearer choice; false: none from
 * `first` on. */
static bool next_run(const struct mix *m, uint32_t side, uint32_t *first, uint32_t *length)
{
    const uint32_t layers = m->tune->report.layer_count;
    while (*first < layers && m->picks[2 * *first + side] == 0)
        ++*first;
    for (*length = 0; *first + *length < layers; ++*length)
        if (m->picks[2 * (*first + *length) + side] == 0)
            break;
    return *length > 0;
}

/** Give up the runs that bring least, until few enough are left. */
static void trim(struct mix *m)
{
    for (;;) {
        uint32_t runs = 0, side = 0, at = 0, most = 0, length;
        double least = INFINITY;
        for (uint32_t s = 0; s < 2; s++)
            for (uint32_t first = 0; next_run(m, s, &first, &length); first += length) {
                double lost = 0;
                for (uint32_t l = first; l < first + length; l++)
                    lost += m->errors[2 * l + s][0] - m->errors[2 * l + s][1];
                runs++;
                if (lost < least) {
                    least = lost;
                    side = s;
                    at = first;
                    most = length;
                }
            }
        if (runs <= QR_OVERRIDES_MAX)
            return;
        for (uint32_t l = at; l < at + most; l++)
            m->picks[2 * l + side] = 0;
    }
}

static void keep_if_better(struct mix *m)
{
    struct qr_tune *t = m->tune;
    const uint32_t layers = t->report.layer_count;
    double error = 0, bits = 0, elements = 0;
    for (uint32_t i = 0; i < 2 * layers; i++) {
        error += m->errors[i][m->picks[i]] / layers;
        bits += m->bits[i % 2][m->picks[i]] * m->items[i].elements;
        elements += m->items[i].elements;
    }
    if (error >= t->mixed_error)
        return;
    t->mixed_error = error;
    t->mixed_bits = bits / elements;
    for (uint32_t i = 0; i < 2 * layers; i++) {
        t->side[i % 2].base = m->pair[i % 2].choice[0];
        t->side[i % 2].picks[i / 2] = m->pair[i % 2].choice[m->picks[i]];
    }
}

bool qr_tune_mix(struct qr_tune *t)
{
    const size_t items = 2 * (size_t)t->report.layer_count;
    struct pair *pairs[2];
    struct mix m = {.tune = t};
    for (int s = 0; s < 2; s++)
        pairs[s] = calloc(QR_TUNE_USEFUL_MAX * (QR_TUNE_USEFUL_MAX + 1) / 2, sizeof(**pairs));
    m.items = calloc(items, sizeof(*m.items));
    m.errors = calloc(items, sizeof(*m.errors));
    m.picks = calloc(items, sizeof(*m.picks));
    const bool memory = pairs[0] && pairs[1] && m.items && m.errors && m.picks;
    t->mixed_error = INFINITY;
    const uint32_t keys = memory ? make_pairs(&t->side[0], pairs[0]) : 0;
    const uint32_t values = memory ? make_pairs(&t->side[1], pairs[1]) : 0;
    for (uint32_t k = 0; k < keys; k++)
        for (uint32_t v = 0; v < values; v++) {
            m.pair[0] = pairs[0][k];
            m.pair[1] = pairs[1][v];
            fill_items(&m);
            if (!qr_tune_choose(m.items, (uint32_t)items, t->bits, m.picks))
                continue;
            trim(&m);
            keep_if_better(&m);
        }
    free(pairs[0]);
    free(pairs[1]);
    free(m.items);
    free(m.errors);
    free(m.picks);
    return memory;
}

void qr_tune_policy(const struct qr_tune *t, struct qr_policy *out)
{
    *out = t->policy;
    if (t->uniform || t->mixed_error >= t->best_error) {
        out->key = t->side[0].specs[t->best[0]];
        out->value = t->side[1].specs[t->best[1]];
        return;
    }
    out->key = t->side[0].specs[t->side[0].base];
    out->value = t->side[1].specs[t->side[1].base];
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t l = 0; l < t->report.layer_count; l++) {
            const struct qr_tune_side *side = &t->side[s];
            const uint32_t number = t->report.layers[l].model_layer;
            if (side->picks[l] == side->base)
                continue;
            if (l > 0 && side->picks[l - 1] != side->base) {
                out->overrides[out->override_count - 1].last_layer = (uint16_t)number;
                continue;
            }
            out->overrides[out->override_count++] =
                (struct qr_override){.first_layer = (uint16_t)number,
                                     .last_layer = (uint16_t)number,
                                     .tensors = s == 0 ? QR_TENSOR_KEY : QR_TENSOR_VALUE,
                                     .spec = side->specs[side->picks[l]]};
        }
}
