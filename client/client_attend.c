/* SPDX-License-Identifier: Apache-2.0
 *
 * Attend: queries out, output and log-sum-exp back, in one unary call; and the
 * merge of partial results. The computing is the server's.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "client_op.h"
#include "client_session.h"
#include "storage/codec/attend.h"

/* Elements of a layer's queries, output and lse. */
struct sizes {
    size_t query, output, lse;
};

static uint32_t query_heads(const struct quire_attend *args, const struct qr_layer *layer)
{
    return args->query_heads ? args->query_heads : layer->query_heads - args->first_query_head;
}

static struct sizes sizes_of(const struct quire_session *session,
                             const struct quire_attend *args)
{
    struct sizes s = {0};

    for (uint32_t i = 0; i < args->layers; i++) {
        const struct qr_layer *layer = &session->model.layers[args->first_layer + i];
        if (layer->kv_heads == 0)
            continue;
        const size_t rows = (size_t)args->queries * query_heads(args, layer);
        s.query += rows * layer->key_dim;
        s.output += rows * layer->value_dim;
        s.lse += rows;
    }
    return s;
}

static quire_status check_heads(const struct quire_session *session,
                                const struct quire_attend *args, uint32_t number,
                                struct qr_error *e)
{
    const struct qr_layer *layer = &session->model.layers[number];
    if (layer->kv_heads == 0)
        return QUIRE_OK;

    const uint32_t group = layer->query_heads / layer->kv_heads;
    const uint32_t heads = query_heads(args, layer);
    if (args->first_query_head >= layer->query_heads ||
        heads > layer->query_heads - args->first_query_head)
        return qr_error_set(
            e, QUIRE_EINVAL, "query heads [%u, +%u) of layer %u; it has %u query heads",
            args->first_query_head, args->query_heads, number, layer->query_heads);
    if (args->first_query_head % group || heads % group)
        return qr_error_set(e, QUIRE_EINVAL,
                            "query heads [%u, +%u) of layer %u cut a group; %u query heads "
                            "share one KV head",
                            args->first_query_head, heads, number, group);
    return QUIRE_OK;
}

static bool is_finite(const void *query, enum quire_dtype dtype, size_t i)
{
    const uint16_t exponent = dtype == QUIRE_F16 ? 0x7c00 : 0x7f80;
    uint16_t half;
    float single;

    if (dtype == QUIRE_F32) {
        memcpy(&single, (const uint8_t *)query + i * sizeof(single), sizeof(single));
        return isfinite(single);
    }
    memcpy(&half, (const uint8_t *)query + i * sizeof(half), sizeof(half));
    return (half & exponent) != exponent;
}

/* The store checks too; here it costs no round trip. */
static quire_status check_layer_queries(const struct qr_layer *layer, uint32_t number,
                                        const struct quire_attend *args, size_t first,
                                        struct qr_error *e)
{
    const size_t heads = query_heads(args, layer), dim = layer->key_dim;
    const size_t n = args->queries * heads * dim;
    size_t at = 0;

    while (at < n && is_finite(args->query, args->dtype, first + at))
        at++;
    if (at == n)
        return QUIRE_OK;
    const uint64_t position = args->positions[at / dim / heads];
    const uint32_t head = args->first_query_head + (uint32_t)(at / dim % heads);
    const uint32_t channel = (uint32_t)(at % dim);
    qr_error_set(e, QUIRE_EVALUE,
                 "query of layer %u, query head %u, position %" PRIu64
                 ", channel %u is NaN or infinite: need finite numbers",
                 number, head, position, channel);
    e->layer = number;
    e->head = head;
    e->position = position;
    e->channel = channel;
    return QUIRE_EVALUE;
}

static quire_status check_queries(const struct quire_session *session,
                                  const struct quire_attend *args, struct qr_error *e)
{
    quire_status status = QUIRE_OK;
    size_t first = 0;

    for (uint32_t i = 0; !status && i < args->layers; i++) {
        const struct qr_layer *layer = &session->model.layers[args->first_layer + i];
        if (layer->kv_heads == 0)
            continue;
        status = check_layer_queries(layer, args->first_layer + i, args, first, e);
        first += (size_t)args->queries * query_heads(args, layer) * layer->key_dim;
    }
    return status;
}

