/* SPDX-License-Identifier: Apache-2.0
 *
 * The store's counters as a struct, from metrics.def.
 */
#ifndef QR_COUNTERS_H
#define QR_COUNTERS_H

#include "storage/base/counter.h"

struct qr_counters {
#define X(name, unit, help) struct qr_counter name;
#include "metrics.def"
#undef X
};

#endif
