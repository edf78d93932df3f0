/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of methods and what handlers share. Must not know what any single
 * message means.
 */
#include "service.h"

#include <stdlib.h>
#include <string.h>

#include "identity.h"
#include "storage/base/clock.h"
#include "storage/base/random.h"

#define QUIRE "/quire.v1.Quire/"
#define HEALTH "/grpc.health.v1.Health/"
#define REFLECTION(version) "/grpc.reflection." version ".ServerReflection/ServerReflectionInfo"

const struct qr_method qr_service_methods[] = {
    {.path = QUIRE "Hello", .kind = QR_METHOD_UNARY, .handle = qr_handle_hello},
    {.path = QUIRE "RegisterModel",
     .kind = QR_METHOD_WAITING,
     .handle = qr_handle_register_model},
    {.path = QUIRE "GetModel", .kind = QR_METHOD_UNARY, .handle = qr_handle_get_model},
    {.path = QUIRE "OpenSession", .kind = QR_METHOD_WAITING, .handle = qr_handle_open_session},
    {.path = QUIRE "CloseSession", .kind = QR_METHOD_UNARY, .handle = qr_handle_close_session},
    {.path = QUIRE "DropSession", .kind = QR_METHOD_WAITING, .handle = qr_handle_drop_session},
    {.path = QUIRE "GetSession", .kind = QR_METHOD_WAITING, .handle = qr_handle_get_session},
    {.path = QUIRE "ListSessions", .kind = QR_METHOD_UNARY, .handle = qr_handle_list_sessions},
    {.path = QUIRE "ForkSession", .kind = QR_METHOD_WAITING, .handle = qr_handle_fork_session},
    {.path = QUIRE "TouchSession", .kind = QR_METHOD_UNARY, .handle = qr_handle_touch_session},
    {.path = QUIRE "TruncateSession",
     .kind = QR_METHOD_WAITING,
     .handle = qr_handle_truncate_session},
    {.path = QUIRE "Lookup", .kind = QR_METHOD_WAITING, .handle = qr_handle_lookup},
    {.path = QUIRE "GetManifest", .kind = QR_METHOD_WAITING, .handle = qr_handle_get_manifest},
    {.path = QUIRE "ClaimBlocks", .kind = QR_METHOD_WAITING, .handle = qr_handle_claim_blocks},
    {.path = QUIRE "Flush", .kind = QR_METHOD_WAITING, .handle = qr_handle_flush},
    {.path = QUIRE "Append",
     .kind = QR_METHOD_UNARY,
     .holds = true,
     .handle = qr_handle_append},
    {.path = QUIRE "AppendStream",
     .kind = QR_METHOD_CONVERSATION,
     .holds = true,
     .handle = qr_handle_append},
    {.path = QUIRE "Fetch", .kind = QR_METHOD_STREAM, .stream = &qr_handle_fetch},
    {.path = QUIRE "Attend", .kind = QR_METHOD_DEFERRED, .handle = qr_handle_attend},
    {.path = QUIRE "Stat", .kind = QR_METHOD_UNARY, .always = true, .handle = qr_handle_stat},
    {.path = HEALTH "Check",
     .kind = QR_METHOD_UNARY,
     .always = true,
     .handle = qr_handle_health},
    {.path = HEALTH "Watch",
     .kind = QR_METHOD_WATCH,
     .always = true,
     .handle = qr_handle_health_watch},
    {.path = REFLECTION("v1"),
     .kind = QR_METHOD_CONVERSATION,
     .always = true,
     .handle = qr_handle_reflection},
    {.path = REFLECTION("v1alpha"),
     .kind = QR_METHOD_CONVERSATION,
     .always = true,
     .handle = qr_handle_reflection},
};
const size_t qr_service_method_count =
    sizeof(qr_service_methods) / sizeof(qr_service_methods[0]);

quire_status qr_service_create(const struct qr_config *config, struct qr_store *store,
                               struct qr_service **out, struct qr_error *e)
{
    struct qr_service *service = calloc(1, sizeof(*service));
    const uint32_t calls_max = (uint32_t)(qr_config_number(config, QR_OPTION_max_calls) *
                                          qr_config_number(config, QR_OPTION_server_threads));
    quire_status status;

    if (!service)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the service");
    service->config = config;
    service->store = store;
    service->has_disk = qr_config_text(config, QR_OPTION_disk)[0] != 0;
    service->durable_always =
        service->has_disk && !strcmp(qr_config_text(config, QR_OPTION_durability), "disk");
    service->started_ms = qr_clock_ms();
    atomic_init(&service->serving, true);
    status = qr_random_fill(service->instance, sizeof(service->instance), e);
    if (!status)
        status = qr_fetch_pool(calls_max, &service->fetches);
    if (!status)
        status = qr_attend_pool(calls_max, &service->attends);
    if (status) {
        qr_service_destroy(&service);
        return status;
    }
    *out = service;
    return QUIRE_OK;
}

void qr_service_destroy(struct qr_service **pointer)
{
    struct qr_service *service = *pointer;

    if (!service)
        return;
    qr_fetch_pool_destroy(&service->fetches);
    qr_attend_pool_destroy(&service->attends);
    free(service);
    *pointer = NULL;
}

quire_status qr_service_identify(void *arg, const char *peer, uint32_t *ns_out,
                                 struct qr_error *e)
{
    const struct qr_service *service = arg;
    const char *name = NULL;
    const quire_status status = qr_identity_namespace(peer, &name, e);

    return status ? status : qr_store_namespace(service->store, name, ns_out, e);
}

void qr_service_release(void *arg, void *pin)
{
    const struct qr_service *service = arg;

    qr_part_release(service->store, pin);
}

quire_status qr_request_unpack(const struct qr_request *request,
                               const ProtobufCMessageDescriptor *type, ProtobufCMessage **out,
                               struct qr_error *e)
{
    return qr_wire_unpack(type, request->fragments, request->count, &request->scratch->arena,
                          out, e);
}

quire_status qr_reply_pack(const struct qr_request *request, const ProtobufCMessage *reply,
                           size_t *reply_bytes, struct qr_error *e)
{
    return qr_wire_pack(reply, request->scratch->reply, request->scratch->reply_capacity,
                        reply_bytes, e);
}

quire_status qr_service_explain(const struct qr_service *service, quire_status status,
                                struct qr_error *e)
{
    if (status != QUIRE_ENOTFOUND || !e)
        return status;
    const size_t n = strlen(e->text);
    snprintf(
        e->text + n, sizeof(e->text) - n,
        service->has_disk
            ? "; sessions that are not on disk end with the server, and this one started "
              "%llu s ago"
            : "; sessions of the RAM tier end with the server, and this one started %llu s "
              "ago",
        (unsigned long long)((qr_clock_ms() - service->started_ms) / 1000));
    return status;
}

void qr_range_list_fill(struct qr_range_list *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct qr_token_range *range = &list->ranges[i];
        quire__v1__token_range__init(&list->messages[i]);
        list->messages[i].position = range->position;
        list->messages[i].tokens = range->tokens;
        list->messages[i].layer = range->layer;
        list->messages[i].shard = range->shard;
        list->pointers[i] = &list->messages[i];
    }
}
