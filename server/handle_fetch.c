/* SPDX-License-Identifier: Apache-2.0
 *
 * Fetch: parts of a store cursor become parts of chunks. Unexpanded, pages and
 * tails go out where they lie; expanded, the codecs write rows into the message.
 */
#include <stdlib.h>
#include <string.h>

#include "service.h"
#include "storage/codec/codec.h"

/* One fetch under way. Objects of the pool keep `rotation` from one use to the next. */
struct fetch {
    struct qr_fetch_cursor *cursor;
    bool expand, rotate;
    enum qr_dtype dtype;
    int64_t shift;
    uint32_t first_head, heads; /* asked for; heads 0: all */
    /* expanding */
    struct qr_part part; /* the current one; pin NULL: none */
    struct qr_page_view view;
    uint32_t done; /* tokens of it that have been sent */
    float *rotation;
    size_t rotation_bytes;
    int64_t rotation_position; /* what is in it: valid while rotation_tokens > 0 */
    uint32_t rotation_tokens, rotation_rope;
};

static void free_rotation(void *object)
{
    free(((struct fetch *)object)->rotation);
}

quire_status qr_fetch_pool(uint32_t calls_max, struct qr_pool **out)
{
    return qr_pool_create(sizeof(struct fetch), calls_max, out);
}

void qr_fetch_pool_destroy(struct qr_pool **pool)
{
    if (*pool)
        qr_pool_destroy(pool, free_rotation);
}

/* ---- open and close --------------------------------------------------------------------- */

/* What is not expanded comes as stored: pages, and tails in FP16. */
static quire_status check_unexpanded(const Quire__V1__FetchRequest *m, struct qr_error *e)
{
    if (m->rotate || m->position_shift)
        return qr_error_set(e, QUIRE_EINVAL, "%s is set, which needs expand",
                            m->rotate ? "rotate" : "position_shift");
    if (m->dtype != QUIRE__V1__DTYPE__DTYPE_UNSPECIFIED && (int)m->dtype != (int)QR_F16)
        return qr_error_set(e, QUIRE_EINVAL,
                            "dtype is %d; without expand it must be 0 (none) or 1 (F16)",
                            (int)m->dtype);
    return QUIRE_OK;
}

static quire_status check(const Quire__V1__FetchRequest *m, struct qr_error *e)
{
    const int64_t last = (int64_t)QR_POSITION_MAX;

    if (m->position > (uint64_t)last || m->tokens > (uint64_t)last + 1)
        return qr_error_set(
            e, QUIRE_ERANGE, "position %llu with %llu tokens; positions are 0 .. %lld",
            (unsigned long long)m->position, (unsigned long long)m->tokens, (long long)last);
    if (!m->expand)
        return check_unexpanded(m, e);
    if (!qr_dtype_bytes((enum qr_dtype)m->dtype))
        return qr_error_set(e, QUIRE_EINVAL,
                            "dtype is %d, must be 1 (F16), 2 (BF16) or 3 (F32) when expand is "
                            "set",
                            (int)m->dtype);
    if (m->position_shift < -last || m->position_shift > last ||
        (int64_t)m->position + m->position_shift < 0 ||
        (int64_t)(m->position + m->tokens) + m->position_shift > last + 1)
        return qr_error_set(e, QUIRE_ERANGE,
                            "position_shift %lld moves tokens %llu .. %llu out of 0 .. %lld",
                            (long long)m->position_shift, (unsigned long long)m->position,
                            (unsigned long long)(m->position + m->tokens), (long long)last);
    return QUIRE_OK;
}

static void close_fetch(void *arg, void *state)
{
    struct qr_service *service = arg;
    struct fetch *fetch = state;

    if (fetch->part.pin)
        qr_part_release(service->store, fetch->part.pin);
    fetch->part.pin = NULL;
    if (fetch->cursor)
        qr_fetch_close(&fetch->cursor);
    qr_pool_give(service->fetches, fetch);
}

