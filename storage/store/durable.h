/* SPDX-License-Identifier: Apache-2.0
 *
 * What makes sessions outlive the process: one thread, the mover, that writes
 * what a session has and the disk has not, in rounds. Used by the files of this
 * folder alone.
 *
 *   want -> queued -> [cut round] -> save rounds -> waiters told
 *                  `-> (dropped) drop round -> waiters told -> reclaimed in the background
 *
 * Invariants:
 *  1. a session has at most one round under way, and its rounds commit in the order in which
 * they were started, so that what is durable of it is always a state that it was in, or a part
 * of one: whole pages without holes that were not holes in memory, then rows without gaps;
 *  2. only the mover reads and changes page records, so counting names needs no lock;
 *  3. a round holds references to its pages and pins on its tail chunks until its commit is
 * done.
 */
#ifndef QR_STORE_DURABLE_H
#define QR_STORE_DURABLE_H

#include "storage/tier/tier_disk.h"
#include "store_impl.h"

#define QR_READ_WAIT_MS 15000u /* a device may hang for 10 s */
#define QR_READS_MAX 4096u     /* pages on their way from the disk at once */
#define QR_ROUND_PAGES 2048u   /* pages that one round names */
#define QR_RECLAIM_PAGES 512u  /* manifest entries deleted in one batch */
#define QR_NOTE_MS 10000u      /* uses of a session are written down no more often than that */
#define QR_EPOCHS_AHEAD                                                                        \
    1024u /* a session record's epoch is above those in use by up to this                      \
           */

/** Somebody who waits until what a session has now is durable. */
struct qr_waiter {
    void (*done)(void *arg, quire_status status);
    void *arg;
    uint64_t ticket;
    struct qr_waiter *next;
};

enum qr_round_kind { QR_ROUND_SAVE, QR_ROUND_CUT, QR_ROUND_DROP, QR_ROUND_RECLAIM };

struct qr_round;

/** A page that a round names in a manifest. */
struct qr_round_page {
    struct qr_round *round;
    uint32_t lane, block, entry;
    struct qr_slot slot; /* while it is being written */
    bool flying;         /* written by another round */
};

/** What a round saves of one lane. */
struct qr_round_lane {
    uint32_t lane;
    uint32_t sealed; /* of the lane when this round is durable */
    uint64_t length;
    bool cut;
    uint64_t cut_sequence, cut_length, cut_to;
};

struct qr_round_chunk {
    struct qr_chunk *chunk; /* pinned */
    uint32_t lane, first, rows;
    uint64_t position;
};

/** How a page's record was before the round changed it. */
struct qr_round_undo {
    uint32_t entry; /* referred to until the end */
    struct qr_naming before;
};

/** owner: the mover, but for the atomic fields. Pooled; keeps its arrays. */
struct qr_round {
    struct qr_mover *mover;
    struct qr_session *session; /* referred to; NULL: RECLAIM */
    enum qr_round_kind kind;
    uint8_t uuid[QR_DISK_UUID_BYTES];
    uint64_t covers; /* tickets up to this */
    bool whole;      /* nothing is left when it is done */
    bool urgent;     /* somebody waits for it */
    bool with_rows;  /* rows too, not only pages */
    bool left;       /* there were rows that it leaves */
    bool epoch_saved;
    uint64_t epoch;
    uint32_t first_block, blocks;  /* block ids to save */
    uint8_t (*ids)[QR_HASH_BYTES]; /* [blocks] */
    uint8_t *tokens;               /* token ids record */
    size_t token_bytes;
    struct qr_round_page *pages;
    struct qr_round_lane *lanes;
    struct qr_round_chunk *chunks;
    struct qr_round_undo *undo;
    struct qr_disk_place *freed;
    size_t page_count, lane_count, chunk_count, undo_count, freed_count;
    size_t page_capacity, lane_capacity, chunk_capacity, undo_capacity, freed_capacity;
    size_t id_capacity, token_capacity;
    uint8_t *rows; /* payload of one tail record */
    size_t row_capacity;
    struct qr_disk_batch batch;
    struct qr_disk_commit commit;
    bool committing;
    _Atomic uint32_t pending;    /* atomic: writes under way, and 1 while they are started */
    _Atomic quire_status failed; /* atomic: of a write */
    quire_status status;         /* of the commit */
    struct qr_round *next;       /* events, stalled or free ones */
};

