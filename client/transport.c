/* SPDX-License-Identifier: Apache-2.0
 *
 * The channel, its completion queue and the threads that serve it. What happens
 * within a call is transport_call.c. Must not know any message.
 */
#include "transport_grpc.h"

#include <assert.h>
#include <grpc/grpc_security.h>
#include <stdlib.h>
#include <string.h>

#include "transport_local.h"

static const char *const method_paths[QR_METHOD_COUNT] = {
    [QR_METHOD_HELLO] = "/quire.v1.Quire/Hello",
    [QR_METHOD_REGISTER_MODEL] = "/quire.v1.Quire/RegisterModel",
    [QR_METHOD_OPEN_SESSION] = "/quire.v1.Quire/OpenSession",
    [QR_METHOD_CLOSE_SESSION] = "/quire.v1.Quire/CloseSession",
    [QR_METHOD_DROP_SESSION] = "/quire.v1.Quire/DropSession",
    [QR_METHOD_GET_SESSION] = "/quire.v1.Quire/GetSession",
    [QR_METHOD_LIST_SESSIONS] = "/quire.v1.Quire/ListSessions",
    [QR_METHOD_FORK_SESSION] = "/quire.v1.Quire/ForkSession",
    [QR_METHOD_TOUCH_SESSION] = "/quire.v1.Quire/TouchSession",
    [QR_METHOD_TRUNCATE_SESSION] = "/quire.v1.Quire/TruncateSession",
    [QR_METHOD_FLUSH] = "/quire.v1.Quire/Flush",
    [QR_METHOD_LOOKUP] = "/quire.v1.Quire/Lookup",
    [QR_METHOD_GET_MANIFEST] = "/quire.v1.Quire/GetManifest",
    [QR_METHOD_CLAIM_BLOCKS] = "/quire.v1.Quire/ClaimBlocks",
    [QR_METHOD_APPEND] = "/quire.v1.Quire/Append",
    [QR_METHOD_APPEND_STREAM] = "/quire.v1.Quire/AppendStream",
    [QR_METHOD_FETCH] = "/quire.v1.Quire/Fetch",
    [QR_METHOD_ATTEND] = "/quire.v1.Quire/Attend",
    [QR_METHOD_STAT] = "/quire.v1.Quire/Stat",
};

const char *qr_method_name(enum qr_method method)
{
    return strrchr(method_paths[method], '/') + 1;
}

static grpc_arg int_arg(const char *key, int value)
{
    grpc_arg arg = {.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key};
    arg.value.integer = value;
    return arg;
}

/* No BDP probe: it takes every wait of a busy machine for distance and lets tens of MB pile up,
 * which are then copied from DRAM. Without it the peer is ahead by 64 KiB, and by the message
 * that each stream's reader waits for. Retries off: they would keep a copy of each upload. Own
 * subchannels: two clients of one process get two connections. No HTTP proxy: the store is
 * inside the cluster. */
static grpc_channel *channel_create(const char *target)
{
    grpc_arg args[] = {
        int_arg(GRPC_ARG_ENABLE_RETRIES, 0),
        int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        int_arg(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        int_arg(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20),
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)QR_MESSAGE_BYTES_MAX),
        int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, (int)QR_MESSAGE_BYTES_MAX),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 20000),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000),
        int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
        int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100),
        int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000),
    };
    const grpc_channel_args list = {sizeof(args) / sizeof(args[0]), args};
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(target, credentials, &list);

    grpc_channel_credentials_release(credentials);
    return channel;
}

static void *serve(void *argument)
{
    struct qr_transport *t = argument;

    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(t->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        if (event.type == GRPC_OP_COMPLETE) {
            struct qr_tag *tag = event.tag;
            const bool armed = atomic_exchange(&tag->armed, false);
            assert(armed);
            (void)armed;
            tag->run(tag->call, event.success != 0);
        }
    }
}

