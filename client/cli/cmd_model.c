/* SPDX-License-Identifier: Apache-2.0
 *
 * quire model register: a model file to the server; prints the fingerprint.
 */
#include "args.h"
#include "commands.h"
#include "model_file.h"
#include "output.h"

#include <stdlib.h>

static int register_model(struct qr_cli *cli, const char *path, struct qr_model_file *model)
{
    uint8_t fingerprint[32];
    char hex[65];
    struct qr_error e = {0};
    quire_status status = qr_model_file_read(path, model, &e);
    if (status != QUIRE_OK)
        return qr_cli_fail(cli, status, "%s", e.text);
    const int stop = qr_cli_connect(cli);
    if (stop != QR_EXIT_OK)
        return stop;
    status = quire_model_register(cli->client, &model->model, fingerprint);
    if (status != QUIRE_OK)
        return qr_cli_fail_call(cli, status, path);
    qr_text_hex(hex, fingerprint, 32);
    if (cli->json) {
        cJSON *root = cJSON_CreateObject();
        cJSON_AddStringToObject(root, "name", model->name);
        cJSON_AddStringToObject(root, "fingerprint", hex);
        return qr_cli_print_json(cli, root);
    }
    fprintf(cli->out, "%s\n", hex);
    return QR_EXIT_OK;
}

static int model_register(struct qr_cli *cli, int argc, char **argv)
{
    static const struct qr_synopsis synopsis = {
        .operands = "FILE",
        .about = "Register the model that FILE describes (JSON, see quire(1)); prints its "
                 "fingerprint.",
        .operands_min = 1,
        .operands_max = 1,
    };
    char **operands;
    int stop = qr_args_parse(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    struct qr_model_file *model = malloc(sizeof(*model));
    if (model == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory for the model");
    stop = register_model(cli, operands[0], model);
    free(model);
    return stop;
}

int qr_cmd_model(struct qr_cli *cli, int argc, char **argv)
{
    static const struct qr_command list[] = {
        {"register", "register a model file", model_register},
        {NULL, NULL, NULL},
    };
    return qr_commands_run(cli, list, "model ", argc, argv);
}
