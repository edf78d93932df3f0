/* SPDX-License-Identifier: Apache-2.0
 *
 * client/transport.h without a network: one thread delivers events in order, a
 * peer written by the test answers. Included by one test program it takes the
 * place of transport*.c. Must not know what messages mean.
 */
#ifndef FAKE_TRANSPORT_H
#define FAKE_TRANSPORT_H

#include <assert.h>
#include <pthread.h>

#include "client/transport.h"
#include "tests/test.h"

/* What the test plays: a request message arrived, or (bytes NULL) no more will. Runs on the
 * fake's thread; answers with fake_reply and fake_end, now or later. */
typedef void (*fake_peer)(struct qr_call *call, enum qr_method method, const uint8_t *bytes,
                          size_t n);
static fake_peer fake_on_request;
static size_t fake_fragment = 1000; /* bytes of a fragment of a reply */
static unsigned fake_calls;         /* started so far; read it when nothing runs */

enum job_kind { JOB_REQUEST, JOB_WRITABLE, JOB_CLOSED, JOB_CANCEL };

struct fake_job {
    enum job_kind kind;
    struct qr_call *call;
    uint8_t *bytes;
    size_t n;
    struct qr_piece pieces[QR_PIECES_MAX];
    size_t count;
    struct fake_job *next;
};

struct qr_transport {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct fake_job *first, **last; /* guarded by lock */
    bool stop;                      /* guarded by lock */
    size_t live;                    /* guarded by lock */
};

struct qr_call {
    struct qr_transport *transport;
    enum qr_method method;
    const struct qr_call_events *events;
    void *context;
    unsigned refs; /* guarded by transport->lock */
    bool ended;    /* guarded by transport->lock */
    bool stream;
};

quire_status qr_transport_use_local(struct qr_transport *transport,
                                    const struct qr_local_offer *offer, struct qr_error *e)
{
    (void)transport;
    (void)offer;
    return qr_error_set(e, QUIRE_EUNAVAILABLE, "the fake has none");
}

bool qr_transport_is_local(struct qr_transport *transport)
{
    (void)transport;
    return false;
}

const char *qr_method_name(enum qr_method method)
{
    return method == QR_METHOD_FETCH ? "Fetch" : "Call";
}

static void fake_push(struct qr_call *call, enum job_kind kind, const struct qr_piece *pieces,
                      size_t count)
{
    struct fake_job *job = calloc(1, sizeof(*job));

    job->kind = kind;
    job->call = qr_call_hold(call);
    for (size_t i = 0; i < count; i++)
        job->n += pieces[i].bytes;
    job->bytes = malloc(job->n + 1);
    size_t at = 0;
    for (size_t i = 0; i < count; at += pieces[i++].bytes) {
        memcpy(job->bytes + at, pieces[i].data, pieces[i].bytes);
        job->pieces[i] = pieces[i];
    }
    job->count = count;
    pthread_mutex_lock(&call->transport->lock);
    *call->transport->last = job;
    call->transport->last = &job->next;
    pthread_cond_broadcast(&call->transport->changed);
    pthread_mutex_unlock(&call->transport->lock);
}

/* A reply message, cut into fragments. Borrowed. */
static inline void fake_reply(struct qr_call *call, const uint8_t *bytes, size_t n)
{
    const size_t count = n / fake_fragment + 1;
    struct qr_wire_fragment *fragments = calloc(count, sizeof(*fragments));

    for (size_t i = 0; i < count; i++) {
        fragments[i].data = bytes + i * fake_fragment;
        fragments[i].bytes = i + 1 < count ? fake_fragment : n - i * fake_fragment;
    }
    call->events->message(call->context, fragments, count);
    free(fragments);
}

static inline void fake_reply_message(struct qr_call *call, const ProtobufCMessage *message)
{
    const size_t n = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(n + 1);

    protobuf_c_message_pack(message, bytes);
    fake_reply(call, bytes, n);
    free(bytes);
}

