/* SPDX-License-Identifier: Apache-2.0
 *
 * Session handles: open, close, and the calls about one session as a whole.
 * Its tokens are appended and read in other files.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client_local.h"
#include "client_op.h"
#include "client_session.h"

void quire_policy_default(struct quire_policy *policy)
{
    struct qr_policy p;

    qr_policy_default(&p);
    qr_client_policy_to(&p, policy);
}

void quire_open_options_init(struct quire_open_options *options)
{
    *options = (struct quire_open_options){.struct_bytes = sizeof(*options), .head_shards = 1};
}

quire_status qr_client_check_name(const char *field, const char *name, struct qr_error *e)
{
    const size_t bytes = name ? strnlen(name, QR_NAME_MAX + 1) : 0;

    if (bytes < 1 || bytes > QR_NAME_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "%s is %s; 1 .. %d bytes", field,
                            !name   ? "NULL"
                            : bytes ? "too long"
                                    : "empty",
                            QR_NAME_MAX);
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return qr_error_set(e, QUIRE_EINVAL,
                                "%s has the control character 0x%02x at byte %zu", field,
                                (unsigned)(unsigned char)name[i], i);
    return QUIRE_OK;
}

static quire_status check_open(const struct quire_open_options *o, struct qr_error *e)
{
    const uint32_t known =
        QUIRE_OPEN_CREATE | QUIRE_OPEN_EXCLUSIVE | QUIRE_OPEN_WRITE | QUIRE_OPEN_FORCE;

    if (o->struct_bytes != sizeof(*o))
        return qr_error_set(e, QUIRE_EINVAL,
                            "options.struct_bytes is %zu; quire_open_options_init sets %zu",
                            o->struct_bytes, sizeof(*o));
    if (o->flags & ~known)
        return qr_error_set(e, QUIRE_EUNSUPPORTED, "options.flags has unknown bits 0x%x",
                            o->flags & ~known);
    if ((o->flags & QUIRE_OPEN_EXCLUSIVE) && !(o->flags & QUIRE_OPEN_CREATE))
        return qr_error_set(e, QUIRE_EINVAL, "options.flags has EXCLUSIVE without CREATE");
    if ((o->flags & QUIRE_OPEN_FORCE) && !(o->flags & QUIRE_OPEN_WRITE))
        return qr_error_set(e, QUIRE_EINVAL, "options.flags has FORCE without WRITE");
    if (o->epoch && (!(o->flags & QUIRE_OPEN_WRITE) ||
                     (o->flags & (QUIRE_OPEN_FORCE | QUIRE_OPEN_EXCLUSIVE))))
        return qr_error_set(e, QUIRE_EINVAL,
                            "options.epoch is %" PRIu64
                            ": joining needs WRITE, and neither FORCE nor EXCLUSIVE",
                            o->epoch);
    if ((o->flags & QUIRE_OPEN_CREATE) && !o->fingerprint)
        return qr_error_set(e, QUIRE_EINVAL, "options.fingerprint is NULL; CREATE needs it");
    if (o->shard >= (o->head_shards ? o->head_shards : 1))
        return qr_error_set(e, QUIRE_EINVAL, "options.shard is %u of %u head_shards", o->shard,
                            o->head_shards);
    return QUIRE_OK;
}

/* Take what the reply says into the handle. */
static quire_status adopt(const Quire__V1__OpenSessionReply *reply,
                          const struct quire_open_options *o, struct quire_session *session,
                          struct qr_error *e)
{
    const Quire__V1__SessionInfo *info = reply->info;
    if (!info || !reply->model || !info->policy)
        return qr_error_set(e, QUIRE_ECORRUPT, "OpenSession: reply without %s",
                            !info           ? "info"
                            : !reply->model ? "model"
                                            : "policy");

    quire_status status = qr_wire_model_from(reply->model, &session->model, e);
    if (!status)
        status = qr_wire_policy_from(info->policy, &session->policy, e);
    if (status)
        return status;
    session->handle = info->session;
    session->epoch = (o->flags & QUIRE_OPEN_WRITE) ? info->epoch : 0;
    session->joined = o->epoch != 0;
    session->head_shards = info->head_shards ? info->head_shards : 1;
    if (o->shard >= session->head_shards)
        return qr_error_set(e, QUIRE_EINVAL, "options.shard is %u; the session has %u shards",
                            o->shard, session->head_shards);
    session->part_bytes = qr_client_part_bytes(session);
    return QUIRE_OK;
}

