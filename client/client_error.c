/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors of the library: the thread-local last one, texts of statuses, and the
 * translation of a call's end. Must not know operations or gRPC.
 */
#include "client_error.h"
#undef qr_client_fail /* the header, for the analyzer */
#undef qr_client_fail_text

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(struct quire_error) == sizeof(struct qr_error), "one layout");
#define SAME_PLACE(field)                                                                      \
    _Static_assert(offsetof(struct quire_error, field) == offsetof(struct qr_error, field),    \
                   "one layout")
SAME_PLACE(status);
SAME_PLACE(length);
SAME_PLACE(position);
SAME_PLACE(tokens);
SAME_PLACE(layer);
SAME_PLACE(head);
SAME_PLACE(channel);
SAME_PLACE(retry_after_ms);
SAME_PLACE(epoch);
SAME_PLACE(limit);
SAME_PLACE(text);

static _Thread_local struct quire_error last_error;

const char *quire_status_text(quire_status status)
{
    return qr_status_text(status);
}

const char *quire_status_name(quire_status status)
{
    return qr_status_name(status);
}

const struct quire_error *quire_last_error(void)
{
    return &last_error;
}

const char *quire_version(void)
{
    return QUIRE_VERSION;
}

quire_status qr_client_fail(const struct qr_error *e)
{
    memcpy(&last_error, e, sizeof(last_error));
    return e->status;
}

quire_status qr_client_fail_text(quire_status status, const char *format, ...)
{
    va_list args;

    memset(&last_error, 0, sizeof(last_error));
    last_error.status = status;
    va_start(args, format);
    vsnprintf(last_error.text, sizeof(last_error.text), format, args);
    va_end(args);
    return status;
}

const struct quire_error *qr_client_error_view(const struct qr_error *e)
{
    return (const struct quire_error *)(const void *)e;
}

/* gRPC itself cuts what is far over a limit, without details: its text has the two sizes. */
static bool take_sizes(const char *text, struct qr_error *e)
{
    unsigned long long length, limit;
    const char *sizes = strstr(text, "larger than max (");

    if (!sizes || sscanf(sizes, "larger than max (%llu vs. %llu", &length, &limit) != 2)
        return false;
    e->length = length;
    e->limit = limit;
    return true;
}

static quire_status too_large(const char *name, const char *target,
                              const struct qr_call_result *result, struct qr_error *e)
{
    struct qr_error sizes = {0};

    if (!take_sizes(result->text, &sizes))
        return qr_error_set(e, QUIRE_EFULL, "%s: %s has no room for it now: %s", name, target,
                            result->text);
    qr_error_set(e, QUIRE_ETOOBIG,
                 "%s: a message of %llu bytes, %s takes at most %llu (max_message_bytes)", name,
                 (unsigned long long)sizes.length, target, (unsigned long long)sizes.limit);
    e->length = sizes.length;
    e->limit = sizes.limit;
    return e->status;
}

quire_status qr_client_error_of_call(const struct qr_call_result *result, enum qr_method method,
                                     const char *target, uint64_t timeout_ms,
                                     struct qr_error *e)
{
    const char *name = qr_method_name(method);

    memset(e, 0, sizeof(*e));
    if (result->grpc_status == 0)
        return QUIRE_OK;
    if (result->details && qr_wire_status_parse(result->details, result->details_bytes, e) &&
        e->status != QUIRE_OK)
        return e->status;

    const quire_status status = qr_wire_status_of_grpc(result->grpc_status);
    switch (status) {
    case QUIRE_ETIMEOUT:
        return qr_error_set(e, status, "%s: no answer from %s within %llu ms", name, target,
                            (unsigned long long)timeout_ms);
    case QUIRE_ECANCELED:
        return qr_error_set(e, status, "%s was canceled", name);
    case QUIRE_ETOOBIG:
        return too_large(name, target, result, e);
    case QUIRE_EUNAVAILABLE:
        return qr_error_set(e, status, "%s: the server at %s is not reachable or went away: %s",
                            name, target, result->text);
    default:
        return qr_error_set(e, status, "%s failed at %s: %s (gRPC status %d)", name, target,
                            result->text, result->grpc_status);
    }
}
