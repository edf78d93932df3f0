/* SPDX-License-Identifier: Apache-2.0
 *
 * One call: batches, their tags, and the one last event.
 *
 *   new -> start -> (message | writable)* -> done
 *
 * Invariants:
 *   1. `due` counts batches that may bring an event, `pending` all batches, both under `lock`.
 * The one that brings `due` to 0 sets `over` and fires `done`: exactly once, last. Sends are
 * not waited for: behind a peer that stopped reading they outlive any deadline.
 *   2. The gRPC call, whose trailers `done` reads, lives until `pending` is 0: slices of
 * messages never sent are released then.
 *   3. No lock is held while gRPC runs or an event fires.
 */
#include "transport_grpc.h"

#include <assert.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/support/alloc.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FRAGMENTS_MAX 1024 /* slices of a received message; more are joined first */

static void release(struct qr_call *base);

static struct qr_grpc_call *of(struct qr_call *base)
{
    return (struct qr_grpc_call *)base; /* its first member */
}

/* ---- batches under way ------------------------------------------------------------------ */

/* The gRPC call with a reference, and one more batch counted; NULL when the call is over.
 * event: its end may bring an event. */
static grpc_call *begin_batch(struct qr_grpc_call *call, bool event)
{
    pthread_mutex_lock(&call->lock);
    grpc_call *g = call->over ? NULL : call->grpc;
    if (g) {
        call->pending++;
        call->due += event;
        grpc_call_ref(g);
    }
    pthread_mutex_unlock(&call->lock);
    return g;
}

static void start_batch(grpc_call *g, const grpc_op *ops, size_t count, struct qr_tag *tag)
{
    atomic_store(&tag->armed, true);
    const grpc_call_error error = grpc_call_start_batch(g, ops, count, tag, NULL);

    assert(error == GRPC_CALL_OK);
    (void)error;
    grpc_call_unref(g);
}

static void fire_done(struct qr_grpc_call *call)
{
    char *text = grpc_slice_to_c_string(call->details);
    struct qr_call_result result = {.grpc_status = (int)call->status, .text = text};

    for (size_t i = 0; i < call->trailing.count; i++) {
        const grpc_metadata *m = &call->trailing.metadata[i];
        if (grpc_slice_str_cmp(m->key, "grpc-status-details-bin") == 0) {
            result.details = GRPC_SLICE_START_PTR(m->value);
            result.details_bytes = GRPC_SLICE_LENGTH(m->value);
        }
    }
    call->events->done(call->context, &result);
    gpr_free(text);
}

static void end_event(struct qr_grpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    const bool last = --call->due == 0;
    call->over = call->over || last;
    pthread_mutex_unlock(&call->lock);
    if (last)
        fire_done(call);
}

static void end_batch(struct qr_grpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    const bool last = --call->pending == 0;
    pthread_mutex_unlock(&call->lock);
    if (!last)
        return;
    grpc_call_unref(call->grpc);
    release(&call->base);
}

/* ---- tags ------------------------------------------------------------------------------- */

static void post_receive(struct qr_grpc_call *call)
{
    grpc_call *g = begin_batch(call, true);
    if (!g)
        return;

    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &call->received;
    start_batch(g, &op, 1, &call->arrived);
}

/* All bytes in one slice: for a message in more slices than the array has room for. */
static void deliver_joined(struct qr_grpc_call *call, grpc_byte_buffer_reader *reader)
{
    grpc_slice all = grpc_byte_buffer_reader_readall(reader);
    const struct qr_wire_fragment one = {.data = GRPC_SLICE_START_PTR(all),
                                         .bytes = GRPC_SLICE_LENGTH(all)};

    call->events->message(call->context, &one, 1);
    grpc_slice_unref(all);
}

static void deliver(struct qr_grpc_call *call, grpc_byte_buffer *buffer)
{
    struct qr_wire_fragment fragments[FRAGMENTS_MAX];
    size_t count = 0;
    grpc_byte_buffer_reader reader;
    grpc_slice *slice;

    if (!grpc_byte_buffer_reader_init(&reader, buffer))
        return;
    if (buffer->data.raw.slice_buffer.count > FRAGMENTS_MAX) {
        deliver_joined(call, &reader);
    } else {
        while (grpc_byte_buffer_reader_peek(&reader, &slice)) {
            fragments[count++] = (struct qr_wire_fragment){.data = GRPC_SLICE_START_PTR(*slice),
                                                           .bytes = GRPC_SLICE_LENGTH(*slice)};
        }
        call->events->message(call->context, fragments, count);
    }
    grpc_byte_buffer_reader_destroy(&reader);
}

static void receive(struct qr_grpc_call *call, grpc_byte_buffer *buffer)
{
    deliver(call, buffer);
    grpc_byte_buffer_destroy(buffer);
}

