/* SPDX-License-Identifier: Apache-2.0
 *
 * What a lease protects from eviction: the tail, and for a while the pages that a repeat
 * restored or compared.
 *
 * States of `tail_held`:
 *
 *   idle -- lease taken or renewed --> held -- lease given back, or tick after its end --> idle
 *
 * Invariant: each chunk of every lane's tail has one hold of this session exactly while
 * tail_held. Letting go needs both locks, so that an append, which has write_lock from begin to
 * end, reads rows that cannot go.
 */
#include "store_impl.h"

#include <stdlib.h>

#define KEPT_SHARE 4u /* a quarter of the budget, for all sessions together */

/* Block by block, so that chunks come to their group in ascending order. */
static void for_each_chunk(struct qr_session *session, bool hold)
{
    if (!session->lanes) /* on disk only: its chunks will be kept anyhow (chunk_home.keep) */
        return;
    for (uint32_t i = 0; i < session->tail_max; i++) {
        for (uint32_t l = 0; l < session->lane_count; l++) {
            const struct qr_lane *lane = &session->lanes[l];
            if (i >= lane->tail_count)
                continue;
            if (hold)
                qr_chunk_hold(lane->tail[i]);
            else
                qr_chunk_let_go(lane->tail[i], session->group);
        }
    }
}

void qr_session_hold_tail(struct qr_session *session)
{
    if (session->tail_held)
        return;
    for_each_chunk(session, true);
    session->tail_held = true;
}

void qr_session_let_go_tail(struct qr_session *session)
{
    if (!session->tail_held)
        return;
    for_each_chunk(session, false);
    session->tail_held = false;
}

/* ---- pages of a repeat ------------------------------------------------------------------- */

static bool is_kept(const struct qr_kept *kept, uint32_t entry)
{
    for (uint32_t i = 0; i < kept->count; i++) {
        if (kept->entries[i] == entry)
            return true;
    }
    return false;
}

static bool keep_one(struct qr_session *session, uint32_t entry)
{
    struct qr_store *store = session->store;
    struct qr_kept *kept = &session->kept;
    const uint64_t bytes = qr_index_bytes(store->index, entry);

    if (is_kept(kept, entry))
        return false;
    if (kept->count == kept->capacity) {
        const uint32_t capacity = kept->capacity * 2 + 64;
        uint32_t *entries = realloc(kept->entries, capacity * sizeof(*entries));
        if (!entries)
            return false;
        kept->entries = entries;
        kept->capacity = capacity;
    }
    const uint64_t before = atomic_fetch_add(&store->kept_bytes, bytes);
    if (before + bytes > store->config.host_budget_bytes / KEPT_SHARE) {
        atomic_fetch_sub(&store->kept_bytes, bytes);
        return false;
    }
    kept->entries[kept->count++] = entry;
    kept->bytes += bytes;
    return true;
}

void qr_session_keep(struct qr_session *session, const uint32_t *entries, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!keep_one(session, entries[i]))
            qr_index_unpin(session->store->index, entries[i]);
    }
    pthread_mutex_lock(&session->lock);
    session->kept.until_ms = session->lease_end_ms;
    pthread_mutex_unlock(&session->lock);
}

void qr_session_unkeep(struct qr_session *session)
{
    struct qr_kept *kept = &session->kept;

    for (uint32_t i = 0; i < kept->count; i++)
        qr_index_unpin(session->store->index, kept->entries[i]);
    atomic_fetch_sub(&session->store->kept_bytes, kept->bytes);
    free(kept->entries);
    *kept = (struct qr_kept){0};
}

void qr_session_rest(struct qr_session *session)
{
    const uint64_t now_ms = qr_store_now_ms(session->store);

    if (pthread_mutex_trylock(&session->write_lock) != 0)
        return; /* in use: the next tick comes */
    pthread_mutex_lock(&session->lock);
    const bool leased = qr_session_lease_runs(session, now_ms);
    if (!leased)
        qr_session_let_go_tail(session);
    pthread_mutex_unlock(&session->lock);
    if (!leased || now_ms >= session->kept.until_ms)
        qr_session_unkeep(session);
    pthread_mutex_unlock(&session->write_lock);
}

bool qr_lane_lost(const struct qr_session *session, const struct qr_lane *lane, uint64_t block)
{
    if (block < lane->sealed)
        return qr_index_bytes(session->store->index, lane->pages[block]) == 0;
    return qr_chunk_resident_bytes(lane->tail[block - lane->sealed]) == 0;
}

void qr_lane_disown(const struct qr_session *session, struct qr_chunk *chunk)
{
    qr_chunk_disown(chunk, session->tail_held, session->group);
}
