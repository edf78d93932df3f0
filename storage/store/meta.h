/* SPDX-License-Identifier: Apache-2.0
 *
 * Account of metadata bytes (index entries, manifests, session records), so
 * that what is kept beside the page bytes has a limit too.
 */
#ifndef QR_META_H
#define QR_META_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct qr_meta {
    uint64_t limit_bytes;        /* const */
    _Atomic uint64_t used_bytes; /* atomic: relaxed, guards nothing else */
};

/** Count `bytes` more; false, and nothing counted, when that would pass the limit. Any thread.
 */
static inline bool qr_meta_take(struct qr_meta *meta, uint64_t bytes)
{
    const uint64_t before =
        atomic_fetch_add_explicit(&meta->used_bytes, bytes, memory_order_relaxed);
    if (before + bytes <= meta->limit_bytes)
        return true;
    atomic_fetch_sub_explicit(&meta->used_bytes, bytes, memory_order_relaxed);
    return false;
}

static inline void qr_meta_give(struct qr_meta *meta, uint64_t bytes)
{
    atomic_fetch_sub_explicit(&meta->used_bytes, bytes, memory_order_relaxed);
}

#endif
