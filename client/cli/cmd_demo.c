/* SPDX-License-Identifier: Apache-2.0
 *
 * quire demo: real keys and values go in as an engine would append them, come back as
 * attention inputs and as attention outputs, and one table says what that cost.
 */
#include "args.h"
#include "commands.h"
#include "demo.h"
#include "measure.h"
#include "output.h"

#include <stdlib.h>
#include <unistd.h>

static int parse(struct qr_cli *cli, struct qr_demo *d, int argc, char **argv)
{
    const struct qr_arg args[] = {
        {"name", QR_ARG_TEXT, &d->session_name, "SESSION", "session to make (demo-PID)", NULL},
        {"block", QR_ARG_U32, &d->block, "N", "tokens a prefill call (256)", NULL},
        {"repeats", QR_ARG_U32, &d->repeats, "N", "fetches, of which the median counts (21)",
         NULL},
        {"stride", QR_ARG_U32, &d->stride, "N",
         "compare every N-th query with the reference (4)", NULL},
        {"keep", QR_ARG_FLAG, &d->keep, NULL, "leave the session in the store", NULL},
    };
    const struct qr_synopsis synopsis = {
        .operands = "FILE",
        .about = "Append the keys and values of FILE (k_layerNN, v_layerNN), fetch them back, "
                 "attend with\nits queries (q_layerNN), compare with the originals, and print "
                 "one table.",
        .operands_min = 1,
        .operands_max = 1,
        .groups = {{NULL, args, sizeof(args) / sizeof(args[0])},
                   {"Model (default: that of tests/data)", d->model.args + 1,
                    QR_MODEL_ARGS - 1},
                   {"Pages", d->policy.args, QR_POLICY_ARGS}},
    };
    char **operands;
    const int stop = qr_args_parse(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    if (d->block == 0 || d->stride == 0 || d->repeats == 0 || d->repeats > 10000)
        return qr_cli_fail_usage(cli, "--block, --stride and --repeats must be at least 1, "
                                      "--repeats at most 10000");
    d->path = operands[0];
    return QR_ARGS_GO;
}

static double worst(const struct qr_demo *d)
{
    double most = 0;
    for (uint32_t i = 0; i < d->layers; i++)
        most = d->layer[i].output_error > most ? d->layer[i].output_error : most;
    return most;
}

static void add_size_rows(struct qr_table *t, const struct qr_demo *d)
{
    char text[QR_TEXT_MAX], other[QR_TEXT_MAX];
    const double held = (double)(d->info.page_bytes + d->info.tail_bytes);
    qr_table_row(t, "in FP16\t%s\t%u tokens, %u layers, %u KV heads of %u and %u channels",
                 qr_text_bytes(text, d->fp16_bytes), d->tokens, d->layers, d->kv_heads,
                 d->key_dim, d->value_dim);
    qr_table_row(t, "held\t%s\t%llu pages, and %s of the newest tokens in FP16",
                 qr_text_bytes(text, held), (unsigned long long)d->info.pages,
                 qr_text_bytes(other, (double)d->info.tail_bytes));
    qr_table_row(t, "bits an element\t%.2f\tall that is held, FP16 is 16",
                 16 * held / d->fp16_bytes);
    if (d->info.pages > 0) {
        const double sealed = (double)d->info.pages / d->layers * d->info.policy.page_tokens;
        qr_table_row(t, "  in pages\t%.2f\tcodes, scales, raw rows, headers",
                     16 * (double)d->info.page_bytes / (d->fp16_bytes * sealed / d->tokens));
    }
}

static void add_speed_rows(struct qr_table *t, const struct qr_demo *d)
{
    char text[QR_TEXT_MAX], other[QR_TEXT_MAX];
    const double copy = qr_measure_rate(d->fp16_bytes, d->memcpy_seconds);
    const double fetch = qr_measure_rate(d->fp16_bytes, d->fetch_seconds);
    const double prefill = qr_measure_rate(d->prefill_bytes, d->prefill_seconds);
    qr_table_row(t, "append, prefill\t%.2f GB/s\t%.2f of memcpy; blocks of %u, layer by layer",
                 prefill, prefill / copy, d->block);
    qr_table_row(t, "append, 1 token\t%s\tmedian; an empty call takes %s: %.1f times that",
                 qr_text_seconds(text, d->decode_seconds),
                 qr_text_seconds(other, d->ping_seconds), d->decode_seconds / d->ping_seconds);
    qr_table_row(t, "fetch with RoPE\t%.2f GB/s\tFP16 delivered, median of %u", fetch,
                 d->repeats);
    qr_table_row(t, "  memcpy\t%.2f GB/s\tthe same bytes in turns: fetch is %.2f of it", copy,
                 fetch / copy);
    qr_table_row(t, "attend\t%s\t%u queries x %u heads x %u layers, causal",
                 qr_text_seconds(text, d->attend_seconds), d->tokens, d->query_heads,
                 d->layers);
}

static void add_error_rows(struct qr_table *t, const struct qr_demo *d)
{
    double key = 0, value = 0;
    for (uint32_t i = 0; i < d->layers; i++) {
        key += d->layer[i].key_error / d->layers;
        value += d->layer[i].value_error / d->layers;
    }
    qr_table_row(t, "attention output error\t%.3f %%\trelative Frobenius; worst layer %.3f %%",
                 100 * d->output_error, 100 * worst(d));
    qr_table_row(t, "log-sum-exp error\t%.1e\tmean, absolute; largest %.1e", d->lse_mean_error,
                 d->lse_largest_error);
    qr_table_row(t, "stored keys, values\t%.2f, %.2f %%\trelative Frobenius, mean of layers",
                 100 * key, 100 * value);
}

static void print_table(struct qr_cli *cli, const struct qr_demo *d)
{
    struct qr_table *t = qr_table_create("lrl");
    add_size_rows(t, d);
    qr_table_rule(t);
    add_speed_rows(t, d);
    qr_table_rule(t);
    add_error_rows(t, d);
    qr_table_print(t, cli->out);
    qr_table_destroy(&t);
    fprintf(
        cli->out,
        "\nErrors are against FP64 attention over the FP16 originals, causal entries, %u of "
        "%u queries.\n",
        d->reference_queries, d->tokens);
}

static int print_json(struct qr_cli *cli, const struct qr_demo *d)
{
    const double held = (double)(d->info.page_bytes + d->info.tail_bytes);
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "tokens", d->tokens);
    cJSON_AddNumberToObject(root, "layers", d->layers);
    cJSON_AddNumberToObject(root, "fp16_bytes", d->fp16_bytes);
    cJSON_AddNumberToObject(root, "held_bytes", held);
    cJSON_AddNumberToObject(root, "page_bytes", (double)d->info.page_bytes);
    cJSON_AddNumberToObject(root, "tail_bytes", (double)d->info.tail_bytes);
    cJSON_AddNumberToObject(root, "bits_per_element", 16 * held / d->fp16_bytes);
    cJSON_AddNumberToObject(root, "prefill_gb_per_s",
                            qr_measure_rate(d->prefill_bytes, d->prefill_seconds));
    cJSON_AddNumberToObject(root, "fetch_gb_per_s",
                            qr_measure_rate(d->fp16_bytes, d->fetch_seconds));
    cJSON_AddNumberToObject(root, "memcpy_gb_per_s",
                            qr_measure_rate(d->fp16_bytes, d->memcpy_seconds));
    cJSON_AddNumberToObject(root, "fetch_to_memcpy", d->memcpy_seconds / d->fetch_seconds);
    cJSON_AddNumberToObject(root, "ping_p50_us", d->ping_seconds * 1e6);
    cJSON_AddNumberToObject(root, "append_1_token_p50_us", d->decode_seconds * 1e6);
    cJSON_AddNumberToObject(root, "attend_seconds", d->attend_seconds);
    cJSON_AddNumberToObject(root, "reference_queries", d->reference_queries);
    cJSON_AddNumberToObject(root, "output_error", d->output_error);
    cJSON_AddNumberToObject(root, "lse_mean_error", d->lse_mean_error);
    cJSON_AddNumberToObject(root, "lse_largest_error", d->lse_largest_error);
    cJSON *layers = cJSON_AddArrayToObject(root, "per_layer");
    for (uint32_t i = 0; i < d->layers; i++) {
        cJSON *layer = cJSON_CreateObject();
        cJSON_AddNumberToObject(layer, "layer", d->kv.layers[i].number);
        cJSON_AddNumberToObject(layer, "output_error", d->layer[i].output_error);
        cJSON_AddNumberToObject(layer, "key_error", d->layer[i].key_error);
        cJSON_AddNumberToObject(layer, "value_error", d->layer[i].value_error);
        cJSON_AddItemToArray(layers, layer);
    }
    return qr_cli_print_json(cli, root);
}

