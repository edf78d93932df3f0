/* SPDX-License-Identifier: Apache-2.0
 *
 * quired: the set-ups in order, the tear-downs in reverse. Must not know what any
 * of them does inside.
 */
#include <stdlib.h>

#include "config.h"

extern char **environ;

static int fail(const struct qr_error *e)
{
    fprintf(stderr, "quired: %s\n", e->text);
    return 2;
}

/* Fill config from all layers. */
static quire_status configure(struct qr_config *config, const struct qr_command *command,
                              int argc, char **argv, struct qr_error *e)
{
    quire_status status = QUIRE_OK;

    qr_config_defaults(config);
    if (command->file)
        status = qr_config_file(config, command->file, e);
    if (!status)
        status = qr_config_environment(config, environ, e);
    if (!status)
        status = qr_config_flags(config, argc, argv, e);
    if (!status)
        status = qr_config_check(config, e);
    return status;
}

int main(int argc, char **argv)
{
    static struct qr_config config;
    struct qr_command command;
    struct qr_error e = {0};

    if (qr_command_parse(argc, argv, environ, &command, &e))
        return fail(&e);
    if (command.help || command.version) {
        if (command.help)
            qr_config_help(stdout);
        else
            puts("quired " QUIRE_VERSION);
        return 0;
    }
    if (configure(&config, &command, argc, argv, &e))
        return fail(&e);
    if (command.print)
        qr_config_print(&config, stdout);
    if (command.check)
        puts("configuration is good");
    return 0;
}
