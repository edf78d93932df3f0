/* SPDX-License-Identifier: Apache-2.0
 *
 * Handlers of sessions: open, close, drop, get, list, fork, touch, truncate,
 * lookup.
 */
#include <math.h>
#include <stdlib.h>

#include "service.h"

#define LIST_MAX 256   /* sessions in one reply */
#define INFO_BYTES 512 /* most that one takes: a name of 255 bytes, numbers of 10 */
#define RANGE_BYTES 40 /* most that a TokenRange takes */

/* A SessionInfo message with its parts; borrows the info. */
struct info_message {
    Quire__V1__SessionInfo message;
    struct qr_wire_policy policy;
};

static void info_to(const struct qr_session_info *info, struct info_message *out)
{
    Quire__V1__SessionInfo *m = &out->message;

    quire__v1__session_info__init(m);
    qr_wire_policy_to(&info->policy, &out->policy);
    m->policy = &out->policy.message;
    m->session = info->session;
    m->name = (char *)(uintptr_t)info->name;
    m->fingerprint =
        (ProtobufCBinaryData){QR_HASH_BYTES, (uint8_t *)(uintptr_t)info->model->fingerprint};
    m->head_shards = info->head_shards;
    m->layer_count = info->model->layer_count;
    m->length = info->length;
    m->longest = info->longest;
    m->epoch = info->epoch;
    m->leased = info->leased;
    m->ttl_ms = info->ttl_ms;
    m->sealed_tokens = info->sealed;
    m->page_count = info->pages;
    m->missing_pages = info->missing_pages;
    m->page_bytes = info->page_bytes;
    m->tail_bytes = info->tail_bytes;
    m->fp16_bytes = info->fp16_bytes;
    m->receipts = info->receipts.count;
    m->receipt_largest = info->receipts.largest;
    if (info->receipts.count > 0)
        m->receipt_error = (float)sqrt(info->receipts.squares / (double)info->receipts.count);
}

/* Answer with an info, or with the failure of the call that should have filled it. */
static quire_status reply_info(struct qr_service *service, const struct qr_request *request,
                               quire_status status, const struct qr_session_info *info,
                               size_t *reply_bytes, struct qr_error *e)
{
    struct info_message message;

    if (status)
        return qr_service_explain(service, status, e);
    info_to(info, &message);
    return qr_reply_pack(request, &message.message.base, reply_bytes, e);
}

quire_status qr_handle_open_session(void *arg, const struct qr_request *request,
                                    size_t *reply_bytes, struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    struct qr_policy policy;
    uint8_t fingerprint[QR_HASH_BYTES];
    struct qr_session_info info;
    quire_status status =
        qr_request_unpack(request, &quire__v1__open_session_request__descriptor, &message, e);

    if (status)
        return status;
    const Quire__V1__OpenSessionRequest *m = (Quire__V1__OpenSessionRequest *)message;
    if (m->policy)
        status = qr_wire_policy_from(m->policy, &policy, e);
    if (!status && m->fingerprint.len)
        status = qr_wire_fingerprint(&m->fingerprint, "fingerprint", fingerprint, e);
    if (status)
        return status;
    const struct qr_session_open open = {.name = m->name,
                                         .fingerprint = m->fingerprint.len ? fingerprint : NULL,
                                         .policy = m->policy ? &policy : NULL,
                                         .head_shards = m->head_shards,
                                         .create = m->create,
                                         .must_create = m->must_create,
                                         .write = m->write,
                                         .force = m->force,
                                         .join_epoch = m->join_epoch,
                                         .lease_ms = m->lease_ms,
                                         .ttl_ms = m->ttl_ms};
    status = qr_session_open(service->store, request->ns, &open, &info, e);
    if (status)
        return qr_service_explain(service, status, e);

    struct info_message info_message;
    struct qr_wire_model model;
    Quire__V1__OpenSessionReply reply = QUIRE__V1__OPEN_SESSION_REPLY__INIT;
    info_to(&info, &info_message);
    qr_wire_model_to(info.model, &model);
    reply.info = &info_message.message;
    reply.created = info.created;
    reply.model = &model.message;
    return qr_reply_pack(request, &reply.base, reply_bytes, e);
}

