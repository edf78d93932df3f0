/* SPDX-License-Identifier: Apache-2.0
 *
 * quire attend: queries of a safetensors file against a session; attention output and
 * log-sum-exp into another. The tool rotates the queries, the store attends.
 */
#include "args.h"
#include "commands.h"
#include "output.h"
#include "query.h"

#include <math.h>
#include <stdlib.h>

struct job {
    const char *name, *query_path, *out_path;
    uint64_t position, first_token, last_token;
    uint32_t block, window;
    double scale, softcap;
    bool not_causal, no_window, rotated, allow_missing;
    struct qr_kv_file kv;
    quire_session *session;
    struct quire_session_info info;
    struct qr_safetensors_writer *writer;
    struct qr_query_layer *layer; /* the one at hand */
    size_t output_index[QR_KV_LAYERS_MAX], lse_index[QR_KV_LAYERS_MAX];
    float *rows;         /* [block][query heads][key_dim] of the widest layer */
    uint64_t *positions; /* [block] */
};

static int parse(struct qr_cli *cli, struct job *job, int argc, char **argv)
{
    const struct qr_arg args[] = {
        {"position", QR_ARG_U64, &job->position, "N", "position of the first query (0)", NULL},
        {"first-token", QR_ARG_U64, &job->first_token, "N", "attend from this token on (0)",
         NULL},
        {"last-token", QR_ARG_U64, &job->last_token, "N", "and before this one (the end)",
         NULL},
        {"not-causal", QR_ARG_FLAG, &job->not_causal, NULL, "also to tokens after the query",
         NULL},
        {"window", QR_ARG_U32, &job->window, "N", "sliding window (the layer's own)", NULL},
        {"no-window", QR_ARG_FLAG, &job->no_window, NULL, "no window, whatever the layer has",
         NULL},
        {"scale", QR_ARG_REAL, &job->scale, "X", "of scores (1/sqrt of the key channels)",
         NULL},
        {"softcap", QR_ARG_REAL, &job->softcap, "X", "c * tanh(z / c) of scores (off)", NULL},
        {"rotated", QR_ARG_FLAG, &job->rotated, NULL, "the queries carry RoPE already", NULL},
        {"allow-missing", QR_ARG_FLAG, &job->allow_missing, NULL,
         "attend over what is still stored", NULL},
        {"block", QR_ARG_U32, &job->block, "N", "query positions a call (64)", NULL},
    };
    const struct qr_synopsis synopsis = {
        .operands = "SESSION QUERIES OUT",
        .about = "Attend to SESSION with the queries of QUERIES (tensors q_layerNN); write "
                 "tensors\no_layerNN [queries, heads, channels] and lse_layerNN [queries, "
                 "heads], F32, to OUT.",
        .operands_min = 3,
        .operands_max = 3,
        .groups = {{NULL, args, sizeof(args) / sizeof(args[0])}},
    };
    char **operands;
    const int stop = qr_args_parse(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    if (job->block == 0 || job->block > 4096)
        return qr_cli_fail_usage(cli, "--block %u: must be 1 to 4096", job->block);
    job->name = operands[0];
    job->query_path = operands[1];
    job->out_path = operands[2];
    return QR_ARGS_GO;
}

static int declare(struct qr_cli *cli, struct job *job, uint32_t i)
{
    const struct qr_safetensor *query = job->kv.layers[i].query;
    const uint32_t n = qr_kv_model_layer(&job->kv, i, job->info.layer_count);
    struct qr_error e = {0};
    struct quire_layers layer;
    char name[24];
    if (n >= job->info.layer_count)
        return qr_cli_fail(cli, QUIRE_EMISMATCH,
                           "%s: layer %u, the session's model has layers 0 to %u",
                           job->query_path, n, job->info.layer_count - 1);
    quire_status status = quire_session_layer(job->session, n, &layer);
    if (status != QUIRE_OK)
        return qr_cli_fail_call(cli, status, job->name);
    if (query->shape[1] != layer.query_heads || query->shape[2] != layer.key_dim)
        return qr_cli_fail(cli, QUIRE_EMISMATCH,
                           "%s: %s has %llu heads of %llu channels, the session's model %u of "
                           "%u",
                           job->query_path, query->name, (unsigned long long)query->shape[1],
                           (unsigned long long)query->shape[2], layer.query_heads,
                           layer.key_dim);
    struct qr_safetensor t = {.name = name, .element = QR_ELEMENT_F32, .rank = 3};
    t.shape[0] = job->kv.tokens;
    t.shape[1] = layer.query_heads;
    t.shape[2] = layer.value_dim;
    qr_kv_name(name, 'o', n);
    status = qr_safetensors_declare(job->writer, &t, &job->output_index[i], &e);
    if (status == QUIRE_OK) {
        t.rank = 2;
        snprintf(name, sizeof(name), "lse_layer%02u", n);
        status = qr_safetensors_declare(job->writer, &t, &job->lse_index[i], &e);
    }
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail(cli, status, "%s", e.text);
}

static int begin_file(struct qr_cli *cli, struct job *job)
{
    struct qr_error e = {0};
    size_t widest = 1;
    quire_status status = qr_safetensors_writer_create(&job->writer, &e);
    if (status != QUIRE_OK)
        return qr_cli_fail(cli, status, "%s", e.text);
    for (uint32_t i = 0; i < job->kv.count; i++) {
        const struct qr_safetensor *query = job->kv.layers[i].query;
        const int stop = declare(cli, job, i);
        if (stop != QR_EXIT_OK)
            return stop;
        if (query->shape[1] * query->shape[2] > widest)
            widest = (size_t)(query->shape[1] * query->shape[2]);
    }
    job->rows = calloc(job->block * widest, sizeof(*job->rows));
    job->positions = calloc(job->block, sizeof(*job->positions));
    job->layer = calloc(1, sizeof(*job->layer));
    if (job->rows == NULL || job->positions == NULL || job->layer == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory for %u queries", job->block);
    status = qr_safetensors_begin(job->writer, job->out_path, &e);
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail(cli, status, "%s", e.text);
}

static quire_status attend_block(struct job *job, uint32_t i, uint64_t first, uint32_t count)
{
    const struct quire_layers *layer = &job->layer->layer;
    float *output = qr_safetensors_data(job->writer, job->output_index[i]);
    float *lse = qr_safetensors_data(job->writer, job->lse_index[i]);
    for (uint32_t j = 0; j < count; j++)
        job->positions[j] = job->position + first + j;
    qr_query_rows(job->kv.layers[i].query, job->kv.dtype, first, count, job->position + first,
                  job->layer->rotates && !job->rotated ? &job->layer->rope : NULL, job->rows);
    const struct quire_attend attend = {
        .first_layer = qr_kv_model_layer(&job->kv, i, job->info.layer_count),
        .layers = 1,
        .queries = count,
        .positions = job->positions,
        .dtype = QUIRE_F32,
        .query = job->rows,
        .first_token = job->first_token,
        .last_token = job->last_token,
        .not_causal = job->not_causal,
        .window = job->no_window ? QUIRE_WINDOW_NONE : job->window,
        .scale = (float)job->scale,
        .softcap = (float)job->softcap,
        .allow_missing = job->allow_missing,
        .output = output + first * layer->query_heads * layer->value_dim,
        .lse = lse + first * layer->query_heads,
    };
    return quire_attend(job->session, &attend);
}

static int attend_layer(struct qr_cli *cli, struct job *job, uint32_t i,
                        struct qr_progress *progress)
{
    const uint32_t n = qr_kv_model_layer(&job->kv, i, job->info.layer_count);
    quire_status status = qr_query_layer_get(job->session, n, job->layer);
    for (uint64_t done = 0; status == QUIRE_OK && done < job->kv.tokens; done += job->block) {
        const uint64_t left = job->kv.tokens - done;
        status = attend_block(job, i, done, left < job->block ? (uint32_t)left : job->block);
        qr_progress_update(progress, (double)(i * job->kv.tokens + done));
    }
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail_call(cli, status, job->name);
}

static int report(struct qr_cli *cli, const struct job *job, double seconds)
{
    char time[QR_TEXT_MAX];
    if (cli->json) {
        cJSON *root = cJSON_CreateObject();
        cJSON_AddStringToObject(root, "session", job->name);
        cJSON_AddStringToObject(root, "file", job->out_path);
        cJSON_AddNumberToObject(root, "queries", (double)job->kv.tokens);
        cJSON_AddNumberToObject(root, "layers", job->kv.count);
        cJSON_AddNumberToObject(root, "seconds", seconds);
        return qr_cli_print_json(cli, root);
    }
    fprintf(cli->out, "%s: %llu queries x %u layers in %s\n", job->out_path,
            (unsigned long long)job->kv.tokens, job->kv.count, qr_text_seconds(time, seconds));
    return QR_EXIT_OK;
}

static int run(struct qr_cli *cli, struct job *job)
{
    struct qr_error e = {0};
    struct qr_progress progress;
    quire_status status = qr_kv_file_open(job->query_path, QR_KV_NEED_QUERY, &job->kv, &e);
    if (status != QUIRE_OK)
        return qr_cli_fail(cli, status, "%s", e.text);
    int stop = qr_cli_open(cli, job->name, NULL, &job->session);
    if (stop != QR_EXIT_OK)
        return stop;
    status = quire_session_info(job->session, &job->info);
    if (status != QUIRE_OK)
        return qr_cli_fail_call(cli, status, job->name);
    stop = begin_file(cli, job);
    const double start = qr_seconds();
    qr_progress_begin(&progress, cli->terminal && !cli->quiet && !cli->json ? cli->err : NULL,
                      "attend", (double)job->kv.tokens * job->kv.count);
    for (uint32_t i = 0; i < job->kv.count && stop == QR_EXIT_OK; i++)
        stop = attend_layer(cli, job, i, &progress);
    qr_progress_end(&progress);
    if (stop != QR_EXIT_OK)
        return stop;
    const double seconds = qr_seconds() - start;
    status = qr_safetensors_commit(job->writer, &e);
    return status == QUIRE_OK ? report(cli, job, seconds)
                              : qr_cli_fail(cli, status, "%s", e.text);
}

int qr_cmd_attend(struct qr_cli *cli, int argc, char **argv)
{
    struct job *job = calloc(1, sizeof(*job));
    if (job == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory");
    job->block = 64;
    int result = parse(cli, job, argc, argv);
    if (result == QR_ARGS_GO)
        result = run(cli, job);
    qr_safetensors_writer_destroy(&job->writer);
    quire_session_close(&job->session);
    qr_kv_file_close(&job->kv);
    free(job->layer);
    free(job->rows);
    free(job->positions);
    free(job);
    return result;
}