static quire_status open_remote(struct quire_session *session,
                                const struct quire_open_options *o)
{
    struct quire_op *op;
    struct qr_error e;
    struct qr_policy policy;
    struct qr_wire_policy wire_policy;
    Quire__V1__OpenSessionRequest request = QUIRE__V1__OPEN_SESSION_REQUEST__INIT;

    qr_client_retry_local(session->client);

    request.name = session->name;
    if (o->fingerprint)
        request.fingerprint =
            (ProtobufCBinaryData){QR_HASH_BYTES, (uint8_t *)(uintptr_t)o->fingerprint};
    if (o->policy) {
        if (qr_client_policy_from(o->policy, &policy, &e))
            return qr_client_fail(&e);
        qr_wire_policy_to(&policy, &wire_policy);
        request.policy = &wire_policy.message;
    }
    request.head_shards = (o->flags & QUIRE_OPEN_CREATE) ? o->head_shards : 0;
    request.create = (o->flags & QUIRE_OPEN_CREATE) != 0;
    request.must_create = (o->flags & QUIRE_OPEN_EXCLUSIVE) != 0;
    request.write = (o->flags & QUIRE_OPEN_WRITE) != 0;
    request.force = (o->flags & QUIRE_OPEN_FORCE) != 0;
    request.lease_ms = o->lease_ms;
    request.ttl_ms = o->ttl_ms;
    request.join_epoch = o->epoch;
    quire_status status = qr_control(session->client, QR_METHOD_OPEN_SESSION, &request.base,
                                     &quire__v1__open_session_reply__descriptor, false, &op);
    if (status)
        return status;
    status = adopt((const void *)op->reply_message, o, session, &e);
    qr_op_recycle(op);
    return status ? qr_client_fail(&e) : QUIRE_OK;
}

quire_status quire_session_open(quire_client *client, const char *name,
                                const struct quire_open_options *options, quire_session **out)
{
    struct quire_open_options defaults;
    struct qr_error e;

    quire_open_options_init(&defaults);
    const struct quire_open_options *o = options ? options : &defaults;
    if (!client || !out)
        return qr_client_fail_text(QUIRE_EINVAL, "%s is NULL", client ? "out" : "client");
    if (qr_client_check_name("name", name, &e) || check_open(o, &e))
        return qr_client_fail(&e);
    struct quire_session *session = calloc(1, sizeof(*session));
    if (!session)
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for a session");

    session->client = client;
    session->serial = atomic_fetch_add(&client->sessions, 1);
    snprintf(session->name, sizeof(session->name), "%s", name);
    session->shard = o->shard;
    session->lease_ms = o->lease_ms;
    const quire_status status = open_remote(session, o);
    if (status) {
        free(session);
        return status;
    }
    *out = session;
    return QUIRE_OK;
}

void quire_session_close(quire_session **session)
{
    if (!session || !*session)
        return;
    struct quire_session *s = *session;
    const struct quire_error kept = *quire_last_error();

    if (s->epoch && !s->joined) {
        Quire__V1__CloseSessionRequest request = QUIRE__V1__CLOSE_SESSION_REQUEST__INIT;
        request.session = s->handle;
        request.epoch = s->epoch;
        /* A lease that could not be given back expires by itself. */
        if (qr_control_plain(s->client, QR_METHOD_CLOSE_SESSION, &request.base,
                             &quire__v1__close_session_reply__descriptor, true))
            qr_client_fail((const struct qr_error *)(const void *)&kept);
    }
    free(s);
    *session = NULL;
}

quire_status quire_session_info(quire_session *session, struct quire_session_info *out)
{
    struct quire_op *op;
    struct qr_error e;
    Quire__V1__GetSessionRequest request = QUIRE__V1__GET_SESSION_REQUEST__INIT;

    if (!session || !out)
        return qr_client_fail_text(QUIRE_EINVAL, "%s is NULL", session ? "out" : "session");
    request.name = session->name;
    request.session = session->handle;
    quire_status status = qr_control(session->client, QR_METHOD_GET_SESSION, &request.base,
                                     &quire__v1__session_info__descriptor, true, &op);
    if (status)
        return status;
    status = qr_client_info_from((const void *)op->reply_message, out, &e);
    qr_op_recycle(op);
    return status ? qr_client_fail(&e) : QUIRE_OK;
}

