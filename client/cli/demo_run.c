/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of the demonstration that talk to the server: a prefill in blocks, layer by
 * layer, a decode one token at a time, a fetch with RoPE, attention of every query.
 */
#include "demo.h"
#include "measure.h"
#include "output.h"
#include "query.h"

#include <stdlib.h>

#define ATTEND_QUERIES 64 /* positions a call */

static int fail_memory(struct qr_cli *cli)
{
    return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory for the sample");
}

/** One geometry for all layers keeps the demonstration short; other files are refused. */
static int check_file(struct qr_cli *cli, struct qr_demo *d)
{
    const struct qr_kv_layer *first = &d->kv.layers[0];
    for (uint32_t i = 0; i < d->kv.count; i++) {
        const struct qr_kv_layer *layer = &d->kv.layers[i];
        const bool same = layer->key->shape[1] == first->key->shape[1] &&
                          layer->key->shape[2] == first->key->shape[2] &&
                          layer->value->shape[2] == first->value->shape[2] &&
                          layer->query->shape[1] == first->query->shape[1] &&
                          layer->query->shape[2] == layer->key->shape[2];
        if (!same || layer->query->shape[1] % layer->key->shape[1] != 0)
            return qr_cli_fail(cli, QUIRE_EINVAL,
                               "%s: layer %u has another geometry than layer %u, the "
                               "demonstration wants one",
                               d->path, layer->number, first->number);
    }
    if (d->kv.tokens <= QR_DEMO_DECODE || d->kv.tokens > 65536)
        return qr_cli_fail(cli, QUIRE_EINVAL, "%s: %llu tokens, must be %d to 65536", d->path,
                           (unsigned long long)d->kv.tokens, QR_DEMO_DECODE + 1);
    d->tokens = (uint32_t)d->kv.tokens;
    d->layers = d->kv.count;
    d->query_heads = (uint32_t)first->query->shape[1];
    d->kv_heads = (uint32_t)first->key->shape[1];
    d->key_dim = (uint32_t)first->key->shape[2];
    d->value_dim = (uint32_t)first->value->shape[2];
    return QR_EXIT_OK;
}

static int open_session(struct qr_cli *cli, struct qr_demo *d)
{
    uint8_t fingerprint[32];
    struct qr_error e = {0};
    struct quire_open_options options;
    struct qr_model_file *model = malloc(sizeof(*model));
    if (model == NULL)
        return fail_memory(cli);
    quire_status status = qr_model_args_take(&d->model, &d->kv, model, &e);
    int stop = status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail(cli, status, "%s", e.text);
    if (stop == QR_EXIT_OK) {
        status = quire_model_register(cli->client, &model->model, fingerprint);
        if (status != QUIRE_OK)
            stop = qr_cli_fail_call(cli, status, "model");
    }
    free(model);
    if (stop != QR_EXIT_OK)
        return stop;
    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_CREATE | QUIRE_OPEN_EXCLUSIVE | QUIRE_OPEN_WRITE;
    options.fingerprint = fingerprint;
    options.policy = qr_policy_args_take(&d->policy, &e);
    if (options.policy == NULL)
        return qr_cli_fail(cli, e.status, "%s", e.text);
    return qr_cli_open(cli, d->session_name, &options, &d->session);
}

/** `tokens` tokens of layers [first, first + count) in one call. */
static quire_status append(struct qr_demo *d, uint32_t position, uint32_t tokens,
                           uint32_t first, uint32_t count)
{
    const void *key[QR_KV_LAYERS_MAX], *value[QR_KV_LAYERS_MAX];
    for (uint32_t i = 0; i < count; i++) {
        const struct qr_kv_layer *layer = &d->kv.layers[first + i];
        key[i] = layer->key->data + position * qr_kv_token_bytes(layer->key);
        value[i] = layer->value->data + position * qr_kv_token_bytes(layer->value);
    }
    const struct quire_append request = {
        .position = position,
        .tokens = tokens,
        .first_layer = first,
        .layers = count,
        .dtype = d->kv.dtype,
        .key = key,
        .value = value,
        .token_ids = d->kv.token_ids != NULL ? d->kv.token_ids + position : NULL,
    };
    return quire_append(d->session, &request, NULL);
}

