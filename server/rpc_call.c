/* SPDX-License-Identifier: Apache-2.0
 *
 * One call from its acceptance to its end: dispatch by kind, replies, errors with
 * details. See rpc_call.h for the states. Must not know what a message means.
 */
#include "rpc_call.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void let_go(struct qr_call *call)
{
    if (call->payload)
        grpc_byte_buffer_destroy(call->payload);
    call->payload = NULL;
    grpc_metadata_array_destroy(&call->metadata);
    if (!call->method)
        grpc_call_details_destroy(&call->details);
    if (call->call)
        grpc_call_unref(call->call);
    call->call = NULL;
}

void qr_call_unref(struct qr_call *call)
{
    if (atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel) == 1)
        qr_pool_give(call->worker->rpc->calls, call);
}

/* End the context when both of its last events have come (invariant 1). */
bool qr_call_ended(struct qr_call *call)
{
    if (!call->closed || !call->finishing || call->batch_out)
        return false;
    qr_stream_close(call);
    let_go(call);
    qr_worker_remove(call->worker, call);
    qr_call_unref(call);
    return true;
}

static void closed(void *owner, bool ok)
{
    struct qr_call *call = owner;

    (void)ok;
    call->closed = true;
    if (call->close_canceled) {
        call->canceled = true;
        qr_counter_add(&call->worker->rpc->canceled_count, 1);
    }
    if (qr_call_ended(call) || call->batch_out || call->finishing)
        return;
    /* Nothing is under way that would notice: a paused stream or an idle watch. */
    qr_stream_close(call);
    qr_call_finish(call, NULL,
                   &(struct qr_error){.status = QUIRE_ECANCELED, .text = "canceled"});
}

void qr_call_batch(struct qr_call *call, grpc_op *ops, size_t count,
                   void (*run)(void *owner, bool ok))
{
    if (!call->batch_out) /* set already: this may be another thread, which must not write it */
        call->batch_out = true;
    grpc_call *carrier = call->call; /* read before the hand-over: another thread may end it */
    void *tag = qr_event_hand(&call->batch, run, call);
    const grpc_call_error error = grpc_call_start_batch(carrier, ops, count, tag, NULL);
    assert(error == GRPC_CALL_OK);
    (void)error;
}

size_t qr_call_headers(struct qr_call *call, grpc_op *ops, size_t count)
{
    if (call->headers_sent)
        return count;
    call->headers_sent = true;
    ops[count] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    return count + 1;
}

static void finished(void *owner, bool ok)
{
    struct qr_call *call = owner;

    (void)ok;
    call->batch_out = false;
    call->batch_since_ms = 0;
    qr_call_ended(call);
}

static grpc_slice slice_of(const void *bytes, size_t n)
{
    return grpc_slice_from_copied_buffer(bytes, n);
}