/* End a call; e NULL: without details. */
static inline void fake_end(struct qr_call *call, int grpc_status, const struct qr_error *e)
{
    uint8_t details[QR_WIRE_STATUS_BYTES_MAX];
    struct qr_call_result result = {.grpc_status = grpc_status, .text = "fake"};

    pthread_mutex_lock(&call->transport->lock);
    const bool late = call->ended;
    call->ended = true;
    pthread_mutex_unlock(&call->transport->lock);
    if (late)
        return;
    if (e) {
        result.details = details;
        result.details_bytes = qr_wire_status_pack(e, details);
    }
    call->events->done(call->context, &result);
    qr_call_release(call);
}

static bool fake_ended(struct qr_call *call)
{
    pthread_mutex_lock(&call->transport->lock);
    const bool ended = call->ended;
    pthread_mutex_unlock(&call->transport->lock);
    return ended;
}

static void fake_run(struct fake_job *job)
{
    struct qr_call *call = job->call;

    for (size_t i = 0; i < job->count; i++)
        if (job->pieces[i].release)
            job->pieces[i].release(job->pieces[i].owner);
    if (job->kind == JOB_CANCEL) {
        fake_end(call, 1, NULL);
    } else if (!fake_ended(call)) {
        if (job->kind == JOB_REQUEST)
            fake_on_request(call, call->method, job->bytes, job->n);
        if (job->kind == JOB_CLOSED)
            fake_on_request(call, call->method, NULL, 0);
        if (job->kind != JOB_CLOSED && call->stream && call->events->writable &&
            !fake_ended(call))
            call->events->writable(call->context);
    }
    qr_call_release(call);
    free(job->bytes);
    free(job);
}

static void *fake_serve(void *argument)
{
    struct qr_transport *t = argument;

    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->first && !(t->stop && t->live == 0))
            pthread_cond_wait(&t->changed, &t->lock);
        struct fake_job *job = t->first;
        if (!job)
            break;
        t->first = job->next;
        if (!t->first)
            t->last = &t->first;
        pthread_mutex_unlock(&t->lock);
        fake_run(job);
        pthread_mutex_lock(&t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

quire_status qr_transport_open(const char *target, uint32_t threads, struct qr_transport **out,
                               struct qr_error *e)
{
    struct qr_transport *t = calloc(1, sizeof(*t));

    (void)target, (void)threads, (void)e;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    t->last = &t->first;
    pthread_create(&t->thread, NULL, fake_serve, t);
    *out = t;
    return QUIRE_OK;
}

void qr_transport_close(struct qr_transport **transport)
{
    struct qr_transport *t = *transport;
    if (!t)
        return;

    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
    *transport = NULL;
}

struct qr_call *qr_call_new(struct qr_transport *transport,
                            const struct qr_call_options *options,
                            const struct qr_call_events *events, void *context)
{
    struct qr_call *call = calloc(1, sizeof(*call));

    *call = (struct qr_call){transport, options->method, events, context, 2, false, false};
    pthread_mutex_lock(&transport->lock);
    transport->live++;
    fake_calls++;
    pthread_mutex_unlock(&transport->lock);
    return call;
}

struct qr_call *qr_call_hold(struct qr_call *call)
{
    pthread_mutex_lock(&call->transport->lock);
    call->refs++;
    pthread_mutex_unlock(&call->transport->lock);
    return call;
}

void qr_call_release(struct qr_call *call)
{
    struct qr_transport *t = call->transport;

    pthread_mutex_lock(&t->lock);
    const bool last = --call->refs == 0;
    if (last && --t->live == 0)
        pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    if (last)
        free(call);
}

void qr_call_start_unary(struct qr_call *call, const struct qr_piece *pieces, size_t count)
{
    fake_push(call, JOB_REQUEST, pieces, count);
}

void qr_call_start_reader(struct qr_call *call, const struct qr_piece *pieces, size_t count)
{
    fake_push(call, JOB_REQUEST, pieces, count);
}

void qr_call_start_writer(struct qr_call *call)
{
    call->stream = true;
    fake_push(call, JOB_WRITABLE, NULL, 0);
}

bool qr_call_send(struct qr_call *call, const struct qr_piece *pieces, size_t count)
{
    fake_push(call, JOB_REQUEST, pieces, count);
    return true;
}

void qr_call_close_send(struct qr_call *call)
{
    fake_push(call, JOB_CLOSED, NULL, 0);
}

void qr_call_cancel(struct qr_call *call)
{
    fake_push(call, JOB_CANCEL, NULL, 0);
}

#endif
