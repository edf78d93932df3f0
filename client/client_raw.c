/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on pages and rows as they are. A server is not trusted: every number of a part is
 * checked before it is used. Must not know files.
 */
#include "client_raw.h"

#include <inttypes.h>
#include <string.h>

#include "client_op.h"

/* ---- fetch --------------------------------------------------------------------------------
 */

static void misplaced(struct quire_op *op, const char *what, uint64_t value)
{
    struct qr_error e;

    qr_error_set(&e, QUIRE_ECORRUPT, "Fetch: the server sent a part with %s %" PRIu64, what,
                 value);
    qr_op_abort(op, &e);
}

static void note_hole(struct quire_op *op, const struct qr_wire_part *part)
{
    struct qr_error *hole = &op->u.raw.fetch->hole;
    const bool missing = part->status == 1;

    pthread_mutex_lock(&op->lock);
    if (hole->status == QUIRE_OK || part->position < hole->position) {
        qr_error_set(hole, missing ? QUIRE_EMISSING : QUIRE_ECORRUPT,
                     "layer %u, tokens [%" PRIu64 ", +%u) %s", part->layer, part->position,
                     part->tokens, missing ? "are no longer stored" : "failed verification");
        hole->layer = part->layer;
        hole->head = part->first_head;
        hole->position = part->position;
        hole->tokens = part->tokens;
    }
    pthread_mutex_unlock(&op->lock);
}

static bool place_page(struct quire_op *op, const struct qr_wire_part *part,
                       struct qr_wire_cursor *payload)
{
    struct qr_raw_fetch *f = op->u.raw.fetch;
    const uint32_t page_tokens = op->session->policy.page_tokens;
    const uint64_t index = (part->position - f->position) / page_tokens;

    if (part->payload != QR_WIRE_PAGE || part->tokens != page_tokens ||
        part->position % page_tokens || part->payload_bytes > f->page_max) {
        misplaced(op, "other than a page at", part->position);
        return false;
    }
    f->page_bytes[index] = (uint32_t)part->payload_bytes;
    return qr_wire_cursor_read(payload, f->place + index * f->stride,
                               (size_t)part->payload_bytes);
}

static bool place_rows(struct quire_op *op, const struct qr_wire_part *part,
                       struct qr_wire_cursor *payload)
{
    struct qr_raw_fetch *f = op->u.raw.fetch;
    const struct qr_layer *layer = &op->session->model.layers[f->layer];
    const size_t key = (size_t)f->heads * layer->key_dim * 2;
    const size_t value = (size_t)f->heads * layer->value_dim * 2;
    const size_t at = (size_t)(part->position - f->position);
    uint8_t *values = f->place + f->tokens * key;

    if (part->payload != QR_WIRE_ROWS || part->payload_bytes != part->tokens * (key + value)) {
        misplaced(op, "other than rows at", part->position);
        return false;
    }
    return qr_wire_cursor_read(payload, f->place + at * key, part->tokens * key) &&
           qr_wire_cursor_read(payload, values + at * value, part->tokens * value);
}

static void take_part(struct quire_op *op, const struct qr_wire_part *part,
                      struct qr_wire_cursor *payload)
{
    struct qr_raw_fetch *f = op->u.raw.fetch;

    if (part->layer != f->layer || part->first_head != f->first_head ||
        part->heads != f->heads) {
        misplaced(op, "another lane's first head", part->first_head);
        return;
    }
    if (part->position < f->position || part->position - f->position >= f->tokens ||
        part->tokens == 0 || part->tokens > f->tokens - (part->position - f->position)) {
        misplaced(op, "position", part->position);
        return;
    }
    if (part->status > 2) {
        misplaced(op, "status", part->status);
        return;
    }
    if (part->status)
        note_hole(op, part);
    else if (!(f->pages ? place_page(op, part, payload) : place_rows(op, part, payload)))
        return;
    pthread_mutex_lock(&op->lock);
    f->left -= part->tokens < f->left ? part->tokens : f->left;
    pthread_mutex_unlock(&op->lock);
}

