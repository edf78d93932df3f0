/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames of one client: requests to handlers, answers back, streams in turn. Must not know what
 * a message means. See local_impl.h for the invariants.
 */
#include "local_impl.h"

#include <assert.h>
#include <string.h>

static void broken(struct qr_local_conn *conn)
{
    qr_counter_add(&conn->thread->local->clients_broken, 1);
    conn->ended = true;
}

/* ---- calls ------------------------------------------------------------------------------ */

void qr_local_drop_call(struct qr_local_conn *conn, struct qr_local_call *call)
{
    struct qr_local *local = conn->thread->local;

    if (call->carry.pin)
        local->config.release(local->config.service, call->carry.pin);
    call->carry = (struct qr_local_carry){0};
    if (call->method->kind == QR_METHOD_STREAM) {
        call->method->stream->close(local->config.service, call->stream);
        conn->streams--;
    }
    call->method = NULL;
    call->serial++; /* replies that are held back are nobody's now */
    call->held = 0;
    call->closing = false;
    qr_counter_sub(&local->live, 1);
}

void qr_local_drop_calls(struct qr_local_conn *conn)
{
    for (uint32_t i = 0; i < QR_LOCAL_CALLS_MAX; i++)
        if (conn->calls[i].method) {
            qr_counter_add(&conn->thread->local->canceled, 1);
            qr_local_drop_call(conn, &conn->calls[i]);
        }
}

static void end_with(struct qr_local_conn *conn, uint32_t id, const struct qr_error *e)
{
    qr_local_drop_call(conn, &conn->calls[id]);
    qr_local_end_call(conn, id, e);
}

static quire_status admit(struct qr_local_conn *conn, struct qr_error *e)
{
    if (!atomic_load(&conn->thread->local->refusing))
        return QUIRE_OK;
    qr_error_set(e, QUIRE_EUNAVAILABLE, "the server is shutting down; try again");
    e->retry_after_ms = QR_LOCAL_RETRY_MS;
    return QUIRE_EUNAVAILABLE;
}

/* The message of a frame as handlers see it. */
static bool request_of(struct qr_local_conn *conn, const struct qr_ring_frame *frame,
                       struct qr_request *out)
{
    static const atomic_bool never;
    struct qr_local_thread *thread = conn->thread;
    struct qr_frame_room *room = &thread->room;

    if (!qr_frame_gather(frame, room)) {
        broken(conn);
        return false;
    }
    qr_wire_arena_reset(&thread->scratch.arena);
    *out = (struct qr_request){.ns = conn->ns,
                               .may_wait = true, /* nobody else would take the call */
                               .fragments = room->fragments,
                               .count = room->count,
                               .bytes = room->bytes,
                               .scratch = &thread->scratch,
                               .canceled = &never};
    qr_counter_add(&thread->local->bytes_in, room->bytes);
    return true;
}

static quire_status check_size(const struct qr_local_conn *conn, const struct qr_request *r,
                               struct qr_error *e)
{
    const uint64_t most = conn->thread->local->config.message_bytes_max;

    if (r->bytes <= most)
        return QUIRE_OK;
    qr_error_set(e, QUIRE_ETOOBIG,
                 "the message has %llu bytes, at most %llu are accepted (max_message_bytes)",
                 (unsigned long long)r->bytes, (unsigned long long)most);
    e->length = r->bytes;
    e->limit = most;
    return QUIRE_ETOOBIG;
}

/* Answer one message of a call that is answered at once. */
static void answer(struct qr_local_conn *conn, uint32_t id, const struct qr_ring_frame *frame)
{
    struct qr_local *local = conn->thread->local;
    const struct qr_method *method = conn->calls[id].method;
    const bool last = method->kind == QR_METHOD_UNARY;
    struct qr_request request;
    struct qr_error e = {0};
    size_t n = 0;

    if (!request_of(conn, frame, &request))
        return;
    quire_status status = check_size(conn, &request, &e);
    if (!status && method->holds) {
        qr_local_answer_held(conn, id, &request);
        return;
    }
    if (!status)
        status = method->handle(local->config.service, &request, &n, &e);
    if (status && e.status != status)
        qr_error_set(&e, status, "%s", qr_status_text(status));
    if (status) {
        end_with(conn, id, &e);
        return;
    }
    if (last)
        qr_local_drop_call(conn, &conn->calls[id]);
    qr_local_reply(conn, id, request.scratch->reply, n, last);
}

static void open_stream(struct qr_local_conn *conn, uint32_t id, const struct qr_method *method,
                        const struct qr_ring_frame *frame)
{
    struct qr_local *local = conn->thread->local;
    struct qr_local_call *call = &conn->calls[id];
    struct qr_request request;
    struct qr_error e = {0};

    if (!request_of(conn, frame, &request))
        return;
    if (method->stream->open(local->config.service, &request, &call->stream, &e)) {
        qr_local_end_call(conn, id, &e);
        return;
    }
    call->method = method;
    call->more = true;
    conn->streams++;
    qr_counter_add(&local->live, 1);
}

