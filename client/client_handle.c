/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing a client, the empty round trip, and the server's metrics.
 * Must not know sessions.
 */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client_local.h"
#include "client_op.h"
#include "proto/page.h"

#define TIMEOUT_MS 30000
#define CONNECT_MS 5000
#define INFLIGHT_BYTES (8u << 20)

void quire_client_options_init(struct quire_client_options *options)
{
    *options = (struct quire_client_options){.struct_bytes = sizeof(*options),
                                             .timeout_ms = TIMEOUT_MS,
                                             .connect_ms = CONNECT_MS,
                                             .threads = 2,
                                             .inflight_bytes = INFLIGHT_BYTES,
                                             .encode_pages = true,
                                             .local = true};
}

static quire_status check_options(const char *target, const struct quire_client_options *o,
                                  struct qr_error *e)
{
    if (!target || !*target || strlen(target) >= sizeof(((struct quire_client *)0)->target))
        return qr_error_set(e, QUIRE_EINVAL,
                            "target is %s; \"unix:PATH\" or \"HOST:PORT\" of at most 255 bytes",
                            !target   ? "NULL"
                            : *target ? "too long"
                                      : "empty");
    if (o->struct_bytes != sizeof(*o))
        return qr_error_set(e, QUIRE_EINVAL,
                            "options.struct_bytes is %zu; quire_client_options_init sets %zu",
                            o->struct_bytes, sizeof(*o));
    if (o->timeout_ms == 0 || o->connect_ms == 0)
        return qr_error_set(e, QUIRE_EINVAL,
                            "options.timeout_ms is %u and connect_ms %u; at least 1 each",
                            o->timeout_ms, o->connect_ms);
    if (o->threads < 1 || o->threads > QR_TRANSPORT_THREADS_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "options.threads is %u; 1 .. %d", o->threads,
                            QR_TRANSPORT_THREADS_MAX);
    if (o->inflight_bytes == 0)
        return qr_error_set(e, QUIRE_EINVAL, "options.inflight_bytes is 0; at least 1");
    return QUIRE_OK;
}

static quire_status hello(struct quire_client *client, struct qr_error *e)
{
    struct quire_op *op;
    Quire__V1__HelloRequest request = QUIRE__V1__HELLO_REQUEST__INIT;
    quire_status status =
        qr_control_connect(client, &request.base, &quire__v1__hello_reply__descriptor, &op);

    if (status)
        return qr_error_set(e, QUIRE_EUNAVAILABLE,
                            "no server answered at %.100s within %u ms: %.80s", client->target,
                            client->options.connect_ms, quire_last_error()->text);
    const Quire__V1__HelloReply *reply = (const void *)op->reply_message;
    if (reply->page_version != QR_PAGE_VERSION)
        status = qr_error_set(e, QUIRE_EUNSUPPORTED,
                              "the server at %.100s speaks page version %u; this library %d",
                              client->target, reply->page_version, QR_PAGE_VERSION);
    client->message_bytes_max = QR_MESSAGE_BYTES_MAX;
    if (reply->max_message_bytes && reply->max_message_bytes < QR_MESSAGE_BYTES_MAX)
        client->message_bytes_max = reply->max_message_bytes;
    if (!status)
        qr_client_use_local(client, reply->local_path, reply->local_cookie.data,
                            reply->local_cookie.len);
    qr_op_recycle(op);
    return status;
}

/* Receive buffers come and go with each message: a trimmed heap would fault them in each time.
 */
static void keep_heap(void)
{
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
    mallopt(M_MMAP_THRESHOLD, 64 << 20);
}

static quire_status open_client(struct quire_client *client, struct qr_error *e)
{
    if (!client->buffers || !client->rotations)
        return qr_error_set(e, QUIRE_ENOMEM, "out of memory for a client");
    quire_status status =
        qr_transport_open(client->target, client->options.threads, &client->transport, e);

    return status ? status : hello(client, e);
}

quire_status quire_client_open(const char *target, const struct quire_client_options *options,
                               quire_client **out)
{
    struct quire_client_options defaults;
    struct qr_error e;

    quire_client_options_init(&defaults);
    if (!out)
        return qr_client_fail_text(QUIRE_EINVAL, "out is NULL");
    if (check_options(target, options ? options : &defaults, &e))
        return qr_client_fail(&e);
    struct quire_client *client = calloc(1, sizeof(*client));
    if (!client)
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for a client");

    keep_heap();
    client->options = options ? *options : defaults;
    snprintf(client->target, sizeof(client->target), "%s", target);
    pthread_mutex_init(&client->lock, NULL);
    client->buffers = qr_pool_create();
    client->rotations = qr_rotations_create();
    client->helper = qr_helper_create();
    if (open_client(client, &e)) {
        quire_client_close(&client);
        return qr_client_fail(&e);
    }
    *out = client;
    return QUIRE_OK;
}

void quire_client_close(quire_client **client)
{
    if (!client || !*client)
        return;
    struct quire_client *c = *client;

    qr_transport_close(&c->transport);
    qr_helper_destroy(&c->helper);
    qr_op_pool_drain(c);
    qr_rotations_destroy(&c->rotations);
    qr_pool_close(&c->buffers);
    pthread_mutex_destroy(&c->lock);
    free(c);
    *client = NULL;
}

quire_status quire_client_ping(quire_client *client)
{
    Quire__V1__HelloRequest request = QUIRE__V1__HELLO_REQUEST__INIT;

    if (!client)
        return qr_client_fail_text(QUIRE_EINVAL, "client is NULL");
    return qr_control_plain(client, QR_METHOD_HELLO, &request.base,
                            &quire__v1__hello_reply__descriptor, true);
}

static void metric_from(const Quire__V1__Metric *from, struct quire_metric *to)
{
    memset(to, 0, sizeof(*to));
    snprintf(to->name, sizeof(to->name), "%s", from->name);
    snprintf(to->unit, sizeof(to->unit), "%s", from->unit);
    snprintf(to->help, sizeof(to->help), "%s", from->help);
    to->value = from->value;
}

quire_status quire_stat(quire_client *client, struct quire_metric *metrics, size_t capacity,
                        size_t *count_out)
{
    struct quire_op *op;
    Quire__V1__StatRequest request = QUIRE__V1__STAT_REQUEST__INIT;

    if (!client || !count_out || (capacity && !metrics))
        return qr_client_fail_text(QUIRE_EINVAL, "%s is NULL",
                                   !client      ? "client"
                                   : !count_out ? "count_out"
                                                : "metrics");
    const quire_status status = qr_control(client, QR_METHOD_STAT, &request.base,
                                           &quire__v1__stat_reply__descriptor, true, &op);
    if (status)
        return status;
    const Quire__V1__StatReply *reply = (const void *)op->reply_message;
    const size_t n = reply->n_metrics;
    for (size_t i = 0; i < n && n <= capacity; i++)
        metric_from(reply->metrics[i], &metrics[i]);
    qr_op_recycle(op);
    *count_out = n;
    if (n > capacity)
        return qr_client_fail_text(QUIRE_ETOOBIG, "the server has %zu metrics; capacity is %zu",
                                   n, capacity);
    return QUIRE_OK;
}
