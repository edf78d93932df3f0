/* SPDX-License-Identifier: Apache-2.0
 *
 * See reference.h. Source of the formulas: docs/FORMULAS.md.
 */
#include "reference.h"

#include "proto/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct qr_reference {
    struct qr_reference_layer layer;
    uint32_t tokens;
    double *key, *value; /* [kv_heads][tokens][dim] */
    double *score;       /* [tokens] */
};

float qr_reference_element(const void *row, enum quire_dtype dtype, size_t index)
{
    uint16_t half;
    float single;
    if (dtype == QUIRE_F32) {
        memcpy(&single, (const char *)row + 4 * index, sizeof(single));
        return single;
    }
    memcpy(&half, (const char *)row + 2 * index, sizeof(half));
    return dtype == QUIRE_F16 ? qr_f16_to_f32(half) : qr_bf16_to_f32(half);
}

void qr_reference_rotate(const struct qr_rope *rope, uint64_t position, uint32_t heads,
                         uint32_t dim, float *rows)
{
    const uint32_t pairs = rope->rotary_dim / 2;
    for (uint32_t i = 0; i < pairs; i++) {
        const float angle = (float)position * rope->inv_freq[i];
        const float c = (float)cos((double)angle) * rope->attention_factor;
        const float s = (float)sin((double)angle) * rope->attention_factor;
        const bool half = rope->layout == QR_ROPE_HALF;
        const uint32_t first = half ? i : 2 * i, second = half ? i + pairs : 2 * i + 1;
        for (uint32_t h = 0; h < heads; h++)
            qr_rope_pair(&rows[h * dim + first], &rows[h * dim + second], c, s);
    }
}

/** One token's heads to FP64, rotated when it is a key. */
static void expand_token(const struct qr_reference *r, const void *rows, uint32_t token,
                         bool is_key, float *scratch)
{
    const struct qr_reference_layer *l = &r->layer;
    const uint32_t dim = is_key ? l->key_dim : l->value_dim;
    const size_t width = (size_t)l->kv_heads * dim;
    for (size_t i = 0; i < width; i++)
        scratch[i] = qr_reference_element(rows, l->dtype, token * width + i);
    if (is_key && l->rope != NULL)
        qr_reference_rotate(l->rope, token, l->kv_heads, dim, scratch);
    for (uint32_t h = 0; h < l->kv_heads; h++) {
        double *out = (is_key ? r->key : r->value) + ((size_t)h * r->tokens + token) * dim;
        for (uint32_t d = 0; d < dim; d++)
            out[d] = (double)scratch[(size_t)h * dim + d];
    }
}

quire_status qr_reference_create(const struct qr_reference_layer *layer, uint32_t tokens,
                                 struct qr_reference **out, struct qr_error *e)
{
    struct qr_reference *r = calloc(1, sizeof(*r));
    const size_t rows = (size_t)layer->kv_heads * tokens;
    const uint32_t widest =
        layer->key_dim > layer->value_dim ? layer->key_dim : layer->value_dim;
    float *scratch = calloc((size_t)layer->kv_heads * widest, sizeof(*scratch));
    if (r != NULL) {
        r->layer = *layer;
        r->tokens = tokens;
        r->key = calloc(rows * layer->key_dim, sizeof(*r->key));
        r->value = calloc(rows * layer->value_dim, sizeof(*r->value));
        r->score = calloc(tokens, sizeof(*r->score));
    }
    if (scratch == NULL || r == NULL || r->key == NULL || r->value == NULL ||
        r->score == NULL) {
        free(scratch);
        qr_reference_destroy(&r);
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the FP64 reference of %u tokens",
                            tokens);
    }
    for (uint32_t t = 0; t < tokens; t++) {
        expand_token(r, layer->key, t, true, scratch);
        expand_token(r, layer->value, t, false, scratch);
    }
    free(scratch);
    *out = r;
    return QUIRE_OK;
}