static quire_status prefill(struct qr_demo *d)
{
    const uint32_t end = d->tokens - QR_DEMO_DECODE;
    const double start = qr_seconds();
    for (uint32_t at = 0; at < end; at += d->block) {
        const uint32_t count = end - at < d->block ? end - at : d->block;
        for (uint32_t layer = 0; layer < d->layers; layer++) {
            const quire_status status = append(d, at, count, layer, 1);
            if (status != QUIRE_OK)
                return status;
        }
    }
    d->prefill_seconds = qr_seconds() - start;
    d->prefill_bytes = (double)end * d->layers * d->kv_heads *
                       (double)(d->key_dim + d->value_dim) * (d->kv.dtype == QUIRE_F32 ? 4 : 2);
    return QUIRE_OK;
}

/** The last tokens one at a time, each beside an empty round trip. */
static quire_status decode(struct qr_cli *cli, struct qr_demo *d)
{
    double ping[QR_DEMO_DECODE], step[QR_DEMO_DECODE];
    for (uint32_t i = 0; i < QR_DEMO_DECODE; i++) {
        double start = qr_seconds();
        quire_status status = quire_client_ping(cli->client);
        ping[i] = qr_seconds() - start;
        start = qr_seconds();
        if (status == QUIRE_OK)
            status = append(d, d->tokens - QR_DEMO_DECODE + i, 1, 0, d->layers);
        step[i] = qr_seconds() - start;
        if (status != QUIRE_OK)
            return status;
    }
    d->ping_seconds = qr_measure_median(ping, QR_DEMO_DECODE);
    d->decode_seconds = qr_measure_median(step, QR_DEMO_DECODE);
    return QUIRE_OK;
}

static int allocate(struct qr_cli *cli, struct qr_demo *d)
{
    const size_t rows = (size_t)d->layers * d->tokens;
    d->key = qr_measure_buffer(rows * d->kv_heads * d->key_dim * 2);
    d->value = qr_measure_buffer(rows * d->kv_heads * d->value_dim * 2);
    d->query = qr_measure_buffer(rows * d->query_heads * d->key_dim * sizeof(float));
    d->output = qr_measure_buffer(rows * d->query_heads * d->value_dim * sizeof(float));
    d->lse = qr_measure_buffer(rows * d->query_heads * sizeof(float));
    const bool all = d->key && d->value && d->query && d->output && d->lse;
    return all ? QR_EXIT_OK : fail_memory(cli);
}

/** Fetch everything, `repeats` times in turns with a memcpy of as many bytes. */
static int fetch(struct qr_cli *cli, struct qr_demo *d)
{
    void *key[QR_KV_LAYERS_MAX], *value[QR_KV_LAYERS_MAX];
    const size_t key_bytes = (size_t)d->tokens * d->kv_heads * d->key_dim * 2;
    const size_t value_bytes = (size_t)d->tokens * d->kv_heads * d->value_dim * 2;
    const size_t bytes = d->layers * (key_bytes + value_bytes);
    double *seconds = calloc(2 * (size_t)d->repeats, sizeof(*seconds));
    double *copies = seconds + d->repeats;
    uint8_t *from = qr_measure_buffer(bytes), *to = qr_measure_buffer(bytes);
    quire_status status = seconds && from && to ? QUIRE_OK : QUIRE_ENOMEM;
    for (uint32_t i = 0; i < d->layers; i++) {
        key[i] = d->key + i * key_bytes;
        value[i] = d->value + i * value_bytes;
    }
    const struct quire_fetch request = {
        .tokens = d->tokens,
        .layers = d->layers,
        .dtype = QUIRE_F16,
        .key = key,
        .value = value,
        .rotate = d->model.stored == QUIRE_ROPE_PRE,
    };
    for (uint32_t i = 0; i < d->repeats && status == QUIRE_OK; i++) {
        const double start = qr_seconds();
        status = quire_fetch(d->session, &request);
        seconds[i] = qr_seconds() - start;
        copies[i] = qr_measure_memcpy(to, from, bytes);
    }
    if (status == QUIRE_OK) {
        d->fp16_bytes = (double)bytes;
        d->fetch_seconds = qr_measure_median(seconds, d->repeats);
        d->memcpy_seconds = qr_measure_median(copies, d->repeats);
    }
    free(seconds);
    free(from);
    free(to);
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail_call(cli, status, "fetch");
}

