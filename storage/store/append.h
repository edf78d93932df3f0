/* SPDX-License-Identifier: Apache-2.0
 *
 * An append under way. Everything it makes is staged here; committing moves it
 * into the session, failing gives it back, so that an append is all or nothing.
 * Used by the append files alone.
 *
 * The session's write_lock is held from begin to end, its lock only for the commit.
 */
#ifndef QR_APPEND_H
#define QR_APPEND_H

#include "store_impl.h"

/** A tail chunk that will hold block `block` of the lane. */
struct qr_staged_chunk {
    struct qr_chunk *chunk;
    uint32_t block;
};

/** An entry that will stand in the manifest at `block`; the append holds a reference. */
struct qr_staged_page {
    uint32_t entry, block;
    struct qr_receipt receipt;
};

/** What one lane becomes; chunks and pages are ranges of the append's arrays. */
struct qr_staged_lane {
    struct qr_lane *lane;
    uint64_t length; /* new */
    uint32_t sealed; /* new */
    uint32_t repeated;
    uint32_t first_chunk, chunks;
    uint32_t first_page, pages;
};

/** Pooled; keeps its arrays between uses. owner: the calling thread. */
struct qr_append_job {
    struct qr_session *session;
    const struct qr_append *append;
    struct qr_source *source;
    struct qr_staged_lane *lanes;
    struct qr_staged_chunk *chunks;
    struct qr_staged_page *pages;
    size_t lane_count, lane_capacity;
    size_t chunk_count, chunk_capacity;
    size_t page_count, page_capacity;
    uint32_t *pins; /* pages found or restored for a repeat: not to be evicted before the end */
    size_t pin_count, pin_capacity;
    struct qr_chunk **targets; /* per block touched: where the rows of the request go */
    size_t target_capacity;
    uint8_t *scratch; /* 64-byte aligned: an encoded page, or rows before conversion */
    size_t scratch_capacity;
    /* Counted when the append succeeds. */
    uint64_t sealed, shared, unshared, restored, received, tails_restored;
    bool write_through; /* the session is on disk, or will be: new pages go there at once */
};

/* append.c */
quire_status qr_append_begin(struct qr_store *store, uint32_t ns,
                             const struct qr_append *append, struct qr_append_job **out,
                             struct qr_error *e);
/** Room for the ids of the blocks that the request reaches, and its token ids staged. Only
 * after its payload was found to be that long: the room stays the session's. */
quire_status qr_append_stage_blocks(struct qr_append_job *job, struct qr_error *e);
/** Commit when status is OK, give everything back otherwise; releases the job. */
quire_status qr_append_finish(struct qr_append_job *job, quire_status status,
                              struct qr_append_result *out, struct qr_error *e);
/** Room for n elements more; counts stay. ENOMEM. */
quire_status qr_append_room_lanes(struct qr_append_job *job, size_t n, struct qr_error *e);
quire_status qr_append_room_pages(struct qr_append_job *job, size_t n, struct qr_error *e);
/** Keep the resident page of `entry` until the append ends, so that making room for one page of
 * a repeat does not take another. EFULL when it is gone already. */
quire_status qr_append_keep(struct qr_append_job *job, uint32_t entry, struct qr_error *e);
/** Pin a stored page of a repeat, read from the disk where it must be: STORED when that would
 * wait and must not, or there is no room for it. */
enum qr_page_state qr_append_hold(struct qr_append_job *job, uint32_t entry, uint32_t block,
                                  struct qr_pinned *out);
/** EAGAIN or EFULL after it answered STORED. */
quire_status qr_append_busy(const struct qr_append_job *job, struct qr_error *e);
quire_status qr_append_room_chunks(struct qr_append_job *job, size_t n, struct qr_error *e);
quire_status qr_append_room_targets(struct qr_append_job *job, size_t n, struct qr_error *e);
quire_status qr_append_room_scratch(struct qr_append_job *job, size_t bytes,
                                    struct qr_error *e);
/** Start staging a lane, unchanged so far; the last one in job->lanes. */
quire_status qr_append_stage_lane(struct qr_append_job *job, struct qr_lane *lane,
                                  struct qr_error *e);
/** Chunk of a block as it will be: staged in this append, else the lane's; NULL when neither.
 */
struct qr_chunk *qr_append_chunk(const struct qr_append_job *job,
                                 const struct qr_staged_lane *staged, uint32_t block);

/* append_check.c */

/** Refuse what cannot be: EINVAL, ETOOBIG, EUNSUPPORTED, EGAP, EMISSING. Both the session's
 * write_lock and the lease are the append's. Makes room for its lanes. */
quire_status qr_append_check(struct qr_append_job *job, struct qr_error *e);
/** EMISSING: the rows of this block of the lane were evicted, and the request does not bring
 * all of them. */
quire_status qr_append_lost(const struct qr_append_job *job, const struct qr_lane *lane,
                            uint32_t block, struct qr_error *e);

/* append_seal.c: encode, share or restore a page */

/** Make block `block` of the staged lane a page from a full chunk: adds a staged page. Also
 * restores blocks that were evicted. */
quire_status qr_append_seal(struct qr_append_job *job, uint32_t block,
                            const struct qr_chunk *chunk, struct qr_error *e);
/** The same from a client's page in a slot; the slot is empty afterwards when it was used. */
quire_status qr_append_add_page(struct qr_append_job *job, uint32_t block, struct qr_slot *slot,
                                struct qr_error *e);
/** Seal blocks of the staged lane from its staged and held chunks until `sealed` are. */
quire_status qr_append_seal_until(struct qr_append_job *job, uint32_t sealed,
                                  struct qr_error *e);

/* append_repeat.c: compare with what is stored */

/** Rows [first, first + n) of a block, in `given` at their place, against the stored ones.
 * Whole evicted blocks are restored. ECONFLICT, EMISSING. */
quire_status qr_append_compare(struct qr_append_job *job, uint32_t block, uint32_t first,
                               uint32_t n, const struct qr_chunk *given, struct qr_error *e);

#endif
