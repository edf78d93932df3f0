/* SPDX-License-Identifier: Apache-2.0
 *
 * Fetch: one request, a stream of parts, progress by layer. Must not know what a
 * page holds: placing parts is client_place.c.
 */
#include "client_fetch.h"

#include <inttypes.h>
#include <string.h>

#include "client_op.h"

/* From here on non-temporal stores win: the caller's buffer is seldom in a cache, and other
 * stores would first read it from memory. */
#define STREAM_BYTES (256u << 10)

static uint64_t prepare(struct quire_op *op)
{
    struct qr_fetch_state *f = &op->u.fetch;
    const size_t element = qr_dtype_bytes((enum qr_dtype)f->args.dtype);
    uint64_t bytes = 0;

    f->layers_ready = 0;
    memset(&f->hole, 0, sizeof(f->hole));
    f->pages_per_layer = quire_fetch_pages(op->session, &f->args) / f->args.layers;
    for (uint32_t i = 0; i < f->args.layers; i++) {
        const struct qr_layer *layer = &op->session->model.layers[f->args.first_layer + i];
        uint32_t first, heads;
        qr_fetch_heads(&f->args, layer, &first, &heads);
        f->left[i] = f->args.tokens * heads;
        f->layer_status[i] = 0;
        bytes += f->left[i] *
                 ((f->args.key && f->args.key[i] ? layer->key_dim : 0u) +
                  (f->args.value && f->args.value[i] ? layer->value_dim : 0u)) *
                 element;
    }
    while (f->layers_ready < f->args.layers && f->left[f->layers_ready] == 0)
        f->layers_ready++;
    if (f->args.page_status)
        memset(f->args.page_status, 0, f->pages_per_layer * f->args.layers);
    return bytes;
}

static void send_request(struct quire_op *op)
{
    const struct quire_fetch *args = &op->u.fetch.args;
    uint8_t packed[128];
    struct qr_error e;
    struct qr_piece piece = {.data = packed};
    Quire__V1__FetchRequest request = QUIRE__V1__FETCH_REQUEST__INIT;

    request.session = op->session->handle;
    request.position = args->position;
    request.tokens = args->tokens;
    request.first_layer = args->first_layer;
    request.layers = args->layers;
    request.first_head = args->first_head;
    request.head_count = args->heads;
    if (qr_wire_pack(&request.base, packed, sizeof(packed), &piece.bytes, &e)) {
        qr_op_fail(op, &e);
        return;
    }
    qr_op_start(op, QR_METHOD_FETCH, QR_OP_READER, &piece, 1);
}

/* The stream ended well: was it all, and was all of it there? */
static void on_finish(struct quire_op *op)
{
    struct qr_fetch_state *f = &op->u.fetch;
    struct qr_error e;

    pthread_mutex_lock(&op->lock);
    const uint32_t ready = f->layers_ready;
    e = f->hole;
    pthread_mutex_unlock(&op->lock);
    if (ready < f->args.layers)
        qr_error_set(&e, QUIRE_EINTERNAL,
                     "Fetch: the server's stream ended before layer %u was complete",
                     f->args.first_layer + ready);
    if (e.status)
        qr_op_fail(op, &e);
}

static const struct qr_op_kind fetch_kind = {
    .message = qr_fetch_message, .finish = on_finish, .restart = send_request};

static quire_status start(quire_session *session, const struct quire_fetch *fetch,
                          struct qr_page_copy *copy, struct quire_op **out)
{
    struct quire_op *op = qr_op_take(session->client, session, &fetch_kind, fetch->timeout_ms);
    if (!op)
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for a fetch");

    op->u.fetch.args = *fetch;
    op->u.fetch.copy = copy;
    op->u.fetch.stream = prepare(op) >= STREAM_BYTES;
    send_request(op);
    *out = op;
    return QUIRE_OK;
}

static quire_status checked_start(quire_session *session, const struct quire_fetch *fetch,
                                  struct quire_op **out)
{
    struct qr_error e;

    if (!session || !fetch)
        return qr_client_fail_text(QUIRE_EINVAL, "%s is NULL", session ? "fetch" : "session");
    if (qr_fetch_check(session, fetch, &e))
        return qr_client_fail(&e);
    return start(session, fetch, NULL, out);
}

