/* SPDX-License-Identifier: Apache-2.0
 *
 * quire fetch: a range of a session into a safetensors file. The file is mapped and the
 * library expands straight into it; it gets its name only when everything arrived.
 */
#include "args.h"
#include "commands.h"
#include "kv_file.h"
#include "output.h"

#include <stdlib.h>

#define CHUNK_TOKENS 8192 /* a call: keeps the progress bar moving */

struct job {
    const char *name, *path;
    uint64_t position, tokens;
    uint32_t first_layer, layers, first_head, heads;
    int dtype;
    bool rotate, partial;
    int64_t shift;
    quire_session *session;
    struct quire_session_info info;
    struct qr_safetensors_writer *writer;
    size_t key_index[QR_KV_LAYERS_MAX], value_index[QR_KV_LAYERS_MAX];
    uint64_t bytes, incomplete_chunks;
};

static const struct qr_choice dtypes[] = {
    {"f16", QUIRE_F16}, {"bf16", QUIRE_BF16}, {"f32", QUIRE_F32}, {NULL, 0}};

static int parse(struct qr_cli *cli, struct job *job, int argc, char **argv)
{
    const struct qr_arg args[] = {
        {"position", QR_ARG_U64, &job->position, "N", "first token (0)", NULL},
        {"tokens", QR_ARG_U64, &job->tokens, "N", "at most N tokens (all)", NULL},
        {"first-layer", QR_ARG_U32, &job->first_layer, "N", "first layer (0)", NULL},
        {"layers", QR_ARG_U32, &job->layers, "N", "number of layers (all)", NULL},
        {"first-head", QR_ARG_U32, &job->first_head, "N", "first KV head (0)", NULL},
        {"heads", QR_ARG_U32, &job->heads, "N", "number of KV heads (all)", NULL},
        {"dtype", QR_ARG_CHOICE, &job->dtype, "f16|bf16|f32", "of the file (f16)", dtypes},
        {"rotate", QR_ARG_FLAG, &job->rotate, NULL, "apply RoPE to keys stored before it",
         NULL},
        {"shift", QR_ARG_I64, &job->shift, "N", "with --rotate: added to each position (0)",
         NULL},
        {"partial", QR_ARG_FLAG, &job->partial, NULL,
         "when tokens are missing, write the others and zeros (exit code 4)", NULL},
    };
    const struct qr_synopsis synopsis = {
        .operands = "SESSION FILE",
        .about = "Write keys and values of SESSION to FILE as tensors k_layerNN and v_layerNN "
                 "of\n[tokens, heads, channels].",
        .operands_min = 2,
        .operands_max = 2,
        .groups = {{NULL, args, sizeof(args) / sizeof(args[0])}},
    };
    char **operands;
    const int stop = qr_args_parse(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    if (job->shift != 0 && !job->rotate)
        return qr_cli_fail_usage(cli, "--shift %lld: needs --rotate, which it shifts",
                                 (long long)job->shift);
    job->name = operands[0];
    job->path = operands[1];
    return QR_ARGS_GO;
}

/** Cut the ranges to what the session has; say so when nothing is left. */
static int resolve(struct qr_cli *cli, struct job *job)
{
    const uint64_t length = job->info.length;
    const uint32_t layer_count = job->info.layer_count;
    if (job->position >= length)
        return qr_cli_fail(cli, QUIRE_ERANGE, "--position %llu: %s has %llu tokens",
                           (unsigned long long)job->position, job->name,
                           (unsigned long long)length);
    if (job->tokens == 0 || job->tokens > length - job->position)
        job->tokens = length - job->position;
    if (job->first_layer >= layer_count)
        return qr_cli_fail(cli, QUIRE_ERANGE, "--first-layer %u: %s has %u layers",
                           job->first_layer, job->name, layer_count);
    if (job->layers == 0 || job->layers > layer_count - job->first_layer)
        job->layers = layer_count - job->first_layer;
    return QR_EXIT_OK;
}

static enum qr_element element_of(int dtype)
{
    return dtype == QUIRE_F16    ? QR_ELEMENT_F16
           : dtype == QUIRE_BF16 ? QR_ELEMENT_BF16
                                 : QR_ELEMENT_F32;
}

/** Heads of a layer that are wanted; 0: none. */
static uint32_t heads_of(const struct job *job, const struct quire_layers *layer)
{
    if (job->first_head >= layer->kv_heads)
        return 0;
    const uint32_t left = layer->kv_heads - job->first_head;
    return job->heads == 0 || job->heads > left ? left : job->heads;
}

static int declare(struct qr_cli *cli, struct job *job, uint32_t n)
{
    struct qr_error e = {0};
    struct quire_layers layer;
    char name[24];
    quire_status status = quire_session_layer(job->session, n, &layer);
    if (status != QUIRE_OK)
        return qr_cli_fail_call(cli, status, job->name);
    struct qr_safetensor t = {.name = name, .element = element_of(job->dtype), .rank = 3};
    t.shape[0] = job->tokens;
    t.shape[1] = heads_of(job, &layer);
    if (t.shape[1] == 0)
        return QR_EXIT_OK;
    t.shape[2] = layer.key_dim;
    qr_kv_name(name, 'k', n);
    status = qr_safetensors_declare(job->writer, &t, &job->key_index[n], &e);
    if (status == QUIRE_OK) {
        t.shape[2] = layer.value_dim;
        qr_kv_name(name, 'v', n);
        status = qr_safetensors_declare(job->writer, &t, &job->value_index[n], &e);
    }
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail(cli, status, "%s", e.text);
}

static int begin_file(struct qr_cli *cli, struct job *job)
{
    struct qr_error e = {0};
    char text[32];
    quire_status status = qr_safetensors_writer_create(&job->writer, &e);
    if (status != QUIRE_OK)
        return qr_cli_fail(cli, status, "%s", e.text);
    for (uint32_t n = job->first_layer; n < job->first_layer + job->layers; n++) {
        const int stop = declare(cli, job, n);
        if (stop != QR_EXIT_OK)
            return stop;
    }
    snprintf(text, sizeof(text), "%llu", (unsigned long long)job->position);
    status = qr_safetensors_note(job->writer, "first_position", text, &e);
    if (status == QUIRE_OK)
        status = qr_safetensors_note(job->writer, "rotated", job->rotate ? "yes" : "no", &e);
    if (status == QUIRE_OK)
        status = qr_safetensors_begin(job->writer, job->path, &e);
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail(cli, status, "%s", e.text);
}

static quire_status fetch_chunk(struct job *job, uint32_t n, const struct quire_layers *layer,
                                uint64_t done, uint64_t tokens)
{
    const size_t element = qr_element_bytes(element_of(job->dtype));
    const size_t heads = heads_of(job, layer);
    const size_t key_row = heads * layer->key_dim * element;
    const size_t value_row = heads * layer->value_dim * element;
    void *key = (char *)qr_safetensors_data(job->writer, job->key_index[n]) + done * key_row;
    void *value =
        (char *)qr_safetensors_data(job->writer, job->value_index[n]) + done * value_row;
    const struct quire_fetch fetch = {
        .position = job->position + done,
        .tokens = tokens,
        .first_layer = n,
        .layers = 1,
        .first_head = job->first_head,
        .heads = (uint32_t)heads,
        .dtype = (enum quire_dtype)job->dtype,
        .key = &key,
        .value = &value,
        .rotate = job->rotate && layer->rope_stored == QUIRE_ROPE_PRE,
        .position_shift = job->shift,
    };
    job->bytes += tokens * (key_row + value_row);
    return quire_fetch(job->session, &fetch);
}

static bool is_incomplete(quire_status status)
{
    return status == QUIRE_EMISSING || status == QUIRE_ECORRUPT;
}

static int fetch_layer(struct qr_cli *cli, struct job *job, uint32_t n,
                       struct qr_progress *progress)
{
    struct quire_layers layer;
    quire_status status = quire_session_layer(job->session, n, &layer);
    if (status != QUIRE_OK)
        return qr_cli_fail_call(cli, status, job->name);
    if (heads_of(job, &layer) == 0)
        return QR_EXIT_OK;
    for (uint64_t done = 0; done < job->tokens; done += CHUNK_TOKENS) {
        const uint64_t left = job->tokens - done;
        status = fetch_chunk(job, n, &layer, done, left < CHUNK_TOKENS ? left : CHUNK_TOKENS);
        if (is_incomplete(status) && job->partial)
            job->incomplete_chunks++;
        else if (status != QUIRE_OK)
            return qr_cli_fail_call(cli, status, job->name);
        qr_progress_update(progress, (double)((n - job->first_layer) * job->tokens + done));
    }
    return QR_EXIT_OK;
}

static int report(struct qr_cli *cli, const struct job *job, double seconds)
{
    char bytes[QR_TEXT_MAX], time[QR_TEXT_MAX];
    const int result = job->incomplete_chunks > 0 ? QR_EXIT_INCOMPLETE : QR_EXIT_OK;
    if (cli->json) {
        cJSON *root = cJSON_CreateObject();
        cJSON_AddStringToObject(root, "session", job->name);
        cJSON_AddStringToObject(root, "file", job->path);
        cJSON_AddNumberToObject(root, "position", (double)job->position);
        cJSON_AddNumberToObject(root, "tokens", (double)job->tokens);
        cJSON_AddNumberToObject(root, "layers", job->layers);
        cJSON_AddBoolToObject(root, "complete", result == QR_EXIT_OK);
        cJSON_AddNumberToObject(root, "bytes", (double)job->bytes);
        cJSON_AddNumberToObject(root, "seconds", seconds);
        qr_cli_print_json(cli, root);
        return result;
    }
    fprintf(cli->out, "%s: %llu tokens x %u layers, %s in %s (%.2f GB/s)%s\n", job->path,
            (unsigned long long)job->tokens, job->layers,
            qr_text_bytes(bytes, (double)job->bytes), qr_text_seconds(time, seconds),
            (double)job->bytes / seconds * 1e-9,
            result == QR_EXIT_OK ? "" : "; some tokens are missing and left zero");
    return result;
}

static int run(struct qr_cli *cli, struct job *job)
{
    struct qr_error e = {0};
    struct qr_progress progress;
    int stop = qr_cli_open(cli, job->name, NULL, &job->session);
    if (stop != QR_EXIT_OK)
        return stop;
    quire_status status = quire_session_info(job->session, &job->info);
    if (status != QUIRE_OK)
        return qr_cli_fail_call(cli, status, job->name);
    stop = resolve(cli, job);
    if (stop == QR_EXIT_OK)
        stop = begin_file(cli, job);
    if (stop != QR_EXIT_OK)
        return stop;
    const double start = qr_seconds();
    qr_progress_begin(&progress, cli->terminal && !cli->quiet && !cli->json ? cli->err : NULL,
                      "fetch", (double)job->tokens * job->layers);
    for (uint32_t n = 0; n < job->layers && stop == QR_EXIT_OK; n++)
        stop = fetch_layer(cli, job, job->first_layer + n, &progress);
    qr_progress_end(&progress);
    if (stop != QR_EXIT_OK)
        return stop;
    const double seconds = qr_seconds() - start;
    status = qr_safetensors_commit(job->writer, &e);
    return status == QUIRE_OK ? report(cli, job, seconds)
                              : qr_cli_fail(cli, status, "%s", e.text);
}

int qr_cmd_fetch(struct qr_cli *cli, int argc, char **argv)
{
    struct job *job = calloc(1, sizeof(*job));
    if (job == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory");
    job->dtype = QUIRE_F16;
    int result = parse(cli, job, argc, argv);
    if (result == QR_ARGS_GO)
        result = run(cli, job);
    qr_safetensors_writer_destroy(&job->writer);
    quire_session_close(&job->session);
    free(job);
    return result;
}
