/* SPDX-License-Identifier: Apache-2.0
 *
 * Fork and truncate: manifests are copied or cut, bytes are not touched. A page
 * cannot be cut, so both stop at block borders below what is sealed.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "durable.h"
#include "storage/base/random.h"

/* Lanes seal at their own pace: the first length from which no page is in the way. */
static uint64_t free_from(const struct qr_session *session)
{
    uint64_t tokens = 0;

    for (uint32_t i = 0; i < session->lane_count; i++)
        tokens = qr_max_u64(tokens, (uint64_t)session->lanes[i].sealed);
    return tokens * session->policy.page_tokens;
}

/* Every lane that is longer must have a border at `length`; `end` is the most it may be. */
static quire_status check_cut(const struct qr_session *session, uint64_t length, uint64_t end,
                              struct qr_error *e)
{
    const uint32_t page_tokens = session->policy.page_tokens;
    const uint64_t below = length / page_tokens * page_tokens, above = below + page_tokens;
    const uint64_t free = free_from(session);
    char more[80] = "";

    if (length >= free || length == below)
        return QUIRE_OK;
    if (above <= end && free <= end && free > above)
        snprintf(more, sizeof(more), ", %" PRIu64 ", or %" PRIu64 " to %" PRIu64, above, free,
                 end);
    else if (above <= end && free <= end)
        snprintf(more, sizeof(more), ", or %" PRIu64 " to %" PRIu64, above, end);
    else if (above <= end)
        snprintf(more, sizeof(more), " or %" PRIu64, above);
    return qr_error_set(e, QUIRE_EINVAL,
                        "length %" PRIu64
                        " is inside a sealed page, whose rows are no longer FP16: use %" PRIu64
                        "%s",
                        length, below, more);
}

static quire_status past_end(const struct qr_session *session, uint64_t length, uint64_t end,
                             struct qr_error *e)
{
    qr_error_set(e, QUIRE_ERANGE, "length %" PRIu64 ": session \"%s\" has %" PRIu64 " tokens",
                 length, session->name, end);
    if (e)
        e->length = end;
    return QUIRE_ERANGE;
}

static uint32_t blocks_up(const struct qr_session *session, uint64_t length)
{
    const uint32_t page_tokens = session->policy.page_tokens;
    return (uint32_t)((length + page_tokens - 1) / page_tokens);
}

/* ---- fork -------------------------------------------------------------------------------- */

static quire_status fork_lane(struct qr_session *to, struct qr_lane *lane,
                              const struct qr_lane *from, uint64_t length, struct qr_error *e)
{
    const uint32_t whole = (uint32_t)(length / to->policy.page_tokens);
    const uint32_t sealed = from->sealed < whole ? from->sealed : whole;
    quire_status status = qr_lane_grow(to, lane, sealed, e);

    if (status != QUIRE_OK)
        return status;
    if (sealed > 0)
        memcpy(lane->pages, from->pages, sealed * sizeof(uint32_t));
    qr_index_ref(to->store->index, lane->pages, sealed);
    lane->sealed = sealed;
    lane->length = length;
    for (uint32_t block = sealed; block < blocks_up(to, length); block++) {
        struct qr_chunk *chunk = from->tail[block - from->sealed];
        qr_chunk_own(chunk);
        lane->tail[lane->tail_count++] = chunk;
    }
    return QUIRE_OK;
}

/* Nobody else sees `to` yet; `from` stands still under its write_lock. */
static quire_status fork_contents(struct qr_session *from, struct qr_session *to,
                                  uint64_t length, struct qr_error *e)
{
    uint32_t sealed = 0;
    quire_status status = QUIRE_OK;

    for (uint32_t i = 0; i < from->lane_count && status == QUIRE_OK; i++) {
        status = fork_lane(to, &to->lanes[i], &from->lanes[i], length, e);
        if (to->lanes[i].sealed > sealed)
            sealed = to->lanes[i].sealed;
    }
    if (status == QUIRE_OK)
        status = qr_blocks_copy(&from->blocks, sealed, length, &to->blocks, e);
    return status;
}

/* All committed tokens, or whole blocks of them where a longer lane has sealed the last one. */
static uint64_t most_to_fork(const struct qr_session *from, uint64_t committed)
{
    if (check_cut(from, committed, committed, NULL) == QUIRE_OK)
        return committed;
    return committed / from->policy.page_tokens * from->policy.page_tokens;
}

static quire_status fork_session(struct qr_session *from, const char *name, uint64_t length,
                                 struct qr_session **out, struct qr_error *e)
{
    const struct qr_session_shape shape = {.ns = from->ns,
                                           .head_shards = from->head_shards,
                                           .name = name,
                                           .model = from->model,
                                           .policy = &from->policy};
    struct qr_session *to = NULL;
    quire_status status = QUIRE_OK;

    pthread_mutex_lock(&from->write_lock);
    const uint64_t committed = qr_session_length(from, NULL);
    if (length == 0)
        length = most_to_fork(from, committed);
    if (from->dead)
        status = qr_session_gone(e, from->name);
    else if (length > committed)
        status = past_end(from, length, committed, e);
    else
        status = check_cut(from, length, committed, e);
    if (status == QUIRE_OK)
        status = qr_session_make(from->store, &shape, &to, e);
    if (status == QUIRE_OK)
        status = fork_contents(from, to, length, e);
    pthread_mutex_unlock(&from->write_lock);
    if (status == QUIRE_OK)
        *out = to;
    else if (to)
        qr_session_release(to);
    return status;
}

