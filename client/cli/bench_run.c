/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of the long benchmark. Streams through blocks, so that the tool's own memory does
 * not grow with the session; each step is measured in turns with its yardstick.
 */
#include "bench.h"
#include "measure.h"
#include "output.h"
#include "reference.h"

#include <stdlib.h>
#include <string.h>

static size_t token_bytes(const struct qr_bench *b)
{
    return (size_t)b->kv_heads * (b->key_dim + b->value_dim) * 2 * b->layers;
}

static uint32_t widest_block(const struct qr_bench *b)
{
    return b->block > b->fetch_block ? b->block : b->fetch_block;
}

static int allocate(struct qr_cli *cli, struct qr_bench *b)
{
    const size_t rows = (size_t)b->layers * widest_block(b) * b->kv_heads;
    const size_t heads = (size_t)b->layers * b->query_heads;
    b->key = qr_measure_buffer(rows * b->key_dim * 2);
    b->value = qr_measure_buffer(rows * b->value_dim * 2);
    b->copy_from = qr_measure_buffer(widest_block(b) * token_bytes(b));
    b->copy_to = qr_measure_buffer(widest_block(b) * token_bytes(b));
    b->query = qr_measure_buffer(heads * b->key_dim * sizeof(float));
    b->output = qr_measure_buffer(heads * b->value_dim * sizeof(float));
    b->lse = qr_measure_buffer(heads * sizeof(float));
    if (b->key && b->value && b->copy_from && b->copy_to && b->query && b->output && b->lse)
        return QR_EXIT_OK;
    return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory for blocks of %u tokens", widest_block(b));
}

/** Pointers to each layer's part of the block buffers. */
static void layer_pointers(struct qr_bench *b, uint32_t tokens, void **key, void **value)
{
    for (uint32_t l = 0; l < b->layers; l++) {
        key[l] = b->key + (size_t)l * tokens * b->kv_heads * b->key_dim;
        value[l] = b->value + (size_t)l * tokens * b->kv_heads * b->value_dim;
    }
}

static void fill_block(struct qr_bench *b, uint64_t position, uint32_t tokens)
{
    void *key[QR_KV_LAYERS_MAX], *value[QR_KV_LAYERS_MAX];
    layer_pointers(b, tokens, key, value);
    for (uint32_t l = 0; l < b->layers; l++) {
        const struct qr_kv_tile_shape k = {l, b->kv_heads, b->key_dim, true};
        const struct qr_kv_tile_shape v = {l, b->kv_heads, b->value_dim, false};
        qr_kv_tile_rows(&b->tile, &k, position, tokens, key[l]);
        qr_kv_tile_rows(&b->tile, &v, position, tokens, value[l]);
    }
}

static quire_status append_block(struct qr_bench *b, uint64_t position, uint32_t tokens)
{
    void *key[QR_KV_LAYERS_MAX], *value[QR_KV_LAYERS_MAX];
    layer_pointers(b, tokens, key, value);
    const struct quire_append request = {
        .position = position,
        .tokens = tokens,
        .layers = b->layers,
        .dtype = QUIRE_F16,
        .key = (const void *const *)key,
        .value = (const void *const *)value,
    };
    return quire_append(b->session, &request, NULL);
}

static quire_status fetch_block(struct qr_bench *b, uint64_t position, uint32_t tokens,
                                bool rotate)
{
    void *key[QR_KV_LAYERS_MAX], *value[QR_KV_LAYERS_MAX];
    layer_pointers(b, tokens, key, value);
    const struct quire_fetch request = {
        .position = position,
        .tokens = tokens,
        .layers = b->layers,
        .dtype = QUIRE_F16,
        .key = key,
        .value = value,
        .rotate = rotate,
    };
    return quire_fetch(b->session, &request);
}

static FILE *progress_file(const struct qr_cli *cli)
{
    return cli->terminal && !cli->quiet && !cli->json ? cli->err : NULL;
}

static uint32_t part(uint64_t total, uint64_t done, uint32_t block)
{
    return total - done < block ? (uint32_t)(total - done) : block;
}

