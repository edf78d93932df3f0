/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over FP16 rows equals FP64 attention on every instruction set, for
 * any mask, shape and rotation, and partials merge to the whole.
 */
#include "attend_reference.h"

/* Inputs are exact, so what is left is FP32 accumulation: 1e-7 times the size of the scores
 * (some tens) times a small factor. Far inside the 2e-3 that codes are allowed. */
#define BOUND_ROWS 5e-5

struct shape {
    uint32_t tokens, key_dim, value_dim, count;
    bool causal;
    uint64_t window;
    float softcap;
    uint32_t skip_front, skip_back; /* first and last, relative to the rows */
    uint32_t rotary_dim;            /* 0: no rotation */
    enum qr_rope_layout layout;
};

static const struct shape shapes[] = {
    {1, 16, 16, 1, false, 0, 0, 0, 0, 0, 0},
    {128, 128, 128, 4, false, 0, 0, 0, 0, 0, 0},
    {127, 128, 128, 4, true, 0, 0, 0, 0, 128, QR_ROPE_HALF},
    {33, 64, 64, 3, true, 0, 0, 0, 0, 64, QR_ROPE_INTERLEAVED},
    {64, 24, 40, 5, true, 7, 0, 0, 0, 16, QR_ROPE_HALF},
    {200, 72, 88, 17, true, 50, 30.0f, 3, 5, 24, QR_ROPE_INTERLEAVED},
    {96, 576, 512, 16, true, 0, 0, 10, 10, 64, QR_ROPE_HALF},
    {40, 1024, 1024, 6, false, 0, 50.0f, 0, 1, 0, 0},
    {1100, 32, 16, 2, true, 1000, 0, 0, 0, 32, QR_ROPE_HALF},
    {50, 128, 128, 4, true, 1, 0, 0, 0, 0, 0},
    {60, 64, 64, 3, true, 0, 1e6f, 0, 0, 0, 0}, /* caps that nothing reaches */
    {60, 64, 64, 3, true, 0, 1e30f, 0, 0, 0, 0},
    {60, 64, 64, 3, true, 0, 0.01f, 0, 0, 0, 0},
};

/** Everything a case needs; positions of queries straddle the end of the rows. */
struct inputs {
    struct shape s;
    uint64_t first_position;
    uint16_t *key, *value;
    float *q, *rotation;
    uint64_t *positions;
    double *key64, *value64;
    struct qr_attend_queries queries;
};

static void fill_rows(struct inputs *in, struct random *r)
{
    const struct shape *s = &in->s;
    float row[QR_DIM_MAX];
    for (uint32_t t = 0; t < s->tokens; t++) {
        for (uint32_t i = 0; i < s->key_dim; i++) {
            in->key[t * s->key_dim + i] = qr_f16_from_f32(random_normal(r));
            row[i] = qr_f16_to_f32(in->key[t * s->key_dim + i]);
        }
        if (s->rotary_dim)
            reference_rotate(row, in->rotation + t * s->rotary_dim, s->rotary_dim, s->layout);
        for (uint32_t i = 0; i < s->key_dim; i++)
            in->key64[t * s->key_dim + i] = (double)row[i];
        for (uint32_t i = 0; i < s->value_dim; i++) {
            in->value[t * s->value_dim + i] = qr_f16_from_f32(random_normal(r) + 0.5f);
            in->value64[t * s->value_dim + i] =
                (double)qr_f16_to_f32(in->value[t * s->value_dim + i]);
        }
    }
}

static struct inputs inputs_make(const struct shape *s, struct random *r)
{
    struct inputs in = {.s = *s, .first_position = random_below(r, 100000)};
    in.key = test_alloc(s->tokens * s->key_dim * sizeof(uint16_t));
    in.value = test_alloc(s->tokens * s->value_dim * sizeof(uint16_t));
    in.key64 = test_alloc(s->tokens * s->key_dim * sizeof(double));
    in.value64 = test_alloc(s->tokens * s->value_dim * sizeof(double));
    in.rotation = test_alloc(s->tokens * s->rotary_dim * sizeof(float));
    in.q = test_alloc(s->count * s->key_dim * sizeof(float));
    in.positions = test_alloc(s->count * sizeof(uint64_t));
    for (uint32_t i = 0; i < s->tokens * s->rotary_dim / 2; i++) {
        const uint32_t half = s->rotary_dim / 2, at = i / half * s->rotary_dim + i % half;
        const double angle = 6.2831853 * random_unit(r);
        in.rotation[at] = (float)cos(angle);
        in.rotation[at + half] = (float)sin(angle);
    }
    fill_rows(&in, r);
    for (uint32_t i = 0; i < s->count * s->key_dim; i++)
        in.q[i] = 2.0f * random_normal(r);
    for (uint32_t i = 0; i < s->count; i++)
        in.positions[i] = in.first_position + random_below(r, s->tokens + s->tokens / 4 + 1);
    in.queries = (struct qr_attend_queries){
        .count = s->count,
        .q = in.q,
        .q_stride = s->key_dim,
        .positions = in.positions,
        .scale = 1.0f / sqrtf((float)s->key_dim),
        .softcap = s->softcap,
        .causal = s->causal,
        .window = s->window,
        .first = in.first_position + s->skip_front,
        .last = in.first_position + s->tokens - s->skip_back,
    };
    return in;
}

static void inputs_free(struct inputs *in)
{
    free(in->key);
    free(in->value);
    free(in->key64);
    free(in->value64);
    free(in->rotation);
    free(in->q);
    free(in->positions);
}

