/* SPDX-License-Identifier: Apache-2.0
 *
 * The gRPC server object: limits, addresses, start, drain, end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rpc_call.h"

#include <grpc/grpc_security.h>
#include <grpc/support/log.h>

#include "storage/base/log.h"

/* A message larger by less than this is refused by us, with details; one still larger by gRPC,
 * which sends none. */
#define MESSAGE_SLACK_BYTES (1 << 20)
#define KEEPALIVE_MS 60000      /* a silent connection is asked so often */
#define KEEPALIVE_WAIT_MS 20000 /* and closed when it does not answer */
#define CANCEL_WAIT_MS 5000     /* cancelled calls get so long to end */
/* Frames of a caller: one frame of HTTP/2's 16 KiB each costs both sides a slice and a header.
 */
#define FRAME_BYTES_MAX (1 << 20)

static grpc_arg integer(const char *key, int value)
{
    grpc_arg arg = {.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key};

    arg.value.integer = value;
    return arg;
}

/* gRPC quotes what strangers sent it: in our log that is data, one line, and ASCII. */
static void log_grpc(gpr_log_func_args *args)
{
    char text[512];

    snprintf(text, sizeof(text), "%s", args->message ? args->message : "");
    for (char *c = text; *c; c++)
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    QR_LOG(args->severity == GPR_LOG_SEVERITY_ERROR ? QR_LOG_WARN : QR_LOG_DEBUG, "grpc.said",
           QR_LOG_STR("file", args->file), QR_LOG_U64("line", (uint64_t)args->line),
           QR_LOG_STR("text", text));
}

