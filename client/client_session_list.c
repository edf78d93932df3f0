/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that name sessions instead of holding them (list, fork, drop), look-ups
 * of missing ranges, and the conversions of infos and policies.
 */
#include <stdio.h>
#include <string.h>

#include "client_op.h"
#include "client_session.h"
#include "proto/spec_text.h"

static struct quire_codec_spec spec_to(const struct qr_codec_spec *from)
{
    return (struct quire_codec_spec){.codec = (enum quire_codec)from->codec,
                                     .bits = from->bits,
                                     .axis = (enum quire_axis)from->axis,
                                     .group = from->group,
                                     .flags = from->param[QR_PARAM_FLAGS],
                                     .number = from->param[QR_PARAM_NUMBER]};
}

quire_status quire_codec_parse(const char *text, bool key, struct quire_codec_spec *out)
{
    struct qr_codec_spec spec;
    struct qr_error e = {0};
    const quire_status status = text ? qr_spec_parse(text, key, &spec, &e)
                                     : qr_error_set(&e, QUIRE_EINVAL, "no codec given");

    if (status)
        return qr_client_fail(&e);
    *out = spec_to(&spec);
    return QUIRE_OK;
}

void qr_client_policy_to(const struct qr_policy *from, struct quire_policy *to)
{
    *to = (struct quire_policy){.page_tokens = from->page_tokens,
                                .window = from->window,
                                .sink_rows = from->sink_rows,
                                .outlier_rows = from->outlier_rows,
                                .key = spec_to(&from->key),
                                .value = spec_to(&from->value),
                                .override_count = from->override_count};
    for (uint32_t i = 0; i < from->override_count; i++) {
        to->overrides[i].first_layer = from->overrides[i].first_layer;
        to->overrides[i].last_layer = from->overrides[i].last_layer;
        to->overrides[i].tensors = from->overrides[i].tensors;
        to->overrides[i].spec = spec_to(&from->overrides[i].spec);
    }
}

static quire_status narrow(const char *field, uint32_t value, uint32_t max, uint16_t *out,
                           struct qr_error *e)
{
    if (value > max)
        return qr_error_set(e, QUIRE_EINVAL, "policy.%s is %u; at most %u", field, value, max);
    *out = (uint16_t)value;
    return QUIRE_OK;
}

/* packing: what this version writes, as the default policy has it. What else a spec of raw
 * says is ignored. */
static quire_status spec_from(const struct quire_codec_spec *from, struct qr_codec_spec *to,
                              struct qr_error *e)
{
    uint16_t codec = 0, bits = 0, axis = 0;

    memset(to, 0, sizeof(*to));
    if (from->codec == QUIRE_CODEC_RAW) {
        *to = (struct qr_codec_spec){.codec = QR_CODEC_RAW, .bits = 16};
        return QUIRE_OK;
    }
    if (narrow("codec", (uint32_t)from->codec, UINT16_MAX, &codec, e) ||
        narrow("bits", from->bits, UINT8_MAX, &bits, e) ||
        narrow("axis", (uint32_t)from->axis, UINT8_MAX, &axis, e) ||
        narrow("group", from->group, UINT16_MAX, &to->group, e))
        return e->status;
    to->codec = codec;
    to->bits = (uint8_t)bits;
    to->axis = (uint8_t)axis;
    to->param[QR_PARAM_FLAGS] = from->flags;
    to->param[QR_PARAM_NUMBER] = from->number;
    return QUIRE_OK;
}

static quire_status overrides_from(const struct quire_policy *from, struct qr_policy *to,
                                   struct qr_error *e)
{
    if (from->override_count > QR_OVERRIDES_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "policy.override_count is %u; at most %d",
                            from->override_count, QR_OVERRIDES_MAX);
    to->override_count = from->override_count;
    for (uint32_t i = 0; i < from->override_count; i++) {
        const struct quire_override *o = &from->overrides[i];
        struct qr_override *out = &to->overrides[i];
        if (narrow("overrides.first_layer", o->first_layer, UINT16_MAX, &out->first_layer, e) ||
            narrow("overrides.last_layer", o->last_layer, UINT16_MAX, &out->last_layer, e) ||
            narrow("overrides.tensors", o->tensors, UINT16_MAX, &out->tensors, e) ||
            spec_from(&o->spec, &out->spec, e))
            return e->status;
    }
    return QUIRE_OK;
}

