/* SPDX-License-Identifier: Apache-2.0
 *
 * Append: one message goes as a unary call, more as one stream with several in
 * flight. Must not know how messages are built.
 *
 * Whoever pumps (the calling thread of a synchronous append, else the transport's thread whose
 * event made progress possible) builds the next message while the one before is written.
 * Invariants:
 *   1. One pump at a time (`pumping`); events that find one running leave `again`.
 *   2. A message is sent when the stream is writable and flights stay within inflight_bytes.
 *   3. A restart (connection broke before any acknowledgement) only sets `reset`; the pump goes
 *      back to the first cell itself.
 */
#include "client_append.h"

#include <string.h>

#include "client_op.h"

/* ---- acknowledgements ------------------------------------------------------------------- */

static void acknowledge(struct qr_append_state *a, const struct qr_flight *flight,
                        uint64_t length)
{
    for (uint32_t i = 0; i < flight->layers; i++)
        a->length[flight->first_layer - a->args.first_layer + i] = length;
}

static bool take_flight(struct qr_append_state *a, struct qr_flight *out)
{
    if (a->flight_count == 0)
        return false;
    *out = a->flights[a->flight_first];
    a->flight_first = (a->flight_first + 1) % QR_FLIGHTS_MAX;
    a->flight_count--;
    a->flight_bytes -= out->bytes;
    return true;
}

static void pump(struct quire_op *op);

/* Progress is possible: the driver is woken, or this thread pumps. */
static void kick(struct quire_op *op)
{
    if (!op->u.append.driven)
        pump(op);
}

static void on_reply(struct quire_op *op, const struct qr_wire_fragment *fragments,
                     size_t count)
{
    struct qr_append_state *a = &op->u.append;
    _Alignas(16) uint8_t memory[512];
    struct qr_wire_arena arena;
    ProtobufCMessage *message;
    struct qr_error e;
    struct qr_flight flight;

    qr_wire_arena_init(&arena, memory, sizeof(memory));
    if (qr_wire_unpack(&quire__v1__append_reply__descriptor, fragments, count, &arena, &message,
                       &e)) {
        e.status = QUIRE_ECORRUPT;
        qr_op_abort(op, &e);
        return;
    }
    const Quire__V1__AppendReply *reply = (const void *)message;
    atomic_store(&op->touched, true);
    pthread_mutex_lock(&op->lock);
    const bool expected = take_flight(a, &flight);
    if (expected)
        acknowledge(a, &flight, reply->length);
    a->again = true;
    pthread_cond_broadcast(&op->changed);
    pthread_mutex_unlock(&op->lock);
    if (!expected) {
        qr_error_set(&e, QUIRE_ECORRUPT, "AppendStream: the server answered more than asked");
        qr_op_abort(op, &e);
        return;
    }
    kick(op);
}

static void on_writable(struct quire_op *op)
{
    pthread_mutex_lock(&op->lock);
    op->u.append.writable = true;
    op->u.append.again = true;
    pthread_cond_broadcast(&op->changed);
    pthread_mutex_unlock(&op->lock);
    kick(op);
}

static void on_finish(struct quire_op *op)
{
    struct qr_append_state *a = &op->u.append;
    struct qr_error e;

    pthread_mutex_lock(&op->lock);
    a->over = true;
    const bool short_of = a->flight_count > 0 || !a->closed;
    pthread_cond_broadcast(&op->changed);
    pthread_mutex_unlock(&op->lock);
    if (short_of && !qr_op_failed(op)) {
        qr_error_set(&e, QUIRE_EINTERNAL,
                     "%s: the server ended the call before everything was acknowledged",
                     qr_method_name(op->method));
        qr_op_fail(op, &e);
    }
    if (!a->driven)
        qr_outgoing_drop(&a->next);
}

/* ---- the pump --------------------------------------------------------------------------- */

/* Build the next message unless one is ready or none is left. */
static quire_status build_next(struct quire_op *op, struct qr_error *e)
{
    struct qr_append_state *a = &op->u.append;
    struct qr_cell cell;

    if (a->next.count > 0 || a->planned_all)
        return QUIRE_OK;
    if (qr_plan_next(&a->plan, &cell))
        return qr_append_build(op, &cell, &a->next, e);
    a->planned_all = true;
    return QUIRE_OK;
}