quire_status qr_handle_close_session(void *arg, const struct qr_request *request,
                                     size_t *reply_bytes, struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    const Quire__V1__CloseSessionReply reply = QUIRE__V1__CLOSE_SESSION_REPLY__INIT;
    const quire_status status =
        qr_request_unpack(request, &quire__v1__close_session_request__descriptor, &message, e);

    if (status)
        return status;
    const Quire__V1__CloseSessionRequest *m = (Quire__V1__CloseSessionRequest *)message;
    qr_session_close(service->store, request->ns, m->session, m->epoch);
    return qr_reply_pack(request, &reply.base, reply_bytes, e);
}

quire_status qr_handle_drop_session(void *arg, const struct qr_request *request,
                                    size_t *reply_bytes, struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    const Quire__V1__DropSessionReply reply = QUIRE__V1__DROP_SESSION_REPLY__INIT;
    quire_status status =
        qr_request_unpack(request, &quire__v1__drop_session_request__descriptor, &message, e);

    if (status)
        return status;
    const Quire__V1__DropSessionRequest *m = (Quire__V1__DropSessionRequest *)message;
    status = qr_session_drop(service->store, request->ns, m->name, m->force, e);
    if (status)
        return qr_service_explain(service, status, e);
    return qr_reply_pack(request, &reply.base, reply_bytes, e);
}

quire_status qr_handle_get_session(void *arg, const struct qr_request *request,
                                   size_t *reply_bytes, struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    struct qr_session_info info;
    quire_status status =
        qr_request_unpack(request, &quire__v1__get_session_request__descriptor, &message, e);

    if (status)
        return status;
    const Quire__V1__GetSessionRequest *m = (Quire__V1__GetSessionRequest *)message;
    status = m->session ? qr_session_info_of(service->store, request->ns, m->session, &info, e)
                        : qr_session_info(service->store, request->ns, m->name, &info, e);
    return reply_info(service, request, status, &info, reply_bytes, e);
}

quire_status qr_handle_flush(void *arg, const struct qr_request *request, size_t *reply_bytes,
                             struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    Quire__V1__FlushReply reply = QUIRE__V1__FLUSH_REPLY__INIT;
    struct info_message info_message;
    struct qr_session_info info;
    quire_status status =
        qr_request_unpack(request, &quire__v1__flush_request__descriptor, &message, e);

    if (status)
        return status;
    const Quire__V1__FlushRequest *m = (Quire__V1__FlushRequest *)message;
    status = m->session ? qr_session_flush(service->store, request->ns, m->session, &info, e)
                        : qr_store_flush(service->store, request->ns, e);
    if (status)
        return qr_service_explain(service, status, e);
    if (m->session) {
        info_to(&info, &info_message);
        reply.info = &info_message.message;
    }
    return qr_reply_pack(request, &reply.base, reply_bytes, e);
}

struct list {
    struct qr_session_info infos[LIST_MAX];
    struct info_message messages[LIST_MAX];
    Quire__V1__SessionInfo *pointers[LIST_MAX];
};

