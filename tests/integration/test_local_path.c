/* SPDX-License-Identifier: Apache-2.0
 *
 * The same-host path between a real quired and libquire: found from a unix socket and from TCP,
 * the same bytes as without it, done without where it is off or used up, given back when a
 * client or the server dies, and no way around a deadline.
 */
#include "client/quire.h"
#include "quired.h"

#define TOKENS 4096
#define HEADS 8
#define DIM 128
#define VALUES ((size_t)TOKENS * HEADS * DIM)

static struct quired server;
static uint16_t *key, *value, *key_out, *value_out;

static int setup(void **state)
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

static int teardown(void **state)
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

static quire_client *open_client(const char *target, bool local)
{
    struct quire_client_options options;
    quire_client *client = NULL;

    quire_client_options_init(&options);
    options.local = local;
    assert_ok(quire_client_open(target, &options, &client));
    return client;
}

static quire_session *open_session(quire_client *client, const char *name)
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
static quire_status append(quire_session *session, uint32_t from, uint32_t to)
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
static quire_status submit_range(quire_session *session, uint32_t from, uint32_t count,
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
static quire_status fetch_submit(quire_session *session, uint32_t timeout_ms, quire_op **op)
{
    static struct into into;

    return submit_range(session, 0, TOKENS, timeout_ms, &into, op);
}

static void fetch(quire_session *session)
{
    quire_op *op = NULL;

    assert_ok(fetch_submit(session, 0, &op));
    const quire_status status = quire_op_wait(op, UINT32_MAX);
    if (status)
        print_error("%s\n", quire_op_error(op)->text);
    assert_int_equal(status, QUIRE_OK);
    quire_op_free(&op);
}

static double metric(quire_client *client, const char *name)
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

static void wait_for(quire_client *client, const char *name, double wanted)
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

static void assert_path(quire_client *client, bool local, const char *why)
{
    char text[256];

    assert_int_equal(quire_client_is_local(client, text, sizeof(text)), local);
    if (!strstr(text, why))
        fail_msg("\"%s\" does not say \"%s\"", text, why);
}

static const char *tcp_of(const struct quired *q)
{
    static char target[64];
    const char *at = strstr(q->addresses, "127.0.0.1:");

    assert_non_null(at);
    snprintf(target, sizeof(target), "%.*s", (int)strcspn(at, "\n"), at);
    return target;
}

/* ---- the same, whichever way ------------------------------------------------------------- */

static uint64_t digest(const uint16_t *rows)
{
    uint64_t h = 1469598103934665603u;

    for (size_t i = 0; i < VALUES; i++)
        h = (h ^ rows[i]) * 1099511628211u;
    return h;
}

static void every_way_brings_the_same_bytes(void **state)
{
    const char *const flags[] = {"--listen", "127.0.0.1:0", NULL};
    uint64_t keys[3], values[3];

    (void)state;
    quired_start(&server, flags);
    for (int way = 0; way < 3; way++) {
        char name[16];
        quire_client *client = open_client(way == 1 ? tcp_of(&server) : server.target, way > 0);
        assert_path(client, way > 0, way ? "" : "switched off");
        snprintf(name, sizeof(name), "s%d", way);
        quire_session *session = open_session(client, name);
        const double before = metric(client, "server.local_calls");
        assert_ok(append(session, 0, TOKENS - 3));
        for (uint32_t t = TOKENS - 3; t < TOKENS; t++)
            assert_ok(append(session, t, t + 1));
        assert_ok(append(session, 100, 300)); /* a repeat is compared, not added */
        fetch(session);
        keys[way] = digest(key_out);
        values[way] = digest(value_out);
        assert_int_equal(metric(client, "server.local_calls") - before, way > 0 ? 6 : 0);
        assert_int_equal(metric(client, "server.local_clients"), way > 0);
        quire_session_close(&session);
        quire_client_close(&client);
    }
    for (int way = 1; way < 3; way++) {
        assert_true(keys[way] == keys[0]);
        assert_true(values[way] == values[0]);
    }
}

static void errors_come_with_their_details(void **state)
{
    (void)state;
    quired_start(&server, NULL);
    quire_client *client = open_client(server.target, true);
    quire_session *session = open_session(client, "s");

    assert_path(client, true, "");
    assert_status(QUIRE_EGAP, append(session, 10, 11));
    assert_non_null(strstr(quire_last_error()->text, "append at 10"));
    assert_int_equal(quire_last_error()->length, 0);
    assert_ok(append(session, 0, 10));
    assert_status(QUIRE_EGAP, append(session, 2000, TOKENS)); /* a stream of several messages */
    assert_int_equal(quire_last_error()->length, 10);
    assert_ok(append(session, 10, TOKENS)); /* the connection is as good as before */
    fetch(session);
    assert_path(client, true, "");
    quire_session_close(&session);
    quire_client_close(&client);
}

/* ---- doing without ----------------------------------------------------------------------- */

static void a_server_that_has_none_left_says_so(void **state)
{
    const char *const flags[] = {"--local-memory", "7MiB", "--local-ring", "4MiB", NULL};

    (void)state;
    quired_start(&server, flags);
    quire_client *first = open_client(server.target, true);
    quire_client *second = open_client(server.target, true);
    assert_path(first, true, "");
    assert_path(second, false, "no room for one more local client");
    assert_int_equal(metric(second, "server.local_refused"), 1);
    assert_true(metric(second, "server.local_memory") <= 7 << 20);
    quire_session *session = open_session(second, "s");
    assert_ok(append(session, 0, TOKENS));
    fetch(session);
    quire_client_close(&first);
    wait_for(second, "server.local_clients", 0);
    usleep(1100000); /* it asks again at most once a second */
    quire_session *again = open_session(second, "t");
    assert_path(second, true, "");
    fetch(session);
    assert_true(metric(second, "server.local_calls") > 0);
    quire_session_close(&again);
    quire_session_close(&session);
    quire_client_close(&second);
}

static void a_server_may_not_offer_it(void **state)
{
    const char *const flags[] = {"--local", "off", NULL};

    (void)state;
    quired_start(&server, flags);
    quire_client *client = open_client(server.target, true);
    quire_session *session = open_session(client, "s");
    assert_path(client, false, "does not offer");
    assert_ok(append(session, 0, TOKENS));
    fetch(session);
    quire_session_close(&session);
    quire_client_close(&client);
}

/* ---- deaths ------------------------------------------------------------------------------ */

/* A process of its own that fetches and appends until it is killed; it has done so once when
 * this returns. */
static pid_t start_worker(int number)
{
    int ready[2];
    char name[16], byte = 0;

    assert_ok(pipe2(ready, O_CLOEXEC));
    const pid_t pid = fork();
    if (pid) {
        close(ready[1]);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    quire_client *client = open_client(server.target, true);
    snprintf(name, sizeof(name), "w%d", number);
    quire_session *session = open_session(client, name);
    for (;;) {
        if (append(session, 0, TOKENS))
            _exit(1);
        fetch(session);
        if (ready[1] >= 0)
            assert_int_equal(write(ready[1], &byte, 1), 1);
        close(ready[1]);
        ready[1] = -1;
    }
}

static void a_killed_client_gives_everything_back(void **state)
{
    (void)state;
    quired_start(&server, NULL);
    for (int i = 0; i < 6; i++) {
        const pid_t pid = start_worker(i);
        assert_true(pid > 0);
        usleep(7000 * (unsigned)i); /* somewhere in the middle */
        assert_ok(kill(pid, SIGKILL));
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
    }
    quire_client *client = open_client(server.target, true);
    wait_for(client, "server.local_clients", 1); /* this one */
    wait_for(client, "server.local_calls_live", 0);
    wait_for(client, "server.pins", 0);
    assert_true(metric(client, "server.local_calls") >= 12);
    quire_session *session = open_session(client, "s");
    assert_ok(append(session, 0, TOKENS));
    fetch(session);
    quire_session_close(&session);
    quire_client_close(&client);
}

static void a_killed_server_is_unavailable_and_the_next_one_local(void **state)
{
    char path[128];
    quire_op *op = NULL;

    (void)state;
    quired_start(&server, NULL);
    quire_client *client = open_client(server.target, true);
    quire_session *session = open_session(client, "s");
    assert_ok(append(session, 0, TOKENS));
    assert_ok(kill(server.pid, SIGSTOP)); /* so that it surely dies in the middle */
    assert_ok(fetch_submit(session, 0, &op));
    assert_status(QUIRE_ETIMEOUT, quire_op_wait(op, 50));
    assert_ok(kill(server.pid, SIGKILL));
    assert_int_equal(quired_wait(&server), 1000 + SIGKILL);
    assert_status(QUIRE_EUNAVAILABLE, quire_op_wait(op, 10000));
    quire_op_free(&op);
    assert_path(client, false, "has ended");
    quire_session_close(&session);

    snprintf(path, sizeof(path), "%s/s", server.folder);
    (void)unlink(path);
    quired_start(&server, NULL);
    usleep(1100000);
    for (int i = 0; i < 50 && quire_client_ping(client); i++)
        usleep(100000);
    session = open_session(client, "s");
    assert_path(client, true, "");
    assert_ok(append(session, 0, TOKENS));
    fetch(session);
    quire_session_close(&session);
    quire_client_close(&client);
}

static void a_server_that_drains_ends_well(void **state)
{
    (void)state;
    quired_start(&server, NULL);
    quire_client *client = open_client(server.target, true);
    quire_session *session = open_session(client, "s");
    assert_ok(append(session, 0, TOKENS));
    quired_stop(&server);
    assert_status(QUIRE_EUNAVAILABLE, append(session, 0, 1));
    quire_session_close(&session);
    quire_client_close(&client);
}

/* ---- waiting ----------------------------------------------------------------------------- */

static void a_stopped_server_costs_no_more_than_the_deadline(void **state)
{
    quire_op *fetch_op = NULL, *append_op = NULL;
    const void *keys[] = {key}, *values[] = {value};
    struct quire_append args = {.tokens = TOKENS,
                                .layers = 1,
                                .dtype = QUIRE_F16,
                                .key = keys,
                                .value = values,
                                .timeout_ms = 200};

    (void)state;
    quired_start(&server, NULL);
    quire_client *client = open_client(server.target, true);
    quire_session *session = open_session(client, "s");
    assert_ok(append(session, 0, TOKENS));
    assert_ok(kill(server.pid, SIGSTOP));
    assert_ok(fetch_submit(session, 200, &fetch_op));
    assert_ok(quire_append_submit(session, &args, &append_op));
    assert_status(QUIRE_ETIMEOUT, quire_op_wait(fetch_op, 10000));
    assert_non_null(strstr(quire_op_error(fetch_op)->text, "200 ms"));
    assert_status(QUIRE_ETIMEOUT, quire_op_wait(append_op, 10000));
    assert_int_equal(quire_op_error(append_op)->status, QUIRE_ETIMEOUT);
    quire_op_free(&fetch_op);
    quire_op_free(&append_op);

    args.timeout_ms = 30000;
    assert_ok(quire_append_submit(session, &args, &append_op));
    assert_ok(fetch_submit(session, 30000, &fetch_op));
    quire_op_cancel(append_op);
    quire_op_cancel(fetch_op);
    assert_status(QUIRE_ECANCELED, quire_op_wait(append_op, 10000));
    assert_status(QUIRE_ECANCELED, quire_op_wait(fetch_op, 10000));
    quire_op_free(&append_op);
    quire_op_free(&fetch_op);
    assert_ok(kill(server.pid, SIGCONT));

    wait_for(client, "server.local_calls_live", 0);
    assert_path(client, true, ""); /* and goes on as before */
    fetch(session);
    quire_session_close(&session);
    quire_client_close(&client);
}

/* More operations at once than the path has numbers for calls. */
static void many_at_once_all_end(void **state)
{
    enum { COUNT = 80, EACH = TOKENS / COUNT };
    struct into into[COUNT];
    quire_op *ops[COUNT];

    (void)state;
    quired_start(&server, NULL);
    quire_client *client = open_client(server.target, true);
    quire_session *session = open_session(client, "s");
    assert_ok(append(session, 0, TOKENS));
    for (uint32_t i = 0; i < COUNT; i++)
        assert_ok(submit_range(session, i * EACH, EACH, 0, &into[i], &ops[i]));
    for (int i = 0; i < COUNT; i += 7)
        quire_op_cancel(ops[i]);
    for (int i = 0; i < COUNT; i++) {
        const quire_status status = quire_op_wait(ops[i], UINT32_MAX);
        assert_true(status == QUIRE_OK || (status == QUIRE_ECANCELED && i % 7 == 0));
        quire_op_free(&ops[i]);
    }
    wait_for(client, "server.local_calls_live", 0);
    wait_for(client, "server.pins", 0);
    quire_session_close(&session);
    quire_client_close(&client);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(every_way_brings_the_same_bytes),
        TEST(errors_come_with_their_details),
        TEST(a_server_that_has_none_left_says_so),
        TEST(a_server_may_not_offer_it),
        TEST(a_killed_client_gives_everything_back),
        TEST(a_killed_server_is_unavailable_and_the_next_one_local),
        TEST(a_server_that_drains_ends_well),
        TEST(a_stopped_server_costs_no_more_than_the_deadline),
        TEST(many_at_once_all_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
