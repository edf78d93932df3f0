/* SPDX-License-Identifier: Apache-2.0
 *
 * The smallest gRPC client that can be rude: calls by path with any bytes, reads
 * one message at a time, gives up in the middle. For tests of the server alone.
 */
#ifndef QR_RAW_CLIENT_H
#define QR_RAW_CLIENT_H

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>

#include <stdbool.h>

#include "tests/test.h"

struct raw_client {
    grpc_completion_queue *cq;
    grpc_channel *channel;
};

struct raw_call {
    struct raw_client *client;
    grpc_call *call;
    grpc_metadata_array headers, trailers;
    grpc_status_code status;
    grpc_slice details;
    char text[512]; /* of the status */
    bool done;
};

static inline void raw_open(struct raw_client *client, const char *target)
{
    grpc_init();
    grpc_arg args[2] = {{.type = GRPC_ARG_INTEGER,
                         .key = (char *)(uintptr_t)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                         .value.integer = -1},
                        {.type = GRPC_ARG_INTEGER,
                         .key = (char *)(uintptr_t)GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
                         .value.integer = 1}};
    const grpc_channel_args list = {2, args};
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    client->cq = grpc_completion_queue_create_for_pluck(NULL);
    client->channel = grpc_channel_create(target, credentials, &list);
    grpc_channel_credentials_release(credentials);
}

static inline void raw_close(struct raw_client *client)
{
    grpc_channel_destroy(client->channel);
    grpc_completion_queue_shutdown(client->cq);
    grpc_completion_queue_destroy(client->cq);
    grpc_shutdown();
}

static inline bool raw_batch(struct raw_call *c, grpc_op *ops, size_t n)
{
    assert_int_equal(grpc_call_start_batch(c->call, ops, n, ops, NULL), GRPC_CALL_OK);
    return grpc_completion_queue_pluck(c->client->cq, ops, gpr_inf_future(GPR_CLOCK_REALTIME),
                                       NULL)
               .success != 0;
}

static inline grpc_byte_buffer *raw_buffer(const void *bytes, size_t n)
{
    grpc_slice slice = grpc_slice_from_copied_buffer(bytes, n);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

/** Start a call; nothing is sent but its headers. */
static inline void raw_start(struct raw_client *client, struct raw_call *c, const char *path,
                             int timeout_ms)
{
    memset(c, 0, sizeof(*c));
    c->client = client;
    grpc_slice method = grpc_slice_from_copied_string(path);
    c->call = grpc_channel_create_call(
        client->channel, NULL, GRPC_PROPAGATE_DEFAULTS, client->cq, method, NULL,
        gpr_time_add(gpr_now(GPR_CLOCK_REALTIME),
                     gpr_time_from_millis(timeout_ms, GPR_TIMESPAN)),
        NULL);
    grpc_slice_unref(method);
    grpc_metadata_array_init(&c->headers);
    grpc_metadata_array_init(&c->trailers);
    c->details = grpc_empty_slice();
    grpc_op op = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    raw_batch(c, &op, 1);
    grpc_op receive = {.op = GRPC_OP_RECV_INITIAL_METADATA}; /* ends in raw_status */
    receive.data.recv_initial_metadata.recv_initial_metadata = &c->headers;
    assert_int_equal(grpc_call_start_batch(c->call, &receive, 1, &c->headers, NULL), 0);
}

static inline bool raw_send(struct raw_call *c, const void *bytes, size_t n)
{
    grpc_byte_buffer *buffer = raw_buffer(bytes, n);
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};
    op.data.send_message.send_message = buffer;
    const bool ok = raw_batch(c, &op, 1);
    grpc_byte_buffer_destroy(buffer);
    return ok;
}

static inline bool raw_send_close(struct raw_call *c)
{
    grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    return raw_batch(c, &op, 1);
}

/** Next message: its length, bytes up to capacity in out; -1 at the end. */
static inline long raw_read(struct raw_call *c, void *out, size_t capacity)
{
    grpc_byte_buffer *buffer = NULL;
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &buffer;
    if (!raw_batch(c, &op, 1) || !buffer)
        return -1;
    grpc_byte_buffer_reader reader;
    grpc_byte_buffer_reader_init(&reader, buffer);
    size_t n = 0;
    for (grpc_slice *slice; grpc_byte_buffer_reader_peek(&reader, &slice);) {
        const size_t bytes = GRPC_SLICE_LENGTH(*slice);
        if (n < capacity)
            memcpy((char *)out + n, GRPC_SLICE_START_PTR(*slice),
                   bytes < capacity - n ? bytes : capacity - n);
        n += bytes;
    }
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer_destroy(buffer);
    return (long)n;
}

/** Wait for the status. */
static inline grpc_status_code raw_status(struct raw_call *c)
{
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    if (c->done)
        return c->status;
    op.data.recv_status_on_client.status = &c->status;
    op.data.recv_status_on_client.status_details = &c->details;
    op.data.recv_status_on_client.trailing_metadata = &c->trailers;
    raw_batch(c, &op, 1);
    (void)grpc_completion_queue_pluck(c->client->cq, &c->headers,
                                      gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    snprintf(c->text, sizeof(c->text), "%.*s", (int)GRPC_SLICE_LENGTH(c->details),
             (const char *)GRPC_SLICE_START_PTR(c->details));
    c->done = true;
    return c->status;
}

static inline void raw_end(struct raw_call *c)
{
    if (!c->done) {
        grpc_call_cancel(c->call, NULL);
        raw_status(c);
    }
    grpc_slice_unref(c->details);
    grpc_metadata_array_destroy(&c->headers);
    grpc_metadata_array_destroy(&c->trailers);
    grpc_call_unref(c->call);
}

/** Bytes of a trailer; 0 when there is none. */
static inline size_t raw_trailer(const struct raw_call *c, const char *key, uint8_t *out,
                                 size_t capacity)
{
    for (size_t i = 0; i < c->trailers.count; i++) {
        if (grpc_slice_str_cmp(c->trailers.metadata[i].key, key))
            continue;
        const grpc_slice value = c->trailers.metadata[i].value;
        const size_t n = GRPC_SLICE_LENGTH(value);
        assert_true(n <= capacity);
        memcpy(out, GRPC_SLICE_START_PTR(value), n);
        return n;
    }
    return 0;
}

/** One message in, one out. Returns the reply's length, -1 with c->status and c->text. The call
 * stays open for inspection until raw_end. */
static inline long raw_unary(struct raw_client *client, struct raw_call *c, const char *path,
                             const void *bytes, size_t n, void *out, size_t capacity)
{
    raw_start(client, c, path, 60000);
    raw_send(c, bytes, n);
    raw_send_close(c);
    const long got = raw_read(c, out, capacity);
    return raw_status(c) == GRPC_STATUS_OK ? got : -1;
}

#endif
