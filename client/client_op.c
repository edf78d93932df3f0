/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations: waiters, the first error, one restart, completion exactly once.
 *
 * Invariants:
 *   1. `done` is set once, by the drop that brings `holds` to 0; nothing changes after it.
 *   2. A running call holds the operation; so does each buffer lent to the transport. So the
 *      caller's memory is never read or written after `done`.
 *   3. The first error stays. Cancel only asks: the call's end completes the operation.
 */
#include "client_op.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

uint64_t qr_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- life ------------------------------------------------------------------------------- */

static struct quire_op *op_make(void)
{
    struct quire_op *op = calloc(1, sizeof(*op));
    pthread_condattr_t monotonic;

    if (!op)
        return NULL;
    pthread_mutex_init(&op->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&op->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return op;
}

struct quire_op *qr_op_take(struct quire_client *client, struct quire_session *session,
                            const struct qr_op_kind *kind, uint32_t timeout_ms)
{
    pthread_mutex_lock(&client->lock);
    struct quire_op *op = client->free_ops;
    if (op)
        client->free_ops = op->next_free;
    pthread_mutex_unlock(&client->lock);
    if (!op && !(op = op_make()))
        return NULL;

    op->client = client;
    op->session = session;
    op->kind = kind;
    op->timeout_ms = timeout_ms ? timeout_ms : client->options.timeout_ms;
    op->deadline_ns = qr_now_ns() + (uint64_t)op->timeout_ms * 1000000u;
    memset(&op->error, 0, sizeof(op->error));
    op->done = op->canceled = op->restarted = op->wait_for_ready = false;
    atomic_store(&op->touched, false);
    op->event_fd = -1;
    op->holds = 1;
    op->call = NULL;
    op->request = op->reply = NULL;
    op->reply_message = NULL;
    return op;
}

void qr_op_recycle(struct quire_op *op)
{
    struct quire_client *client = op->client;

    if (op->call)
        qr_call_release(op->call);
    if (op->event_fd >= 0)
        close(op->event_fd);
    qr_pool_put(op->request);
    qr_pool_put(op->reply);
    pthread_mutex_lock(&client->lock);
    op->next_free = client->free_ops;
    client->free_ops = op;
    pthread_mutex_unlock(&client->lock);
}

void qr_op_pool_drain(struct quire_client *client)
{
    while (client->free_ops) {
        struct quire_op *op = client->free_ops;
        client->free_ops = op->next_free;
        pthread_cond_destroy(&op->changed);
        pthread_mutex_destroy(&op->lock);
        free(op);
    }
}

void qr_op_hold(struct quire_op *op)
{
    pthread_mutex_lock(&op->lock);
    op->holds++;
    pthread_mutex_unlock(&op->lock);
}

static void signal_event(int fd)
{
    const uint64_t one = 1;
    ssize_t n;

    do {
        n = write(fd, &one, sizeof(one));
    } while (n < 0 && errno == EINTR);
}

void qr_op_drop(void *context)
{
    struct quire_op *op = context;

    pthread_mutex_lock(&op->lock);
    assert(op->holds > 0 && !op->done);
    if (--op->holds == 0) {
        op->done = true;
        if (op->event_fd >= 0)
            signal_event(op->event_fd);
        pthread_cond_broadcast(&op->changed);
    }
    pthread_mutex_unlock(&op->lock);
}

/* ---- errors ----------------------------------------------------------------------------- */

void qr_op_fail(struct quire_op *op, const struct qr_error *e)
{
    pthread_mutex_lock(&op->lock);
    if (op->error.status == QUIRE_OK)
        op->error = *e;
    pthread_cond_broadcast(&op->changed);
    pthread_mutex_unlock(&op->lock);
}

bool qr_op_failed(struct quire_op *op)
{
    pthread_mutex_lock(&op->lock);
    const bool failed = op->error.status != QUIRE_OK;
    pthread_mutex_unlock(&op->lock);
    return failed;
}

static void cancel_call(struct quire_op *op)
{
    pthread_mutex_lock(&op->lock);
    struct qr_call *call = op->call ? qr_call_hold(op->call) : NULL;
    pthread_mutex_unlock(&op->lock);
    if (!call)
        return;
    qr_call_cancel(call);
    qr_call_release(call);
}

void qr_op_abort(struct quire_op *op, const struct qr_error *e)
{
    qr_op_fail(op, e);
    cancel_call(op);
}

/* ---- calls ------------------------------------------------------------------------------ */

static void on_message(void *context, const struct qr_wire_fragment *fragments, size_t count)
{
    struct quire_op *op = context;

    op->kind->message(op, fragments, count);
}

static void on_writable(void *context)
{
    struct quire_op *op = context;

    if (op->kind->writable)
        op->kind->writable(op);
}

static bool may_restart(struct quire_op *op, quire_status status)
{
    pthread_mutex_lock(&op->lock);
    const bool yes = op->kind->restart && status == QUIRE_EUNAVAILABLE && !op->restarted &&
                     !op->canceled && op->error.status == QUIRE_OK &&
                     !atomic_load(&op->touched) && qr_now_ns() < op->deadline_ns;
    if (yes)
        op->restarted = true;
    pthread_mutex_unlock(&op->lock);
    return yes;
}

static void on_done(void *context, const struct qr_call_result *result)
{
    struct quire_op *op = context;
    struct qr_error e;
    const quire_status status =
        qr_client_error_of_call(result, op->method, op->client->target, op->timeout_ms, &e);

    if (may_restart(op, status)) {
        op->kind->restart(op);
    } else {
        if (status)
            qr_op_fail(op, &e);
        if (op->kind->finish)
            op->kind->finish(op);
    }
    qr_op_drop(op);
}

static const struct qr_call_events events = {on_message, on_writable, on_done};
static const struct qr_call_events reader_events = {on_message, NULL, on_done};

/* The largest message that the call may have to carry; 0: not of a session. */
static uint64_t part_bytes(const struct quire_op *op, const struct qr_piece *pieces,
                           size_t count)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < count; i++)
        bytes += pieces[i].bytes;
    if (!op->session)
        return 0;
    return bytes > op->session->part_bytes ? bytes : op->session->part_bytes;
}

