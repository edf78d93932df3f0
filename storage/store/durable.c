/* SPDX-License-Identifier: Apache-2.0
 *
 * The mover's thread: which session gets a round next, what follows when the
 * writes or the commit of a round have ended, who is told. What a round contains
 * is in durable_round.c and durable_name.c.
 */
#include "durable.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "storage/base/clock.h"
#include "storage/base/log.h"

#define ROUNDS_MAX 32u /* under way at once: their commits share syncs */
#define STALLED_NS UINT64_C(1000000)
#define IDLE_NS UINT64_C(100000000)
#define ROWS_IDLE_MS 500u /* rows of a session unused for so long are saved unasked, too */
#define RELIEVE_NS UINT64_C(20000000)
#define RECLAIM_RETRY_NS UINT64_C(200000000)

bool qr_round_room(void *array, size_t *capacity, size_t wanted, size_t element_bytes)
{
    void **memory = array;

    if (wanted <= *capacity)
        return true;
    const size_t grown = wanted + wanted / 2 + 16;
    void *moved = realloc(*memory, grown * element_bytes);
    if (!moved)
        return false;
    *memory = moved;
    *capacity = grown;
    return true;
}

void qr_mover_event(struct qr_round *round)
{
    struct qr_mover *mover = round->mover;

    pthread_mutex_lock(&mover->lock);
    round->next = mover->events;
    mover->events = round;
    pthread_cond_signal(&mover->work);
    pthread_mutex_unlock(&mover->lock);
}

/* ---- rounds -------------------------------------------------------------------------------
 */

static struct qr_round *round_take(struct qr_mover *mover, struct qr_session *session)
{
    struct qr_round *round = mover->free;

    if (round)
        mover->free = round->next;
    else
        round = calloc(1, sizeof(*round));
    if (!round)
        return NULL;
    round->mover = mover;
    round->session = session;
    if (session)
        memcpy(round->uuid, session->uuid, sizeof(round->uuid));
    round->whole = true;
    round->left = false;
    round->page_count = round->lane_count = round->chunk_count = 0;
    round->undo_count = round->freed_count = 0;
    round->blocks = 0;
    round->token_bytes = 0;
    round->committing = false;
    round->status = QUIRE_OK;
    atomic_store(&round->failed, QUIRE_OK);
    qr_disk_batch_clear(&round->batch);
    round->commit = (struct qr_disk_commit){.batch = &round->batch};
    pthread_mutex_lock(&mover->lock);
    mover->rounds++;
    pthread_mutex_unlock(&mover->lock);
    return round;
}

static void round_free(struct qr_round *round)
{
    free(round->ids);
    free(round->tokens);
    free(round->pages);
    free(round->lanes);
    free(round->chunks);
    free(round->undo);
    free(round->freed);
    free(round->rows);
    qr_disk_batch_free(&round->batch);
    free(round);
}

/* Waiters of tickets that the round covers, taken out of the session's list. lock held. */
static struct qr_waiter *take_waiters(struct qr_session *session, uint64_t covers)
{
    struct qr_waiter **at = &session->save.waiters, *out = NULL;

    while (*at) {
        struct qr_waiter *w = *at;
        if (w->ticket > covers) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        w->next = out;
        out = w;
    }
    return out;
}

static void tell(struct qr_waiter *waiters, quire_status status)
{
    while (waiters) {
        struct qr_waiter *w = waiters;
        waiters = w->next; /* done may free it */
        w->done(w->arg, status);
    }
}

/* The session's round is over: tell who waited, and go on with what is left. */
static void session_next(struct qr_mover *mover, struct qr_session *session, uint64_t covers,
                         bool whole, quire_status status)
{
    struct qr_waiter *waiters = NULL;

    pthread_mutex_lock(&mover->lock);
    session->save.running = false;
    if (whole || status != QUIRE_OK)
        waiters = take_waiters(session, covers);
    if ((!whole && status == QUIRE_OK) || session->save.waiters ||
        session->save.wanted > covers)
        qr_mover_enqueue(mover, session);
    pthread_mutex_unlock(&mover->lock);
    tell(waiters, status);
}

static void round_end(struct qr_round *round, quire_status status)
{
    struct qr_mover *mover = round->mover;
    struct qr_session *session = round->session;

    if (session && (status != QUIRE_OK || !round->whole || round->left))
        atomic_store(&session->unsaved, true);
    if (status != QUIRE_OK && round->kind == QR_ROUND_SAVE)
        qr_round_unsaved(round);
    qr_round_release(round);
    if (session) {
        session_next(mover, session, round->covers, round->whole, status);
        qr_session_release(session);
    }
    if (round->kind == QR_ROUND_RECLAIM) {
        mover->reclaiming = false;
        if (status != QUIRE_OK)
            mover->retry_ns = qr_clock_ns() + RECLAIM_RETRY_NS;
    }
    pthread_mutex_lock(&mover->lock);
    mover->rounds--;
    pthread_mutex_unlock(&mover->lock);
    round->next = mover->free;
    mover->free = round;
}

