/* SPDX-License-Identifier: Apache-2.0
 *
 * The server dies under the client: calls under way end with EUNAVAILABLE and a
 * text that names the server, nothing hangs, and the same client goes on with the
 * next server, where sessions of the one before are unknown.
 */
#include "client/quire.h"
#include "quired.h"

#define TOKENS 4096
#define HEADS 8
#define DIM 128

static struct quired server;
static quire_client *client;
static uint16_t *key, *value;

static quire_session *open_session(void)
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
    options.flags = QUIRE_OPEN_CREATE | QUIRE_OPEN_WRITE;
    options.fingerprint = fingerprint;
    assert_ok(quire_session_open(client, "s", &options, &session));
    return session;
}

static quire_status append_all(quire_session *session)
{
    const void *keys[] = {key}, *values[] = {value};
    const struct quire_append append = {
        .tokens = TOKENS, .layers = 1, .dtype = QUIRE_F16, .key = keys, .value = values};

    return quire_append(session, &append, NULL);
}

static quire_status fetch_submit(quire_session *session, quire_op **op)
{
    static void *keys[1], *values[1];
    keys[0] = key;
    values[0] = value;
    const struct quire_fetch fetch = {
        .tokens = TOKENS, .layers = 1, .dtype = QUIRE_F16, .key = keys, .value = values};

    return quire_fetch_submit(session, &fetch, op);
}

static int setup(void **state)
{
    (void)state;
    key = calloc((size_t)TOKENS * HEADS * DIM, 2);
    value = calloc((size_t)TOKENS * HEADS * DIM, 2);
    quired_folder(&server);
    quired_start(&server, NULL);
    return quire_client_open(server.target, NULL, &client);
}

static int teardown(void **state)
{
    (void)state;
    quire_client_close(&client);
    quired_stop(&server);
    quired_clean(&server);
    free(key);
    free(value);
    return 0;
}

static void kill_server(void)
{
    assert_ok(kill(server.pid, SIGKILL));
    assert_int_equal(quired_wait(&server), 1000 + SIGKILL);
}

static void start_again(void)
{
    char path[96];

    snprintf(path, sizeof(path), "%s/s", server.folder);
    (void)unlink(path);
    quired_start(&server, NULL);
}

static void calls_under_way_end_as_unavailable(void **state)
{
    quire_op *op;
    quire_session *session = open_session();

    (void)state;
    assert_ok(append_all(session));
    assert_ok(kill(server.pid, SIGSTOP)); /* so that it surely dies in the middle */
    assert_ok(fetch_submit(session, &op));
    assert_status(QUIRE_ETIMEOUT, quire_op_wait(op, 50));
    kill_server();
    assert_status(QUIRE_EUNAVAILABLE, quire_op_wait(op, 10000));
    assert_non_null(strstr(quire_op_error(op)->text, server.target));
    quire_op_free(&op);
    assert_status(QUIRE_EUNAVAILABLE, append_all(session));
    start_again();
    quire_session_close(&session);
}

static void the_next_server_does_not_know_the_session(void **state)
{
    quire_session *session = open_session();
    quire_status status = QUIRE_EUNAVAILABLE;

    (void)state;
    assert_ok(append_all(session));
    kill_server();
    start_again();
    for (int i = 0; i < 50 && status == QUIRE_EUNAVAILABLE; i++) {
        status = append_all(session);
        usleep(100000); /* until the connection is made again */
    }
    assert_int_equal(status, QUIRE_ENOTFOUND);
    quire_session_close(&session);
    session = open_session();
    assert_ok(append_all(session));
    quire_session_close(&session);
}

static void a_stopped_server_costs_no_more_than_the_deadline(void **state)
{
    quire_op *op;
    quire_session *session = open_session();
    const void *keys[] = {key}, *values[] = {value};
    const struct quire_append append = {.tokens = TOKENS,
                                        .layers = 1,
                                        .dtype = QUIRE_F16,
                                        .key = keys,
                                        .value = values,
                                        .timeout_ms = 200};

    (void)state;
    assert_ok(kill(server.pid, SIGSTOP));
    assert_ok(quire_append_submit(session, &append, &op));
    assert_status(QUIRE_ETIMEOUT, quire_op_wait(op, 10000));
    assert_int_equal(quire_op_error(op)->status, QUIRE_ETIMEOUT);
    assert_non_null(strstr(quire_op_error(op)->text, "200 ms"));
    assert_ok(kill(server.pid, SIGCONT));
    quire_op_free(&op);
    quire_session_close(&session);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(calls_under_way_end_as_unavailable),
        TEST(the_next_server_does_not_know_the_session),
        TEST(a_stopped_server_costs_no_more_than_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
