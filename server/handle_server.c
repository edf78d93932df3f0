/* SPDX-License-Identifier: Apache-2.0
 *
 * Handlers about the server itself: Hello, Stat, health. The two health messages
 * have one field each and are read and written by hand.
 */
#include <stdlib.h>
#include <string.h>

#include "service.h"
#include "storage/base/clock.h"

quire_status qr_handle_hello(void *arg, const struct qr_request *request, size_t *reply_bytes,
                             struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    Quire__V1__HelloReply reply = QUIRE__V1__HELLO_REPLY__INIT;
    const quire_status status =
        qr_request_unpack(request, &quire__v1__hello_request__descriptor, &message, e);

    if (status)
        return status;
    reply.server_version = (char *)(uintptr_t)QUIRE_VERSION;
    reply.page_version = QR_PAGE_VERSION;
    reply.max_message_bytes = qr_config_number(service->config, QR_OPTION_max_message_bytes);
    reply.max_sessions = qr_config_number(service->config, QR_OPTION_max_sessions);
    reply.instance = (ProtobufCBinaryData){sizeof(service->instance), service->instance};
    if (service->local) {
        reply.local_path = service->local_path;
        reply.local_cookie = (ProtobufCBinaryData){
            QR_LOCAL_COOKIE_BYTES, (uint8_t *)(uintptr_t)qr_local_cookie(service->local)};
    }
    return qr_reply_pack(request, &reply.base, reply_bytes, e);
}

/* ---- Stat ------------------------------------------------------------------------------- */

#define METRICS_MAX 256

struct metrics {
    struct qr_metric values[METRICS_MAX];
    Quire__V1__Metric messages[METRICS_MAX];
    Quire__V1__Metric *pointers[METRICS_MAX];
};

static size_t server_metrics(struct qr_service *service, struct qr_metric *out)
{
    struct qr_rpc_stat stat = {0};
    struct qr_local_stat local = {0};
    size_t n = 0;

    if (service->rpc)
        qr_rpc_stat(service->rpc, &stat);
    if (service->local)
        qr_local_stat(service->local, &local);
#define X(metric, metric_unit, prose, expression)                                              \
    out[n++] = (struct qr_metric){                                                             \
        .name = metric, .unit = metric_unit, .help = prose, .value = (double)(expression)};
#include "metrics.def"
#undef X
    return n;
}

quire_status qr_handle_stat(void *arg, const struct qr_request *request, size_t *reply_bytes,
                            struct qr_error *e)
{
    struct qr_service *service = arg;
    struct metrics *metrics = malloc(sizeof(*metrics));
    Quire__V1__StatReply reply = QUIRE__V1__STAT_REPLY__INIT;

    (void)request;
    if (!metrics)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the metrics");
    size_t n = server_metrics(service, metrics->values);
    const size_t more = qr_store_metrics(service->store, metrics->values + n, METRICS_MAX - n);
    n += more < METRICS_MAX - n ? more : METRICS_MAX - n;
    for (size_t i = 0; i < n; i++) {
        Quire__V1__Metric *m = metrics->pointers[i] = &metrics->messages[i];
        quire__v1__metric__init(m);
        m->name = (char *)(uintptr_t)metrics->values[i].name;
        m->unit = (char *)(uintptr_t)metrics->values[i].unit;
        m->help = (char *)(uintptr_t)metrics->values[i].help;
        m->value = metrics->values[i].value;
    }
    reply.metrics = metrics->pointers;
    reply.n_metrics = n;
    const quire_status status = qr_reply_pack(request, &reply.base, reply_bytes, e);
    free(metrics);
    return status;
}

/* ---- grpc.health.v1 --------------------------------------------------------------------- */

#define DISK_SERVICE                                                                           \
    "quire.v1.Quire/disk" /* does the disk take writes; reads go on without                    \
                           */

enum serving_status { SERVING = 1, NOT_SERVING = 2, SERVICE_UNKNOWN = 3 };

#define SERVICE_NAME_MAX 128

static bool read_varint(const uint8_t **p, const uint8_t *end, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; *p < end && shift < 64; shift += 7) {
        const uint8_t byte = *(*p)++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

/* HealthCheckRequest { string service = 1; }: the name, "" when absent. */
static bool read_service(const uint8_t *p, size_t n, char out[SERVICE_NAME_MAX + 1])
{
    const uint8_t *end = p + n;
    uint64_t key, length;

    out[0] = 0;
    while (p < end) {
        if (!read_varint(&p, end, &key) || key != (1 << 3 | 2) ||
            !read_varint(&p, end, &length) || length > (uint64_t)(end - p) ||
            length > SERVICE_NAME_MAX)
            return false;
        memcpy(out, p, (size_t)length);
        out[length] = 0;
        p += length;
    }
    return true;
}

/* HealthCheckResponse { ServingStatus status = 1; } */
static quire_status reply_serving(const struct qr_request *request, enum serving_status serving,
                                  size_t *reply_bytes)
{
    request->scratch->reply[0] = 1 << 3;
    request->scratch->reply[1] = (uint8_t)serving;
    *reply_bytes = 2;
    return QUIRE_OK;
}

/* Status of the service that the request names; SERVICE_UNKNOWN for others. */
static quire_status serving_of(struct qr_service *service, const struct qr_request *request,
                               enum serving_status *out, struct qr_error *e)
{
    uint8_t bytes[SERVICE_NAME_MAX + 16];
    char name[SERVICE_NAME_MAX + 1];
    struct qr_wire_cursor cursor = qr_wire_cursor_all(request->fragments, request->count);

    const size_t n = (size_t)cursor.bytes;
    if (n > sizeof(bytes) || !qr_wire_cursor_read(&cursor, bytes, n) ||
        !read_service(bytes, n, name))
        return qr_error_set(e, QUIRE_EINVAL,
                            "malformed HealthCheckRequest of %llu bytes; it has one string of "
                            "at most %d bytes",
                            (unsigned long long)request->bytes, SERVICE_NAME_MAX);
    if (!strcmp(name, DISK_SERVICE) && service->has_disk)
        *out = qr_store_disk_writable(service->store) ? SERVING : NOT_SERVING;
    else if (name[0] && strcmp(name, "quire.v1.Quire") != 0 &&
             strcmp(name, "grpc.health.v1.Health") != 0)
        *out = SERVICE_UNKNOWN;
    else
        *out = atomic_load(&service->serving) ? SERVING : NOT_SERVING;
    return QUIRE_OK;
}

quire_status qr_handle_health(void *arg, const struct qr_request *request, size_t *reply_bytes,
                              struct qr_error *e)
{
    enum serving_status serving = SERVING;
    const quire_status status = serving_of(arg, request, &serving, e);

    if (status)
        return status;
    if (serving == SERVICE_UNKNOWN)
        return qr_error_set(e, QUIRE_ENOTFOUND,
                            "no such service here; there are \"\", \"quire.v1.Quire\" and "
                            "\"grpc.health.v1.Health\"");
    return reply_serving(request, serving, reply_bytes);
}

quire_status qr_handle_health_watch(void *arg, const struct qr_request *request,
                                    size_t *reply_bytes, struct qr_error *e)
{
    enum serving_status serving = SERVING;
    const quire_status status = serving_of(arg, request, &serving, e);

    return status ? status : reply_serving(request, serving, reply_bytes);
}
