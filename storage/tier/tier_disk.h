/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk tier: slots for pages on one or more devices, the durable index, the
 * tail log, and commits that make them durable together. What a store calls;
 * README.md says in which order. Must not know sessions beyond their records.
 */
#ifndef QR_TIER_DISK_H
#define QR_TIER_DISK_H

#include "disk_index.h"
#include "disk_ring.h"
#include "tail_log.h"
#include "tier.h"

struct qr_disk;

struct qr_disk_config {
    struct qr_disk_io *io;                    /* NULL: the system's */
    const char *folders[QR_DISK_DEVICES_MAX]; /* the first also has index and tail log, on top
                                                 of its cap */
    uint64_t cap_bytes[QR_DISK_DEVICES_MAX];  /* of each slab file, hard; of a block device 0:
                                                 all  of it */
    uint32_t count;
    bool create, allow_missing; /* see disk_home.h */
    bool no_uring;
    uint32_t ring_depth, ring_queue_max; /* 0: disk_ring.h's */
    uint64_t tail_log_bytes;             /* 0: 1 GiB */
    uint32_t tail_segment_bytes;         /* 0: 64 MiB */
    uint64_t index_cache_bytes;          /* 0: 32 MiB */
    uint32_t commit_queue_max;           /* commits queued and not begun; 0: 4096 */
    uint32_t commit_wait_us;  /* how long a commit waits for company; 0: not at all */
    uint32_t sync_timeout_ms; /* a device that syncs slower has failed; 0: 5000 */
};

/** A page that the index has; at open, on the calling thread. */
typedef void qr_disk_page_fn(void *arg, const uint8_t page_id[QR_HASH_BYTES],
                             const struct qr_disk_page *page);

/**
 * Open the folders, the index and the tail log, and rebuild the free slots; calls `each` (may
 * be NULL) for every page. Entries that cannot be right are counted and left out, not deleted.
 *
 * Errors: as in disk_home.h and disk_index.h, one line each; EINVAL for limits.
 */
quire_status qr_disk_open(const struct qr_disk_config *config, qr_disk_page_fn *each, void *arg,
                          struct qr_disk **out, struct qr_error *e);
/** Waits for commits and I/O under way. */
void qr_disk_close(struct qr_disk **disk);

/** The medium as a tier: reserve, release, read (foreground), write (write-back). Lives as long
 * as the disk; its destroy does nothing. */
struct qr_tier *qr_disk_tier(struct qr_disk *disk);
/** A tier's slot and a place of the index are the same thing. */
struct qr_disk_place qr_disk_place_of(struct qr_disk *disk, const struct qr_slot *slot);
struct qr_slot qr_disk_slot_of(struct qr_disk *disk, const struct qr_disk_place *place);

struct qr_disk_transfer {
    struct qr_disk_place place;
    void *buffer;    /* place.bytes of it are read or written */
    size_t capacity; /* without copies when the buffer begins on a 4 KiB border and this is at
                        least place.bytes rounded up to 4 KiB */
    enum qr_ring_class urgency;
    bool more;            /* another one follows at once, see disk_ring.h */
    uint64_t deadline_ns; /* reads only: ETIMEOUT then, even when the device hangs; 0: none */
    qr_tier_done *done;
    void *arg;
};
/** Start one; EAGAIN when the ring is full, and then done never fires. */
quire_status qr_disk_read(struct qr_disk *disk, const struct qr_disk_transfer *transfer,
                          uint64_t *ticket_out);
quire_status qr_disk_write(struct qr_disk *disk, const struct qr_disk_transfer *transfer,
                           uint64_t *ticket_out);
/** See qr_ring_cancel; reads only. */
bool qr_disk_cancel(struct qr_disk *disk, uint64_t ticket);

/**
 * One step of durability: what was written to `devices`, and with `tail` what was appended to
 * the tail log, is synced; then the changes of `batch` are written, synced, as one with those
 * of other commits; then the slots of `freed` are free; then done fires, on the commit thread.
 *
 * The record, its batch and its freed places are borrowed until then. The writes of its pages
 * must have ended before the call.
 */
struct qr_disk_commit {
    uint32_t devices;                  /* bit d: device d; qr_disk_commit_touch sets it */
    bool tail;                         /* sync the tail log */
    const struct qr_disk_batch *batch; /* NULL: no change of the index */
    const struct qr_disk_place *freed; /* no longer named once batch is durable */
    size_t freed_count;
    qr_tier_done *done;
    void *arg;
    /** NULL, or called on the commit thread when every commit queued before has ended and none
     * is under way: it may look at the index and set `batch`, `freed`, `devices` accordingly.
     * Such a commit shares no sync with others. */
    void (*prepare)(struct qr_disk_commit *commit);
    bool in_doubt; /* out: it failed, and the batch may be durable all the same: slots that it
                      names must not be released (a restart sees) */
    struct qr_disk_commit *next; /* the disk's own */
    quire_status status;         /* the disk's own */
};
static inline void qr_disk_commit_touch(struct qr_disk_commit *commit,
                                        const struct qr_disk_place *place)
{
    commit->devices |= 1u << place->device;
}
/** Queue it. done gets OK, EIO, EFULL, ETIMEOUT, ENOMEM. Any thread.
 * Errors: EAGAIN when commit_queue_max of them wait; done never fires then. */
quire_status qr_disk_commit(struct qr_disk *disk, struct qr_disk_commit *commit);
/** The same, waiting, for room too; `done` and `arg` are not used. Not from a callback. */
quire_status qr_disk_commit_wait(struct qr_disk *disk, struct qr_disk_commit *commit);
/** Sync every device and the tail log, after all commits queued before. */
quire_status qr_disk_flush(struct qr_disk *disk);

struct qr_disk_put {
    const uint8_t *page_id;   /* not in the index yet */
    void *bytes;              /* page.place.bytes of them */
    size_t capacity;          /* as in qr_disk_transfer */
    struct qr_disk_page page; /* place.bytes given; the rest of place is set */
};
/** Reserve, write and commit pages together with other changes (`batch`, may be NULL, gets the
 * page records added). All or nothing; waits. EFULL, EIO, ETIMEOUT. */
quire_status qr_disk_put_pages(struct qr_disk *disk, struct qr_disk_put *puts, size_t count,
                               struct qr_disk_batch *batch);

struct qr_disk_index *qr_disk_index_of(struct qr_disk *disk);
struct qr_tail_log *qr_disk_tail_log_of(struct qr_disk *disk);

struct qr_disk_stat {
    uint32_t devices;
    struct qr_disk_device_stat device[QR_DISK_DEVICES_MAX];
    struct qr_ring_stat ring;
    struct qr_disk_index_stat index;
    struct qr_tail_log_stat tail;
    uint64_t pages_at_open, bad_entries;
    uint64_t commits, commits_refused, groups, sync_failures, in_doubt, quarantined;
    uint32_t commits_queued;
    uint64_t open_index_us, open_scan_us;
};
void qr_disk_stat(struct qr_disk *disk, struct qr_disk_stat *out);

#endif
