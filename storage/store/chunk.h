/* SPDX-License-Identifier: Apache-2.0
 *
 * A chunk: FP16 rows of one block of a tail, K [page_tokens][heads * key_dim]
 * then V [page_tokens][heads * value_dim], in the host tier. Shared by forks
 * (owners) and by readers (pins). Must not know sessions.
 */
#ifndef QR_CHUNK_H
#define QR_CHUNK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "index.h"
#include "storage/base/pool.h"

struct qr_chunk {
    struct qr_index *index;  /* const */
    struct qr_pool *pool;    /* const */
    struct qr_slot slot;     /* const */
    uint16_t *rows;          /* const address */
    _Atomic uint32_t owners; /* atomic: lanes that hold it */
    _Atomic uint32_t refs;   /* atomic: owners and pins */
    _Atomic uint32_t high;   /* atomic: rows ever committed; raised by the only owner */
};

/** A chunk with one owner. EFULL, ETOOBIG, ENOMEM. Any thread. */
quire_status qr_chunk_make(struct qr_index *index, struct qr_pool *pool, size_t bytes,
                           struct qr_chunk **out, struct qr_error *e);
/** One lane more; the caller's lane owns it already. */
void qr_chunk_own(struct qr_chunk *chunk);
/** One lane less; the last reference gives the memory back. */
void qr_chunk_disown(struct qr_chunk *chunk);
/** A reader; the caller sees an owner that cannot go away meanwhile. */
void qr_chunk_pin(struct qr_chunk *chunk);
void qr_chunk_unpin(struct qr_chunk *chunk);
/** True when rows from `first_row` on may be written in place: no other lane has it, and no
 * reader can be looking at them. */
bool qr_chunk_writable(struct qr_chunk *chunk, uint32_t first_row);

#endif
