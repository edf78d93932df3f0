/* SPDX-License-Identifier: Apache-2.0
 *
 * The tool as a whole, without a server: every command explains itself, wrong lines give exit
 * code 2, an absent server 3, bad files 1, and with --json every failure is JSON.
 */
#include "client/cli/commands.h"
#include "tests/test.h"

#include <unistd.h>

static char *printed, *said;

/** Run `quire TEXT`; words are separated by spaces. */
static int run(const char *text)
{
    char words[512], *line[32] = {"quire"};
    size_t printed_bytes, said_bytes;
    int argc = 1;
    free(printed);
    free(said);
    snprintf(words, sizeof(words), "%s", text);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
        line[argc++] = word;
    FILE *out = open_memstream(&printed, &printed_bytes);
    FILE *err = open_memstream(&said, &said_bytes);
    const int result = qr_commands_main(argc, line, out, err);
    fclose(out);
    fclose(err);
    return result;
}

static void every_command_explains_itself(void **state)
{
    static const char *const names[] = {
        "append",           "fetch",         "attend",       "stat",
        "inspect",          "demo",          "bench",        "eval",
        "session ls",       "session info",  "session fork", "session drop",
        "session truncate", "model register"};
    char line[64], usage[64];
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(line, sizeof(line), "%s --help", names[i]);
        snprintf(usage, sizeof(usage), "usage: quire %s ", names[i]);
        assert_int_equal(run(line), QR_EXIT_OK);
        assert_non_null(strstr(printed, usage));
        assert_string_equal(said, "");
    }
    assert_int_equal(run("--help"), QR_EXIT_OK);
    assert_int_equal(run("session --help"), QR_EXIT_OK);
    assert_non_null(strstr(printed, "truncate"));
    assert_int_equal(run("--version"), QR_EXIT_OK);
    assert_non_null(strstr(printed, quire_version()));
}

static void wrong_lines_are_usage_errors(void **state)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"", "no command given"},
        {"nothing", "no command 'nothing'"},
        {"--timeout 3 stat", "only --json, --quiet and --server may"},
        {"--json", "no command given"},
        {"session", "no command given"},
        {"session nothing", "no command 'nothing'"},
        {"append s", "wanted: SESSION FILE"},
        {"append --block 0 s f", "--block 0"},
        {"append --rope sideways s f", "--rope 'sideways'"},
        {"append --tokens 0 s f", "--tokens 0"},
        {"fetch --shift 5 s f", "--shift 5: needs --rotate"},
        {"fetch s", "wanted: SESSION FILE"},
        {"fetch --dtype f64 s f", "--dtype 'f64'"},
        {"attend s q", "wanted: SESSION QUERIES OUT"},
        {"attend --block 0 s q o", "--block 0"},
        {"inspect --file --session x", "exclude each other"},
        {"session truncate s", "--length is required"},
        {"demo --stride 0 f", "--stride"},
        {"bench --tokens 0 f", "--tokens 0"},
        {"bench --tokens 16Mi f", "--tokens 16777216"},
        {"bench --layers 513 f", "--layers 513"},
        {"bench --block 0 f", "--block 0"},
        {"eval", "wanted: FILE"},
        {"eval f", "the model is missing"},
        {"tune f", "the model is missing"},
        {"tune --bits 17 f", "--bits 17"},
        {"tune --outliers 5 f", "too large"},
        {"eval --rope pre --codec nonsense f",
         "--codec nonsense: codec \"nonsense\" is not known"},
        {"eval --axes --sweep f", "no --codec, no --sweep"},
        {"eval --threads 300 f", "--threads 300"},
        {"eval --outliers 5 f", "too large"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(run(cases[i].line), QR_EXIT_USAGE);
        if (strstr(said, cases[i].says) == NULL)
            fail_msg("'%s' says '%s', not '%s'", cases[i].line, said, cases[i].says);
    }
}

static void wrong_lines_fail_in_json_too(void **state)
{
    static const char *const lines[] = {"append --bogus --json", "--json stat x y",
                                        "--json nothing", "--json --server=x bench --bad",
                                        "session nothing --json"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        assert_int_equal(run(lines[i]), QR_EXIT_USAGE);
        cJSON *root = cJSON_Parse(printed);
        const cJSON *error = cJSON_GetObjectItem(root, "error");
        if (!cJSON_GetStringValue(cJSON_GetObjectItem(error, "text")))
            fail_msg("'%s' printed '%s'", lines[i], printed);
        cJSON_Delete(root);
    }
}

static void the_server_may_stand_before_the_command(void **state)
{
    (void)state;
    assert_int_equal(run("--json --server unix:/no/such/socket stat --timeout 200"),
                     QR_EXIT_UNAVAILABLE);
    assert_non_null(strstr(said, "/no/such/socket"));
    assert_non_null(strstr(printed, "EUNAVAILABLE"));
}

static void an_unknown_isa_is_a_usage_error(void **state)
{
    const char *before = getenv("QUIRE_ISA");
    (void)state;
    if (before)
        skip(); /* another run's choice, which must stay */
    setenv("QUIRE_ISA", "avx1024", 1);
    assert_int_equal(run("--version"), QR_EXIT_USAGE);
    assert_non_null(strstr(said, "'avx1024', must be scalar, avx2 or avx512"));
    unsetenv("QUIRE_ISA");
}

static void absent_servers_have_their_own_exit_code(void **state)
{
    static const char *const lines[] = {"stat", "session ls", "session info s",
                                        "session drop s"};
    char line[128];
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        snprintf(line, sizeof(line), "%s --server unix:/no/such/socket --timeout 200 --json",
                 lines[i]);
        assert_int_equal(run(line), QR_EXIT_UNAVAILABLE);
        cJSON *root = cJSON_Parse(printed);
        const cJSON *status = cJSON_GetObjectItem(cJSON_GetObjectItem(root, "error"), "status");
        assert_non_null(cJSON_GetStringValue(status));
        assert_non_null(strstr(cJSON_GetStringValue(status), "EUNAVAILABLE"));
        cJSON_Delete(root);
    }
}

static void bad_files_are_named_before_the_server_is_asked(void **state)
{
    static const char *const lines[] = {
        "append s no/file",       "attend s no/file out",    "demo no/file",
        "bench no/file",          "eval --rope pre no/file", "tune --rope pre no/file",
        "model register no/file", "inspect --file no/file"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        assert_int_equal(run(lines[i]), QR_EXIT_FAILED);
        assert_non_null(strstr(said, "no/file: No such file"));
    }
}

static void inspect_refuses_what_is_no_page(void **state)
{
    char path[300], line[330];
    const char *folder = getenv("TMPDIR");
    (void)state;
    snprintf(path, sizeof(path), "%s/quire_commands_%ld", folder ? folder : "/tmp",
             (long)getpid());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("this is not a page", file);
    fclose(file);
    snprintf(line, sizeof(line), "inspect %s", path);
    assert_int_equal(run(line), QR_EXIT_FAILED);
    assert_non_null(strstr(said, path));
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_command_explains_itself),
        cmocka_unit_test(wrong_lines_are_usage_errors),
        cmocka_unit_test(wrong_lines_fail_in_json_too),
        cmocka_unit_test(the_server_may_stand_before_the_command),
        cmocka_unit_test(an_unknown_isa_is_a_usage_error),
        cmocka_unit_test(absent_servers_have_their_own_exit_code),
        cmocka_unit_test(bad_files_are_named_before_the_server_is_asked),
        cmocka_unit_test(inspect_refuses_what_is_no_page),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(printed);
    free(said);
    return failed;
}
