/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of several messages: streams of chunks (one write out at a time, so that a
 * slow reader holds a bounded number of pins), conversations, watches.
 */
#include <assert.h>
#include <string.h>

#include "rpc_call.h"

/* ---- streams of chunks ------------------------------------------------------------------ */

static void chunk_sent(void *owner, bool ok);

void qr_stream_close(struct qr_call *call)
{
    struct qr_rpc *rpc = call->worker->rpc;

    if (call->paused)
        call->worker->paused_count--;
    call->paused = false;
    if (call->stream_open)
        call->method->stream->close(rpc->config.service, call->stream);
    call->stream_open = false;
}

static void fail_stream(struct qr_call *call, const struct qr_error *e)
{
    qr_stream_close(call);
    qr_call_finish(call, NULL, e);
}

static void pause_stream(struct qr_call *call)
{
    if (!call->paused)
        call->worker->paused_count++;
    call->paused = true;
    if (!call->batch_since_ms)
        call->batch_since_ms = qr_clock_ms();
}

static void send_chunk(struct qr_call *call, grpc_byte_buffer *message)
{
    grpc_op ops[2];
    size_t n = qr_call_headers(call, ops, 0);

    ops[n] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
    ops[n++].data.send_message.send_message = message;
    call->batch_since_ms = qr_clock_ms();
    qr_call_batch(call, ops, n, chunk_sent);
    grpc_byte_buffer_destroy(message);
}

/* Build and send the next chunk, or end. */
static void step(struct qr_call *call)
{
    struct qr_rpc *rpc = call->worker->rpc;
    struct qr_rpc_chunk *chunk = &call->worker->chunk;
    struct qr_error e = {0};
    bool more = false;

    qr_rpc_chunk_reset(chunk, call);
    if (!call->stream_done && !qr_chunk_has_room(&chunk->base)) {
        pause_stream(call);
        return;
    }
    quire_status status = QUIRE_OK;
    if (!call->stream_done)
        status = call->method->stream->next(rpc->config.service, call->stream, &chunk->base,
                                            &more, &e);
    const size_t bytes = chunk->base.bytes;
    grpc_byte_buffer *message = bytes ? qr_rpc_chunk_take(chunk) : NULL;
    qr_counter_add(&rpc->bytes_out, bytes);

    if (!status && more && message) {
        send_chunk(call, message);
        return;
    }
    if (!status && more) { /* nothing fitted: pins are short */
        pause_stream(call);
        return;
    }
    qr_stream_close(call);
    if (status && message) {
        grpc_byte_buffer_destroy(message);
        message = NULL;
    }
    qr_call_finish(call, message, status ? &e : NULL);
}

static void chunk_sent(void *owner, bool ok)
{
    struct qr_call *call = owner;

    call->batch_out = false;
    call->batch_since_ms = 0;
    if (ok && !call->canceled) {
        step(call);
        return;
    }
    fail_stream(call, &(struct qr_error){.status = QUIRE_ECANCELED, .text = "canceled"});
}

void qr_stream_resume(struct qr_call *call)
{
    if (!call->paused || !qr_rpc_chunk_may_pin(call))
        return;
    call->worker->paused_count--;
    call->paused = false;
    call->batch_since_ms = 0;
    step(call);
}

void qr_stream_start(struct qr_call *call)
{
    struct qr_worker *worker = call->worker;
    struct qr_rpc *rpc = worker->rpc;
    struct qr_request request;
    struct qr_error e = {0};
    quire_status status =
        qr_call_request(call, &worker->scratch, worker->fragments, worker->flat, &request, &e);

    if (!status)
        status = call->method->stream->open(rpc->config.service, &request, &call->stream, &e);
    if (status) {
        qr_call_finish(call, NULL, &e);
        return;
    }
    call->stream_open = true;
    step(call);
}

/* ---- conversations ---------------------------------------------------------------------- */

static void converse(struct qr_call *call);

static void message_came(void *owner, bool ok)
{
    struct qr_call *call = owner;

    call->batch_out = false;
    if (!ok || call->canceled)
        qr_call_finish(call, NULL,
                       &(struct qr_error){.status = QUIRE_ECANCELED, .text = "canceled"});
    else if (!call->payload) /* the caller has said all */
        qr_call_finish(call, NULL, NULL);
    else
        converse(call);
}