quire_status quire_fetch(quire_session *session, const struct quire_fetch *fetch)
{
    struct quire_op *op;
    const quire_status status = checked_start(session, fetch, &op);

    return status ? status : qr_op_join(op);
}

quire_status quire_fetch_submit(quire_session *session, const struct quire_fetch *fetch,
                                quire_op **out)
{
    struct quire_op *op;

    if (!out)
        return qr_op_no_out();
    const quire_status status = checked_start(session, fetch, &op);
    return status ? status : qr_op_hand_over(op, out);
}

quire_status quire_op_wait_layer(quire_op *op, uint32_t layer, uint32_t timeout_ms)
{
    struct qr_fetch_state *f = &op->u.fetch;
    const struct timespec until = qr_op_until(timeout_ms == UINT32_MAX ? 0 : timeout_ms);

    if (op->kind != &fetch_kind)
        return qr_client_fail_text(QUIRE_EINVAL, "the operation is not a fetch");
    const uint32_t index = layer - f->args.first_layer;
    if (layer < f->args.first_layer || index >= f->args.layers)
        return qr_client_fail_text(QUIRE_EINVAL, "layer is %u; the fetch has [%u, +%u)", layer,
                                   f->args.first_layer, f->args.layers);
    int late = 0;
    pthread_mutex_lock(&op->lock);
    while (f->layers_ready <= index && !op->done && !late)
        late = timeout_ms == UINT32_MAX
                   ? pthread_cond_wait(&op->changed, &op->lock)
                   : pthread_cond_timedwait(&op->changed, &op->lock, &until);
    const bool ready = f->layers_ready > index, done = op->done;
    const uint8_t worst = f->layer_status[index];
    pthread_mutex_unlock(&op->lock);
    if (ready && worst)
        return qr_client_fail_text(worst == 1 ? QUIRE_EMISSING : QUIRE_ECORRUPT,
                                   "layer %u: some tokens %s", layer,
                                   worst == 1 ? "are no longer stored" : "failed verification");
    if (ready)
        return QUIRE_OK;
    if (done)
        return qr_client_fail(&op->error);
    return qr_client_fail_text(QUIRE_ETIMEOUT, "layer %u has not arrived after %u ms", layer,
                               timeout_ms);
}

/* ---- one page as it is ------------------------------------------------------------------ */

static quire_status fetch_page(quire_session *session, const struct quire_page_at *at,
                               struct qr_page_copy *copy)
{
    struct quire_op *op;
    const struct quire_fetch fetch = {.position = at->position,
                                      .tokens = 1,
                                      .first_layer = at->layer,
                                      .layers = 1,
                                      .first_head = at->head,
                                      .heads = 1,
                                      .dtype = QUIRE_F16,
                                      .timeout_ms = at->timeout_ms};
    const quire_status status = start(session, &fetch, copy, &op);

    return status ? status : qr_op_join(op);
}

quire_status quire_session_page(quire_session *session, const struct quire_page_at *at,
                                void *page, size_t capacity, size_t *bytes_out)
{
    struct qr_page_copy copy = {.page = page, .capacity = page ? capacity : 0};

    if (!session || !at || !bytes_out)
        return qr_client_fail_text(QUIRE_EINVAL, "%s is NULL",
                                   !session ? "session"
                                   : !at    ? "at"
                                            : "bytes_out");
    if (at->layer >= session->model.layer_count ||
        at->head >= session->model.layers[at->layer].kv_heads)
        return qr_client_fail_text(QUIRE_EINVAL,
                                   "layer %u, head %u: the model has no such KV head",
                                   at->layer, at->head);
    const quire_status status = fetch_page(session, at, &copy);
    if (status)
        return status;
    if (copy.in_tail)
        return qr_client_fail_text(
            QUIRE_ERANGE, "token %" PRIu64 " of layer %u is in the tail, not in a page",
            at->position, at->layer);
    *bytes_out = copy.bytes;
    if (copy.bytes > copy.capacity)
        return qr_client_fail_text(QUIRE_ETOOBIG, "the page has %zu bytes; capacity is %zu",
                                   copy.bytes, copy.capacity);
    return QUIRE_OK;
}
