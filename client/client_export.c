/* SPDX-License-Identifier: Apache-2.0
 *
 * Export: a fork of the session is written record by record; the fork's name is in the file, so
 * that a partial file can be continued from the same fork. Must not know sockets or files:
 * bytes go to the caller's function.
 */
#include "client_export.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "client_session.h"

#define RANGES_MAX 4096

static void name_snapshot(struct qr_exporter *x, const uint8_t file_id[QR_EXPORT_ID_BYTES])
{
    int n = snprintf(x->snapshot, sizeof(x->snapshot), ".export.");

    for (int i = 0; i < QR_EXPORT_ID_BYTES; i++)
        n += snprintf(x->snapshot + n, sizeof(x->snapshot) - (size_t)n, "%02x", file_id[i]);
}

static quire_status write_bytes(struct qr_exporter *x, const void *bytes, size_t n)
{
    const int error = x->args->write(x->args->context, bytes, n);

    return error ? qr_move_io("the export cannot be written", error) : QUIRE_OK;
}

quire_status qr_exporter_emit(struct qr_exporter *x, const struct qr_export_record *record,
                              uint8_t *mark_and_payload)
{
    struct qr_export_mark mark;
    struct qr_error e;
    uint8_t *payload = mark_and_payload + sizeof(mark);

    if (qr_export_seal(&x->move->walk, record, payload, &mark, &e))
        return qr_client_fail(&e);
    memcpy(mark_and_payload, &mark, sizeof(mark));
    return write_bytes(x, mark_and_payload, sizeof(mark) + QR_EXPORT_PADDED(record->bytes));
}

/* ---- holes --------------------------------------------------------------------------------
 */

static quire_status lookup(struct qr_exporter *x, uint64_t length, struct quire_range *ranges,
                           size_t *count)
{
    *count = 0;
    if (length == 0)
        return QUIRE_OK;
    const quire_status status = quire_session_lookup(
        x->session, 0, length, 0, x->session->model.layer_count, ranges, RANGES_MAX, count);
    return status == QUIRE_ETOOBIG ? QUIRE_OK : status;
}

static quire_status missing(const struct qr_exporter *x, const struct quire_range *first,
                            size_t count)
{
    struct qr_error e;
    char more[64] = "";

    if (count > 1)
        snprintf(more, sizeof(more), ", and %zu%s ranges more", count - 1,
                 count > RANGES_MAX ? " or more" : "");
    qr_error_set(&e, QUIRE_EMISSING,
                 "session \"%.60s\": tokens [%" PRIu64 ", +%" PRIu64
                 ") of layer %u, shard %u are no longer stored%s",
                 x->move->transfer.name, first->position, first->tokens, first->layer,
                 first->shard, more);
    e.position = first->position;
    e.tokens = first->tokens;
    e.layer = first->layer;
    return qr_client_fail(&e);
}

static uint64_t before_first(const struct quire_range *ranges, size_t count, uint32_t page)
{
    uint64_t first = UINT64_MAX;

    for (size_t i = 0; i < count && i < RANGES_MAX; i++)
        first = ranges[i].position < first ? ranges[i].position : first;
    return first / page * page;
}

static quire_status cut_snapshot(struct qr_exporter *x, uint64_t length)
{
    struct quire_open_options options;
    quire_session *writer = NULL;

    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_WRITE;
    quire_status status = quire_session_open(x->move->client, x->snapshot, &options, &writer);
    if (!status)
        status = quire_session_truncate(writer, length);
    quire_session_close(&writer);
    return status;
}

/* Refuse what is missing, or cut the snapshot before it. Few ranges come at a time: the cut is
 * found in steps. */
static quire_status settle_holes(struct qr_exporter *x, uint64_t *length)
{
    struct quire_range *ranges = malloc(RANGES_MAX * sizeof(*ranges));
    const uint64_t before = *length;
    size_t count = 0;

    if (!ranges)
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for missing ranges");
    quire_status status = lookup(x, *length, ranges, &count);
    if (!status && count > 0 && !x->args->allow_missing)
        status = missing(x, ranges, count);
    while (!status && count > 0) {
        *length = before_first(ranges, count, x->session->policy.page_tokens);
        if (*length == 0)
            status = missing(x, ranges, count);
        else
            status = lookup(x, *length, ranges, &count);
    }
    free(ranges);
    return status || *length == before ? status : cut_snapshot(x, *length);
}

