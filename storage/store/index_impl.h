/* SPDX-License-Identifier: Apache-2.0
 *
 * What index.c and index_evict.c share; nobody else includes it.
 */
#ifndef QR_INDEX_IMPL_H
#define QR_INDEX_IMPL_H

#include <pthread.h>

#include "index.h"

#define QR_RETRY_FULL_MS 1000u /* nothing can be evicted: somebody has to drop something */
#define QR_RETRY_PINNED_MS 50u /* pages are being read: soon they are not */

struct qr_entry {
    uint8_t id[QR_HASH_BYTES]; /* const while referred to */
    struct qr_slot slot;       /* bytes: also read without the lock, as a gauge */
    struct qr_evict_node node;
    uint32_t region_previous, region_next; /* pages of one tier region */
    uint32_t hash_next;                    /* chain, or the free list */
    uint32_t refs;                         /* manifests and appends under way */
};
_Static_assert(sizeof(struct qr_entry) == 80,
               "with manifest place and block id a page keeps 128 bytes of metadata");

struct qr_index {
    struct qr_index_config config; /* const */
    pthread_mutex_t lock;       /* guards everything below; the tier's lock is taken under it */
    struct qr_entry **segments; /* the array is const, its parts appear as `made` grows */
    uint32_t made, free;
    uint32_t *buckets, buckets_mask;
    uint32_t *region_first; /* [regions]: pages of each region */
    struct qr_evict *evict;
    struct qr_index_stat stat;
};

/** Tag of bytes that an entry had and has no more. */
static inline uint64_t qr_index_tag(const struct qr_entry *entry)
{
    return (uint64_t)entry->slot.region << 32 | entry->slot.number;
}

struct qr_entry *qr_index_entry(const struct qr_index *index, uint32_t number);
/** Give an unpinned entry's slot back to the tier; lock held. */
void qr_index_drop_bytes(struct qr_index *index, uint32_t number);

#endif