static void attend_rows(const struct inputs *in, const struct qr_attend_queries *queries,
                        float *out, float *lse)
{
    const struct shape *s = &in->s;
    struct qr_attend_acc acc;
    acc_make(&acc, s->count, s->value_dim);
    void *scratch =
        test_alloc(qr_attend_scratch_bytes(s->tokens, s->key_dim, s->value_dim, s->count));
    memset(scratch, 0xff, qr_attend_scratch_bytes(s->tokens, s->key_dim, s->value_dim, 1));
    qr_attend_rows(in->key, s->key_dim, s->key_dim, in->value, s->value_dim, s->value_dim,
                   s->tokens, in->first_position, queries, s->rotary_dim ? in->rotation : NULL,
                   s->rotary_dim, s->layout, &acc, scratch);
    qr_attend_finish(&acc, s->count, s->value_dim, out, s->value_dim, lse);
    acc_free(&acc);
    free(scratch);
}

static void check_shape(const struct shape *s, uint64_t seed)
{
    struct random r = {seed};
    struct inputs in = inputs_make(s, &r);
    float *out = test_alloc(s->count * s->value_dim * sizeof(float));
    float *lse = test_alloc(s->count * sizeof(float));
    attend_rows(&in, &in.queries, out, lse);

    const struct reference ref = {in.key64,     in.value64,        s->tokens,  s->key_dim,
                                  s->value_dim, in.first_position, &in.queries};
    double out_error, lse_error;
    reference_errors(&ref, out, s->value_dim, lse, &out_error, &lse_error);
    if (!(out_error <= BOUND_ROWS && lse_error <= BOUND_ROWS))
        fail_msg("%s seed %llu: %u tokens, dims %u/%u, %u rows: out %g lse %g",
                 qr_isa_name(qr_isa()), (unsigned long long)seed, s->tokens, s->key_dim,
                 s->value_dim, s->count, out_error, lse_error);
    free(out);
    free(lse);
    inputs_free(&in);
}

static void equals_fp64_on_every_isa(void **state)
{
    (void)state;
    for (int isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512; isa++) {
        if (!qr_isa_force((enum qr_isa)isa))
            continue;
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
            check_shape(&shapes[i], test_seed() + i);
    }
}

static void sees_nothing_outside_an_empty_range(void **state)
{
    (void)state;
    struct random r = {test_seed()};
    const struct shape s = {32, 64, 64, 5, true, 0, 0, 0, 0, 0, 0};
    for (int isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512; isa++) {
        if (!qr_isa_force((enum qr_isa)isa))
            continue;
        struct inputs in = inputs_make(&s, &r);
        in.queries.last = in.queries.first;
        float out[5 * 64], lse[5];
        attend_rows(&in, &in.queries, out, lse);
        for (int i = 0; i < 5 * 64; i++)
            assert_true(out[i] == 0.0f);
        for (int i = 0; i < 5; i++)
            assert_true(lse[i] == -INFINITY);
        inputs_free(&in);
    }
}

static void merges_parts_to_the_whole(void **state)
{
    (void)state;
    struct random r = {test_seed()};
    const struct shape s = {150, 64, 72, 7, true, 0, 0, 0, 0, 0, 0};
    struct inputs in = inputs_make(&s, &r);
    float out[7 * 72], part[7 * 72], lse[7], part_lse[7];
    memset(out, 0, sizeof(out));
    for (int i = 0; i < 7; i++)
        lse[i] = -INFINITY;
    const uint64_t cuts[] = {0, 1, 1, 70, 149, 150}; /* an empty part among them */
    for (size_t i = 1; i < ARRAY_LEN(cuts); i++) {
        struct qr_attend_queries q = in.queries;
        q.first = in.first_position + cuts[i - 1];
        q.last = in.first_position + cuts[i];
        attend_rows(&in, &q, part, part_lse);
        qr_attend_merge(out, lse, part, part_lse, 7, 72);
    }
    const struct reference ref = {in.key64, in.value64,        150,        64,
                                  72,       in.first_position, &in.queries};
    double out_error, lse_error;
    reference_errors(&ref, out, 72, lse, &out_error, &lse_error);
    assert_true(out_error <= BOUND_ROWS && lse_error <= BOUND_ROWS);
    inputs_free(&in);
}

static void a_query_of_nan_gives_nan_in_its_row_only(void **state)
{
    (void)state;
    struct random r = {test_seed()};
    const struct shape s = {48, 64, 64, 4, false, 0, 0, 0, 0, 0, 0};
    for (int isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512; isa++) {
        if (!qr_isa_force((enum qr_isa)isa))
            continue;
        struct inputs in = inputs_make(&s, &r);
        in.q[64 + 3] = NAN;
        float out[4 * 64], lse[4];
        attend_rows(&in, &in.queries, out, lse);
        for (int row = 0; row < 4; row++)
            assert_int_equal(isnan(out[row * 64]) != 0, row == 1);
        inputs_free(&in);
    }
}

static void far_scores_do_not_overflow(void **state)
{
    (void)state;
    struct random r = {test_seed()};
    const struct shape s = {64, 128, 32, 4, false, 0, 0, 0, 0, 0, 0};
    for (int isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512; isa++) {
        if (!qr_isa_force((enum qr_isa)isa))
            continue;
        struct inputs in = inputs_make(&s, &r);
        for (int i = 0; i < 4 * 128; i++)
            in.q[i] *= 1e4f;
        float out[4 * 32], lse[4];
        attend_rows(&in, &in.queries, out, lse);
        for (int i = 0; i < 4 * 32; i++)
            assert_true(isfinite(out[i]));
        inputs_free(&in);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_fp64_on_every_isa),
        cmocka_unit_test(sees_nothing_outside_an_empty_range),
        cmocka_unit_test(merges_parts_to_the_whole),
        cmocka_unit_test(a_query_of_nan_gives_nan_in_its_row_only),
        cmocka_unit_test(far_scores_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
