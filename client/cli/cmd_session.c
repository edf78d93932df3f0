/* SPDX-License-Identifier: Apache-2.0
 *
 * quire session ls|info|fork|drop|truncate; export and import: cmd_session_move.c.
 */
#include "cmd_session.h"
#include "args.h"
#include "output.h"

#include "proto/spec_text.h"

#include <stdlib.h>
#include <string.h>

#define LIST_PAGE 64

static struct qr_codec_spec spec_of(const struct quire_codec_spec *spec)
{
    return (struct qr_codec_spec){.codec = (uint16_t)spec->codec,
                                  .bits = (uint8_t)spec->bits,
                                  .axis = (uint8_t)spec->axis,
                                  .group = (uint16_t)spec->group,
                                  .param = {spec->flags, spec->number}};
}

static void codec_text(char text[QR_SPEC_TEXT_MAX], const struct quire_codec_spec *from)
{
    const struct qr_codec_spec spec = spec_of(from);
    if (spec.codec == QR_CODEC_RAW)
        snprintf(text, QR_SPEC_TEXT_MAX, "FP16");
    else
        qr_spec_format(&spec, text);
}

static void override_text(char text[QR_OVERRIDE_TEXT_MAX], const struct quire_override *from)
{
    const struct qr_override override = {.first_layer = (uint16_t)from->first_layer,
                                         .last_layer = (uint16_t)from->last_layer,
                                         .tensors = (uint16_t)from->tensors,
                                         .spec = spec_of(&from->spec)};
    qr_override_format(&override, text);
}

static cJSON *codec_json(const struct quire_codec_spec *from)
{
    static const char *const axes[] = {"none", "channel", "token", "head"};
    const struct qr_codec_spec spec = spec_of(from);
    char text[QR_SPEC_TEXT_MAX];
    const char *name = qr_codec_name(spec.codec);
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "codec", name ? name : "?");
    cJSON_AddNumberToObject(object, "bits", spec.bits);
    if (spec.codec == QR_CODEC_RAW)
        return object;
    cJSON_AddStringToObject(object, "axis", spec.axis <= QR_AXIS_HEAD ? axes[spec.axis] : "?");
    cJSON_AddNumberToObject(object, "group", spec.group);
    qr_spec_format(&spec, text);
    cJSON_AddStringToObject(object, "text", text);
    return object;
}

static cJSON *info_json(const struct quire_session_info *info)
{
    char hex[65];
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "name", info->name);
    cJSON_AddStringToObject(root, "fingerprint", qr_text_hex(hex, info->fingerprint, 32));
    cJSON_AddNumberToObject(root, "layers", info->layer_count);
    cJSON_AddNumberToObject(root, "head_shards", info->head_shards);
    cJSON_AddNumberToObject(root, "length", (double)info->length);
    cJSON_AddNumberToObject(root, "longest", (double)info->longest);
    cJSON_AddNumberToObject(root, "epoch", (double)info->epoch);
    cJSON_AddBoolToObject(root, "leased", info->leased);
    cJSON_AddNumberToObject(root, "ttl_ms", (double)info->ttl_ms);
    cJSON_AddNumberToObject(root, "pages", (double)info->pages);
    cJSON_AddNumberToObject(root, "missing_pages", (double)info->missing_pages);
    cJSON_AddNumberToObject(root, "page_bytes", (double)info->page_bytes);
    cJSON_AddNumberToObject(root, "tail_bytes", (double)info->tail_bytes);
    cJSON_AddNumberToObject(root, "fp16_bytes", (double)info->fp16_bytes);
    cJSON_AddNumberToObject(root, "receipts", (double)info->receipts);
    cJSON_AddNumberToObject(root, "receipt_error", (double)info->receipt_error);
    cJSON_AddNumberToObject(root, "receipt_largest", (double)info->receipt_largest);
    cJSON *policy = cJSON_AddObjectToObject(root, "policy");
    cJSON_AddNumberToObject(policy, "page_tokens", info->policy.page_tokens);
    cJSON_AddNumberToObject(policy, "window", info->policy.window);
    cJSON_AddNumberToObject(policy, "sink_rows", info->policy.sink_rows);
    cJSON_AddNumberToObject(policy, "outlier_rows", info->policy.outlier_rows);
    cJSON_AddItemToObject(policy, "key", codec_json(&info->policy.key));
    cJSON_AddItemToObject(policy, "value", codec_json(&info->policy.value));
    cJSON *overrides = cJSON_AddArrayToObject(policy, "overrides");
    for (uint32_t i = 0; i < info->policy.override_count; i++) {
        char text[QR_OVERRIDE_TEXT_MAX];
        override_text(text, &info->policy.overrides[i]);
        cJSON_AddItemToArray(overrides, cJSON_CreateString(text));
    }
    return root;
}