quire_status quire_session_touch(quire_session *session, uint64_t ttl_ms)
{
    Quire__V1__TouchSessionRequest request = QUIRE__V1__TOUCH_SESSION_REQUEST__INIT;

    if (!session)
        return qr_client_fail_text(QUIRE_EINVAL, "session is NULL");
    request.session = session->handle;
    request.epoch = session->epoch;
    request.ttl_ms = ttl_ms;
    request.lease_ms = session->lease_ms;
    return qr_control_plain(session->client, QR_METHOD_TOUCH_SESSION, &request.base,
                            &quire__v1__session_info__descriptor, true);
}

quire_status quire_session_truncate(quire_session *session, uint64_t length)
{
    Quire__V1__TruncateSessionRequest request = QUIRE__V1__TRUNCATE_SESSION_REQUEST__INIT;

    if (!session)
        return qr_client_fail_text(QUIRE_EINVAL, "session is NULL");
    if (!session->epoch)
        return qr_client_fail_text(
            QUIRE_EINVAL, "session %.200s was opened without QUIRE_OPEN_WRITE", session->name);
    request.session = session->handle;
    request.epoch = session->epoch;
    request.length = length;
    return qr_control_plain(session->client, QR_METHOD_TRUNCATE_SESSION, &request.base,
                            &quire__v1__session_info__descriptor, true);
}

static quire_status flush(struct quire_client *client, uint64_t session)
{
    Quire__V1__FlushRequest request = QUIRE__V1__FLUSH_REQUEST__INIT;

    request.session = session;
    return qr_control_plain(client, QR_METHOD_FLUSH, &request.base,
                            &quire__v1__flush_reply__descriptor, true);
}

quire_status quire_session_flush(quire_session *session)
{
    if (!session)
        return qr_client_fail_text(QUIRE_EINVAL, "session is NULL");
    return flush(session->client, session->handle);
}

quire_status quire_flush(quire_client *client)
{
    if (!client)
        return qr_client_fail_text(QUIRE_EINVAL, "client is NULL");
    return flush(client, 0);
}

/* ---- what the handle knows by itself ---------------------------------------------------- */

quire_status quire_session_layer(const quire_session *session, uint32_t layer,
                                 struct quire_layers *out)
{
    if (!session || !out)
        return qr_client_fail_text(QUIRE_EINVAL, "%s is NULL", session ? "out" : "session");
    if (layer >= session->model.layer_count)
        return qr_client_fail_text(QUIRE_EINVAL, "layer is %u; the model has %u layers", layer,
                                   session->model.layer_count);
    const struct qr_layer *l = &session->model.layers[layer];
    *out = (struct quire_layers){.count = 1,
                                 .query_heads = l->query_heads,
                                 .kv_heads = l->kv_heads,
                                 .key_dim = l->key_dim,
                                 .value_dim = l->value_dim,
                                 .rope = l->rope,
                                 .rope_stored = (enum quire_rope_stored)l->rope_stored,
                                 .sliding_window = l->sliding_window};
    return QUIRE_OK;
}

quire_status quire_session_rope(const quire_session *session, uint32_t rope,
                                struct quire_rope *out)
{
    if (!session || !out)
        return qr_client_fail_text(QUIRE_EINVAL, "%s is NULL", session ? "out" : "session");
    if (rope >= session->model.rope_count)
        return qr_client_fail_text(QUIRE_EINVAL, "rope is %u; the model has %u tables", rope,
                                   session->model.rope_count);
    const struct qr_rope *r = &session->model.ropes[rope];
    *out = (struct quire_rope){.type = QUIRE_ROPE_TABLE,
                               .layout = (enum quire_rope_layout)r->layout,
                               .rotary_dim = r->rotary_dim,
                               .attention_factor = (double)r->attention_factor,
                               .inv_freq = r->inv_freq};
    return QUIRE_OK;
}
