/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads for handlers that compute for long, behind a bounded queue. A thread
 * sends the reply itself; the call's worker takes over again when the batch is
 * back (rpc_call.h, invariant 3).
 */
#include <stdlib.h>

#include "rpc_call.h"

struct lane {
    struct qr_deferred *deferred;
    pthread_t thread;
    bool started;
    struct qr_scratch scratch;
    struct qr_wire_fragment *fragments;
    uint8_t *flat;
};

struct qr_deferred {
    struct qr_deferred_config config; /* const */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct qr_call *first, *last; /* guarded by lock */
    uint32_t waiting;             /* guarded by lock */
    bool ending;                  /* guarded by lock */
    uint32_t lane_count;          /* const after create */
    struct lane lanes[];
};

static struct qr_call *take(struct qr_deferred *deferred)
{
    pthread_mutex_lock(&deferred->lock);
    while (!deferred->first && !deferred->ending)
        pthread_cond_wait(&deferred->changed, &deferred->lock);
    struct qr_call *call = deferred->first;
    if (call) {
        deferred->first = call->deferred_next;
        if (!deferred->first)
            deferred->last = NULL;
        deferred->waiting--;
    }
    pthread_mutex_unlock(&deferred->lock);
    return call;
}

static void *run(void *arg)
{
    struct lane *lane = arg;

    for (struct qr_call *call; (call = take(lane->deferred));) {
        struct qr_request request;
        struct qr_error e = {0};
        grpc_byte_buffer *message = NULL;
        quire_status status = QUIRE_OK;

        if (call->canceled)
            status = qr_error_set(&e, QUIRE_ECANCELED, "canceled");
        if (!status)
            status = qr_call_request(call, &lane->scratch, lane->fragments, lane->flat,
                                     &request, &e);
        request.may_wait = true;
        if (!status && call->method->holds) {
            qr_call_handle_held(call, &request);
            continue;
        }
        if (!status)
            status = qr_call_handle(call, &request, &message, &e);
        qr_call_finish(call, message, status ? &e : NULL);
    }
    return NULL;
}

static quire_status start(struct lane *lane, struct qr_error *e)
{
    const uint64_t message_bytes_max = lane->deferred->config.rpc->config.message_bytes_max;

    lane->fragments = calloc(QR_FRAGMENTS_MAX, sizeof(*lane->fragments));
    lane->flat = malloc((size_t)message_bytes_max);
    if (!lane->fragments || !lane->flat || qr_scratch_create(&lane->scratch, message_bytes_max))
        return qr_error_set(e, QUIRE_ENOMEM,
                            "no memory for the buffers of a thread for %s calls",
                            lane->deferred->config.what);
    if (pthread_create(&lane->thread, NULL, run, lane))
        return qr_error_set(e, QUIRE_ENOMEM, "cannot start a thread for %s calls",
                            lane->deferred->config.what);
    lane->started = true;
    return QUIRE_OK;
}

quire_status qr_deferred_create(const struct qr_deferred_config *config,
                                struct qr_deferred **out, struct qr_error *e)
{
    const uint32_t count = config->threads;
    struct qr_deferred *deferred =
        calloc(1, sizeof(*deferred) + count * sizeof(deferred->lanes[0]));
    quire_status status = QUIRE_OK;

    if (!deferred)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for %u threads for %s calls", count,
                            config->what);
    deferred->config = *config;
    pthread_mutex_init(&deferred->lock, NULL);
    pthread_cond_init(&deferred->changed, NULL);
    for (; !status && deferred->lane_count < count; deferred->lane_count++) {
        deferred->lanes[deferred->lane_count].deferred = deferred;
        status = start(&deferred->lanes[deferred->lane_count], e);
    }
    if (status)
        qr_deferred_destroy(&deferred);
    else
        *out = deferred;
    return status;
}

void qr_deferred_destroy(struct qr_deferred **pointer)
{
    struct qr_deferred *deferred = *pointer;

    if (!deferred)
        return;
    pthread_mutex_lock(&deferred->lock);
    deferred->ending = true;
    pthread_cond_broadcast(&deferred->changed);
    pthread_mutex_unlock(&deferred->lock);
    for (uint32_t i = 0; i < deferred->lane_count; i++) {
        struct lane *lane = &deferred->lanes[i];
        if (lane->started)
            pthread_join(lane->thread, NULL);
        qr_scratch_destroy(&lane->scratch);
        free(lane->fragments);
        free(lane->flat);
    }
    pthread_cond_destroy(&deferred->changed);
    pthread_mutex_destroy(&deferred->lock);
    free(deferred);
    *pointer = NULL;
}

quire_status qr_deferred_put(struct qr_deferred *deferred, struct qr_call *call,
                             struct qr_error *e)
{
    const uint32_t limit = deferred->config.queue_max;
    bool full;

    pthread_mutex_lock(&deferred->lock);
    full = deferred->waiting >= limit;
    if (!full) {
        call->deferred_next = NULL;
        if (deferred->last)
            deferred->last->deferred_next = call;
        else
            deferred->first = call;
        deferred->last = call;
        deferred->waiting++;
        pthread_cond_signal(&deferred->changed);
    }
    pthread_mutex_unlock(&deferred->lock);
    if (!full)
        return QUIRE_OK;
    qr_error_set(e, QUIRE_EFULL, "%u %s calls wait already (%s); try again", limit,
                 deferred->config.what, deferred->config.option);
    e->retry_after_ms = QR_RETRY_MS;
    return QUIRE_EFULL;
}
