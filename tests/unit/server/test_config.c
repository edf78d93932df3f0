/* SPDX-License-Identifier: Apache-2.0
 *
 * Configuration: later layers win, every mistake is an error that names key, value,
 * place and what would be right, and what is printed is read back as the same values.
 */
#include "server/config.h"
#include "tests/test.h"

static struct qr_config *fresh(void)
{
    struct qr_config *config = malloc(sizeof(*config));

    assert_non_null(config);
    qr_config_defaults(config);
    return config;
}

static void the_last_layer_wins(void **state)
{
    (void)state;
    char *environment[] = {"HOME=/", "QUIRE_MEMORY=2GiB", "QUIRE_LEASE=5s", NULL};
    char *argv[] = {"quired", "--lease", "7s", "--max-sessions=9", NULL};
    static const char yaml[] = "memory: 64MiB\nttl: 2h\nlog_format: json\n";
    struct qr_config *config = fresh();

    assert_ok(qr_config_yaml(config, yaml, strlen(yaml), "q.yaml", NULL));
    assert_ok(qr_config_environment(config, environment, NULL));
    assert_ok(qr_config_flags(config, 4, argv, NULL));

    assert_int_equal(qr_config_number(config, QR_OPTION_ttl), 7200000);
    assert_int_equal(qr_config_number(config, QR_OPTION_memory), 2ull << 30);
    assert_int_equal(qr_config_number(config, QR_OPTION_lease), 7000);
    assert_int_equal(qr_config_number(config, QR_OPTION_max_sessions), 9);
    assert_string_equal(qr_config_text(config, QR_OPTION_log_format), "json");
    assert_string_equal(config->values[QR_OPTION_ttl].origin, "q.yaml:2");
    assert_string_equal(config->values[QR_OPTION_memory].origin, "environment QUIRE_MEMORY");
    assert_string_equal(config->values[QR_OPTION_lease].origin, "flag --lease");
    assert_string_equal(config->values[QR_OPTION_huge_pages].origin, "default");
    free(config);
}

static void a_bad_value_is_refused_and_changes_nothing(void **state)
{
    static const struct {
        const char *yaml, *message;
    } cases[] = {
        {"memory: 12", "c:1: memory is \"12\", must be a size such as 512MiB"},
        {"memory: 1MiB", "c:1: memory is \"1MiB\", must be 16MiB .. 64TiB"},
        {"memory: 99999999999999999TiB", "must be a size"},
        {"memory: 8GB", "must be a size"},
        {"memory: -1GiB", "must be a size"},
        {"lease: 30", "c:1: lease is \"30\", must be a duration such as 30s"},
        {"lease: 30s x", "must be a duration"},
        {"\nserver_threads: 0", "c:2: server_threads is \"0\", must be 1 .. 64"},
        {"server_threads: two", "must be a whole number"},
        {"huge_pages: maybe", "must be true or false"},
        {"log_level: loud", "log_level is \"loud\", must be one of debug, info, warn, error"},
        {"log_level: (debug", "must be one of"},
        {"log_level: ''", "must be one of"},
        {"listen: []", "an empty list"},
        {"listen: ','", "listen is \",\", must be a list without empty items"},
        {"listen: 'unix:/a,,unix:/b'", "without empty items"},
        {"listen: 'unix:/a,'", "without empty items"},
        {"lease: &a 30s", "c:1: an anchor or alias"},
        {"listen: &a [x]", "an anchor or alias"},
        {"&a lease: 30s", "an anchor or alias"},
        {"--- &a\nlease: 30s", "an anchor or alias"},
        {"lease: *a", "an anchor or alias"},
        {"listen: {a: b}", "a value must be plain text or a list of it"},
        {"listen: [[a]]", "an item of a list must be plain text"},
        {"listen: [\"a,b\"]", "an item of a list contains a comma"},
        {"memory: [1GiB]", "a sequence where one value belongs"},
        {"memory: 1GiB\nmemory: 2GiB", "c:2: this key was given before"},
        {"memori: 1GiB", "unknown key \"memori\"; the nearest known key is \"memory\""},
        {"? [a]\n: b", "a key must be plain text"},
        {"- a", "the file must be one mapping"},
        {"memory: 1GiB\n---\nttl: 1h", "a second document"},
        {"memory: 'x", "not YAML"},
        {"ready_file: \"a\\0b\"", "a value contains a NUL"},
        {"ready_file: \"a\\nb\"", "must be printable ASCII"},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct qr_config *config = fresh();
        struct qr_error e = {0};
        const quire_status status =
            qr_config_yaml(config, cases[i].yaml, strlen(cases[i].yaml), "c", &e);
        if (status != QUIRE_EINVAL || !strstr(e.text, cases[i].message))
            fail_msg("%s: status %d, \"%s\"", cases[i].yaml, status, e.text);
        assert_int_equal(qr_config_number(config, QR_OPTION_lease), 30000);
        free(config);
    }
}

