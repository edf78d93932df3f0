/* SPDX-License-Identifier: Apache-2.0
 *
 * See eval_sum.h.
 */
#include "eval_sum.h"

#include <math.h>

void qr_eval_sum_merge(struct qr_eval_sum *into, const struct qr_eval_sum *from)
{
    into->error_squares += from->error_squares;
    into->reference_squares += from->reference_squares;
    into->value_squares += from->value_squares;
    into->product += from->product;
    into->ratio += from->ratio;
    into->ratios += from->ratios;
    into->largest = fmax(into->largest, from->largest);
    into->largest_of = fmax(into->largest_of, from->largest_of);
}

void qr_eval_sum_metrics(const struct qr_eval_sum *sum, struct qr_eval_metrics *out)
{
    const double norms = sqrt(sum->reference_squares) * sqrt(sum->value_squares);
    out->frobenius =
        sum->reference_squares > 0 ? sqrt(sum->error_squares / sum->reference_squares) : 0;
    out->mean_ratio = sum->ratios > 0 ? sum->ratio / (double)sum->ratios : 0;
    out->cosine = norms > 0 ? sum->product / norms : 1;
    out->largest = sum->largest;
}
