/* SPDX-License-Identifier: Apache-2.0
 *
 * A chunk: FP16 rows of one block of a tail, K [page_tokens][heads * key_dim]
 * then V [page_tokens][heads * value_dim], in the host tier. Shared by forks
 * (owners) and by readers (pins). Must not know sessions.
 *
 * An owner that may write holds it. A chunk that nobody holds may lose its rows when room is
 * wanted; they do not come back, only another chunk can take its place.
 */
#ifndef QR_CHUNK_H
#define QR_CHUNK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "index.h"
#include "storage/base/pool.h"

/** Where chunks come from; one a store. */
struct qr_chunk_home {
    bool keep; /* const, as are the others: no rows are lost, held or not; with a
                  disk, whose sessions leave memory as a whole */
    struct qr_index *index;
    struct qr_pool *pool;
    struct qr_meta *meta;
};

struct qr_chunk {
    const struct qr_chunk_home *home; /* const */
    uint32_t entry;                   /* const: in the index */
    uint32_t block;                   /* const: its order among what its group may lose */
    uint16_t *rows;                   /* const address; to be read while held, or pinned */
    _Atomic uint32_t owners;          /* atomic: lanes that have it */
    _Atomic uint32_t refs;            /* atomic: owners and pins */
    _Atomic uint32_t high; /* atomic: rows ever committed; raised by the only owner */
};

/** A chunk with one owner that holds it. EFULL, ETOOBIG, ENOMEM. Any thread. */
quire_status qr_chunk_make(const struct qr_chunk_home *home, uint32_t block, size_t bytes,
                           struct qr_chunk **out, struct qr_error *e);
/** One lane more, which does not hold it; the caller's lane owns it already. */
void qr_chunk_own(struct qr_chunk *chunk);
/** One lane less, which held it or not; the last reference gives the memory back. group: for
 * eviction, of the session that disowns it. */
void qr_chunk_disown(struct qr_chunk *chunk, bool held, uint32_t group);
/** An owner begins, or ends, to hold it. What is lost already stays lost. */
void qr_chunk_hold(struct qr_chunk *chunk);
void qr_chunk_let_go(struct qr_chunk *chunk, uint32_t group);
/** Bytes of its rows, 0 when they are lost. Stands still while held or pinned. */
size_t qr_chunk_resident_bytes(const struct qr_chunk *chunk);
/** A reader; the caller sees an owner that cannot go away meanwhile. false: the rows are lost.
 */
bool qr_chunk_pin(struct qr_chunk *chunk);
void qr_chunk_unpin(struct qr_chunk *chunk);
/** True when rows from `first_row` on may be written in place: no other lane has it, and no
 * reader can be looking at them. The caller holds it. */
bool qr_chunk_writable(struct qr_chunk *chunk, uint32_t first_row);

#endif
