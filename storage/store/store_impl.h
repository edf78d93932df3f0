/* SPDX-License-Identifier: Apache-2.0
 *
 * The store's own records: store, session, lane. Shared by the files of this
 * folder and their tests, nobody else.
 *
 * Lock order, outermost first (storage/README.md):
 *   session.write_lock -> session.lock -> index lock -> tier lock
 *   table_lock is taken alone, or under a session's locks; over nothing but pools.
 *   mover.lock (durable.h) is a leaf.
 */
#ifndef QR_STORE_IMPL_H
#define QR_STORE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "blocks.h"
#include "chunk.h"
#include "counters.h"
#include "index.h"
#include "meta.h"
#include "storage/base/pool.h"
#include "storage/base/workers.h"
#include "storage/codec/codec.h"
#include "store.h"

#define QR_NAMESPACES_MAX 1024u
#define QR_CURSORS_MAX 4096u
#define QR_APPENDS_MAX 1024u   /* appends under way at once */
#define QR_DURABLES_MAX 65536u /* durable appends waiting at once */
#define QR_RETRY_DISK_MS 1000u /* the disk is full, or does not answer */
#define QR_RETRY_BUSY_MS 50u   /* a pool of calls under way is empty */
#define QR_CHUNKS_MAX (1u << 22)
#define QR_SESSION_SLOT_BITS 24u /* sessions_max <= 2^24; handle = sequence << 24 | slot */

struct qr_mover;
struct qr_waiter;

struct qr_namespace {
    char name[QR_NAME_MAX + 1];
    uint8_t secret[QR_HASH_BYTES];
    bool used; /* false: a gap that the disk's namespaces left */
};

/** What the disk has of a lane; guarded by the session's lock. */
struct qr_lane_saved {
    uint32_t sealed;       /* blocks with a manifest entry */
    uint32_t changed;      /* first of them whose page was replaced since; UINT32_MAX: none */
    uint64_t length;       /* tokens */
    uint64_t cut_sequence; /* of the lane record */
    uint64_t cut_length;
    bool cut; /* was cut since, to `cut_to` tokens */
    uint64_t cut_to;
};

/** What the mover knows of a session; guarded by its lock unless said otherwise. */
struct qr_session_save {
    bool queued, running;
    uint64_t wanted; /* tickets given out */
    struct qr_waiter *waiters;
    struct qr_session *next; /* in the mover's queue */
    /* guarded by the session's lock: */
    bool stored;         /* its record is on disk */
    bool going;          /* parts of it are, and it is marked as going */
    uint32_t blocks;     /* block ids on disk */
    uint32_t cut_blocks; /* lowest number of them since the last cut round */
    bool tokens;         /* its token ids record is on disk */
    uint64_t epoch;      /* of its record */
    uint64_t created_us;
    uint64_t used_ms; /* when it was last saved */
    uint64_t length, longest, sealed_tokens, pages, missing_pages, page_bytes; /* of a session
                                                                    that is not loaded */
};

/** Pages pinned for a repeat that may go on in a later append. */
struct qr_kept {
    uint32_t *entries;
    uint32_t count, capacity;
    uint64_t bytes;
    uint64_t until_ms;
};

/** A fetch or an attend under way; a truncate leaves its length here. */
struct qr_reading {
    struct qr_reading *next, *previous; /* guarded by the session's lock */
    _Atomic uint64_t cut_to;            /* atomic: the least since it began, or UINT64_MAX */
};

/** One (layer, head shard) of a session. Geometry is const, the rest guarded by the session's
 * locks: written under both, so that either is enough to read. */
struct qr_lane {
    uint32_t layer;
    uint16_t first_head, heads, key_dim, value_dim;
    uint64_t length; /* tokens */
    uint32_t *pages; /* entries of the blocks [0, sealed) */
    uint32_t sealed, pages_capacity;
    struct qr_chunk **tail; /* [session.tail_max]: chunks of blocks sealed, sealed + 1, ... */
    uint32_t tail_count;
    struct qr_lane_saved saved;
};

