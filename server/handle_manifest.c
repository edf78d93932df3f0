/* SPDX-License-Identifier: Apache-2.0
 *
 * Handlers for moving a session: GetManifest and ClaimBlocks.
 */
#include <stdlib.h>
#include <string.h>

#include "service.h"

#define IDS_MAX 32768u   /* block ids in one reply: 1 MiB */
#define ROOM_BYTES 65536 /* of a reply for what is not lanes or block ids */

static uint32_t ids_that_fit(const struct qr_request *request, uint32_t wanted)
{
    const size_t room = request->scratch->reply_capacity;
    const size_t fit = room > ROOM_BYTES ? (room - ROOM_BYTES) / 2 / QR_HASH_BYTES : 1;
    const size_t most = fit < IDS_MAX ? fit : IDS_MAX;

    return wanted < most ? wanted : (uint32_t)most;
}

/* Whole bytes of flags become bits, in place. */
static size_t pack_bits(uint8_t *known, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t bit = (uint8_t)(known[i] << (i % 8));
        known[i / 8] = i % 8 ? (uint8_t)(known[i / 8] | bit) : bit;
    }
    return (count + 7u) / 8u;
}

static void manifest_to(struct qr_manifest *m, Quire__V1__Manifest *out)
{
    out->length = m->length;
    out->ttl_ms = m->ttl_ms;
    out->block_count = m->block_count;
    out->chained_blocks = m->chained;
    out->first_block = m->first_block;
    out->block_ids =
        (ProtobufCBinaryData){(size_t)m->id_count * QR_HASH_BYTES, (uint8_t *)m->block_ids};
    out->n_sealed_blocks = m->lane_count;
    out->sealed_blocks = m->sealed;
    out->token_position = m->token_position;
    out->n_token_ids = m->token_count;
    out->token_ids = m->token_ids;
    out->token_known = (ProtobufCBinaryData){pack_bits(m->known, m->token_count), m->known};
}

quire_status qr_handle_get_manifest(void *arg, const struct qr_request *request,
                                    size_t *reply_bytes, struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    Quire__V1__Manifest reply = QUIRE__V1__MANIFEST__INIT;
    struct qr_manifest *manifest = NULL;
    quire_status status =
        qr_request_unpack(request, &quire__v1__get_manifest_request__descriptor, &message, e);

    if (status)
        return status;
    const Quire__V1__GetManifestRequest *m = (Quire__V1__GetManifestRequest *)message;
    status = qr_session_manifest(service->store, request->ns, m->session, m->first_block,
                                 ids_that_fit(request, m->blocks), &manifest, e);
    if (status)
        return qr_service_explain(service, status, e);
    manifest_to(manifest, &reply);
    status = qr_reply_pack(request, &reply.base, reply_bytes, e);
    qr_manifest_free(&manifest);
    return status;
}

quire_status qr_handle_claim_blocks(void *arg, const struct qr_request *request,
                                    size_t *reply_bytes, struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    Quire__V1__ClaimBlocksReply reply = QUIRE__V1__CLAIM_BLOCKS_REPLY__INIT;
    quire_status status =
        qr_request_unpack(request, &quire__v1__claim_blocks_request__descriptor, &message, e);

    if (status)
        return status;
    const Quire__V1__ClaimBlocksRequest *m = (Quire__V1__ClaimBlocksRequest *)message;
    if (m->block_ids.len % QR_HASH_BYTES)
        return qr_error_set(e, QUIRE_EINVAL, "block_ids has %zu bytes, not a multiple of %d",
                            m->block_ids.len, QR_HASH_BYTES);
    const struct qr_block_claim claim = {
        .session = m->session,
        .epoch = m->epoch,
        .first = m->first_block,
        .count = (uint32_t)(m->block_ids.len / QR_HASH_BYTES),
        .chained = m->chained_blocks,
        .ids = (const uint8_t(*)[QR_HASH_BYTES])(const void *)m->block_ids.data};
    status = qr_session_claim(service->store, request->ns, &claim, &reply.blocks, e);
    if (status)
        return qr_service_explain(service, status, e);
    return qr_reply_pack(request, &reply.base, reply_bytes, e);
}