static grpc_server *make_server(const struct qr_rpc_config *config)
{
    grpc_resource_quota *quota = grpc_resource_quota_create("quired");
    grpc_resource_quota_resize(quota, (size_t)config->wire_memory_bytes);
    grpc_arg quota_arg = {.type = GRPC_ARG_POINTER,
                          .key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA};
    quota_arg.value.pointer.p = quota;
    quota_arg.value.pointer.vtable = grpc_resource_quota_arg_vtable();

    grpc_arg args[] = {
        quota_arg,
        integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                (int)config->message_bytes_max + MESSAGE_SLACK_BYTES),
        integer(GRPC_ARG_MAX_CONCURRENT_STREAMS, (int)config->calls_max),
        integer(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, (int)config->handshake_ms),
        integer(GRPC_ARG_ALLOW_REUSEPORT, 0),
        integer(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        integer(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, FRAME_BYTES_MAX),
        integer(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        integer(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_WAIT_MS),
        integer(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000),
    };
    const grpc_channel_args list = {.num_args = sizeof(args) / sizeof(args[0]), .args = args};
    grpc_server *server = grpc_server_create(&list, NULL);
    grpc_resource_quota_unref(quota);
    return server;
}

static quire_status register_methods(struct qr_rpc *rpc, struct qr_error *e)
{
    const struct qr_rpc_config *config = &rpc->config;

    for (size_t i = 0; i < config->method_count; i++) {
        rpc->registered[i] =
            grpc_server_register_method(rpc->server, config->methods[i].path, NULL,
                                        GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
        if (!rpc->registered[i])
            return qr_error_set(e, QUIRE_EINTERNAL, "method %s cannot be registered",
                                config->methods[i].path);
    }
    return QUIRE_OK;
}

static quire_status make_pools(struct qr_rpc *rpc)
{
    const struct qr_rpc_config *config = &rpc->config;
    const size_t armed = config->method_count * QR_ARMED_CALLS + QR_ARMED_GENERIC;
    /* Twice the live ones: ended calls whose slices the transport still holds. */
    const size_t calls = config->threads * (2 * (size_t)config->calls_max + armed);
    const size_t holders = (size_t)config->threads * config->calls_max * config->pins_max;

    const quire_status status = qr_pool_create(sizeof(struct qr_call), calls, &rpc->calls);
    return status ? status : qr_pool_create(sizeof(struct qr_holder), holders, &rpc->holders);
}

quire_status qr_rpc_create(const struct qr_rpc_config *config, struct qr_rpc **out,
                           struct qr_error *e)
{
    struct qr_rpc *rpc = calloc(1, sizeof(*rpc));
    quire_status status = QUIRE_ENOMEM;

    if (!rpc)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the server");
    gpr_set_log_function(log_grpc);
    grpc_init();
    rpc->config = *config;
    rpc->server = make_server(config);
    rpc->registered = calloc(config->method_count, sizeof(*rpc->registered));
    rpc->workers = calloc(config->threads, sizeof(*rpc->workers));
    if (!rpc->registered || !rpc->workers || make_pools(rpc)) {
        qr_error_set(e, QUIRE_ENOMEM, "no memory for %u server threads", config->threads);
        goto out;
    }
    for (uint32_t i = 0; i < config->threads; i++) {
        rpc->workers[i].rpc = rpc;
        rpc->workers[i].cq = grpc_completion_queue_create_for_next(NULL);
        grpc_server_register_completion_queue(rpc->server, rpc->workers[i].cq, NULL);
    }
    status = register_methods(rpc, e);
out:
    if (status)
        qr_rpc_destroy(&rpc);
    else
        *out = rpc;
    return status;
}

quire_status qr_rpc_bind(struct qr_rpc *rpc, const char *address, uint16_t *port_out,
                         struct qr_error *e)
{
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    const int port = grpc_server_add_http2_port(rpc->server, address, credentials);

    grpc_server_credentials_release(credentials);
    if (port == 0)
        return qr_error_set(e, QUIRE_EUNAVAILABLE,
                            "listen: %.100s cannot be bound: in use, no such address, or no "
                            "permission",
                            address);
    *port_out = strncmp(address, "unix:", 5) ? (uint16_t)port : 0;
    return QUIRE_OK;
}

quire_status qr_rpc_start(struct qr_rpc *rpc, struct qr_error *e)
{
    const struct qr_deferred_config attends = {.rpc = rpc,
                                               .threads = rpc->config.deferred_threads,
                                               .queue_max = rpc->config.deferred_max,
                                               .what = "attend",
                                               .option = "max_attends"};
    const struct qr_deferred_config waiting = {.rpc = rpc,
                                               .threads = rpc->config.waiting_threads,
                                               .queue_max = rpc->config.calls_max,
                                               .what = "control",
                                               .option = "max_calls"};
    quire_status status = qr_deferred_create(&attends, &rpc->deferred, e);

    if (!status && rpc->config.waiting_threads > 0)
        status = qr_deferred_create(&waiting, &rpc->waiting, e);
    if (status)
        return status;
    grpc_server_start(rpc->server);
    for (uint32_t i = 0; !status && i < rpc->config.threads; i++)
        status = qr_worker_start(&rpc->workers[i], e);
    return status;
}

void qr_rpc_notify(struct qr_rpc *rpc)
{
    atomic_fetch_add(&rpc->generation, 1);
}

/* ---- drain ------------------------------------------------------------------------------ */

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static void server_is_down(void *owner, bool ok)
{
    struct qr_rpc *rpc = owner;

    (void)ok;
    atomic_store(&rpc->server_down, true);
}

/* Calls that are not watches: these stay open until the addresses close. */
static bool is_idle(struct qr_rpc *rpc)
{
    return qr_counter_read(&rpc->live) == qr_counter_read(&rpc->watches);
}

static bool is_empty(struct qr_rpc *rpc)
{
    return atomic_load(&rpc->server_down) && qr_counter_read(&rpc->live) == 0 &&
           qr_pool_out(rpc->holders) == 0;
}

bool qr_rpc_drain(struct qr_rpc *rpc, uint32_t notice_ms, uint32_t timeout_ms)
{
    const uint64_t start_ms = qr_clock_ms();
    const uint64_t end_ms = start_ms + timeout_ms;
    bool canceled = false;

    atomic_store(&rpc->draining, true);
    qr_rpc_notify(rpc);
    while (qr_clock_ms() < end_ms && (qr_clock_ms() < start_ms + notice_ms || !is_idle(rpc)))
        nap();

    atomic_store(&rpc->closing, true);
    grpc_server_shutdown_and_notify(rpc->server, rpc->workers[0].cq,
                                    qr_event_hand(&rpc->shutdown, server_is_down, rpc));
    while (!is_empty(rpc)) {
        const uint64_t now_ms = qr_clock_ms();
        if (now_ms >= end_ms && !canceled) {
            canceled = true;
            grpc_server_cancel_all_calls(rpc->server);
        }
        if (now_ms >= end_ms + CANCEL_WAIT_MS)
            return false;
        nap();
    }
    return true;
}

/* ---- end -------------------------------------------------------------------------------- */

static void end_worker(struct qr_worker *worker)
{
    if (!worker->cq)
        return;
    grpc_completion_queue_shutdown(worker->cq);
    if (worker->started)
        pthread_join(worker->thread, NULL);
    else
        while (qr_worker_step(worker, gpr_inf_future(GPR_CLOCK_MONOTONIC)))
            ;
    grpc_completion_queue_destroy(worker->cq);
    qr_scratch_destroy(&worker->scratch);
    free(worker->fragments);
    free(worker->flat);
    free(worker->starved);
}

/* A server must be shut down before its queues are, also one whose start-up failed half-way:
 * then what comes from the queue of a worker that has no thread is taken here. */
static void shut_down(struct qr_rpc *rpc)
{
    struct qr_worker *first = rpc->workers;

    if (!first || !first->cq || atomic_load(&rpc->server_down))
        return;
    atomic_store(&rpc->closing, true);
    grpc_server_shutdown_and_notify(rpc->server, first->cq,
                                    qr_event_hand(&rpc->shutdown, server_is_down, rpc));
    grpc_server_cancel_all_calls(rpc->server);
    while (!is_empty(rpc))
        if (first->started)
            nap();
        else
            (void)qr_worker_step(first, gpr_time_0(GPR_CLOCK_MONOTONIC));
}

void qr_rpc_destroy(struct qr_rpc **pointer)
{
    struct qr_rpc *rpc = *pointer;

    if (!rpc)
        return;
    shut_down(rpc);
    qr_deferred_destroy(&rpc->deferred);
    qr_deferred_destroy(&rpc->waiting);
    for (uint32_t i = 0; rpc->workers && i < rpc->config.threads; i++)
        end_worker(&rpc->workers[i]);
    grpc_server_destroy(rpc->server);
    grpc_shutdown();
    if (rpc->calls)
        qr_pool_destroy(&rpc->calls, NULL);
    if (rpc->holders)
        qr_pool_destroy(&rpc->holders, NULL);
    free(rpc->registered);
    free(rpc->workers);
    free(rpc);
    *pointer = NULL;
}

void qr_rpc_stat(struct qr_rpc *rpc, struct qr_rpc_stat *out)
{
    *out = (struct qr_rpc_stat){
        .calls = qr_counter_read(&rpc->calls_count),
        .failed = qr_counter_read(&rpc->failed),
        .unknown = qr_counter_read(&rpc->unknown),
        .canceled = qr_counter_read(&rpc->canceled_count),
        .stalled = qr_counter_read(&rpc->stalled),
        .refused = qr_counter_read(&rpc->refused),
        .bytes_in = qr_counter_read(&rpc->bytes_in),
        .bytes_out = qr_counter_read(&rpc->bytes_out),
        .live = qr_counter_read(&rpc->live),
        .pins = qr_counter_read(&rpc->pins),
    };
}
