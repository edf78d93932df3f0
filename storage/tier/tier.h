/* SPDX-License-Identifier: Apache-2.0
 *
 * The tier table: one medium that holds page bytes in slots. A medium knows no
 * policy (what to keep, what to drop): the store decides and calls. Must not
 * know sessions, the index, or what the bytes mean.
 */
#ifndef QR_TIER_H
#define QR_TIER_H

#include <stddef.h>
#include <stdint.h>

#include "proto/status.h"

/** Where a page lies in a tier; opaque to everybody else. Zero bytes = nothing. 12 bytes, since
 * every page of the index has one. */
struct qr_slot {
    uint32_t region; /* slots of one region share a piece of the medium that only becomes free
                        as a whole; below regions_max */
    uint32_t number; /* slot within the region */
    uint32_t bytes;  /* asked for */
};

struct qr_tier_stat {
    uint64_t budget_bytes;   /* hard limit */
    uint64_t reserved_bytes; /* in slots, rounding included */
    uint64_t payload_bytes;  /* in slots, as asked for */
    uint64_t slots;
    uint64_t failures; /* reserve calls answered EFULL */
};

/** Fires exactly once when the call that took it returned 0, never when it returned an error;
 * any thread. */
typedef void qr_tier_done(void *arg, quire_status status);

struct qr_tier {
    const struct qr_tier_ops *ops; /* const */
    uint32_t regions_max;          /* const: regions are numbered from 0 */
};

struct qr_tier_ops {
    const char *name;
    void (*destroy)(struct qr_tier **tier);
    /** Space for `bytes`; never blocks. EFULL: free slots first (a whole region when sizes
     * differ); ETOOBIG: can never fit. */
    quire_status (*reserve)(struct qr_tier *tier, size_t bytes, struct qr_slot *out);
    /** Bytes that a slot for `bytes` takes: equal results can replace each other in a region.
     */
    size_t (*rounded)(struct qr_tier *tier, size_t bytes);
    /** Give a slot back; its bytes are gone. The store calls it only when no pin is left. */
    void (*release)(struct qr_tier *tier, struct qr_slot *slot);
    /** Address of a slot's bytes, 64-byte aligned, valid until release; NULL when the medium is
     * not addressable. */
    void *(*map)(struct qr_tier *tier, const struct qr_slot *slot);
    /** Move bytes; buffers stay borrowed until done fires. NULL for media that are mapped. */
    quire_status (*write)(struct qr_tier *tier, const struct qr_slot *slot, const void *bytes,
                          qr_tier_done *done, void *arg);
    quire_status (*read)(struct qr_tier *tier, const struct qr_slot *slot, void *bytes,
                         qr_tier_done *done, void *arg);
    void (*stat)(struct qr_tier *tier, struct qr_tier_stat *out);
};

/** Host RAM: pre-allocated, huge pages where possible (advised, else plain), touched at start
 * so that the budget is real. */
struct qr_tier_host_config {
    uint64_t budget_bytes;
    int huge_pages; /* 0 off, 1 advise */
};
quire_status qr_tier_host_create(const struct qr_tier_host_config *config, struct qr_tier **out,
                                 struct qr_error *e);

#endif