/* ---- the beginning ------------------------------------------------------------------------
 */

/* Blocks of each lane, and what the head says of blocks and tokens. */
static quire_status take_manifest(struct qr_exporter *x, struct qr_export_head *head)
{
    const Quire__V1__Manifest *m;
    struct quire_op *op;
    bool known = false;
    quire_status status = qr_move_manifest(x->session, 0, 0, &m, &op);

    if (status)
        return status;
    head->length = m->length;
    head->block_count = m->block_count;
    head->chained = m->chained_blocks;
    const uint64_t tail = m->length - (uint64_t)m->block_count * x->session->policy.page_tokens;
    for (size_t i = 0; i < m->token_known.len; i++)
        known |= m->token_known.data[i] != 0;
    head->token_count = known && tail <= QR_EXPORT_TAIL_MAX ? (uint32_t)tail : 0;
    x->lane_count = (uint32_t)m->n_sealed_blocks;
    x->sealed = malloc(m->n_sealed_blocks * sizeof(*x->sealed) + 1);
    if (x->sealed)
        memcpy(x->sealed, m->sealed_blocks, m->n_sealed_blocks * sizeof(*x->sealed));
    else
        status = qr_client_fail_text(QUIRE_ENOMEM, "out of memory for %zu lanes",
                                     m->n_sealed_blocks);
    qr_op_recycle(op);
    return status;
}

/* A server that contradicts itself must not lead outside the arrays. */
static quire_status check_lanes(const struct qr_exporter *x, const struct qr_export_head *head)
{
    const struct qr_model *model = &x->session->model;
    uint32_t lanes = 0;

    for (uint32_t i = 0; i < model->layer_count; i++)
        lanes += model->layers[i].kv_heads ? x->session->head_shards : 0;
    bool fits = lanes == x->lane_count;
    for (uint32_t i = 0; fits && i < lanes; i++)
        fits = x->sealed[i] <= head->block_count &&
               (uint64_t)x->sealed[i] * x->session->policy.page_tokens <= head->length;
    return fits ? QUIRE_OK
                : qr_client_fail_text(QUIRE_ECORRUPT,
                                      "GetManifest: the reply does not fit the session");
}

static uint64_t file_bytes(struct qr_exporter *x, const struct qr_export_head *head,
                           const struct quire_session_info *info)
{
    struct qr_export_walk *walk = &x->move->walk; /* before it begins: for its geometry */
    uint8_t packed[QR_MODEL_PACKED_MAX];

    walk->head = *head;
    walk->model = x->session->model;
    return qr_export_frame_bytes(head, qr_model_pack(&x->session->model, packed)) +
           info->page_bytes + info->pages * sizeof(struct qr_export_mark) +
           qr_exporter_rows_bytes(walk, x->sealed, x->lane_count);
}

static quire_status begin_file(struct qr_exporter *x, struct qr_export_head *head,
                               const char *name)
{
    struct quire_session_info info;
    struct qr_error e;
    quire_status status = take_manifest(x, head);

    if (!status)
        status = check_lanes(x, head);
    if (!status)
        status = quire_session_info(x->session, &info);
    if (status)
        return status;
    if (info.missing_pages)
        return qr_client_fail_text(QUIRE_EMISSING,
                                   "session \"%.100s\": pages were evicted while the export "
                                   "began: try again",
                                   name);
    memcpy(head->fingerprint, x->session->model.fingerprint, QR_HASH_BYTES);
    head->head_shards = x->session->head_shards;
    head->page_tokens = x->session->policy.page_tokens;
    head->file_bytes = file_bytes(x, head, &info);
    qr_export_head_finish(head, name, &x->session->policy);
    if (qr_export_begin(&x->move->walk, head, &e))
        return qr_client_fail(&e);
    qr_move_describe(x->move);
    return write_bytes(x, head, sizeof(*head));
}

static quire_status read_source(struct qr_exporter *x, const char *name, uint64_t *ttl_ms,
                                uint64_t *committed)
{
    const Quire__V1__Manifest *m;
    struct quire_op *op;
    quire_session *source = NULL;
    quire_status status = quire_session_open(x->move->client, name, NULL, &source);

    if (status)
        return status;
    status = qr_move_manifest(source, 0, 0, &m, &op);
    if (!status) {
        *ttl_ms = m->ttl_ms;
        *committed = m->length;
        qr_op_recycle(op);
    }
    quire_session_close(&source);
    return status;
}