void qr_op_start(struct quire_op *op, enum qr_method method, enum qr_op_shape shape,
                 const struct qr_piece *pieces, size_t count)
{
    const struct qr_call_options options = {.method = method,
                                            .deadline_ns = op->deadline_ns,
                                            .wait_for_ready = op->wait_for_ready,
                                            .part_bytes = part_bytes(op, pieces, count),
                                            .ordered = shape == QR_OP_WRITER};

    op->method = method;
    struct qr_call *call = qr_call_new(op->client->transport, &options,
                                       shape == QR_OP_WRITER ? &events : &reader_events, op);
    if (!call) {
        struct qr_error e;
        qr_error_set(&e, QUIRE_ENOMEM, "out of memory for a call of %s",
                     qr_method_name(method));
        for (size_t i = 0; i < count; i++)
            if (pieces[i].release)
                pieces[i].release(pieces[i].owner);
        qr_op_fail(op, &e);
        return;
    }

    pthread_mutex_lock(&op->lock);
    op->holds++;
    struct qr_call *before = op->call;
    op->call = qr_call_hold(call);
    const bool canceled = op->canceled;
    pthread_mutex_unlock(&op->lock);
    if (before)
        qr_call_release(before);
    switch (shape) {
    case QR_OP_UNARY:
        qr_call_start_unary(call, pieces, count);
        break;
    case QR_OP_READER:
        qr_call_start_reader(call, pieces, count);
        break;
    case QR_OP_WRITER:
        qr_call_start_writer(call);
        break;
    }
    if (canceled)
        qr_call_cancel(call);
    qr_call_release(call);
}

/* ---- waiting ---------------------------------------------------------------------------- */

struct timespec qr_op_until(uint32_t timeout_ms)
{
    const uint64_t at_ns = qr_now_ns() + (uint64_t)timeout_ms * 1000000u;

    return (struct timespec){(time_t)(at_ns / 1000000000u), (long)(at_ns % 1000000000u)};
}

static void wait_done(struct quire_op *op)
{
    pthread_mutex_lock(&op->lock);
    while (!op->done)
        pthread_cond_wait(&op->changed, &op->lock);
    pthread_mutex_unlock(&op->lock);
}

/* Status of a finished operation, as the thread's last error. */
static quire_status report(const struct quire_op *op)
{
    return op->error.status ? qr_client_fail(&op->error) : QUIRE_OK;
}

quire_status qr_op_join(struct quire_op *op)
{
    qr_op_submitted(op);
    wait_done(op);
    const quire_status status = report(op);
    qr_op_recycle(op);
    return status;
}

void qr_op_submitted(struct quire_op *op)
{
    qr_op_drop(op);
}

quire_status qr_op_hand_over(struct quire_op *op, struct quire_op **out)
{
    *out = op;
    qr_op_submitted(op);
    return QUIRE_OK;
}

quire_status qr_op_no_out(void)
{
    return qr_client_fail_text(QUIRE_EINVAL, "out is NULL");
}

quire_status quire_op_poll(quire_op *op)
{
    pthread_mutex_lock(&op->lock);
    const bool done = op->done;
    pthread_mutex_unlock(&op->lock);
    return done ? report(op) : QUIRE_EAGAIN;
}

quire_status quire_op_wait(quire_op *op, uint32_t timeout_ms)
{
    if (timeout_ms == UINT32_MAX) {
        wait_done(op);
        return report(op);
    }

    const struct timespec until = qr_op_until(timeout_ms);
    int late = 0;
    pthread_mutex_lock(&op->lock);
    while (!op->done && !late)
        late = pthread_cond_timedwait(&op->changed, &op->lock, &until);
    const bool done = op->done;
    pthread_mutex_unlock(&op->lock);
    if (!done)
        return qr_client_fail_text(QUIRE_ETIMEOUT, "the operation is still running after %u ms",
                                   timeout_ms);
    return report(op);
}

int quire_op_eventfd(quire_op *op)
{
    pthread_mutex_lock(&op->lock);
    if (op->event_fd < 0) {
        op->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (op->event_fd >= 0 && op->done)
            signal_event(op->event_fd);
    }
    const int fd = op->event_fd;
    pthread_mutex_unlock(&op->lock);
    return fd;
}

void quire_op_cancel(quire_op *op)
{
    pthread_mutex_lock(&op->lock);
    const bool late = op->done || op->canceled;
    op->canceled = true;
    pthread_mutex_unlock(&op->lock);
    if (!late)
        cancel_call(op);
}

const struct quire_error *quire_op_error(const quire_op *op)
{
    return qr_client_error_view(&op->error);
}

void quire_op_free(quire_op **op)
{
    if (!op || !*op)
        return;
    wait_done(*op);
    qr_op_recycle(*op);
    *op = NULL;
}
