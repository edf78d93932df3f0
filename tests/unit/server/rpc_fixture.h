/* SPDX-License-Identifier: Apache-2.0
 *
 * A call machine with methods of its own, and a client connected to it: what the
 * tests of server/rpc.h share.
 */
#ifndef QR_RPC_FIXTURE_H
#define QR_RPC_FIXTURE_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "raw_client.h"
#include "server/rpc.h"
#include "storage/base/clock.h"

#define PAGE_BYTES (128u << 10)
#define CALLS_MAX 4
/* For what must happen: on a machine that is busy with other things a process may stand still
 * for seconds. */
#define PATIENCE_MS 60000

static uint8_t page[PAGE_BYTES];
static atomic_int pins_out, streams_open, watch_value, deferred_running;
static atomic_bool deferred_hold;

static inline quire_status reply(const struct qr_request *request, const void *bytes, size_t n,
                                 size_t *reply_bytes)
{
    memcpy(request->scratch->reply, bytes, n);
    *reply_bytes = n;
    return QUIRE_OK;
}

/* Sends the message back; "fail" fails. */
static inline quire_status echo(void *service, const struct qr_request *request,
                                size_t *reply_bytes, struct qr_error *e)
{
    struct qr_wire_cursor cursor = qr_wire_cursor_all(request->fragments, request->count);
    const size_t n = (size_t)cursor.bytes;
    (void)service;

    assert(qr_wire_cursor_read(&cursor, request->scratch->reply, n));
    *reply_bytes = n;
    if (n == 4 && !memcmp(request->scratch->reply, "fail", 4)) {
        qr_error_set(e, QUIRE_EGAP, "a gap after %d", 7);
        e->length = 7;
        return QUIRE_EGAP;
    }
    return QUIRE_OK;
}

/* Runs until released or canceled. */
static inline quire_status slow(void *service, const struct qr_request *request,
                                size_t *reply_bytes, struct qr_error *e)
{
    (void)service;
    atomic_fetch_add(&deferred_running, 1);
    while (atomic_load(&deferred_hold) && !*request->canceled)
        usleep(1000);
    atomic_fetch_sub(&deferred_running, 1);
    if (*request->canceled)
        return qr_error_set(e, QUIRE_ECANCELED, "canceled");
    return reply(request, "done", 4, reply_bytes);
}

static inline quire_status watched(void *service, const struct qr_request *request,
                                   size_t *reply_bytes, struct qr_error *e)
{
    const uint8_t value = (uint8_t)atomic_load(&watch_value);
    (void)service;
    (void)e;
    return reply(request, &value, 1, reply_bytes);
}

/* A stream of as many pages as the request's first four bytes say. */
static inline quire_status pages_open(void *service, const struct qr_request *request,
                                      void **out, struct qr_error *e)
{
    struct qr_wire_cursor cursor = qr_wire_cursor_all(request->fragments, request->count);
    uint32_t *left = malloc(sizeof(*left));
    (void)service;

    assert(left);
    if (!qr_wire_cursor_read(&cursor, left, sizeof(*left))) {
        free(left);
        return qr_error_set(e, QUIRE_EINVAL, "no count");
    }
    atomic_fetch_add(&streams_open, 1);
    *out = left;
    return QUIRE_OK;
}

static inline quire_status pages_next(void *service, void *state, struct qr_chunk *chunk,
                                      bool *more_out, struct qr_error *e)
{
    uint32_t *left = state;
    const struct qr_range range = {page, PAGE_BYTES};
    (void)service;
    (void)e;

    while (*left && qr_chunk_has_room(chunk) && chunk->bytes < (1u << 20)) {
        atomic_fetch_add(&pins_out, 1);
        assert(qr_chunk_pinned(chunk, (const uint8_t *)"head", 4, &range, 1, page));
        --*left;
    }
    *more_out = *left > 0;
    return QUIRE_OK;
}

static inline void pages_close(void *service, void *state)
{
    (void)service;
    free(state);
    atomic_fetch_sub(&streams_open, 1);
}

static const struct qr_stream_ops pages = {pages_open, pages_next, pages_close};

static const struct qr_method methods[] = {
    {.path = "/t/Echo", .kind = QR_METHOD_UNARY, .handle = echo},
    {.path = "/t/Slow", .kind = QR_METHOD_DEFERRED, .handle = slow},
    {.path = "/t/Pages", .kind = QR_METHOD_STREAM, .stream = &pages},
    {.path = "/t/Talk", .kind = QR_METHOD_CONVERSATION, .handle = echo},
    {.path = "/t/Watch", .kind = QR_METHOD_WATCH, .always = true, .handle = watched},
};

static inline quire_status identify(void *service, const char *peer, uint32_t *ns_out,
                                    struct qr_error *e)
{
    (void)service;
    (void)e;
    assert(!strncmp(peer, "ipv4:127.0.0.1:", 15));
    *ns_out = 0;
    return QUIRE_OK;
}

static inline void release(void *service, void *pin)
{
    (void)service;
    assert(pin == page);
    atomic_fetch_sub(&pins_out, 1);
}

struct fixture {
    struct qr_rpc *rpc;
    struct raw_client client;
    char target[32];
};

static inline struct qr_rpc_config config_of(void)
{
    return (struct qr_rpc_config){.methods = methods,
                                  .method_count = ARRAY_LEN(methods),
                                  .identify = identify,
                                  .release = release,
                                  .threads = 1,
                                  .calls_max = CALLS_MAX,
                                  .pins_max = 16,
                                  .deferred_threads = 1,
                                  .deferred_max = 1,
                                  .message_bytes_max = 1u << 20,
                                  .wire_memory_bytes = 64u << 20,
                                  .stall_ms = PATIENCE_MS,
                                  .handshake_ms = PATIENCE_MS};
}

static inline void start(struct fixture *f, const struct qr_rpc_config *config)
{
    uint16_t port = 0;
    struct qr_error e = {0};

    assert_ok(qr_rpc_create(config, &f->rpc, &e));
    assert_ok(qr_rpc_bind(f->rpc, "127.0.0.1:0", &port, &e));
    assert_ok(qr_rpc_start(f->rpc, &e));
    snprintf(f->target, sizeof(f->target), "127.0.0.1:%u", port);
    raw_open(&f->client, f->target);
}

static inline void stop(struct fixture *f)
{
    assert_true(qr_rpc_drain(f->rpc, 0, PATIENCE_MS));
    raw_close(&f->client);
    qr_rpc_destroy(&f->rpc);
    assert_int_equal(atomic_load(&pins_out), 0);
    assert_int_equal(atomic_load(&streams_open), 0);
}

static inline void wait_until_zero(atomic_int *value)
{
    const uint64_t end_ms = qr_clock_ms() + PATIENCE_MS;

    while (atomic_load(value) && qr_clock_ms() < end_ms)
        usleep(1000);
    assert_int_equal(atomic_load(value), 0);
}

#endif
