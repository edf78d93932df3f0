/* SPDX-License-Identifier: Apache-2.0
 *
 * The call machine: replies, errors with details, conversations, deferred calls,
 * limits.
 */
#include "rpc_fixture.h"

#include <grpc/support/log.h>

#include "storage/base/log.h"

static void a_message_is_answered(void **state)
{
    struct fixture f;
    struct raw_call call;
    char out[64];
    const struct qr_rpc_config config = config_of();
    (void)state;

    start(&f, &config);
    for (int i = 0; i < 200; i++) { /* more than there are contexts */
        assert_int_equal(raw_unary(&f.client, &call, "/t/Echo", "hello", 5, out, 64), 5);
        assert_memory_equal(out, "hello", 5);
        raw_end(&call);
    }
    assert_int_equal(raw_unary(&f.client, &call, "/t/Echo", "", 0, out, 64), 0);
    raw_end(&call);
    stop(&f);
}

static void an_error_carries_its_details(void **state)
{
    struct fixture f;
    struct raw_call call;
    char out[64];
    uint8_t packed[QR_WIRE_STATUS_BYTES_MAX];
    struct qr_error e = {0};
    const struct qr_rpc_config config = config_of();
    (void)state;

    start(&f, &config);
    assert_int_equal(raw_unary(&f.client, &call, "/t/Echo", "fail", 4, out, 64), -1);
    assert_int_equal(call.status, GRPC_STATUS_FAILED_PRECONDITION);
    assert_string_equal(call.text, "a gap after 7");
    const size_t n = raw_trailer(&call, QR_WIRE_STATUS_KEY, packed, sizeof(packed));
    assert_true(qr_wire_status_parse(packed, n, &e));
    assert_int_equal(e.status, QUIRE_EGAP);
    assert_int_equal(e.length, 7);
    assert_string_equal(e.text, "a gap after 7");
    raw_end(&call);
    stop(&f);
}

static void an_unknown_method_is_unimplemented(void **state)
{
    struct fixture f;
    struct raw_call call;
    char out[64];
    const struct qr_rpc_config config = config_of();
    (void)state;

    start(&f, &config);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(raw_unary(&f.client, &call, "/t/No\x01pe", "x", 1, out, 64), -1);
        assert_int_equal(call.status, GRPC_STATUS_UNIMPLEMENTED);
        assert_non_null(strstr(call.text, "unknown method /t/No?pe"));
        raw_end(&call);
    }
    stop(&f);
}

static void an_oversized_message_is_refused(void **state)
{
    struct fixture f;
    struct raw_call call;
    char out[64];
    const struct qr_rpc_config config = config_of();
    char *big = calloc(1, (1u << 20) + 1);
    (void)state;

    assert_non_null(big);
    start(&f, &config);
    assert_int_equal(raw_unary(&f.client, &call, "/t/Echo", big, (1u << 20) + 1, out, 64), -1);
    assert_int_equal(call.status, GRPC_STATUS_RESOURCE_EXHAUSTED);
    raw_end(&call);
    assert_int_equal(raw_unary(&f.client, &call, "/t/Echo", big, 1u << 20, out, 64), 1 << 20);
    raw_end(&call);
    stop(&f);
    free(big);
}

static void a_conversation_answers_in_order_and_ends_at_an_error(void **state)
{
    struct fixture f;
    struct raw_call call;
    char out[64];
    const struct qr_rpc_config config = config_of();
    (void)state;

    start(&f, &config);
    raw_start(&f.client, &call, "/t/Talk", PATIENCE_MS);
    for (int c = 'a'; c <= 'z'; c++)
        assert_true(raw_send(&call, &(char){(char)c}, 1));
    for (int c = 'a'; c <= 'z'; c++) {
        assert_int_equal(raw_read(&call, out, 64), 1);
        assert_int_equal(out[0], c);
    }
    raw_send(&call, "fail", 4);
    assert_int_equal(raw_read(&call, out, 64), -1);
    assert_int_equal(raw_status(&call), GRPC_STATUS_FAILED_PRECONDITION);
    raw_end(&call);

    raw_start(&f.client, &call, "/t/Talk", PATIENCE_MS);
    raw_send_close(&call);
    assert_int_equal(raw_status(&call), GRPC_STATUS_OK);
    raw_end(&call);
    stop(&f);
}

static void a_deferred_call_is_cancelled_with_its_caller(void **state)
{
    struct fixture f;
    struct raw_call call;
    char out[64];
    const struct qr_rpc_config config = config_of();
    (void)state;

    start(&f, &config);
    atomic_store(&deferred_hold, true);
    raw_start(&f.client, &call, "/t/Slow", PATIENCE_MS);
    raw_send(&call, "x", 1);
    raw_send_close(&call);
    while (!atomic_load(&deferred_running))
        usleep(1000);
    raw_end(&call);
    wait_until_zero(&deferred_running);
    atomic_store(&deferred_hold, false);
    assert_int_equal(raw_unary(&f.client, &call, "/t/Slow", "x", 1, out, 64), 4);
    raw_end(&call);
    stop(&f);
}

