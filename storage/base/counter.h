/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters and gauges that any thread may move without a lock. A module lists
 * its own in a table (name, unit, help), see storage/store/metrics.def.
 */
#ifndef QR_COUNTER_H
#define QR_COUNTER_H

#include <stdatomic.h>
#include <stdint.h>

/** atomic: relaxed; a counter orders nothing else. */
struct qr_counter {
    _Atomic uint64_t value;
};

static inline void qr_counter_add(struct qr_counter *counter, uint64_t n)
{
    atomic_fetch_add_explicit(&counter->value, n, memory_order_relaxed);
}

static inline void qr_counter_sub(struct qr_counter *counter, uint64_t n)
{
    atomic_fetch_sub_explicit(&counter->value, n, memory_order_relaxed);
}

static inline uint64_t qr_counter_read(struct qr_counter *counter)
{
    return atomic_load_explicit(&counter->value, memory_order_relaxed);
}

#endif