/* The status op of a failed call. The slices must outlive the start of the batch. */
static grpc_op status_op(const struct qr_error *e, grpc_metadata *trailer, grpc_slice *text)
{
    uint8_t packed[QR_WIRE_STATUS_BYTES_MAX];
    const size_t n = qr_wire_status_pack(e, packed);

    *text = slice_of(e->text, strlen(e->text));
    *trailer = (grpc_metadata){.key = grpc_slice_from_static_string(QR_WIRE_STATUS_KEY),
                               .value = slice_of(packed, n)};
    grpc_op op = {.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    op.data.send_status_from_server.status = (grpc_status_code)qr_status_grpc(e->status);
    op.data.send_status_from_server.status_details = text;
    op.data.send_status_from_server.trailing_metadata = trailer;
    op.data.send_status_from_server.trailing_metadata_count = n ? 1 : 0;
    return op;
}

void qr_call_finish(struct qr_call *call, grpc_byte_buffer *message, const struct qr_error *e)
{
    grpc_op ops[3];
    grpc_metadata trailer = {.value = grpc_empty_slice()};
    grpc_slice text = grpc_empty_slice();
    size_t n = qr_call_headers(call, ops, 0);

    if (!call->finishing)
        call->finishing = true;
    if (message) {
        ops[n] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
        ops[n++].data.send_message.send_message = message;
    }
    if (e) {
        qr_counter_add(&call->worker->rpc->failed, 1);
        ops[n++] = status_op(e, &trailer, &text);
    } else {
        ops[n] = (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
        ops[n++].data.send_status_from_server.status = GRPC_STATUS_OK;
    }
    qr_call_batch(call, ops, n, finished);
    grpc_slice_unref(trailer.value);
    grpc_slice_unref(text);
    if (message)
        grpc_byte_buffer_destroy(message);
}

/* ---- requests and replies --------------------------------------------------------------- */

quire_status qr_scratch_create(struct qr_scratch *scratch, uint64_t message_bytes_max)
{
    /* An unpacked request takes its bytes and, for each element, a few words beside them. */
    const size_t arena_bytes = (size_t)message_bytes_max * 2 + (256u << 10);

    scratch->reply_capacity = (size_t)message_bytes_max;
    scratch->reply = malloc(scratch->reply_capacity);
    uint8_t *memory = aligned_alloc(64, (arena_bytes + 63) & ~(size_t)63);
    if (!scratch->reply || !memory) {
        free(memory);
        free(scratch->reply);
        *scratch = (struct qr_scratch){0};
        return QUIRE_ENOMEM;
    }
    qr_wire_arena_init(&scratch->arena, memory, arena_bytes);
    return QUIRE_OK;
}

void qr_scratch_destroy(struct qr_scratch *scratch)
{
    free(scratch->arena.memory);
    free(scratch->reply);
    *scratch = (struct qr_scratch){0};
}

struct gathering {
    struct qr_wire_fragment *fragments;
    uint8_t *flat;
    size_t count, flat_bytes;
    uint64_t bytes;
};

/* Too many slices for the array: one copy of all, and of what follows. */
static void flatten(struct gathering *g)
{
    for (size_t i = 0; i < g->count; i++) {
        memcpy(g->flat + g->flat_bytes, g->fragments[i].data, g->fragments[i].bytes);
        g->flat_bytes += g->fragments[i].bytes;
    }
    g->fragments[0] = (struct qr_wire_fragment){.data = g->flat, .bytes = g->flat_bytes};
    g->count = 1;
}

/* The reader's slices as fragments; false: more than `capacity` bytes. */
static bool gather(grpc_byte_buffer_reader *reader, uint64_t capacity, struct gathering *g)
{
    grpc_slice *slice;

    while (grpc_byte_buffer_reader_peek(reader, &slice)) {
        const uint8_t *bytes = GRPC_SLICE_START_PTR(*slice);
        const size_t n = GRPC_SLICE_LENGTH(*slice);
        if (g->bytes + n > capacity)
            return false;
        g->bytes += n;
        if (g->count == QR_FRAGMENTS_MAX)
            flatten(g);
        if (g->flat_bytes) {
            memcpy(g->flat + g->flat_bytes, bytes, n);
            g->flat_bytes += n;
            g->fragments[0].bytes = g->flat_bytes;
        } else if (n) {
            g->fragments[g->count++] = (struct qr_wire_fragment){.data = bytes, .bytes = n};
        }
    }
    return true;
}

static quire_status too_large(uint64_t bytes, uint64_t most, struct qr_error *e)
{
    qr_error_set(e, QUIRE_ETOOBIG,
                 "the message has %llu bytes, at most %llu are accepted (max_message_bytes)",
                 (unsigned long long)bytes, (unsigned long long)most);
    e->length = bytes;
    e->limit = most;
    return QUIRE_ETOOBIG;
}

quire_status qr_call_request(struct qr_call *call, struct qr_scratch *scratch,
                             struct qr_wire_fragment *fragments, uint8_t *flat,
                             struct qr_request *out, struct qr_error *e)
{
    struct qr_rpc *rpc = call->worker->rpc;
    struct gathering g = {.fragments = fragments, .flat = flat};
    grpc_byte_buffer_reader reader;

    if (!call->payload)
        return qr_error_set(e, QUIRE_EINVAL,
                            "the call ended before a whole message came; a message has at most "
                            "%llu bytes",
                            (unsigned long long)rpc->config.message_bytes_max);
    if (!grpc_byte_buffer_reader_init(&reader, call->payload))
        return qr_error_set(e, QUIRE_EINVAL, "the message's compression cannot be undone");
    const bool fits = gather(&reader, rpc->config.message_bytes_max, &g);
    grpc_byte_buffer_reader_destroy(&reader);
    if (!fits)
        return too_large(grpc_byte_buffer_length(call->payload), rpc->config.message_bytes_max,
                         e);
    qr_wire_arena_reset(&scratch->arena);
    *out = (struct qr_request){.ns = call->ns,
                               .fragments = fragments,
                               .count = g.count,
                               .bytes = g.bytes,
                               .scratch = scratch,
                               .canceled = &call->canceled};
    call->held = false;
    out->held = &call->held;
    qr_counter_add(&rpc->bytes_in, g.bytes);
    return QUIRE_OK;
}

quire_status qr_call_handle(struct qr_call *call, struct qr_request *request,
                            grpc_byte_buffer **message_out, struct qr_error *e)
{
    struct qr_rpc *rpc = call->worker->rpc;
    size_t n = 0;
    const quire_status status = call->method->handle(rpc->config.service, request, &n, e);

    if (status) {
        if (e->status != status)
            qr_error_set(e, status, "%s", qr_status_text(status));
        return status;
    }
    assert(n <= request->scratch->reply_capacity);
    grpc_slice slice = slice_of(request->scratch->reply, n);
    *message_out = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    qr_counter_add(&rpc->bytes_out, n);
    return QUIRE_OK;
}

/* ---- dispatch --------------------------------------------------------------------------- */

static void answer(struct qr_call *call)
{
    struct qr_worker *worker = call->worker;
    struct qr_request request;
    struct qr_error e = {0};
    grpc_byte_buffer *message = NULL;
    quire_status status =
        qr_call_request(call, &worker->scratch, worker->fragments, worker->flat, &request, &e);

    if (!status && call->method->holds) {
        qr_call_handle_held(call, &request);
        return;
    }
    if (!status)
        status = qr_call_handle(call, &request, &message, &e);
    qr_call_finish(call, message, status ? &e : NULL);
}

static void defer(struct qr_call *call, struct qr_deferred *deferred)
{
    struct qr_error e = {0};

    /* From here on the other thread owns the call's batch (rpc_call.h, invariant 3). */
    call->batch_out = true;
    call->finishing = true;
    if (qr_deferred_put(deferred, call, &e)) {
        qr_counter_add(&call->worker->rpc->refused, 1);
        qr_call_finish(call, NULL, &e);
    }
}

static void dispatch(struct qr_call *call)
{
    struct qr_rpc *rpc = call->worker->rpc;

    switch (call->method->kind) {
    case QR_METHOD_UNARY:
        answer(call);
        break;
    case QR_METHOD_DEFERRED:
        defer(call, rpc->deferred);
        break;
    case QR_METHOD_WAITING:
        if (rpc->waiting)
            defer(call, rpc->waiting);
        else
            answer(call);
        break;
    case QR_METHOD_STREAM:
        qr_stream_start(call);
        break;
    case QR_METHOD_CONVERSATION:
        qr_conversation_start(call);
        break;
    case QR_METHOD_WATCH:
        qr_watch_start(call);
        break;
    }
}

/* What a stranger sent, as printable ASCII. */
static void readable(grpc_slice slice, char *out, size_t size)
{
    const uint8_t *bytes = GRPC_SLICE_START_PTR(slice);
    size_t n = 0;

    for (; n < GRPC_SLICE_LENGTH(slice) && n < size - 1; n++)
        out[n] = bytes[n] > ' ' && bytes[n] <= '~' ? (char)bytes[n] : '?';
    out[n] = 0;
}

static quire_status admit(struct qr_call *call, struct qr_error *e)
{
    struct qr_rpc *rpc = call->worker->rpc;

    if (!call->method) {
        char path[101];
        readable(call->details.method, path, sizeof(path));
        qr_counter_add(&rpc->unknown, 1);
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "unknown method %s; this server speaks quire.v1.Quire and "
                            "grpc.health.v1.Health",
                            path);
    }
    if (atomic_load(&rpc->draining) && !call->method->always) {
        qr_counter_add(&rpc->refused, 1);
        qr_error_set(e, QUIRE_EUNAVAILABLE, "the server is shutting down; try again");
        e->retry_after_ms = QR_RETRY_MS;
        return QUIRE_EUNAVAILABLE;
    }
    if (call->worker->live_count > rpc->config.calls_max && !call->method->always) {
        qr_counter_add(&rpc->refused, 1);
        qr_error_set(e, QUIRE_EFULL, "%u calls are under way already (max_calls); try again",
                     rpc->config.calls_max);
        e->retry_after_ms = QR_BUSY_MS;
        return QUIRE_EFULL;
    }
    char *peer = grpc_call_get_peer(call->call);
    const quire_status status = rpc->config.identify(rpc->config.service, peer, &call->ns, e);
    gpr_free(peer);
    return status;
}

void qr_call_accepted(void *owner, bool ok)
{
    struct qr_call *call = owner;
    struct qr_worker *worker = call->worker;
    struct qr_error e = {0};

    if (!ok) { /* the server is going down: the context was never used */
        let_go(call);
        qr_call_unref(call);
        return;
    }
    qr_worker_add(worker, call);
    qr_worker_arm(worker, call->method_index);

    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    op.data.recv_close_on_server.cancelled = &call->close_canceled;
    const grpc_call_error error = grpc_call_start_batch(
        call->call, &op, 1, qr_event_hand(&call->closed_event, closed, call), NULL);
    assert(error == GRPC_CALL_OK);
    (void)error;

    if (admit(call, &e))
        qr_call_finish(call, NULL, &e);
    else
        dispatch(call);
}
