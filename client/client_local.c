/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a client uses the same-host path, and why not: the options, what Hello offers, one
 * try at a time. Everything works without it; it is only faster. Must not know how calls are
 * carried.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client_local.h"
#include "client_op.h"
#include "proto/page.h"
#include "proto/wire_frame.h"

#define RETRY_NS 1000000000u /* between two tries */

static void set_why(struct quire_client *client, const char *why)
{
    pthread_mutex_lock(&client->lock);
    snprintf(client->local_why, sizeof(client->local_why), "%s", why);
    client->local_tried_ns = qr_now_ns();
    pthread_mutex_unlock(&client->lock);
}

static bool is_off(const char *value)
{
    return value && (!strcmp(value, "false") || !strcmp(value, "no") || !strcmp(value, "off"));
}

/* Where this client would find the socket: beside the one it came by, or by the name that the
 * server gave. */
static void socket_path(const struct quire_client *client, const char *offered,
                        char out[QR_LOCAL_PATH_MAX + 1])
{
    const char *target = client->target;

    out[0] = 0;
    if (strncmp(target, "unix:", 5) != 0) {
        snprintf(out, QR_LOCAL_PATH_MAX + 1, "%s", offered);
        return;
    }
    target += strncmp(target, "unix://", 7) ? 5 : 7;
    if (strlen(target) + strlen(QR_LOCAL_SUFFIX) <= QR_LOCAL_PATH_MAX)
        snprintf(out, QR_LOCAL_PATH_MAX + 1, "%s%s", target, QR_LOCAL_SUFFIX);
}

void qr_client_use_local(struct quire_client *client, const char *offered_path,
                         const uint8_t *cookie, size_t cookie_bytes)
{
    char path[QR_LOCAL_PATH_MAX + 1];
    struct qr_error e = {0};

    if (!client->options.local || is_off(getenv("QUIRE_LOCAL"))) {
        set_why(client, "switched off (options.local or QUIRE_LOCAL)");
        return;
    }
    if (cookie_bytes != QR_LOCAL_COOKIE_BYTES) {
        set_why(client, "the server does not offer it");
        return;
    }
    socket_path(client, offered_path, path);
    if (!path[0]) {
        set_why(client, "the server has no socket for callers of this kind, or its path is too "
                        "long");
        return;
    }
    const struct qr_local_offer offer = {.path = path, .cookie = cookie};
    if (qr_transport_use_local(client->transport, &offer, &e))
        set_why(client, e.text);
    else
        set_why(client, "");
}

static bool wants_another(struct quire_client *client)
{
    if (!client->options.local || is_off(getenv("QUIRE_LOCAL")) ||
        qr_transport_is_local(client->transport))
        return false;
    pthread_mutex_lock(&client->lock);
    const bool late = qr_now_ns() - client->local_tried_ns >= RETRY_NS;
    if (late)
        client->local_tried_ns = qr_now_ns(); /* this thread tries: not others, too */
    pthread_mutex_unlock(&client->lock);
    return late;
}

void qr_client_retry_local(struct quire_client *client)
{
    struct quire_op *op;
    Quire__V1__HelloRequest request = QUIRE__V1__HELLO_REQUEST__INIT;

    if (!wants_another(client) || qr_control(client, QR_METHOD_HELLO, &request.base,
                                             &quire__v1__hello_reply__descriptor, true, &op))
        return;
    const Quire__V1__HelloReply *reply = (const void *)op->reply_message;
    qr_client_use_local(client, reply->local_path, reply->local_cookie.data,
                        reply->local_cookie.len);
    qr_op_recycle(op);
}

bool quire_client_is_local(quire_client *client, char *why, size_t capacity)
{
    if (!client)
        return false;
    const bool local = qr_transport_is_local(client->transport);
    pthread_mutex_lock(&client->lock);
    if (why && capacity)
        snprintf(why, capacity, "%s",
                 local                  ? ""
                 : client->local_why[0] ? client->local_why
                                        : "the connection on this host has ended; the next "
                                          "session opened tries again");
    pthread_mutex_unlock(&client->lock);
    return local;
}

uint64_t qr_client_part_bytes(const struct quire_session *session)
{
    uint64_t most = QR_CELL_BYTES;

    for (uint32_t layer = 0; layer < session->model.layer_count; layer++) {
        struct qr_page_identity id;
        if (qr_plan_heads(session, layer) == 0)
            continue;
        qr_plan_identity(session, layer, &id);
        const uint64_t page = qr_page_bytes_max(&id, &session->policy);
        const uint64_t block =
            session->policy.page_tokens * (uint64_t)qr_plan_row_bytes(session, layer);
        most = page > most ? page : most;
        most = block > most ? block : most;
    }
    return most;
}
