/* SPDX-License-Identifier: Apache-2.0
 *
 * quire calibrate: level tables of nuq for every layer of a model, from a file of
 * its keys and values (and queries, which say what an error in a key costs).
 */
#include "args.h"
#include "calibrate.h"
#include "commands.h"
#include "kv_file.h"
#include "output.h"
#include "policy_args.h"
#include "query.h"

#include "client/client_model.h"
#include "proto/quant.h"
#include "proto/spec_text.h"
#include "storage/codec/codec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct job {
    const char *path, *output, *key_codec, *value_codec;
    uint32_t sinks;
    struct qr_model_args model;
    struct qr_codec_spec spec[2];
    struct qr_kv_file kv;
    struct qr_model_file file;
    struct qr_model sealed;
    struct qr_calibration calibration;
    double error[QR_KV_LAYERS_MAX][2][3], uniform[QR_KV_LAYERS_MAX][2][3];
};

static int parse(struct qr_cli *cli, struct job *job, int argc, char **argv)
{
    const struct qr_arg args[] = {
        {"output", QR_ARG_TEXT, &job->output, "FILE", "the calibration; -o is the same", NULL},
        {"key-codec", QR_ARG_TEXT, &job->key_codec, "CODEC",
         "axis, group and outliers of keys (nuq)", NULL},
        {"value-codec", QR_ARG_TEXT, &job->value_codec, "CODEC", "the same of values (nuq)",
         NULL},
        {"sinks", QR_ARG_U32, &job->sinks, "N", "first tokens that stay FP16 (4)", NULL},
    };
    const struct qr_synopsis synopsis = {
        .operands = "DUMP",
        .about = "Fit the level tables of nuq, 2 to 4 bits, to the keys and values of DUMP "
                 "(k_layerNN, v_layerNN,\nand q_layerNN where there are queries), and write "
                 "them to a calibration file of the model.",
        .operands_min = 1,
        .operands_max = 1,
        .groups = {{NULL, args, sizeof(args) / sizeof(args[0])},
                   {"Model", job->model.args, QR_MODEL_ARGS}},
    };
    char **operands;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-o") == 0) {
            static char option[] = "--output";
            argv[i] = option;
        }
    const int stop = qr_args_parse(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    job->path = operands[0];
    if (!job->output)
        return qr_cli_fail_usage(cli, "-o FILE is missing");
    const int wrong = qr_model_args_need(cli, &job->model);
    if (wrong != QR_ARGS_GO)
        return wrong;
    struct qr_error e = {0};
    if (qr_spec_parse(job->key_codec ? job->key_codec : "nuq", true, &job->spec[0], &e) ||
        qr_spec_parse(job->value_codec ? job->value_codec : "nuq", false, &job->spec[1], &e))
        return qr_cli_fail_usage(cli, "%s", e.text);
    if (job->spec[0].codec != QR_CODEC_NUQ || job->spec[1].codec != QR_CODEC_NUQ)
        return qr_cli_fail_usage(cli, "--key-codec, --value-codec: nuq expected");
    return QR_ARGS_GO;
}

/** [kv heads][dim]: mean square of the queries' channels; of RoPE pairs, that of both, since
 * the rotation mixes them. */
static float *key_costs(const struct job *job, uint32_t index, const struct qr_layer *layer)
{
    const struct qr_kv_layer *l = &job->kv.layers[index];
    const uint32_t group = layer->query_heads / layer->kv_heads, dim = layer->key_dim;
    const struct qr_rope *rope = &job->sealed.ropes[layer->rope];
    float *out = calloc((size_t)layer->kv_heads * dim, sizeof(*out));
    float *row = calloc((size_t)layer->query_heads * dim, sizeof(*row));
    for (uint64_t t = 0; out && row && t < job->kv.tokens; t++) {
        qr_query_rows(l->query, job->kv.dtype, t, 1, t, NULL, row);
        for (uint32_t i = 0; i < layer->query_heads * dim; i++)
            out[i / dim / group * dim + i % dim] += row[i] * row[i];
    }
    const uint32_t pairs = layer->rope_stored == QR_ROPE_PRE ? rope->rotary_dim / 2 : 0;
    const bool half = rope->layout == QR_ROPE_HALF;
    for (uint32_t h = 0; out && h < layer->kv_heads; h++)
        for (uint32_t i = 0; i < pairs; i++) {
            float *a = out + (size_t)h * dim + (half ? i : 2 * i);
            float *b = out + (size_t)h * dim + (half ? i + pairs : 2 * i + 1);
            *a = *b = (*a + *b) / 2;
        }
    free(row);
    return out;
}