static quire_status open_fetch(void *arg, const struct qr_request *request, void **out,
                               struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    quire_status status =
        qr_request_unpack(request, &quire__v1__fetch_request__descriptor, &message, e);
    const Quire__V1__FetchRequest *m = (Quire__V1__FetchRequest *)message;

    if (!status)
        status = check(m, e);
    if (status)
        return status;
    struct fetch *fetch = qr_pool_take(service->fetches);
    if (!fetch)
        return qr_error_set(e, QUIRE_EFULL, "as many fetches run as max_calls allows");
    fetch->cursor = NULL;
    memset(&fetch->part, 0, sizeof(fetch->part));
    fetch->expand = m->expand;
    fetch->rotate = m->rotate;
    fetch->dtype = (enum qr_dtype)m->dtype;
    fetch->shift = m->position_shift;
    fetch->first_head = m->first_head;
    fetch->heads = m->head_count;
    fetch->rotation_tokens = 0;
    const struct qr_fetch range = {.session = m->session,
                                   .position = m->position,
                                   .tokens = m->tokens,
                                   .first_layer = m->first_layer,
                                   .layers = m->layers,
                                   .first_head = m->first_head,
                                   .heads = m->head_count};
    status = qr_fetch_open(service->store, request->ns, &range, &fetch->cursor, e);
    if (status) {
        qr_pool_give(service->fetches, fetch);
        return qr_service_explain(service, status, e);
    }
    *out = fetch;
    return QUIRE_OK;
}

/* ---- unexpanded ------------------------------------------------------------------------- */

static struct qr_wire_part wire_part(const struct qr_part *part)
{
    return (struct qr_wire_part){.layer = part->layer,
                                 .first_head = part->first_head,
                                 .heads = part->heads,
                                 .position = part->position,
                                 .tokens = part->tokens,
                                 .status = (uint32_t)part->status};
}

static quire_status no_memory(struct qr_error *e)
{
    return qr_error_set(e, QUIRE_ENOMEM, "no memory for a part of the fetch");
}

/* A part without payload: it says what is not there. */
static quire_status put_hole(struct qr_chunk *chunk, const struct qr_part *part,
                             struct qr_error *e)
{
    uint8_t head[QR_WIRE_PART_HEAD_MAX];
    const struct qr_wire_part wire = wire_part(part);
    const size_t n = qr_wire_part_head(&wire, head);
    uint8_t *to = qr_chunk_write(chunk, n);

    if (!to)
        return no_memory(e);
    memcpy(to, head, n);
    return QUIRE_OK;
}

static const struct qr_layer *layer_of(const struct qr_part *part)
{
    return &part->model->layers[part->layer];
}

/* A whole page, or the rows of a tail, where they lie. Takes the pin, also on failure. */
static quire_status put_pinned(struct qr_service *service, struct qr_chunk *chunk,
                               const struct qr_part *part, struct qr_error *e)
{
    uint8_t head[QR_WIRE_PART_HEAD_MAX];
    struct qr_wire_part wire = wire_part(part);
    struct qr_range ranges[QR_CHUNK_RANGES_MAX];
    size_t count = 1;

    if (part->page) {
        ranges[0] = (struct qr_range){part->page, part->page_bytes};
        wire.payload = QR_WIRE_PAGE;
        wire.payload_bytes = part->page_bytes;
    } else {
        const size_t row_elements = (size_t)part->tokens * part->heads;
        ranges[0] = (struct qr_range){part->key_rows, row_elements * layer_of(part)->key_dim *
                                                          sizeof(uint16_t)};
        ranges[1] = (struct qr_range){
            part->value_rows, row_elements * layer_of(part)->value_dim * sizeof(uint16_t)};
        count = 2;
        wire.payload = QR_WIRE_ROWS;
        wire.payload_bytes = ranges[0].n + ranges[1].n;
    }
    const size_t n = qr_wire_part_head(&wire, head);
    if (qr_chunk_pinned(chunk, head, n, ranges, count, part->pin))
        return QUIRE_OK;
    qr_part_release(service->store, part->pin);
    return no_memory(e);
}

static quire_status fill(struct qr_service *service, struct fetch *fetch,
                         struct qr_chunk *chunk, size_t target, bool *more_out,
                         struct qr_error *e)
{
    quire_status status = QUIRE_OK;
    struct qr_part part;

    while (!status && chunk->bytes < target && qr_chunk_has_room(chunk)) {
        const enum qr_fetch_step step = qr_fetch_next(fetch->cursor, &part);
        if (step == QR_FETCH_END) {
            *more_out = false;
            return QUIRE_OK;
        }
        if (step == QR_FETCH_LATER) /* send what there is; the stream pauses without any */
            break;
        status = part.pin ? put_pinned(service, chunk, &part, e) : put_hole(chunk, &part, e);
    }
    *more_out = true;
    return status;
}

