/* SPDX-License-Identifier: Apache-2.0
 *
 * The cutting of an append: rows up to the first block, whole blocks that may be
 * sealed, rows for the rest. Each of the three phases goes through all layers.
 */
#include "client_plan.h"

#include <string.h>

#include "storage/codec/codec.h"

enum { PHASE_HEAD, PHASE_PAGES, PHASE_REST, PHASE_END };

uint32_t qr_plan_heads(const struct quire_session *session, uint32_t layer)
{
    return session->model.layers[layer].kv_heads / session->head_shards;
}

size_t qr_plan_row_bytes(const struct quire_session *session, uint32_t layer)
{
    const struct qr_layer *l = &session->model.layers[layer];

    return (size_t)qr_plan_heads(session, layer) * ((size_t)l->key_dim + l->value_dim) * 2;
}

void qr_plan_identity(const struct quire_session *session, uint32_t layer,
                      struct qr_page_identity *out)
{
    const struct qr_layer *l = &session->model.layers[layer];
    const uint32_t heads = qr_plan_heads(session, layer);

    memset(out, 0, sizeof(*out));
    memcpy(out->fingerprint, session->model.fingerprint, sizeof(out->fingerprint));
    out->layer = layer;
    out->first_head = (uint16_t)(heads * session->shard);
    out->heads = (uint16_t)heads;
    out->key_dim = l->key_dim;
    out->value_dim = l->value_dim;
    out->rope_stored = l->rope_stored;
    if (l->rope_stored != QR_ROPE_NONE)
        out->rope_layout = (uint8_t)session->model.ropes[l->rope].layout;
    out->page_tokens = session->policy.page_tokens;
    qr_policy_specs(&session->policy, layer, &out->key, &out->value);
    qr_page_identity_levels(out, &session->model);
}

bool qr_plan_seals(const struct quire_session *session, uint32_t layer)
{
    struct qr_page_identity id;

    if (qr_plan_heads(session, layer) == 0)
        return false;
    qr_plan_identity(session, layer, &id);
    if (qr_codec_check_encode(&id, NULL))
        return false;
    const size_t page = qr_page_bytes_max(&id, &session->policy);
    return page > 0 && page < session->policy.page_tokens * qr_plan_row_bytes(session, layer) &&
           page + 4096 < session->client->message_bytes_max;
}

/* Tokens that whole, sealable blocks inside the append span: block i with (i+1)P + W <= n. */
static void find_pages(struct qr_plan *plan)
{
    const uint64_t page = plan->session->policy.page_tokens;
    const uint64_t window = plan->session->policy.window;
    const uint64_t n = plan->position + plan->tokens;
    const uint64_t first = (plan->position + page - 1) / page * page;
    const uint64_t end = n > window ? (n - window) / page * page : 0;

    if (first >= end)
        return;
    plan->page_first = (uint32_t)(first - plan->position);
    plan->page_end = (uint32_t)(end - plan->position);
}

void qr_plan_start(struct qr_plan *plan, const struct quire_session *session,
                   const struct quire_append *append, bool seal)
{
    const uint64_t limit = session->client->message_bytes_max;

    memset(plan, 0, sizeof(*plan));
    plan->session = session;
    plan->first_layer = append->first_layer;
    plan->layers = append->layers;
    plan->tokens = append->tokens;
    plan->page_tokens = session->policy.page_tokens;
    plan->position = append->position;
    plan->cell_bytes = limit < QR_CELL_BYTES + 8192 ? limit - 8192 : QR_CELL_BYTES;
    plan->page_first = plan->page_end = append->tokens;
    if (seal)
        find_pages(plan);
    qr_plan_rewind(plan);
}

static uint32_t phase_first(const struct qr_plan *plan)
{
    return plan->phase == PHASE_HEAD    ? 0
           : plan->phase == PHASE_PAGES ? plan->page_first
                                        : plan->page_end;
}

static uint32_t phase_end(const struct qr_plan *plan)
{
    return plan->phase == PHASE_HEAD    ? plan->page_first
           : plan->phase == PHASE_PAGES ? plan->page_end
                                        : plan->tokens;
}

