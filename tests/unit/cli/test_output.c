/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables are aligned, quantities are readable, and the progress bar draws nothing where it
 * has no terminal.
 */
#include "client/cli/output.h"
#include "tests/test.h"

static void columns_are_as_wide_as_their_widest_cell(void **state)
{
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    struct qr_table *table = qr_table_create("lr");
    (void)state;
    qr_table_row(table, "name\tcount");
    qr_table_rule(table);
    qr_table_row(table, "longer name\t%d", 7);
    qr_table_row(table, "alone");
    qr_table_print(table, out);
    fclose(out);
    assert_string_equal(text, "name         count\n"
                              "------------------\n"
                              "longer name      7\n"
                              "alone\n");
    qr_table_destroy(&table);
    assert_null(table);
    free(text);
}

static void quantities_are_readable(void **state)
{
    char text[QR_TEXT_MAX];
    const uint8_t bytes[] = {0x00, 0xab, 0xff};
    (void)state;
    assert_string_equal(qr_text_bytes(text, 1023), "1023 B");
    assert_string_equal(qr_text_bytes(text, 1536), "1.50 KiB");
    assert_string_equal(qr_text_bytes(text, 5368709120.0), "5.00 GiB");
    assert_string_equal(qr_text_seconds(text, 12.34e-6), "12.3 us");
    assert_string_equal(qr_text_seconds(text, 0.0567), "56.70 ms");
    assert_string_equal(qr_text_seconds(text, 8.5), "8.50 s");
    assert_string_equal(qr_text_hex(text, bytes, 3), "00abff");
    assert_string_equal(qr_text_hex(text, bytes, 0), "");
}

static void progress_draws_and_erases(void **state)
{
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    struct qr_progress progress;
    (void)state;
    qr_progress_begin(&progress, NULL, "nothing", 10);
    qr_progress_update(&progress, 5);
    qr_progress_end(&progress);

    qr_progress_begin(&progress, out, "append", 10);
    qr_progress_update(&progress, 5);
    qr_progress_end(&progress);
    fclose(out);
    assert_non_null(strstr(text, "append [###############               ]  50%"));
    assert_non_null(strstr(text, "\r\033[K"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_as_wide_as_their_widest_cell),
        cmocka_unit_test(quantities_are_readable),
        cmocka_unit_test(progress_draws_and_erases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