static quire_status start_anew(struct qr_exporter *x, const char *name)
{
    struct qr_export_head head = {0};
    struct quire_session_info info;
    uint64_t committed = 0;
    quire_status status = read_source(x, name, &head.ttl_ms, &committed);

    if (status)
        return status;
    snprintf(x->move->transfer.name, sizeof(x->move->transfer.name), "%s", name);
    if (getrandom(head.file_id, sizeof(head.file_id), 0) != (ssize_t)sizeof(head.file_id))
        return qr_move_io("no random file id", errno);
    name_snapshot(x, head.file_id);
    status = qr_move_fork(x->move->client, name, x->snapshot, x->args->length, x->args->keep_ms,
                          &info);
    if (!status)
        status = quire_session_open(x->move->client, x->snapshot, NULL, &x->session);
    uint64_t length = status ? 0 : info.length;
    if (!status)
        status = settle_holes(x, &length);
    if (!status)
        status = begin_file(x, &head, name);
    x->move->transfer.left_out_tokens = committed > length ? committed - length : 0;
    return status;
}

static quire_status check_part(struct qr_exporter *x, const char *name)
{
    struct qr_export_head now = {0};
    const struct qr_export_walk *walk = &x->move->walk;
    const struct qr_export_head *then = &walk->head;

    if (strcmp(x->move->transfer.name, name) != 0)
        return qr_client_fail_text(QUIRE_EMISMATCH,
                                   "the partial export is of session \"%.80s\", not \"%.80s\"",
                                   x->move->transfer.name, name);
    name_snapshot(x, then->file_id);
    if (walk->done)
        return QUIRE_OK;
    quire_status status = quire_session_open(x->move->client, x->snapshot, NULL, &x->session);
    if (status == QUIRE_ENOTFOUND)
        return qr_client_fail_text(QUIRE_ENOTFOUND,
                                   "the snapshot %.60s of the partial export is gone: begin "
                                   "anew, without it",
                                   x->snapshot);
    if (!status)
        status = take_manifest(x, &now);
    if (!status)
        status = check_lanes(x, &now);
    if (status)
        return status;
    if (memcmp(x->session->model.fingerprint, then->fingerprint, QR_HASH_BYTES) != 0 ||
        memcmp(&x->session->policy, &walk->policy, sizeof(walk->policy)) != 0 ||
        x->session->head_shards != then->head_shards || now.length != then->length ||
        now.block_count != then->block_count || now.chained != then->chained)
        return qr_client_fail_text(QUIRE_EMISMATCH,
                                   "the snapshot %.60s is not what the partial export is of: "
                                   "begin anew, without it",
                                   x->snapshot);
    return QUIRE_OK;
}

/* ---- records besides pages and rows -------------------------------------------------------
 */

static quire_status fill_block_ids(struct qr_exporter *x, const struct qr_export_record *r,
                                   uint8_t *out)
{
    uint32_t n = 0;
    quire_status status = QUIRE_OK;

    while (!status && n < r->count) {
        const Quire__V1__Manifest *m;
        struct quire_op *op;
        status = qr_move_manifest(x->session, (uint32_t)r->position + n, r->count - n, &m, &op);
        if (status)
            break;
        if (m->block_ids.len == 0 || m->first_block != r->position + n)
            status = qr_client_fail_text(QUIRE_ECORRUPT,
                                         "GetManifest: no ids of block %" PRIu64 " came",
                                         r->position + n);
        else
            memcpy(out + (size_t)n * QR_HASH_BYTES, m->block_ids.data, m->block_ids.len);
        n += (uint32_t)(m->block_ids.len / QR_HASH_BYTES);
        qr_op_recycle(op);
    }
    return status;
}

/* Those that the server does not name are not known. */
static quire_status fill_token_ids(struct qr_exporter *x, const struct qr_export_record *r,
                                   uint8_t *out)
{
    const Quire__V1__Manifest *m;
    struct quire_op *op;
    const quire_status status = qr_move_manifest(x->session, 0, 0, &m, &op);

    if (status)
        return status;
    for (uint32_t i = 0; i < r->count && i < m->n_token_ids; i++) {
        const uint8_t bit = m->token_known.data[i / 8] >> (i % 8) & 1;
        if (bit)
            memcpy(out + (size_t)i * 4, &m->token_ids[i], 4);
        out[(size_t)r->count * 4 + i / 8] |= (uint8_t)(bit << (i % 8));
    }
    qr_op_recycle(op);
    return QUIRE_OK;
}

