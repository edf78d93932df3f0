/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions as their users see them: open, close, drop, touch, and the writer's lease.
 *
 * The lease: one writer at a time. Each taking has an epoch that no other had, also none of
 * another session or an earlier start of the server, and every mutation names the epoch it
 * belongs to, so that a writer that lost the lease is told so instead of writing. A
 * lease past its end may be taken by another writer; until somebody does, its holder goes on.
 * A writer of several processes shares one epoch: the others join what the first one took.
 */
#include "durable.h"

#include <inttypes.h>
#include <string.h>

void qr_session_used(struct qr_session *session)
{
    atomic_store(&session->used_ms, qr_store_now_ms(session->store));
    atomic_store(&session->idle_before_ms, 0);
}

quire_status qr_session_gone(struct qr_error *e, const char *name)
{
    return qr_error_set(e, QUIRE_ENOTFOUND,
                        "no session \"%s\": it was never created, or was "
                        "dropped or expired",
                        name);
}

static uint32_t saturate_ms(uint64_t ms)
{
    return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

static quire_status held(const struct qr_session *session, uint64_t now_ms, struct qr_error *e)
{
    const uint32_t left_ms =
        saturate_ms(session->lease_end_ms > now_ms ? session->lease_end_ms - now_ms : 0);

    qr_error_set(e, QUIRE_ELEASE,
                 "session \"%s\" is held by the writer of epoch %" PRIu64 " for %u ms more",
                 session->name, session->epoch, left_ms);
    if (e) {
        e->epoch = session->epoch;
        e->retry_after_ms = left_ms;
    }
    return QUIRE_ELEASE;
}

bool qr_session_lease_runs(const struct qr_session *session, uint64_t now_ms)
{
    return session->leased && now_ms < session->lease_end_ms;
}

quire_status qr_session_check_writer(struct qr_session *session, uint64_t epoch,
                                     struct qr_error *e)
{
    if (session->dead)
        return qr_session_gone(e, session->name);
    if (epoch != session->epoch || !session->leased) {
        qr_error_set(e, QUIRE_EFENCED,
                     "epoch %" PRIu64 " does not hold session \"%s\" (epoch now %" PRIu64
                     "%s): open it for writing again",
                     epoch, session->name, session->epoch,
                     session->leased ? ", held" : ", not held");
        if (e)
            e->epoch = session->epoch;
        return QUIRE_EFENCED;
    }
    session->lease_end_ms = qr_store_now_ms(session->store) + session->lease_ms;
    qr_session_hold_tail(session);
    return QUIRE_OK;
}

static quire_status take_lease(struct qr_session *session, const struct qr_session_open *open,
                               struct qr_error *e)
{
    const uint64_t now_ms = qr_store_now_ms(session->store);

    if (qr_session_lease_runs(session, now_ms) && !open->force)
        return held(session, now_ms, e);
    session->leased = true;
    session->epoch = atomic_fetch_add(&session->store->next_epoch, 1);
    session->lease_ms = open->lease_ms ? open->lease_ms : session->store->config.lease_ms;
    session->lease_end_ms = now_ms + session->lease_ms;
    qr_session_hold_tail(session);
    qr_counter_add(&session->store->counters.leases_taken, 1);
    return QUIRE_OK;
}

/* check_writer, with another duration of the lease from now on; 0: as it is. */
static quire_status renew_lease(struct qr_session *session, uint64_t epoch, uint32_t lease_ms,
                                struct qr_error *e)
{
    const uint32_t before_ms = session->lease_ms;

    if (lease_ms)
        session->lease_ms = lease_ms;
    const quire_status status = qr_session_check_writer(session, epoch, e);
    if (status != QUIRE_OK)
        session->lease_ms = before_ms;
    return status;
}

static quire_status check_same(const struct qr_session *session,
                               const struct qr_session_open *open, struct qr_error *e)
{
    if (open->must_create)
        return qr_error_set(e, QUIRE_EEXIST, "session \"%s\" exists", session->name);
    if (open->fingerprint &&
        memcmp(open->fingerprint, session->model->fingerprint, QR_HASH_BYTES) != 0)
        return qr_error_set(e, QUIRE_EMISMATCH,
                            "session \"%s\" is of model \"%s\", not of the model given",
                            session->name, session->model->name);
    if (open->policy && memcmp(open->policy, &session->policy, sizeof(*open->policy)) != 0)
        return qr_error_set(e, QUIRE_EEXIST,
                            "session \"%s\" exists with another encoding policy (page_tokens "
                            "%u, window %u, keys %u bits, values %u bits)",
                            session->name, session->policy.page_tokens, session->policy.window,
                            session->policy.key.bits, session->policy.value.bits);
    if (open->head_shards && open->head_shards != session->head_shards)
        return qr_error_set(e, QUIRE_EEXIST,
                            "session \"%s\" exists with %u head shards, not %u", session->name,
                            session->head_shards, open->head_shards);
    return QUIRE_OK;
}

static quire_status open_existing(struct qr_session *session,
                                  const struct qr_session_open *open, uint64_t *epoch_out,
                                  struct qr_error *e)
{
    quire_status status;

    pthread_mutex_lock(&session->lock);
    status = session->dead ? qr_session_gone(e, session->name) : check_same(session, open, e);
    if (status == QUIRE_OK && open->write)
        status = open->join_epoch ? renew_lease(session, open->join_epoch, open->lease_ms, e)
                                  : take_lease(session, open, e);
    *epoch_out = session->epoch;
    pthread_mutex_unlock(&session->lock);
    if (status != QUIRE_OK)
        return status;
    if (open->ttl_ms)
        atomic_store(&session->ttl_ms, open->ttl_ms);
    qr_session_used(session);
    return QUIRE_OK;
}

static quire_status create(struct qr_store *store, uint32_t ns,
                           const struct qr_session_open *open, struct qr_session **out,
                           uint64_t *epoch_out, struct qr_error *e)
{
    struct qr_policy policy;
    qr_policy_default(&policy);
    struct qr_session_shape shape = {.ns = ns,
                                     .head_shards = open->head_shards ? open->head_shards : 1,
                                     .name = open->name,
                                     .policy = open->policy ? open->policy : &policy};
    struct qr_session *session;

    if (!open->fingerprint)
        return qr_error_set(e, QUIRE_EINVAL,
                            "creating session \"%s\" needs the fingerprint of a model",
                            open->name);
    quire_status status = qr_store_model_get(store, open->fingerprint, &shape.model, e);
    if (status == QUIRE_OK)
        status = qr_session_make(store, &shape, &session, e);
    if (status != QUIRE_OK)
        return status;
    atomic_store(&session->ttl_ms, open->ttl_ms ? open->ttl_ms : store->config.ttl_ms);
    qr_session_used(session);
    if (open->write)
        (void)take_lease(session, open, NULL); /* nobody else can hold it yet */
    *epoch_out = session->epoch; /* once in the table, another writer may raise it */
    status = qr_session_table_add(session, e);
    if (status != QUIRE_OK) {
        qr_session_release(session);
        return status;
    }
    qr_counter_add(&store->counters.sessions_created, 1);
    *out = session;
    return QUIRE_OK;
}

/* No writer of a later start may get an epoch again that one of this had. The record is ahead,
 * so this seldom waits. */
static quire_status save_epoch(struct qr_session *session, uint64_t epoch, struct qr_error *e)
{
    if (!session->store->mover)
        return QUIRE_OK;
    pthread_mutex_lock(&session->lock);
    const bool saved = !session->save.stored || epoch <= session->save.epoch;
    pthread_mutex_unlock(&session->lock);
    if (saved)
        return QUIRE_OK;
    const quire_status status = qr_durable_wait(session);
    return status == QUIRE_OK
               ? status
               : qr_error_set(e, status,
                              "session \"%s\": its new epoch could not be written "
                              "to disk: %s",
                              session->name, qr_status_text(status));
}

/* One try: another caller may create or drop the session between the look-up and ours. */
static quire_status open_once(struct qr_store *store, uint32_t ns,
                              const struct qr_session_open *open, struct qr_session_info *out,
                              struct qr_error *e)
{
    struct qr_session *session = qr_session_acquire_name(store, ns, open->name);
    const bool created = !session;
    uint64_t epoch = 0;
    quire_status status;

    if (session)
        status = qr_session_load(session, e);
    if (session && status == QUIRE_OK)
        status = open_existing(session, open, &epoch, e);
    else if (session)
        ; /* it cannot be used now */
    else if (open->create && open->join_epoch == 0)
        status = create(store, ns, open, &session, &epoch, e);
    else
        status = qr_session_gone(e, open->name);
    if (status == QUIRE_OK && open->write)
        status = save_epoch(session, epoch, e);
    if (status == QUIRE_OK)
        status = qr_session_describe(session, out, e);
    if (status == QUIRE_OK)
        out->created = created;
    if (status == QUIRE_OK && open->write)
        out->epoch = epoch;
    if (session)
        qr_session_release(session);
    return status;
}

quire_status qr_session_open(struct qr_store *store, uint32_t ns,
                             const struct qr_session_open *open, struct qr_session_info *out,
                             struct qr_error *e)
{
    quire_status status = QUIRE_OK;

    if (!qr_store_namespace_of(store, ns))
        return qr_error_set(e, QUIRE_EPERM, "namespace %u does not exist", ns);
    if (!open->name)
        return qr_error_set(e, QUIRE_EINVAL, "session name is missing");
    if (open->join_epoch && (!open->write || open->force || open->must_create))
        return qr_error_set(e, QUIRE_EINVAL,
                            "joining epoch %" PRIu64 " needs write, and neither force nor "
                            "must_create",
                            open->join_epoch);
    for (int i = 0; i < 8; i++) {
        status = open_once(store, ns, open, out, e);
        const bool raced =
            (status == QUIRE_EEXIST && open->create && !open->must_create && i == 0) ||
            (status == QUIRE_ENOTFOUND && open->create && open->fingerprint &&
             open->join_epoch == 0);
        if (!raced)
            break;
    }
    return status;
}

void qr_session_close(struct qr_store *store, uint32_t ns, uint64_t handle, uint64_t epoch)
{
    struct qr_session *session;

    if (qr_session_acquire(store, ns, handle, &session, NULL) != QUIRE_OK)
        return;
    pthread_mutex_lock(&session->lock);
    if (session->leased && session->epoch == epoch)
        session->leased = false;
    pthread_mutex_unlock(&session->lock);
    qr_session_used(session);
    qr_session_rest(session);
    qr_session_release(session);
}

quire_status qr_session_drop(struct qr_store *store, uint32_t ns, const char *name, bool force,
                             struct qr_error *e)
{
    struct qr_session *session = qr_session_acquire_name(store, ns, name);
    quire_status status = QUIRE_OK;

    if (!session)
        return qr_session_gone(e, name);
    pthread_mutex_lock(&session->write_lock);
    pthread_mutex_lock(&session->lock);
    const uint64_t now_ms = qr_store_now_ms(store);
    if (session->dead)
        status = qr_session_gone(e, name);
    else if (qr_session_lease_runs(session, now_ms) && !force)
        status = held(session, now_ms, e);
    else
        qr_session_empty(session);
    pthread_mutex_unlock(&session->lock);
    pthread_mutex_unlock(&session->write_lock);
    if (status == QUIRE_OK) {
        qr_session_table_remove(session);
        qr_counter_add(&store->counters.sessions_dropped, 1);
    }
    if (status == QUIRE_OK && store->mover && (status = qr_durable_wait(session)) != QUIRE_OK)
        (void)qr_error_set(e, status,
                           "session \"%s\" is gone, but the disk could not note it: it may be "
                           "back after a restart (%s)",
                           name, qr_status_text(status));
    qr_session_release(session);
    return status;
}

quire_status qr_session_touch(struct qr_store *store, uint32_t ns, uint64_t handle,
                              uint64_t epoch, uint64_t ttl_ms, uint32_t lease_ms,
                              struct qr_session_info *out, struct qr_error *e)
{
    struct qr_session *session;
    quire_status status = qr_session_acquire(store, ns, handle, &session, e);

    if (status != QUIRE_OK)
        return status;
    if (epoch != 0) {
        pthread_mutex_lock(&session->lock);
        status = renew_lease(session, epoch, lease_ms, e);
        pthread_mutex_unlock(&session->lock);
    }
    if (status == QUIRE_OK) {
        if (ttl_ms)
            atomic_store(&session->ttl_ms, ttl_ms);
        qr_session_used(session);
        status = qr_session_describe(session, out, e);
    }
    qr_session_release(session);
    return status;
}
