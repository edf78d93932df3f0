/* SPDX-License-Identifier: Apache-2.0
 *
 * A list of metrics being filled; shared by metrics*.c alone.
 */
#ifndef QR_STORE_METRICS_H
#define QR_STORE_METRICS_H

#include "store.h"

struct qr_metric_list {
    struct qr_metric *out;
    size_t capacity, count; /* count goes on past capacity */
};

void qr_metric_add(struct qr_metric_list *list, const char *name, const char *unit,
                   const char *help, uint64_t value);
void qr_metric_add_double(struct qr_metric_list *list, const char *name, const char *unit,
                          const char *help, double value);
/** Nothing without a disk tier. */
void qr_metrics_disk(struct qr_store *store, struct qr_metric_list *list);

#endif