static void start_call(struct qr_local_conn *conn, const struct qr_ring_frame *frame)
{
    struct qr_local *local = conn->thread->local;
    const uint32_t id = frame->head.call;
    const struct qr_method *method =
        frame->head.value < QR_FRAME_METHODS ? local->methods[frame->head.value] : NULL;
    struct qr_error e = {0};

    if (!method || conn->calls[id].method) {
        broken(conn); /* libquire does not: a number is free again when its end was seen */
        return;
    }
    qr_counter_add(&local->calls, 1);
    if (admit(conn, &e)) {
        qr_local_end_call(conn, id, &e);
        return;
    }
    if (method->kind == QR_METHOD_STREAM) {
        open_stream(conn, id, method, frame);
        return;
    }
    conn->calls[id].method = method;
    qr_counter_add(&local->live, 1);
    if (method->kind == QR_METHOD_UNARY)
        answer(conn, id, frame);
}

static bool converses(const struct qr_local_call *call)
{
    return call->method && call->method->kind == QR_METHOD_CONVERSATION;
}

/* Frames of calls that ended here already are of no more use: the client did not know yet. */
static void take_frame(struct qr_local_conn *conn, const struct qr_ring_frame *frame)
{
    const uint32_t id = frame->head.call;

    if (id >= QR_LOCAL_CALLS_MAX) {
        broken(conn);
        return;
    }
    switch (frame->head.type) {
    case QR_FRAME_REQUEST:
        start_call(conn, frame);
        break;
    case QR_FRAME_MESSAGE:
        if (converses(&conn->calls[id]) && !conn->calls[id].closing)
            answer(conn, id, frame);
        break;
    case QR_FRAME_CLOSE:
        if (converses(&conn->calls[id]))
            conn->calls[id].closing = true; /* qr_local_step_holds ends it */
        break;
    case QR_FRAME_CANCEL:
        if (conn->calls[id].method) {
            qr_counter_add(&conn->thread->local->canceled, 1);
            end_with(conn, id,
                     &(struct qr_error){.status = QUIRE_ECANCELED, .text = "canceled"});
        }
        break;
    default:
        broken(conn);
    }
}

/* ---- turns ------------------------------------------------------------------------------ */

static bool may_answer(struct qr_local_conn *conn)
{
    return qr_ring_reserve(&conn->down, QR_LOCAL_REPLY_BYTES, NULL) != NULL;
}

static void give_back(struct qr_local_conn *conn, uint64_t end)
{
    qr_ring_free(&conn->up, end);
    if (qr_ring_writer_sleeps(&conn->up))
        qr_local_ring_bell(conn);
}

/* One frame, if there is one and its answer has room. */
static bool step_requests(struct qr_local_conn *conn)
{
    struct qr_ring_frame frame;

    if (!may_answer(conn) || !qr_local_may_hold(conn))
        return false;
    if (!qr_ring_take(&conn->up, &frame)) {
        give_back(conn, conn->up.next); /* a pad, perhaps */
        return false;
    }
    take_frame(conn, &frame);
    give_back(conn, frame.end);
    return true;
}

/* The message of the next open stream that has one. A full ring ends the round: the others
 * would take the room that this one waits for. */
static enum qr_local_step step_streams(struct qr_local_conn *conn)
{
    enum qr_local_step step = QR_LOCAL_LATER;

    for (uint32_t i = 0; step == QR_LOCAL_LATER && i < QR_LOCAL_CALLS_MAX; i++) {
        const uint32_t id = (conn->turn + i) % QR_LOCAL_CALLS_MAX;
        const struct qr_local_call *call = &conn->calls[id];
        if (!call->method || call->method->kind != QR_METHOD_STREAM)
            continue;
        step = qr_local_stream_step(conn, id);
        if (step == QR_LOCAL_DONE)
            conn->turn = id + 1;
    }
    return step;
}

/* One frame each way. *full_out: room is what is wanting. */
static bool step(struct qr_local_conn *conn, bool *full_out)
{
    bool going = step_requests(conn);

    going = qr_local_step_holds(conn) || going;
    enum qr_local_step streams = QR_LOCAL_LATER;
    if (!conn->ended && conn->streams)
        streams = step_streams(conn);
    conn->later = conn->streams && streams == QR_LOCAL_LATER;
    *full_out = streams == QR_LOCAL_FULL || !may_answer(conn);
    return going || streams == QR_LOCAL_DONE;
}

/* Nothing can be done now: say what would help, and look once more. */
static void rest(struct qr_local_conn *conn)
{
    bool full = false;

    qr_ring_reader_waits(&conn->up);
    if (conn->streams || conn->hold_count || !may_answer(conn))
        qr_ring_writer_waits(&conn->down);
    if (step(conn, &full)) {
        qr_ring_reader_awake(&conn->up);
        conn->ready = true;
    } else if (!full) {
        conn->since_ms = 0;
    } else if (!conn->since_ms) {
        conn->since_ms = qr_clock_ms();
    }
}

void qr_local_serve(struct qr_local_conn *conn)
{
    bool going = true, full = false;

    conn->ready = false;
    qr_ring_reader_awake(&conn->up);
    for (int i = 0; going && !conn->ended && i < QR_LOCAL_BUDGET; i++) {
        going = step(conn, &full);
        if (going)
            conn->since_ms = 0;
    }
    if (!conn->ended && !going)
        rest(conn);
    conn->ready = conn->ready || going;
    if (conn->up.broken || conn->down.broken)
        broken(conn);
    if (!conn->ended)
        qr_local_tell(conn);
}
