/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention in FP64, one token at a time, straight from docs/FORMULAS.md, and
 * what the attention tests share: random inputs, buffers, bounds. Must not
 * call the code under test except where a function says so.
 */
#ifndef ATTEND_REFERENCE_H
#define ATTEND_REFERENCE_H

#include "tests/test.h"

#include "proto/cpu.h"
#include "proto/quant.h"
#include "storage/codec/attend.h"

/* docs/FORMULAS.md, Attend. */
#define BOUND_OUT 2e-3
#define BOUND_LSE 1e-3

/** Keys (rotated) and values of one head in FP64, and who asks. */
struct reference {
    const double *key, *value; /* [tokens][dim] */
    uint32_t tokens, key_dim, value_dim;
    uint64_t first_position;
    const struct qr_attend_queries *queries;
};

struct random {
    uint64_t state;
};

static inline double random_unit(struct random *r)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (double)(r->state >> 11) * 0x1p-53;
}

/** Sum of four uniforms, variance 1: bell enough. */
static inline float random_normal(struct random *r)
{
    double sum = -2.0;
    for (int i = 0; i < 4; i++)
        sum += random_unit(r);
    return (float)(sum * 1.7320508);
}

static inline uint32_t random_below(struct random *r, uint32_t n)
{
    return (uint32_t)(random_unit(r) * n);
}

/** QUIRE_SEED, else a fixed one: a run can be repeated, and another one asked for. */
static inline uint64_t test_seed(void)
{
    const char *text = getenv("QUIRE_SEED");
    return text ? strtoull(text, NULL, 0) : 20240607u;
}

static inline void *test_alloc(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 64) & ~(size_t)63);
    assert_non_null(p);
    memset(p, 0, (bytes + 64) & ~(size_t)63);
    return p;
}

static inline bool reference_sees(const struct qr_attend_queries *q, uint64_t p, uint64_t t)
{
    if (t < q->first || t >= q->last || (q->causal && t > p))
        return false;
    return !q->window || t + q->window > p;
}

static inline double reference_score(const struct reference *ref, uint32_t row, uint32_t t)
{
    const float *q = ref->queries->q + row * ref->queries->q_stride;
    const double *k = ref->key + (size_t)t * ref->key_dim;
    double z = 0.0;
    for (uint32_t i = 0; i < ref->key_dim; i++)
        z += (double)q[i] * k[i];
    z *= (double)ref->queries->scale;
    const double cap = (double)ref->queries->softcap;
    return cap > 0.0 ? cap * tanh(z / cap) : z;
}

/** out[value_dim] and lse of one query row. */
static inline void reference_row(const struct reference *ref, uint32_t row, double *out,
                                 double *lse)
{
    double max = -INFINITY, sum = 0.0;
    memset(out, 0, ref->value_dim * sizeof(*out));
    const uint64_t p = ref->queries->positions[row];
    for (uint32_t t = 0; t < ref->tokens; t++)
        if (reference_sees(ref->queries, p, ref->first_position + t))
            max = fmax(max, reference_score(ref, row, t));
    for (uint32_t t = 0; t < ref->tokens; t++) {
        if (!reference_sees(ref->queries, p, ref->first_position + t))
            continue;
        const double w = exp(reference_score(ref, row, t) - max);
        sum += w;
        for (uint32_t i = 0; i < ref->value_dim; i++)
            out[i] += w * ref->value[(size_t)t * ref->value_dim + i];
    }
    for (uint32_t i = 0; sum > 0.0 && i < ref->value_dim; i++)
        out[i] /= sum;
    *lse = sum > 0.0 ? max + log(sum) : (double)-INFINITY;
}

/** Largest error of out (relative to the largest |O_ref|) and of lse over all rows. */
static inline void reference_errors(const struct reference *ref, const float *out,
                                    size_t out_stride, const float *lse, double *out_error,
                                    double *lse_error)
{
    double *o = test_alloc(ref->value_dim * sizeof(double)), top = 0.0, worst = 0.0;
    *lse_error = 0.0;
    for (uint32_t row = 0; row < ref->queries->count; row++) {
        double l;
        reference_row(ref, row, o, &l);
        for (uint32_t i = 0; i < ref->value_dim; i++) {
            const double e = fabs((double)out[row * out_stride + i] - o[i]);
            top = fmax(top, fabs(o[i]));
            worst = e <= worst ? worst : e; /* NaN stays */
        }
        const double e = l == (double)lse[row] ? 0.0 : fabs((double)lse[row] - l);
        *lse_error = e <= *lse_error ? *lse_error : e;
    }
    *out_error = top > 0.0 ? worst / top : worst;
    free(o);
}

/** Rotate one FP32 row as docs/FORMULAS.md says, with a given table of one token. */
static inline void reference_rotate(float *x, const float *rotation, uint32_t rotary_dim,
                                    enum qr_rope_layout layout)
{
    const uint32_t pairs = rotary_dim / 2;
    for (uint32_t i = 0; i < pairs; i++) {
        const bool half = layout == QR_ROPE_HALF;
        qr_rope_pair(&x[half ? i : 2 * i], &x[half ? i + pairs : 2 * i + 1], rotation[i],
                     rotation[pairs + i]);
    }
}

static inline void acc_make(struct qr_attend_acc *acc, uint32_t count, uint32_t value_dim)
{
    acc->out_stride = (value_dim + 15u) & ~15u;
    acc->max = test_alloc(count * sizeof(float));
    acc->sum = test_alloc(count * sizeof(float));
    acc->out = test_alloc(count * acc->out_stride * sizeof(float));
    qr_attend_reset(acc, count, value_dim);
}

static inline void acc_free(struct qr_attend_acc *acc)
{
    free(acc->max);
    free(acc->sum);
    free(acc->out);
}

#endif