static void an_empty_file_sets_nothing(void **state)
{
    static const char *const cases[] = {"", "# nothing\n", "---\n", "\n\n"};
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct qr_config *config = fresh(), *standard = fresh();
        assert_ok(qr_config_yaml(config, cases[i], strlen(cases[i]), "c", NULL));
        assert_memory_equal(config, standard, sizeof(*config));
        free(config);
        free(standard);
    }
}

static void a_typo_names_the_nearest_key(void **state)
{
    static const struct {
        const char *typo, *nearest;
    } cases[] = {{"lisen", "\"listen\""},
                 {"max-sesions", "\"max_sessions\""},
                 {"drain", "\"drain_timeout\""},
                 {"attendthreads", "\"attend_threads\""},
                 {"HUGEPAGE", "\"huge_pages\""}};
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct qr_error e = {0};
        enum qr_option option;
        assert_status(QUIRE_EINVAL, qr_config_find(cases[i].typo, "here", &option, &e));
        if (!strstr(e.text, cases[i].nearest))
            fail_msg("%s: \"%s\"", cases[i].typo, e.text);
    }
}

static void the_environment_refuses_typos_only(void **state)
{
    char *typo[] = {"QUIRE_MEMROY=1GiB", NULL};
    char *others[] = {"QUIRE_ISA=scalar",
                      "QUIRE_PORT=tcp://10.0.0.1:7440",
                      "QUIRE_SERVICE_HOST=10",
                      "QUIRE_CONFIG=/q.yaml",
                      "QUIRE_GOLDEN=/g",
                      "QUIREX=1",
                      NULL};
    struct qr_error e = {0};
    struct qr_config *config = fresh();
    (void)state;

    assert_ok(qr_config_environment(config, others, &e));
    assert_status(QUIRE_EINVAL, qr_config_environment(config, typo, &e));
    assert_non_null(strstr(e.text, "environment QUIRE_MEMROY"));
    assert_non_null(strstr(e.text, "\"memory\""));
    free(config);
}

static void a_repeated_list_flag_adds_and_replaces_lower_layers(void **state)
{
    char *argv[] = {"quired", "--listen", "unix:/a", "--listen=127.0.0.1:0", NULL};
    char item[QR_OPTION_TEXT_MAX + 1];
    struct qr_config *config = fresh();
    (void)state;

    assert_ok(qr_config_flags(config, 4, argv, NULL));
    assert_true(qr_config_item(config, QR_OPTION_listen, 0, item));
    assert_string_equal(item, "unix:/a");
    assert_true(qr_config_item(config, QR_OPTION_listen, 1, item));
    assert_string_equal(item, "127.0.0.1:0");
    assert_false(qr_config_item(config, QR_OPTION_listen, 2, item));
    free(config);
}

static void bad_flags_are_refused(void **state)
{
    static const struct {
        const char *flag, *message;
    } cases[] = {
        {"memory", "\"memory\" is no flag"},
        {"-m", "\"-m\" is no flag"},
        {"--", "\"--\" is no flag"},
        {"--memory", "flag --memory needs a value"},
        {"--version=1", "flag --version takes no value"},
        {"--ready-fd=x", "flag --ready-fd is \"x\""},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char flag[32];
        char *argv[] = {"quired", flag, NULL};
        struct qr_command command;
        struct qr_error e = {0};
        snprintf(flag, sizeof(flag), "%s", cases[i].flag);
        assert_status(QUIRE_EINVAL, qr_command_parse(2, argv, NULL, &command, &e));
        if (!strstr(e.text, cases[i].message))
            fail_msg("%s: \"%s\"", cases[i].flag, e.text);
    }
}

static void the_command_line_is_read_in_any_order(void **state)
{
    char *argv[] = {"quired",         "--memory", "1GiB",
                    "--check-config", "--config", "/etc/some.yaml",
                    "--ready-fd=3",   "--help",   NULL};
    char *environment[] = {"QUIRE_CONFIG=/other.yaml", NULL};
    struct qr_command command;
    (void)state;

    assert_ok(qr_command_parse(8, argv, environment, &command, NULL));
    assert_true(command.check && command.help && !command.print && !command.version);
    assert_string_equal(command.file, "/etc/some.yaml");
    assert_int_equal(command.ready_fd, 3);
    assert_ok(qr_command_parse(1, argv, environment, &command, NULL));
    assert_string_equal(command.file, "/other.yaml");
}

static void what_is_printed_is_read_back(void **state)
{
    char *argv[] = {"quired",
                    "--listen=unix:/it's",
                    "--listen",
                    "localhost:1",
                    "--lease=1500ms",
                    "--memory=3GiB",
                    "--drain_timeout=0s",
                    "--ready_file=#x: y",
                    NULL};
    struct qr_config *config = fresh(), *again = fresh();
    char *text = NULL;
    size_t bytes = 0;
    (void)state;

    assert_ok(qr_config_flags(config, 8, argv, NULL));
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    qr_config_print(config, out);
    fclose(out);

    struct qr_error e = {0};
    if (qr_config_yaml(again, text, bytes, "printed", &e))
        fail_msg("%s", e.text);
    for (int i = 0; i < QR_OPTION_COUNT; i++) {
        assert_int_equal(again->values[i].number, config->values[i].number);
        assert_string_equal(again->values[i].text, config->values[i].text);
    }
    free(text);
    free(config);
    free(again);
}

