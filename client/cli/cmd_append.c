/* SPDX-License-Identifier: Apache-2.0
 *
 * quire append: keys and values of a safetensors file into a session, block by block and
 * layer by layer, as an engine's prefill would. Creates the session when it is told a model.
 */
#include "commands.h"
#include "output.h"
#include "policy_args.h"
#include "policy_file.h"

#include <stdlib.h>

#define POSITION_LENGTH UINT64_MAX

struct job {
    const char *name, *path, *policy_path;
    struct qr_policy_args policy;
    struct qr_model_args model;
    uint64_t position, skip, tokens;
    uint32_t block;
    bool no_token_ids, force;
    int durability;
    struct qr_kv_file kv;
    quire_session *session;
    struct quire_session_info info;
    uint64_t bytes;
};

static const struct qr_choice durabilities[] = {
    {"memory", QUIRE_MEMORY}, {"disk", QUIRE_DISK}, {NULL, 0}};

static int parse(struct qr_cli *cli, struct job *job, int argc, char **argv)
{
    const struct qr_arg args[] = {
        {"position", QR_ARG_U64, &job->position, "N",
         "where the first token goes (the session's length)", NULL},
        {"skip", QR_ARG_U64, &job->skip, "N", "leave out the file's first N tokens (0)", NULL},
        {"tokens", QR_ARG_U64, &job->tokens, "N", "append at most N tokens (all)", NULL},
        {"block", QR_ARG_U32, &job->block, "N", "tokens a call (512)", NULL},
        {"no-token-ids", QR_ARG_FLAG, &job->no_token_ids, NULL,
         "leave out the file's token ids: pages are then not shared", NULL},
        {"durability", QR_ARG_CHOICE, &job->durability, "memory|disk",
         "what to wait for (memory)", durabilities},
        {"receipts", QR_ARG_U32, &cli->receipts, "N",
         "measure the attention output error of one in N pages that are sealed here; 1 all, 0 "
         "none (0)",
         NULL},
        {"policy", QR_ARG_TEXT, &job->policy_path, "FILE",
         "how a new session's pages are made, as quire tune writes it; instead of the options "
         "below",
         NULL},
        {"force", QR_ARG_FLAG, &job->force, NULL, "take the writer lease from its holder",
         NULL},
    };
    const struct qr_synopsis synopsis = {
        .operands = "SESSION FILE",
        .about = "Append the keys and values of FILE (tensors k_layerNN and v_layerNN) to "
                 "SESSION.\nWith --model or --rope the session is created when it is absent.",
        .operands_min = 2,
        .operands_max = 2,
        .groups = {{NULL, args, sizeof(args) / sizeof(args[0])},
                   {"Model of a new session", job->model.args, QR_MODEL_ARGS},
                   {"Pages of a new session", job->policy.args, QR_POLICY_ARGS}},
    };
    char **operands;
    const int stop = qr_args_parse(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    if (job->tokens == 0)
        return qr_cli_fail_usage(cli, "--tokens 0: must be at least 1");
    if (job->block == 0)
        return qr_cli_fail_usage(cli, "--block 0: must be at least 1");
    job->name = operands[0];
    job->path = operands[1];
    return QR_ARGS_GO;
}

static int open_session(struct qr_cli *cli, struct job *job)
{
    uint8_t fingerprint[32];
    struct quire_open_options options;
    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_WRITE | (job->force ? QUIRE_OPEN_FORCE : 0);
    int stop = qr_cli_connect(cli);
    if (stop != QR_EXIT_OK)
        return stop;
    if (qr_model_args_given(&job->model)) {
        struct qr_error e = {0};
        struct qr_model_file *model = malloc(sizeof(*model));
        if (model == NULL)
            return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory for the model");
        quire_status status = qr_model_args_take(&job->model, &job->kv, model, &e);
        if (status != QUIRE_OK)
            stop = qr_cli_fail(cli, status, "%s", e.text);
        else if ((status = quire_model_register(cli->client, &model->model, fingerprint)))
            stop = qr_cli_fail_call(cli, status, "model");
        free(model);
        if (stop != QR_EXIT_OK)
            return stop;
        options.flags |= QUIRE_OPEN_CREATE;
        options.fingerprint = fingerprint;
        options.policy = qr_policy_args_take(&job->policy, &e);
        if (options.policy != NULL && job->policy_path != NULL &&
            qr_policy_file_read(job->policy_path, &job->policy.policy, &e) != QUIRE_OK)
            options.policy = NULL;
        if (options.policy == NULL)
            return qr_cli_fail(cli, e.status, "%s", e.text);
    }
    const quire_status status =
        quire_session_open(cli->client, job->name, &options, &job->session);
    if (status == QUIRE_ENOTFOUND && !qr_model_args_given(&job->model))
        return qr_cli_fail(cli, status,
                           "no session '%s'; to create it, say --model FILE or --rope "
                           "none|pre|post",
                           job->name);
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail_call(cli, status, job->name);
}

/** The file's layers against the session's, before anything is sent. */
static int check_geometry(struct qr_cli *cli, const struct job *job)
{
    for (uint32_t i = 0; i < job->kv.count; i++) {
        const struct qr_kv_layer *layer = &job->kv.layers[i];
        const uint32_t n = qr_kv_model_layer(&job->kv, i, job->info.layer_count);
        struct quire_layers want;
        if (n >= job->info.layer_count)
            return qr_cli_fail(cli, QUIRE_EMISMATCH,
                               "%s: layer %u, the session's model has layers 0 to %u",
                               job->path, n, job->info.layer_count - 1);
        const quire_status status = quire_session_layer(job->session, n, &want);
        if (status != QUIRE_OK)
            return qr_cli_fail_call(cli, status, job->name);
        if (layer->key->shape[1] != want.kv_heads || layer->key->shape[2] != want.key_dim ||
            layer->value->shape[2] != want.value_dim)
            return qr_cli_fail(
                cli, QUIRE_EMISMATCH,
                "%s: layer %u has %llu heads of %llu and %llu channels, the session's model "
                "%u of %u and %u",
                job->path, layer->number, (unsigned long long)layer->key->shape[1],
                (unsigned long long)layer->key->shape[2],
                (unsigned long long)layer->value->shape[2], want.kv_heads, want.key_dim,
                want.value_dim);
    }
    return QR_EXIT_OK;
}

static quire_status append_block(struct job *job, uint64_t done, uint32_t tokens)
{
    for (uint32_t i = 0; i < job->kv.count; i++) {
        const struct qr_kv_layer *layer = &job->kv.layers[i];
        const uint64_t row = job->skip + done;
        const void *key = layer->key->data + row * qr_kv_token_bytes(layer->key);
        const void *value = layer->value->data + row * qr_kv_token_bytes(layer->value);
        const struct quire_append append = {
            .position = job->position + done,
            .tokens = tokens,
            .first_layer = qr_kv_model_layer(&job->kv, i, job->info.layer_count),
            .layers = 1,
            .dtype = job->kv.dtype,
            .key = &key,
            .value = &value,
            .token_ids =
                job->kv.token_ids && !job->no_token_ids ? job->kv.token_ids + row : NULL,
            .durability = (enum quire_durability)job->durability,
        };
        const quire_status status = quire_append(job->session, &append, NULL);
        if (status != QUIRE_OK)
            return status;
        job->bytes +=
            tokens * (qr_kv_token_bytes(layer->key) + qr_kv_token_bytes(layer->value));
    }
    return QUIRE_OK;
}

static int append_all(struct qr_cli *cli, struct job *job, double *seconds_out)
{
    struct qr_progress progress;
    quire_status status = QUIRE_OK;
    const double start = qr_seconds();
    qr_progress_begin(&progress, cli->terminal && !cli->quiet && !cli->json ? cli->err : NULL,
                      "append", (double)job->tokens);
    for (uint64_t done = 0; done < job->tokens && status == QUIRE_OK; done += job->block) {
        const uint64_t left = job->tokens - done;
        status = append_block(job, done, left < job->block ? (uint32_t)left : job->block);
        qr_progress_update(&progress, (double)done);
    }
    qr_progress_end(&progress);
    *seconds_out = qr_seconds() - start;
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail_call(cli, status, job->name);
}

static int report(struct qr_cli *cli, const struct job *job, double seconds)
{
    char bytes[QR_TEXT_MAX], time[QR_TEXT_MAX];
    struct quire_session_info info;
    const quire_status status = quire_session_info(job->session, &info);
    if (status != QUIRE_OK)
        return qr_cli_fail_call(cli, status, job->name);
    if (cli->json) {
        cJSON *root = cJSON_CreateObject();
        cJSON_AddStringToObject(root, "session", job->name);
        cJSON_AddNumberToObject(root, "position", (double)job->position);
        cJSON_AddNumberToObject(root, "tokens", (double)job->tokens);
        cJSON_AddNumberToObject(root, "length", (double)info.length);
        cJSON_AddNumberToObject(root, "bytes", (double)job->bytes);
        cJSON_AddNumberToObject(root, "seconds", seconds);
        return qr_cli_print_json(cli, root);
    }
    fprintf(cli->out, "%s: %llu tokens at %llu, %s in %s (%.2f GB/s); length %llu\n", job->name,
            (unsigned long long)job->tokens, (unsigned long long)job->position,
            qr_text_bytes(bytes, (double)job->bytes), qr_text_seconds(time, seconds),
            (double)job->bytes / seconds * 1e-9, (unsigned long long)info.length);
    return QR_EXIT_OK;
}

static int run(struct qr_cli *cli, struct job *job)
{
    struct qr_error e = {0};
    double seconds = 0;
    quire_status status = qr_kv_file_open(job->path, QR_KV_NEED_KV, &job->kv, &e);
    if (status != QUIRE_OK)
        return qr_cli_fail(cli, status, "%s", e.text);
    if (job->skip >= job->kv.tokens)
        return qr_cli_fail(cli, QUIRE_ERANGE, "--skip %llu: %s has %llu tokens",
                           (unsigned long long)job->skip, job->path,
                           (unsigned long long)job->kv.tokens);
    if (job->tokens > job->kv.tokens - job->skip)
        job->tokens = job->kv.tokens - job->skip;
    int stop = open_session(cli, job);
    if (stop != QR_EXIT_OK)
        return stop;
    status = quire_session_info(job->session, &job->info);
    if (status != QUIRE_OK)
        return qr_cli_fail_call(cli, status, job->name);
    if (job->position == POSITION_LENGTH)
        job->position = job->info.length;
    stop = check_geometry(cli, job);
    if (stop == QR_EXIT_OK)
        stop = append_all(cli, job, &seconds);
    return stop == QR_EXIT_OK ? report(cli, job, seconds) : stop;
}

int qr_cmd_append(struct qr_cli *cli, int argc, char **argv)
{
    struct job *job = calloc(1, sizeof(*job));
    if (job == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory");
    job->position = POSITION_LENGTH;
    job->tokens = UINT64_MAX;
    job->block = 512;
    qr_policy_args_init(&job->policy);
    qr_model_args_init(&job->model);
    int result = parse(cli, job, argc, argv);
    if (result == QR_ARGS_GO)
        result = run(cli, job);
    quire_session_close(&job->session);
    qr_kv_file_close(&job->kv);
    free(job);
    return result;
}
