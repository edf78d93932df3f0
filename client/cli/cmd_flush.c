/* SPDX-License-Identifier: Apache-2.0
 *
 * quire flush: wait until what sessions have now is on disk.
 */
#include "args.h"
#include "commands.h"
#include "output.h"

static int say_flushed(struct qr_cli *cli, const char *name)
{
    if (cli->json) {
        cJSON *root = cJSON_CreateObject();
        cJSON_AddStringToObject(root, "flushed", name ? name : "*");
        return qr_cli_print_json(cli, root);
    }
    if (!cli->quiet)
        fprintf(cli->out, "%s on disk\n", name ? name : "all sessions are");
    return QR_EXIT_OK;
}

static int flush_one(struct qr_cli *cli, const char *name)
{
    quire_session *session = NULL;
    struct quire_open_options options;

    quire_open_options_init(&options);
    int stop = qr_cli_open(cli, name, &options, &session);
    if (stop != QR_EXIT_OK)
        return stop;
    const quire_status status = quire_session_flush(session);
    quire_session_close(&session);
    return status == QUIRE_OK ? say_flushed(cli, name) : qr_cli_fail_call(cli, status, name);
}

static int flush_all(struct qr_cli *cli)
{
    const int stop = qr_cli_connect(cli);

    if (stop != QR_EXIT_OK)
        return stop;
    const quire_status status = quire_flush(cli->client);
    return status == QUIRE_OK ? say_flushed(cli, NULL) : qr_cli_fail_call(cli, status, "flush");
}

int qr_cmd_flush(struct qr_cli *cli, int argc, char **argv)
{
    static const struct qr_synopsis synopsis = {
        .operands = "[SESSION]",
        .about = "Wait until everything that SESSION has now, or every session, is on disk.",
        .operands_max = 1,
    };
    char **operands;
    const int stop = qr_args_parse(cli, &synopsis, argc, argv, &operands);

    if (stop != QR_ARGS_GO)
        return stop;
    return operands[0] ? flush_one(cli, operands[0]) : flush_all(cli);
}