static quire_status check_pointers(const struct quire_attend *args, struct qr_error *e)
{
    const char *null = !args->positions ? "positions"
                       : !args->query   ? "query"
                       : !args->output  ? "output"
                                        : NULL;

    if (null)
        return qr_error_set(e, QUIRE_EINVAL, "%s is NULL", null);
    if (args->missing_capacity && (!args->missing || !args->missing_count))
        return qr_error_set(e, QUIRE_EINVAL, "%s is NULL and missing_capacity %zu",
                            args->missing ? "missing_count" : "missing",
                            args->missing_capacity);
    if (args->last_token && args->first_token > args->last_token)
        return qr_error_set(e, QUIRE_EINVAL,
                            "tokens [%" PRIu64 ", %" PRIu64 "): the end is before the start",
                            args->first_token, args->last_token);
    if (!(args->scale >= 0) || !(args->softcap >= 0) || args->scale > 3e38f ||
        args->softcap > 3e38f)
        return qr_error_set(e, QUIRE_EINVAL, "scale is %g and softcap %g; finite, at least 0",
                            (double)args->scale, (double)args->softcap);
    return QUIRE_OK;
}

static quire_status check(const struct quire_session *session, const struct quire_attend *args,
                          struct qr_error *e)
{
    if (args->layers == 0 || args->first_layer >= session->model.layer_count ||
        args->layers > session->model.layer_count - args->first_layer)
        return qr_error_set(e, QUIRE_EINVAL, "layers [%u, +%u); the model has %u",
                            args->first_layer, args->layers, session->model.layer_count);
    const size_t element = qr_dtype_bytes((enum qr_dtype)args->dtype);
    if (!element)
        return qr_error_set(e, QUIRE_EINVAL, "dtype is %d; 1 F16, 2 BF16, 3 F32",
                            (int)args->dtype);
    if (args->queries == 0)
        return qr_error_set(e, QUIRE_EINVAL, "queries is 0; at least 1");
    quire_status status = check_pointers(args, e);
    for (uint32_t i = 0; !status && i < args->layers; i++)
        status = check_heads(session, args, args->first_layer + i, e);
    if (status)
        return status;
    const struct sizes sizes = sizes_of(session, args);
    if (sizes.lse == 0)
        return qr_error_set(e, QUIRE_EINVAL, "layers [%u, +%u) have no KV cache to attend to",
                            args->first_layer, args->layers);
    const size_t bytes = sizes.query * element + args->queries * 10u;
    if (bytes + 8192 > session->client->message_bytes_max)
        return qr_error_set(e, QUIRE_ETOOBIG,
                            "queries take %zu bytes; the server takes messages of %" PRIu64
                            ": ask for fewer layers or queries",
                            bytes, session->client->message_bytes_max);
    return check_queries(session, args, e);
}

static void copy_missing(const struct quire_attend *args, const Quire__V1__AttendReply *reply)
{
    if (!args->missing_count)
        return;
    for (size_t i = 0; i < reply->n_missing && i < args->missing_capacity; i++)
        args->missing[i] = qr_client_range_from(reply->missing[i]);
    *args->missing_count = reply->n_missing + (reply->more ? 1 : 0);
}

static quire_status copy_out(struct quire_op *op, const Quire__V1__AttendReply *reply,
                             struct qr_error *e)
{
    const struct quire_attend *args = &op->u.attend.args;
    const struct sizes s = sizes_of(op->session, args);

    if (reply->output.len != s.output * sizeof(float) ||
        reply->lse.len != s.lse * sizeof(float))
        return qr_error_set(e, QUIRE_ECORRUPT,
                            "Attend: the server sent %zu and %zu bytes; %zu and %zu were due",
                            reply->output.len, reply->lse.len, s.output * sizeof(float),
                            s.lse * sizeof(float));
    memcpy(args->output, reply->output.data, reply->output.len);
    if (args->lse)
        memcpy(args->lse, reply->lse.data, reply->lse.len);
    copy_missing(args, reply);
    return QUIRE_OK;
}