quire_status qr_client_policy_from(const struct quire_policy *from, struct qr_policy *to,
                                   struct qr_error *e)
{
    struct qr_error why;

    memset(to, 0, sizeof(*to));
    if (narrow("page_tokens", from->page_tokens, QR_PAGE_TOKENS_MAX, &to->page_tokens, &why) ||
        narrow("window", from->window, QR_WINDOW_MAX, &to->window, &why) ||
        narrow("sink_rows", from->sink_rows, QR_PAGE_TOKENS_MAX, &to->sink_rows, &why) ||
        narrow("outlier_rows", from->outlier_rows, QR_OUTLIERS_MAX, &to->outlier_rows, &why) ||
        spec_from(&from->key, &to->key, &why) || spec_from(&from->value, &to->value, &why) ||
        overrides_from(from, to, &why) || qr_policy_check(to, &why)) {
        if (e)
            *e = why;
        return why.status;
    }
    return QUIRE_OK;
}

quire_status quire_policy_override(struct quire_policy *policy, const char *text)
{
    struct qr_policy made;
    struct qr_error e = {0};

    if (qr_client_policy_from(policy, &made, &e) || qr_overrides_parse(text, &made, &e) ||
        qr_policy_check(&made, &e))
        return qr_client_fail(&e);
    qr_client_policy_to(&made, policy);
    return QUIRE_OK;
}

quire_status qr_client_info_from(const Quire__V1__SessionInfo *from,
                                 struct quire_session_info *to, struct qr_error *e)
{
    struct qr_policy policy;
    struct quire_session_info info = {.layer_count = from->layer_count,
                                      .head_shards = from->head_shards,
                                      .length = from->length,
                                      .longest = from->longest,
                                      .epoch = from->epoch,
                                      .leased = from->leased != 0,
                                      .ttl_ms = from->ttl_ms,
                                      .pages = from->page_count,
                                      .missing_pages = from->missing_pages,
                                      .page_bytes = from->page_bytes,
                                      .tail_bytes = from->tail_bytes,
                                      .fp16_bytes = from->fp16_bytes,
                                      .receipts = from->receipts,
                                      .receipt_error = from->receipt_error,
                                      .receipt_largest = from->receipt_largest};

    if (qr_wire_policy_from(from->policy, &policy, e) ||
        qr_wire_fingerprint(&from->fingerprint, "fingerprint", info.fingerprint, e)) {
        e->status = QUIRE_ECORRUPT;
        return QUIRE_ECORRUPT;
    }
    snprintf(info.name, sizeof(info.name), "%s", from->name);
    qr_client_policy_to(&policy, &info.policy);
    *to = info;
    return QUIRE_OK;
}

quire_status quire_session_fork(quire_client *client, const char *from, const char *to,
                                uint64_t length)
{
    struct qr_error e;
    Quire__V1__ForkSessionRequest request = QUIRE__V1__FORK_SESSION_REQUEST__INIT;

    if (!client)
        return qr_client_fail_text(QUIRE_EINVAL, "client is NULL");
    if (qr_client_check_name("from", from, &e) || qr_client_check_name("to", to, &e))
        return qr_client_fail(&e);
    request.from = (char *)(uintptr_t)from;
    request.to = (char *)(uintptr_t)to;
    request.length = length;
    return qr_control_plain(client, QR_METHOD_FORK_SESSION, &request.base,
                            &quire__v1__session_info__descriptor, false);
}

quire_status quire_session_drop(quire_client *client, const char *name, bool force)
{
    struct qr_error e;
    Quire__V1__DropSessionRequest request = QUIRE__V1__DROP_SESSION_REQUEST__INIT;

    if (!client)
        return qr_client_fail_text(QUIRE_EINVAL, "client is NULL");
    if (qr_client_check_name("name", name, &e))
        return qr_client_fail(&e);
    request.name = (char *)(uintptr_t)name;
    request.force = force;
    return qr_control_plain(client, QR_METHOD_DROP_SESSION, &request.base,
                            &quire__v1__drop_session_reply__descriptor, false);
}

