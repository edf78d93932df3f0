/* SPDX-License-Identifier: Apache-2.0
 *
 * The same-host path between a real quired and libquire: found from a unix socket and from TCP,
 * the same bytes as without it, done without where it is off or used up, and no way around a
 * deadline.
 */
#include "local_path.h"

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
        TEST(a_stopped_server_costs_no_more_than_the_deadline),
        TEST(many_at_once_all_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
