/* SPDX-License-Identifier: Apache-2.0
 *
 * Replies that are held back: the handler has packed its reply, and somebody else says when it
 * may go, from any thread. The connection's thread sends them, in the order of their requests.
 * See local_impl.h.
 */
#include "local_impl.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

static struct qr_local_hold *first(struct qr_local_conn *conn)
{
    return &conn->holds[conn->hold_first];
}

static bool is_released(struct qr_local_hold *hold)
{
    return atomic_load_explicit(&hold->parties, memory_order_acquire) == 0;
}

/* Any thread. The connection may be gone as soon as the last party has left. */
static void release(struct qr_hold *base, const struct qr_error *e)
{
    struct qr_local_hold *hold = (struct qr_local_hold *)base; /* its first member */
    const int poke = hold->conn->thread->poke.fd;
    const uint64_t one = 1;

    if (e)
        hold->error = *e;
    if (atomic_fetch_sub_explicit(&hold->parties, 1, memory_order_acq_rel) == 1)
        (void)!write(poke, &one, sizeof(one));
}

bool qr_local_may_hold(const struct qr_local_conn *conn)
{
    return conn->hold_count < QR_LOCAL_HOLDS_MAX;
}

/* Of the reply that is first in line. */
static void send_first(struct qr_local_conn *conn)
{
    struct qr_local_hold *hold = first(conn);
    struct qr_local_call *call = &conn->calls[hold->id];
    const bool current = call->method && call->serial == hold->serial;

    conn->hold_first = (conn->hold_first + 1) % QR_LOCAL_HOLDS_MAX;
    conn->hold_count--;
    if (!current) /* cancelled, or ended by an earlier error */
        return;
    call->held--;
    const bool last = call->method->kind == QR_METHOD_UNARY;
    if (hold->error.status || last)
        qr_local_drop_call(conn, call);
    if (hold->error.status)
        qr_local_end_call(conn, hold->id, &hold->error);
    else
        qr_local_reply(conn, hold->id, hold->reply, hold->reply_bytes, last);
}

/* An end that waited for replies. There may be no room for it at once. */
static void end_closing(struct qr_local_conn *conn)
{
    for (uint32_t id = 0; id < QR_LOCAL_CALLS_MAX; id++) {
        struct qr_local_call *call = &conn->calls[id];
        if (!call->method || !call->closing || call->held > 0)
            continue;
        if (!qr_ring_reserve(&conn->down, QR_LOCAL_REPLY_BYTES, NULL))
            return;
        qr_local_drop_call(conn, call);
        qr_local_end_call(conn, id, NULL);
    }
}

bool qr_local_step_holds(struct qr_local_conn *conn)
{
    const bool some = conn->hold_count > 0 && is_released(first(conn)) &&
                      qr_ring_reserve(&conn->down, QR_LOCAL_REPLY_BYTES, NULL);

    if (some)
        send_first(conn);
    end_closing(conn);
    return some;
}

bool qr_local_holds_gone(struct qr_local_conn *conn)
{
    while (conn->hold_count > 0 && is_released(first(conn))) {
        conn->hold_first = (conn->hold_first + 1) % QR_LOCAL_HOLDS_MAX;
        conn->hold_count--;
    }
    return conn->hold_count == 0;
}

void qr_local_answer_held(struct qr_local_conn *conn, uint32_t id, struct qr_request *request)
{
    struct qr_local *local = conn->thread->local;
    struct qr_local_call *call = &conn->calls[id];
    const uint32_t at = (conn->hold_first + conn->hold_count) % QR_LOCAL_HOLDS_MAX;
    struct qr_local_hold *hold = &conn->holds[at];
    bool held = false;
    size_t n = 0;

    assert(qr_local_may_hold(conn));
    hold->hold.release = release;
    hold->conn = conn;
    hold->id = id;
    hold->serial = call->serial;
    hold->error.status = QUIRE_OK;
    atomic_store_explicit(&hold->parties, 2, memory_order_relaxed);
    request->hold = &hold->hold;
    request->held = &held;
    struct qr_error e = {0};
    const quire_status status = call->method->handle(local->config.service, request, &n, &e);
    if (status && e.status != status)
        qr_error_set(&e, status, "%s", qr_status_text(status));
    assert(n <= sizeof(hold->reply));
    memcpy(hold->reply, request->scratch->reply, status ? 0 : n);
    hold->reply_bytes = n;
    if (status) /* then nobody releases it */
        hold->error = e;
    conn->hold_count++;
    call->held++;
    atomic_fetch_sub_explicit(&hold->parties, held && !status ? 1 : 2, memory_order_acq_rel);
    if (conn->hold_count == 1 && is_released(hold)) /* the usual case: there is room for it */
        send_first(conn);
}
