/* SPDX-License-Identifier: Apache-2.0
 *
 * Received parts -> the caller's buffers. Each page is put together in a pooled
 * buffer (cache-resident), verified there, and expanded straight into place. A
 * server is not trusted: every number of a part is checked before it is used.
 */
#include <inttypes.h>
#include <string.h>

#include "client_op.h"
#include "storage/codec/codec.h"

/* A part, checked against the request. */
struct placed {
    const struct qr_layer *layer;
    uint32_t index;             /* of the layer in the fetch */
    uint32_t first_head, heads; /* wanted heads in the part, absolute */
    const struct qr_wire_part *part;
};

static quire_status damaged(struct quire_op *op, const char *what, uint64_t value)
{
    struct qr_error e;

    qr_error_set(&e, QUIRE_ECORRUPT, "Fetch: the server sent a part with %s %" PRIu64, what,
                 value);
    qr_op_abort(op, &e);
    return QUIRE_ECORRUPT;
}

static quire_status check_part(struct quire_op *op, const struct qr_wire_part *part,
                               struct placed *out)
{
    const struct quire_fetch *args = &op->u.fetch.args;
    const uint32_t index = part->layer - args->first_layer;
    if (part->layer < args->first_layer || index >= args->layers)
        return damaged(op, "layer", part->layer);

    const struct qr_layer *layer = &op->session->model.layers[part->layer];
    uint32_t first, heads;
    qr_fetch_heads(args, layer, &first, &heads);
    if (part->heads == 0 || part->first_head >= layer->kv_heads ||
        part->heads > layer->kv_heads - part->first_head || part->first_head >= first + heads ||
        part->first_head + part->heads <= first)
        return damaged(op, "first head", part->first_head);
    if (part->position < args->position || part->tokens == 0 ||
        part->position - args->position >= args->tokens ||
        part->tokens > args->tokens - (part->position - args->position))
        return damaged(op, "position", part->position);
    if (part->status > 2)
        return damaged(op, "status", part->status);
    const uint32_t end = part->first_head + part->heads;
    out->layer = layer;
    out->index = index;
    out->first_head = part->first_head > first ? part->first_head : first;
    out->heads = (end < first + heads ? end : first + heads) - out->first_head;
    out->part = part;
    return QUIRE_OK;
}

/* ---- progress --------------------------------------------------------------------------- */

static void set_hole(struct qr_error *hole, quire_status status,
                     const struct qr_wire_part *part, uint64_t position, uint64_t tokens)
{
    qr_error_set(hole, status, "layer %u, tokens [%" PRIu64 ", +%" PRIu64 ") %s", part->layer,
                 position, tokens,
                 status == QUIRE_EMISSING ? "are no longer stored" : "failed verification");
    hole->layer = part->layer;
    hole->head = part->first_head;
    hole->position = position;
    hole->tokens = tokens;
}

/* The first hole of the fetch: adjacent parts of its lane are one range. */
static void note_hole(struct qr_fetch_state *f, const struct qr_wire_part *part,
                      uint32_t status)
{
    struct qr_error *hole = &f->hole;
    const quire_status code = status == 1 ? QUIRE_EMISSING : QUIRE_ECORRUPT;
    const bool adjacent = hole->status == code && part->layer == hole->layer &&
                          part->first_head == hole->head &&
                          part->position == hole->position + hole->tokens;
    const bool first = hole->status == QUIRE_OK || part->layer < hole->layer ||
                       (part->layer == hole->layer && part->position < hole->position);

    if (adjacent)
        set_hole(hole, code, part, hole->position, hole->tokens + part->tokens);
    else if (first)
        set_hole(hole, code, part, part->position, part->tokens);
}

static void mark_pages(struct quire_op *op, const struct placed *p, uint32_t status)
{
    const struct qr_fetch_state *f = &op->u.fetch;
    const uint64_t page = op->session->policy.page_tokens;
    uint8_t *row = f->args.page_status;
    if (!row)
        return;

    row += p->index * f->pages_per_layer;
    const uint64_t base = f->args.position / page;
    const uint64_t last = (p->part->position + p->part->tokens - 1) / page;
    for (uint64_t i = p->part->position / page; i <= last; i++)
        if (row[i - base] < status)
            row[i - base] = (uint8_t)status;
}

/* Count a part as handled, whatever became of it. */
static void settle(struct quire_op *op, const struct placed *p, uint32_t status)
{
    struct qr_fetch_state *f = &op->u.fetch;
    const uint64_t rows = (uint64_t)p->part->tokens * p->heads;
    bool twice;

    pthread_mutex_lock(&op->lock);
    twice = rows > f->left[p->index];
    if (!twice) {
        f->left[p->index] -= rows;
        if (status) {
            note_hole(f, p->part, status);
            mark_pages(op, p, status);
            if (f->layer_status[p->index] < status)
                f->layer_status[p->index] = (uint8_t)status;
        }
        const uint32_t ready = f->layers_ready;
        while (f->layers_ready < f->args.layers && f->left[f->layers_ready] == 0)
            f->layers_ready++;
        if (f->layers_ready != ready)
            pthread_cond_broadcast(&op->changed);
    }
    pthread_mutex_unlock(&op->lock);
    if (twice)
        damaged(op, "tokens sent twice, position", p->part->position);
}