/* A fork of a session on disk is on disk. */
static quire_status save_fork(struct qr_session *to, struct qr_error *e)
{
    const quire_status status = qr_durable_wait(to);

    if (status == QUIRE_OK)
        return status;
    return qr_error_set(e, status, "fork \"%s\" is in memory, but not on disk: %s", to->name,
                        qr_disk_why(status));
}

quire_status qr_session_fork(struct qr_store *store, uint32_t ns, const char *from_name,
                             const char *to_name, uint64_t length, uint64_t ttl_ms,
                             struct qr_session_info *out, struct qr_error *e)
{
    struct qr_session *from = qr_session_acquire_name(store, ns, from_name);
    struct qr_session *to = NULL;

    if (!from)
        return qr_session_gone(e, from_name);
    quire_status status = qr_session_load(from, e);
    if (status == QUIRE_OK)
        status = fork_session(from, to_name, length, &to, e);
    const uint64_t inherited_ms = atomic_load(&from->ttl_ms);
    pthread_mutex_lock(&from->lock);
    const bool durable = from->save.stored;
    pthread_mutex_unlock(&from->lock);
    qr_session_used(from);
    qr_session_release(from);
    if (status != QUIRE_OK)
        return status;
    atomic_store(&to->ttl_ms, ttl_ms ? ttl_ms : inherited_ms);
    qr_session_used(to);
    status = qr_session_table_add(to, e);
    if (status == QUIRE_OK)
        qr_counter_add(&store->counters.sessions_created, 1);
    if (status == QUIRE_OK && durable)
        status = save_fork(to, e);
    if (status == QUIRE_OK)
        status = qr_session_describe(to, out, e);
    if (status == QUIRE_OK)
        out->created = true;
    qr_session_release(to);
    return status;
}

/* ---- truncate ---------------------------------------------------------------------------- */

static void cut_lane(struct qr_session *session, struct qr_lane *lane, uint64_t length)
{
    const uint32_t whole = (uint32_t)(length / session->policy.page_tokens);
    const uint32_t old_sealed = lane->sealed;

    if (lane->length <= length)
        return;
    lane->saved.cut_to = lane->saved.cut ? qr_min_u64(lane->saved.cut_to, length) : length;
    lane->saved.cut = session->store->mover != NULL;
    if (old_sealed > whole) {
        qr_index_unref(session->store->index, lane->pages + whole, old_sealed - whole);
        lane->sealed = whole;
    }
    const uint32_t end = blocks_up(session, length);
    const uint32_t kept = end > old_sealed ? end - old_sealed : 0;
    while (lane->tail_count > kept)
        qr_lane_disown(session, lane->tail[--lane->tail_count]);
    lane->length = length;
}

static quire_status cut(struct qr_session *session, uint64_t length, const uint8_t uuid[16],
                        struct qr_error *e)
{
    uint64_t longest;
    uint32_t sealed = 0;

    (void)qr_session_length(session, &longest);
    if (length > longest)
        return past_end(session, length, longest, e);
    quire_status status = check_cut(session, length, longest, e);
    if (status != QUIRE_OK)
        return status;
    qr_reading_cut(session, length);
    for (uint32_t i = 0; i < session->lane_count; i++) {
        cut_lane(session, &session->lanes[i], length);
        if (session->lanes[i].sealed > sealed)
            sealed = session->lanes[i].sealed;
    }
    qr_blocks_cut(&session->blocks, sealed, length, uuid);
    if (sealed < session->save.cut_blocks)
        session->save.cut_blocks = sealed;
    return QUIRE_OK;
}

quire_status qr_session_truncate(struct qr_store *store, uint32_t ns, uint64_t handle,
                                 uint64_t epoch, uint64_t length, struct qr_session_info *out,
                                 struct qr_error *e)
{
    struct qr_session *session;
    uint8_t uuid[16];
    quire_status status = qr_random_fill(uuid, sizeof(uuid), e);

    if (status == QUIRE_OK)
        status = qr_session_acquire(store, ns, handle, &session, e);
    if (status != QUIRE_OK)
        return status;
    status = qr_session_load(session, e);
    pthread_mutex_lock(&session->write_lock);
    pthread_mutex_lock(&session->lock);
    if (status == QUIRE_OK)
        status = qr_session_check_writer(session, epoch, e);
    if (status == QUIRE_OK)
        status = cut(session, length, uuid, e);
    const bool durable = session->store->mover && qr_durable_is(session);
    pthread_mutex_unlock(&session->lock);
    if (status == QUIRE_OK)
        qr_session_unkeep(session);
    pthread_mutex_unlock(&session->write_lock);
    qr_session_used(session);
    if (status == QUIRE_OK && durable && (status = qr_durable_wait(session)) != QUIRE_OK)
        (void)qr_error_set(e, status,
                           "session \"%s\" is cut, but the disk could not note it: %s",
                           session->name, qr_disk_why(status));
    if (status == QUIRE_OK)
        status = qr_session_describe(session, out, e);
    qr_session_release(session);
    return status;
}
