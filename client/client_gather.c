/* SPDX-License-Identifier: Apache-2.0
 *
 * Cells -> messages: rows converted to FP16 into a pooled buffer or lent as they
 * lie, whole blocks sealed into pages. Never more than one copy of the data.
 */
#include <stdatomic.h>
#include <string.h>

#include "client_op.h"
#include "storage/codec/codec.h"

/* Contiguous FP16 from this size on goes out without a copy. */
#define LEND_BYTES (32u << 10)
/* Scratch of a scan: stays in the L1 cache. */
#define SCAN_BYTES (16u << 10)

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

/* Tokens of one tensor of one layer. */
struct span {
    uint32_t layer, token, tokens;
    int which;
};

/* An EVALUE of rows [token, ...) of a layer, in the caller's terms. */
static quire_status value_error(const struct quire_op *op, const struct span *span,
                                struct qr_error *e)
{
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

static quire_status convert(const struct quire_op *op, const struct span *span, uint16_t *dst,
                            struct qr_error *e)
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

/* Any NaN or infinity among `n` FP16 values (a multiple of 4)? An exponent of all ones carries
 * into the sign's bit when the next lower one is added; four values at a time. */
static bool any_infinite(const void *values, size_t n)
{
    const uint64_t exponents = 0x7c007c007c007c00u, one = 0x0400040004000400u;
    const uint8_t *at = values;
    uint64_t found = 0;

    for (size_t i = 0; i < n / 4; i++) {
        uint64_t four;
        memcpy(&four, at + i * sizeof(four), sizeof(four));
        found |= (four & exponents) + one;
    }
    return (found & 0x8000800080008000u) != 0;
}

/* FP16 is judged where it lies; what it does not pass is looked at again, to name the place. */
static bool passes_as_it_is(const struct quire_op *op, uint32_t layer, int which)
{
    const struct quire_append *args = &op->u.append.args;
    const struct qr_origin from = qr_append_origin(op->session, args, layer, which);
    const uint32_t heads = qr_plan_heads(op->session, layer);
    const bool dense = from.head_stride == from.dim * 2u;

    if (args->dtype != QUIRE_F16)
        return false;
    for (uint32_t t = 0; t < args->tokens; t++)
        for (uint32_t h = 0; h < (dense ? 1 : heads); h++)
            if (any_infinite(from.base + t * from.token_stride + h * from.head_stride,
                             dense ? (size_t)heads * from.dim : from.dim))
                return false;
    return true;
}

static quire_status scan_tensor(struct quire_op *op, uint32_t layer, int which,
                                struct qr_error *e)
{
    const struct quire_append *args = &op->u.append.args;
    const struct qr_origin from = qr_append_origin(op->session, args, layer, which);
    const size_t row = (size_t)qr_plan_heads(op->session, layer) * from.dim * 2;
    const uint32_t step = row < SCAN_BYTES ? (uint32_t)(SCAN_BYTES / row) : 1;
    struct qr_buffer *scratch = qr_pool_take(op->client->buffers, step * row);
    quire_status status = QUIRE_OK;

    if (!scratch)
        return qr_error_set(e, QUIRE_ENOMEM, "out of memory for an append");
    for (uint32_t t = 0; !status && t < args->tokens; t += step) {
        const uint32_t n = args->tokens - t < step ? args->tokens - t : step;
        const struct span span = {layer, t, n, which};
        status = convert(op, &span, (uint16_t *)(void *)scratch->data, e);
    }
    qr_pool_put(scratch);
    return status;
}

quire_status qr_append_scan(struct quire_op *op, struct qr_error *e)
{
    const struct quire_append *args = &op->u.append.args;
    quire_status status = QUIRE_OK;

    for (uint32_t i = 0; !status && i < args->layers; i++) {
        const uint32_t layer = args->first_layer + i;
        if (qr_plan_heads(op->session, layer) == 0)
            continue;
        for (int which = 0; !status && which < 2; which++)
            if (!passes_as_it_is(op, layer, which))
                status = scan_tensor(op, layer, which, e);
    }
    return status;
}

/* ---- rows ------------------------------------------------------------------------------- */

static size_t head_room(const struct quire_op *op, const struct qr_cell *cell)
{
    const size_t ids = op->u.append.args.token_ids ? cell->tokens : 0;

    return (qr_wire_append_head_max(ids) + 63) & ~(size_t)63;
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
                                          .durability = (uint32_t)args->durability};
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
        const struct span span = {layer, cell->first_token, cell->tokens, (int)(i % 2)};
        status = convert(op, &span, (uint16_t *)(void *)to, e);
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
                                      .release = qr_buffer_release,
                                      .owner = buffer});
    if (lend)
        lend_rows(op, cell, out);
    return QUIRE_OK;
}

