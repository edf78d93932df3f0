/* SPDX-License-Identifier: Apache-2.0
 *
 * Cells -> messages: rows converted to FP16 into a pooled buffer or lent as they
 * lie, whole blocks sealed into pages. Never more than one copy of the data.
 */
#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "client_op.h"
#include "storage/codec/receipt.h"

/* Contiguous FP16 from this size on goes out without a copy. */
#define LEND_BYTES (32u << 10)

void qr_outgoing_drop(struct qr_outgoing *out)
{
    for (size_t i = 0; i < out->count; i++)
        if (out->pieces[i].release)
            out->pieces[i].release(out->pieces[i].owner);
    out->count = 0;
}

static void add_piece(struct qr_outgoing *out, const struct qr_piece *piece)
{
    out->pieces[out->count++] = *piece;
    out->bytes += piece->bytes;
}

struct qr_rows qr_append_rows(const struct quire_op *op, const struct qr_append_span *span)
{
    const struct qr_origin from =
        qr_append_origin(op->session, &op->u.append.args, span->layer, span->which);
    const void *base = from.base + span->token * from.token_stride;

    return (struct qr_rows){base, from.token_stride / 2, from.head_stride / 2};
}

/* An EVALUE of rows [token, ...) of a layer, in the caller's terms. */
static quire_status value_error(const struct quire_op *op, const struct qr_append_span *span,
                                struct qr_error *e)
{
    assert(e); /* the op's own */
    const struct qr_error at = *e;
    const uint64_t position = op->u.append.args.position + span->token + at.position;
    const uint32_t head =
        at.head + op->session->shard * qr_plan_heads(op->session, span->layer);

    if (at.status != QUIRE_EVALUE)
        return at.status;
    qr_error_set(
        e, QUIRE_EVALUE,
        "%s of layer %u, head %u, position %llu, channel %u is NaN, infinite or rounds "
        "past 65504 in FP16; nothing was appended",
        span->which ? "value" : "key", span->layer, head, (unsigned long long)position,
        at.channel);
    e->layer = span->layer;
    e->head = head;
    e->position = position;
    e->channel = at.channel;
    return QUIRE_EVALUE;
}

quire_status qr_append_convert(const struct quire_op *op, const struct qr_append_span *span,
                               uint16_t *dst, struct qr_error *e)
{
    const struct quire_append *args = &op->u.append.args;
    const struct qr_origin from = qr_append_origin(op->session, args, span->layer, span->which);
    const uint32_t heads = qr_plan_heads(op->session, span->layer);

    if (qr_rows_convert(from.base + span->token * from.token_stride, (enum qr_dtype)args->dtype,
                        from.token_stride, from.head_stride, span->tokens, heads, from.dim, dst,
                        (size_t)heads * from.dim, from.dim, e))
        return value_error(op, span, e);
    return QUIRE_OK;
}

/* ---- rows ------------------------------------------------------------------------------- */

static size_t head_room(const struct quire_op *op, const struct qr_cell *cell)
{
    const size_t ids = op->u.append.args.token_ids ? cell->tokens : 0;

    return (qr_wire_append_head_max(ids) + 63) & ~(size_t)63;
}

/* The last message waits for the disk, and so for all before it; those only say that it will
 * be. */
static uint32_t durability_of(const struct quire_op *op)
{
    struct qr_plan rest = op->u.append.plan;
    struct qr_cell more;

    if (op->u.append.args.durability != QUIRE_DISK)
        return QR_WIRE_MEMORY;
    return qr_plan_next(&rest, &more) ? QR_WIRE_SOON : QR_WIRE_DISK;
}

