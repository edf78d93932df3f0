/* SPDX-License-Identifier: Apache-2.0
 *
 * See tune_search.h.
 */
#include "tune_search.h"

#include <math.h>

#define STEPS 100

/** The choice of least error + price * bits * elements; of equals the cheaper one. */
static uint32_t pick(const struct qr_tune_item *item, double price)
{
    uint32_t best = 0;
    for (uint32_t c = 1; c < item->choices; c++) {
        const double cost = item->errors[c] + price * item->bits[c] * item->elements;
        const double least = item->errors[best] + price * item->bits[best] * item->elements;
        if (cost < least || (cost == least && item->bits[c] < item->bits[best]))
            best = c;
    }
    return best;
}

static uint32_t cheapest(const struct qr_tune_item *item)
{
    uint32_t best = 0;
    for (uint32_t c = 1; c < item->choices; c++)
        if (item->bits[c] < item->bits[best] ||
            (item->bits[c] == item->bits[best] && item->errors[c] < item->errors[best]))
            best = c;
    return best;
}

static double spent(const struct qr_tune_item *items, uint32_t count, const uint32_t *picks)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += items[i].bits[picks[i]] * items[i].elements;
    return sum;
}

static void pick_all(const struct qr_tune_item *items, uint32_t count, double price,
                     uint32_t *picks)
{
    for (uint32_t i = 0; i < count; i++)
        picks[i] = pick(&items[i], price);
}

/** Spend what is left on the step that saves most error a bit, while one fits. */
static void spend_rest(const struct qr_tune_item *items, uint32_t count, double left,
                       uint32_t *picks)
{
    for (;;) {
        uint32_t item = count, choice = 0;
        double best = 0;
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t c = 0; c < items[i].choices; c++) {
                const double saved = items[i].errors[picks[i]] - items[i].errors[c];
                const double cost =
                    (items[i].bits[c] - items[i].bits[picks[i]]) * items[i].elements;
                if (saved <= 0 || cost > left)
                    continue;
                const double rate = cost > 0 ? saved / cost : INFINITY;
                if (rate > best) {
                    best = rate;
                    item = i;
                    choice = c;
                }
            }
        if (item == count)
            return;
        left -=
            (items[item].bits[choice] - items[item].bits[picks[item]]) * items[item].elements;
        picks[item] = choice;
    }
}

bool qr_tune_choose(const struct qr_tune_item *items, uint32_t count, double budget,
                    uint32_t *picks)
{
    double elements = 0, low = 0, high = 1;
    for (uint32_t i = 0; i < count; i++) {
        elements += items[i].elements;
        picks[i] = cheapest(&items[i]);
    }
    /* A hair more, so that a budget that a choice meets exactly admits it. */
    const double limit = budget * elements * (1 + 1e-9);
    if (spent(items, count, picks) > limit)
        return false;
    for (int step = 0; step < 1000; step++, high *= 2) {
        pick_all(items, count, high, picks);
        if (spent(items, count, picks) <= limit)
            break;
    }
    for (int step = 0; step < STEPS; step++) {
        const double price = (low + high) / 2;
        pick_all(items, count, price, picks);
        if (spent(items, count, picks) <= limit)
            high = price;
        else
            low = price;
    }
    pick_all(items, count, high, picks);
    spend_rest(items, count, limit - spent(items, count, picks), picks);
    return true;
}