static bool start_threads(struct qr_transport *t, uint32_t threads)
{
    for (; t->thread_count < threads; t->thread_count++)
        if (pthread_create(&t->threads[t->thread_count], NULL, serve, t))
            return false;
    return true;
}

quire_status qr_transport_open(const char *target, uint32_t threads, struct qr_transport **out,
                               struct qr_error *e)
{
    if (threads < 1 || threads > QR_TRANSPORT_THREADS_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "threads is %u; 1 .. %d are allowed", threads,
                            QR_TRANSPORT_THREADS_MAX);
    struct qr_transport *t = calloc(1, sizeof(*t));
    if (!t)
        return qr_error_set(e, QUIRE_ENOMEM, "out of memory for a connection");

    grpc_init();
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->idle, NULL);
    t->channel = channel_create(target);
    t->queue = grpc_completion_queue_create_for_next(NULL);
    for (int i = 0; i < QR_METHOD_COUNT; i++)
        t->methods[i] = grpc_channel_register_call(t->channel, method_paths[i], NULL, NULL);
    t->local = qr_local_create(threads);
    if (!t->local || !start_threads(t, threads)) {
        qr_transport_close(&t);
        return qr_error_set(e, QUIRE_ENOMEM, "cannot start %u threads", threads);
    }
    *out = t;
    return QUIRE_OK;
}

void qr_transport_close(struct qr_transport **transport)
{
    struct qr_transport *t = *transport;
    if (!t)
        return;

    qr_local_destroy(&t->local);
    pthread_mutex_lock(&t->lock);
    while (t->live > 0)
        pthread_cond_wait(&t->idle, &t->lock);
    pthread_mutex_unlock(&t->lock);
    grpc_completion_queue_shutdown(t->queue);
    if (t->thread_count == 0) /* nobody else drains it */
        serve(t);
    for (uint32_t i = 0; i < t->thread_count; i++)
        pthread_join(t->threads[i], NULL);
    grpc_completion_queue_destroy(t->queue);
    grpc_channel_destroy(t->channel);
    qr_call_pool_drain(t);
    pthread_cond_destroy(&t->idle);
    pthread_mutex_destroy(&t->lock);
    free(t);
    *transport = NULL;
    grpc_shutdown();
}

quire_status qr_transport_use_local(struct qr_transport *transport,
                                    const struct qr_local_offer *offer, struct qr_error *e)
{
    return qr_local_connect(transport->local, offer, e);
}

bool qr_transport_is_local(struct qr_transport *transport)
{
    return qr_local_is_up(transport->local);
}

/* ---- calls, whichever way they are carried ---------------------------------------------- */

struct qr_call *qr_call_new(struct qr_transport *transport,
                            const struct qr_call_options *options,
                            const struct qr_call_events *events, void *context)
{
    struct qr_call *call = qr_local_call_new(transport->local, options, events, context);

    return call ? call : qr_grpc_call_new(transport, options, events, context);
}

void qr_call_start_unary(struct qr_call *call, const struct qr_piece *pieces, size_t count)
{
    call->ops->start_unary(call, pieces, count);
}

void qr_call_start_reader(struct qr_call *call, const struct qr_piece *pieces, size_t count)
{
    call->ops->start_reader(call, pieces, count);
}

void qr_call_start_writer(struct qr_call *call)
{
    call->ops->start_writer(call);
}

bool qr_call_send(struct qr_call *call, const struct qr_piece *pieces, size_t count)
{
    return call->ops->send(call, pieces, count);
}

void qr_call_close_send(struct qr_call *call)
{
    call->ops->close_send(call);
}

void qr_call_cancel(struct qr_call *call)
{
    call->ops->cancel(call);
}

struct qr_call *qr_call_hold(struct qr_call *call)
{
    call->ops->hold(call);
    return call;
}

void qr_call_release(struct qr_call *call)
{
    call->ops->release(call);
}