struct qr_mover {
    struct qr_store *store; /* const */
    struct qr_disk *disk;   /* const */
    pthread_t thread;
    bool runs;
    pthread_mutex_t lock; /* a leaf: guards what follows, and the fields `save` of sessions */
    pthread_cond_t work;
    struct qr_session *first, *last; /* queued sessions, a reference each */
    struct qr_round *events;         /* rounds whose writes or commit ended */
    uint8_t (*orphans)[QR_HASH_BYTES];
    uint8_t (*going)[QR_DISK_UUID_BYTES]; /* sessions whose keys are to be deleted */
    size_t orphan_count, orphan_capacity, going_count, going_capacity;
    bool stopping;
    uint32_t rounds;     /* under way */
    atomic_bool pressed; /* atomic: somebody found no room in memory */
    uint64_t relieve_ns; /* owner: the mover's thread; when to look at the marks again */
    /* owner: the mover's thread */
    struct qr_round *stalled, *free;
    bool reclaiming;
    uint64_t retry_ns; /* a reclaim that found no room tries again then */
};

/* ---- durable.c -------------------------------------------------------------------------- */

quire_status qr_mover_start(struct qr_store *store, struct qr_error *e);
/** Ends rounds under way; what is queued stays undone. */
void qr_mover_stop(struct qr_store *store);
/** Queue a session, once; the mover's lock held. */
void qr_mover_enqueue(struct qr_mover *mover, struct qr_session *session);
/** Queue a session; `waiter` (may be NULL) is told once what it has now is durable. */
void qr_durable_want(struct qr_session *session, struct qr_waiter *waiter);
/** The disk has something of the session, or is about to. Its lock held. */
bool qr_durable_is(struct qr_session *session);
/** The same, waiting. Not from the mover, nor with a lock of the session. */
quire_status qr_durable_wait(struct qr_session *session);
/** The round's writes, or its commit, have ended. Any thread. */
void qr_mover_event(struct qr_round *round);
void qr_mover_going(struct qr_mover *mover, const uint8_t uuid[QR_DISK_UUID_BYTES]);
void qr_mover_orphan(void *mover, const uint8_t id[QR_HASH_BYTES]);
/** Start the commit of a round whose batch is made. */
void qr_round_commit(struct qr_round *round);
/** Room for one element more of an array; false: no memory. */
bool qr_round_room(void *array, size_t *capacity, size_t wanted, size_t element_bytes);

/* ---- durable_press.c ----------------------------------------------------------------------
 */

/** Somebody found no room in host memory; nothing to do without a disk. Any thread. */
void qr_mover_press(struct qr_store *store);
/** Dirty pages have passed their mark. */
bool qr_mover_wants_write_back(struct qr_store *store);
/** Look at the marks; on the mover's thread. */
void qr_mover_relieve(struct qr_mover *mover);

/** Why something is not on disk, and what helps; static. */
static inline const char *qr_disk_why(quire_status status)
{
    return status == QUIRE_EFULL ? "the disk is full: raise a cap (--disk), make room in its "
                                   "file systems, or drop sessions"
           : status == QUIRE_ETIMEOUT ? "a device of the disk does not answer"
                                      : qr_status_text(status);
}

/* ---- durable_round.c ----------------------------------------------------------------------
 */

