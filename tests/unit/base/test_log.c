/* SPDX-License-Identifier: Apache-2.0
 *
 * A log line is one well-formed line whatever the values are.
 */
#include "tests/test.h"

#include <unistd.h>

#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/random.h"

/* What one QR_LOG call writes to its descriptor. */
#define CAPTURE(buffer, level, format, ...)                                                    \
    do {                                                                                       \
        int ends[2];                                                                           \
        assert_int_equal(pipe(ends), 0);                                                       \
        qr_log_configure((level), (format), ends[1]);                                          \
        __VA_ARGS__;                                                                           \
        close(ends[1]);                                                                        \
        ssize_t n = read(ends[0], (buffer), sizeof(buffer) - 1);                               \
        (buffer)[n < 0 ? 0 : n] = 0;                                                           \
        close(ends[0]);                                                                        \
        qr_log_configure(QR_LOG_INFO, QR_LOG_TEXT, STDERR_FILENO);                             \
    } while (0)

static char line[8192];

static void writes_fields_as_json(void **state)
{
    (void)state;
    CAPTURE(line, QR_LOG_INFO, QR_LOG_JSON,
            QR_LOG(QR_LOG_WARN, "page.corrupt", QR_LOG_STR("name", "a\"b\n\\"),
                   QR_LOG_U64("n", UINT64_MAX), QR_LOG_F64("r", 0.5)));
    assert_non_null(strstr(line, "\"level\":\"warn\",\"event\":\"page.corrupt\","
                                 "\"name\":\"a\\\"b\\u000a\\\\\","
                                 "\"n\":18446744073709551615,\"r\":0.5}\n"));
    assert_int_equal(line[0], '{');
}

static void writes_fields_as_text(void **state)
{
    (void)state;
    CAPTURE(line, QR_LOG_INFO, QR_LOG_TEXT,
            QR_LOG(QR_LOG_ERROR, "x", QR_LOG_STR("missing", NULL), QR_LOG_U64("n", 7)));
    assert_non_null(strstr(line, " level=error event=\"x\" missing=\"\" n=7\n"));
}

static void drops_whole_fields_that_do_not_fit(void **state)
{
    static char big[QR_LOG_LINE_MAX];
    (void)state;

    memset(big, 'x', sizeof(big) - 1);
    CAPTURE(line, QR_LOG_INFO, QR_LOG_JSON,
            QR_LOG(QR_LOG_INFO, "x", QR_LOG_U64("kept", 1), QR_LOG_STR("big", big),
                   QR_LOG_U64("after", 2)));
    assert_non_null(strstr(line, "\"kept\":1}\n"));
    assert_null(strstr(line, "big"));
}

static void keeps_quiet_below_its_level(void **state)
{
    (void)state;
    CAPTURE(line, QR_LOG_WARN, QR_LOG_TEXT, QR_LOG(QR_LOG_INFO, "x", QR_LOG_U64("n", 1)));
    assert_string_equal(line, "");
}

static void parses_the_names_of_levels(void **state)
{
    enum qr_log_level level = QR_LOG_INFO;
    (void)state;

    assert_true(qr_log_level_parse("error", &level));
    assert_int_equal(level, QR_LOG_ERROR);
    assert_false(qr_log_level_parse("loud", &level));
    assert_int_equal(level, QR_LOG_ERROR);
}

static void clock_and_random_move_on(void **state)
{
    unsigned char a[32] = {0}, b[32] = {0};
    const uint64_t before_ns = qr_clock_ns();
    (void)state;

    assert_ok(qr_random_fill(a, sizeof(a), NULL));
    assert_ok(qr_random_fill(b, sizeof(b), NULL));
    assert_memory_not_equal(a, b, sizeof(a));
    assert_true(qr_clock_ns() >= before_ns);
    assert_true(qr_clock_ms() >= before_ns / 1000000u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_fields_as_json),
        cmocka_unit_test(writes_fields_as_text),
        cmocka_unit_test(drops_whole_fields_that_do_not_fit),
        cmocka_unit_test(keeps_quiet_below_its_level),
        cmocka_unit_test(parses_the_names_of_levels),
        cmocka_unit_test(clock_and_random_move_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
