/* SPDX-License-Identifier: Apache-2.0
 *
 * Import: the file is read record by record, each verified before anything of it is sent. The
 * session is made under a name of its own, which is the same for the same file and final name,
 * so that a later call goes on where one broke; when the file's end has been verified it is
 * forked under its final name, and the other name dropped. Must not know sockets or files:
 * bytes come from the caller's function.
 */
#include "client_import.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client_model.h"
#include "client_session.h"

/* ---- reading ------------------------------------------------------------------------------
 */

static quire_status damaged(uint64_t byte, const char *what)
{
    struct qr_error e;

    qr_error_set(&e, QUIRE_ECORRUPT, "byte %" PRIu64 ": %s", byte, what);
    e.position = byte;
    return qr_client_fail(&e);
}

/* Until n bytes or the end came. */
static quire_status read_some(struct qr_importer *x, void *to, size_t n, size_t *got)
{
    *got = 0;
    while (*got < n) {
        size_t more = 0;
        const int error =
            x->args->read(x->args->context, (uint8_t *)to + *got, n - *got, &more);
        if (error)
            return qr_move_io("the import cannot be read", error);
        if (more == 0)
            break;
        *got += more < n - *got ? more : n - *got;
    }
    x->input_bytes += *got;
    return QUIRE_OK;
}

static quire_status read_exactly(struct qr_importer *x, void *to, size_t n, const char *part)
{
    size_t got;
    char text[160];
    const quire_status status = read_some(x, to, n, &got);

    if (status || got == n)
        return status;
    snprintf(text, sizeof(text), "the file ends here, inside %s that begins at byte %" PRIu64,
             part, x->move->walk.offset);
    return damaged(x->input_bytes, text);
}

/* ---- the session in the making ------------------------------------------------------------
 */

static void name_staging(struct qr_importer *x)
{
    const struct qr_export_head *head = &x->move->walk.head;
    int n = snprintf(x->staging, sizeof(x->staging), ".import.");

    for (int i = 0; i < QR_EXPORT_ID_BYTES; i++)
        n += snprintf(x->staging + n, sizeof(x->staging) - (size_t)n, "%02x", head->file_id[i]);
    snprintf(x->staging + n, sizeof(x->staging) - (size_t)n, ".%016" PRIx64,
             qr_checksum(x->name, strlen(x->name)));
}

static quire_status name_is_free(struct qr_importer *x)
{
    struct quire_session_info info;
    const quire_status status = qr_move_info(x->move->client, x->name, &info);

    if (status == QUIRE_ENOTFOUND)
        return QUIRE_OK;
    return status ? status
                  : qr_client_fail_text(QUIRE_EEXIST,
                                        "session \"%.100s\" exists: drop it, or import under "
                                        "another name",
                                        x->name);
}

/* What a try before left, lane by lane; pages with holes among them are all sent again. */
static quire_status take_staged(struct qr_importer *x)
{
    const Quire__V1__Manifest *m;
    struct quire_op *op;
    struct quire_session_info info;
    quire_status status = quire_session_info(x->session, &info);

    if (status || info.pages == 0 || info.missing_pages > 0 || x->args->compare_all)
        return status;
    status = qr_move_manifest(x->session, 0, 0, &m, &op);
    if (status)
        return status;
    if (m->n_sealed_blocks != x->move->walk.lane_count) {
        status = qr_client_fail_text(QUIRE_ECORRUPT, "GetManifest: %zu lanes instead of %u",
                                     m->n_sealed_blocks, x->move->walk.lane_count);
    } else {
        x->sealed = malloc(m->n_sealed_blocks * sizeof(*x->sealed));
        if (x->sealed)
            memcpy(x->sealed, m->sealed_blocks, m->n_sealed_blocks * sizeof(*x->sealed));
        else
            status = qr_client_fail_text(QUIRE_ENOMEM, "out of memory for %zu lanes",
                                         m->n_sealed_blocks);
    }
    qr_op_recycle(op);
    return status;
}

/* FORCE: an import of the same file that was killed still holds the lease; one that runs is
 * told that it lost it. */