struct qr_session {
    struct qr_store *store; /* const, as are the fields up to the locks */
    uint64_t handle;
    uint32_t ns;
    char name[QR_NAME_MAX + 1];
    const struct qr_model *model;
    struct qr_policy policy;
    uint32_t head_shards;
    uint16_t *lane_row; /* [layers]: lane = lane_row * head_shards + shard; QR_NO_LANE */
    uint32_t lane_count, tail_max;
    uint32_t group;      /* of eviction */
    uint32_t read_group; /* the same, of pages read from the disk; guarded by lock */
    uint64_t meta_bytes, lanes_meta_bytes; /* counted for the fixed parts */
    struct qr_receipt_sum receipts;        /* guarded by lock */
    uint8_t uuid[16];                      /* its name on disk */

    atomic_bool unsaved;             /* atomic: changed since the mover last looked */
    atomic_bool loaded;              /* atomic: lanes are in memory; set under both locks */
    _Atomic uint32_t refs;           /* atomic: the table and whoever uses it now */
    _Atomic uint64_t used_ms;        /* atomic: last use, for the time to live */
    _Atomic uint64_t idle_before_ms; /* atomic: idle before the clock began; 0 once used */
    _Atomic uint64_t ttl_ms;         /* atomic */

    pthread_mutex_t write_lock; /* one mutation at a time; held across encoding */
    pthread_mutex_t lock;       /* held for short moments */
    bool dead;                  /* guarded by both: dropped, contents are gone */
    bool tail_held;             /* guarded by lock; set free under both */
    bool leased;                /* guarded by lock, as are the three below */
    uint64_t epoch, lease_end_ms;
    uint32_t lease_ms;
    struct qr_kept kept;         /* guarded by write_lock */
    struct qr_reading *readings; /* guarded by lock */
    struct qr_lane *lanes;       /* guarded by both */
    struct qr_blocks blocks;     /* guarded by both */
    struct qr_session_save save;
    bool passed_over; /* owner: qr_store_tick */
};
#define QR_NO_LANE UINT16_MAX

struct qr_session_slot {
    struct qr_session *session;
    uint64_t handle;
};

struct qr_store {
    struct qr_store_config config;              /* const */
    struct qr_tier *tier;                       /* const */
    struct qr_index *index;                     /* const */
    struct qr_workers *workers;                 /* const */
    struct qr_pool *chunks, *cursors, *appends; /* const */
    struct qr_chunk_home chunk_home;            /* const */
    struct qr_pool
        *durables;          /* const; of append.c; NULL without a disk, as are the next ones */
    struct qr_pool *reads;  /* const; of page_read.c */
    struct qr_mover *mover; /* const */
    struct qr_disk *disk;   /* const */
    struct qr_disk_scrub *scrub;  /* const; NULL: none */
    bool drop_when_full;          /* const */
    uint64_t disk_failures_seen;  /* owner: qr_store_tick */
    uint32_t read_wait_ms;        /* const but for tests: longest wait for one page */
    _Atomic uint64_t ahead_bytes; /* atomic: asked for ahead by all readers */
    struct qr_meta meta;
    struct qr_counters counters;
    _Atomic uint64_t next_epoch; /* atomic: of the next lease, whatever session it is for */
    _Atomic uint64_t kept_bytes; /* atomic: of all sessions; at most its share of the budget */

    pthread_mutex_t table_lock;
    struct qr_namespace *namespaces;  /* [QR_NAMESPACES_MAX]; entries are const once counted */
    _Atomic uint32_t namespace_count; /* written under table_lock */
    struct qr_model **models;         /* guarded by table_lock; models are const */
    uint32_t model_count;
    struct qr_session_slot *slots;         /* [sessions_max]; guarded by table_lock */
    uint32_t *free_slots, free_slot_count; /* guarded by table_lock */
    struct qr_session **sorted;            /* by namespace and name; guarded by table_lock */
    uint32_t session_count;                /* guarded by table_lock */
    uint64_t sequence;                     /* guarded by table_lock */
};

