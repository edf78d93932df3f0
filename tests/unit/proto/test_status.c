/* SPDX-License-Identifier: Apache-2.0
 *
 * The status table is complete, its numbers are those of the installed header, and error texts
 * are cut, never overrun.
 */
#include "tests/test.h"

/* First, so that the numbers below are this header's own. */
#include "client/quire.h"

#define X(name, number, grpc, retry, text)                                                     \
    _Static_assert(QUIRE_##name == (number), "client/quire.h and status.def "                  \
                                             "disagree: " #name);
#include "proto/status.def"
#undef X

#include "proto/status.h"

static void numbers_are_dense_and_described(void **state)
{
    static const int numbers[] = {
#define X(name, number, grpc, retry, text) number,
#include "proto/status.def"
#undef X
    };
    (void)state;
    for (int i = 0; i < (int)ARRAY_LEN(numbers); i++) {
        assert_int_equal(numbers[i], i);
        assert_memory_equal(qr_status_name(i), "QUIRE_", 6);
        assert_true(strlen(qr_status_text(i)) > 1);
        assert_in_range(qr_status_grpc(i), 0, 16);
        assert_true((qr_status_grpc(i) == 0) == (i == QUIRE_OK));
    }
    assert_int_equal(QUIRE_EAGAIN, ARRAY_LEN(numbers) - 1);
}

static void strangers_have_a_name(void **state)
{
    (void)state;
    assert_string_equal(qr_status_text(-1), "unknown status");
    assert_string_equal(qr_status_name(1000), "QUIRE_UNKNOWN");
    assert_int_equal(qr_status_retryable(1000), 0);
}

static void installed_error_has_the_fields(void **state)
{
    (void)state;
    assert_int_equal(sizeof(((struct quire_error *)0)->text), QR_ERROR_TEXT_MAX);
    assert_int_equal(sizeof(struct quire_error), sizeof(struct qr_error));
}

static void texts_are_cut(void **state)
{
    char text[1000];
    struct qr_error e = {.layer = 9};
    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    assert_status(QUIRE_EGAP, qr_error_set(&e, QUIRE_EGAP, "%s", text));
    assert_int_equal(strlen(e.text), QR_ERROR_TEXT_MAX - 1);
    assert_int_equal(e.layer, 0);
    assert_status(QUIRE_EGAP, qr_error_set(NULL, QUIRE_EGAP, "%s", text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_dense_and_described),
        cmocka_unit_test(strangers_have_a_name),
        cmocka_unit_test(installed_error_has_the_fields),
        cmocka_unit_test(texts_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
