/* SPDX-License-Identifier: Apache-2.0
 *
 * Who is there: sessions by handle and by name, and their reference counts.
 *
 * Invariants, under table_lock: `sorted` is ascending by (namespace, name); a session is in it
 * exactly when it has a slot; the table holds one reference to it.
 */
#include "durable.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#define DISK_HIGH 0.95      /* of the caps: sessions are dropped above, where that is allowed */
#define DROPS_A_TICK 64u    /* sessions looked at; a quarter of them go at most */
#define SPACE_IDLE_MS 1000u /* a session used since does not go */

static int compare(const struct qr_session *session, uint32_t ns, const char *name)
{
    if (session->ns != ns)
        return session->ns < ns ? -1 : 1;
    return strcmp(session->name, name);
}

/* First place in `sorted` that is not below (ns, name). */
static uint32_t place_of(const struct qr_store *store, uint32_t ns, const char *name)
{
    uint32_t low = 0, high = store->session_count;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (compare(store->sorted[middle], ns, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

quire_status qr_session_acquire(struct qr_store *store, uint32_t ns, uint64_t handle,
                                struct qr_session **out, struct qr_error *e)
{
    const uint64_t slot = handle & ((1u << QR_SESSION_SLOT_BITS) - 1);
    struct qr_session *session = NULL;

    pthread_mutex_lock(&store->table_lock);
    if (slot < store->config.sessions_max && store->slots[slot].handle == handle &&
        store->slots[slot].session && store->slots[slot].session->ns == ns) {
        session = store->slots[slot].session;
        atomic_fetch_add(&session->refs, 1);
    }
    pthread_mutex_unlock(&store->table_lock);
    if (!session)
        return qr_error_set(e, QUIRE_ENOTFOUND,
                            "no session with handle %" PRIu64 ": it was dropped, expired, or "
                            "belongs to an earlier start of the server; open it by name",
                            handle);
    *out = session;
    return QUIRE_OK;
}

struct qr_session *qr_session_acquire_name(struct qr_store *store, uint32_t ns,
                                           const char *name)
{
    struct qr_session *session = NULL;

    pthread_mutex_lock(&store->table_lock);
    const uint32_t place = place_of(store, ns, name);
    if (place < store->session_count && compare(store->sorted[place], ns, name) == 0) {
        session = store->sorted[place];
        atomic_fetch_add(&session->refs, 1);
    }
    pthread_mutex_unlock(&store->table_lock);
    return session;
}

void qr_session_release(struct qr_session *session)
{
    if (atomic_fetch_sub(&session->refs, 1) == 1)
        qr_session_free(session);
}

quire_status qr_session_table_add(struct qr_session *session, struct qr_error *e)
{
    struct qr_store *store = session->store;
    quire_status status = QUIRE_OK;

    pthread_mutex_lock(&store->table_lock);
    const uint32_t place = place_of(store, session->ns, session->name);
    if (place < store->session_count &&
        compare(store->sorted[place], session->ns, session->name) == 0) {
        status = qr_error_set(e, QUIRE_EEXIST, "session \"%s\" exists", session->name);
    } else if (store->free_slot_count == 0) {
        status =
            qr_error_set(e, QUIRE_EFULL, "%u sessions exist: drop some, or raise sessions_max",
                         store->session_count);
    } else {
        const uint32_t slot = store->free_slots[--store->free_slot_count];
        session->handle = store->sequence++ << QR_SESSION_SLOT_BITS | slot;
        store->slots[slot] =
            (struct qr_session_slot){.session = session, .handle = session->handle};
        memmove(&store->sorted[place + 1], &store->sorted[place],
                (store->session_count - place) * sizeof(struct qr_session *));
        store->sorted[place] = session;
        store->session_count++;
        atomic_fetch_add(&session->refs, 1);
    }
    pthread_mutex_unlock(&store->table_lock);
    return status;
}

void qr_session_table_remove(struct qr_session *session)
{
    struct qr_store *store = session->store;
    bool found = false;

    pthread_mutex_lock(&store->table_lock);
    const uint32_t place = place_of(store, session->ns, session->name);
    if (place < store->session_count && store->sorted[place] == session) {
        const uint32_t slot = (uint32_t)(session->handle & ((1u << QR_SESSION_SLOT_BITS) - 1));
        store->slots[slot] = (struct qr_session_slot){0};
        store->free_slots[store->free_slot_count++] = slot;
        store->session_count--;
        memmove(&store->sorted[place], &store->sorted[place + 1],
                (store->session_count - place) * sizeof(struct qr_session *));
        found = true;
    }
    pthread_mutex_unlock(&store->table_lock);
    if (found)
        qr_session_release(session);
}

struct qr_session *qr_session_acquire_next(struct qr_store *store, uint32_t ns,
                                           const char *prefix, const char *after)
{
    struct qr_session *session = NULL;

    pthread_mutex_lock(&store->table_lock);
    uint32_t place = place_of(store, ns, strcmp(after, prefix) > 0 ? after : prefix);
    while (place < store->session_count && store->sorted[place]->ns == ns &&
           strcmp(store->sorted[place]->name, after) <= 0)
        place++;
    if (place < store->session_count && store->sorted[place]->ns == ns &&
        strncmp(store->sorted[place]->name, prefix, strlen(prefix)) == 0) {
        session = store->sorted[place];
        atomic_fetch_add(&session->refs, 1);
    }
    pthread_mutex_unlock(&store->table_lock);
    return session;
}

quire_status qr_session_list(struct qr_store *store, uint32_t ns, const char *prefix,
                             const char *after, struct qr_session_info *out, size_t capacity,
                             size_t *count_out, bool *more_out)
{
    char last[QR_NAME_MAX + 1] = "";
    struct qr_session *session;
    size_t count = 0;

    if (after)
        strncpy(last, after, QR_NAME_MAX);
    while ((session = qr_session_acquire_next(store, ns, prefix ? prefix : "", last)) != NULL &&
           count < capacity) {
        memcpy(last, session->name, sizeof(last));
        if (qr_session_describe(session, &out[count], NULL) == QUIRE_OK)
            count++;
        qr_session_release(session);
    }
    *more_out = session != NULL;
    if (session)
        qr_session_release(session);
    *count_out = count;
    return QUIRE_OK;
}

struct qr_session *qr_session_acquire_at(struct qr_store *store, uint32_t place)
{
    struct qr_session *session = NULL;

    pthread_mutex_lock(&store->table_lock);
    if (place < store->session_count) {
        session = store->sorted[place];
        atomic_fetch_add(&session->refs, 1);
    }
    pthread_mutex_unlock(&store->table_lock);
    return session;
}

/* `used_ms` may be younger than `now_ms`: sessions are used while the tick walks over them. */
static bool outlived(const struct qr_session *session, uint64_t now_ms)
{
    const uint64_t used_ms = atomic_load(&session->used_ms);

    const uint64_t before_ms = atomic_load(&session->idle_before_ms);

    return now_ms > used_ms && now_ms - used_ms + before_ms >= atomic_load(&session->ttl_ms);
}

/* Dropped when unused for its time to live, not leased, and nobody uses it now. */
static bool expire(struct qr_session *session, uint64_t now_ms)
{
    bool expired = false;

    if (!outlived(session, now_ms))
        return false;
    pthread_mutex_lock(&session->write_lock);
    pthread_mutex_lock(&session->lock);
    if (session->leased && now_ms >= session->lease_end_ms)
        session->leased = false;
    if (!session->leased && !session->dead && outlived(session, now_ms)) {
        qr_session_empty(session);
        expired = true;
    }
    pthread_mutex_unlock(&session->lock);
    pthread_mutex_unlock(&session->write_lock);
    return expired;
}

/* The record on disk says when the session was last used; it may be an eighth of the time to
 * live late. */
static bool wants_note(struct qr_session *session, uint64_t now_ms)
{
    const uint64_t used_ms = atomic_load(&session->used_ms);

    pthread_mutex_lock(&session->lock);
    const bool wants = session->save.stored && used_ms > session->save.used_ms &&
                       now_ms - session->save.used_ms > atomic_load(&session->ttl_ms) / 8 &&
                       used_ms - session->save.used_ms > QR_NOTE_MS;
    pthread_mutex_unlock(&session->lock);
    return wants;
}

/* Without a writer and unused for a moment: drop it as if its time to live had passed. */
static bool drop_for_space(struct qr_session *session, uint64_t now_ms)
{
    bool dropped = false;

    pthread_mutex_lock(&session->write_lock);
    pthread_mutex_lock(&session->lock);
    if (session->leased && now_ms >= session->lease_end_ms)
        session->leased = false;
    if (!session->leased && !session->dead && session->save.stored &&
        now_ms > atomic_load(&session->used_ms) + SPACE_IDLE_MS) {
        qr_session_empty(session);
        dropped = true;
    }
    pthread_mutex_unlock(&session->lock);
    pthread_mutex_unlock(&session->write_lock);
    return dropped;
}

/* Above the mark, or somebody found no slot since the last tick (sizes may not fit each other's
 * regions). */
static bool disk_is_full(struct qr_store *store)
{
    struct qr_tier *disk = qr_disk_tier(store->disk);
    struct qr_tier_stat stat;

    disk->ops->stat(disk, &stat);
    const bool refused = stat.failures != store->disk_failures_seen;
    store->disk_failures_seen = stat.failures;
    return refused || (double)stat.reserved_bytes > DISK_HIGH * (double)stat.budget_bytes;
}

static struct qr_session *longest_unused(struct qr_store *store)
{
    struct qr_session *session, *found = NULL;

    for (uint32_t place = 0; (session = qr_session_acquire_at(store, place)) != NULL; place++) {
        const bool older =
            session->save.stored && !session->passed_over &&
            (!found || atomic_load(&session->used_ms) < atomic_load(&found->used_ms));
        struct qr_session *loser = older ? found : session;
        if (older)
            found = session;
        if (loser)
            qr_session_release(loser);
    }
    return found;
}

/* Slots are free a little later, in the background, so only a few sessions a tick. */
static uint32_t make_disk_room(struct qr_store *store, uint64_t now_ms)
{
    uint32_t dropped = 0;

    if (!store->drop_when_full || !disk_is_full(store))
        return 0;
    for (uint32_t i = 0; i < DROPS_A_TICK && dropped < DROPS_A_TICK / 4; i++) {
        struct qr_session *session = longest_unused(store);
        if (!session)
            break;
        if (drop_for_space(session, now_ms)) {
            qr_durable_want(session, NULL);
            qr_session_table_remove(session);
            qr_counter_add(&store->counters.disk_sessions_dropped, 1);
            dropped++;
        } else {
            session->passed_over = true;
        }
        qr_session_release(session);
    }
    struct qr_session *session;
    for (uint32_t place = 0; (session = qr_session_acquire_at(store, place)) != NULL; place++) {
        session->passed_over = false;
        qr_session_release(session);
    }
    return dropped;
}

uint32_t qr_store_tick(struct qr_store *store)
{
    const uint64_t now_ms = qr_store_now_ms(store);
    struct qr_session *session;
    uint32_t dropped = store->mover ? make_disk_room(store, now_ms) : 0;

    for (uint32_t place = 0; (session = qr_session_acquire_at(store, place)) != NULL; place++) {
        qr_session_rest(session);
        if (expire(session, now_ms)) {
            if (store->mover)
                qr_durable_want(session, NULL);
            qr_session_table_remove(session);
            qr_counter_add(&store->counters.sessions_expired, 1);
            dropped++;
            place--; /* the next one moved here; 0 wraps back to 0 */
        } else if (store->mover && wants_note(session, now_ms))
            qr_durable_want(session, NULL);
        qr_session_release(session);
    }
    return dropped;
}