static quire_status open_staging(struct qr_importer *x)
{
    const struct qr_export_walk *walk = &x->move->walk;
    struct quire_open_options options;
    struct quire_policy policy;
    quire_status status = qr_client_model_send(x->move->client, &walk->model);

    if (status)
        return status;
    qr_client_policy_to(&walk->policy, &policy);
    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_CREATE | QUIRE_OPEN_WRITE | QUIRE_OPEN_FORCE;
    options.fingerprint = walk->head.fingerprint;
    options.policy = &policy;
    options.head_shards = walk->head.head_shards;
    options.ttl_ms = x->args->keep_ms;
    status = quire_session_open(x->move->client, x->staging, &options, &x->session);
    if (!status && x->args->durable) /* without a disk, say so now */
        status = quire_session_flush(x->session);
    return status ? status : take_staged(x);
}

/* Room for the largest page there is; rows and other payloads take less than a batch. */
static quire_status make_batches(struct qr_importer *x)
{
    struct qr_export_record r;

    for (uint32_t lane = 0; qr_export_lane(&x->move->walk, lane, &r);
         lane += x->move->walk.head.head_shards) {
        const size_t page = qr_export_page_max(&x->move->walk, &r) + 128;
        x->capacity = x->capacity > page ? x->capacity : page;
    }
    for (int i = 0; i < 2; i++) {
        x->batches[i].buffer = aligned_alloc(64, QR_EXPORT_PADDED(x->capacity));
        if (!x->batches[i].buffer)
            return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for %zu bytes of pages",
                                       x->capacity);
    }
    return QUIRE_OK;
}

/* ---- records ------------------------------------------------------------------------------
 */

static quire_status keep_tokens(struct qr_importer *x, const struct qr_export_record *r,
                                const uint8_t *payload)
{
    x->tokens = malloc(r->bytes);
    if (!x->tokens)
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for token ids");
    memcpy(x->tokens, payload, r->bytes);
    return QUIRE_OK;
}

static quire_status take_record(struct qr_importer *x, const struct qr_export_record *r,
                                const uint8_t *payload)
{
    switch (r->type) {
    case QR_EXPORT_MODEL: {
        const quire_status status = open_staging(x);
        return status ? status : make_batches(x);
    }
    case QR_EXPORT_BLOCK_IDS:
        return qr_move_claim(x->session, (uint32_t)r->position, payload, r->count,
                             x->move->walk.head.chained);
    case QR_EXPORT_TOKEN_IDS:
        return keep_tokens(x, r, payload);
    case QR_EXPORT_PAGE:
        x->move->transfer.pages++;
        return qr_importer_take(x, r);
    case QR_EXPORT_ROWS:
        return qr_importer_take(x, r);
    case QR_EXPORT_END:
        break;
    }
    return qr_importer_settle(x);
}

/* One record: its mark says how long it is, and is checked before anything is allocated. */
static quire_status import_record(struct qr_importer *x, uint8_t *other)
{
    struct qr_export_mark mark;
    struct qr_export_record r;
    struct qr_error e;
    uint8_t *payload = other;
    quire_status status = read_exactly(x, &mark, sizeof(mark), "a record");

    if (status)
        return status;
    if (qr_export_record(&x->move->walk, &mark, &r, &e))
        return qr_client_fail(&e);
    if (r.type == QR_EXPORT_PAGE || r.type == QR_EXPORT_ROWS)
        status = qr_importer_place(x, &r, &payload);
    if (!status)
        status = read_exactly(x, payload, QR_EXPORT_PADDED(r.bytes), "a record");
    if (status)
        return status;
    if (qr_export_payload(&x->move->walk, &mark, payload, &e))
        return qr_client_fail(&e);
    status = take_record(x, &r, payload);
    return status ? status : qr_move_tell(x->move);
}

static quire_status import_records(struct qr_importer *x)
{
    uint8_t *other = aligned_alloc(64, QR_EXPORT_IDS_MAX * QR_HASH_BYTES);
    uint8_t after;
    size_t got = 0;
    quire_status status = QUIRE_OK;

    if (!other)
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for a record");
    while (!status && !x->move->walk.done)
        status = import_record(x, other);
    free(other);
    if (!status)
        status = read_some(x, &after, 1, &got);
    if (!status && got > 0)
        status = damaged(x->move->walk.offset, "bytes after the end of the export");
    return status;
}