static quire_status fit_tensor(struct job *job, uint32_t index, uint32_t layer, int which,
                               struct qr_error *e)
{
    static struct qr_calibrate_histogram histogram;
    const struct qr_kv_layer *l = &job->kv.layers[index];
    const struct qr_safetensor *t = which ? l->value : l->key;
    const struct qr_layer *geometry = &job->sealed.layers[layer];
    const uint32_t heads = (uint32_t)t->shape[1], dim = (uint32_t)t->shape[2];
    const size_t width = (size_t)heads * dim, element = job->kv.dtype == QUIRE_F32 ? 4 : 2;
    uint16_t *rows = malloc(job->kv.tokens * width * sizeof(*rows));
    float *costs = !which && l->query ? key_costs(job, index, geometry) : NULL;
    quire_status status =
        rows ? qr_rows_convert(t->data, (enum qr_dtype)job->kv.dtype, width * element,
                               dim * element, (uint32_t)job->kv.tokens, heads, dim, rows, width,
                               dim, e)
             : qr_error_set(e, QUIRE_ENOMEM, "no memory for layer %u", layer);
    if (status == QUIRE_OK) {
        memset(&histogram, 0, sizeof(histogram));
        qr_calibrate_add(&(struct qr_calibrate_rows){.data = rows,
                                                     .tokens = (uint32_t)job->kv.tokens,
                                                     .heads = heads,
                                                     .dim = dim,
                                                     .sinks = job->sinks,
                                                     .cost = costs,
                                                     .spec = job->spec[which]},
                         &histogram);
        for (uint32_t bits = 2; bits <= 4; bits++)
            job->error[layer][which][bits - 2] = qr_calibrate_levels(
                &histogram, bits, &job->calibration.levels[layer][which][(1u << bits) - 4],
                &job->uniform[layer][which][bits - 2]);
    }
    free(costs);
    free(rows);
    return status;
}

static quire_status check_layer(const struct job *job, uint32_t index, uint32_t layer,
                                struct qr_error *e)
{
    const struct qr_kv_layer *l = &job->kv.layers[index];
    const struct qr_layer *g =
        layer < job->sealed.layer_count ? &job->sealed.layers[layer] : NULL;
    if (!g || g->kv_heads != l->key->shape[1] || g->key_dim != l->key->shape[2] ||
        g->kv_heads != l->value->shape[1] || g->value_dim != l->value->shape[2] ||
        (l->query &&
         (g->query_heads != l->query->shape[1] || g->key_dim != l->query->shape[2])))
        return qr_error_set(e, QUIRE_EINVAL,
                            "layer %u of the file is not layer %u of the model", l->number,
                            layer);
    for (int which = 0; which < 2; which++) {
        const struct qr_codec_spec *s = &job->spec[which];
        const quire_status status =
            qr_spec_check_tensor(s, QR_CALIBRATE_PAGE, g->kv_heads,
                                 which ? g->value_dim : g->key_dim, which ? "value" : "key", e);
        if (status != QUIRE_OK)
            return status;
    }
    return QUIRE_OK;
}