/* Write the head so that it ends at buffer offset `end`; returns where it starts. */
static size_t write_head(const struct quire_op *op, const struct qr_cell *cell,
                         uint64_t rows_bytes, uint8_t *buffer, size_t end)
{
    const struct quire_append *args = &op->u.append.args;
    const struct qr_wire_append fields = {.session = op->session->handle,
                                          .epoch = op->session->epoch,
                                          .position = args->position + cell->first_token,
                                          .tokens = cell->tokens,
                                          .first_layer = cell->first_layer,
                                          .layers = cell->layers,
                                          .shard = op->session->shard,
                                          .dtype = QR_F16,
                                          .durability = durability_of(op)};
    const uint32_t *ids = args->token_ids ? args->token_ids + cell->first_token : NULL;
    const size_t bytes =
        qr_wire_append_head(&fields, ids, ids ? cell->tokens : 0, rows_bytes, buffer);

    memmove(buffer + end - bytes, buffer, bytes);
    return end - bytes;
}

static uint64_t rows_bytes(const struct quire_op *op, const struct qr_cell *cell)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < cell->layers; i++)
        bytes += cell->tokens * qr_plan_row_bytes(op->session, cell->first_layer + i);
    return bytes;
}

/* FP16, no gaps, and large enough in each tensor. */
static bool may_lend(const struct quire_op *op, const struct qr_cell *cell)
{
    const struct quire_append *args = &op->u.append.args;

    if (args->dtype != QUIRE_F16 || cell->layers * 2 + 1 > QR_PIECES_MAX)
        return false;
    for (uint32_t i = 0; i < cell->layers * 2; i++) {
        const uint32_t layer = cell->first_layer + i / 2;
        const size_t heads = qr_plan_heads(op->session, layer);
        if (heads == 0)
            continue;
        const struct qr_origin from = qr_append_origin(op->session, args, layer, i % 2);
        if (from.head_stride != from.dim * 2u || from.token_stride != heads * from.dim * 2u ||
            cell->tokens * from.token_stride < LEND_BYTES)
            return false;
    }
    return true;
}

static void lend_rows(struct quire_op *op, const struct qr_cell *cell, struct qr_outgoing *out)
{
    for (uint32_t i = 0; i < cell->layers * 2; i++) {
        const uint32_t layer = cell->first_layer + i / 2;
        if (qr_plan_heads(op->session, layer) == 0)
            continue;
        const struct qr_origin from =
            qr_append_origin(op->session, &op->u.append.args, layer, i % 2);
        const struct qr_piece piece = {.data =
                                           from.base + cell->first_token * from.token_stride,
                                       .bytes = cell->tokens * from.token_stride,
                                       .payload_bytes = cell->tokens * from.token_stride,
                                       .release = qr_op_drop,
                                       .owner = op};
        qr_op_hold(op);
        add_piece(out, &piece);
    }
}

static quire_status copy_rows(struct quire_op *op, const struct qr_cell *cell, uint8_t *to,
                              struct qr_error *e)
{
    quire_status status = QUIRE_OK;

    for (uint32_t i = 0; !status && i < cell->layers * 2; i++) {
        const uint32_t layer = cell->first_layer + i / 2;
        const struct qr_layer *l = &op->session->model.layers[layer];
        if (l->kv_heads == 0)
            continue;
        const struct qr_append_span span = {layer, cell->first_token, cell->tokens,
                                            (int)(i % 2)};
        status = qr_append_convert(op, &span, (uint16_t *)(void *)to, e);
        to += (size_t)cell->tokens * qr_plan_heads(op->session, layer) *
              (i % 2 ? l->value_dim : l->key_dim) * 2;
    }
    return status;
}

static quire_status build_rows(struct quire_op *op, const struct qr_cell *cell,
                               struct qr_outgoing *out, struct qr_error *e)
{
    const size_t room = head_room(op, cell);
    const uint64_t bytes = rows_bytes(op, cell);
    const bool lend = may_lend(op, cell);
    struct qr_buffer *buffer = qr_pool_take(op->client->buffers, room + (lend ? 0 : bytes));
    quire_status status = QUIRE_OK;