void qr_plan_rewind(struct qr_plan *plan)
{
    plan->phase = PHASE_HEAD;
    plan->layer = 0;
    plan->token = phase_first(plan);
}

/* To the next layer of the phase, or the next phase with tokens. */
static void next_layer(struct qr_plan *plan, uint32_t layers)
{
    plan->layer += layers;
    if (plan->layer >= plan->layers) {
        plan->layer = 0;
        plan->phase++;
    }
    plan->token = phase_first(plan);
}

static void cut_pages(struct qr_plan *plan, uint32_t layer, struct qr_cell *out)
{
    struct qr_page_identity id;
    const uint32_t page = plan->session->policy.page_tokens;

    qr_plan_identity(plan->session, layer, &id);
    const uint64_t fit = plan->cell_bytes / qr_page_bytes_max(&id, &plan->session->policy);
    const uint32_t left = (phase_end(plan) - plan->token) / page;
    uint32_t count = fit < 1 ? 1 : fit > QR_PIECES_MAX / 2 ? QR_PIECES_MAX / 2 : (uint32_t)fit;
    if (count > left)
        count = left;
    *out = (struct qr_cell){layer, 1, plan->token, count * page, true};
}

/* Tokens of one layer for a message that cannot have all: to the border of a block where that
 * is possible, since the store restores a block that it lost only from all of its rows at once.
 */
static uint64_t tokens_of_message(const struct qr_plan *plan, uint32_t layer)
{
    const uint64_t row_bytes = qr_plan_row_bytes(plan->session, layer);
    const uint64_t fit = plan->cell_bytes / row_bytes;
    const uint64_t first = plan->position + plan->token;
    const uint64_t border = (first + fit) / plan->page_tokens * plan->page_tokens;
    const uint64_t block_left = plan->page_tokens - first % plan->page_tokens;

    if (border > first)
        return border - first;
    if (block_left * row_bytes + 8192 <= plan->session->client->message_bytes_max)
        return block_left;
    return fit < 1 ? 1 : fit;
}

/* Rows: all tokens of as many layers as fit, or as many tokens of one layer. */
static void cut_rows(struct qr_plan *plan, uint32_t layer, struct qr_cell *out)
{
    const uint64_t tokens = phase_end(plan) - plan->token;
    const bool whole = plan->token == phase_first(plan);
    uint64_t bytes = tokens * qr_plan_row_bytes(plan->session, layer);

    *out = (struct qr_cell){layer, 1, plan->token, (uint32_t)tokens, false};
    if (bytes > plan->cell_bytes) {
        const uint64_t most = tokens_of_message(plan, layer);
        out->tokens = (uint32_t)(tokens < most ? tokens : most);
        return;
    }
    while (whole && plan->layer + out->layers < plan->layers) {
        const uint32_t more = layer + out->layers;
        if (plan->phase == PHASE_PAGES && qr_plan_seals(plan->session, more))
            return;
        bytes += tokens * qr_plan_row_bytes(plan->session, more);
        if (bytes > plan->cell_bytes)
            return;
        out->layers++;
    }
}

static bool cut(struct qr_plan *plan, struct qr_cell *out)
{
    while (plan->phase < PHASE_END && plan->token >= phase_end(plan))
        next_layer(plan, plan->layers);
    if (plan->phase >= PHASE_END)
        return false;

    const uint32_t layer = plan->first_layer + plan->layer;
    if (plan->phase == PHASE_PAGES && qr_plan_seals(plan->session, layer))
        cut_pages(plan, layer, out);
    else
        cut_rows(plan, layer, out);
    plan->token += out->tokens;
    if (plan->token >= phase_end(plan))
        next_layer(plan, out->layers);
    return true;
}

/* A cell of layers without a KV cache carries nothing. */
static bool empty(const struct qr_plan *plan, const struct qr_cell *cell)
{
    for (uint32_t i = 0; i < cell->layers; i++)
        if (qr_plan_heads(plan->session, cell->first_layer + i) > 0)
            return false;
    return true;
}

bool qr_plan_next(struct qr_plan *plan, struct qr_cell *out)
{
    while (cut(plan, out))
        if (!empty(plan, out))
            return true;
    return false;
}
