/* SPDX-License-Identifier: Apache-2.0
 *
 * What others ask of the mover: to make a session durable, and to tell them or
 * let them wait; flush, which does so for sessions as a whole.
 */
#include <string.h>

#include "durable.h"

/* ---- asking ------------------------------------------------------------------
 */

void qr_mover_enqueue(struct qr_mover *mover, struct qr_session *session)
{
    if (session->save.queued)
        return;
    session->save.queued = true;
    session->save.next = NULL;
    atomic_fetch_add(&session->refs, 1);
    if (mover->last)
        mover->last->save.next = session;
    else
        mover->first = session;
    mover->last = session;
    pthread_cond_signal(&mover->work);
}

void qr_durable_want(struct qr_session *session, struct qr_waiter *waiter)
{
    struct qr_mover *mover = session->store->mover;

    pthread_mutex_lock(&mover->lock);
    const uint64_t ticket = ++session->save.wanted;
    if (waiter) {
        waiter->ticket = ticket;
        waiter->next = session->save.waiters;
        session->save.waiters = waiter;
    }
    qr_mover_enqueue(mover, session);
    pthread_mutex_unlock(&mover->lock);
}

bool qr_durable_is(struct qr_session *session)
{
    struct qr_mover *mover = session->store->mover;

    pthread_mutex_lock(&mover->lock);
    const bool running = session->save.running;
    pthread_mutex_unlock(&mover->lock);
    return running || session->save.stored || session->save.going;
}

struct waiting {
    struct qr_waiter waiter;
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool fired;
    quire_status status;
};

static void wake(void *arg, quire_status status)
{
    struct waiting *w = arg;

    pthread_mutex_lock(&w->lock);
    w->fired = true;
    w->status = status;
    pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->lock);
}

quire_status qr_durable_wait(struct qr_session *session)
{
    struct waiting w = {.waiter = {.done = wake}};

    w.waiter.arg = &w;
    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.done, NULL);
    qr_durable_want(session, &w.waiter);
    pthread_mutex_lock(&w.lock);
    while (!w.fired)
        pthread_cond_wait(&w.done, &w.lock);
    pthread_mutex_unlock(&w.lock);
    pthread_cond_destroy(&w.done);
    pthread_mutex_destroy(&w.lock);
    return w.status;
}

void qr_mover_going(struct qr_mover *mover, const uint8_t uuid[QR_DISK_UUID_BYTES])
{
    pthread_mutex_lock(&mover->lock);
    if (qr_round_room(&mover->going, &mover->going_capacity, mover->going_count + 1,
                      sizeof(*mover->going)))
        memcpy(mover->going[mover->going_count++], uuid, QR_DISK_UUID_BYTES);
    pthread_cond_signal(&mover->work);
    pthread_mutex_unlock(&mover->lock); /* without memory: the next start finds it */
}

void qr_mover_orphan(void *arg, const uint8_t id[QR_HASH_BYTES])
{
    struct qr_mover *mover = arg;

    pthread_mutex_lock(&mover->lock);
    if (qr_round_room(&mover->orphans, &mover->orphan_capacity, mover->orphan_count + 1,
                      sizeof(*mover->orphans)))
        memcpy(mover->orphans[mover->orphan_count++], id, QR_HASH_BYTES);
    pthread_mutex_unlock(&mover->lock);
}

/* ---- flush ------------------------------------------------------------------------------- */

static quire_status flush(struct qr_session *session, struct qr_error *e)
{
    if (!session->store->mover)
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "flush of session \"%s\": this store has no disk tier",
                            session->name);
    const quire_status status = qr_durable_wait(session);
    if (status == QUIRE_OK)
        return status;
    qr_error_set(e, status, "session \"%s\" is in memory, but not on disk: %s", session->name,
                 qr_disk_why(status));
    if (e && (status == QUIRE_EFULL || status == QUIRE_ETIMEOUT))
        e->retry_after_ms = QR_RETRY_DISK_MS;
    return status;
}

quire_status qr_session_flush(struct qr_store *store, uint32_t ns, uint64_t handle,
                              struct qr_session_info *out, struct qr_error *e)
{
    struct qr_session *session;
    quire_status status = qr_session_acquire(store, ns, handle, &session, e);

    if (status != QUIRE_OK)
        return status;
    status = flush(session, e);
    if (status == QUIRE_OK)
        status = qr_session_describe(session, out, e);
    qr_session_release(session);
    return status;
}

/* A session that is dropped meanwhile needs no flush. */
quire_status qr_store_flush(struct qr_store *store, uint32_t ns, struct qr_error *e)
{
    char last[QR_NAME_MAX + 1] = "";
    struct qr_session *session;
    quire_status status = QUIRE_OK;

    while (status == QUIRE_OK &&
           (session = qr_session_acquire_next(store, ns, "", last)) != NULL) {
        memcpy(last, session->name, sizeof(last));
        if (atomic_load(&session->loaded)) /* else there is nothing that the disk has not */
            status = flush(session, e);
        if (status == QUIRE_ENOTFOUND)
            status = QUIRE_OK;
        qr_session_release(session);
    }
    return status;
}