static void rewind_plan(struct qr_append_state *a)
{
    qr_outgoing_drop(&a->next);
    qr_plan_rewind(&a->plan);
    a->planned_all = false;
}

enum step { STEP_SEND, STEP_CLOSE, STEP_LOOK_AGAIN, STEP_REST };

static void book_flight(struct qr_append_state *a)
{
    const uint32_t at = (a->flight_first + a->flight_count) % QR_FLIGHTS_MAX;

    a->flights[at] =
        (struct qr_flight){a->next.cell.first_layer, a->next.cell.layers, a->next.bytes};
    a->flight_count++;
    a->flight_bytes += a->next.bytes;
    a->writable = false;
}

/* Under op->lock: what the pump may do now; it is booked at once. */
static enum step next_step(struct quire_op *op, struct qr_call **call_out)
{
    struct qr_append_state *a = &op->u.append;
    const bool fits = a->flight_count == 0 ||
                      (a->flight_count < QR_FLIGHTS_MAX &&
                       a->flight_bytes + a->next.bytes <= op->client->options.inflight_bytes);
    const bool open = a->writable && !a->over && op->error.status == QUIRE_OK;
    enum step step = a->again ? STEP_LOOK_AGAIN : STEP_REST;

    if (a->reset)
        return STEP_LOOK_AGAIN;
    if (open && a->next.count > 0 && fits) {
        book_flight(a);
        step = STEP_SEND;
    } else if (open && a->next.count == 0 && a->planned_all && !a->closed) {
        a->closed = true;
        step = STEP_CLOSE;
    }
    if (step == STEP_SEND || step == STEP_CLOSE)
        *call_out = qr_call_hold(op->call);
    return step;
}

static void take_step(struct qr_append_state *a, enum step step, struct qr_call *call)
{
    if (step == STEP_SEND) {
        qr_call_send(call, a->next.pieces, a->next.count);
        a->next.count = 0;
    } else {
        qr_call_close_send(call);
    }
    qr_call_release(call);
}

/* Start of a round: forget what happened before it, go back if the call was started again. */
static bool begin_round(struct qr_append_state *a)
{
    const bool reset = a->reset;

    a->again = a->reset = false;
    return reset;
}

static void pump(struct quire_op *op)
{
    struct qr_append_state *a = &op->u.append;
    struct qr_call *call = NULL;
    struct qr_error e;
    enum step step = STEP_LOOK_AGAIN;

    pthread_mutex_lock(&op->lock);
    if (a->pumping) {
        pthread_mutex_unlock(&op->lock);
        return;
    }
    a->pumping = true;
    while (step != STEP_REST) {
        const bool reset = begin_round(a);
        pthread_mutex_unlock(&op->lock);
        if (reset)
            rewind_plan(a);
        if (!qr_op_failed(op) && build_next(op, &e))
            qr_op_abort(op, &e);
        pthread_mutex_lock(&op->lock);
        step = next_step(op, &call);
        if (step == STEP_SEND || step == STEP_CLOSE) {
            pthread_mutex_unlock(&op->lock);
            take_step(a, step, call);
            pthread_mutex_lock(&op->lock);
        }
    }
    a->pumping = false;
    pthread_mutex_unlock(&op->lock);
}

/* ---- starting --------------------------------------------------------------------------- */

static void restart_stream(struct quire_op *op)
{
    struct qr_append_state *a = &op->u.append;

    pthread_mutex_lock(&op->lock);
    a->reset = true;
    a->writable = a->closed = false;
    a->flight_count = 0;
    a->flight_bytes = 0;
    pthread_mutex_unlock(&op->lock);
    qr_op_start(op, QR_METHOD_APPEND_STREAM, QR_OP_WRITER, NULL, 0);
}