static int make_queries(struct qr_cli *cli, struct qr_demo *d)
{
    struct qr_query_layer *layer = malloc(sizeof(*layer));
    quire_status status = layer != NULL ? QUIRE_OK : QUIRE_ENOMEM;
    const size_t width = (size_t)d->query_heads * d->key_dim;
    for (uint32_t i = 0; i < d->layers && status == QUIRE_OK; i++) {
        status = qr_query_layer_get(d->session, i, layer);
        if (status != QUIRE_OK)
            break;
        if (layer->rotates && d->model.stored == QUIRE_ROPE_PRE && d->rope == NULL) {
            d->rope = malloc(sizeof(*d->rope));
            if (d->rope == NULL)
                status = QUIRE_ENOMEM;
            else
                *d->rope = layer->rope;
        }
        qr_query_rows(d->kv.layers[i].query, d->kv.dtype, 0, d->tokens, 0, d->rope,
                      d->query + i * d->tokens * width);
    }
    free(layer);
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail_call(cli, status, "queries");
}

static int attend(struct qr_cli *cli, struct qr_demo *d)
{
    uint64_t positions[ATTEND_QUERIES];
    const double start = qr_seconds();
    for (uint32_t layer = 0; layer < d->layers; layer++) {
        for (uint32_t at = 0; at < d->tokens; at += ATTEND_QUERIES) {
            const uint32_t left = d->tokens - at;
            const uint32_t count = left < ATTEND_QUERIES ? left : ATTEND_QUERIES;
            const size_t row = ((size_t)layer * d->tokens + at) * d->query_heads;
            for (uint32_t j = 0; j < count; j++)
                positions[j] = at + j;
            const struct quire_attend request = {
                .first_layer = layer,
                .layers = 1,
                .queries = count,
                .positions = positions,
                .dtype = QUIRE_F32,
                .query = d->query + row * d->key_dim,
                .output = d->output + row * d->value_dim,
                .lse = d->lse + row,
            };
            const quire_status status = quire_attend(d->session, &request);
            if (status != QUIRE_OK)
                return qr_cli_fail_call(cli, status, "attend");
        }
    }
    d->attend_seconds = qr_seconds() - start;
    return QR_EXIT_OK;
}

int qr_demo_run(struct qr_cli *cli, struct qr_demo *demo)
{
    struct qr_error e = {0};
    quire_status status =
        qr_kv_file_open(demo->path, QR_KV_NEED_KV | QR_KV_NEED_QUERY, &demo->kv, &e);
    int stop = status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail(cli, status, "%s", e.text);
    if (stop == QR_EXIT_OK)
        stop = check_file(cli, demo);
    if (stop == QR_EXIT_OK)
        stop = allocate(cli, demo);
    if (stop == QR_EXIT_OK)
        stop = qr_cli_connect(cli);
    if (stop == QR_EXIT_OK)
        stop = open_session(cli, demo);
    if (stop != QR_EXIT_OK)
        return stop;
    qr_cli_remark(cli, "appending %u tokens of %u layers: blocks of %u, then %d one at a time",
                  demo->tokens, demo->layers, demo->block, QR_DEMO_DECODE);
    status = prefill(demo);
    if (status == QUIRE_OK)
        status = decode(cli, demo);
    if (status == QUIRE_OK)
        status = quire_session_info(demo->session, &demo->info);
    if (status != QUIRE_OK)
        return qr_cli_fail_call(cli, status, "append");
    stop = fetch(cli, demo);
    if (stop == QR_EXIT_OK)
        stop = make_queries(cli, demo);
    return stop == QR_EXIT_OK ? attend(cli, demo) : stop;
}
