/* SPDX-License-Identifier: Apache-2.0
 *
 * The connection to the server, made when a command first needs it, and failures of libquire
 * in words. The only file of the tool that opens clients.
 */
#include "cli.h"

#include <string.h>

int qr_cli_fail_call(struct qr_cli *cli, quire_status status, const char *what)
{
    const struct quire_error *why = quire_last_error();
    const bool known = why->status == status && why->text[0] != 0;
    char hint[40] = "";
    if (known && why->retry_after_ms > 0)
        snprintf(hint, sizeof(hint), " (try again in %u ms)", why->retry_after_ms);
    qr_cli_fail(cli, status, "%s: %s%s", what, known ? why->text : qr_status_text(status),
                hint);
    return qr_cli_exit_of(status);
}

int qr_cli_connect(struct qr_cli *cli)
{
    struct quire_client_options options;
    if (cli->client != NULL)
        return QR_EXIT_OK;
    quire_client_options_init(&options);
    options.timeout_ms = cli->timeout_ms;
    options.receipts = cli->receipts;
    options.connect_ms =
        cli->timeout_ms < options.connect_ms ? cli->timeout_ms : options.connect_ms;
    const quire_status status = quire_client_open(cli->server, &options, &cli->client);
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail_call(cli, status, "connect");
}

int qr_cli_open(struct qr_cli *cli, const char *name, const struct quire_open_options *options,
                quire_session **out)
{
    const int stop = qr_cli_connect(cli);
    if (stop != QR_EXIT_OK)
        return stop;
    const quire_status status = quire_session_open(cli->client, name, options, out);
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail_call(cli, status, name);
}
