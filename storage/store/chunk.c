/* SPDX-License-Identifier: Apache-2.0
 *
 * Reference counts of tail chunks. Readers only ever see rows below the length
 * at the time they pinned; rows above were never shown to anybody unless the
 * lane was truncated since, which `high` remembers.
 */
#include "chunk.h"

#include <assert.h>

static quire_status take_memory(struct qr_chunk *chunk, size_t bytes, struct qr_error *e)
{
    struct qr_index *index = chunk->home->index;
    struct qr_slot slot;
    quire_status status = qr_index_reserve(index, bytes, &slot, e);

    if (status != QUIRE_OK)
        return status;
    chunk->rows = qr_index_map(index, &slot);
    status = qr_index_add_rows(index, &slot, &chunk->entry, e);
    if (status != QUIRE_OK)
        qr_index_release(index, &slot);
    return status;
}

static void give(struct qr_chunk *chunk)
{
    qr_meta_give(chunk->home->meta, sizeof(*chunk));
    qr_pool_give(chunk->home->pool, chunk);
}

quire_status qr_chunk_make(const struct qr_chunk_home *home, uint32_t block, size_t bytes,
                           struct qr_chunk **out, struct qr_error *e)
{
    if (!qr_meta_take(home->meta, sizeof(struct qr_chunk)))
        return qr_error_set(
            e, QUIRE_EFULL,
            "no room for the metadata of one more tail chunk: drop sessions, or "
            "raise the budget");
    struct qr_chunk *chunk = qr_pool_take(home->pool);
    if (!chunk) {
        qr_meta_give(home->meta, sizeof(struct qr_chunk));
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for one more tail chunk");
    }
    chunk->home = home;
    chunk->block = block;
    quire_status status = take_memory(chunk, bytes, e);
    if (status != QUIRE_OK) {
        give(chunk);
        return status;
    }
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
    qr_index_drop_rows(chunk->home->index, chunk->entry);
    give(chunk);
}

void qr_chunk_own(struct qr_chunk *chunk)
{
    atomic_fetch_add(&chunk->refs, 1);
    atomic_fetch_add(&chunk->owners, 1);
}

void qr_chunk_disown(struct qr_chunk *chunk, bool held, uint32_t group)
{
    atomic_fetch_sub(&chunk->owners, 1);
    /* Only owners and readers make more references: with one, it is ours and goes now. */
    if (held && atomic_load(&chunk->refs) > 1)
        qr_chunk_let_go(chunk, group);
    unref(chunk);
}

void qr_chunk_hold(struct qr_chunk *chunk)
{
    if (!chunk->home->keep)
        qr_index_hold(chunk->home->index, chunk->entry);
}

void qr_chunk_let_go(struct qr_chunk *chunk, uint32_t group)
{
    const struct qr_place place = {
        .group = group, .order = chunk->block, .hint = QR_ENTRY_NONE};

    if (!chunk->home->keep)
        qr_index_let_go(chunk->home->index, chunk->entry, &place);
}

size_t qr_chunk_resident_bytes(const struct qr_chunk *chunk)
{
    return qr_index_bytes(chunk->home->index, chunk->entry);
}

bool qr_chunk_pin(struct qr_chunk *chunk)
{
    struct qr_pinned pinned;

    if (qr_index_pin(chunk->home->index, chunk->entry, &pinned) != QR_PAGE_RESIDENT)
        return false;
    assert(pinned.bytes == chunk->rows);
    atomic_fetch_add(&chunk->refs, 1);
    return true;
}

void qr_chunk_unpin(struct qr_chunk *chunk)
{
    qr_index_unpin(chunk->home->index, chunk->entry);
    unref(chunk);
}

bool qr_chunk_writable(struct qr_chunk *chunk, uint32_t first_row)
{
    if (atomic_load(&chunk->owners) > 1)
        return false;
    return first_row >= atomic_load(&chunk->high) || atomic_load(&chunk->refs) == 1;
}
