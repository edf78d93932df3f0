/* SPDX-License-Identifier: Apache-2.0
 *
 * What index.c and index_evict.c share; nobody else includes it.
 */
#ifndef QR_INDEX_IMPL_H
#define QR_INDEX_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "index.h"

#define QR_INDEX_SEGMENT 1024u
#define QR_RETRY_FULL_MS 1000u /* nothing can be evicted: somebody has to drop something */
#define QR_RETRY_PINNED_MS 50u /* pages are being read: soon they are not */

struct qr_entry {
    uint8_t id[QR_HASH_BYTES]; /* const while referred to */
    struct qr_slot slot;       /* bytes: also read without the lock, as a gauge */
    struct qr_evict_node node;
    uint32_t region_previous, region_next; /* pages of one tier region */
    uint32_t hash_next;                    /* chain, or the free list */
    uint32_t refs; /* manifests and appends under way; of tail rows: 1 and the holds */
};
_Static_assert(sizeof(struct qr_entry) == 80,
               "with manifest place and block id a page keeps 128 bytes of metadata");

/** What the disk has of an entry's page; only with a disk tier. */
struct qr_stored {
    uint32_t region, number;
    uint32_t bytes;      /* also read without the lock; 0: not written */
    uint32_t named : 23; /* manifest entries on disk that name it, when `counted` */
    uint32_t counted : 1;
    uint32_t recorded : 1;   /* the disk's index has, or may have, its record */
    uint32_t erased : 1;     /* the record is being deleted */
    uint32_t borrowed : 1;   /* the place belongs to a record of another id */
    uint32_t writing : 1;    /* its place is not known yet */
    uint32_t reading : 1;    /* on the way to host memory; holds a reference */
    uint32_t unreadable : 1; /* the last read failed; the next look says so once */
    uint32_t fresh : 1;      /* read from the disk, and not looked at since */
    uint32_t suspect : 1;    /* the copy in memory was damaged: the disk's is tried */
};
_Static_assert(sizeof(struct qr_stored) == 16, "each page of the index has one");

struct qr_index {
    struct qr_index_config config; /* const */
    pthread_mutex_t lock;       /* guards everything below; the tier's lock is taken under it */
    struct qr_entry **segments; /* the array is const, its parts appear as `made` grows */
    struct qr_stored **stored;  /* the same; NULL without a disk tier */
    pthread_cond_t arrived;     /* a read ended */
    uint32_t made, free;
    uint32_t *buckets, buckets_mask;
    uint32_t *region_first; /* [regions]: pages of each region */
    struct qr_evict *evict;
    uint32_t spare_group;         /* const; of pages that outlive their session */
    _Atomic uint64_t dirty_bytes; /* atomic: written under the lock */
    _Atomic uint64_t row_bytes;   /* atomic: of tails; written under the lock */
    struct qr_index_stat stat;
};

/** Tag of bytes that an entry had and has no more. */
static inline uint64_t qr_index_tag(const struct qr_entry *entry)
{
    return (uint64_t)entry->slot.region << 32 | entry->slot.number;
}

struct qr_entry *qr_index_entry(const struct qr_index *index, uint32_t number);
/** NULL without a disk tier. */
struct qr_stored *qr_index_stored_of(const struct qr_index *index, uint32_t number);
/** Entry of an id, made when `make`; QR_ENTRY_NONE. lock held. */
uint32_t qr_index_lookup(struct qr_index *index, const uint8_t id[QR_HASH_BYTES], bool make);
enum qr_page_state qr_index_state(const struct qr_index *index, uint32_t number);
/** Complete bytes in a slot become the entry's; lock held. */
void qr_index_take(struct qr_index *index, uint32_t number, const struct qr_slot *slot,
                   const struct qr_place *place);
/** Its place on disk came or went: dirty or clean, and in line for eviction or not; lock held.
 */
void qr_index_mark(struct qr_index *index, uint32_t number);
/** Give back what nobody needs any more; lock held. */
void qr_index_settle(struct qr_index *index, uint32_t number);
/** index_disk.c: true when the disk has a copy that was not found damaged; lock held. */
bool qr_index_try_stored(struct qr_index *index, uint32_t number);
/** index_disk.c: nobody refers to the entry any more; lock held. */
void qr_index_forget_stored(struct qr_index *index, uint32_t number);
/** An entry of nothing yet, in no hash chain; QR_ENTRY_NONE: no more. lock held. */
uint32_t qr_index_entry_take(struct qr_index *index);
/** EFULL of entries_max. */
quire_status qr_index_full(const struct qr_index *index, struct qr_error *e);
/** The slot becomes the entry's; lock held. */
void qr_index_take_slot(struct qr_index *index, uint32_t number, const struct qr_slot *slot);
/** Give an unpinned entry's slot back to the tier; lock held. */
void qr_index_drop_bytes(struct qr_index *index, uint32_t number);

#endif
