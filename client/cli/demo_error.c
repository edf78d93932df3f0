/* SPDX-License-Identifier: Apache-2.0
 *
 * What the demonstration got back against FP64 attention over the FP16 originals, and the
 * stored tensors beside it.
 */
#include "demo.h"
#include "output.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>

struct sums {
    struct qr_deviation output;
    double lse_total, lse_largest;
    uint64_t lse_count;
};

static void compare_query(const struct qr_demo *d, struct qr_reference *reference,
                          uint32_t layer, uint32_t position, double *wanted,
                          struct qr_deviation *output, struct sums *sums)
{
    const size_t row = ((size_t)layer * d->tokens + position) * d->query_heads;
    const size_t width = (size_t)d->query_heads * d->value_dim;
    double *lse = wanted + width;
    qr_reference_attend(reference, d->query + row * d->key_dim, position, wanted, lse);
    for (size_t i = 0; i < width; i++) {
        qr_deviation_add(output, (double)d->output[row * d->value_dim + i], wanted[i]);
        qr_deviation_add(&sums->output, (double)d->output[row * d->value_dim + i], wanted[i]);
    }
    for (uint32_t h = 0; h < d->query_heads; h++) {
        const double error = fabs((double)d->lse[row + h] - lse[h]);
        sums->lse_total += error;
        sums->lse_largest = fmax(sums->lse_largest, error);
        sums->lse_count++;
    }
}

static quire_status compare_layer(struct qr_demo *d, uint32_t i, double *wanted,
                                  struct sums *sums, struct qr_error *e)
{
    const struct qr_kv_layer *l = &d->kv.layers[i];
    struct qr_deviation output = {0}, key = {0}, value = {0};
    struct qr_reference *reference = NULL;
    const struct qr_reference_layer layer = {
        .key = l->key->data,
        .value = l->value->data,
        .query = l->query->data,
        .dtype = d->kv.dtype,
        .query_heads = d->query_heads,
        .kv_heads = d->kv_heads,
        .key_dim = d->key_dim,
        .value_dim = d->value_dim,
        .rope = d->rope,
    };
    const quire_status status = qr_reference_create(&layer, d->tokens, &reference, e);
    if (status != QUIRE_OK)
        return status;
    for (uint32_t p = 0; p < d->tokens; p += d->stride)
        compare_query(d, reference, i, p, wanted, &output, sums);
    const size_t rows = (size_t)i * d->tokens * d->kv_heads;
    qr_reference_stored(reference, d->key + rows * d->key_dim * 2,
                        d->value + rows * d->value_dim * 2, &key, &value);
    d->layer[i].output_error = qr_deviation_frobenius(&output);
    d->layer[i].key_error = qr_deviation_frobenius(&key);
    d->layer[i].value_error = qr_deviation_frobenius(&value);
    qr_reference_destroy(&reference);
    return QUIRE_OK;
}

int qr_demo_compare(struct qr_cli *cli, struct qr_demo *demo)
{
    struct sums sums = {0};
    struct qr_error e = {0};
    struct qr_progress progress;
    quire_status status = QUIRE_OK;
    double *wanted =
        calloc((size_t)demo->query_heads * (demo->value_dim + 1u), sizeof(*wanted));
    if (wanted == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory for the reference");
    qr_progress_begin(&progress, cli->terminal && !cli->quiet && !cli->json ? cli->err : NULL,
                      "FP64 reference", demo->layers);
    for (uint32_t i = 0; i < demo->layers && status == QUIRE_OK; i++) {
        qr_progress_update(&progress, i);
        status = compare_layer(demo, i, wanted, &sums, &e);
    }
    qr_progress_end(&progress);
    free(wanted);
    if (status != QUIRE_OK)
        return qr_cli_fail(cli, status, "%s", e.text);
    demo->reference_queries = (demo->tokens + demo->stride - 1) / demo->stride;
    demo->output_error = qr_deviation_frobenius(&sums.output);
    demo->lse_mean_error = sums.lse_total / (double)sums.lse_count;
    demo->lse_largest_error = sums.lse_largest;
    return QR_EXIT_OK;
}