/* ---- expanded --------------------------------------------------------------------------- */

/* Heads of the part that were asked for, relative to the part. */
static void wanted_heads(const struct fetch *fetch, uint32_t *first, uint32_t *count)
{
    const struct qr_part *part = &fetch->part;
    const uint32_t end = part->first_head + part->heads;
    uint32_t from = part->first_head, to = end;

    if (fetch->heads) {
        from = fetch->first_head > from ? fetch->first_head : from;
        to = fetch->first_head + fetch->heads < end ? fetch->first_head + fetch->heads : end;
    }
    *first = from - part->first_head;
    *count = to > from ? to - from : 0;
}

static const struct qr_rope *rope_of(const struct fetch *fetch)
{
    const struct qr_layer *layer = layer_of(&fetch->part);

    return fetch->rotate && layer->rope_stored == QR_ROPE_PRE
               ? &fetch->part.model->ropes[layer->rope]
               : NULL;
}

/* cos/sin for `tokens` positions from `position` on; made anew only when they differ from the
 * last ones. */
static quire_status make_rotation(struct fetch *fetch, const struct qr_rope *rope,
                                  int64_t position, uint32_t tokens, struct qr_error *e)
{
    /* A shift may put tokens of the page that nobody asked for below 0: they get none. */
    const uint32_t skip = position < 0 ? (uint32_t)-position : 0;
    const size_t bytes = ((size_t)tokens * rope->rotary_dim * sizeof(float) + 63) & ~(size_t)63;
    const uint32_t index = layer_of(&fetch->part)->rope;

    if (fetch->rotation_tokens == tokens && fetch->rotation_position == position &&
        fetch->rotation_rope == index)
        return QUIRE_OK;
    if (fetch->rotation_bytes < bytes) {
        free(fetch->rotation);
        fetch->rotation = aligned_alloc(64, bytes);
        fetch->rotation_bytes = fetch->rotation ? bytes : 0;
        if (!fetch->rotation)
            return no_memory(e);
    }
    qr_rotation_make(rope, (uint64_t)(position + skip), tokens - skip,
                     fetch->rotation + (size_t)skip * rope->rotary_dim);
    fetch->rotation_position = position;
    fetch->rotation_tokens = tokens;
    fetch->rotation_rope = index;
    return QUIRE_OK;
}

/* First position and number of tokens that the current part's rotation covers: its whole page,
 * or the rows of its tail. */
static void covered(const struct fetch *fetch, uint64_t *position, uint32_t *tokens)
{
    const struct qr_page_header *header = fetch->part.page ? fetch->view.header : NULL;

    *position = header ? header->first_position : fetch->part.position;
    *tokens = header ? header->tokens : fetch->part.tokens;
}

static quire_status begin_part(struct fetch *fetch, struct qr_error *e)
{
    const struct qr_rope *rope = rope_of(fetch);
    uint64_t position;
    uint32_t tokens;
    quire_status status = QUIRE_OK;

    fetch->done = 0;
    if (fetch->part.page)
        status = qr_page_open(fetch->part.page, fetch->part.page_bytes, &fetch->view, e);
    if (status || !rope)
        return status;
    covered(fetch, &position, &tokens);
    return make_rotation(fetch, rope, (int64_t)position + fetch->shift, tokens, e);
}

/* Expand K or V of `tokens` tokens from fetch->done on to dst. */
static void expand(const struct fetch *fetch, enum qr_which which, uint32_t first_head,
                   uint32_t heads, uint32_t tokens, uint8_t *dst)
{
    const struct qr_part *part = &fetch->part;
    const struct qr_rope *rope = which == QR_KEY ? rope_of(fetch) : NULL;
    const uint32_t dim = which == QR_KEY ? layer_of(part)->key_dim : layer_of(part)->value_dim;
    const size_t row_bytes = dim * qr_dtype_bytes(fetch->dtype);
    uint64_t start;
    uint32_t covered_tokens;

    covered(fetch, &start, &covered_tokens);
    const uint32_t first = (uint32_t)(part->position - start) + fetch->done;
    struct qr_expand to = {.first_token = first,
                           .token_count = tokens,
                           .first_head = first_head,
                           .head_count = heads,
                           .rotation = rope ? fetch->rotation : NULL,
                           .rotary_dim = rope ? rope->rotary_dim : 0,
                           .rope_layout = rope ? rope->layout : QR_ROPE_HALF,
                           .dtype = fetch->dtype,
                           .dst = dst,
                           .token_stride = heads * row_bytes,
                           .head_stride = row_bytes};
    if (part->page) {
        qr_page_expand(&fetch->view, which, &to);
        return;
    }
    const struct qr_rows rows = {.data = which == QR_KEY ? part->key_rows : part->value_rows,
                                 .token_stride = (size_t)part->heads * dim,
                                 .head_stride = dim};
    qr_rows_expand(&rows, part->tokens, part->heads, dim, &to);
}