static void committed(void *arg, quire_status status)
{
    struct qr_round *round = arg;

    round->status = status;
    qr_mover_event(round);
}

void qr_round_commit(struct qr_round *round)
{
    round->committing = true;
    round->commit.freed = round->freed;
    round->commit.freed_count = round->freed_count;
    round->commit.done = committed;
    round->commit.arg = round;
    /* Rounds are fewer than commits may be queued; others may have filled the queue. */
    while (qr_disk_commit(round->mover->disk, &round->commit) == QUIRE_EAGAIN)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Nobody waits, and the disk has it all already, but perhaps for rows that may wait. */
static bool is_idle(const struct qr_round *round)
{
    const struct qr_session *session = round->session;

    return !round->urgent && session->save.stored && round->page_count == 0 &&
           round->lane_count == 0 && round->blocks == 0 &&
           atomic_load(&session->used_ms) < session->save.used_ms + QR_NOTE_MS;
}

static void fill_and_commit(struct qr_round *round)
{
    const quire_status failed = atomic_load(&round->failed);
    quire_status status = failed;

    if (status == QUIRE_OK && is_idle(round)) {
        round_end(round, status);
        return;
    }
    if (status == QUIRE_OK)
        status = qr_round_fill(round);
    if (status == QUIRE_OK && round->batch.failed)
        status = QUIRE_ENOMEM;
    if (status == QUIRE_OK) {
        qr_round_commit(round);
        return;
    }
    round->status = status;
    qr_names_settle(round);
    round_end(round, status);
}

static void writes_ended(struct qr_round *round)
{
    const enum qr_round_state state = qr_round_written(round);

    if (state == QR_ROUND_READY)
        fill_and_commit(round);
    else if (state == QR_ROUND_STALLED) {
        round->next = round->mover->stalled;
        round->mover->stalled = round;
    }
}

static void commit_ended(struct qr_round *round)
{
    const enum qr_round_kind kind = round->kind;

    qr_names_settle(round);
    if (round->status == QUIRE_OK && kind != QR_ROUND_RECLAIM)
        qr_round_saved(round);
    if (round->status == QUIRE_OK && kind == QR_ROUND_DROP)
        qr_mover_going(round->mover, round->uuid);
    round_end(round, round->status);
}

/* ---- starting rounds ----------------------------------------------------------------------
 */

static enum qr_round_kind kind_of(struct qr_session *session)
{
    enum qr_round_kind kind = QR_ROUND_SAVE;

    pthread_mutex_lock(&session->lock);
    if (session->dead)
        kind = QR_ROUND_DROP;
    for (uint32_t i = 0;
         kind == QR_ROUND_SAVE && atomic_load(&session->loaded) && i < session->lane_count;
         i++) {
        if (session->lanes[i].saved.cut)
            kind = QR_ROUND_CUT;
    }
    pthread_mutex_unlock(&session->lock);
    return kind;
}

static void start_cut_or_drop(struct qr_round *round)
{
    quire_status status =
        round->kind == QR_ROUND_CUT ? qr_round_fill_cut(round) : qr_round_fill_drop(round);

    if (status == QUIRE_OK && round->batch.failed)
        status = QUIRE_ENOMEM;
    if (status == QUIRE_OK && round->batch.count > 0) {
        qr_round_commit(round);
        return;
    }
    round->status = status;
    qr_names_settle(round);
    round_end(round, status);
}

static void start_session(struct qr_mover *mover, struct qr_session *session)
{
    struct qr_round *round = round_take(mover, session);

    if (!round) {
        session_next(mover, session, UINT64_MAX, true, QUIRE_ENOMEM);
        qr_session_release(session);
        return;
    }
    round->kind = kind_of(session);
    pthread_mutex_lock(&mover->lock);
    round->covers = session->save.wanted;
    round->urgent = session->save.waiters != NULL;
    round->with_rows = round->urgent || qr_store_now_ms(session->store) >=
                                            atomic_load(&session->used_ms) + ROWS_IDLE_MS;
    pthread_mutex_unlock(&mover->lock);
    if (round->kind != QR_ROUND_SAVE) {
        round->whole = round->kind == QR_ROUND_DROP;
        start_cut_or_drop(round);
        return;
    }
    const quire_status status = qr_round_gather(round);
    if (status != QUIRE_OK) {
        round_end(round, status);
        return;
    }
    qr_round_write(round);
}

static void start_reclaim(struct qr_mover *mover)
{
    struct qr_round *round = round_take(mover, NULL);
    bool more = false;

    if (!round)
        return;
    round->kind = QR_ROUND_RECLAIM;
    mover->reclaiming = true;
    const quire_status status = qr_round_fill_reclaim(round, &more);
    if (status == QUIRE_OK && more && !round->batch.failed) {
        qr_round_commit(round);
        return;
    }
    round->status = status != QUIRE_OK ? status : more ? QUIRE_ENOMEM : QUIRE_OK;
    qr_names_settle(round);
    round_end(round, round->status);
}

/* ---- the thread ---------------------------------------------------------------------------
 */

/* The next session that has no round; lock held. */
static struct qr_session *take_session(struct qr_mover *mover)
{
    struct qr_session *session = mover->first;

    if (!session || mover->rounds >= ROUNDS_MAX)
        return NULL;
    mover->first = session->save.next;
    if (!mover->first)
        mover->last = NULL;
    session->save.queued = false;
    if (session->save.running) { /* it is queued again when its round ends */
        return session;
    }
    session->save.running = true;
    return session;
}

static bool wants_reclaim(const struct qr_mover *mover)
{
    return !mover->reclaiming && !mover->stopping && qr_clock_ns() >= mover->retry_ns &&
           (mover->going_count > 0 || mover->orphan_count > 0);
}

static void run_events(struct qr_mover *mover, struct qr_round *events)
{
    struct qr_round *stalled = mover->stalled;

    mover->stalled = NULL;
    while (events) {
        struct qr_round *round = events;
        events = round->next;
        if (round->committing)
            commit_ended(round);
        else
            writes_ended(round);
    }
    while (stalled) {
        struct qr_round *round = stalled;
        stalled = round->next;
        writes_ended(round);
    }
}

static void wait_for_work(struct qr_mover *mover)
{
    uint64_t until_ns = qr_clock_ns() + (mover->stalled ? STALLED_NS : IDLE_NS);
    if (atomic_load(&mover->pressed) && mover->relieve_ns < until_ns)
        until_ns = mover->relieve_ns;
    const struct timespec at = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                .tv_nsec = (long)(until_ns % 1000000000u)};

    (void)pthread_cond_timedwait(&mover->work, &mover->lock, &at);
}

