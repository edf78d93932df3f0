/* SPDX-License-Identifier: Apache-2.0
 *
 * Control calls: one small request, one small reply, waited for. Everything but
 * append, fetch and attend goes this way. Must not know what is asked.
 */
#include "client_op.h"

#include <string.h>

/* Unpacked messages are pointers and padding on top of their bytes. */
static size_t arena_bytes(size_t message_bytes)
{
    return message_bytes * 8 + 4096;
}

static void on_reply(struct quire_op *op, const struct qr_wire_fragment *fragments,
                     size_t count)
{
    size_t bytes = 0;
    struct qr_error e;
    struct qr_wire_arena arena;

    for (size_t i = 0; i < count; i++)
        bytes += fragments[i].bytes;
    qr_pool_put(op->reply); /* of an answer before a restart */
    op->reply = qr_pool_take(op->client->buffers, arena_bytes(bytes));
    if (!op->reply) {
        qr_error_set(&e, QUIRE_ENOMEM, "out of memory for a reply of %zu bytes", bytes);
        qr_op_fail(op, &e);
        return;
    }
    qr_wire_arena_init(&arena, op->reply->data, op->reply->capacity);
    if (qr_wire_unpack(op->reply_type, fragments, count, &arena, &op->reply_message, &e)) {
        e.status = QUIRE_ECORRUPT;
        qr_op_fail(op, &e);
    }
}

static void on_finish(struct quire_op *op)
{
    struct qr_error e;

    if (op->reply_message || qr_op_failed(op))
        return;
    qr_error_set(&e, QUIRE_EINTERNAL, "%s: the server answered without a reply",
                 qr_method_name(op->method));
    qr_op_fail(op, &e);
}

static void send_request(struct quire_op *op)
{
    const struct qr_piece piece = {.data = op->request->data, .bytes = op->request->bytes};

    qr_op_start(op, op->method, QR_OP_UNARY, &piece, 1);
}

static const struct qr_op_kind once = {.message = on_reply, .finish = on_finish};
static const struct qr_op_kind repeatable = {
    .message = on_reply, .finish = on_finish, .restart = send_request};

static quire_status pack_request(struct quire_op *op, const ProtobufCMessage *request,
                                 struct qr_error *e)
{
    const size_t bytes = protobuf_c_message_get_packed_size(request);

    op->request = qr_pool_take(op->client->buffers, bytes);
    if (!op->request)
        return qr_error_set(e, QUIRE_ENOMEM, "out of memory for a request of %zu bytes", bytes);
    return qr_wire_pack(request, op->request->data, op->request->capacity, &op->request->bytes,
                        e);
}

/* Send, wait; on failure the operation is gone. */
static quire_status ask(struct quire_op *op, const ProtobufCMessage *request,
                        const ProtobufCMessageDescriptor *type)
{
    struct qr_error e;

    op->reply_type = type;
    if (pack_request(op, request, &e)) {
        qr_op_recycle(op);
        return qr_client_fail(&e);
    }
    send_request(op);
    qr_op_submitted(op);
    const quire_status status = quire_op_wait(op, UINT32_MAX);
    if (status)
        qr_op_recycle(op);
    return status;
}

static quire_status no_memory(enum qr_method method)
{
    return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for a call of %s",
                               qr_method_name(method));
}

quire_status qr_control(struct quire_client *client, enum qr_method method,
                        const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                        bool idempotent, struct quire_op **op_out)
{
    struct quire_op *op = qr_op_take(client, NULL, idempotent ? &repeatable : &once, 0);
    if (!op)
        return no_memory(method);

    op->method = method;
    const quire_status status = ask(op, request, type);
    if (!status)
        *op_out = op;
    return status;
}

quire_status qr_control_connect(struct quire_client *client, const ProtobufCMessage *request,
                                const ProtobufCMessageDescriptor *type,
                                struct quire_op **op_out)
{
    struct quire_op *op = qr_op_take(client, NULL, &once, client->options.connect_ms);
    if (!op)
        return no_memory(QR_METHOD_HELLO);

    op->method = QR_METHOD_HELLO;
    op->wait_for_ready = true;
    const quire_status status = ask(op, request, type);
    if (!status)
        *op_out = op;
    return status;
}

quire_status qr_control_plain(struct quire_client *client, enum qr_method method,
                              const ProtobufCMessage *request,
                              const ProtobufCMessageDescriptor *type, bool idempotent)
{
    struct quire_op *op;
    const quire_status status = qr_control(client, method, request, type, idempotent, &op);

    if (!status)
        qr_op_recycle(op);
    return status;
}
