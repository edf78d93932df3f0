/* SPDX-License-Identifier: Apache-2.0
 *
 * A call's end in words: what gRPC cuts itself, without details, still tells both sizes; what
 * it has no room for is no size at all.
 */
#include "client/client_error.h"
#include "tests/test.h"

static quire_status end_of(const char *text, struct qr_error *e)
{
    const struct qr_call_result result = {.grpc_status = 8, .text = text};

    return qr_client_error_of_call(&result, QR_METHOD_APPEND, "unix:/s", 1000, e);
}

static void a_message_that_grpc_cuts_tells_both_sizes(void **state)
{
    struct qr_error e;
    (void)state;

    assert_status(QUIRE_ETOOBIG,
                  end_of("SERVER: Received message larger than max (9000000 vs. 5242880)", &e));
    assert_int_equal(e.length, 9000000);
    assert_int_equal(e.limit, 5242880);
    assert_string_equal(e.text, "Append: a message of 9000000 bytes, unix:/s takes at most "
                                "5242880 (max_message_bytes)");
}

static void exhaustion_of_another_kind_is_no_size(void **state)
{
    struct qr_error e;
    (void)state;

    assert_status(QUIRE_EFULL, end_of("Memory quota exhausted", &e));
    assert_int_equal(e.length, 0);
    assert_non_null(strstr(e.text, "Memory quota exhausted"));
    assert_status(QUIRE_EFULL, end_of("larger than max (x vs. y)", &e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_that_grpc_cuts_tells_both_sizes),
        cmocka_unit_test(exhaustion_of_another_kind_is_no_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