static int append_all(struct qr_cli *cli, struct qr_bench *b)
{
    struct qr_progress progress;
    quire_status status = QUIRE_OK;
    qr_progress_begin(&progress, progress_file(cli), "append", (double)b->tokens);
    for (uint64_t at = 0; at < b->tokens && status == QUIRE_OK; at += b->block) {
        const uint32_t count = part(b->tokens, at, b->block);
        fill_block(b, at, count);
        const double start = qr_seconds();
        status = append_block(b, at, count);
        b->append_seconds += qr_seconds() - start;
        b->append_memcpy_seconds +=
            qr_measure_memcpy(b->copy_to, b->copy_from, count * token_bytes(b));
        qr_progress_update(&progress, (double)at);
    }
    qr_progress_end(&progress);
    b->bytes = (double)b->tokens * (double)token_bytes(b);
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail_call(cli, status, "append");
}

static int fetch_all(struct qr_cli *cli, struct qr_bench *b)
{
    struct qr_progress progress;
    quire_status status = QUIRE_OK;
    const bool rotate = b->model.stored == QUIRE_ROPE_PRE;
    qr_progress_begin(&progress, progress_file(cli), "fetch", (double)b->tokens);
    for (uint64_t at = 0; at < b->tokens && status == QUIRE_OK; at += b->fetch_block) {
        const uint32_t count = part(b->tokens, at, b->fetch_block);
        const double start = qr_seconds();
        status = fetch_block(b, at, count, rotate);
        b->fetch_seconds += qr_seconds() - start;
        b->fetch_memcpy_seconds +=
            qr_measure_memcpy(b->copy_to, b->copy_from, count * token_bytes(b));
        qr_progress_update(&progress, (double)at);
    }
    qr_progress_end(&progress);
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail_call(cli, status, "fetch");
}

static void compare(const uint16_t *rows, const uint16_t *wanted, size_t count,
                    struct qr_deviation *sum)
{
    for (size_t i = 0; i < count; i++)
        qr_deviation_add(sum, (double)qr_reference_element(rows, QUIRE_F16, i),
                         (double)qr_reference_element(wanted, QUIRE_F16, i));
}

