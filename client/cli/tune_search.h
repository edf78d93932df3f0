/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of several encodings for each of several things, so that a weighted sum of errors is
 * least under a budget of bits. Must not know what the things are.
 */
#ifndef QR_TUNE_SEARCH_H
#define QR_TUNE_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

/** One thing to be encoded (a layer's keys, say) and what each choice costs it. */
struct qr_tune_item {
    const double *bits;   /* [choices] bits an element */
    const double *errors; /* [choices] to be added up */
    double elements;      /* weight of bits; > 0 */
    uint32_t choices;     /* at least 1 */
};

/**
 * Choose for each item on its own: sum of errors least while sum of bits x elements stays
 * within budget x sum of elements. Lagrange multipliers over the convex hull of each item, then
 * what is left of the budget spent greedily: at most one item's step from the optimum. picks:
 * [count]. False: even the cheapest choices exceed the budget; picks then has those.
 */
bool qr_tune_choose(const struct qr_tune_item *items, uint32_t count, double budget,
                    uint32_t *picks);

#endif
