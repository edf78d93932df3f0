/* SPDX-License-Identifier: Apache-2.0
 *
 * One thread and its completion queue: arming contexts, running events, and a
 * tick that looks at stalls, paused streams and watches.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "rpc_call.h"

/* ---- arming ----------------------------------------------------------------------------- */

static struct qr_call *fresh_call(struct qr_worker *worker, uint32_t method_index)
{
    struct qr_rpc *rpc = worker->rpc;
    struct qr_call *call = qr_pool_take(rpc->calls);

    if (!call)
        return NULL;
    memset(call, 0, sizeof(*call));
    call->worker = worker;
    call->method_index = method_index;
    if (method_index < rpc->config.method_count)
        call->method = &rpc->config.methods[method_index];
    else
        grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    atomic_init(&call->refs, 1);
    atomic_init(&call->pins, 0);
    return call;
}

void qr_worker_arm(struct qr_worker *worker, uint32_t method_index)
{
    struct qr_rpc *rpc = worker->rpc;
    const bool generic = method_index == rpc->config.method_count;
    struct qr_call *call = fresh_call(worker, method_index);
    grpc_call_error error;

    if (!call) {
        worker->starved[method_index]++;
        worker->starved_count++;
        return;
    }
    void *tag = qr_event_hand(&call->accepted, qr_call_accepted, call);
    if (generic)
        error = grpc_server_request_call(rpc->server, &call->call, &call->details,
                                         &call->metadata, worker->cq, worker->cq, tag);
    else
        error = grpc_server_request_registered_call(
            rpc->server, rpc->registered[method_index], &call->call, &call->deadline,
            &call->metadata, &call->payload, worker->cq, worker->cq, tag);
    assert(error == GRPC_CALL_OK);
    (void)error;
}

static void arm_starved(struct qr_worker *worker)
{
    worker->starved_count = 0;
    for (uint32_t i = 0; i <= worker->rpc->config.method_count; i++) {
        const uint32_t count = worker->starved[i];
        worker->starved[i] = 0;
        for (uint32_t k = 0; k < count; k++)
            qr_worker_arm(worker, i);
    }
}

/* ---- live calls ------------------------------------------------------------------------- */

static bool is_watch(const struct qr_call *call)
{
    return call->method && call->method->kind == QR_METHOD_WATCH;
}

void qr_worker_add(struct qr_worker *worker, struct qr_call *call)
{
    call->next = worker->live;
    call->previous = NULL;
    if (worker->live)
        worker->live->previous = call;
    worker->live = call;
    worker->live_count++;
    qr_counter_add(&worker->rpc->calls_count, 1);
    qr_counter_add(&worker->rpc->live, 1);
    if (is_watch(call))
        qr_counter_add(&worker->rpc->watches, 1);
}

void qr_worker_remove(struct qr_worker *worker, struct qr_call *call)
{
    if (call->previous)
        call->previous->next = call->next;
    else
        worker->live = call->next;
    if (call->next)
        call->next->previous = call->previous;
    worker->live_count--;
    if (is_watch(call))
        qr_counter_sub(&worker->rpc->watches, 1);
    qr_counter_sub(&worker->rpc->live, 1);
}

static void cancel_stalled(struct qr_call *call, uint64_t now_ms)
{
    struct qr_rpc *rpc = call->worker->rpc;

    if (!call->stream_open || !call->batch_since_ms ||
        now_ms - call->batch_since_ms < rpc->config.stall_ms)
        return;
    call->batch_since_ms = 0;
    qr_counter_add(&rpc->stalled, 1);
    grpc_call_cancel_with_status(call->call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                 "the reader took nothing for longer than stall_timeout", NULL);
}

/* A visit may end the call and free its place in the list: take the next one first. */
static void visit_live(struct qr_worker *worker, bool whole_tick)
{
    const uint64_t now_ms = qr_clock_ms();

    for (struct qr_call *call = worker->live, *next; call; call = next) {
        next = call->next;
        if (whole_tick)
            cancel_stalled(call, now_ms);
        if (whole_tick && is_watch(call))
            qr_watch_refresh(call);
        else if (call->paused)
            qr_stream_resume(call);
    }
}

/* ---- the thread ------------------------------------------------------------------------- */

static void tick(struct qr_worker *worker)
{
    const uint64_t now_ms = qr_clock_ms();
    const bool whole = now_ms >= worker->tick_ms;

    if (whole)
        worker->tick_ms = now_ms + QR_TICK_MS;
    if (whole || worker->paused_count)
        visit_live(worker, whole);
    if (whole && worker->starved_count && !atomic_load(&worker->rpc->closing))
        arm_starved(worker);
}

static gpr_timespec next_deadline(const struct qr_worker *worker)
{
    const uint64_t now_ms = qr_clock_ms();
    uint64_t wait_ms = worker->tick_ms > now_ms ? worker->tick_ms - now_ms : 0;

    if (worker->paused_count && wait_ms > QR_PAUSE_MS)
        wait_ms = QR_PAUSE_MS;
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_millis((int64_t)wait_ms, GPR_TIMESPAN));
}

bool qr_worker_step(struct qr_worker *worker, gpr_timespec deadline)
{
    const grpc_event event = grpc_completion_queue_next(worker->cq, deadline, NULL);

    if (event.type == GRPC_OP_COMPLETE)
        qr_event_take(event.tag, event.success != 0);
    return event.type != GRPC_QUEUE_SHUTDOWN;
}

static void *run(void *arg)
{
    struct qr_worker *worker = arg;

    while (qr_worker_step(worker, next_deadline(worker)))
        tick(worker);
    return NULL;
}

static void arm_all(struct qr_worker *worker)
{
    const size_t generic = worker->rpc->config.method_count;

    for (uint32_t i = 0; i <= generic; i++)
        for (int k = 0; k < (i == generic ? QR_ARMED_GENERIC : QR_ARMED_CALLS); k++)
            qr_worker_arm(worker, i);
}

quire_status qr_worker_start(struct qr_worker *worker, struct qr_error *e)
{
    const struct qr_rpc_config *config = &worker->rpc->config;

    worker->fragments = calloc(QR_FRAGMENTS_MAX, sizeof(*worker->fragments));
    worker->flat = malloc((size_t)config->message_bytes_max);
    worker->starved = calloc(config->method_count + 1, sizeof(*worker->starved));
    if (!worker->fragments || !worker->flat || !worker->starved ||
        qr_scratch_create(&worker->scratch, config->message_bytes_max))
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for a server thread's buffers");
    /* Before the thread runs: a server that fails to start may end before it would get to it.
     */
    arm_all(worker);
    worker->tick_ms = qr_clock_ms() + QR_TICK_MS;
    if (pthread_create(&worker->thread, NULL, run, worker))
        return qr_error_set(e, QUIRE_ENOMEM, "cannot start a server thread");
    worker->started = true;
    return QUIRE_OK;
}