/** Like qr_store_create over a tier made by the caller; owned by the store, also on failure. */
quire_status qr_store_create_on(const struct qr_store_config *config, struct qr_tier *tier,
                                struct qr_store **out, struct qr_error *e);
uint64_t qr_store_now_ms(const struct qr_store *store);
/** Secret of a namespace; NULL when there is no such namespace. */
const struct qr_namespace *qr_store_namespace_of(struct qr_store *store, uint32_t ns);

/* ---- session_table.c -------------------------------------------------------------------- */

/** Session of a handle in this namespace, with a reference. ENOTFOUND. */
quire_status qr_session_acquire(struct qr_store *store, uint32_t ns, uint64_t handle,
                                struct qr_session **out, struct qr_error *e);
/** Session of a name, with a reference; NULL when there is none. */
struct qr_session *qr_session_acquire_name(struct qr_store *store, uint32_t ns,
                                           const char *name);
/** The session at a place of the table, which may change between calls; NULL: past the end. */
struct qr_session *qr_session_acquire_at(struct qr_store *store, uint32_t place);
/** The next session of a namespace whose name is above `after` and begins with prefix; NULL. */
struct qr_session *qr_session_acquire_next(struct qr_store *store, uint32_t ns,
                                           const char *prefix, const char *after);
void qr_session_release(struct qr_session *session);
/** Put a new session in the table (one reference for the table): EEXIST when the name is taken,
 * EFULL. Sets its handle. */
quire_status qr_session_table_add(struct qr_session *session, struct qr_error *e);
/** Take it out; no-op when it is not there. */
void qr_session_table_remove(struct qr_session *session);

/* ---- session_make.c --------------------------------------------------------------------- */

/** What a session is from its creation on. */
struct qr_session_shape {
    uint32_t ns, head_shards;
    const char *name;
    const struct qr_model *model;
    const struct qr_policy *policy;
    bool stub;           /* of a session on disk: loaded when it is used */
    const uint8_t *uuid; /* NULL: a new one */
};
/** Not in the table yet, one reference, without lanes when `stub`. EINVAL, EFULL, ENOMEM,
 * ETOOBIG. */
quire_status qr_session_make(struct qr_store *store, const struct qr_session_shape *shape,
                             struct qr_session **out, struct qr_error *e);
/** Lanes, all empty. EFULL, ENOMEM. */
quire_status qr_session_make_lanes(struct qr_session *session, struct qr_error *e);
/** Where a page that is read from the disk stands for eviction: in a group of its own, so that
 * one look at a long session pushes out no more than what else was looked at once. Its lock
 * held. */
struct qr_place qr_session_read_place(struct qr_session *session, uint32_t block);
/** Give back what lanes and block ids hold, so that it can be loaded anew. Both locks held. */
void qr_session_unload(struct qr_session *session);
/** Give back everything it holds and mark it dead. Both locks held. */
void qr_session_empty(struct qr_session *session);
/** Free the record; called by the last qr_session_release. */
void qr_session_free(struct qr_session *session);
/** Room for `blocks` manifest places in a lane. Takes the session's lock. EFULL, ENOMEM. */
quire_status qr_lane_grow(struct qr_session *session, struct qr_lane *lane, uint32_t blocks,
                          struct qr_error *e);

/* ---- session.c -------------------------------------------------------------------------- */

void qr_session_used(struct qr_session *session);
/** Check the writer: EFENCED, ELEASE, ENOTFOUND when dead; renews the lease. lock held. */
quire_status qr_session_check_writer(struct qr_session *session, uint64_t epoch,
                                     struct qr_error *e);
uint64_t qr_session_length(const struct qr_session *session, uint64_t *longest_out);
/** Fill an info; takes the session's lock. ENOTFOUND when dead. */
quire_status qr_session_describe(struct qr_session *session, struct qr_session_info *out,
                                 struct qr_error *e);
/** The same for a session that is alive; its lock held. */
void qr_session_fill_info(const struct qr_session *session, struct qr_session_info *out);
quire_status qr_session_gone(struct qr_error *e, const char *name);

/** A writer holds the lease, and it has not run out. lock held. */
bool qr_session_lease_runs(const struct qr_session *session, uint64_t now_ms);

