/* SPDX-License-Identifier: Apache-2.0
 *
 * Flush: what sessions have now is made durable, and the caller waits.
 */
#include <string.h>

#include "durable.h"

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
                 qr_status_text(status));
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
