/* SPDX-License-Identifier: Apache-2.0
 *
 * Replies that are held back: the handler has packed its reply, and somebody else
 * says when it may go, perhaps before the handler has returned. Whoever of the
 * two comes last sends it; until then the call's batch is theirs (rpc_call.h,
 * invariant 3).
 */
#include "rpc_call.h"

static void send(struct qr_call *call)
{
    const struct qr_error *e = call->held_error.status ? &call->held_error : NULL;
    grpc_byte_buffer *reply = call->held_reply;

    call->held_reply = NULL;
    if (e && reply) {
        grpc_byte_buffer_destroy(reply);
        reply = NULL;
    }
    if (call->method->kind == QR_METHOD_CONVERSATION)
        qr_conversation_reply(call, reply, e);
    else
        qr_call_finish(call, reply, e);
}

static void party_left(struct qr_call *call)
{
    if (atomic_fetch_sub_explicit(&call->hold_parties, 1, memory_order_acq_rel) == 1)
        send(call);
}

static void release(struct qr_hold *hold, const struct qr_error *e)
{
    struct qr_call *call =
        (struct qr_call *)(void *)((char *)hold - offsetof(struct qr_call, hold));

    if (e)
        call->held_error = *e;
    party_left(call);
}

void qr_call_handle_held(struct qr_call *call, struct qr_request *request)
{
    const bool unary = call->method->kind == QR_METHOD_UNARY;
    struct qr_error e = {0};

    /* Both parties are there until it is known that nobody holds the reply. */
    atomic_store_explicit(&call->hold_parties, 2, memory_order_relaxed);
    call->hold.release = release;
    call->held_error.status = QUIRE_OK;
    call->batch_out = true;
    call->finishing = unary;
    request->hold = &call->hold;
    const quire_status status = qr_call_handle(call, request, &call->held_reply, &e);
    if (status == QUIRE_EAGAIN && !request->may_wait && call->worker->rpc->waiting &&
        !qr_deferred_put(call->worker->rpc->waiting, call, &e))
        return; /* a thread that may wait has it now */
    if (status)
        call->held_error = e;
    if (!call->held)
        atomic_fetch_sub_explicit(&call->hold_parties, 1, memory_order_relaxed);
    party_left(call);
}