static void on_arrived(struct qr_grpc_call *call, bool ok)
{
    grpc_byte_buffer *buffer = call->received;

    call->received = NULL;
    if (ok && buffer) {
        if (!call->ordered)
            post_receive(call);
        receive(call, buffer);
        if (call->ordered)
            post_receive(call);
    }
    end_event(call);
    end_batch(call);
}

static void drop_sending(struct qr_grpc_call *call)
{
    if (call->sending)
        grpc_byte_buffer_destroy(call->sending);
    call->sending = NULL;
}

/* May an event be fired? Then it is due until end_event. */
static bool begin_event(struct qr_grpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    const bool open = !call->over;
    call->due += open;
    pthread_mutex_unlock(&call->lock);
    return open;
}

static void on_sent(struct qr_grpc_call *call, bool ok)
{
    drop_sending(call);
    if (ok && call->events->writable && begin_event(call)) {
        call->events->writable(call->context);
        end_event(call);
    }
    end_batch(call);
}

static void on_closed(struct qr_grpc_call *call, bool ok)
{
    (void)ok;
    end_batch(call);
}

static void on_ended(struct qr_grpc_call *call, bool ok)
{
    (void)ok;
    end_event(call);
    end_batch(call);
}

static void on_unary(struct qr_grpc_call *call, bool ok)
{
    grpc_byte_buffer *buffer = call->received;

    call->received = NULL;
    if (buffer)
        receive(call, buffer);
    on_ended(call, ok);
}

/* ---- life ------------------------------------------------------------------------------- */

static struct qr_grpc_call *take_pooled(struct qr_transport *t)
{
    pthread_mutex_lock(&t->lock);
    struct qr_grpc_call *call = t->free_calls;
    if (call)
        t->free_calls = call->next_free;
    t->live++;
    pthread_mutex_unlock(&t->lock);
    return call;
}

static void give_back(struct qr_transport *t, struct qr_grpc_call *call)
{
    pthread_mutex_lock(&t->lock);
    if (call) {
        call->next_free = t->free_calls;
        t->free_calls = call;
    }
    if (--t->live == 0)
        pthread_cond_broadcast(&t->idle);
    pthread_mutex_unlock(&t->lock);
}

void qr_call_pool_drain(struct qr_transport *t)
{
    while (t->free_calls) {
        struct qr_grpc_call *call = t->free_calls;
        t->free_calls = call->next_free;
        pthread_mutex_destroy(&call->lock);
        free(call);
    }
}

static struct qr_grpc_call *make_call(struct qr_transport *t)
{
    struct qr_grpc_call *call = calloc(1, sizeof(*call));
    if (!call)
        return NULL;

    pthread_mutex_init(&call->lock, NULL);
    call->transport = t;
    return call;
}

static gpr_timespec deadline_of(uint64_t deadline_ns)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t left =
        (int64_t)(deadline_ns - ((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec));
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_nanos(left > 0 ? left : 0, GPR_TIMESPAN));
}

/* Leaves `armed`, which the queue's threads read before anything of the tag, to start_batch. */
static void set_tag(struct qr_tag *tag, void (*run)(struct qr_grpc_call *call, bool ok),
                    struct qr_grpc_call *call)
{
    tag->run = run;
    tag->call = call;
}

static void hold(struct qr_call *base)
{
    struct qr_grpc_call *call = of(base);

    pthread_mutex_lock(&call->lock);
    call->refs++;
    pthread_mutex_unlock(&call->lock);
}

static void release(struct qr_call *base)
{
    struct qr_grpc_call *call = of(base);

    pthread_mutex_lock(&call->lock);
    const bool last = --call->refs == 0;
    pthread_mutex_unlock(&call->lock);
    if (!last)
        return;
    grpc_metadata_array_destroy(&call->initial);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_slice_unref(call->details);
    give_back(call->transport, call);
}

/* ---- sending ---------------------------------------------------------------------------- */

static grpc_byte_buffer *buffer_of(const struct qr_piece *pieces, size_t count)
{
    grpc_slice slices[QR_PIECES_MAX];

    assert(count <= QR_PIECES_MAX);
    for (size_t i = 0; i < count; i++) {
        const struct qr_piece *p = &pieces[i];
        void *data = (void *)(uintptr_t)p->data;
        slices[i] = p->release
                        ? grpc_slice_new_with_user_data(data, p->bytes, p->release, p->owner)
                        : grpc_slice_from_copied_buffer(data, p->bytes);
    }
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(slices, count);
    for (size_t i = 0; i < count; i++)
        grpc_slice_unref(slices[i]);
    return buffer;
}

static grpc_op send_initial(const struct qr_grpc_call *call)
{
    grpc_op op = {.op = GRPC_OP_SEND_INITIAL_METADATA};

    if (call->wait_for_ready)
        op.flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY |
                   GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
    return op;
}

static grpc_op send_message(grpc_byte_buffer *buffer)
{
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};

    op.data.send_message.send_message = buffer;
    return op;
}

