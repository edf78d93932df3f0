/* SPDX-License-Identifier: Apache-2.0
 *
 * A quired and clients of it on the same host, with data to append and fetch: what the tests of
 * the same-host path share.
 */
#ifndef QR_LOCAL_PATH_H
#define QR_LOCAL_PATH_H

#include "client/quire.h"
#include "quired.h"

#define TOKENS 4096
#define HEADS 8
#define DIM 128
#define VALUES ((size_t)TOKENS * HEADS * DIM)

static struct quired server;
static uint16_t *key, *value, *key_out, *value_out;

static inline int setup(void **state)
{
    (void)state;
    key = malloc(VALUES * 2);
    value = malloc(VALUES * 2);
    key_out = malloc(VALUES * 2);
    value_out = malloc(VALUES * 2);
    for (size_t i = 0; i < VALUES; i++) { /* halves of -1 .. 1 */
        key[i] = (uint16_t)((i * 2654435761u >> 16 & 0x83ff) | 0x3800);
        value[i] = (uint16_t)((i * 40503u >> 4 & 0x83ff) | 0x3800);
    }
    quired_folder(&server);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    if (server.pid)
        quired_stop(&server);
    quired_clean(&server);
    free(key);
    free(value);
    free(key_out);
    free(value_out);
    return 0;
}

static inline quire_client *open_client(const char *target, bool local)
{
    struct quire_client_options options;
    quire_client *client = NULL;

    quire_client_options_init(&options);
    options.local = local;
    assert_ok(quire_client_open(target, &options, &client));
    return client;
}

static inline quire_session *open_session(quire_client *client, const char *name)
{
    static const struct quire_rope rope = {.type = QUIRE_ROPE_DEFAULT,
                                           .layout = QUIRE_ROPE_HALF,
                                           .rotary_dim = DIM,
                                           .theta = 10000};
    static const struct quire_layers layers = {.count = 1,
                                               .query_heads = HEADS,
                                               .kv_heads = HEADS,
                                               .key_dim = DIM,
                                               .value_dim = DIM,
                                               .rope_stored = QUIRE_ROPE_PRE};
    const struct quire_model model = {
        .name = "m", .layers = &layers, .layer_runs = 1, .ropes = &rope, .rope_count = 1};
    uint8_t fingerprint[32];
    struct quire_open_options options;
    quire_session *session = NULL;

    assert_ok(quire_model_register(client, &model, fingerprint));
    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_CREATE | QUIRE_OPEN_WRITE | QUIRE_OPEN_FORCE;
    options.fingerprint = fingerprint;
    assert_ok(quire_session_open(client, name, &options, &session));
    return session;
}

/* Tokens [from, to) of the data; to their own positions. */
static inline quire_status append(quire_session *session, uint32_t from, uint32_t to)
{
    const void *keys[] = {key + (size_t)from * HEADS * DIM};
    const void *values[] = {value + (size_t)from * HEADS * DIM};
    const struct quire_append args = {.position = from,
                                      .tokens = to - from,
                                      .layers = 1,
                                      .dtype = QUIRE_F16,
                                      .key = keys,
                                      .value = values};

    return quire_append(session, &args, NULL);
}

/* Where a fetch puts its rows: the library borrows the arrays until the fetch is done. */
struct into {
    void *keys[1], *values[1];
};

/* Tokens [from, +count) to their places in key_out and value_out. */
static inline quire_status submit_range(quire_session *session, uint32_t from, uint32_t count,
                                        uint32_t timeout_ms, struct into *into, quire_op **op)
{
    const size_t at = (size_t)from * HEADS * DIM, n = (size_t)count * HEADS * DIM;
    const struct quire_fetch args = {.position = from,
                                     .tokens = count,
                                     .layers = 1,
                                     .dtype = QUIRE_F16,
                                     .key = into->keys,
                                     .value = into->values,
                                     .timeout_ms = timeout_ms};

    into->keys[0] = key_out + at;
    into->values[0] = value_out + at;
    memset(key_out + at, 0, n * 2);
    memset(value_out + at, 0, n * 2);
    return quire_fetch_submit(session, &args, op);
}

/* Everything; one such fetch at a time. */
static inline quire_status fetch_submit(quire_session *session, uint32_t timeout_ms,
                                        quire_op **op)
{
    static struct into into;

    return submit_range(session, 0, TOKENS, timeout_ms, &into, op);
}

static inline void fetch(quire_session *session)
{
    quire_op *op = NULL;

    assert_ok(fetch_submit(session, 0, &op));
    const quire_status status = quire_op_wait(op, UINT32_MAX);
    if (status)
        print_error("%s\n", quire_op_error(op)->text);
    assert_int_equal(status, QUIRE_OK);
    quire_op_free(&op);
}

static inline double metric(quire_client *client, const char *name)
{
    static struct quire_metric metrics[256];
    size_t count = 0;

    assert_ok(quire_stat(client, metrics, ARRAY_LEN(metrics), &count));
    for (size_t i = 0; i < count; i++)
        if (!strcmp(metrics[i].name, name))
            return metrics[i].value;
    fail_msg("there is no metric %s", name);
    return 0;
}

static inline void wait_for(quire_client *client, const char *name, double wanted)
{
    double is = -1;

    for (int i = 0; i < 500; i++) {
        is = metric(client, name);
        if (is == wanted)
            return;
        usleep(10000);
    }
    fail_msg("%s is %g and does not become %g", name, is, wanted);
}

static inline void assert_path(quire_client *client, bool local, const char *why)
{
    char text[256];

    assert_int_equal(quire_client_is_local(client, text, sizeof(text)), local);
    if (!strstr(text, why))
        fail_msg("\"%s\" does not say \"%s\"", text, why);
}

static inline const char *tcp_of(const struct quired *q)
{
    static char target[64];
    const char *at = strstr(q->addresses, "127.0.0.1:");

    assert_non_null(at);
    snprintf(target, sizeof(target), "%.*s", (int)strcspn(at, "\n"), at);
    return target;
}

#endif