static void add_list_row(struct qr_table *table, const struct quire_session_info *info)
{
    char held[QR_TEXT_MAX], fp16[QR_TEXT_MAX];
    qr_table_row(table, "%s\t%llu\t%llu\t%llu\t%s\t%s\t%s", info->name,
                 (unsigned long long)info->length, (unsigned long long)info->pages,
                 (unsigned long long)info->missing_pages,
                 qr_text_bytes(held, (double)(info->page_bytes + info->tail_bytes)),
                 qr_text_bytes(fp16, (double)info->fp16_bytes), info->leased ? "yes" : "no");
}

/** One page of names after another, so that the tool's memory does not grow with the store. */
static quire_status list_all(struct qr_cli *cli, const char *prefix, cJSON *array,
                             struct qr_table *table)
{
    struct quire_session_info *infos = calloc(LIST_PAGE, sizeof(*infos));
    char after[256] = "";
    bool more = true;
    quire_status status = infos == NULL ? QUIRE_ENOMEM : QUIRE_OK;
    while (status == QUIRE_OK && more) {
        size_t count = 0;
        status =
            quire_session_list(cli->client, prefix, after, infos, LIST_PAGE, &count, &more);
        if (status != QUIRE_OK || count == 0)
            break;
        for (size_t i = 0; i < count; i++) {
            if (array != NULL)
                cJSON_AddItemToArray(array, info_json(&infos[i]));
            else
                add_list_row(table, &infos[i]);
        }
        snprintf(after, sizeof(after), "%s", infos[count - 1].name);
    }
    free(infos);
    return status;
}

/** Parse and connect: QR_ARGS_GO, or how the command ends. */
static int begin(struct qr_cli *cli, const struct qr_synopsis *synopsis, int argc, char **argv,
                 char ***operands_out)
{
    const int stop = qr_args_parse(cli, synopsis, argc, argv, operands_out);

    if (stop != QR_ARGS_GO)
        return stop;
    const int connected = qr_cli_connect(cli);
    return connected == QR_EXIT_OK ? QR_ARGS_GO : connected;
}

