/* SPDX-License-Identifier: Apache-2.0
 *
 * A drain lets calls finish, refuses new ones with a hint, and cancels what is left
 * at its deadline.
 */
#include "rpc_fixture.h"

struct drain {
    struct qr_rpc *rpc;
    uint32_t timeout_ms;
    bool complete;
};

static void *run_drain(void *arg)
{
    struct drain *drain = arg;

    drain->complete = qr_rpc_drain(drain->rpc, 200, drain->timeout_ms);
    return NULL;
}

static void a_drain_lets_calls_finish_and_refuses_new_ones(void **state)
{
    struct fixture f;
    struct raw_call slow_call, call;
    pthread_t thread;
    char out[64];
    uint8_t packed[QR_WIRE_STATUS_BYTES_MAX];
    struct qr_error e = {0};
    const struct qr_rpc_config config = config_of();
    (void)state;

    start(&f, &config);
    atomic_store(&deferred_hold, true);
    raw_start(&f.client, &slow_call, "/t/Slow", PATIENCE_MS);
    raw_send(&slow_call, "x", 1);
    raw_send_close(&slow_call);
    while (!atomic_load(&deferred_running))
        usleep(1000);

    struct drain drain = {.rpc = f.rpc, .timeout_ms = PATIENCE_MS};
    assert_ok(pthread_create(&thread, NULL, run_drain, &drain));
    while (raw_unary(&f.client, &call, "/t/Echo", "x", 1, out, 64) >= 0)
        raw_end(&call); /* until the drain has begun */
    assert_int_equal(call.status, GRPC_STATUS_UNAVAILABLE);
    const size_t n = raw_trailer(&call, QR_WIRE_STATUS_KEY, packed, sizeof(packed));
    assert_true(qr_wire_status_parse(packed, n, &e));
    assert_int_equal(e.status, QUIRE_EUNAVAILABLE);
    assert_true(e.retry_after_ms > 0);
    raw_end(&call);

    atomic_store(&deferred_hold, false);
    assert_int_equal(raw_read(&slow_call, out, 64), 4);
    assert_int_equal(raw_status(&slow_call), GRPC_STATUS_OK);
    raw_end(&slow_call);
    pthread_join(thread, NULL);
    assert_true(drain.complete);
    raw_close(&f.client);
    qr_rpc_destroy(&f.rpc);
}

static void a_drain_cancels_at_its_deadline(void **state)
{
    struct fixture f;
    struct raw_call call, talk;
    const struct qr_rpc_config config = config_of();
    (void)state;

    start(&f, &config);
    atomic_store(&deferred_hold, true);
    raw_start(&f.client, &call, "/t/Slow", PATIENCE_MS);
    raw_send(&call, "x", 1);
    raw_send_close(&call);
    raw_start(&f.client, &talk, "/t/Talk", PATIENCE_MS);
    raw_send(&talk, "y", 1);
    assert_int_equal(raw_read(&talk, &(char){0}, 1), 1);
    while (!atomic_load(&deferred_running))
        usleep(1000);
    assert_true(qr_rpc_drain(f.rpc, 0, 100));
    assert_int_not_equal(raw_status(&call), GRPC_STATUS_OK);
    assert_int_not_equal(raw_status(&talk), GRPC_STATUS_OK);
    raw_end(&call);
    raw_end(&talk);
    atomic_store(&deferred_hold, false);
    raw_close(&f.client);
    qr_rpc_destroy(&f.rpc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drain_lets_calls_finish_and_refuses_new_ones),
        cmocka_unit_test(a_drain_cancels_at_its_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
