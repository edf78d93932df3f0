/* SPDX-License-Identifier: Apache-2.0
 *
 * The server's metrics, all of them, whatever their number.
 */
#ifndef QR_STATS_H
#define QR_STATS_H

#include "client/quire.h"

/** *out: [*count_out], the caller frees. Errors: those of quire_stat, ENOMEM. */
quire_status qr_stats_get(quire_client *client, struct quire_metric **out, size_t *count_out);
/** By name; NULL when the server has none of that name. */
const struct quire_metric *qr_stats_find(const struct quire_metric *metrics, size_t count,
                                         const char *name);

#endif
