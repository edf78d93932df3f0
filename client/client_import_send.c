/* SPDX-License-Identifier: Apache-2.0
 *
 * What an import sends: pages of a lane gathered in one message, rows with the token ids that
 * are known. One message is on its way while the next one is read; never two, since positions
 * of a lane must not overtake each other. Must not know the input.
 */
#include "client_import.h"

#include <string.h>

#define MARK_BYTES sizeof(struct qr_export_mark)

static quire_status submit(struct qr_importer *x, struct qr_import_batch *batch)
{
    /* The other batch is the only one that can be on its way. */
    const quire_status status = qr_raw_join(&x->batches[x->turn ^ 1].op);

    if (status)
        return status;
    return qr_raw_append_submit(x->session, &batch->append, qr_move_timeout_ms(x->move),
                                &batch->op);
}

/* Send the batch being filled; the other one, whose message has been answered, is filled next.
 */
static quire_status flush(struct qr_importer *x)
{
    struct qr_import_batch *batch = &x->batches[x->turn];

    if (batch->append.count == 0)
        return QUIRE_OK;
    const quire_status status = submit(x, batch);
    x->turn ^= 1;
    batch = &x->batches[x->turn];
    memset(&batch->append, 0, sizeof(batch->append));
    batch->used = 0;
    return status;
}

static size_t most_bytes(const struct qr_importer *x)
{
    const uint64_t message = x->move->client->message_bytes_max;
    const uint64_t room = message > 4096 ? message - 4096 : 0;

    return room < QR_MOVE_BATCH_BYTES ? (size_t)room : QR_MOVE_BATCH_BYTES;
}

static bool goes_with(const struct qr_importer *x, const struct qr_import_batch *batch,
                      const struct qr_export_record *r)
{
    const struct qr_raw_append *a = &batch->append;

    return a->count > 0 && r->type == QR_EXPORT_PAGE && !a->rows_bytes &&
           a->count < QR_RAW_PIECES_MAX && a->layer == r->layer &&
           a->shard == r->lane % x->move->walk.head.head_shards &&
           a->position + a->tokens == r->position &&
           batch->used + MARK_BYTES + QR_EXPORT_PADDED(r->bytes) <= most_bytes(x);
}

quire_status qr_importer_place(struct qr_importer *x, const struct qr_export_record *record,
                               uint8_t **payload_out)
{
    const quire_status status =
        goes_with(x, &x->batches[x->turn], record) ? QUIRE_OK : flush(x);

    *payload_out = x->batches[x->turn].buffer + x->batches[x->turn].used + MARK_BYTES;
    return status;
}

/* All but the last page of what a try before left: that one is compared. */
static bool is_there(const struct qr_importer *x, const struct qr_export_record *r)
{
    const uint64_t block = r->position / x->move->walk.head.page_tokens;

    return x->sealed && r->type == QR_EXPORT_PAGE && block + 1 < x->sealed[r->lane];
}

static void begin_append(struct qr_importer *x, const struct qr_export_record *r)
{
    struct qr_raw_append *a = &x->batches[x->turn].append;

    a->position = r->position;
    a->layer = r->layer;
    a->shard = r->lane % x->move->walk.head.head_shards;
}

static bool is_known(const struct qr_importer *x, uint64_t position)
{
    const struct qr_export_head *head = &x->move->walk.head;
    const uint64_t first = (uint64_t)head->block_count * head->page_tokens;

    if (!x->tokens || position < first || position - first >= head->token_count)
        return false;
    const uint8_t *bits = (const uint8_t *)(x->tokens + head->token_count);
    const uint64_t i = position - first;
    return bits[i / 8] >> (i % 8) & 1;
}

/* Rows of one message have token ids all, or none. */
static uint32_t run_at(const struct qr_importer *x, uint64_t position, uint64_t end)
{
    uint64_t p = position;

    while (p < end && is_known(x, p) == is_known(x, position))
        p++;
    return (uint32_t)(p - position);
}

/* K and V of `n` tokens of the record: two pieces of its payload. */
static void add_rows(struct qr_importer *x, const struct qr_export_record *r, uint32_t from,
                     uint32_t n)
{
    const struct qr_layer *layer = &x->move->walk.model.layers[r->layer];
    struct qr_import_batch *batch = &x->batches[x->turn];
    struct qr_raw_append *a = &batch->append;
    const size_t key = (size_t)r->heads * layer->key_dim * 2;
    const size_t value = (size_t)r->heads * layer->value_dim * 2;
    uint8_t *payload = batch->buffer + MARK_BYTES;
    const uint64_t position = r->position + from;

    memset(a, 0, sizeof(*a));
    begin_append(x, r);
    a->position = position;
    a->tokens = n;
    if (is_known(x, position))
        a->token_ids = x->tokens + (position - (uint64_t)x->move->walk.head.block_count *
                                                   x->move->walk.head.page_tokens);
    a->pieces[0].data = payload + from * key;
    a->pieces[0].bytes = n * key;
    a->pieces[1].data = payload + r->count * key + from * value;
    a->pieces[1].bytes = n * value;
    a->count = 2;
    a->rows_bytes = n * (key + value);
}

static quire_status take_rows(struct qr_importer *x, const struct qr_export_record *r)
{
    struct qr_import_batch *batch = &x->batches[x->turn];
    const uint64_t end = r->position + r->count;
    quire_status status = QUIRE_OK;

    for (uint32_t from = 0; from < r->count && !status;) {
        const uint32_t n = run_at(x, r->position + from, end);
        status = qr_raw_join(&batch->op);
        if (status)
            break;
        add_rows(x, r, from, n);
        from += n;
        /* The last run is flushed like a batch of pages, while the next record is read. */
        if (from < r->count)
            status = submit(x, batch);
    }
    return status ? status : flush(x);
}

quire_status qr_importer_take(struct qr_importer *x, const struct qr_export_record *record)
{
    struct qr_import_batch *batch = &x->batches[x->turn];
    struct qr_raw_append *a = &batch->append;

    if (record->type == QR_EXPORT_ROWS)
        return take_rows(x, record);
    if (is_there(x, record)) {
        x->move->transfer.resumed_bytes += MARK_BYTES + QR_EXPORT_PADDED(record->bytes);
        return QUIRE_OK;
    }
    if (a->count == 0)
        begin_append(x, record);
    a->pieces[a->count].data = batch->buffer + batch->used + MARK_BYTES;
    a->pieces[a->count].bytes = record->bytes;
    a->count++;
    a->tokens += record->count;
    batch->used += MARK_BYTES + QR_EXPORT_PADDED(record->bytes);
    return QUIRE_OK;
}

quire_status qr_importer_settle(struct qr_importer *x)
{
    quire_status status = flush(x);

    for (int i = 0; i < 2 && !status; i++)
        status = qr_raw_join(&x->batches[i].op);
    return status;
}

void qr_importer_drop(struct qr_importer *x)
{
    for (int i = 0; i < 2; i++) {
        if (x->batches[i].op)
            quire_op_cancel(x->batches[i].op);
        quire_op_free(&x->batches[i].op);
    }
}