/* buffer: zero; room for the mark and the largest of these payloads. */
static quire_status write_other(struct qr_exporter *x, struct qr_export_record *r,
                                uint8_t *buffer)
{
    uint8_t *payload = buffer + sizeof(struct qr_export_mark);
    quire_status status = QUIRE_OK;

    if (r->type == QR_EXPORT_MODEL)
        r->bytes = qr_model_pack(&x->session->model, payload);
    else if (r->type == QR_EXPORT_BLOCK_IDS)
        status = fill_block_ids(x, r, payload);
    else if (r->type == QR_EXPORT_TOKEN_IDS)
        status = fill_token_ids(x, r, payload);
    else
        qr_export_end_fill(&x->move->walk, (struct qr_export_end *)(void *)payload);
    if (!status)
        status = qr_exporter_emit(x, r, buffer);
    return status ? status : qr_move_tell(x->move);
}

static quire_status write_records(struct qr_exporter *x)
{
    const size_t most = sizeof(struct qr_export_mark) + QR_EXPORT_IDS_MAX * QR_HASH_BYTES;
    uint8_t *buffer = aligned_alloc(64, most);
    struct qr_export_record r;
    quire_status status = QUIRE_OK;

    if (!buffer)
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for a record");
    while (!status && qr_export_next(&x->move->walk, &r)) {
        memset(buffer, 0, most);
        if (r.type == QR_EXPORT_PAGE || r.type == QR_EXPORT_ROWS)
            status = qr_exporter_lanes(x);
        else
            status = write_other(x, &r, buffer);
    }
    free(buffer);
    return status;
}

/* ---- the verb -----------------------------------------------------------------------------
 */

static quire_status begin(struct qr_exporter *x, const char *name)
{
    bool found = false;
    quire_status status = QUIRE_OK;

    if (x->args->read)
        status = qr_export_verify_part(x->move, x->args, &found);
    if (!status && found)
        status = check_part(x, name);
    if (status || (found && x->move->walk.done))
        return status;
    if (x->args->read) {
        const int error = x->args->cut(x->args->context, found ? x->move->walk.offset : 0);
        if (error)
            return qr_move_io("the partial export cannot be cut", error);
    }
    return found ? qr_move_tell(x->move) : start_anew(x, name);
}

static quire_status run(struct qr_exporter *x, const char *name)
{
    quire_status status = begin(x, name);

    if (!status)
        status = write_records(x);
    quire_session_close(&x->session);
    free(x->sealed);
    /* A file that can be continued needs its snapshot, once its head is written. */
    const bool keep = status && x->args->read && x->move->walk.offset > 0;
    if (x->snapshot[0] && !keep)
        qr_move_drop(x->move->client, x->snapshot);
    return status;
}

static quire_status check_args(const struct quire_client *client, const char *name,
                               const struct quire_export *args, struct qr_error *e)
{
    if (!client || !args)
        return qr_error_set(e, QUIRE_EINVAL, "%s is NULL", client ? "args" : "client");
    if (args->struct_bytes != sizeof(*args))
        return qr_error_set(e, QUIRE_EINVAL,
                            "args.struct_bytes is %zu; quire_export_init sets %zu",
                            args->struct_bytes, sizeof(*args));
    if (!args->write || (args->read && !args->cut))
        return qr_error_set(e, QUIRE_EINVAL, "args.%s is NULL", args->write ? "cut" : "write");
    return qr_client_check_name("name", name, e);
}

quire_status quire_session_export(quire_client *client, const char *name,
                                  const struct quire_export *args, struct quire_transfer *out)
{
    struct qr_exporter *x;
    struct qr_error e;

    if (check_args(client, name, args, &e))
        return qr_client_fail(&e);
    struct qr_move *move =
        qr_move_make(client, args->timeout_ms, args->progress, args->context);
    if (!move)
        return quire_last_error()->status;
    x = calloc(1, sizeof(*x));
    if (!x) {
        free(move);
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for an export");
    }
    x->move = move;
    x->args = args;
    const quire_status status = run(x, name);
    move->transfer.bytes = move->walk.offset;
    if (!status && out)
        *out = move->transfer;
    free(x);
    free(move);
    return status;
}
