/* SPDX-License-Identifier: Apache-2.0
 *
 * Pure questions about a lane: its place, its rows, the identity its pages must have.
 */
#include <string.h>

#include "store_impl.h"

struct qr_lane *qr_session_lane(struct qr_session *session, uint32_t layer, uint32_t shard)
{
    const uint16_t row = session->lane_row[layer];

    if (row == QR_NO_LANE)
        return NULL;
    return &session->lanes[(size_t)row * session->head_shards + shard];
}

void qr_lane_identity(const struct qr_session *session, const struct qr_lane *lane,
                      uint32_t block, struct qr_page_identity *out)
{
    const struct qr_layer *layer = &session->model->layers[lane->layer];
    const bool rotated = layer->rope_stored != QR_ROPE_NONE;

    *out = (struct qr_page_identity){
        .layer = lane->layer,
        .first_head = lane->first_head,
        .heads = lane->heads,
        .key_dim = lane->key_dim,
        .value_dim = lane->value_dim,
        .rope_stored = layer->rope_stored,
        .rope_layout = rotated ? (uint8_t)session->model->ropes[layer->rope].layout : 0,
        .page_tokens = session->policy.page_tokens,
        .first_position = (uint64_t)block * session->policy.page_tokens,
    };
    qr_policy_specs(&session->policy, lane->layer, &out->key, &out->value);
    qr_page_identity_levels(out, session->model);
    memcpy(out->fingerprint, session->model->fingerprint, QR_HASH_BYTES);
}

void qr_lane_page_id(const struct qr_session *session, const struct qr_lane *lane,
                     const uint8_t block_id[QR_HASH_BYTES], uint8_t out[QR_HASH_BYTES])
{
    const struct qr_namespace *ns = qr_store_namespace_of(session->store, session->ns);
    struct qr_policy policy = session->policy;

    qr_policy_specs(&session->policy, lane->layer, &policy.key, &policy.value);
    qr_page_id(ns->secret, block_id, lane->layer, lane->first_head, lane->heads, &policy, out);
}

quire_status qr_page_verify(const struct qr_session *session, const struct qr_lane *lane,
                            const struct qr_found *found, struct qr_page_view *view,
                            struct qr_error *e)
{
    struct qr_page_identity id;
    quire_status status = qr_page_open(found->pinned.bytes, found->pinned.n, view, e);

    if (status != QUIRE_OK)
        return status;
    qr_lane_identity(session, lane, found->block, &id);
    memcpy(id.block_id, found->block_id, QR_HASH_BYTES);
    if (memcmp(view->header->block_id, found->block_id, QR_HASH_BYTES) != 0) {
        uint8_t expected[QR_HASH_BYTES], actual[QR_HASH_BYTES];
        qr_index_id(session->store->index, found->entry, expected);
        qr_lane_page_id(session, lane, view->header->block_id, actual);
        if (memcmp(expected, actual, QR_HASH_BYTES) == 0)
            memcpy(id.block_id, view->header->block_id, QR_HASH_BYTES);
    }
    return qr_page_match(view->header, &id, e);
}

size_t qr_lane_chunk_bytes(const struct qr_session *session, const struct qr_lane *lane)
{
    return (size_t)session->policy.page_tokens * lane->heads *
           ((size_t)lane->key_dim + lane->value_dim) * sizeof(uint16_t);
}

void qr_chunk_rows(const struct qr_session *session, const struct qr_lane *lane,
                   const struct qr_chunk *chunk, struct qr_rows *key, struct qr_rows *value)
{
    const size_t key_row = (size_t)lane->heads * lane->key_dim;

    *key = (struct qr_rows){
        .data = chunk->rows, .token_stride = key_row, .head_stride = lane->key_dim};
    *value = (struct qr_rows){.data = chunk->rows + session->policy.page_tokens * key_row,
                              .token_stride = (size_t)lane->heads * lane->value_dim,
                              .head_stride = lane->value_dim};
}
