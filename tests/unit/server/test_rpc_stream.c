/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams deliver everything, hold few pins, and give them back whatever the reader
 * does; watches hear of changes.
 */
#include "rpc_fixture.h"

static void a_stream_delivers_every_page_and_gives_pins_back(void **state)
{
    struct fixture f;
    struct raw_call call;
    const uint32_t count = 200;
    uint8_t *out = malloc(2u << 20);
    size_t total = 0;
    const struct qr_rpc_config config = config_of();
    (void)state;

    assert_non_null(out);
    for (size_t i = 0; i < PAGE_BYTES; i++)
        page[i] = (uint8_t)(i * 7);
    start(&f, &config);
    raw_start(&f.client, &call, "/t/Pages", PATIENCE_MS);
    raw_send(&call, &count, sizeof(count));
    raw_send_close(&call);
    for (long n; (n = raw_read(&call, out, 2u << 20)) >= 0; total += (size_t)n) {
        assert_int_equal((size_t)n % (PAGE_BYTES + 4), 0);
        for (size_t at = 0; at < (size_t)n; at += PAGE_BYTES + 4) {
            assert_memory_equal(out + at, "head", 4);
            assert_memory_equal(out + at + 4, page, PAGE_BYTES);
        }
    }
    assert_int_equal(raw_status(&call), GRPC_STATUS_OK);
    assert_int_equal(total, count * (PAGE_BYTES + 4));
    raw_end(&call);
    wait_until_zero(&pins_out);
    stop(&f);
    free(out);
}

static void an_empty_stream_ends_well(void **state)
{
    struct fixture f;
    struct raw_call call;
    const uint32_t none = 0;
    char out[64];
    const struct qr_rpc_config config = config_of();
    (void)state;

    start(&f, &config);
    assert_int_equal(raw_unary(&f.client, &call, "/t/Pages", &none, 4, out, 64), -1);
    assert_int_equal(call.status, GRPC_STATUS_OK);
    raw_end(&call);
    assert_int_equal(raw_unary(&f.client, &call, "/t/Pages", &none, 2, out, 64), -1);
    assert_int_equal(call.status, GRPC_STATUS_INVALID_ARGUMENT);
    raw_end(&call);
    stop(&f);
}

static void a_slow_reader_holds_few_pins_and_is_cancelled(void **state)
{
    struct fixture f;
    struct raw_call call;
    const uint32_t count = 10000;
    struct qr_rpc_config config = config_of();
    struct qr_rpc_stat stat;
    (void)state;

    config.stall_ms = 300;
    start(&f, &config);
    raw_start(&f.client, &call, "/t/Pages", PATIENCE_MS);
    raw_send(&call, &count, sizeof(count));
    raw_send_close(&call);
    const uint64_t end_ms = qr_clock_ms() + PATIENCE_MS;
    do { /* nobody reads */
        assert_in_range(atomic_load(&pins_out), 0, 16);
        qr_rpc_stat(f.rpc, &stat);
        usleep(1000);
    } while (!stat.stalled && qr_clock_ms() < end_ms);
    assert_int_equal(stat.stalled, 1);
    wait_until_zero(&streams_open);
    raw_end(&call);
    wait_until_zero(&pins_out);
    stop(&f);
}

static void a_reader_that_leaves_gives_pins_back(void **state)
{
    struct fixture f;
    struct raw_call call;
    const uint32_t count = 10000;
    uint8_t *out = malloc(2u << 20);
    const struct qr_rpc_config config = config_of();
    (void)state;

    assert_non_null(out);
    start(&f, &config);
    for (int reads = 0; reads < 5; reads++) {
        raw_start(&f.client, &call, "/t/Pages", PATIENCE_MS);
        raw_send(&call, &count, sizeof(count));
        raw_send_close(&call);
        for (int i = 0; i < reads; i++)
            assert_true(raw_read(&call, out, 2u << 20) > 0);
        raw_end(&call); /* cancels */
        wait_until_zero(&streams_open);
        wait_until_zero(&pins_out);
    }
    stop(&f);
    free(out);
}

static void a_watch_hears_of_changes_only(void **state)
{
    struct fixture f;
    struct raw_call call;
    uint8_t out[8];
    const struct qr_rpc_config config = config_of();
    (void)state;

    atomic_store(&watch_value, 1);
    start(&f, &config);
    raw_start(&f.client, &call, "/t/Watch", PATIENCE_MS);
    raw_send(&call, "", 0);
    raw_send_close(&call);
    assert_int_equal(raw_read(&call, out, 8), 1);
    assert_int_equal(out[0], 1);
    qr_rpc_notify(f.rpc); /* no change: no message */
    usleep(250000);
    atomic_store(&watch_value, 2);
    qr_rpc_notify(f.rpc);
    assert_int_equal(raw_read(&call, out, 8), 1);
    assert_int_equal(out[0], 2);
    assert_true(qr_rpc_drain(f.rpc, 0, PATIENCE_MS)); /* an open watch does not hold it up */
    assert_int_equal(raw_read(&call, out, 8), -1);
    assert_int_equal(raw_status(&call), GRPC_STATUS_UNAVAILABLE);
    raw_end(&call);
    raw_close(&f.client);
    qr_rpc_destroy(&f.rpc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_delivers_every_page_and_gives_pins_back),
        cmocka_unit_test(an_empty_stream_ends_well),
        cmocka_unit_test(a_slow_reader_holds_few_pins_and_is_cancelled),
        cmocka_unit_test(a_reader_that_leaves_gives_pins_back),
        cmocka_unit_test(a_watch_hears_of_changes_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
