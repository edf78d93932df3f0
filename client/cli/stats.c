/* SPDX-License-Identifier: Apache-2.0
 *
 * See stats.h.
 */
#include "stats.h"

#include <stdlib.h>
#include <string.h>

#define METRICS_FIRST 256
#define METRICS_MAX 65536

quire_status qr_stats_get(quire_client *client, struct quire_metric **out, size_t *count_out)
{
    size_t capacity = METRICS_FIRST, count = 0;
    for (;;) {
        struct quire_metric *metrics = calloc(capacity, sizeof(*metrics));
        if (metrics == NULL)
            return QUIRE_ENOMEM;
        const quire_status status = quire_stat(client, metrics, capacity, &count);
        if (status == QUIRE_OK) {
            *out = metrics;
            *count_out = count;
            return QUIRE_OK;
        }
        free(metrics);
        if (status != QUIRE_ETOOBIG || count <= capacity || count > METRICS_MAX)
            return status;
        capacity = count;
    }
}

const struct quire_metric *qr_stats_find(const struct quire_metric *metrics, size_t count,
                                         const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(metrics[i].name, name) == 0)
            return &metrics[i];
    }
    return NULL;
}