static void on_parts(struct quire_op *op, const struct qr_wire_fragment *fragments,
                     size_t count)
{
    struct qr_wire_cursor at = qr_wire_cursor_all(fragments, count), payload;
    struct qr_wire_part part;
    struct qr_error e;
    bool more = true;

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

static void on_parts_end(struct quire_op *op)
{
    struct qr_error e;

    pthread_mutex_lock(&op->lock);
    const uint64_t left = op->u.raw.fetch->left;
    e = op->u.raw.fetch->hole;
    pthread_mutex_unlock(&op->lock);
    if (!e.status && left)
        qr_error_set(&e, QUIRE_EINTERNAL,
                     "Fetch: the server's stream ended %" PRIu64 " tokens early", left);
    if (e.status)
        qr_op_fail(op, &e);
}

static void send_fetch(struct quire_op *op)
{
    struct qr_raw_fetch *f = op->u.raw.fetch;
    uint8_t packed[128];
    struct qr_error e;
    struct qr_piece piece = {.data = packed};
    Quire__V1__FetchRequest request = QUIRE__V1__FETCH_REQUEST__INIT;

    memset(&f->hole, 0, sizeof(f->hole));
    f->left = f->tokens;
    if (f->pages)
        memset(f->page_bytes, 0,
               f->tokens / op->session->policy.page_tokens * sizeof(*f->page_bytes));
    request.session = op->session->handle;
    request.position = f->position;
    request.tokens = f->tokens;
    request.first_layer = f->layer;
    request.layers = 1;
    request.first_head = f->first_head;
    request.head_count = f->heads;
    if (qr_wire_pack(&request.base, packed, sizeof(packed), &piece.bytes, &e)) {
        qr_op_fail(op, &e);
        return;
    }
    qr_op_start(op, QR_METHOD_FETCH, QR_OP_READER, &piece, 1);
}

static const struct qr_op_kind fetch_kind = {
    .message = on_parts, .finish = on_parts_end, .restart = send_fetch};

quire_status qr_raw_fetch_submit(quire_session *session, struct qr_raw_fetch *fetch,
                                 uint32_t timeout_ms, quire_op **out)
{
    struct quire_op *op = qr_op_take(session->client, session, &fetch_kind, timeout_ms);

    if (!op)
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for a fetch");
    op->u.raw.fetch = fetch;
    send_fetch(op);
    *out = op;
    qr_op_submitted(op);
    return QUIRE_OK;
}

/* ---- append -------------------------------------------------------------------------------
 */

static void on_reply(struct quire_op *op, const struct qr_wire_fragment *fragments,
                     size_t count)
{
    _Alignas(16) uint8_t memory[512];
    struct qr_wire_arena arena;
    ProtobufCMessage *message;
    struct qr_error e;

    qr_wire_arena_init(&arena, memory, sizeof(memory));
    if (qr_wire_unpack(&quire__v1__append_reply__descriptor, fragments, count, &arena, &message,
                       &e)) {
        e.status = QUIRE_ECORRUPT;
        qr_op_fail(op, &e);
        return;
    }
    op->u.raw.append->answered = true;
}

static void on_reply_end(struct quire_op *op)
{
    struct qr_error e;

    if (op->u.raw.append->answered || qr_op_failed(op))
        return;
    qr_error_set(&e, QUIRE_EINTERNAL, "Append: the server answered without a reply");
    qr_op_fail(op, &e);
}

/* Pieces are lent, each with a hold: the operation is done only when all have come back. */
static void send_append(struct quire_op *op)
{
    const struct qr_raw_append *a = op->u.raw.append;
    struct qr_piece pieces[QR_PIECES_MAX] = {
        {.data = op->request->data, .bytes = op->request->bytes}};

    for (size_t i = 0; i < a->count; i++) {
        size_t head = 0;
        if (!a->rows_bytes) {
            uint8_t field[QR_WIRE_FIELD_HEAD_MAX];
            head = qr_wire_page_head(a->pieces[i].bytes, field);
            memcpy(a->pieces[i].data - head, field, head);
        }
        pieces[i + 1] = (struct qr_piece){.data = a->pieces[i].data - head,
                                          .bytes = a->pieces[i].bytes + head,
                                          .payload_bytes = a->pieces[i].bytes,
                                          .release = qr_op_drop,
                                          .owner = op};
        qr_op_hold(op);
    }
    qr_op_start(op, QR_METHOD_APPEND, QR_OP_UNARY, pieces, a->count + 1);
}

static const struct qr_op_kind append_kind = {
    .message = on_reply, .finish = on_reply_end, .restart = send_append};

quire_status qr_raw_append_submit(quire_session *session, struct qr_raw_append *append,
                                  uint32_t timeout_ms, quire_op **out)
{
    const size_t ids = append->token_ids ? append->tokens : 0;
    const struct qr_wire_append fields = {.session = session->handle,
                                          .epoch = session->epoch,
                                          .position = append->position,
                                          .tokens = append->tokens,
                                          .first_layer = append->layer,
                                          .layers = 1,
                                          .shard = append->shard,
                                          .dtype = QR_F16};
    struct quire_op *op = qr_op_take(session->client, session, &append_kind, timeout_ms);

    if (!op)
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for an append");
    op->u.raw.append = append;
    append->answered = false;
    op->request = qr_pool_take(session->client->buffers, qr_wire_append_head_max(ids));
    if (!op->request) {
        qr_op_recycle(op);
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for an append");
    }
    op->request->bytes = qr_wire_append_head(&fields, append->token_ids, ids,
                                             append->rows_bytes, op->request->data);
    send_append(op);
    *out = op;
    qr_op_submitted(op);
    return QUIRE_OK;
}

quire_status qr_raw_join(quire_op **op)
{
    if (!*op)
        return QUIRE_OK;
    const quire_status status = quire_op_wait(*op, UINT32_MAX);
    qr_op_recycle(*op);
    *op = NULL;
    return status;
}