/** Fetch the first, a middle and the last block as stored and make their originals again. */
static int verify(struct qr_cli *cli, struct qr_bench *b)
{
    const uint32_t two_pages = b->policy.policy.page_tokens * 2;
    const uint32_t count =
        part(b->tokens, 0, two_pages < widest_block(b) ? two_pages : widest_block(b));
    const uint64_t positions[] = {0, b->tokens / 2, b->tokens - count};
    const size_t keys = (size_t)b->layers * count * b->kv_heads * b->key_dim;
    const size_t values = (size_t)b->layers * count * b->kv_heads * b->value_dim;
    struct qr_deviation key = {0}, value = {0};
    uint16_t *rows = malloc((keys + values) * sizeof(*rows));
    if (rows == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory to compare %u tokens", count);
    for (size_t i = 0; i < sizeof(positions) / sizeof(positions[0]); i++) {
        const uint64_t at = positions[i] + count > b->tokens ? 0 : positions[i];
        const quire_status status = fetch_block(b, at, count, false);
        if (status != QUIRE_OK) {
            free(rows);
            return qr_cli_fail_call(cli, status, "fetch");
        }
        memcpy(rows, b->key, keys * 2);
        memcpy(rows + keys, b->value, values * 2);
        fill_block(b, at, count);
        compare(rows, b->key, keys, &key);
        compare(rows + keys, b->value, values, &value);
    }
    free(rows);
    b->key_error = qr_deviation_frobenius(&key);
    b->value_error = qr_deviation_frobenius(&value);
    return QR_EXIT_OK;
}

/** A decode step's attention: one query position, all layers and heads, the whole session. */
static int attend_all(struct qr_cli *cli, struct qr_bench *b)
{
    double *seconds = calloc(b->repeats, sizeof(*seconds));
    const uint64_t position = b->tokens - 1;
    const size_t width = (size_t)b->layers * b->query_heads * b->key_dim;
    quire_status status = seconds != NULL ? QUIRE_OK : QUIRE_ENOMEM;
    /* The newest keys, which attend to themselves and their repeats, do for queries. */
    for (size_t i = 0; i < width; i++)
        b->query[i] = qr_reference_element(b->key, QUIRE_F16, i % (b->kv_heads * b->key_dim));
    const struct quire_attend request = {
        .layers = b->layers,
        .queries = 1,
        .positions = &position,
        .dtype = QUIRE_F32,
        .query = b->query,
        .output = b->output,
        .lse = b->lse,
    };
    for (uint32_t i = 0; i < b->repeats && status == QUIRE_OK; i++) {
        const double start = qr_seconds();
        status = quire_attend(b->session, &request);
        seconds[i] = qr_seconds() - start;
    }
    if (status == QUIRE_OK)
        b->attend_seconds = qr_measure_median(seconds, b->repeats);
    free(seconds);
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail_call(cli, status, "attend");
}

/** Empty calls, opens of the long session, and decode steps, in turns. */
static int latencies(struct qr_cli *cli, struct qr_bench *b)
{
    double *times = calloc(3 * (size_t)b->repeats, sizeof(*times));
    double *ping = times, *reopen = times + b->repeats, *step = reopen + b->repeats;
    quire_status status = times != NULL ? QUIRE_OK : QUIRE_ENOMEM;
    for (uint32_t i = 0; i < b->repeats && status == QUIRE_OK; i++) {
        quire_session *reader = NULL;
        double start = qr_seconds();
        status = quire_client_ping(cli->client);
        ping[i] = qr_seconds() - start;
        start = qr_seconds();
        if (status == QUIRE_OK)
            status = quire_session_open(cli->client, b->session_name, NULL, &reader);
        reopen[i] = qr_seconds() - start;
        quire_session_close(&reader);
        fill_block(b, b->tokens + i, 1);
        start = qr_seconds();
        if (status == QUIRE_OK)
            status = append_block(b, b->tokens + i, 1);
        step[i] = qr_seconds() - start;
    }
    if (status == QUIRE_OK) {
        b->ping_seconds = qr_measure_median(ping, b->repeats);
        b->open_seconds = qr_measure_median(reopen, b->repeats);
        b->decode_seconds = qr_measure_median(step, b->repeats);
    }
    free(times);
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail_call(cli, status, "open");
}

static int open_session(struct qr_cli *cli, struct qr_bench *b)
{
    uint8_t fingerprint[32];
    struct quire_layers layers = {.count = b->layers,
                                  .query_heads = b->query_heads,
                                  .kv_heads = b->kv_heads,
                                  .key_dim = b->key_dim,
                                  .value_dim = b->value_dim,
                                  .rope_stored = (enum quire_rope_stored)b->model.stored};
    const struct quire_rope rope = {.type = QUIRE_ROPE_DEFAULT,
                                    .layout = (enum quire_rope_layout)b->model.layout,
                                    .rotary_dim =
                                        b->model.rotary_dim ? b->model.rotary_dim : b->key_dim,
                                    .theta = b->model.theta};
    const struct quire_model model = {.name = b->model.name,
                                      .layers = &layers,
                                      .layer_runs = 1,
                                      .ropes = &rope,
                                      .rope_count = b->model.stored != QUIRE_ROPE_NONE};
    struct quire_open_options options;
    const quire_status status = quire_model_register(cli->client, &model, fingerprint);
    if (status != QUIRE_OK)
        return qr_cli_fail_call(cli, status, "model");
    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_CREATE | QUIRE_OPEN_EXCLUSIVE | QUIRE_OPEN_WRITE;
    options.fingerprint = fingerprint;
    options.policy = &b->policy.policy;
    return qr_cli_open(cli, b->session_name, &options, &b->session);
}

int qr_bench_run(struct qr_cli *cli, struct qr_bench *bench)
{
    static int (*const steps[])(struct qr_cli *, struct qr_bench *) = {
        allocate, open_session, append_all, fetch_all, verify, attend_all, latencies,
    };
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        const int stop = steps[i](cli, bench);
        if (stop != QR_EXIT_OK)
            return stop;
    }
    const quire_status status = quire_session_info(bench->session, &bench->info);
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail_call(cli, status, "info");
}