/* Answer call->payload and wait for the next message in the same batch. */
static void converse(struct qr_call *call)
{
    struct qr_worker *worker = call->worker;
    struct qr_request request;
    struct qr_error e = {0};
    grpc_byte_buffer *reply = NULL;
    quire_status status =
        qr_call_request(call, &worker->scratch, worker->fragments, worker->flat, &request, &e);

    if (!status && call->method->holds) {
        qr_call_handle_held(call, &request);
        return;
    }
    if (!status)
        status = qr_call_handle(call, &request, &reply, &e);
    qr_conversation_reply(call, reply, status ? &e : NULL);
}

void qr_conversation_reply(struct qr_call *call, grpc_byte_buffer *reply,
                           const struct qr_error *e)
{
    if (call->payload)
        grpc_byte_buffer_destroy(call->payload);
    call->payload = NULL;
    if (e) {
        qr_call_finish(call, NULL, e);
        return;
    }

    grpc_op ops[3];
    size_t n = qr_call_headers(call, ops, 0);
    ops[n] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
    ops[n++].data.send_message.send_message = reply;
    ops[n] = (grpc_op){.op = GRPC_OP_RECV_MESSAGE};
    ops[n++].data.recv_message.recv_message = &call->payload;
    qr_call_batch(call, ops, n, message_came);
    grpc_byte_buffer_destroy(reply);
}

void qr_conversation_start(struct qr_call *call)
{
    if (call->payload)
        converse(call);
    else
        qr_call_finish(call, NULL, NULL);
}

/* ---- watches ---------------------------------------------------------------------------- */

static void watch_sent(void *owner, bool ok)
{
    struct qr_call *call = owner;

    call->batch_out = false;
    if (!ok || call->canceled)
        qr_call_finish(call, NULL,
                       &(struct qr_error){.status = QUIRE_ECANCELED, .text = "canceled"});
    else
        qr_watch_refresh(call);
}

static void end_watch(struct qr_call *call)
{
    struct qr_error e = {0};

    qr_error_set(&e, QUIRE_EUNAVAILABLE, "the server is shutting down; try again");
    e.retry_after_ms = QR_RETRY_MS;
    qr_call_finish(call, NULL, &e);
}

/* The answer when it differs from the last one sent; NULL when it does not. */
static grpc_byte_buffer *changed_answer(struct qr_call *call, struct qr_error *e)
{
    struct qr_worker *worker = call->worker;
    struct qr_request request;
    grpc_byte_buffer *message = NULL;

    if (qr_call_request(call, &worker->scratch, worker->fragments, worker->flat, &request, e) ||
        qr_call_handle(call, &request, &message, e))
        return NULL;
    const size_t n = grpc_byte_buffer_length(message);
    assert(n <= sizeof(call->watch_reply));
    if (call->headers_sent && n == call->watch_bytes &&
        !memcmp(call->watch_reply, worker->scratch.reply, n)) {
        grpc_byte_buffer_destroy(message);
        return NULL;
    }
    memcpy(call->watch_reply, worker->scratch.reply, n);
    call->watch_bytes = n;
    return message;
}

void qr_watch_refresh(struct qr_call *call)
{
    struct qr_rpc *rpc = call->worker->rpc;
    struct qr_error e = {0};

    if (call->batch_out || call->finishing)
        return;
    const uint64_t generation = atomic_load(&rpc->generation);
    if (call->seen_generation != generation) {
        call->seen_generation = generation;
        grpc_byte_buffer *message = changed_answer(call, &e);
        if (message) {
            grpc_op ops[2];
            size_t n = qr_call_headers(call, ops, 0);
            ops[n] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
            ops[n++].data.send_message.send_message = message;
            qr_call_batch(call, ops, n, watch_sent);
            grpc_byte_buffer_destroy(message);
            return;
        }
        if (e.status) {
            qr_call_finish(call, NULL, &e);
            return;
        }
    }
    if (atomic_load(&rpc->closing))
        end_watch(call);
}

void qr_watch_start(struct qr_call *call)
{
    call->seen_generation = UINT64_MAX; /* no generation: the first answer is always sent */
    qr_watch_refresh(call);
}
