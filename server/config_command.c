/* SPDX-License-Identifier: Apache-2.0
 *
 * The two layers above the file: environment variables and flags. Must not know
 * YAML or the types of options.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* QUIRE_ names that are somebody else's: the codecs', the tests', the clients', and the
 * service links that container platforms put into every environment. */
static const char *const foreign[] = {"ISA",     "GOLDEN", "DATA",   "SOURCE", "BINARY",
                                      "CONFIG",  "SERVER", "TARGET", "SEED",   "SANITIZE",
                                      "VERSION", "TEST",   NULL};
static const char *const foreign_prefixes[] = {"PORT",  "SERVICE_", "QUIRE_",
                                               "TEST_", "BENCH_",   NULL};

static bool is_foreign(const char *key, size_t n)
{
    for (size_t i = 0; foreign[i]; i++)
        if (strlen(foreign[i]) == n && !strncmp(key, foreign[i], n))
            return true;
    for (size_t i = 0; foreign_prefixes[i]; i++)
        if (!strncmp(key, foreign_prefixes[i], strlen(foreign_prefixes[i])))
            return true;
    return false;
}

quire_status qr_config_environment(struct qr_config *config, char *const *environment,
                                   struct qr_error *e)
{
    static const char prefix[] = "QUIRE_";

    for (; environment && *environment; environment++) {
        char name[96], origin[128];
        const char *entry = *environment;
        const char *equals = strchr(entry, '=');
        enum qr_option option = 0;

        if (strncmp(entry, prefix, sizeof(prefix) - 1) != 0 || !equals)
            continue;
        const char *key = entry + sizeof(prefix) - 1;
        if (is_foreign(key, (size_t)(equals - key)))
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(equals - key), key);
        snprintf(origin, sizeof(origin), "environment QUIRE_%s", name);
        quire_status status = qr_config_find(name, origin, &option, e);
        if (!status)
            status = qr_config_set(config, option, equals + 1, false, origin, e);
        if (status)
            return status;
    }
    return QUIRE_OK;
}

/* One flag of the command line: its name, its value, how many arguments it took. */
struct flag {
    char name[96];
    const char *value; /* NULL: none */
    int taken;
};

static bool is_switch(const char *name)
{
    static const char *const switches[] = {"check-config", "print-config", "version", "help"};

    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++)
        if (!strcmp(name, switches[i]))
            return true;
    return false;
}

static quire_status read_flag(int argc, char *const *argv, int i, struct flag *out,
                              struct qr_error *e)
{
    const char *argument = argv[i];
    const char *equals = strchr(argument, '=');

    out->taken = 1;
    if (!strcmp(argument, "-h"))
        argument = "--help";
    if (strncmp(argument, "--", 2) != 0 || !argument[2])
        return qr_error_set(e, QUIRE_EINVAL,
                            "\"%.60s\" is no flag; flags are --key value or --key=value "
                            "(quired --help)",
                            argument);
    const size_t n = equals ? (size_t)(equals - argument) : strlen(argument);
    snprintf(out->name, sizeof(out->name), "%.*s", (int)(n - 2), argument + 2);
    out->value = equals ? equals + 1 : NULL;
    if (is_switch(out->name)) {
        if (equals)
            return qr_error_set(e, QUIRE_EINVAL, "flag --%s takes no value", out->name);
        return QUIRE_OK;
    }
    if (equals)
        return QUIRE_OK;
    if (i + 1 >= argc)
        return qr_error_set(e, QUIRE_EINVAL, "flag --%s needs a value", out->name);
    out->value = argv[i + 1];
    out->taken = 2;
    return QUIRE_OK;
}

static quire_status read_fd(const char *value, int *out, struct qr_error *e)
{
    char *end;
    const long fd = strtol(value, &end, 10);

    if (!*value || *end || fd < 0 || fd > 65535)
        return qr_error_set(e, QUIRE_EINVAL,
                            "flag --ready-fd is \"%.40s\", must be the number of an open file "
                            "descriptor",
                            value);
    *out = (int)fd;
    return QUIRE_OK;
}

static bool take_switch(const char *name, struct qr_command *out)
{
    bool *const targets[] = {&out->check, &out->print, &out->version, &out->help};
    static const char *const names[] = {"check-config", "print-config", "version", "help"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!strcmp(name, names[i])) {
            *targets[i] = true;
            return true;
        }
    }
    return false;
}

static const char *environment_value(char *const *environment, const char *name)
{
    const size_t n = strlen(name);

    for (; environment && *environment; environment++)
        if (!strncmp(*environment, name, n) && (*environment)[n] == '=')
            return *environment + n + 1;
    return NULL;
}

quire_status qr_command_parse(int argc, char *const *argv, char *const *environment,
                              struct qr_command *out, struct qr_error *e)
{
    struct qr_command command = {.ready_fd = -1,
                                 .file = environment_value(environment, "QUIRE_CONFIG")};
    struct flag flag;
    quire_status status;

    for (int i = 1; i < argc; i += flag.taken) {
        if ((status = read_flag(argc, argv, i, &flag, e)))
            return status;
        if (take_switch(flag.name, &command))
            continue;
        if (!strcmp(flag.name, "config"))
            command.file = flag.value;
        else if (!strcmp(flag.name, "ready-fd") &&
                 (status = read_fd(flag.value, &command.ready_fd, e)))
            return status;
    }
    *out = command;
    return QUIRE_OK;
}

quire_status qr_config_flags(struct qr_config *config, int argc, char *const *argv,
                             struct qr_error *e)
{
    bool seen[QR_OPTION_COUNT] = {false};
    struct flag flag;
    quire_status status;

    for (int i = 1; i < argc; i += flag.taken) {
        char origin[128];
        enum qr_option option = 0;

        if ((status = read_flag(argc, argv, i, &flag, e)))
            return status;
        if (is_switch(flag.name) || !strcmp(flag.name, "config") ||
            !strcmp(flag.name, "ready-fd"))
            continue;
        snprintf(origin, sizeof(origin), "flag --%s", flag.name);
        if ((status = qr_config_find(flag.name, origin, &option, e)))
            return status;
        status = qr_config_set(config, option, flag.value, seen[option], origin, e);
        if (status)
            return status;
        seen[option] = true;
    }
    return QUIRE_OK;
}
