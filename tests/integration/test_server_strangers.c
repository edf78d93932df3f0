/* SPDX-License-Identifier: Apache-2.0
 *
 * What a stranger may send to a real server: unknown methods, messages that are
 * too large, too deep, doubled or cut. Each is refused by name, and the server
 * goes on.
 */
#include "proto/wire.h"
#include "quired.h"
#include "tests/unit/server/raw_client.h"

#define DEPTH 20000

static struct quired server;
static struct raw_client client;

static int set_up(void **state)
{
    (void)state;
    quired_folder(&server);
    quired_start(&server, NULL);
    raw_open(&client, server.target);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    raw_close(&client);
    quired_stop(&server);
    quired_clean(&server);
    return 0;
}

static void still_serves(void)
{
    struct raw_call call;
    uint8_t out[256];

    assert_true(raw_unary(&client, &call, "/quire.v1.Quire/Hello", "", 0, out, 256) > 0);
    raw_end(&call);
}

static void refused(const char *path, const void *bytes, size_t n, grpc_status_code status,
                    const char *message)
{
    struct raw_call call;
    uint8_t out[256];

    assert_int_equal(raw_unary(&client, &call, path, bytes, n, out, 256), -1);
    if (call.status != status || !strstr(call.text, message))
        fail_msg("%s: status %d, \"%s\"", path, (int)call.status, call.text);
    raw_end(&call);
    still_serves();
}

static void an_unknown_method(void **state)
{
    (void)state;
    refused("/quire.v1.Quire/Steal", "", 0, GRPC_STATUS_UNIMPLEMENTED, "unknown method");
    refused("/quire.v9.Quire/Hello", "", 0, GRPC_STATUS_UNIMPLEMENTED, "quire.v1.Quire");
}

static void both_sizes_are_told(const void *big, size_t n)
{
    struct raw_call call;
    struct qr_error e = {0};
    uint8_t out[256], packed[QR_WIRE_STATUS_BYTES_MAX];

    assert_int_equal(
        raw_unary(&client, &call, "/quire.v1.Quire/Append", big, n, out, sizeof(out)), -1);
    const size_t bytes = raw_trailer(&call, QR_WIRE_STATUS_KEY, packed, sizeof(packed));
    assert_true(qr_wire_status_parse(packed, bytes, &e));
    assert_status(QUIRE_ETOOBIG, e.status);
    assert_int_equal(e.length, n);
    assert_int_equal(e.limit, 4u << 20);
    raw_end(&call);
}

static void a_message_over_the_limit(void **state)
{
    const size_t n = (4u << 20) + 1, far = 8u << 20;
    char *big = calloc(1, far);
    (void)state;

    assert_non_null(big);
    refused("/quire.v1.Quire/Append", big, n, GRPC_STATUS_RESOURCE_EXHAUSTED, "");
    refused("/quire.v1.Quire/Fetch", big, n, GRPC_STATUS_RESOURCE_EXHAUSTED, "");
    both_sizes_are_told(big, n);
    refused("/quire.v1.Quire/Append", big, far, GRPC_STATUS_RESOURCE_EXHAUSTED,
            "larger than max (8388608 vs. ");
    free(big);
}

/* Groups or unknown sub-messages within each other: field 1, length-delimited, DEPTH times. */
static size_t nest(uint8_t *out, size_t depth)
{
    static uint8_t message[DEPTH * 6];
    size_t start = sizeof(message);

    for (size_t i = 0; i < depth; i++) {
        uint8_t varint[5];
        size_t length = sizeof(message) - start, n = 0;
        do {
            varint[n++] = (uint8_t)((length & 0x7f) | (length > 0x7f ? 0x80 : 0));
            length >>= 7;
        } while (length);
        start -= n;
        memcpy(message + start, varint, n);
        message[--start] = 1 << 3 | 2;
    }
    memcpy(out, message + start, sizeof(message) - start);
    return sizeof(message) - start;
}