static void start_one(struct qr_mover *mover, struct qr_session *session, bool running)
{
    if (!running) {
        start_session(mover, session);
        return;
    }
    /* Its round under way may not cover what it was queued for; the end looks at `wanted`. */
    qr_session_release(session);
}

static void *mover_main(void *arg)
{
    struct qr_mover *mover = arg;

    pthread_mutex_lock(&mover->lock);
    while (!mover->stopping || mover->rounds > 0) {
        struct qr_round *events = mover->events;
        mover->events = NULL;
        const bool was_running = mover->first && mover->first->save.running;
        struct qr_session *session = mover->stopping ? NULL : take_session(mover);
        const bool reclaim = wants_reclaim(mover);
        if (!events && !session && !reclaim)
            wait_for_work(mover);
        const bool relieve = !mover->stopping && qr_clock_ns() >= mover->relieve_ns;
        pthread_mutex_unlock(&mover->lock);
        if (relieve) {
            qr_mover_relieve(mover);
            mover->relieve_ns = qr_clock_ns() + RELIEVE_NS;
        }
        run_events(mover, events);
        if (session)
            start_one(mover, session, was_running);
        if (reclaim)
            start_reclaim(mover);
        pthread_mutex_lock(&mover->lock);
    }
    pthread_mutex_unlock(&mover->lock);
    return NULL;
}

quire_status qr_mover_start(struct qr_store *store, struct qr_error *e)
{
    struct qr_mover *mover = store->mover;

    if (pthread_create(&mover->thread, NULL, mover_main, mover))
        return qr_error_set(e, QUIRE_ENOMEM, "cannot start the disk's thread");
    mover->runs = true;
    return QUIRE_OK;
}

void qr_mover_stop(struct qr_store *store)
{
    struct qr_mover *mover = store->mover;

    if (!mover)
        return;
    pthread_mutex_lock(&mover->lock);
    mover->stopping = true;
    pthread_cond_signal(&mover->work);
    pthread_mutex_unlock(&mover->lock);
    if (mover->runs)
        pthread_join(mover->thread, NULL);
    mover->runs = false;
    while (mover->first) {
        struct qr_session *session = mover->first;
        mover->first = session->save.next;
        session->save.queued = false;
        tell(take_waiters(session, UINT64_MAX), QUIRE_EUNAVAILABLE);
        qr_session_release(session);
    }
    mover->last = NULL;
    while (mover->free) {
        struct qr_round *round = mover->free;
        mover->free = round->next;
        round_free(round);
    }
}
