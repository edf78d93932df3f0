/* SPDX-License-Identifier: Apache-2.0
 *
 * quire bench: a long session made of a real sample, tiled with noise; append, fetch, attend
 * and open times beside memcpy and an empty round trip of the same run.
 */
#include "args.h"
#include "bench.h"
#include "commands.h"
#include "measure.h"
#include "output.h"

#include <stdlib.h>
#include <unistd.h>

static int parse(struct qr_cli *cli, struct qr_bench *b, int argc, char **argv)
{
    const struct qr_arg args[] = {
        {"tokens", QR_ARG_U64, &b->tokens, "N", "length of the session (65536)", NULL},
        {"layers", QR_ARG_U32, &b->layers, "N", "layers (4)", NULL},
        {"kv-heads", QR_ARG_U32, &b->kv_heads, "N", "KV heads (those of FILE)", NULL},
        {"key-dim", QR_ARG_U32, &b->key_dim, "N", "channels of a key (those of FILE)", NULL},
        {"value-dim", QR_ARG_U32, &b->value_dim, "N", "of a value (those of FILE)", NULL},
        {"block", QR_ARG_U32, &b->block, "N", "tokens an append call (4096)", NULL},
        {"fetch-block", QR_ARG_U32, &b->fetch_block, "N", "tokens a fetch call (8192)", NULL},
        {"repeats", QR_ARG_U32, &b->repeats, "N", "attends, opens and decode steps (9)", NULL},
        {"seed", QR_ARG_U64, &b->seed, "N", "of the noise (1)", NULL},
        {"name", QR_ARG_TEXT, &b->session_name, "SESSION", "session to make (bench-PID)", NULL},
        {"keep", QR_ARG_FLAG, &b->keep, NULL, "leave the session in the store", NULL},
        {"ignore-budget", QR_ARG_FLAG, &b->ignore_budget, NULL,
         "go on when the server's budget looks too small", NULL},
    };
    const struct qr_synopsis synopsis = {
        .operands = "FILE",
        .about = "Make a session of --tokens tokens from the keys and values of FILE, tiled "
                 "with noise, and\nreport append, fetch, attend and open times.",
        .operands_min = 1,
        .operands_max = 1,
        .groups = {{NULL, args, sizeof(args) / sizeof(args[0])},
                   {"Model (default: that of tests/data)", b->model.args + 1,
                    QR_MODEL_ARGS - 1},
                   {"Pages", b->policy.args, QR_POLICY_ARGS}},
    };
    char **operands;
    const int stop = qr_args_parse(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    b->path = operands[0];
    if (b->tokens == 0 || b->tokens + b->repeats > QR_POSITION_MAX)
        return qr_cli_fail_usage(cli, "--tokens %llu: must be 1 to %u",
                                 (unsigned long long)b->tokens, QR_POSITION_MAX - b->repeats);
    if (b->layers == 0 || b->layers > QR_KV_LAYERS_MAX)
        return qr_cli_fail_usage(cli, "--layers %u: must be 1 to %d", b->layers,
                                 QR_KV_LAYERS_MAX);
    if (b->block == 0 || b->block > 65536 || b->fetch_block == 0 || b->fetch_block > 65536)
        return qr_cli_fail_usage(cli, "--block %u, --fetch-block %u: must be 1 to 65536",
                                 b->block, b->fetch_block);
    if (b->repeats == 0 || b->repeats > 10000)
        return qr_cli_fail_usage(cli, "--repeats %u: must be 1 to 10000", b->repeats);
    struct qr_error e = {0};
    if (qr_policy_args_take(&b->policy, &e) == NULL)
        return qr_cli_fail_usage(cli, "%s", e.text);
    return QR_ARGS_GO;
}

/** Geometry that was not asked for is the sample's. */
static int open_sample(struct qr_cli *cli, struct qr_bench *b)
{
    struct qr_error e = {0};
    const quire_status status = qr_kv_file_open(b->path, QR_KV_NEED_KV, &b->kv, &e);
    if (status != QUIRE_OK)
        return qr_cli_fail(cli, status, "%s", e.text);
    if (b->kv.dtype != QUIRE_F16)
        return qr_cli_fail(cli, QUIRE_EINVAL, "%s: bench tiles F16 samples only", b->path);
    const struct qr_kv_layer *first = &b->kv.layers[0];
    const uint32_t sample_kv_heads = (uint32_t)first->key->shape[1];
    const uint32_t sample_group =
        first->query ? (uint32_t)first->query->shape[1] / sample_kv_heads : 1;
    if (b->kv_heads == 0)
        b->kv_heads = sample_kv_heads;
    if (b->key_dim == 0)
        b->key_dim = (uint32_t)first->key->shape[2];
    if (b->value_dim == 0)
        b->value_dim = (uint32_t)first->value->shape[2];
    b->query_heads = b->model.query_heads ? b->model.query_heads
                                          : b->kv_heads * (sample_group ? sample_group : 1);
    b->tile = (struct qr_kv_tile){&b->kv, b->seed};
    return QR_EXIT_OK;
}

static int check_budget(struct qr_cli *cli, struct qr_bench *b)
{
    char needed[QR_TEXT_MAX], budget[QR_TEXT_MAX], used[QR_TEXT_MAX];
    struct qr_error e = {0};
    b->needed_bytes = qr_bench_needed(b, &e);
    if (b->needed_bytes == 0)
        return qr_cli_fail(cli, e.status, "%s", e.text);
    const int stop = qr_cli_connect(cli);
    if (stop != QR_EXIT_OK)
        return stop;
    const quire_status status = qr_bench_budget(cli, b);
    if (status != QUIRE_OK)
        return qr_cli_fail_call(cli, status, "stat");
    qr_text_bytes(needed, (double)b->needed_bytes);
    qr_text_bytes(budget, (double)b->budget_bytes);
    qr_text_bytes(used, (double)b->used_bytes);
    qr_cli_remark(cli, "the session needs at most %s; the server has a budget of %s, %s used",
                  needed, b->budget_bytes ? budget : "(unknown)", used);
    if (b->budget_bytes == 0 || b->ignore_budget ||
        b->used_bytes + b->needed_bytes <= b->budget_bytes)
        return QR_EXIT_OK;
    return qr_cli_fail(cli, QUIRE_EFULL,
                       "the session needs %s, the server's budget is %s with %s used: give the "
                       "server more, ask for fewer --tokens, or say --ignore-budget",
                       needed, budget, used);
}

static void print_table(struct qr_cli *cli, const struct qr_bench *b)
{
    char text[QR_TEXT_MAX], other[QR_TEXT_MAX];
    const double held = (double)(b->info.page_bytes + b->info.tail_bytes);
    const double append = qr_measure_rate(b->bytes, b->append_seconds);
    const double fetch = qr_measure_rate(b->bytes, b->fetch_seconds);
    const double rows = (double)b->tokens * b->layers;
    struct qr_table *t = qr_table_create("lrl");
    qr_table_row(t, "in FP16\t%s\t%llu tokens, %u layers, %u KV heads of %u and %u channels",
                 qr_text_bytes(text, b->bytes), (unsigned long long)b->tokens, b->layers,
                 b->kv_heads, b->key_dim, b->value_dim);
    qr_table_row(t, "held\t%s\t%.2f bits an element, FP16 is 16; at most %s were expected",
                 qr_text_bytes(text, held), 16 * held / (double)b->info.fp16_bytes,
                 qr_text_bytes(other, (double)b->needed_bytes));
    qr_table_rule(t);
    qr_table_row(t, "append\t%.2f GB/s\t%.2f of memcpy; all of it in %s", append,
                 b->append_memcpy_seconds / b->append_seconds,
                 qr_text_seconds(text, b->append_seconds));
    qr_table_row(t, "fetch\t%.2f GB/s\t%.2f of memcpy; FP16 delivered, all of it in %s", fetch,
                 b->fetch_memcpy_seconds / b->fetch_seconds,
                 qr_text_seconds(text, b->fetch_seconds));
    qr_table_row(t, "attend\t%s\t1 query, %u heads x %u layers: %.1f million tokens a second",
                 qr_text_seconds(text, b->attend_seconds), b->query_heads, b->layers,
                 rows / b->attend_seconds * 1e-6);
    qr_table_row(t, "  as bytes\t%.2f GB/s\tof FP16 attended to, %.2f of memcpy",
                 qr_measure_rate(b->bytes, b->attend_seconds),
                 b->fetch_memcpy_seconds / b->attend_seconds);
    qr_table_row(t, "open\t%s\t%.1f times an empty call (%s)",
                 qr_text_seconds(text, b->open_seconds), b->open_seconds / b->ping_seconds,
                 qr_text_seconds(other, b->ping_seconds));
    qr_table_row(t, "append, 1 token\t%s\t%.1f times an empty call",
                 qr_text_seconds(text, b->decode_seconds), b->decode_seconds / b->ping_seconds);
    qr_table_rule(t);
    qr_table_row(t, "stored keys, values\t%.2f, %.2f %%\trelative Frobenius, three blocks",
                 100 * b->key_error, 100 * b->value_error);
    qr_table_print(t, cli->out);
    qr_table_destroy(&t);
}

static int print_json(struct qr_cli *cli, const struct qr_bench *b)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "tokens", (double)b->tokens);
    cJSON_AddNumberToObject(root, "layers", b->layers);
    cJSON_AddNumberToObject(root, "kv_heads", b->kv_heads);
    cJSON_AddNumberToObject(root, "query_heads", b->query_heads);
    cJSON_AddNumberToObject(root, "key_dim", b->key_dim);
    cJSON_AddNumberToObject(root, "value_dim", b->value_dim);
    cJSON_AddNumberToObject(root, "fp16_bytes", b->bytes);
    cJSON_AddNumberToObject(root, "page_bytes", (double)b->info.page_bytes);
    cJSON_AddNumberToObject(root, "tail_bytes", (double)b->info.tail_bytes);
    cJSON_AddNumberToObject(root, "needed_bytes", (double)b->needed_bytes);
    cJSON_AddNumberToObject(root, "budget_bytes", (double)b->budget_bytes);
    cJSON_AddNumberToObject(root, "append_seconds", b->append_seconds);
    cJSON_AddNumberToObject(root, "append_to_memcpy",
                            b->append_memcpy_seconds / b->append_seconds);
    cJSON_AddNumberToObject(root, "fetch_seconds", b->fetch_seconds);
    cJSON_AddNumberToObject(root, "fetch_to_memcpy",
                            b->fetch_memcpy_seconds / b->fetch_seconds);
    cJSON_AddNumberToObject(root, "memcpy_gb_per_s",
                            qr_measure_rate(b->bytes, b->fetch_memcpy_seconds));
    cJSON_AddNumberToObject(root, "attend_seconds", b->attend_seconds);
    cJSON_AddNumberToObject(root, "open_seconds", b->open_seconds);
    cJSON_AddNumberToObject(root, "ping_seconds", b->ping_seconds);
    cJSON_AddNumberToObject(root, "append_1_token_seconds", b->decode_seconds);
    cJSON_AddNumberToObject(root, "key_error", b->key_error);
    cJSON_AddNumberToObject(root, "value_error", b->value_error);
    return qr_cli_print_json(cli, root);
}