/* ---- pages ------------------------------------------------------------------------------ */

/* One block to be sealed, and memory for it. */
struct seal {
    uint32_t layer, token;
    uint16_t *scratch;
    size_t page_max;
};

/* FP16 rows of one block: where they lie when they are FP16, else converted to `scratch`. */
static quire_status block_rows(const struct quire_op *op, const struct span *span,
                               uint16_t *scratch, struct qr_rows *out, struct qr_error *e)
{
    const struct quire_append *args = &op->u.append.args;
    const struct qr_origin from = qr_append_origin(op->session, args, span->layer, span->which);
    const uint32_t heads = qr_plan_heads(op->session, span->layer);

    if (args->dtype == QUIRE_F16) {
        const void *base = from.base + span->token * from.token_stride;
        *out = (struct qr_rows){base, from.token_stride / 2, from.head_stride / 2};
        return QUIRE_OK;
    }
    *out = (struct qr_rows){scratch, (size_t)heads * from.dim, from.dim};
    return convert(op, span, scratch, e);
}

static quire_status seal_block(const struct quire_op *op, const struct seal *seal,
                               uint8_t *page, size_t *bytes_out, struct qr_error *e)
{
    const struct quire_session *s = op->session;
    struct qr_page_identity id;
    struct qr_rows key, value;

    qr_plan_identity(s, seal->layer, &id);
    id.first_position = op->u.append.args.position + seal->token;
    const size_t key_elements = (size_t)id.page_tokens * id.heads * id.key_dim;
    const struct span keys = {seal->layer, seal->token, id.page_tokens, 0};
    const struct span values = {seal->layer, seal->token, id.page_tokens, 1};
    if (block_rows(op, &keys, seal->scratch, &key, e) ||
        block_rows(op, &values, seal->scratch + key_elements, &value, e))
        return e->status;
    return qr_page_encode(&id, &s->policy, &key, &value, page, seal->page_max, bytes_out, e);
}

/* Layout of the buffer: [room for the head][page][field head][page]..., pages at multiples of
 * 64, each field head right before its page: pieces leave the gaps out. */
static quire_status seal_cell(struct quire_op *op, struct qr_buffer *buffer,
                              const struct seal *first, struct qr_outgoing *out,
                              struct qr_error *e)
{
    const struct qr_cell *cell = &out->cell;
    const uint32_t step = op->session->policy.page_tokens;
    const size_t room = head_room(op, cell) + 64;

    for (uint32_t i = 0; i * step < cell->tokens; i++) {
        struct seal seal = *first;
        uint8_t field[QR_WIRE_FIELD_HEAD_MAX];
        uint8_t *page = buffer->data + room + i * (seal.page_max + 64);
        size_t bytes = 0, before;
        seal.token += i * step;
        if (seal_block(op, &seal, page, &bytes, e))
            return e->status;
        before = qr_wire_page_head(bytes, field);
        memcpy(page - before, field, before);
        if (i == 0)
            before = room - write_head(op, cell, 0, buffer->data, room - before);
        add_piece(out, &(struct qr_piece){.data = page - before,
                                          .bytes = before + bytes,
                                          .release = qr_buffer_release,
                                          .owner = buffer});
    }
    return QUIRE_OK;
}

static quire_status build_pages(struct quire_op *op, const struct qr_cell *cell,
                                struct qr_outgoing *out, struct qr_error *e)
{
    const uint32_t step = op->session->policy.page_tokens;
    const uint32_t pages = cell->tokens / step;
    struct qr_page_identity id;

    qr_plan_identity(op->session, cell->first_layer, &id);
    const size_t page_max = (qr_page_bytes_max(&id, &op->session->policy) + 63) & ~(size_t)63;
    const size_t scratch_bytes = op->u.append.args.dtype == QUIRE_F16
                                     ? 64
                                     : step * qr_plan_row_bytes(op->session, cell->first_layer);
    struct qr_buffer *buffer =
        qr_pool_take(op->client->buffers, head_room(op, cell) + 64 + pages * (page_max + 64));
    struct qr_buffer *scratch = qr_pool_take(op->client->buffers, scratch_bytes);
    quire_status status;
    if (buffer && scratch) {
        const struct seal first = {cell->first_layer, cell->first_token,
                                   (uint16_t *)(void *)scratch->data, page_max};
        status = seal_cell(op, buffer, &first, out, e);
    } else {
        status = qr_error_set(e, QUIRE_ENOMEM, "out of memory for %u pages", pages);
    }
    qr_pool_put(scratch);
    if (status) {
        out->count = 0; /* pieces of a buffer not lent yet */
        qr_pool_put(buffer);
        return status;
    }
    qr_buffer_lend(buffer, (unsigned)out->count);
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