static int session_ls(struct qr_cli *cli, int argc, char **argv)
{
    static const struct qr_synopsis synopsis = {
        .operands = "[PREFIX]",
        .about = "List sessions, those whose names begin with PREFIX.",
        .operands_max = 1,
    };
    char **operands;
    int stop = begin(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    const char *prefix = operands[0] != NULL ? operands[0] : "";
    cJSON *root = cli->json ? cJSON_CreateObject() : NULL;
    cJSON *array = cli->json ? cJSON_AddArrayToObject(root, "sessions") : NULL;
    struct qr_table *table = qr_table_create("lrrrrrl");
    qr_table_row(table, "session\ttokens\tpages\tmissing\theld\tin FP16\twriter");
    const quire_status status = list_all(cli, prefix, array, table);
    if (status != QUIRE_OK) {
        stop = qr_cli_fail_call(cli, status, "sessions");
        cJSON_Delete(root);
    } else if (cli->json) {
        stop = qr_cli_print_json(cli, root);
    } else {
        qr_table_print(table, cli->out);
        stop = QR_EXIT_OK;
    }
    qr_table_destroy(&table);
    return stop;
}

static void print_info(FILE *out, const struct quire_session_info *info)
{
    char text[QR_TEXT_MAX], codec[QR_SPEC_TEXT_MAX], hex[65];
    const double held = (double)(info->page_bytes + info->tail_bytes);
    struct qr_table *t = qr_table_create("ll");
    qr_table_row(t, "session\t%s", info->name);
    qr_table_row(t, "fingerprint\t%s", qr_text_hex(hex, info->fingerprint, 32));
    qr_table_row(t, "layers\t%u in %u head shards", info->layer_count, info->head_shards);
    qr_table_row(t, "length\t%llu tokens (longest lane %llu)", (unsigned long long)info->length,
                 (unsigned long long)info->longest);
    qr_table_row(t, "pages\t%llu, %llu missing", (unsigned long long)info->pages,
                 (unsigned long long)info->missing_pages);
    codec_text(codec, &info->policy.key);
    qr_table_row(t, "keys\t%s", codec);
    codec_text(codec, &info->policy.value);
    qr_table_row(t, "values\t%s", codec);
    for (uint32_t i = 0; i < info->policy.override_count; i++) {
        char other[QR_OVERRIDE_TEXT_MAX];
        override_text(other, &info->policy.overrides[i]);
        qr_table_row(t, "override\t%s", other);
    }
    qr_table_row(t, "page\t%u tokens; window %u, sinks %u, outliers %u",
                 info->policy.page_tokens, info->policy.window, info->policy.sink_rows,
                 info->policy.outlier_rows);
    qr_table_row(t, "in FP16\t%s", qr_text_bytes(text, (double)info->fp16_bytes));
    qr_table_row(t, "held\t%s", qr_text_bytes(text, held));
    if (info->fp16_bytes > 0)
        qr_table_row(t, "bits an element\t%.2f", 16.0 * held / (double)info->fp16_bytes);
    if (info->receipts > 0)
        qr_table_row(t, "receipts\t%llu pages measured: output error %.3g %%, largest %.3g %%",
                     (unsigned long long)info->receipts, 100 * (double)info->receipt_error,
                     100 * (double)info->receipt_largest);
    qr_table_row(t, "writer\t%s, epoch %llu", info->leased ? "yes" : "none",
                 (unsigned long long)info->epoch);
    qr_table_row(t, "time to live\t%s", qr_text_seconds(text, (double)info->ttl_ms / 1e3));
    qr_table_print(t, out);
    qr_table_destroy(&t);
}

static int session_info(struct qr_cli *cli, int argc, char **argv)
{
    static const struct qr_synopsis synopsis = {.operands = "SESSION",
                                                .about = "Show what is known of a session.",
                                                .operands_min = 1,
                                                .operands_max = 1};
    char **operands;
    quire_session *session = NULL;
    struct quire_session_info info;
    int stop = qr_args_parse(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    stop = qr_cli_open(cli, operands[0], NULL, &session);
    if (stop != QR_EXIT_OK)
        return stop;
    const quire_status status = quire_session_info(session, &info);
    if (status != QUIRE_OK)
        stop = qr_cli_fail_call(cli, status, operands[0]);
    else if (cli->json)
        stop = qr_cli_print_json(cli, info_json(&info));
    else
        print_info(cli->out, &info);
    quire_session_close(&session);
    return stop;
}

/** What a command that changes something says when it is done. */
static int say_done(struct qr_cli *cli, const char *verb, const char *name)
{
    if (cli->json) {
        cJSON *root = cJSON_CreateObject();
        cJSON_AddStringToObject(root, verb, name);
        return qr_cli_print_json(cli, root);
    }
    qr_cli_remark(cli, "%s %s", verb, name);
    return QR_EXIT_OK;
}

static int session_fork(struct qr_cli *cli, int argc, char **argv)
{
    uint64_t length = 0;
    const struct qr_arg args[] = {
        {"length", QR_ARG_U64, &length, "N", "tokens to share (all committed ones)", NULL}};
    const struct qr_synopsis synopsis = {
        .operands = "FROM TO",
        .about = "Fork session FROM under the name TO; pages are shared, not copied.",
        .operands_min = 2,
        .operands_max = 2,
        .groups = {{NULL, args, 1}},
    };
    char **operands;
    int stop = begin(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    const quire_status status =
        quire_session_fork(cli->client, operands[0], operands[1], length);
    return status == QUIRE_OK ? say_done(cli, "forked", operands[1])
                              : qr_cli_fail_call(cli, status, operands[0]);
}

static int session_drop(struct qr_cli *cli, int argc, char **argv)
{
    bool force = false;
    const struct qr_arg args[] = {
        {"force", QR_ARG_FLAG, &force, NULL, "also while a writer holds it", NULL}};
    const struct qr_synopsis synopsis = {
        .operands = "SESSION",
        .about = "Remove a session.",
        .operands_min = 1,
        .operands_max = 1,
        .groups = {{NULL, args, 1}},
    };
    char **operands;
    int stop = begin(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    const quire_status status = quire_session_drop(cli->client, operands[0], force);
    return status == QUIRE_OK ? say_done(cli, "dropped", operands[0])
                              : qr_cli_fail_call(cli, status, operands[0]);
}

static int session_truncate(struct qr_cli *cli, int argc, char **argv)
{
    uint64_t length = UINT64_MAX;
    bool force = false;
    const struct qr_arg args[] = {
        {"length", QR_ARG_U64, &length, "N", "tokens to keep; required", NULL},
        {"force", QR_ARG_FLAG, &force, NULL, "take the writer lease from its holder", NULL}};
    const struct qr_synopsis synopsis = {
        .operands = "SESSION",
        .about = "Cut a session to --length tokens.",
        .operands_min = 1,
        .operands_max = 1,
        .groups = {{NULL, args, 2}},
    };
    char **operands;
    quire_session *session = NULL;
    struct quire_open_options options;
    int stop = qr_args_parse(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    if (length == UINT64_MAX)
        return qr_cli_fail_usage(cli, "--length is required");
    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_WRITE | (force ? QUIRE_OPEN_FORCE : 0);
    stop = qr_cli_open(cli, operands[0], &options, &session);
    if (stop != QR_EXIT_OK)
        return stop;
    const quire_status status = quire_session_truncate(session, length);
    stop = status == QUIRE_OK ? say_done(cli, "truncated", operands[0])
                              : qr_cli_fail_call(cli, status, operands[0]);
    quire_session_close(&session);
    return stop;
}

int qr_cmd_session(struct qr_cli *cli, int argc, char **argv)
{
    static const struct qr_command list[] = {
        {"ls", "list sessions", session_ls},
        {"info", "show one session", session_info},
        {"fork", "fork a session: pages are shared", session_fork},
        {"drop", "remove a session", session_drop},
        {"truncate", "cut a session", session_truncate},
        {"export", "write a session as one file", qr_session_export},
        {"import", "make the session of such a file", qr_session_import},
        {NULL, NULL, NULL},
    };
    return qr_commands_run(cli, list, "session ", argc, argv);
}