/* ---- rotation --------------------------------------------------------------------------- */

struct turn {
    struct qr_rotation *cached; /* or */
    struct qr_buffer *own;
    const float *table;
    const struct qr_rope *rope; /* NULL: none is wanted */
};

static bool turn_wanted(const struct quire_op *op, const struct placed *p)
{
    const struct qr_place place = qr_fetch_place(&op->u.fetch.args, p->layer, p->index, 0);

    return op->u.fetch.args.rotate && p->layer->rope_stored == QR_ROPE_PRE && place.base;
}

/* Tables of `tokens` tokens from `base` on, of which [skip, +wanted) will be used. Shifted ones
 * before position 0 do not exist: then only the wanted ones are made. */
static bool turn_make(struct quire_op *op, const struct placed *p, uint64_t base,
                      uint32_t tokens, uint32_t skip, struct turn *out)
{
    const int64_t first = (int64_t)base + op->u.fetch.args.position_shift;
    const bool whole = tokens == op->session->policy.page_tokens && first >= 0;

    *out = (struct turn){0};
    if (!turn_wanted(op, p))
        return true;
    out->rope = &op->session->model.ropes[p->layer->rope];
    if (whole) {
        const struct qr_rotation_key key = {op->session->serial, (uint64_t)first,
                                            p->layer->rope, tokens};
        out->cached = qr_rotation_get(op->client->rotations, &key, out->rope);
        out->table = out->cached ? out->cached->table : NULL;
        return out->cached != NULL;
    }
    const size_t rotary = out->rope->rotary_dim;
    out->own = qr_pool_take(op->client->buffers, tokens * rotary * sizeof(float));
    if (!out->own)
        return false;
    float *table = (float *)(void *)out->own->data;
    const int64_t from = first + skip;
    qr_rotation_make(out->rope, (uint64_t)from, p->part->tokens, table + skip * rotary);
    out->table = table;
    return true;
}

static void turn_drop(struct quire_op *op, struct turn *turn)
{
    if (turn->cached)
        qr_rotation_put(op->client->rotations, turn->cached);
    qr_pool_put(turn->own);
}

static struct qr_expand target(const struct quire_op *op, const struct placed *p, int which,
                               const struct turn *turn)
{
    const struct quire_fetch *args = &op->u.fetch.args;
    const struct qr_place place = qr_fetch_place(args, p->layer, p->index, which);
    uint32_t first, heads;

    qr_fetch_heads(args, p->layer, &first, &heads);
    struct qr_expand to = {.token_count = p->part->tokens,
                           .first_head = p->first_head - p->part->first_head,
                           .head_count = p->heads,
                           .dtype = (enum qr_dtype)args->dtype,
                           .token_stride = place.token_stride,
                           .head_stride = place.head_stride,
                           .stream = op->u.fetch.stream};
    if (place.base)
        to.dst = place.base + (p->part->position - args->position) * place.token_stride +
                 (size_t)(p->first_head - first) * place.head_stride;
    if (which == 0 && turn->table) {
        to.rotation = turn->table;
        to.rotary_dim = turn->rope->rotary_dim;
        to.rope_layout = turn->rope->layout;
    }
    return to;
}

/* ---- pages ------------------------------------------------------------------------------ */

static void page_identity(const struct quire_op *op, const struct placed *p,
                          const struct qr_page_header *header, struct qr_page_identity *id)
{
    const struct quire_session *s = op->session;
    const struct qr_layer *layer = p->layer;

    memset(id, 0, sizeof(*id));
    memcpy(id->fingerprint, s->model.fingerprint, sizeof(id->fingerprint));
    /* The block id is the store's business: only the store knows the tokens before. */
    memcpy(id->block_id, header->block_id, sizeof(id->block_id));
    id->layer = p->part->layer;
    id->first_head = (uint16_t)p->part->first_head;
    id->heads = (uint16_t)p->part->heads;
    id->key_dim = layer->key_dim;
    id->value_dim = layer->value_dim;
    id->rope_stored = layer->rope_stored;
    id->rope_layout =
        layer->rope_stored == QR_ROPE_NONE ? 0 : (uint8_t)s->model.ropes[layer->rope].layout;
    id->page_tokens = s->policy.page_tokens;
    id->first_position = p->part->position / s->policy.page_tokens * s->policy.page_tokens;
    qr_policy_specs(&s->policy, id->layer, &id->key, &id->value);
    qr_page_identity_levels(id, &s->model);
}

