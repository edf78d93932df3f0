/* SPDX-License-Identifier: Apache-2.0
 *
 * Reference counts of tail chunks. Readers only ever see rows below the length
 * at the time they pinned; rows above were never shown to anybody unless the
 * lane was truncated since, which `high` remembers.
 */
#include "chunk.h"

quire_status qr_chunk_make(struct qr_index *index, struct qr_pool *pool, size_t bytes,
                           struct qr_chunk **out, struct qr_error *e)
{
    struct qr_chunk *chunk = qr_pool_take(pool);

    if (!chunk)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for one more tail chunk");
    quire_status status = qr_index_reserve(index, bytes, &chunk->slot, e);
    if (status != QUIRE_OK) {
        qr_pool_give(pool, chunk);
        return status;
    }
    qr_index_count_chunk(index, (int64_t)chunk->slot.bytes);
    chunk->index = index;
    chunk->pool = pool;
    chunk->rows = qr_index_map(index, &chunk->slot);
    atomic_store(&chunk->high, 0);
    atomic_store(&chunk->owners, 1);
    atomic_store(&chunk->refs, 1);
    *out = chunk;
    return QUIRE_OK;
}

static void unref(struct qr_chunk *chunk)
{
    if (atomic_fetch_sub(&chunk->refs, 1) > 1)
        return;
    qr_index_count_chunk(chunk->index, -(int64_t)chunk->slot.bytes);
    qr_index_release(chunk->index, &chunk->slot);
    qr_pool_give(chunk->pool, chunk);
}

void qr_chunk_own(struct qr_chunk *chunk)
{
    atomic_fetch_add(&chunk->refs, 1);
    atomic_fetch_add(&chunk->owners, 1);
}

void qr_chunk_disown(struct qr_chunk *chunk)
{
    atomic_fetch_sub(&chunk->owners, 1);
    unref(chunk);
}

void qr_chunk_pin(struct qr_chunk *chunk)
{
    atomic_fetch_add(&chunk->refs, 1);
}

void qr_chunk_unpin(struct qr_chunk *chunk)
{
    unref(chunk);
}

bool qr_chunk_writable(struct qr_chunk *chunk, uint32_t first_row)
{
    if (atomic_load(&chunk->owners) > 1)
        return false;
    return first_row >= atomic_load(&chunk->high) || atomic_load(&chunk->refs) == 1;
}