static quire_status import_head(struct qr_importer *x, const char *name)
{
    struct qr_export_head head;
    struct qr_error e;
    quire_status status = read_exactly(x, &head, sizeof(head), "the head");

    if (status)
        return status;
    if (qr_export_begin(&x->move->walk, &head, &e))
        return qr_client_fail(&e);
    qr_move_describe(x->move);
    x->name = name ? name : x->move->transfer.name;
    name_staging(x);
    status = name_is_free(x);
    return status ? status : qr_move_tell(x->move);
}

/* ---- the end ------------------------------------------------------------------------------
 */

static quire_status check_whole(struct qr_importer *x)
{
    struct quire_session_info info;
    const quire_status status = quire_session_info(x->session, &info);

    if (status)
        return status;
    if (info.missing_pages)
        return qr_client_fail_text(QUIRE_EFULL,
                                   "%" PRIu64 " of the %" PRIu64
                                   " pages were evicted while the others were imported: the "
                                   "server's memory has to hold %" PRIu64 " bytes more",
                                   info.missing_pages, info.pages,
                                   x->move->walk.head.file_bytes);
    if (info.length != x->move->walk.head.length || info.longest != info.length)
        return qr_client_fail_text(QUIRE_ECONFLICT,
                                   "the session has %" PRIu64 " to %" PRIu64
                                   " tokens instead of %" PRIu64 ": somebody else wrote it",
                                   info.length, info.longest, x->move->walk.head.length);
    return QUIRE_OK;
}

static quire_status publish(struct qr_importer *x)
{
    struct quire_session_info info;
    const struct qr_export_head *head = &x->move->walk.head;
    const uint64_t ttl_ms = x->args->ttl_ms ? x->args->ttl_ms : head->ttl_ms;
    quire_status status = check_whole(x);

    if (!status && x->args->durable) /* a fork of what is on disk is on disk */
        status = quire_session_flush(x->session);
    if (!status)
        status =
            qr_move_fork(x->move->client, x->staging, x->name, head->length, ttl_ms, &info);
    return status;
}

/* Whether what is there is worth keeping for another call. */
static bool may_go_on(quire_status status)
{
    return status == QUIRE_ECANCELED || status == QUIRE_ETIMEOUT ||
           status == QUIRE_EUNAVAILABLE || status == QUIRE_EIO || status == QUIRE_EFENCED;
}

static quire_status run(struct qr_importer *x, const char *name)
{
    quire_status status = import_head(x, name);

    if (!status)
        status = import_records(x);
    if (!status)
        status = publish(x);
    qr_importer_drop(x);
    const bool made = x->session != NULL;
    quire_session_close(&x->session);
    if (made && !may_go_on(status))
        qr_move_drop(x->move->client, x->staging);
    for (int i = 0; i < 2; i++)
        free(x->batches[i].buffer);
    free(x->sealed);
    free(x->tokens);
    return status;
}

static quire_status check_args(const struct quire_client *client, const char *name,
                               const struct quire_import *args, struct qr_error *e)
{
    if (!client || !args)
        return qr_error_set(e, QUIRE_EINVAL, "%s is NULL", client ? "args" : "client");
    if (args->struct_bytes != sizeof(*args))
        return qr_error_set(e, QUIRE_EINVAL,
                            "args.struct_bytes is %zu; quire_import_init sets %zu",
                            args->struct_bytes, sizeof(*args));
    if (!args->read)
        return qr_error_set(e, QUIRE_EINVAL, "args.read is NULL");
    return name ? qr_client_check_name("name", name, e) : QUIRE_OK;
}

quire_status quire_session_import(quire_client *client, const char *name,
                                  const struct quire_import *args, struct quire_transfer *out)
{
    struct qr_importer x = {.args = args, .capacity = QR_MOVE_BATCH_BYTES};
    struct qr_error e;

    if (check_args(client, name, args, &e))
        return qr_client_fail(&e);
    x.move = qr_move_make(client, args->timeout_ms, args->progress, args->context);
    if (!x.move)
        return quire_last_error()->status;
    const quire_status status = run(&x, name);
    x.move->transfer.bytes = x.move->walk.offset;
    if (!status && out)
        *out = x.move->transfer;
    free(x.move);
    return status;
}