static grpc_op receive_initial(struct qr_grpc_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_INITIAL_METADATA};

    op.data.recv_initial_metadata.recv_initial_metadata = &call->initial;
    return op;
}

static grpc_op receive_status(struct qr_grpc_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};

    op.data.recv_status_on_client.trailing_metadata = &call->trailing;
    op.data.recv_status_on_client.status = &call->status;
    op.data.recv_status_on_client.status_details = &call->details;
    return op;
}

/* First batch of a stream: its end. Until it completes the call cannot be over. */
static void post_end(struct qr_grpc_call *call)
{
    const grpc_op ops[] = {receive_initial(call), receive_status(call)};

    start_batch(begin_batch(call, true), ops, 2, &call->ended);
}

/* The request of a call that has just one. */
static void send_only(struct qr_grpc_call *call, const struct qr_piece *pieces, size_t count)
{
    grpc_byte_buffer *buffer = buffer_of(pieces, count);
    grpc_call *g = begin_batch(call, false);
    if (!g) { /* failed already */
        grpc_byte_buffer_destroy(buffer);
        return;
    }
    call->sending = buffer;
    const grpc_op ops[] = {
        send_initial(call), send_message(buffer), {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT}};
    start_batch(g, ops, 3, &call->sent);
}

static void start_unary(struct qr_call *base, const struct qr_piece *pieces, size_t count)
{
    struct qr_grpc_call *call = of(base);
    grpc_op receive_op = {.op = GRPC_OP_RECV_MESSAGE};

    receive_op.data.recv_message.recv_message = &call->received;
    const grpc_op ops[] = {receive_initial(call), receive_op, receive_status(call)};
    start_batch(begin_batch(call, true), ops, 3, &call->unary);
    send_only(call, pieces, count);
}

static void start_reader(struct qr_call *base, const struct qr_piece *pieces, size_t count)
{
    struct qr_grpc_call *call = of(base);

    post_end(call);
    send_only(call, pieces, count);
    post_receive(call);
}

static void start_writer(struct qr_call *base)
{
    struct qr_grpc_call *call = of(base);

    post_end(call);
    grpc_call *g = begin_batch(call, false);
    if (!g)
        return;
    const grpc_op op = send_initial(call);
    start_batch(g, &op, 1, &call->sent);
    post_receive(call);
}

static bool send_one(struct qr_call *base, const struct qr_piece *pieces, size_t count)
{
    struct qr_grpc_call *call = of(base);
    grpc_byte_buffer *buffer = buffer_of(pieces, count);
    grpc_call *g = begin_batch(call, false);
    if (!g) {
        grpc_byte_buffer_destroy(buffer);
        return false;
    }
    call->sending = buffer;
    const grpc_op op = send_message(buffer);
    start_batch(g, &op, 1, &call->sent);
    return true;
}

static void close_send(struct qr_call *base)
{
    struct qr_grpc_call *call = of(base);
    grpc_call *g = begin_batch(call, false);

    if (!g)
        return;
    const grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    start_batch(g, &op, 1, &call->closed);
}

static void cancel(struct qr_call *base)
{
    struct qr_grpc_call *call = of(base);

    pthread_mutex_lock(&call->lock);
    grpc_call *g = call->over ? NULL : call->grpc;
    if (g)
        grpc_call_ref(g);
    pthread_mutex_unlock(&call->lock);
    if (!g)
        return;
    grpc_call_cancel(g, NULL);
    grpc_call_unref(g);
}

static const struct qr_call_ops call_ops = {start_unary, start_reader, start_writer, send_one,
                                            close_send,  cancel,       hold,         release};

struct qr_call *qr_grpc_call_new(struct qr_transport *transport,
                                 const struct qr_call_options *options,
                                 const struct qr_call_events *events, void *context)
{
    struct qr_grpc_call *call = take_pooled(transport);
    if (!call && !(call = make_call(transport))) {
        give_back(transport, NULL);
        return NULL;
    }

    call->base.ops = &call_ops;
    call->events = events;
    call->context = context;
    call->ordered = options->ordered;
    call->pending = call->due = 0;
    call->over = false;
    call->refs = 2;
    call->status = GRPC_STATUS_UNKNOWN;
    call->details = grpc_empty_slice();
    grpc_metadata_array_init(&call->initial);
    grpc_metadata_array_init(&call->trailing);
    call->wait_for_ready = options->wait_for_ready;
    set_tag(&call->unary, on_unary, call);
    set_tag(&call->sent, on_sent, call);
    set_tag(&call->closed, on_closed, call);
    set_tag(&call->arrived, on_arrived, call);
    set_tag(&call->ended, on_ended, call);
    call->grpc = grpc_channel_create_registered_call(
        transport->channel, NULL, GRPC_PROPAGATE_DEFAULTS, transport->queue,
        transport->methods[options->method], deadline_of(options->deadline_ns), NULL);
    return &call->base;
}
