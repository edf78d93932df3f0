/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of the attention kernels: what the vector ones are compared
 * with, and what other processors run. docs/FORMULAS.md has the formulas.
 */
#include "attend_kernels.h"

#include "proto/quant.h"

static float at(const struct qr_attend_block *block, uint32_t token, uint32_t channel)
{
    const size_t i = token * block->stride + channel;
    return block->half ? qr_f16_to_f32(((const uint16_t *)block->data)[i])
                       : ((const float *)block->data)[i];
}

static void scores(const struct qr_attend_part *part, uint32_t first, uint32_t tokens,
                   const struct qr_attend_block *key)
{
    const uint32_t dim = part->key_dim;
    for (uint32_t r = 0; r < part->rows; r++)
        for (uint32_t t = 0; t < tokens; t++) {
            const float *q = part->q + r * QR_ATTEND_Q_STRIDE;
            float dot[16] = {0}, sum = 0.0f;
            for (uint32_t i = 0; i < dim; i++)
                dot[i % 16] += q[i] * at(key, t, i);
            for (uint32_t i = 0; i < 16; i++)
                sum += dot[i];
            part->z[r * part->z_stride + first + t] = sum;
        }
}

static float cap(float z, float softcap)
{
    return softcap > 0.0f ? softcap * tanhf(z / softcap) : z;
}

static void softmax(float *z, struct qr_attend_softmax *s)
{
    float max = s->max;
    for (uint32_t t = s->low; t < s->high; t++) {
        z[t] = cap(z[t] * s->scale, s->softcap);
        max = z[t] > max ? z[t] : max;
    }
    const float old = s->max;
    s->rescale = old == max ? 1.0f : expf(old - max);
    float sum = s->sum * s->rescale;
    for (uint32_t t = s->first; t < s->last; t++) {
        const bool seen = t >= s->low && t < s->high;
        z[t] = seen ? expf(z[t] - max) : 0.0f;
        sum += z[t];
    }
    s->max = max;
    s->sum = sum;
}

static void add(const struct qr_attend_part *part, uint32_t first, uint32_t tokens,
                const struct qr_attend_block *value)
{
    const uint32_t dim = part->value_dim;
    for (uint32_t r = 0; r < part->rows; r++)
        for (uint32_t t = 0; t < tokens; t++) {
            const float weight = part->z[r * part->z_stride + first + t];
            float *out = part->out + r * part->out_stride;
            for (uint32_t i = 0; i < dim; i++)
                out[i] += weight * at(value, t, i);
        }
}

static void load(const uint16_t *row, uint32_t dim, const float *rotation, uint32_t rotary_dim,
                 enum qr_rope_layout layout, float *out)
{
    for (uint32_t i = 0; i < dim; i++)
        out[i] = qr_f16_to_f32(row[i]);
    if (!rotation)
        return;
    const uint32_t pairs = rotary_dim / 2;
    const bool half = layout == QR_ROPE_HALF;
    for (uint32_t i = 0; i < pairs; i++)
        qr_rope_pair(&out[half ? i : 2 * i], &out[half ? i + pairs : 2 * i + 1], rotation[i],
                     rotation[i + pairs]);
}

static void scale(float *x, uint32_t n, float factor)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] *= factor;
}

const struct qr_attend_kernels qr_attend_scalar = {
    .scores = scores, .softmax = softmax, .add = add, .load = load, .scale = scale};
