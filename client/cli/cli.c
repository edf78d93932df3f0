/* SPDX-License-Identifier: Apache-2.0
 *
 * Printing and failing, as every command does it. Calls no server.
 */
#include "cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

int qr_cli_exit_of(quire_status status)
{
    switch (status) {
    case QUIRE_OK:
        return QR_EXIT_OK;
    case QUIRE_EUNAVAILABLE:
    case QUIRE_ETIMEOUT:
        return QR_EXIT_UNAVAILABLE;
    case QUIRE_EMISSING:
    case QUIRE_ECORRUPT:
        return QR_EXIT_INCOMPLETE;
    default:
        return QR_EXIT_FAILED;
    }
}

static void report(struct qr_cli *cli, const char *status_name, const char *text)
{
    fprintf(cli->err, "quire%s%s: %s\n", cli->command ? " " : "",
            cli->command ? cli->command : "", text);
    if (!cli->json)
        return;
    cJSON *root = cJSON_CreateObject();
    cJSON *error = cJSON_AddObjectToObject(root, "error");
    cJSON_AddStringToObject(error, "status", status_name);
    cJSON_AddStringToObject(error, "text", text);
    qr_cli_print_json(cli, root);
}

int qr_cli_fail(struct qr_cli *cli, quire_status status, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    report(cli, qr_status_name(status), text);
    return status == QUIRE_ECORRUPT ? QR_EXIT_FAILED : qr_cli_exit_of(status);
}

int qr_cli_fail_usage(struct qr_cli *cli, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    report(cli, "USAGE", text);
    fprintf(cli->err, "Try 'quire %s%s--help'.\n", cli->command ? cli->command : "",
            cli->command ? " " : "");
    return QR_EXIT_USAGE;
}

void qr_cli_remark(struct qr_cli *cli, const char *format, ...)
{
    va_list args;
    if (cli->quiet || cli->json)
        return;
    va_start(args, format);
    vfprintf(cli->err, format, args);
    va_end(args);
    fputc('\n', cli->err);
}

int qr_cli_print_json(struct qr_cli *cli, cJSON *object)
{
    char *text = cJSON_Print(object);
    cJSON_Delete(object);
    if (text == NULL) {
        fprintf(cli->err, "quire: no memory for the JSON output\n");
        return QR_EXIT_FAILED;
    }
    fprintf(cli->out, "%s\n", text);
    free(text);
    return QR_EXIT_OK;
}

void qr_cli_json_text(cJSON *object, const char *key, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    cJSON_AddStringToObject(object, key, text);
}