static int run(struct qr_cli *cli, struct qr_bench *b)
{
    int result = open_sample(cli, b);
    if (result == QR_EXIT_OK)
        result = check_budget(cli, b);
    if (result == QR_EXIT_OK)
        result = qr_bench_run(cli, b);
    const bool made = b->session != NULL;
    quire_session_close(&b->session);
    if (made && !b->keep) {
        const quire_status status = quire_session_drop(cli->client, b->session_name, false);
        if (status != QUIRE_OK && result == QR_EXIT_OK)
            result = qr_cli_fail_call(cli, status, b->session_name);
    }
    if (result != QR_EXIT_OK)
        return result;
    if (cli->json)
        return print_json(cli, b);
    print_table(cli, b);
    return QR_EXIT_OK;
}

int qr_cmd_bench(struct qr_cli *cli, int argc, char **argv)
{
    char name[32];
    struct qr_bench *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory");
    snprintf(name, sizeof(name), "bench-%ld", (long)getpid());
    b->session_name = name;
    b->tokens = 65536;
    b->layers = 4;
    b->block = 4096;
    b->fetch_block = 8192;
    b->repeats = 9;
    b->seed = 1;
    qr_policy_args_init(&b->policy);
    qr_model_args_init(&b->model);
    b->model.name = "bench";
    b->model.stored = QUIRE_ROPE_PRE;
    b->model.theta = 100000;
    int result = parse(cli, b, argc, argv);
    if (result == QR_ARGS_GO)
        result = run(cli, b);
    qr_kv_file_close(&b->kv);
    free(b->key);
    free(b->value);
    free(b->copy_from);
    free(b->copy_to);
    free(b->query);
    free(b->output);
    free(b->lse);
    free(b);
    return result;
}