    if (!buffer)
        return qr_error_set(e, QUIRE_ENOMEM, "out of memory for a message of %llu bytes",
                            (unsigned long long)bytes);
    if (!lend)
        status = copy_rows(op, cell, buffer->data + room, e);
    if (status) {
        qr_pool_put(buffer);
        return status;
    }
    const size_t start = write_head(op, cell, bytes, buffer->data, room);
    qr_buffer_lend(buffer, 1);
    add_piece(out, &(struct qr_piece){.data = buffer->data + start,
                                      .bytes = room - start + (lend ? 0 : bytes),
                                      .payload_bytes = lend ? 0 : bytes,
                                      .release = qr_buffer_release,
                                      .owner = buffer});
    if (lend)
        lend_rows(op, cell, out);
    return QUIRE_OK;
}

/* ---- pages ------------------------------------------------------------------------------ */

/* K and V of one block, converted one after the other. */
static quire_status convert_block(const struct quire_op *op, const struct qr_append_span *keys,
                                  struct qr_buffer *scratch, struct qr_rows *key,
                                  struct qr_rows *value, struct qr_error *e)
{
    const struct qr_layer *l = &op->session->model.layers[keys->layer];
    const size_t heads = qr_plan_heads(op->session, keys->layer);
    uint16_t *to = (uint16_t *)(void *)scratch->data;
    struct qr_append_span values = *keys;

    values.which = 1;
    *key = (struct qr_rows){to, heads * l->key_dim, l->key_dim};
    to += keys->tokens * key->token_stride;
    *value = (struct qr_rows){to, heads * l->value_dim, l->value_dim};
    const quire_status status =
        qr_append_convert(op, keys, (uint16_t *)(uintptr_t)key->data, e);
    return status ? status : qr_append_convert(op, &values, to, e);
}

/* Pages of one cell, sealed by whoever takes one next. */
struct seal {
    const struct quire_op *op;
    const struct qr_cell *cell;
    uint8_t *first;              /* place of the first page, 64-byte aligned */
    size_t page_max, step;       /* bytes of a page at most; from one place to the next */
    size_t bytes[QR_PIECES_MAX]; /* of each page; 0: it failed */
};

/* The page's receipt. Sampled pages are few, so this memory is not kept for them. */
static quire_status measure(const struct qr_surveyed *rows, void *page, size_t bytes,
                            struct qr_error *e)
{
    const size_t needed = (qr_receipt_scratch_bytes(rows->id) + 63) / 64 * 64;
    void *scratch = aligned_alloc(64, needed);

    if (!scratch)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for %zu bytes of a receipt", needed);
    const quire_status status =
        qr_receipt_measure(page, bytes, rows->key, rows->value, scratch, e);
    free(scratch);
    return status;
}

static quire_status encode(const struct seal *seal, uint32_t page, const struct qr_rows *key,
                           const struct qr_rows *value, size_t *bytes_out, struct qr_error *e)
{
    const struct quire_op *op = seal->op;
    struct qr_page_identity id;
    uint8_t *to = seal->first + page * seal->step;

    qr_plan_identity(op->session, seal->cell->first_layer, &id);
    const uint32_t token = seal->cell->first_token + page * id.page_tokens;
    id.first_position = op->u.append.args.position + token;
    const struct qr_surveyed rows = {.id = &id,
                                     .policy = &op->session->policy,
                                     .key = key,
                                     .value = value,
                                     .survey =
                                         qr_append_survey(op, seal->cell->first_layer, token)};
    const quire_status status =
        rows.survey
            ? qr_page_encode_surveyed(&rows, to, seal->page_max, bytes_out, e)
            : qr_page_encode(&id, rows.policy, key, value, to, seal->page_max, bytes_out, e);
    if (status || !qr_receipt_due(&id, op->client->options.receipts))
        return status;
    return measure(&rows, to, *bytes_out, e);
}

/* Rows that are not FP16 are converted first. */
static quire_status seal_page(const struct seal *seal, uint32_t page, size_t *bytes_out,
                              struct qr_error *e)
{
    const struct quire_op *op = seal->op;
    const uint32_t tokens = op->session->policy.page_tokens, layer = seal->cell->first_layer;
    struct qr_append_span span = {layer, seal->cell->first_token + page * tokens, tokens, 0};
    struct qr_buffer *scratch = NULL;
    struct qr_rows key, value;