static quire_status fit(struct job *job, struct qr_error *e)
{
    struct qr_calibration *c = &job->calibration;
    quire_status status = qr_model_args_take(&job->model, &job->kv, &job->file, e);
    if (status == QUIRE_OK)
        status = qr_client_model_from(&job->file.model, &job->sealed, e);
    if (status != QUIRE_OK)
        return status;
    if (job->kv.tokens < QR_CALIBRATE_PAGE)
        return qr_error_set(e, QUIRE_EINVAL, "%llu tokens: at least %u expected",
                            (unsigned long long)job->kv.tokens, QR_CALIBRATE_PAGE);
    if (job->kv.count != job->sealed.layer_count)
        return qr_error_set(e, QUIRE_EINVAL,
                            "the file has %u layers, the model %u: every layer expected",
                            job->kv.count, job->sealed.layer_count);
    c->layers = job->sealed.layer_count;
    c->bits = 1u << 2 | 1u << 3 | 1u << 4;
    memcpy(c->model, job->sealed.fingerprint, sizeof(c->model));
    for (uint32_t i = 0; i < job->kv.count && status == QUIRE_OK; i++) {
        const uint32_t layer = qr_kv_model_layer(&job->kv, i, c->layers);
        status = check_layer(job, i, layer, e);
        for (int which = 0; which < 2 && status == QUIRE_OK; which++)
            status = fit_tensor(job, i, layer, which, e);
    }
    return status;
}

static int write_file(struct qr_cli *cli, const struct job *job)
{
    uint8_t *bytes = malloc(QR_CALIBRATION_BYTES_MAX);
    FILE *file = bytes ? fopen(job->output, "we") : NULL;
    if (!bytes)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory for the calibration");
    const size_t n = qr_calibration_write(&job->calibration, bytes);
    const bool written = file && fwrite(bytes, 1, n, file) == n;
    const bool closed = file && fclose(file) == 0;
    free(bytes);
    return written && closed
               ? QR_EXIT_OK
               : qr_cli_fail(cli, QUIRE_EIO, "%s: %s", job->output, strerror(errno));
}

static int report(struct qr_cli *cli, const struct job *job)
{
    if (cli->json) {
        cJSON *root = cJSON_CreateObject();
        cJSON *layers = cJSON_AddArrayToObject(root, "layers");
        for (uint32_t i = 0; i < job->calibration.layers; i++) {
            cJSON *layer = cJSON_CreateObject();
            for (int which = 0; which < 2; which++) {
                cJSON *of = cJSON_AddArrayToObject(layer, which ? "value" : "key");
                for (int b = 0; b < 3; b++)
                    cJSON_AddItemToArray(of, cJSON_CreateNumber(job->error[i][which][b] /
                                                                job->uniform[i][which][b]));
            }
            cJSON_AddItemToArray(layers, layer);
        }
        return qr_cli_print_json(cli, root);
    }
    struct qr_table *t = qr_table_create("rrrrrrr");
    qr_table_row(t, "layer\tK2\tK3\tK4\tV2\tV3\tV4");
    for (uint32_t i = 0; i < job->calibration.layers; i++) {
        const double(*e)[3] = job->error[i], (*u)[3] = job->uniform[i];
        qr_table_row(t, "%u\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f", i, e[0][0] / u[0][0],
                     e[0][1] / u[0][1], e[0][2] / u[0][2], e[1][0] / u[1][0], e[1][1] / u[1][1],
                     e[1][2] / u[1][2]);
    }
    fprintf(cli->out, "weighted squared error, against that of equally spaced levels\n\n");
    qr_table_print(t, cli->out);
    qr_table_destroy(&t);
    return QR_EXIT_OK;
}

static int run(struct qr_cli *cli, struct job *job)
{
    struct qr_error e = {0};
    quire_status status = qr_kv_file_open(job->path, QR_KV_NEED_KV, &job->kv, &e);
    if (status == QUIRE_OK)
        status = fit(job, &e);
    if (status != QUIRE_OK)
        return qr_cli_fail(cli, status, "%s: %s", job->path, e.text);
    const int stop = write_file(cli, job);
    return stop == QR_EXIT_OK ? report(cli, job) : stop;
}

int qr_cmd_calibrate(struct qr_cli *cli, int argc, char **argv)
{
    struct job *job = calloc(1, sizeof(*job));
    if (job == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory");
    job->sinks = 4;
    qr_model_args_init(&job->model);
    int result = parse(cli, job, argc, argv);
    if (result == QR_ARGS_GO)
        result = run(cli, job);
    qr_kv_file_close(&job->kv);
    free(job);
    return result;
}
