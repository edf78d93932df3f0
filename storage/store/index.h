/* SPDX-License-Identifier: Apache-2.0
 *
 * The page index: which pages are known, where their bytes are, who refers to
 * them and who reads them now. Decides what to evict when the tier is full.
 * Must not know sessions beyond an eviction group, nor what the bytes mean.
 *
 * A page is named by its entry number. An entry lives while a manifest (or an
 * append under way) refers to it, also after its bytes were evicted, so that
 * holes are known exactly. Look-up and pin are one step under the index's lock.
 */
#ifndef QR_INDEX_H
#define QR_INDEX_H

#include <stdbool.h>

#include "counters.h"
#include "evict.h"
#include "meta.h"
#include "proto/model.h"
#include "storage/tier/tier.h"

#define QR_ENTRY_NONE UINT32_MAX

struct qr_index;

struct qr_index_config {
    struct qr_tier *tier;         /* borrowed, outlives the index */
    struct qr_meta *meta;         /* borrowed: where metadata bytes are counted */
    struct qr_counters *counters; /* borrowed */
    struct qr_tier *disk; /* borrowed; NULL: none. Pages that it has not are not evicted */
    /** The last reference to a page went that the disk's index has and no manifest names: its
     * record and slot are to go. Called under the index's lock. */
    void (*orphaned)(void *arg, const uint8_t id[QR_HASH_BYTES]);
    void *arg;
    uint32_t entries_max, groups_max;
    /** 64 bits that equal bytes have in common and others have not; pure. */
    uint64_t (*tag)(const void *bytes);
};

quire_status qr_index_create(const struct qr_index_config *config, struct qr_index **out,
                             struct qr_error *e);
/** No entry may be referred to or pinned. */
void qr_index_destroy(struct qr_index **index);

/** Eviction group of a session; QR_EVICT_NONE when there are groups_max. */
uint32_t qr_index_group_open(struct qr_index *index);
void qr_index_group_close(struct qr_index *index, uint32_t group);

/**
 * Room for `bytes` in the tier, evicting unpinned pages as needed; bounded time, any thread.
 * Errors: EFULL with retry_after_ms, ETOOBIG.
 */
quire_status qr_index_reserve(struct qr_index *index, size_t bytes, struct qr_slot *out,
                              struct qr_error *e);
/** Give back a slot that was reserved and not published. */
void qr_index_release(struct qr_index *index, struct qr_slot *slot);
/** Bytes of tails. Any thread. */
uint64_t qr_index_chunk_bytes(struct qr_index *index);
/** Address of a reserved slot or pinned page. */
void *qr_index_map(struct qr_index *index, const struct qr_slot *slot);

struct qr_pinned {
    const void *bytes;
    size_t n;
};

/** What became of a page. STORED: on disk and not in host memory. */
enum qr_page_state { QR_PAGE_RESIDENT, QR_PAGE_EVICTED, QR_PAGE_DAMAGED, QR_PAGE_STORED };

/**
 * Entry of an id, made when it is not known; takes a reference. When resident it is pinned too
 * and *out filled. EFULL: entries_max.
 */
quire_status qr_index_find(struct qr_index *index, const uint8_t id[QR_HASH_BYTES],
                           uint32_t *entry_out, enum qr_page_state *state_out,
                           struct qr_pinned *out, struct qr_error *e);

struct qr_place { /* where a page stands for eviction */
    uint32_t group, order;
    uint32_t hint; /* entry near it, or QR_ENTRY_NONE */
};
enum qr_publish {
    QR_PUBLISH_DONE,
    QR_PUBLISH_TAKEN,  /* the entry has bytes: another append was faster, or damaged ones are
                          still being read */
    QR_PUBLISH_DIFFERS /* its bytes were others, or were damaged so that nobody can tell */
};
/**
 * Make complete bytes visible: the slot becomes the entry's; unless DONE it stays the caller's.
 * An entry that was evicted only takes back the same bytes (same tag).
 */
enum qr_publish qr_index_publish(struct qr_index *index, uint32_t entry,
                                 const struct qr_slot *slot, const struct qr_place *place);

/** Pin if resident, and note the read. */
enum qr_page_state qr_index_pin(struct qr_index *index, uint32_t entry, struct qr_pinned *out);
void qr_index_unpin(struct qr_index *index, uint32_t entry);
/** Drop a page whose bytes failed verification; the caller has it pinned and keeps the pin.
 * Where the disk has it, its copy is tried once before the page counts as damaged: true then.
 */
bool qr_index_quarantine(struct qr_index *index, uint32_t entry);

/** One more / one less reference on each of n entries. */
void qr_index_ref(struct qr_index *index, const uint32_t *entries, size_t n);
void qr_index_unref(struct qr_index *index, const uint32_t *entries, size_t n);

/**
 * Rows of a tail stand in the index too, as entries without an id, so that they are pinned and
 * evicted like pages. A hold (of a writer that may need them) keeps them from being evicted.
 *
 * Takes over a reserved slot; the entry starts with one hold. EFULL: entries_max.
 */