static int run(struct qr_cli *cli, struct qr_demo *d)
{
    int result = qr_demo_run(cli, d);
    if (result == QR_EXIT_OK)
        result = qr_demo_compare(cli, d);
    const bool made = d->session != NULL;
    quire_session_close(&d->session);
    if (made && !d->keep) {
        const quire_status status = quire_session_drop(cli->client, d->session_name, false);
        if (status != QUIRE_OK && result == QR_EXIT_OK)
            result = qr_cli_fail_call(cli, status, d->session_name);
    }
    if (result != QR_EXIT_OK)
        return result;
    if (cli->json)
        return print_json(cli, d);
    print_table(cli, d);
    return QR_EXIT_OK;
}

int qr_cmd_demo(struct qr_cli *cli, int argc, char **argv)
{
    char name[32];
    struct qr_demo *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory");
    snprintf(name, sizeof(name), "demo-%ld", (long)getpid());
    d->session_name = name;
    d->block = 256;
    d->repeats = 21;
    d->stride = 4;
    qr_policy_args_init(&d->policy);
    qr_model_args_init(&d->model);
    d->model.name = "SmolLM2-135M";
    d->model.stored = QUIRE_ROPE_PRE;
    d->model.theta = 100000;
    int result = parse(cli, d, argc, argv);
    if (result == QR_ARGS_GO)
        result = run(cli, d);
    qr_kv_file_close(&d->kv);
    free(d->rope);
    free(d->key);
    free(d->value);
    free(d->query);
    free(d->output);
    free(d->lse);
    free(d);
    return result;
}