static void limits_across_options_are_checked(void **state)
{
    struct qr_config *config = fresh();
    struct qr_error e = {0};
    (void)state;

    assert_ok(qr_config_check(config, &e));
    assert_ok(qr_config_set(config, QR_OPTION_max_message_bytes, "64MiB", false, "t", &e));
    assert_ok(qr_config_set(config, QR_OPTION_wire_memory, "64MiB", false, "t", &e));
    assert_status(QUIRE_EINVAL, qr_config_check(config, &e));
    assert_non_null(strstr(e.text, "wire_memory"));
    free(config);
}

static void message_memory_follows_the_budget_unless_set(void **state)
{
    static const struct {
        const char *memory, *message, *local;
        uint64_t wire_kib, local_kib;
    } cases[] = {{"16MiB", "4MiB", "true", 12800, 12800},
                 {"64MiB", "4MiB", "true", 14336, 14336},
                 {"1GiB", "4MiB", "true", 44 << 10, 44 << 10},
                 {"1GiB", "4MiB", "false", 88 << 10, 88 << 10},
                 {"1TiB", "4MiB", "true", 128 << 10, 256 << 10},
                 {"64MiB", "64MiB", "true", 128 << 10, 14336}};
    struct qr_error e = {0};
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct qr_config *config = fresh();
        assert_ok(qr_config_set(config, QR_OPTION_memory, cases[i].memory, false, "t", &e));
        assert_ok(qr_config_set(config, QR_OPTION_local, cases[i].local, false, "t", &e));
        assert_ok(qr_config_set(config, QR_OPTION_max_message_bytes, cases[i].message, false,
                                "t", &e));
        qr_config_derive(config);
        assert_int_equal(qr_config_number(config, QR_OPTION_wire_memory),
                         cases[i].wire_kib << 10);
        assert_int_equal(qr_config_number(config, QR_OPTION_local_memory),
                         cases[i].local_kib << 10);
        assert_ok(qr_config_check(config, &e));
        free(config);
    }
    struct qr_config *config = fresh();
    assert_ok(qr_config_set(config, QR_OPTION_wire_memory, "16MiB", false, "t", &e));
    assert_ok(qr_config_set(config, QR_OPTION_local_memory, "7MiB", false, "t", &e));
    qr_config_derive(config);
    assert_int_equal(qr_config_number(config, QR_OPTION_wire_memory), 16u << 20);
    assert_int_equal(qr_config_number(config, QR_OPTION_local_memory), 7u << 20);
    free(config);
}

static void a_ring_is_a_power_of_two(void **state)
{
    struct qr_config *config = fresh();
    struct qr_error e = {0};
    (void)state;

    qr_config_derive(config);
    assert_ok(qr_config_set(config, QR_OPTION_local_ring, "3MiB", false, "t", &e));
    assert_status(QUIRE_EINVAL, qr_config_check(config, &e));
    assert_non_null(strstr(e.text, "local_ring is 3145728B (t)"));
    assert_ok(qr_config_set(config, QR_OPTION_local_ring, "8MiB", false, "t", &e));
    assert_ok(qr_config_check(config, &e));
    free(config);
}

static void a_missing_file_is_named(void **state)
{
    struct qr_config *config = fresh();
    struct qr_error e = {0};
    (void)state;

    assert_status(QUIRE_EIO, qr_config_file(config, "/nowhere/q.yaml", &e));
    assert_non_null(strstr(e.text, "/nowhere/q.yaml"));
    free(config);
}

/* Keys stand in the page as "max_calls", after a quote, a space or the start of a line. */
static void the_man_page_names_every_key(void **state)
{
    char path[512];
    const char *source = getenv("QUIRE_SOURCE");
    char *text = calloc(1, 64 << 10);
    (void)state;

    snprintf(path, sizeof(path), "%s/docs/man/quired.8", source ? source : ".");
    FILE *file = fopen(path, "r");
    assert_true(file && text);
    assert_true(fread(text, 1, (64 << 10) - 1, file) > 0);
    fclose(file);
    for (int i = 0; i < QR_OPTION_COUNT; i++)
        if (!strstr(text, qr_option_row((enum qr_option)i)->key))
            fail_msg("%s is not in %s", qr_option_row((enum qr_option)i)->key, path);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_layer_wins),
        cmocka_unit_test(a_bad_value_is_refused_and_changes_nothing),
        cmocka_unit_test(an_empty_file_sets_nothing),
        cmocka_unit_test(a_typo_names_the_nearest_key),
        cmocka_unit_test(the_environment_refuses_typos_only),
        cmocka_unit_test(a_repeated_list_flag_adds_and_replaces_lower_layers),
        cmocka_unit_test(bad_flags_are_refused),
        cmocka_unit_test(the_command_line_is_read_in_any_order),
        cmocka_unit_test(what_is_printed_is_read_back),
        cmocka_unit_test(limits_across_options_are_checked),
        cmocka_unit_test(message_memory_follows_the_budget_unless_set),
        cmocka_unit_test(a_ring_is_a_power_of_two),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(the_man_page_names_every_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
