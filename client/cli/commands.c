/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the command that was asked for, and makes and releases what all commands share.
 */
#include "commands.h"
#include "proto/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_SOCKET "/run/quire/quired.sock" /* what a packaged quired listens on */
#define DEFAULT_ADDRESS "127.0.0.1:7440"        /* what quired listens on by itself */
#define DEFAULT_TIMEOUT_MS 30000

static const struct qr_command commands[] = {
    {"append", "append keys and values of a safetensors file to a session", qr_cmd_append},
    {"fetch", "write a session's keys and values to a safetensors file", qr_cmd_fetch},
    {"attend", "attend to a session with the queries of a safetensors file", qr_cmd_attend},
    {"flush", "wait until sessions are on disk", qr_cmd_flush},
    {"session", "list, show, fork, cut, drop, export and import sessions", qr_cmd_session},
    {"model", "register a model", qr_cmd_model},
    {"stat", "show the server's counters", qr_cmd_stat},
    {"fsck", "check a disk store that no server has open, and repair it", qr_cmd_fsck},
    {"inspect", "show what a page holds, of a file or of a session", qr_cmd_inspect},
    {"demo", "append, fetch and attend on real keys and values, and measure", qr_cmd_demo},
    {"bench", "the same at length: a session of a million tokens", qr_cmd_bench},
    {"calibrate", "fit level tables to a model's keys and values", qr_cmd_calibrate},
    {"eval", "show what encodings do to attention, without a server", qr_cmd_eval},
    {"tune", "find the encodings that err least under a budget of bits", qr_cmd_tune},
    {NULL, NULL, NULL},
};

static void print_list(FILE *out, const struct qr_command *list, const char *prefix)
{
    fprintf(out, "usage: quire %sCOMMAND [OPTION...] ...\n\nCommands:\n", prefix);
    for (; list->name != NULL; list++)
        fprintf(out, "  %-10s %s\n", list->name, list->summary);
    fprintf(out, "\n'quire %sCOMMAND --help' explains a command; quire(1) has examples.\n",
            prefix);
}

int qr_commands_run(struct qr_cli *cli, const struct qr_command *list, const char *prefix,
                    int argc, char **argv)
{
    char name[64];
    const char *word = argc > 1 ? argv[1] : "";
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        print_list(cli->out, list, prefix);
        return QR_EXIT_OK;
    }
    for (const struct qr_command *c = list; c->name != NULL; c++) {
        if (strcmp(c->name, word) != 0)
            continue;
        snprintf(name, sizeof(name), "%s%s", prefix, word);
        cli->command = name;
        const int result = c->run(cli, argc - 1, argv + 1);
        cli->command = NULL;
        return result;
    }
    if (word[0] == 0)
        return qr_cli_fail_usage(cli, "no command given");
    return qr_cli_fail_usage(cli,
                             word[0] == '-' ? "'%s' stands before a command; only --json, "
                                              "--quiet and --server may"
                                            : "no command '%s'",
                             word);
}

static const char *default_server(void)
{
    const char *server = getenv("QUIRE_SERVER");
    if (server != NULL && server[0] != 0)
        return server;
    return access(DEFAULT_SOCKET, F_OK) == 0 ? "unix:" DEFAULT_SOCKET : DEFAULT_ADDRESS;
}

/** Options of every command may stand before it, too. Gives how many words were taken. */
static int take_leading(struct qr_cli *cli, int argc, char **argv)
{
    int at = 1;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--json") == 0)
            cli->json = true;
        else if (strcmp(argv[at], "--quiet") == 0)
            cli->quiet = true;
        else if (strncmp(argv[at], "--server=", 9) == 0)
            cli->server = argv[at] + 9;
        else if (strcmp(argv[at], "--server") == 0 && at + 1 < argc)
            cli->server = argv[++at];
        else
            break;
    }
    return at - 1;
}

/** Whether --json is among the words: a line that cannot be read fails in JSON, too. */
static bool wants_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0)
            return true;
    return false;
}

int qr_commands_main(int argc, char **argv, FILE *out, FILE *err)
{
    struct qr_cli cli = {
        .out = out,
        .err = err,
        .server = default_server(),
        .timeout_ms = DEFAULT_TIMEOUT_MS,
        .json = wants_json(argc, argv),
        .terminal = fileno(err) >= 0 && isatty(fileno(err)),
    };
    /* Failures are told once, in our words; whoever debugs gRPC sets the variable. */
    (void)setenv("GRPC_VERBOSITY", "NONE", 0);
    if (qr_isa_unknown())
        return qr_cli_fail_usage(&cli, "QUIRE_ISA is '%.40s', must be " QR_ISA_NAMES,
                                 qr_isa_unknown());
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        fprintf(out, "quire %s\n", quire_version());
        return QR_EXIT_OK;
    }
    const int taken = take_leading(&cli, argc, argv);
    int result = qr_commands_run(&cli, commands, "", argc - taken, argv + taken);
    quire_client_close(&cli.client);
    if (fflush(out) != 0 && result == QR_EXIT_OK) {
        fprintf(err, "quire: the output could not be written\n");
        result = QR_EXIT_FAILED;
    }
    return result;
}
