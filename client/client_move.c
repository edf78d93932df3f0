/* SPDX-License-Identifier: Apache-2.0
 *
 * What exports and imports share. Must not know the order in which they do things.
 */
#include "client_move.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client_session.h"

#define KEEP_MS 3600000u

void quire_export_init(struct quire_export *args)
{
    *args = (struct quire_export){.struct_bytes = sizeof(*args), .keep_ms = KEEP_MS};
}

void quire_import_init(struct quire_import *args)
{
    *args = (struct quire_import){.struct_bytes = sizeof(*args), .keep_ms = KEEP_MS};
}

struct qr_move *qr_move_make(struct quire_client *client, uint32_t timeout_ms,
                             quire_progress_fn progress, void *context)
{
    struct qr_move *move = calloc(1, sizeof(*move));

    if (!move) {
        qr_client_fail_text(QUIRE_ENOMEM, "out of memory for moving a session");
        return NULL;
    }
    move->client = client;
    move->deadline_ns = timeout_ms ? qr_now_ns() + (uint64_t)timeout_ms * 1000000u : 0;
    move->progress = progress;
    move->context = context;
    return move;
}

quire_status qr_move_tell(struct qr_move *move)
{
    move->transfer.bytes = move->walk.offset;
    if (move->deadline_ns && qr_now_ns() >= move->deadline_ns)
        return qr_client_fail_text(
            QUIRE_ETIMEOUT,
            "session \"%.100s\": the deadline passed at byte %" PRIu64 " of %" PRIu64,
            move->transfer.name, move->transfer.bytes, move->transfer.total_bytes);
    if (move->progress && !move->progress(move->context, &move->transfer))
        return qr_client_fail_text(
            QUIRE_ECANCELED, "session \"%.100s\": canceled at byte %" PRIu64 " of %" PRIu64,
            move->transfer.name, move->transfer.bytes, move->transfer.total_bytes);
    return QUIRE_OK;
}

uint32_t qr_move_timeout_ms(const struct qr_move *move)
{
    const uint64_t now_ns = qr_now_ns();
    const uint32_t most_ms = move->client->options.timeout_ms;

    if (!move->deadline_ns)
        return most_ms;
    const uint64_t left_ms =
        move->deadline_ns > now_ns ? (move->deadline_ns - now_ns) / 1000000u + 1 : 1;
    return left_ms < most_ms ? (uint32_t)left_ms : most_ms;
}

void qr_move_describe(struct qr_move *move)
{
    const struct qr_export_head *head = &move->walk.head;

    snprintf(move->transfer.name, sizeof(move->transfer.name), "%.*s", head->name_bytes,
             head->name);
    memcpy(move->transfer.fingerprint, head->fingerprint, sizeof(head->fingerprint));
    move->transfer.tokens = head->length;
    move->transfer.total_bytes = head->file_bytes;
}

quire_status qr_move_io(const char *what, int error)
{
    char text[128];

    return qr_client_fail_text(QUIRE_EIO, "%s: %s", what,
                               strerror_r(error, text, sizeof(text)));
}

/* ---- calls --------------------------------------------------------------------------------
 */

static quire_status take_info(struct quire_op *op, struct quire_session_info *out)
{
    struct qr_error e;
    const quire_status status = qr_client_info_from((const void *)op->reply_message, out, &e);

    qr_op_recycle(op);
    return status ? qr_client_fail(&e) : QUIRE_OK;
}

quire_status qr_move_info(struct quire_client *client, const char *name,
                          struct quire_session_info *out)
{
    struct quire_op *op;
    Quire__V1__GetSessionRequest request = QUIRE__V1__GET_SESSION_REQUEST__INIT;

    request.name = (char *)(uintptr_t)name;
    const quire_status status = qr_control(client, QR_METHOD_GET_SESSION, &request.base,
                                           &quire__v1__session_info__descriptor, true, &op);
    return status ? status : take_info(op, out);
}

quire_status qr_move_fork(struct quire_client *client, const char *from, const char *to,
                          uint64_t length, uint64_t ttl_ms, struct quire_session_info *out)
{
    struct quire_op *op;
    Quire__V1__ForkSessionRequest request = QUIRE__V1__FORK_SESSION_REQUEST__INIT;

    request.from = (char *)(uintptr_t)from;
    request.to = (char *)(uintptr_t)to;
    request.length = length;
    request.ttl_ms = ttl_ms;
    const quire_status status = qr_control(client, QR_METHOD_FORK_SESSION, &request.base,
                                           &quire__v1__session_info__descriptor, false, &op);
    return status ? status : take_info(op, out);
}

void qr_move_drop(struct quire_client *client, const char *name)
{
    const struct quire_error kept = *quire_last_error();

    /* What cannot be dropped now ends with its time to live. */
    if (quire_session_drop(client, name, true))
        qr_client_fail((const struct qr_error *)(const void *)&kept);
}

quire_status qr_move_manifest(struct quire_session *session, uint32_t first_block,
                              uint32_t blocks, const Quire__V1__Manifest **reply_out,
                              struct quire_op **op_out)
{
    struct quire_op *op;
    Quire__V1__GetManifestRequest request = QUIRE__V1__GET_MANIFEST_REQUEST__INIT;

    request.session = session->handle;
    request.first_block = first_block;
    request.blocks = blocks;
    const quire_status status =
        qr_control(session->client, QR_METHOD_GET_MANIFEST, &request.base,
                   &quire__v1__manifest__descriptor, true, &op);
    if (status)
        return status;
    const Quire__V1__Manifest *m = (const void *)op->reply_message;
    if (m->block_ids.len % QR_HASH_BYTES || m->block_ids.len / QR_HASH_BYTES > blocks ||
        m->token_known.len != (m->n_token_ids + 7) / 8) {
        qr_op_recycle(op);
        return qr_client_fail_text(QUIRE_ECORRUPT,
                                   "GetManifest: the reply's lengths do not fit each other");
    }
    *reply_out = m;
    *op_out = op;
    return QUIRE_OK;
}

quire_status qr_move_claim(struct quire_session *session, uint32_t first_block,
                           const uint8_t *ids, uint32_t count, uint32_t chained)
{
    Quire__V1__ClaimBlocksRequest request = QUIRE__V1__CLAIM_BLOCKS_REQUEST__INIT;

    request.session = session->handle;
    request.epoch = session->epoch;
    request.first_block = first_block;
    request.block_ids =
        (ProtobufCBinaryData){(size_t)count * QR_HASH_BYTES, (uint8_t *)(uintptr_t)ids};
    request.chained_blocks = chained;
    return qr_control_plain(session->client, QR_METHOD_CLAIM_BLOCKS, &request.base,
                            &quire__v1__claim_blocks_reply__descriptor, true);
}
