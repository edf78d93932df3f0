/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of the error report without named instructions, for any CPU, and the choice.
 */
#include "eval_kernels.h"

#include "proto/cpu.h"

#include <math.h>
#include <string.h>

#define LANES 4u
#define TILE_ROWS 2u
#define TILE_VECTORS 4u
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

static inline vf v_load(const float *p)
{
    vf x;
    memcpy(&x, p, sizeof(x));
    return x;
}

static inline void v_store(float *p, vf x)
{
    memcpy(p, &x, sizeof(x));
}

static inline vf v_set1(float x)
{
    return (vf){x, x, x, x};
}

static inline vf v_select(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

#define v_add(a, b) ((a) + (b))
#define v_sub(a, b) ((a) - (b))
#define v_mul(a, b) ((a) * (b))
#define v_div(a, b) ((a) / (b))
#define v_fma(a, b, c) ((a) * (b) + (c)) /* two roundings: no report hangs on the second */
#define v_min(a, b) v_select((a) < (b), a, b)
#define v_max(a, b) v_select((a) > (b), a, b)

static inline vf v_abs(vf x)
{
    return (vf)((vi)x & INT32_MAX);
}

static inline vf v_round(vf x)
{
    return (vf){rintf(x[0]), rintf(x[1]), rintf(x[2]), rintf(x[3])};
}

/** p * 2^n, the result a normal number. */
static inline vf v_scale2(vf p, vf n)
{
    return (vf)((vi)p + (__builtin_convertvector(n, vi) << 23));
}

/** x where size > 0, else 0. */
static inline vf v_where_positive(vf size, vf x)
{
    return v_select(size > v_set1(0.0f), x, v_set1(0.0f));
}

#include "eval_simd.h"

const struct qr_eval_kernels qr_eval_kernels_scalar = {multiply, softmax, compare};

const struct qr_eval_kernels *qr_eval_kernels(void)
{
#if defined(__x86_64__)
    if (qr_isa() >= QR_ISA_AVX512)
        return &qr_eval_kernels_avx512;
    if (qr_isa() >= QR_ISA_AVX2)
        return &qr_eval_kernels_avx2;
#endif
    return &qr_eval_kernels_scalar;
}