static void deep_and_doubled_messages(void **state)
{
    uint8_t *deep = malloc(DEPTH * 6);
    (void)state;

    assert_non_null(deep);
    const size_t n = nest(deep, DEPTH);
    static const char *const paths[] = {"/quire.v1.Quire/RegisterModel",
                                        "/quire.v1.Quire/OpenSession", "/quire.v1.Quire/Attend",
                                        "/quire.v1.Quire/Append"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        refused(paths[i], deep, n, GRPC_STATUS_INVALID_ARGUMENT, "");
    free(deep);

    static const uint8_t twice[] = {1 << 3 | 2, 0, 1 << 3 | 2, 0}; /* model, model */
    refused("/quire.v1.Quire/RegisterModel", twice, sizeof(twice), GRPC_STATUS_INVALID_ARGUMENT,
            "model");
}

static void cut_and_wrong_messages(void **state)
{
    static const struct {
        const char *path;
        uint8_t bytes[12];
        size_t n;
    } cases[] = {
        {"/quire.v1.Quire/Hello", {0xff}, 1},
        {"/quire.v1.Quire/Append", {8}, 1},
        {"/quire.v1.Quire/Append", {12 << 3 | 2, 100, 1}, 3},
        {"/quire.v1.Quire/Append", {0}, 1},
        {"/quire.v1.Quire/OpenSession", {1 << 3 | 2, 2, 0xff, 0xfe}, 4}, /* no UTF-8 */
        {"/quire.v1.Quire/OpenSession", {1 << 3 | 2, 2, 'a', 0}, 4},
        {"/quire.v1.Quire/OpenSession", {1 << 3, 1}, 2}, /* number for a string */
        {"/quire.v1.Quire/Fetch",
         {8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
         11},
        {"/grpc.health.v1.Health/Check", {1 << 3 | 2, 200, 1, 'x'}, 4},
        {"/grpc.health.v1.Health/Watch", {9}, 1},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused(cases[i].path, cases[i].bytes, cases[i].n, GRPC_STATUS_INVALID_ARGUMENT, "");
}

/* Fields of FetchRequest: 2 position, 8 expand, 9 dtype, 10 rotate, 11 position_shift. */
static void fetches_that_contradict_themselves(void **state)
{
    static const struct {
        uint8_t bytes[14];
        size_t n;
        grpc_status_code status;
        const char *message;
    } cases[] = {
        {{10 << 3, 1}, 2, GRPC_STATUS_INVALID_ARGUMENT, "rotate is set, which needs expand"},
        {{11 << 3, 2}, 2, GRPC_STATUS_INVALID_ARGUMENT, "position_shift is set"},
        {{9 << 3, 2}, 2, GRPC_STATUS_INVALID_ARGUMENT, "dtype is 2; without expand"},
        {{2 << 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1},
         11,
         GRPC_STATUS_OUT_OF_RANGE,
         "position 18446744073709551615 with 0 tokens"},
        {{2 << 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 8 << 3, 1},
         13,
         GRPC_STATUS_OUT_OF_RANGE,
         "position 18446744073709551615 with 0 tokens"},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused("/quire.v1.Quire/Fetch", cases[i].bytes, cases[i].n, cases[i].status,
                cases[i].message);
}

static void calls_without_a_message(void **state)
{
    struct raw_call call;
    (void)state;

    raw_start(&client, &call, "/quire.v1.Quire/Hello", 20000);
    raw_send_close(&call);
    assert_int_not_equal(raw_status(&call), GRPC_STATUS_OK);
    raw_end(&call);
    raw_start(&client, &call, "/quire.v1.Quire/AppendStream", 20000);
    raw_send_close(&call);
    assert_int_equal(raw_status(&call), GRPC_STATUS_OK);
    raw_end(&call);
    still_serves();
}

static void callers_that_leave_at_once(void **state)
{
    static const char *const paths[] = {
        "/quire.v1.Quire/Hello",  "/quire.v1.Quire/Fetch",
        "/quire.v1.Quire/Attend", "/quire.v1.Quire/AppendStream",
        "/quire.v1.Quire/Append", "/grpc.health.v1.Health/Watch"};
    (void)state;

    for (size_t i = 0; i < 20 * ARRAY_LEN(paths); i++) {
        struct raw_call call;
        raw_start(&client, &call, paths[i % ARRAY_LEN(paths)], 20000);
        if (i % 3)
            raw_send(&call, "", 0);
        raw_end(&call); /* cancels */
    }
    still_serves();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_method),
        cmocka_unit_test(a_message_over_the_limit),
        cmocka_unit_test(deep_and_doubled_messages),
        cmocka_unit_test(cut_and_wrong_messages),
        cmocka_unit_test(fetches_that_contradict_themselves),
        cmocka_unit_test(calls_without_a_message),
        cmocka_unit_test(callers_that_leave_at_once),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
