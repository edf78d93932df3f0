/* SPDX-License-Identifier: Apache-2.0
 *
 * Command lines: values reach their variables, mistakes are named and give exit code 2, help
 * is printed from the table.
 */
#include "client/cli/args.h"
#include "tests/test.h"

static struct {
    bool flag;
    const char *text;
    uint32_t small;
    uint64_t big;
    int64_t shift;
    double real;
    int choice;
} got;

static const struct qr_choice choices[] = {{"red", 7}, {"blue", 9}, {NULL, 0}};
static const struct qr_arg args[] = {
    {"flag", QR_ARG_FLAG, &got.flag, NULL, "a flag", NULL},
    {"text", QR_ARG_TEXT, &got.text, "TEXT", "a text", NULL},
    {"small", QR_ARG_U32, &got.small, "N", "a number", NULL},
    {"big", QR_ARG_U64, &got.big, "N", "a big number", NULL},
    {"shift", QR_ARG_I64, &got.shift, "N", "a shift", NULL},
    {"real", QR_ARG_REAL, &got.real, "X", "a real", NULL},
    {"color", QR_ARG_CHOICE, &got.choice, "red|blue", "a color", choices},
};
static const struct qr_synopsis synopsis = {
    .operands = "SESSION [FILE]",
    .about = "Does nothing.",
    .operands_min = 1,
    .operands_max = 2,
    .groups = {{NULL, args, ARRAY_LEN(args)}},
};

/** Parse a line of words separated by spaces; what was printed is kept in printed/said. */
static char *printed, *said, words[512], *line[32], **operands;
static struct qr_cli cli;

static int parse(const char *text)
{
    size_t printed_bytes, said_bytes;
    int argc = 0;
    free(printed);
    free(said);
    snprintf(words, sizeof(words), "%s", text);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
        line[argc++] = word;
    line[argc] = NULL;
    memset(&got, 0, sizeof(got));
    cli = (struct qr_cli){.command = "test", .server = "unix:/default", .timeout_ms = 30000};
    cli.out = open_memstream(&printed, &printed_bytes);
    cli.err = open_memstream(&said, &said_bytes);
    const int result = qr_args_parse(&cli, &synopsis, argc, line, &operands);
    fclose(cli.out);
    fclose(cli.err);
    return result;
}

static void values_reach_their_variables(void **state)
{
    (void)state;
    assert_int_equal(parse("test --flag --text abc s --small 17 --big=3Mi --shift -5 --real "
                           "0.25 --color blue f"),
                     QR_ARGS_GO);
    assert_true(got.flag);
    assert_string_equal(got.text, "abc");
    assert_int_equal(got.small, 17);
    assert_int_equal(got.big, 3 << 20);
    assert_int_equal(got.shift, -5);
    assert_true(got.real == 0.25);
    assert_int_equal(got.choice, 9);
    assert_int_equal(qr_args_count(operands), 2);
    assert_string_equal(operands[0], "s");
    assert_string_equal(operands[1], "f");
}

static void common_options_reach_the_tool(void **state)
{
    (void)state;
    assert_int_equal(parse("test s --server host:1 --timeout 5 --json --quiet"), QR_ARGS_GO);
    assert_string_equal(cli.server, "host:1");
    assert_int_equal(cli.timeout_ms, 5);
    assert_true(cli.json);
    assert_true(cli.quiet);
}

static void mistakes_are_named(void **state)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"test", "0 operands given, wanted: SESSION [FILE]"},
        {"test a b c", "3 operands"},
        {"test s --nothing", "'--nothing'"},
        {"test s --text", "'--text' needs a value"},
        {"test s --small 4294967296",
         "--small '4294967296': must be a whole number below 2^32"},
        {"test s --small -1", "--small '-1'"},
        {"test s --small 1x", "--small '1x'"},
        {"test s --big 18446744073709551616", "--big"},
        {"test s --big 99999999999999Gi", "--big"},
        {"test s --shift 1.5", "--shift '1.5'"},
        {"test s --real nan", "--real 'nan'"},
        {"test s --color green", "--color 'green': must be red|blue"},
        {"test s --timeout 0", "--timeout 0"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(parse(cases[i].line), QR_EXIT_USAGE);
        if (strstr(said, cases[i].says) == NULL)
            fail_msg("'%s' says '%s', not '%s'", cases[i].line, said, cases[i].says);
        assert_string_equal(printed, "");
    }
}

static void json_mistakes_are_json(void **state)
{
    (void)state;
    assert_int_equal(parse("test --json"), QR_EXIT_USAGE);
    cJSON *root = cJSON_Parse(printed);
    assert_non_null(root);
    assert_non_null(cJSON_GetObjectItem(cJSON_GetObjectItem(root, "error"), "text"));
    cJSON_Delete(root);
}

static void help_names_every_option(void **state)
{
    (void)state;
    assert_int_equal(parse("test --help"), QR_EXIT_OK);
    assert_non_null(strstr(printed, "usage: quire test [OPTION...] SESSION [FILE]"));
    for (size_t i = 0; i < ARRAY_LEN(args); i++)
        assert_non_null(strstr(printed, args[i].name));
    assert_non_null(strstr(printed, "--server TARGET"));
    assert_string_equal(said, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_reach_their_variables),
        cmocka_unit_test(common_options_reach_the_tool),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(json_mistakes_are_json),
        cmocka_unit_test(help_names_every_option),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(printed);
    free(said);
    return failed;
}