/* One message: built and gone before anything else happens. */
static void send_unary(struct quire_op *op)
{
    struct qr_append_state *a = &op->u.append;
    struct qr_error e;

    rewind_plan(a);
    if (build_next(op, &e)) {
        qr_op_fail(op, &e);
        return;
    }
    pthread_mutex_lock(&op->lock);
    a->flight_count = 0;
    a->flight_bytes = 0;
    book_flight(a);
    a->closed = true;
    const size_t count = a->next.count;
    a->next.count = 0;
    pthread_mutex_unlock(&op->lock);
    qr_op_start(op, QR_METHOD_APPEND, QR_OP_UNARY, a->next.pieces, count);
}

static const struct qr_op_kind unary_kind = {
    .message = on_reply, .finish = on_finish, .restart = send_unary};
static const struct qr_op_kind stream_kind = {.message = on_reply,
                                              .writable = on_writable,
                                              .finish = on_finish,
                                              .restart = restart_stream};

/* More than one message? */
static bool is_stream(struct qr_plan plan)
{
    struct qr_cell cell;

    return qr_plan_next(&plan, &cell) && qr_plan_next(&plan, &cell);
}

static void prepare(struct quire_op *op, const struct quire_append *args, bool driven)
{
    struct qr_append_state *a = &op->u.append;

    a->args = *args;
    a->planned_all = a->pumping = a->again = a->reset = a->writable = a->closed = a->over =
        false;
    a->next.count = 0;
    a->flight_first = a->flight_count = 0;
    a->flight_bytes = 0;
    for (uint32_t i = 0; i < args->layers; i++)
        a->length[i] = qr_plan_heads(op->session, args->first_layer + i) ? 0 : UINT64_MAX;
    qr_plan_start(&a->plan, op->session, args, op->client->options.encode_pages);
    a->unary = !is_stream(a->plan);
    a->driven = driven || a->unary; /* one message: nothing to pump */
    op->kind = a->unary ? &unary_kind : &stream_kind;
}

static quire_status begin(quire_session *session, const struct quire_append *args, bool driven,
                          struct quire_op **out)
{
    struct qr_error e;

    if (!session || !args)
        return qr_client_fail_text(QUIRE_EINVAL, "%s is NULL", session ? "append" : "session");
    if (qr_append_check(session, args, &e))
        return qr_client_fail(&e);
    struct quire_op *op = qr_op_take(session->client, session, &stream_kind, args->timeout_ms);
    if (!op)
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for an append");

    prepare(op, args, driven);
    if (op->u.append.unary) {
        send_unary(op);
    } else if (qr_append_scan(op, &e)) {
        qr_op_fail(op, &e);
        op->u.append.over = true;
    } else {
        qr_op_start(op, QR_METHOD_APPEND_STREAM, QR_OP_WRITER, NULL, 0);
    }
    *out = op;
    return QUIRE_OK;
}

static void drive(struct quire_op *op)
{
    struct qr_append_state *a = &op->u.append;
    bool over = false;

    while (!over) {
        pump(op);
        pthread_mutex_lock(&op->lock);
        while (!a->over && !a->again && !a->reset)
            pthread_cond_wait(&op->changed, &op->lock);
        over = a->over;
        pthread_mutex_unlock(&op->lock);
    }
    qr_outgoing_drop(&a->next);
}

static uint64_t shortest(const struct qr_append_state *a)
{
    uint64_t length = UINT64_MAX;

    for (uint32_t i = 0; i < a->args.layers; i++)
        if (a->length[i] < length)
            length = a->length[i];
    return length == UINT64_MAX ? 0 : length;
}

quire_status quire_append(quire_session *session, const struct quire_append *append,
                          uint64_t *length_out)
{
    struct quire_op *op;
    quire_status status = begin(session, append, true, &op);
    if (status)
        return status;

    if (!op->u.append.unary)
        drive(op);
    qr_op_submitted(op);
    status = quire_op_wait(op, UINT32_MAX);
    if (length_out && (!status || atomic_load(&op->touched)))
        *length_out = shortest(&op->u.append);
    qr_op_recycle(op);
    return status;
}

quire_status quire_append_submit(quire_session *session, const struct quire_append *append,
                                 quire_op **out)
{
    struct quire_op *op;

    if (!out)
        return qr_op_no_out();
    const quire_status status = begin(session, append, false, &op);
    return status ? status : qr_op_hand_over(op, out);
}