static void on_reply(struct quire_op *op, const struct qr_wire_fragment *fragments,
                     size_t count)
{
    const struct qr_wire_cursor all = qr_wire_cursor_all(fragments, count);
    struct qr_buffer *memory = qr_pool_take(op->client->buffers, (size_t)all.bytes * 3 + 65536);
    struct qr_wire_arena arena;
    ProtobufCMessage *message = NULL;
    struct qr_error e;
    quire_status status;

    if (memory) {
        qr_wire_arena_init(&arena, memory->data, memory->capacity);
        status = qr_wire_unpack(&quire__v1__attend_reply__descriptor, fragments, count, &arena,
                                &message, &e);
        if (status)
            e.status = QUIRE_ECORRUPT;
        else
            status = copy_out(op, (const void *)message, &e);
    } else {
        status = qr_error_set(&e, QUIRE_ENOMEM, "out of memory for a reply");
    }
    op->reply_message = message; /* only its presence matters from here on */
    qr_pool_put(memory);
    if (status)
        qr_op_fail(op, &e);
}

static void on_finish(struct quire_op *op)
{
    struct qr_error e;

    if (op->reply_message || qr_op_failed(op))
        return;
    qr_error_set(&e, QUIRE_EINTERNAL, "Attend: the server answered without a reply");
    qr_op_fail(op, &e);
}

static void send_request(struct quire_op *op)
{
    const struct qr_piece piece = {.data = op->request->data, .bytes = op->request->bytes};

    qr_op_start(op, QR_METHOD_ATTEND, QR_OP_UNARY, &piece, 1);
}

static const struct qr_op_kind kind = {
    .message = on_reply, .finish = on_finish, .restart = send_request};

static quire_status pack(struct quire_op *op, struct qr_error *e)
{
    const struct quire_attend *args = &op->u.attend.args;
    const size_t bytes =
        sizes_of(op->session, args).query * qr_dtype_bytes((enum qr_dtype)args->dtype);
    Quire__V1__AttendRequest request = QUIRE__V1__ATTEND_REQUEST__INIT;

    request.session = op->session->handle;
    request.first_layer = args->first_layer;
    request.layers = args->layers;
    request.first_query_head = args->first_query_head;
    request.query_heads = args->query_heads;
    request.n_positions = args->queries;
    request.positions = (uint64_t *)(uintptr_t)args->positions;
    request.dtype = (Quire__V1__DType)args->dtype;
    request.queries = (ProtobufCBinaryData){bytes, (uint8_t *)(uintptr_t)args->query};
    request.first_token = args->first_token;
    request.last_token = args->last_token;
    request.not_causal = args->not_causal;
    request.window = args->window;
    request.scale = args->scale;
    request.softcap = args->softcap;
    request.allow_missing = args->allow_missing;
    const size_t packed = protobuf_c_message_get_packed_size(&request.base);
    op->request = qr_pool_take(op->client->buffers, packed);
    if (!op->request)
        return qr_error_set(e, QUIRE_ENOMEM, "out of memory for a request of %zu bytes",
                            packed);
    return qr_wire_pack(&request.base, op->request->data, op->request->capacity,
                        &op->request->bytes, e);
}

static quire_status begin(quire_session *session, const struct quire_attend *args,
                          struct quire_op **out)
{
    struct qr_error e;

    if (!session || !args)
        return qr_client_fail_text(QUIRE_EINVAL, "%s is NULL", session ? "attend" : "session");
    if (check(session, args, &e))
        return qr_client_fail(&e);
    struct quire_op *op = qr_op_take(session->client, session, &kind, args->timeout_ms);
    if (!op)
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for an attend");

    op->u.attend.args = *args;
    if (pack(op, &e)) {
        qr_op_recycle(op);
        return qr_client_fail(&e);
    }
    send_request(op);
    *out = op;
    return QUIRE_OK;
}

quire_status quire_attend(quire_session *session, const struct quire_attend *attend)
{
    struct quire_op *op;
    const quire_status status = begin(session, attend, &op);

    return status ? status : qr_op_join(op);
}

quire_status quire_attend_submit(quire_session *session, const struct quire_attend *attend,
                                 quire_op **out)
{
    struct quire_op *op;

    if (!out)
        return qr_op_no_out();
    const quire_status status = begin(session, attend, &op);
    return status ? status : qr_op_hand_over(op, out);
}

void quire_merge(float *output_a, float *lse_a, const float *output_b, const float *lse_b,
                 size_t rows, size_t value_dim)
{
    qr_attend_merge(output_a, lse_a, output_b, lse_b, rows, value_dim);
}