quire_status qr_handle_list_sessions(void *arg, const struct qr_request *request,
                                     size_t *reply_bytes, struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    Quire__V1__ListSessionsReply reply = QUIRE__V1__LIST_SESSIONS_REPLY__INIT;
    bool more = false;
    quire_status status =
        qr_request_unpack(request, &quire__v1__list_sessions_request__descriptor, &message, e);

    if (status)
        return status;
    const Quire__V1__ListSessionsRequest *m = (Quire__V1__ListSessionsRequest *)message;
    const size_t fit = request->scratch->reply_capacity / INFO_BYTES;
    const size_t most = fit < LIST_MAX ? fit : LIST_MAX;
    const size_t limit = m->limit && m->limit < most ? m->limit : most;
    struct list *list = malloc(sizeof(*list));
    if (!list)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for a list of %zu sessions", limit);

    status = qr_session_list(service->store, request->ns, m->prefix, m->after, list->infos,
                             limit, &reply.n_sessions, &more);
    for (size_t i = 0; !status && i < reply.n_sessions; i++) {
        info_to(&list->infos[i], &list->messages[i]);
        list->pointers[i] = &list->messages[i].message;
    }
    reply.sessions = list->pointers;
    reply.more = more;
    if (!status)
        status = qr_reply_pack(request, &reply.base, reply_bytes, e);
    free(list);
    return status;
}

quire_status qr_handle_fork_session(void *arg, const struct qr_request *request,
                                    size_t *reply_bytes, struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    struct qr_session_info info;
    quire_status status =
        qr_request_unpack(request, &quire__v1__fork_session_request__descriptor, &message, e);

    if (status)
        return status;
    const Quire__V1__ForkSessionRequest *m = (Quire__V1__ForkSessionRequest *)message;
    status = qr_session_fork(service->store, request->ns, m->from, m->to, m->length, m->ttl_ms,
                             &info, e);
    return reply_info(service, request, status, &info, reply_bytes, e);
}

quire_status qr_handle_touch_session(void *arg, const struct qr_request *request,
                                     size_t *reply_bytes, struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    struct qr_session_info info;
    quire_status status =
        qr_request_unpack(request, &quire__v1__touch_session_request__descriptor, &message, e);

    if (status)
        return status;
    const Quire__V1__TouchSessionRequest *m = (Quire__V1__TouchSessionRequest *)message;
    status = qr_session_touch(service->store, request->ns, m->session, m->epoch, m->ttl_ms,
                              m->lease_ms, &info, e);
    return reply_info(service, request, status, &info, reply_bytes, e);
}

quire_status qr_handle_truncate_session(void *arg, const struct qr_request *request,
                                        size_t *reply_bytes, struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    struct qr_session_info info;
    quire_status status = qr_request_unpack(
        request, &quire__v1__truncate_session_request__descriptor, &message, e);

    if (status)
        return status;
    const Quire__V1__TruncateSessionRequest *m = (Quire__V1__TruncateSessionRequest *)message;
    status = qr_session_truncate(service->store, request->ns, m->session, m->epoch, m->length,
                                 &info, e);
    return reply_info(service, request, status, &info, reply_bytes, e);
}

quire_status qr_handle_lookup(void *arg, const struct qr_request *request, size_t *reply_bytes,
                              struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    Quire__V1__LookupReply reply = QUIRE__V1__LOOKUP_REPLY__INIT;
    bool more = false;
    quire_status status =
        qr_request_unpack(request, &quire__v1__lookup_request__descriptor, &message, e);

    if (status)
        return status;
    const Quire__V1__LookupRequest *m = (Quire__V1__LookupRequest *)message;
    const struct qr_token_range what = {
        .position = m->position, .tokens = m->tokens, .layer = m->first_layer};
    const size_t fit = request->scratch->reply_capacity / RANGE_BYTES;
    struct qr_range_list *list = malloc(sizeof(*list));
    if (!list)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the missing ranges");
    status = qr_session_lookup(service->store, request->ns, m->session, &what, m->layers,
                               list->ranges, fit < QR_RANGES_MAX ? fit : QR_RANGES_MAX,
                               &reply.n_missing, &more, &reply.length, e);
    if (!status) {
        qr_range_list_fill(list, reply.n_missing);
        reply.missing = list->pointers;
        reply.more = more;
        status = qr_reply_pack(request, &reply.base, reply_bytes, e);
    } else {
        status = qr_service_explain(service, status, e);
    }
    free(list);
    return status;
}
