/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a session's tail may be evicted: not while a writer has the lease.
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

/* Block by block, so that chunks come to their group in ascending order. */
static void for_each_chunk(struct qr_session *session, bool hold)
{
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

void qr_session_rest(struct qr_session *session)
{
    if (pthread_mutex_trylock(&session->write_lock) != 0)
        return; /* in use: the next tick comes */
    pthread_mutex_lock(&session->lock);
    if (!qr_session_lease_runs(session, qr_store_now_ms(session->store)))
        qr_session_let_go_tail(session);
    pthread_mutex_unlock(&session->lock);
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