    if (op->u.append.args.dtype == QUIRE_F16) {
        key = qr_append_rows(op, &span);
        span.which = 1;
        value = qr_append_rows(op, &span);
        return encode(seal, page, &key, &value, bytes_out, e);
    }
    scratch = qr_pool_take(op->client->buffers, tokens * qr_plan_row_bytes(op->session, layer));
    if (!scratch)
        return qr_error_set(e, QUIRE_ENOMEM, "out of memory for a page");
    quire_status status = convert_block(op, &span, scratch, &key, &value, e);
    if (!status)
        status = encode(seal, page, &key, &value, bytes_out, e);
    qr_pool_put(scratch);
    return status;
}

static void seal_unit(void *arg, uint32_t unit)
{
    struct seal *seal = arg;

    if (seal_page(seal, unit, &seal->bytes[unit], NULL))
        seal->bytes[unit] = 0;
}

/* All pages, on two threads when they are free. A page that failed is tried again here, so that
 * the error is that of the first one. */
static quire_status seal_pages(struct seal *seal, uint32_t pages, struct qr_error *e)
{
    quire_status status = QUIRE_OK;

    qr_helper_run(seal->op->client->helper, pages, seal_unit, seal);
    for (uint32_t i = 0; i < pages && !status; i++)
        if (seal->bytes[i] == 0)
            status = seal_page(seal, i, &seal->bytes[i], e);
    return status;
}

/* Layout of the buffer: [room for the head][page][field head][page]..., pages at multiples of
 * 64, each field head right before its page: pieces leave the gaps out. */
static void add_pages(struct quire_op *op, struct qr_buffer *buffer, const struct seal *seal,
                      uint32_t pages, struct qr_outgoing *out)
{
    const size_t room = (size_t)(seal->first - buffer->data);

    for (uint32_t i = 0; i < pages; i++) {
        uint8_t field[QR_WIRE_FIELD_HEAD_MAX];
        uint8_t *page = seal->first + i * seal->step;
        size_t before = qr_wire_page_head(seal->bytes[i], field);
        memcpy(page - before, field, before);
        if (i == 0)
            before = room - write_head(op, seal->cell, 0, buffer->data, room - before);
        add_piece(out, &(struct qr_piece){.data = page - before,
                                          .bytes = before + seal->bytes[i],
                                          .payload_bytes = seal->bytes[i],
                                          .release = qr_buffer_release,
                                          .owner = buffer});
    }
    qr_buffer_lend(buffer, pages);
}

static quire_status build_pages(struct quire_op *op, const struct qr_cell *cell,
                                struct qr_outgoing *out, struct qr_error *e)
{
    const uint32_t pages = cell->tokens / op->session->policy.page_tokens;
    const size_t room = head_room(op, cell) + 64;
    struct seal seal = {.op = op, .cell = cell};
    struct qr_page_identity id;

    qr_plan_identity(op->session, cell->first_layer, &id);
    seal.page_max = (qr_page_bytes_max(&id, &op->session->policy) + 63) & ~(size_t)63;
    seal.step = seal.page_max + 64;
    struct qr_buffer *buffer = qr_pool_take(op->client->buffers, room + pages * seal.step);
    if (!buffer)
        return qr_error_set(e, QUIRE_ENOMEM, "out of memory for %u pages", pages);
    seal.first = buffer->data + room;
    if (seal_pages(&seal, pages, e)) {
        qr_pool_put(buffer);
        return e->status;
    }
    add_pages(op, buffer, &seal, pages, out);
    return QUIRE_OK;
}

quire_status qr_append_build(struct quire_op *op, const struct qr_cell *cell,
                             struct qr_outgoing *out, struct qr_error *e)
{
    out->cell = *cell;
    out->count = 0;
    out->bytes = 0;
    return cell->pages ? build_pages(op, cell, out, e) : build_rows(op, cell, out, e);
}