/* ---- session_tail.c --------------------------------------------------------------------- */

/** Keep the tail from being evicted; what is lost already stays lost. lock held. */
void qr_session_hold_tail(struct qr_session *session);
/** Let it be evicted. Both locks held. */
void qr_session_let_go_tail(struct qr_session *session);
/**
 * A repeat may take several appends: keep the pages that one of them pinned for the later ones,
 * until the lease as it is now runs out. Takes over the pins; gives those back that are kept
 * already or have no room in a quarter of the budget. write_lock held.
 */
void qr_session_keep(struct qr_session *session, const uint32_t *entries, size_t count);
/** Unpin them all. write_lock held, or nobody else has the session. */
void qr_session_unkeep(struct qr_session *session);
/** Let go of a tail whose lease is over, and of pages kept long enough, unless somebody is
 * writing. Takes both locks. */
void qr_session_rest(struct qr_session *session);
/** True when a block that the lane has, page or tail, was evicted. One of the locks held. */
bool qr_lane_lost(const struct qr_session *session, const struct qr_lane *lane, uint64_t block);
/** A chunk leaves a lane of this session. Both locks held. */
void qr_lane_disown(const struct qr_session *session, struct qr_chunk *chunk);

/* ---- reading.c -------------------------------------------------------------------------- */

/** From now on truncates are noted in it. lock held; the caller's memory until the end. */
void qr_reading_begin(struct qr_session *session, struct qr_reading *reading);
/** Takes the session's lock. */
void qr_reading_end(struct qr_session *session, struct qr_reading *reading);
/** Tell all of them of a cut to `length`. lock held, before anything is cut. */
void qr_reading_cut(struct qr_session *session, uint64_t length);
/** True when [.., end) is no longer what was there when the read began. To be asked after the
 * rows were pinned. */
static inline bool qr_reading_is_cut(const struct qr_reading *reading, uint64_t end)
{
    return atomic_load(&reading->cut_to) < end;
}

/* ---- lane.c ----------------------------------------------------------------------------- */

/** Lane of a layer and shard, NULL when the layer has none. */
struct qr_lane *qr_session_lane(struct qr_session *session, uint32_t layer, uint32_t shard);
/** Identity of a page of this lane, but for the block id. */
void qr_lane_identity(const struct qr_session *session, const struct qr_lane *lane,
                      uint32_t block, struct qr_page_identity *out);
void qr_lane_page_id(const struct qr_session *session, const struct qr_lane *lane,
                     const uint8_t block_id[QR_HASH_BYTES], uint8_t out[QR_HASH_BYTES]);
/** A page that was found and pinned under the session's lock, not
 * verified yet. */
struct qr_found {
    uint32_t block, entry;
    bool is_page;
    enum qr_want want;
    struct qr_slot disk;   /* where it is to be read from */
    struct qr_place place; /* and where it then stands for eviction */
    uint8_t block_id[QR_HASH_BYTES];
    struct qr_pinned pinned;
};

/**
 * Verify pinned bytes: format, checksum, identity of this lane and block. A page that had to
 * get a block id of its own is recognized by its page id. ECORRUPT, EMISMATCH.
 */
quire_status qr_page_verify(const struct qr_session *session, const struct qr_lane *lane,
                            const struct qr_found *found, struct qr_page_view *view,
                            struct qr_error *e);

size_t qr_lane_chunk_bytes(const struct qr_session *session, const struct qr_lane *lane);
/** Rows of one lane's chunk as the codec wants them. */
void qr_chunk_rows(const struct qr_session *session, const struct qr_lane *lane,
                   const struct qr_chunk *chunk, struct qr_rows *key, struct qr_rows *value);

/* ---- sizes of pooled records ------------------------------------------------------------ */

size_t qr_cursor_bytes(void);
size_t qr_append_bytes(void);
size_t qr_page_read_bytes(void);
size_t qr_durable_bytes(void);
/** Free what an append record owns between uses. */
void qr_append_end(void *object);

static inline uint64_t qr_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t qr_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
