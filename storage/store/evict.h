/* SPDX-License-Identifier: Apache-2.0
 *
 * Which page goes next: S3-FIFO between groups, last page first within a group.
 * Pure decisions over linked records; must not know tiers, ids or locks.
 *
 * A group is the run of pages that one session added, ascending by order (block
 * index). Groups stand in one of two queues, small (new ones) and main. The
 * oldest group is looked at from its last page: an unread page is the victim; a
 * page read since then sends the group back to the young end, from small to
 * main. So a prefix outlives what follows it, one session read once does not
 * push out sessions that are read again, and a read costs no list operation.
 */
#ifndef QR_EVICT_H
#define QR_EVICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QR_EVICT_NONE UINT32_MAX
#define QR_EVICT_ORDER_MAX ((1u << 24) - 1)

/** Stands in each page's index entry. owner: qr_evict, except `pins`, `dirty`. */
struct qr_evict_node {
    uint32_t previous, next; /* in the group, by order */
    uint32_t group;
    uint32_t pins : 31;  /* > 0: never a victim; moved by the index */
    uint32_t rows : 1;   /* for the index: rows of a tail, not a page */
    uint32_t order : 24; /* block index */
    uint32_t reads : 2;  /* since last looked at, saturating */
    uint32_t linked : 1;
    uint32_t ghost : 1;   /* was a victim while in the small queue */
    uint32_t doomed : 1;  /* for the index: damaged, goes with its last pin */
    uint32_t damaged : 1; /* for the index: went because its bytes were damaged */
    uint32_t tagged : 1;  /* for the index: had bytes once, and remembers their tag */
    uint32_t dirty : 1;   /* for the index: no other tier has it, so that it is not linked */
};

struct qr_evict_config {
    /** Record of a page. Pure; called with page numbers that were linked. */
    struct qr_evict_node *(*node)(void *arg, uint32_t page);
    void *arg;
    uint32_t groups_max;
};

struct qr_evict;

/** NULL when out of memory. Callers of all functions serialize. */
struct qr_evict *qr_evict_create(const struct qr_evict_config *config);
void qr_evict_destroy(struct qr_evict **evict);

/** A new group for pages that belong together; QR_EVICT_NONE past groups_max. */
uint32_t qr_evict_group_open(struct qr_evict *evict);
/** No page will be linked to it any more; its number is reused when its last page is unlinked.
 */
void qr_evict_group_close(struct qr_evict *evict, uint32_t group);

bool qr_evict_group_is_open(const struct qr_evict *evict, uint32_t group);

/**
 * Link a page of `bytes` into a group at its order. hint: a page near its place (the page of
 * the same block in another lane, or of the block before), or QR_EVICT_NONE. A page whose ghost
 * bit is set takes its group to the main queue.
 */
void qr_evict_link(struct qr_evict *evict, uint32_t page, uint32_t group, uint32_t order,
                   size_t bytes, uint32_t hint);
/** Take a page out; no-op when it is not linked. */
void qr_evict_unlink(struct qr_evict *evict, uint32_t page, size_t bytes);
/** Note a read. */
static inline void qr_evict_read(struct qr_evict_node *node)
{
    if (node->reads < 3)
        node->reads++;
}
/**
 * The page to drop next, still linked (its ghost bit is set when that is due); QR_EVICT_NONE
 * when every page is pinned. Bounded: a few looks at each group.
 */
uint32_t qr_evict_pick(struct qr_evict *evict);

#endif
