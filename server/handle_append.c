/* SPDX-License-Identifier: Apache-2.0
 *
 * Append and AppendStream: rows or whole pages go from the message's own buffers
 * to their place in the store with one copy.
 */
#include "service.h"

/* Payload of a message as the store reads it. */
struct payload {
    struct qr_source source;
    struct qr_wire_cursor cursor;
};

static bool read_payload(struct qr_source *source, void *dst, size_t n)
{
    struct payload *payload = (struct payload *)source; /* source is its first member */

    if (!qr_wire_cursor_read(&payload->cursor, dst, n))
        return false;
    source->bytes = payload->cursor.bytes;
    return true;
}

static struct payload payload_of(struct qr_wire_cursor cursor)
{
    return (struct payload){.source = {.read = read_payload, .bytes = cursor.bytes},
                            .cursor = cursor};
}

static quire_status check(const struct qr_wire_append_view *view, struct qr_error *e)
{
    const struct qr_wire_append *f = &view->fields;

    if (!view->rows.bytes && !view->page_count)
        return qr_error_set(e, QUIRE_EINVAL, "the append has neither rows nor pages");
    if (f->durability > QR_WIRE_SOON)
        return qr_error_set(e, QUIRE_EINVAL,
                            "durability is %u, must be 0 (memory), 1 (disk) or 2 (disk soon)",
                            f->durability);
    if (view->token_id_count && view->token_id_count != f->tokens)
        return qr_error_set(e, QUIRE_EINVAL,
                            "%zu token ids for %u tokens; give one for each token, or none",
                            view->token_id_count, f->tokens);
    if (view->page_count && (f->tokens == 0 || f->tokens % view->page_count))
        return qr_error_set(
            e, QUIRE_EINVAL,
            "%u tokens do not fill %zu pages; pages hold page_tokens tokens each", f->tokens,
            view->page_count);
    return QUIRE_OK;
}

/* Pages one after another; those before a failing one stay appended. */
static quire_status append_pages(struct qr_service *service, uint32_t ns,
                                 struct qr_append *append,
                                 const struct qr_wire_append_view *view,
                                 struct qr_append_result *out, struct qr_error *e)
{
    struct qr_wire_cursor at = view->all, page;
    uint32_t repeated = 0;

    const bool durable = append->durable;
    size_t left = view->page_count;

    append->tokens = view->fields.tokens / (uint32_t)view->page_count;
    while (qr_wire_append_next_page(&at, &page)) {
        struct payload payload = payload_of(page);
        append->durable = durable && --left == 0; /* and with the last all before it */
        const quire_status status = qr_append_page(service->store, ns, append,
                                                   (size_t)page.bytes, &payload.source, out, e);
        if (status)
            return status;
        repeated += out->repeated_tokens;
        append->position += append->tokens;
        if (append->token_ids)
            append->token_ids += append->tokens;
    }
    out->repeated_tokens = repeated;
    return QUIRE_OK;
}

/* Token ids live in the scratch arena, whose use by this message is over once it is parsed. */
static quire_status copy_token_ids(const struct qr_request *request,
                                   const struct qr_wire_append_view *view, const uint32_t **out,
                                   struct qr_error *e)
{
    struct qr_wire_arena *arena = &request->scratch->arena;
    const size_t capacity = arena->capacity / sizeof(uint32_t);

    if (view->token_id_count > capacity)
        return qr_error_set(e, QUIRE_ETOOBIG, "%zu token ids, at most %zu fit a message",
                            view->token_id_count, capacity);
    uint32_t *ids = (uint32_t *)(void *)arena->memory;
    qr_wire_append_token_ids(view, ids);
    *out = ids;
    return QUIRE_OK;
}

/* On a thread of the disk: the append is durable, or could not be made so. */
static void durable_done(void *arg, quire_status status, const struct qr_error *e)
{
    struct qr_hold *hold = arg;

    hold->release(hold, status ? e : NULL);
}

quire_status qr_handle_append(void *arg, const struct qr_request *request, size_t *reply_bytes,
                              struct qr_error *e)
{
    struct qr_service *service = arg;
    struct qr_wire_append_view view;
    struct qr_append_result result = {0};
    const uint32_t *token_ids = NULL;
    quire_status status = qr_wire_append_parse(request->fragments, request->count, &view, e);

    if (!status)
        status = check(&view, e);
    if (!status && view.token_id_count)
        status = copy_token_ids(request, &view, &token_ids, e);
    if (status)
        return status;

    const struct qr_wire_append *f = &view.fields;
    struct qr_append append = {.session = f->session,
                               .epoch = f->epoch,
                               .position = f->position,
                               .tokens = f->tokens,
                               .first_layer = f->first_layer,
                               .layers = f->layers,
                               .shard = f->shard,
                               .dtype = (enum qr_dtype)f->dtype,
                               .durable =
                                   f->durability == QR_WIRE_DISK ||
                                   (service->durable_always && f->durability != QR_WIRE_SOON),
                               .soon = f->durability == QR_WIRE_SOON,
                               .done = request->hold ? durable_done : NULL,
                               .arg = request->hold,
                               .no_wait = service->has_disk && !request->may_wait,
                               .token_ids = token_ids};
    if (view.page_count) {
        status = append_pages(service, request->ns, &append, &view, &result, e);
    } else {
        struct payload rows = payload_of(view.rows);
        status = qr_append_rows(service->store, request->ns, &append, &rows.source, &result, e);
    }
    if (status)
        return qr_service_explain(service, status, e);
    *request->held = append.durable && request->hold;

    Quire__V1__AppendReply reply = QUIRE__V1__APPEND_REPLY__INIT;
    reply.length = result.length;
    reply.committed = result.committed;
    reply.repeated_tokens = result.repeated_tokens;
    return qr_reply_pack(request, &reply.base, reply_bytes, e);
}