static void the_deferred_queue_is_bounded(void **state)
{
    struct fixture f;
    struct raw_call calls[3];
    struct qr_rpc_stat stat;
    const struct qr_rpc_config config = config_of();
    (void)state;

    start(&f, &config);
    atomic_store(&deferred_hold, true);
    for (int i = 0; i < 3; i++) { /* one runs, one waits, one is refused */
        raw_start(&f.client, &calls[i], "/t/Slow", PATIENCE_MS);
        raw_send(&calls[i], "x", 1);
        raw_send_close(&calls[i]);
        while (i == 0 && !atomic_load(&deferred_running))
            usleep(1000);
        do {
            usleep(1000);
            qr_rpc_stat(f.rpc, &stat);
        } while (stat.calls < (uint64_t)i + 1);
    }
    assert_int_equal(raw_status(&calls[2]), GRPC_STATUS_RESOURCE_EXHAUSTED);
    atomic_store(&deferred_hold, false);
    for (int i = 0; i < 3; i++) {
        char out[8];
        assert_int_equal(raw_read(&calls[i], out, 8), i < 2 ? 4 : -1);
        raw_end(&calls[i]);
    }
    stop(&f);
}

static void calls_over_the_limit_are_refused(void **state)
{
    struct fixture f;
    struct raw_client other; /* HTTP/2 would make the same connection wait */
    struct raw_call talks[CALLS_MAX], call;
    struct qr_rpc_stat stat;
    char out[64];
    const struct qr_rpc_config config = config_of();
    (void)state;

    start(&f, &config);
    raw_open(&other, f.target);
    for (int i = 0; i < CALLS_MAX; i++) {
        raw_start(&f.client, &talks[i], "/t/Talk", PATIENCE_MS);
        raw_send(&talks[i], "x", 1);
        assert_int_equal(raw_read(&talks[i], out, 64), 1);
    }
    for (int i = 0; i < 50; i++) {
        assert_int_equal(raw_unary(&other, &call, "/t/Echo", "x", 1, out, 64), -1);
        assert_int_equal(call.status, GRPC_STATUS_RESOURCE_EXHAUSTED);
        raw_end(&call);
    }
    for (int i = 0; i < CALLS_MAX; i++) {
        raw_send_close(&talks[i]);
        assert_int_equal(raw_status(&talks[i]), GRPC_STATUS_OK);
        raw_end(&talks[i]);
    }
    do {
        usleep(1000);
        qr_rpc_stat(f.rpc, &stat);
    } while (stat.live);
    assert_int_equal(raw_unary(&other, &call, "/t/Echo", "x", 1, out, 64), 1);
    raw_end(&call);
    raw_close(&other);
    stop(&f);
}

static void an_address_in_use_is_refused(void **state)
{
    struct fixture f;
    struct qr_rpc *second = NULL;
    struct qr_error e = {0};
    char address[32];
    uint16_t port = 0;
    const struct qr_rpc_config config = config_of();
    (void)state;

    assert_ok(qr_rpc_create(&config, &f.rpc, &e));
    assert_ok(qr_rpc_bind(f.rpc, "127.0.0.1:0", &port, &e));
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    assert_ok(qr_rpc_create(&config, &second, &e));
    assert_status(QUIRE_EUNAVAILABLE, qr_rpc_bind(second, address, &port, &e));
    assert_non_null(strstr(e.text, address));
    qr_rpc_destroy(&second);
    qr_rpc_destroy(&f.rpc);
    assert_null(f.rpc);
}

/* It quotes strangers: their bytes must not break the log's lines. */
static void what_grpc_says_is_a_line_of_the_log(void **state)
{
    struct fixture f;
    char line[1024];
    int ends[2];
    const struct qr_rpc_config config = config_of();
    (void)state;

    start(&f, &config);
    assert_ok(pipe(ends));
    qr_log_configure(QR_LOG_INFO, QR_LOG_JSON, ends[1]);
    gpr_log(GPR_ERROR, "value=%s", "\x86\"}\n{\"evil\":1");
    qr_log_configure(QR_LOG_INFO, QR_LOG_TEXT, STDERR_FILENO);
    close(ends[1]);
    const ssize_t n = read(ends[0], line, sizeof(line) - 1);
    close(ends[0]);
    assert_true(n > 0);
    line[n] = 0;
    assert_non_null(strstr(line, "\"event\":\"grpc.said\""));
    assert_non_null(strstr(line, "\"text\":\"value=?\\\"}\\u000a{\\\"evil\\\":1\"}\n"));
    stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_is_answered),
        cmocka_unit_test(an_error_carries_its_details),
        cmocka_unit_test(what_grpc_says_is_a_line_of_the_log),
        cmocka_unit_test(an_unknown_method_is_unimplemented),
        cmocka_unit_test(an_oversized_message_is_refused),
        cmocka_unit_test(a_conversation_answers_in_order_and_ends_at_an_error),
        cmocka_unit_test(a_deferred_call_is_cancelled_with_its_caller),
        cmocka_unit_test(the_deferred_queue_is_bounded),
        cmocka_unit_test(calls_over_the_limit_are_refused),
        cmocka_unit_test(an_address_in_use_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