/** Four running sums, so that the additions do not wait for each other. */
static double dot(const double *key, const float *query, uint32_t dim)
{
    double sum[4] = {0, 0, 0, 0};
    uint32_t d = 0;
    for (; d + 4 <= dim; d += 4) {
        for (uint32_t k = 0; k < 4; k++)
            sum[k] += key[d + k] * (double)query[d + k];
    }
    for (; d < dim; d++)
        sum[0] += key[d] * (double)query[d];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static double attend_head(struct qr_reference *r, uint32_t kv_head, const float *query,
                          uint32_t count, double *output)
{
    const struct qr_reference_layer *l = &r->layer;
    const double *key = r->key + (size_t)kv_head * r->tokens * l->key_dim;
    const double *value = r->value + (size_t)kv_head * r->tokens * l->value_dim;
    const double scale = 1.0 / sqrt(l->key_dim);
    double largest = -INFINITY, sum = 0;
    for (uint32_t t = 0; t < count; t++) {
        r->score[t] = scale * dot(key + (size_t)t * l->key_dim, query, l->key_dim);
        largest = fmax(largest, r->score[t]);
    }
    memset(output, 0, l->value_dim * sizeof(*output));
    for (uint32_t t = 0; t < count; t++) {
        const double p = exp(r->score[t] - largest);
        sum += p;
        for (uint32_t d = 0; d < l->value_dim; d++)
            output[d] += p * value[(size_t)t * l->value_dim + d];
    }
    for (uint32_t d = 0; d < l->value_dim; d++)
        output[d] /= sum;
    return largest + log(sum);
}

void qr_reference_attend(struct qr_reference *reference, const float *query, uint32_t position,
                         double *output, double *lse)
{
    const struct qr_reference_layer *l = &reference->layer;
    const uint32_t group = l->query_heads / l->kv_heads;
    const uint32_t count = position + 1 < reference->tokens ? position + 1 : reference->tokens;
    for (uint32_t h = 0; h < l->query_heads; h++)
        lse[h] = attend_head(reference, h / group, query + (size_t)h * l->key_dim, count,
                             output + (size_t)h * l->value_dim);
}

static void add_stored(const struct qr_reference *r, const double *wanted, const void *rows,
                       uint32_t dim, struct qr_deviation *sum)
{
    const uint32_t heads = r->layer.kv_heads;
    for (uint32_t t = 0; t < r->tokens; t++) {
        for (uint32_t h = 0; h < heads; h++) {
            const double *row = wanted + ((size_t)h * r->tokens + t) * dim;
            const size_t first = ((size_t)t * heads + h) * dim;
            for (uint32_t d = 0; d < dim; d++)
                qr_deviation_add(sum, (double)qr_reference_element(rows, QUIRE_F16, first + d),
                                 row[d]);
        }
    }
}

void qr_reference_stored(const struct qr_reference *reference, const void *key,
                         const void *value, struct qr_deviation *key_sum,
                         struct qr_deviation *value_sum)
{
    add_stored(reference, reference->key, key, reference->layer.key_dim, key_sum);
    add_stored(reference, reference->value, value, reference->layer.value_dim, value_sum);
}

void qr_reference_destroy(struct qr_reference **reference)
{
    if (reference == NULL || *reference == NULL)
        return;
    free((*reference)->key);
    free((*reference)->value);
    free((*reference)->score);
    free(*reference);
    *reference = NULL;
}

void qr_deviation_add(struct qr_deviation *sum, double value, double reference)
{
    const double error = fabs(value - reference);
    sum->error_squares += error * error;
    sum->reference_squares += reference * reference;
    sum->largest = fmax(sum->largest, error);
    sum->largest_reference = fmax(sum->largest_reference, fabs(reference));
}

double qr_deviation_frobenius(const struct qr_deviation *sum)
{
    return sum->reference_squares > 0 ? sqrt(sum->error_squares / sum->reference_squares) : 0;
}