/* PART status of a page: 0, or 2 when it is not what was asked for. */
static uint32_t verify_page(const struct quire_op *op, const struct placed *p,
                            const struct qr_buffer *page, struct qr_page_view *view)
{
    struct qr_page_identity id;

    if (qr_page_open(page->data, page->bytes, view, NULL))
        return 2;
    page_identity(op, p, view->header, &id);
    const uint64_t end = id.first_position + id.page_tokens;
    if (p->part->position + p->part->tokens > end)
        return 2;
    return qr_page_match(view->header, &id, NULL) ? 2 : 0;
}

static bool expand_page(struct quire_op *op, const struct placed *p,
                        const struct qr_page_view *view)
{
    const uint64_t base = view->header->first_position;
    const uint32_t skip = (uint32_t)(p->part->position - base);
    struct turn turn;

    if (!turn_make(op, p, base, view->header->page_tokens, skip, &turn))
        return false;
    for (int which = 0; which < 2; which++) {
        struct qr_expand to = target(op, p, which, &turn);
        to.first_token = skip;
        if (to.dst)
            qr_page_expand(view, which ? QR_VALUE : QR_KEY, &to);
    }
    turn_drop(op, &turn);
    return true;
}

static void copy_page(struct qr_page_copy *copy, const struct qr_buffer *page)
{
    copy->bytes = page->bytes;
    if (page->bytes <= copy->capacity)
        memcpy(copy->page, page->data, page->bytes);
}

static bool take_page(struct quire_op *op, const struct placed *p, const struct qr_buffer *page,
                      uint32_t *status_out)
{
    struct qr_page_view view;

    *status_out = verify_page(op, p, page, &view);
    if (*status_out)
        return true;
    if (op->u.fetch.copy) {
        copy_page(op->u.fetch.copy, page);
        return true;
    }
    return expand_page(op, p, &view);
}

/* ---- rows ------------------------------------------------------------------------------- */

static bool take_rows(struct quire_op *op, const struct placed *p, const struct qr_buffer *rows,
                      uint32_t *status_out)
{
    const struct qr_wire_part *part = p->part;
    const size_t key_elements = (size_t)part->tokens * part->heads * p->layer->key_dim;
    const size_t value_elements = (size_t)part->tokens * part->heads * p->layer->value_dim;
    struct turn turn;

    if (rows->bytes != (key_elements + value_elements) * 2) {
        *status_out = 2;
        return true;
    }
    if (op->u.fetch.copy) {
        op->u.fetch.copy->in_tail = true;
        return true;
    }
    if (!turn_make(op, p, part->position, part->tokens, 0, &turn))
        return false;
    const uint16_t *data = (const uint16_t *)(const void *)rows->data;
    for (int which = 0; which < 2; which++) {
        const uint32_t dim = which ? p->layer->value_dim : p->layer->key_dim;
        const struct qr_rows in = {.data = (which ? data + key_elements : data) +
                                           (size_t)(p->first_head - part->first_head) * dim,
                                   .token_stride = (size_t)part->heads * dim,
                                   .head_stride = dim};
        struct qr_expand to = target(op, p, which, &turn);
        to.first_head = 0;
        if (to.dst)
            qr_rows_expand(&in, part->tokens, p->heads, dim, &to);
    }
    turn_drop(op, &turn);
    return true;
}

/* ---- messages --------------------------------------------------------------------------- */

static void no_memory(struct quire_op *op, uint64_t bytes)
{
    struct qr_error e;

    qr_error_set(&e, QUIRE_ENOMEM, "Fetch: out of memory for a part of %" PRIu64 " bytes",
                 bytes);
    qr_op_abort(op, &e);
}

static void take_part(struct quire_op *op, const struct qr_wire_part *part,
                      struct qr_wire_cursor *payload)
{
    struct placed p;
    uint32_t status = part->status;

    if (check_part(op, part, &p))
        return;
    if (status == 0 && part->payload == QR_WIRE_NO_PAYLOAD) {
        damaged(op, "no payload at position", part->position);
        return;
    }
    if (status == 0) {
        struct qr_buffer *buffer = qr_pool_take(op->client->buffers, part->payload_bytes);
        bool ok = buffer != NULL;
        if (ok) {
            buffer->bytes = part->payload_bytes;
            qr_wire_cursor_read(payload, buffer->data, buffer->bytes);
            ok = part->payload == QR_WIRE_PAGE ? take_page(op, &p, buffer, &status)
                                               : take_rows(op, &p, buffer, &status);
        }
        qr_pool_put(buffer);
        if (!ok) {
            no_memory(op, part->payload_bytes);
            return;
        }
    }
    settle(op, &p, status);
}

void qr_fetch_message(struct quire_op *op, const struct qr_wire_fragment *fragments,
                      size_t count)
{
    struct qr_wire_cursor at = qr_wire_cursor_all(fragments, count), payload;
    struct qr_wire_part part;
    struct qr_error e;
    bool more = true;

    atomic_store(&op->touched, true);
    while (!qr_op_failed(op)) {
        if (qr_wire_next_part(&at, &more, &part, &payload, &e)) {
            qr_op_abort(op, &e);
            return;
        }
        if (!more)
            return;
        take_part(op, &part, &payload);
    }
}