quire_status qr_index_add_rows(struct qr_index *index, const struct qr_slot *slot,
                               uint32_t *entry_out, struct qr_error *e);
/** One more hold, also of rows that are lost: those stay lost. */
void qr_index_hold(struct qr_index *index, uint32_t entry);
/** One hold less. Without any, the rows are the next to go in their group's order. */
void qr_index_let_go(struct qr_index *index, uint32_t entry, const struct qr_place *place);
/** Forget the rows, whatever holds are left. No pin may be. */
void qr_index_drop_rows(struct qr_index *index, uint32_t entry);

/** Bytes of a page as stored, 0 when no tier has it. A gauge: true at some moment of the
 * call. The caller holds a reference. */
uint32_t qr_index_bytes(struct qr_index *index, uint32_t entry);
void qr_index_id(struct qr_index *index, uint32_t entry, uint8_t out[QR_HASH_BYTES]);

/* ---- index_disk.c: pages that the disk has -------------------------------------------------
 */

struct qr_adopted {
    uint8_t id[QR_HASH_BYTES];
    struct qr_slot slot; /* of the disk tier; bytes 0: the page is gone */
    uint64_t tag;
};
/**
 * Entries of pages that a manifest on disk names, with a reference each. All or none: EFULL
 * (entries_max, metadata), and no reference is held then.
 */
quire_status qr_index_adopt(struct qr_index *index, const struct qr_adopted *pages, size_t n,
                            uint32_t *entries_out, struct qr_error *e);

enum qr_want {
    QR_WANT_RESIDENT, /* pinned, *out is set */
    QR_WANT_READING,  /* pinned; it will be resident, or not readable */
    QR_WANT_READ,     /* the same, and the caller must read it: *disk_out, qr_index_read_end */
    QR_WANT_GONE,
    QR_WANT_DAMAGED
};
/** Pin a page wherever it is; also without a disk tier. look: note the read of a resident one.
 */
enum qr_want qr_index_want(struct qr_index *index, uint32_t entry, bool look,
                           struct qr_pinned *out, struct qr_slot *disk_out);
/** A read that qr_index_want asked for has ended: the bytes are in `host`, which becomes the
 * entry's, or it failed and host is NULL. `busy`: it was not the disk's fault. */
void qr_index_read_end(struct qr_index *index, uint32_t entry, const struct qr_slot *host,
                       const struct qr_place *place, bool busy);
/** Wait while the page, which the caller has pinned, is being read; false: the device has not
 * answered for timeout_ms. */
bool qr_index_read_wait(struct qr_index *index, uint32_t entry, uint32_t timeout_ms);
/** True while it is being read. */
bool qr_index_is_reading(struct qr_index *index, uint32_t entry);

enum qr_write {
    QR_WRITE_DONE,   /* the disk has it: *disk_out, *tag_out */
    QR_WRITE_FLYING, /* somebody else writes it now */
    QR_WRITE_START,  /* pinned: *out is to be written, then qr_index_write_end */
    QR_WRITE_READ,   /* its bytes must come to host memory first */
    QR_WRITE_LOST    /* no tier has it; *tag_out */
};
enum qr_write qr_index_write_begin(struct qr_index *index, uint32_t entry,
                                   struct qr_pinned *out, struct qr_slot *disk_out,
                                   uint64_t *tag_out);
/** Written to `disk`, or NULL: it failed. Unpins. */
void qr_index_write_end(struct qr_index *index, uint32_t entry, const struct qr_slot *disk);

/** What is known of a page's record on disk. Read and changed by one thread alone, the one that
 * writes manifests. */
struct qr_naming {
    struct qr_slot slot; /* bytes 0: none */
    uint32_t named, refs;
    bool counted, recorded, erased, damaged;
};
void qr_index_naming(struct qr_index *index, uint32_t entry, struct qr_naming *out);
/** Set all but refs and damaged. */
void qr_index_set_naming(struct qr_index *index, uint32_t entry,
                         const struct qr_naming *naming);

/** Bytes of a page, 0 when no tier has it, and its tag. */
uint32_t qr_index_bytes_and_tag(struct qr_index *index, uint32_t entry, uint64_t *tag_out);
/** Nobody but the caller refers to the entry: take its place away from it, before that is
 * freed; false: somebody does. */
bool qr_index_detach(struct qr_index *index, uint32_t entry);
/** Give an entry another id, since the disk has other bytes under its own. */
void qr_index_rename(struct qr_index *index, uint32_t entry, const uint8_t id[QR_HASH_BYTES]);

/** Bytes of pages in host memory that no other tier has. */
uint64_t qr_index_dirty_bytes(struct qr_index *index);

struct qr_index_stat {
    uint64_t entries, resident; /* pages */
    uint64_t rows;              /* entries of tail rows */
};
void qr_index_stat(struct qr_index *index, struct qr_index_stat *out);

/** Metadata of a page besides its manifest place and its share of the session's block ids. */
size_t qr_index_entry_bytes(void);

#endif