/* The next rows of the current part, as many as fit into the chunk. */
static quire_status put_rows(struct fetch *fetch, struct qr_chunk *chunk, size_t target,
                             struct qr_error *e)
{
    const struct qr_layer *layer = layer_of(&fetch->part);
    const size_t element = qr_dtype_bytes(fetch->dtype);
    const size_t left = target - chunk->bytes;
    struct qr_wire_part wire = wire_part(&fetch->part);
    uint32_t first_head, heads;
    uint8_t head[QR_WIRE_PART_HEAD_MAX];

    wanted_heads(fetch, &first_head, &heads);
    const size_t key_bytes = (size_t)heads * layer->key_dim * element;
    const size_t token_bytes = key_bytes + (size_t)heads * layer->value_dim * element;
    const uint32_t rest = fetch->part.tokens - fetch->done;
    uint32_t tokens =
        token_bytes && left / token_bytes < rest ? (uint32_t)(left / token_bytes) : rest;
    if (tokens == 0)
        tokens = 1; /* one token larger than a chunk goes alone */
    wire.first_head += first_head;
    wire.heads = heads;
    wire.position += fetch->done;
    wire.tokens = tokens;
    wire.payload = QR_WIRE_ROWS;
    wire.payload_bytes = tokens * token_bytes;
    const size_t n = qr_wire_part_head(&wire, head);
    uint8_t *to = qr_chunk_write(chunk, n);
    if (!to)
        return no_memory(e);
    memcpy(to, head, n);
    if (!(to = qr_chunk_write(chunk, tokens * token_bytes)))
        return no_memory(e);
    expand(fetch, QR_KEY, first_head, heads, tokens, to);
    expand(fetch, QR_VALUE, first_head, heads, tokens, to + tokens * key_bytes);
    fetch->done += tokens;
    return QUIRE_OK;
}

static quire_status fill_expanded(struct qr_service *service, struct fetch *fetch,
                                  struct qr_chunk *chunk, size_t target, bool *more_out,
                                  struct qr_error *e)
{
    quire_status status = QUIRE_OK;

    *more_out = true;
    while (!status && chunk->bytes < target && qr_chunk_has_room(chunk)) {
        if (!fetch->part.pin) {
            const enum qr_fetch_step step = qr_fetch_next(fetch->cursor, &fetch->part);
            if (step != QR_FETCH_PART) {
                fetch->part.pin = NULL;
                *more_out = step == QR_FETCH_LATER;
                return QUIRE_OK;
            }
            status = fetch->part.pin ? begin_part(fetch, e) : put_hole(chunk, &fetch->part, e);
            continue;
        }
        status = put_rows(fetch, chunk, target, e);
        if (!status && fetch->done == fetch->part.tokens) {
            qr_part_release(service->store, fetch->part.pin);
            fetch->part.pin = NULL;
        }
    }
    return status;
}

static quire_status next_chunk(void *arg, void *state, struct qr_chunk *chunk, bool *more_out,
                               struct qr_error *e)
{
    struct qr_service *service = arg;
    struct fetch *fetch = state;
    size_t target = (size_t)qr_config_number(service->config, QR_OPTION_fetch_chunk_bytes);
    if (target > chunk->most)
        target = chunk->most;

    return fetch->expand ? fill_expanded(service, fetch, chunk, target, more_out, e)
                         : fill(service, fetch, chunk, target, more_out, e);
}

const struct qr_stream_ops qr_handle_fetch = {
    .open = open_fetch, .next = next_chunk, .close = close_fetch};