/* One reply's worth of names into infos; *count_out and *more_out of this reply. */
static quire_status list_some(quire_client *client, Quire__V1__ListSessionsRequest *request,
                              struct quire_session_info *infos, size_t *count_out,
                              bool *more_out)
{
    struct quire_op *op;
    struct qr_error e;
    quire_status status = qr_control(client, QR_METHOD_LIST_SESSIONS, &request->base,
                                     &quire__v1__list_sessions_reply__descriptor, true, &op);
    if (status)
        return status;

    const Quire__V1__ListSessionsReply *reply = (const void *)op->reply_message;
    const size_t n = reply->n_sessions;
    if (n > request->limit)
        status = qr_error_set(&e, QUIRE_ECORRUPT, "ListSessions: %zu names; asked for %u", n,
                              request->limit);
    for (size_t i = 0; !status && i < n; i++)
        status = qr_client_info_from(reply->sessions[i], &infos[i], &e);
    *count_out = n;
    *more_out = reply->more != 0 && n > 0;
    qr_op_recycle(op);
    return status ? qr_client_fail(&e) : QUIRE_OK;
}

quire_status quire_session_list(quire_client *client, const char *prefix, const char *after,
                                struct quire_session_info *infos, size_t capacity,
                                size_t *count_out, bool *more_out)
{
    Quire__V1__ListSessionsRequest request = QUIRE__V1__LIST_SESSIONS_REQUEST__INIT;
    size_t count = 0;
    bool more = true;

    if (!client || !count_out || !more_out || !infos)
        return qr_client_fail_text(QUIRE_EINVAL, "%s is NULL",
                                   !client      ? "client"
                                   : !infos     ? "infos"
                                   : !count_out ? "count_out"
                                                : "more_out");
    if (capacity == 0)
        return qr_client_fail_text(QUIRE_EINVAL, "capacity is 0; at least 1");
    request.prefix = (char *)(uintptr_t)(prefix ? prefix : "");
    request.after = (char *)(uintptr_t)(after ? after : "");
    while (more && count < capacity) {
        size_t n = 0;
        request.limit = (uint32_t)(capacity - count < 1000 ? capacity - count : 1000);
        const quire_status status = list_some(client, &request, infos + count, &n, &more);
        if (status)
            return status;
        count += n;
        if (count)
            request.after = infos[count - 1].name;
    }
    *count_out = count;
    *more_out = more;
    return QUIRE_OK;
}

struct quire_range qr_client_range_from(const Quire__V1__TokenRange *from)
{
    return (struct quire_range){.position = from->position,
                                .tokens = from->tokens,
                                .layer = from->layer,
                                .shard = from->shard};
}

quire_status quire_session_lookup(quire_session *session, uint64_t position, uint64_t tokens,
                                  uint32_t first_layer, uint32_t layers,
                                  struct quire_range *missing, size_t capacity,
                                  size_t *count_out)
{
    struct quire_op *op;
    Quire__V1__LookupRequest request = QUIRE__V1__LOOKUP_REQUEST__INIT;

    if (!session || !count_out || (capacity && !missing))
        return qr_client_fail_text(QUIRE_EINVAL, "%s is NULL",
                                   !session     ? "session"
                                   : !count_out ? "count_out"
                                                : "missing");
    request.session = session->handle;
    request.position = position;
    request.tokens = tokens;
    request.first_layer = first_layer;
    request.layers = layers;
    const quire_status status = qr_control(session->client, QR_METHOD_LOOKUP, &request.base,
                                           &quire__v1__lookup_reply__descriptor, true, &op);
    if (status)
        return status;
    const Quire__V1__LookupReply *reply = (const void *)op->reply_message;
    const size_t n = reply->n_missing;
    const bool more = reply->more != 0, fits = n <= capacity && !more;
    for (size_t i = 0; i < capacity && i < n; i++)
        missing[i] = qr_client_range_from(reply->missing[i]);
    qr_op_recycle(op);
    *count_out = n + more;
    if (!fits)
        return qr_client_fail_text(QUIRE_ETOOBIG,
                                   "%zu ranges or more are missing; capacity is %zu: ask for "
                                   "fewer layers or tokens",
                                   n, capacity);
    return QUIRE_OK;
}
