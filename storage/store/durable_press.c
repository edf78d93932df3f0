/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pressure, on the mover's thread: pages that only memory has are written
 * back before they fill it, and sessions that nobody uses leave it, their tails
 * with them, since the disk has all of them.
 *
 * Marks, in shares of the host budget: write-back starts at 1/4 of dirty pages, and idle
 * sessions go when tails take 1/2, or metadata 7/8 of its limit, or when somebody found no room
 * at all.
 */
#include <stdlib.h>

#include "durable.h"
#include "storage/base/log.h"

#define DIRTY_SHARE 4u
#define TAIL_SHARE 2u
#define META_SHARE 8u
#define IDLE_MS 1000u /* a session used since is not unloaded */

void qr_mover_press(struct qr_store *store)
{
    if (store->mover)
        atomic_store(&store->mover->pressed, true);
}

bool qr_mover_wants_write_back(struct qr_store *store)
{
    return store->mover &&
           qr_index_dirty_bytes(store->index) > store->config.host_budget_bytes / DIRTY_SHARE;
}

/* ---- write-back ---------------------------------------------------------------------------
 */

static void write_back(struct qr_mover *mover)
{
    struct qr_store *store = mover->store;
    struct qr_session *session;

    for (uint32_t place = 0; (session = qr_session_acquire_at(store, place)) != NULL; place++) {
        if (atomic_load(&session->unsaved))
            qr_durable_want(session, NULL);
        qr_session_release(session);
    }
}

/* ---- unloading ----------------------------------------------------------------------------
 */

static bool lanes_are_saved(const struct qr_session *session)
{
    for (uint32_t i = 0; i < session->lane_count; i++) {
        const struct qr_lane *lane = &session->lanes[i];
        if (lane->saved.sealed != lane->sealed || lane->saved.length != lane->length ||
            lane->saved.changed != UINT32_MAX || lane->saved.cut)
            return false;
    }
    return true;
}

/* What lists say of it until it is loaded again. */
static void keep_summary(struct qr_session *session)
{
    struct qr_session_info info;

    qr_session_fill_info(session, &info);
    session->save.length = info.length;
    session->save.longest = info.longest;
    session->save.sealed_tokens = info.sealed;
    session->save.pages = info.pages;
    session->save.missing_pages = info.missing_pages;
    session->save.page_bytes = info.page_bytes;
}

/* Nobody has it but the table and the caller: whoever takes it from now on finds it not loaded.
 * References are taken under the table's lock. */
static bool close_door(struct qr_session *session)
{
    struct qr_store *store = session->store;

    pthread_mutex_lock(&store->table_lock);
    const bool alone = atomic_load(&session->refs) == 2;
    if (alone)
        atomic_store(&session->loaded, false);
    pthread_mutex_unlock(&store->table_lock);
    return alone;
}

/* Nobody has it but the table and the caller, and the disk has all of it. */
static bool unload(struct qr_session *session)
{
    struct qr_mover *mover = session->store->mover;
    bool done = false;

    if (pthread_mutex_trylock(&session->write_lock) != 0)
        return false;
    pthread_mutex_lock(&session->lock);
    pthread_mutex_lock(&mover->lock);
    const bool busy = session->save.running || session->save.queued ||
                      session->blocks.claimed > session->blocks.fixed; /* not on disk */
    pthread_mutex_unlock(&mover->lock);
    if (!busy && !session->dead && atomic_load(&session->loaded) && session->save.stored &&
        lanes_are_saved(session)) {
        keep_summary(session);
        done = close_door(session);
    }
    if (done)
        qr_session_unload(session);
    pthread_mutex_unlock(&session->lock);
    pthread_mutex_unlock(&session->write_lock);
    return done;
}

struct candidate {
    struct qr_session *session; /* a reference */
    uint64_t used_ms;
};

static int compare_used(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->used_ms < y->used_ms ? -1 : x->used_ms > y->used_ms;
}

static uint32_t collect(struct qr_store *store, struct candidate *out, uint32_t capacity)
{
    const uint64_t now_ms = qr_store_now_ms(store);
    struct qr_session *session;
    uint32_t count = 0;

    for (uint32_t place = 0; (session = qr_session_acquire_at(store, place)) != NULL; place++) {
        const uint64_t used_ms = atomic_load(&session->used_ms);
        if (count < capacity && atomic_load(&session->loaded) && now_ms >= used_ms + IDLE_MS)
            out[count++] = (struct candidate){.session = session, .used_ms = used_ms};
        else
            qr_session_release(session);
    }
    return count;
}

static bool is_tight(struct qr_store *store)
{
    const uint64_t meta = atomic_load(&store->meta.used_bytes);

    return qr_index_chunk_bytes(store->index) > store->config.host_budget_bytes / TAIL_SHARE ||
           meta > store->meta.limit_bytes - store->meta.limit_bytes / META_SHARE;
}

/* The longest unused first, until there is room again; all that may go when `pressed`: nothing
 * else could be evicted. */
static void unload_idle(struct qr_mover *mover, bool pressed)
{
    struct qr_store *store = mover->store;
    const uint32_t capacity = store->config.sessions_max;
    struct candidate *list = malloc(capacity * sizeof(*list));
    uint32_t unloaded = 0;

    if (!list)
        return;
    const uint32_t count = collect(store, list, capacity);
    qsort(list, count, sizeof(*list), compare_used);
    for (uint32_t i = 0; i < count; i++) {
        if ((is_tight(store) || (pressed && unloaded < count / 2 + 1)) &&
            unload(list[i].session))
            unloaded++;
        qr_session_release(list[i].session);
    }
    free(list);
    qr_counter_add(&store->counters.sessions_unloaded, unloaded);
}

void qr_mover_relieve(struct qr_mover *mover)
{
    struct qr_store *store = mover->store;
    const bool pressed = atomic_exchange(&mover->pressed, false);

    if (pressed || qr_mover_wants_write_back(store))
        write_back(mover);
    if (pressed || is_tight(store)) {
        if (!pressed)
            write_back(mover); /* so that they can go the next time */
        unload_idle(mover, pressed);
    }
}