/** What the session has and the disk has not. QUIRE_OK, or why it cannot be saved. */
quire_status qr_round_gather(struct qr_round *round);
/** Start the writes of its pages; an event comes when they have ended. */
void qr_round_write(struct qr_round *round);
enum qr_round_state {
    QR_ROUND_READY,   /* every page is on disk or lost, or a write failed */
    QR_ROUND_WRITING, /* an event comes */
    QR_ROUND_STALLED  /* other rounds write some: ask again */
};
/** After the writes. */
enum qr_round_state qr_round_written(struct qr_round *round);
/** Rows to the tail log, and all other records to the batch. */
quire_status qr_round_fill(struct qr_round *round);
/** Its commit is done: note in the session what is durable. */
void qr_round_saved(struct qr_round *round);
/** Give back references and pins. */
void qr_round_release(struct qr_round *round);

/* ---- durable_name.c ------------------------------------------------------------------------
 */

/** Before the write of a page whose record might be there already: share it, or rename ours. */
quire_status qr_name_prepare(struct qr_round *round, const struct qr_round_page *page);
/** Manifest entry and page record of a page that is on disk, or a hole. */
quire_status qr_name_page(struct qr_round *round, const struct qr_round_page *page);
/** `less` (0 or 1) manifest entries less: the page goes when nobody names it. */
quire_status qr_unname(struct qr_round *round, const struct qr_disk_block *block,
                       uint32_t less);
/** A save that failed may have left rows in the log that are not to count. */
void qr_round_unsaved(struct qr_round *round);
/* durable_cut.c */

/** Cut: everything of the session from the cut on leaves the index. */
quire_status qr_round_fill_cut(struct qr_round *round);
/** Drop: the session's record goes; the rest is reclaimed. */
quire_status qr_round_fill_drop(struct qr_round *round);
/** Delete a part of a going session, or orphans. *more_out: there was something. */
quire_status qr_round_fill_reclaim(struct qr_round *round, bool *more_out);
/** After the commit: names are as they were when it failed. */
void qr_names_settle(struct qr_round *round);

/* ---- durable_record.c ----------------------------------------------------------------------
 */

/** The session's own record, and with `first` its namespace and model. */
quire_status qr_record_session(struct qr_round *round, bool first);
quire_status qr_record_read_model(const uint8_t *value, size_t n, struct qr_model *out,
                                  struct qr_error *e);
quire_status qr_record_model(const struct qr_model *model, struct qr_disk_batch *batch,
                             struct qr_error *e);
/** Write a model's record, and wait; a session of it would write it, too. EFULL, EIO. */
quire_status qr_durable_model(struct qr_store *store, const struct qr_model *model,
                              struct qr_error *e);
void qr_record_namespace(const struct qr_namespace *ns, uint32_t number,
                         struct qr_disk_batch *batch);
/** Microseconds since 1970. */
uint64_t qr_wall_us(void);

/* ---- durable_open.c, durable_load.c --------------------------------------------------------
 */

/** Namespaces, models and sessions of the disk, at start. */
quire_status qr_durable_open(struct qr_store *store, struct qr_error *e);
/** Bring a session's lanes to memory; nothing to do without a disk. EFULL, EIO, ENOMEM. */
quire_status qr_session_load(struct qr_session *session, struct qr_error *e);

/* ---- page_read.c ---------------------------------------------------------------------------
 */

/**
 * Start to read a page that qr_index_want handed over. On failure the entry is not being read
 * any more: EFULL (no host memory now), EAGAIN (queue full), EIO.
 */
quire_status qr_page_read_start(struct qr_store *store, uint32_t entry,
                                const struct qr_slot *disk_slot, const struct qr_place *place,
                                bool ahead);
/** Pin a page. With `wait` it is read first where it is only on disk. RESIDENT, EVICTED,
 * DAMAGED, or STORED: it would have to be read, or could not be read now. */
enum qr_page_state qr_page_hold(struct qr_session *session, uint32_t entry, uint32_t block,
                                bool wait, struct qr_pinned *out);

#endif
