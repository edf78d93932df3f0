/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over pages stays within the bound of docs/FORMULAS.md on every
 * instruction set, for every encoding, shape, rotation and mask; the reference
 * decodes the page code by code as proto/PACKING.md says.
 */
#include "attend_reference.h"

#include "proto/packing.h"

#define CHANNEL(bits, group)                                                                   \
    {                                                                                          \
        QR_CODEC_CHAN, bits, QR_AXIS_CHANNEL, group, 0,                                        \
        {                                                                                      \
            0, 0                                                                               \
        }                                                                                      \
    }
#define TOKEN(bits, group)                                                                     \
    {                                                                                          \
        QR_CODEC_CHAN, bits, QR_AXIS_TOKEN, group, 0,                                          \
        {                                                                                      \
            0, 0                                                                               \
        }                                                                                      \
    }
#define RAW                                                                                    \
    {                                                                                          \
        QR_CODEC_RAW, 16, 0, 0, 0,                                                             \
        {                                                                                      \
            0, 0                                                                               \
        }                                                                                      \
    }

struct shape {
    struct qr_codec_spec key, value;
    uint16_t page_tokens, heads, key_dim, value_dim;
    uint32_t count, rotary_dim;
    enum qr_rope_layout layout;
    uint16_t sinks, outliers;
    bool by_channel;
    bool causal;
    uint64_t window;
    float softcap;
};

/* The default and its neighbours, then each form once, then odd shapes. */
static const struct shape shapes[] = {
    {CHANNEL(4, 32), TOKEN(4, 32), 128, 3, 128, 128, 4, 128, QR_ROPE_HALF, 4, 4, true, true, 0,
     0},
    {CHANNEL(4, 32), TOKEN(4, 32), 128, 3, 64, 64, 3, 64, QR_ROPE_HALF, 4, 4, false, true, 0,
     0},
    {CHANNEL(2, 32), TOKEN(2, 32), 128, 2, 128, 128, 8, 128, QR_ROPE_HALF, 4, 0, true, true, 0,
     0},
    {CHANNEL(2, 32), TOKEN(2, 32), 64, 1, 64, 64, 2, 64, QR_ROPE_HALF, 0, 0, true, true, 0, 0},
    {CHANNEL(4, 64), TOKEN(4, 128), 256, 2, 128, 128, 5, 0, 0, 0, 0, false, true, 0, 0},
    {CHANNEL(4, 128), TOKEN(2, 16), 512, 1, 128, 128, 1, 128, QR_ROPE_INTERLEAVED, 9, 0, false,
     true, 99, 0},
    {CHANNEL(2, 128), TOKEN(4, 16), 128, 1, 256, 256, 7, 64, QR_ROPE_HALF, 1, 0, true, true, 0,
     20.0f},
    {CHANNEL(8, 32), TOKEN(8, 32), 128, 2, 128, 128, 4, 128, QR_ROPE_HALF, 4, 0, true, true, 0,
     0},
    {CHANNEL(3, 32), TOKEN(3, 32), 128, 2, 128, 128, 4, 128, QR_ROPE_HALF, 4, 0, true, true, 0,
     0},
    {TOKEN(4, 32), CHANNEL(4, 32), 128, 2, 128, 128, 4, 128, QR_ROPE_HALF, 4, 0, true, true, 0,
     0},
    {TOKEN(2, 64), CHANNEL(8, 16), 64, 2, 72, 80, 3, 24, QR_ROPE_INTERLEAVED, 2, 1, false, true,
     0, 0},
    {RAW, RAW, 128, 2, 64, 64, 4, 64, QR_ROPE_HALF, 0, 0, false, true, 0, 0},
    {RAW, TOKEN(4, 32), 32, 2, 64, 64, 4, 0, 0, 3, 0, false, false, 0, 0},
    {CHANNEL(4, 16), TOKEN(4, 16), 16, 2, 64, 64, 1, 64, QR_ROPE_HALF, 0, 0, true, true, 0, 0},
    {CHANNEL(4, 32), TOKEN(4, 32), 64, 2, 96, 96, 4, 96, QR_ROPE_HALF, 4, 0, true, true, 0, 0},
    {CHANNEL(4, 32), TOKEN(4, 64), 64, 2, 160, 192, 18, 32, QR_ROPE_INTERLEAVED, 0, 0, true,
     true, 40, 0},
    {CHANNEL(4, 32), TOKEN(4, 32), 64, 1, 576, 512, 16, 64, QR_ROPE_HALF, 4, 0, false, true, 0,
     0},
    {CHANNEL(2, 64), TOKEN(2, 128), 64, 1, 1024, 1024, 5, 1024, QR_ROPE_HALF, 4, 0, true, true,
     0, 0},
    {CHANNEL(4, 32), TOKEN(4, 32), 32, 1, 16, 24, 2, 16, QR_ROPE_HALF, 4, 0, true, true, 0, 0},
    {CHANNEL(4, 32), TOKEN(4, 32), 32, 1, 128, 128, 4, 128, QR_ROPE_HALF, 32, 0, true, true, 0,
     0},
};

/** One encoded page, its view, and the decoded head in FP64. */
struct inputs {
    struct shape s;
    uint32_t head;
    uint16_t *key, *value;
    uint8_t *page;
    struct qr_page_view view;
    float *q, *rotation, *by_channel;
    uint64_t *positions;
    double *key64, *value64;
    struct qr_attend_queries queries;
};

static uint16_t *random_rows(struct random *r, const struct shape *s, uint32_t dim)
{
    const size_t row = (size_t)s->heads * dim;
    uint16_t *x = test_alloc(s->page_tokens * row * sizeof(*x));
    for (size_t i = 0; i < s->page_tokens * row; i++) {
        const float spread = i % 11 == 3 ? 4.0f : 1.0f; /* some channels are wider */
        x[i] = qr_f16_from_f32(spread * random_normal(r) + (i % 7 == 1 ? 3.0f : 0.0f));
    }
    return x;
}

static void encode(struct inputs *in, uint64_t first_position)
{
    const struct shape *s = &in->s;
    struct qr_policy policy;
    qr_policy_default(&policy);
    policy.page_tokens = s->page_tokens;
    policy.key = s->key;
    policy.value = s->value;
    policy.sink_rows = s->sinks;
    policy.outlier_rows = s->outliers;
    const struct qr_page_identity id = {
        .heads = s->heads,
        .key_dim = s->key_dim,
        .value_dim = s->value_dim,
        .rope_stored = s->rotary_dim ? QR_ROPE_PRE : QR_ROPE_NONE,
        .rope_layout = (uint8_t)s->layout,
        .page_tokens = s->page_tokens,
        .first_position = first_position,
        .key = s->key,
        .value = s->value,
    };
    const struct qr_rows key = {in->key, (size_t)s->heads * s->key_dim, s->key_dim};
    const struct qr_rows value = {in->value, (size_t)s->heads * s->value_dim, s->value_dim};
    const size_t most = qr_page_bytes_max(&id, &policy);
    size_t bytes;
    struct qr_error e = {0};
    in->page = test_alloc(most);
    if (qr_page_encode(&id, &policy, &key, &value, in->page, most, &bytes, &e) ||
        qr_page_open(in->page, bytes, &in->view, &e))
        fail_msg("page of dims %u/%u: %s", s->key_dim, s->value_dim, e.text);
}

/** One decoded value, from the packing and the formulas alone. */
static float decode(const struct qr_codec_spec *spec, const uint8_t *codes,
                    const uint8_t *scales, uint32_t dim, uint32_t t, uint32_t c)
{
    if (spec->codec == QR_CODEC_RAW) {
        uint16_t x;
        memcpy(&x, codes + 2 * ((size_t)t * dim + c), sizeof(x));
        return qr_f16_to_f32(x);
    }
    const uint16_t *f16 = (const uint16_t *)(const void *)scales;
    const uint32_t code =
        qr_row_get(codes + (size_t)t * qr_row_bytes(dim, spec->bits), dim, spec->bits, c);
    const uint32_t groups = (dim + spec->group - 1u) / spec->group;
    const uint16_t *pair = spec->axis == QR_AXIS_CHANNEL
                               ? f16 + (size_t)(t / spec->group) * 2 * dim + c
                               : f16 + ((size_t)t * groups + c / spec->group) * 2;
    return qr_quant_value(code, qr_f16_to_f32(pair[0]),
                          qr_f16_to_f32(pair[spec->axis == QR_AXIS_CHANNEL ? dim : 1]));
}

static void decode_head(struct inputs *in)
{
    const struct shape *s = &in->s;
    const struct qr_page_view *v = &in->view;
    float row[QR_DIM_MAX];
    const size_t kc = qr_spec_codes_bytes(&s->key, s->page_tokens, 1, s->key_dim) * in->head;
    const size_t ks = qr_spec_scales_bytes(&s->key, s->page_tokens, 1, s->key_dim) * in->head;
    const size_t vc =
        qr_spec_codes_bytes(&s->value, s->page_tokens, 1, s->value_dim) * in->head;
    const size_t vs =
        qr_spec_scales_bytes(&s->value, s->page_tokens, 1, s->value_dim) * in->head;
    for (uint32_t t = 0; t < s->page_tokens; t++) {
        const bool raw = qr_page_is_raw(v->header->raw_bitmap, t);
        const uint16_t *key = in->key + ((size_t)t * s->heads + in->head) * s->key_dim;
        const uint16_t *value = in->value + ((size_t)t * s->heads + in->head) * s->value_dim;
        for (uint32_t c = 0; c < s->key_dim; c++)
            row[c] =
                raw ? qr_f16_to_f32(key[c])
                    : decode(&s->key, v->key_codes + kc, v->key_scales + ks, s->key_dim, t, c);
        if (s->rotary_dim)
            reference_rotate(row, in->rotation + t * s->rotary_dim, s->rotary_dim, s->layout);
        for (uint32_t c = 0; c < s->key_dim; c++)
            in->key64[t * s->key_dim + c] = (double)row[c];
        for (uint32_t c = 0; c < s->value_dim; c++)
            in->value64[t * s->value_dim + c] =
                (double)(raw ? qr_f16_to_f32(value[c])
                             : decode(&s->value, v->value_codes + vc, v->value_scales + vs,
                                      s->value_dim, t, c));
    }
}

static void make_rotation(struct inputs *in, struct random *r)
{
    const uint32_t half = in->s.rotary_dim / 2;
    for (uint32_t t = 0; t < in->s.page_tokens; t++)
        for (uint32_t i = 0; i < half; i++) {
            const double angle = 6.2831853 * random_unit(r);
            in->rotation[t * in->s.rotary_dim + i] = (float)cos(angle);
            in->rotation[t * in->s.rotary_dim + half + i] = (float)sin(angle);
        }
    qr_attend_rotation_by_channel(in->rotation, in->s.page_tokens, in->s.rotary_dim,
                                  in->by_channel);
}

static void make_queries(struct inputs *in, struct random *r, uint64_t first)
{
    const struct shape *s = &in->s;
    for (uint32_t i = 0; i < s->count * s->key_dim; i++)
        in->q[i] = 1.5f * random_normal(r);
    for (uint32_t i = 0; i < s->count; i++)
        in->positions[i] = first + random_below(r, s->page_tokens * 5u / 4u);
    in->queries = (struct qr_attend_queries){
        .count = s->count,
        .q = in->q,
        .q_stride = s->key_dim,
        .positions = in->positions,
        .scale = 1.0f / sqrtf((float)s->key_dim),
        .softcap = s->softcap,
        .causal = s->causal,
        .window = s->window,
        .first = first,
        .last = first + s->page_tokens,
        .rotation_by_channel = s->by_channel ? in->by_channel : NULL,
    };
}

static struct inputs inputs_make(const struct shape *s, struct random *r)
{
    struct inputs in = {.s = *s, .head = s->heads - 1u};
    in.key = random_rows(r, s, s->key_dim);
    in.value = random_rows(r, s, s->value_dim);
    in.key64 = test_alloc(s->page_tokens * s->key_dim * sizeof(double));
    in.value64 = test_alloc(s->page_tokens * s->value_dim * sizeof(double));
    in.rotation = test_alloc(s->page_tokens * s->rotary_dim * sizeof(float));
    in.by_channel = test_alloc(s->page_tokens * s->rotary_dim * sizeof(float));
    in.q = test_alloc(s->count * s->key_dim * sizeof(float));
    in.positions = test_alloc(s->count * sizeof(uint64_t));
    make_rotation(&in, r);
    encode(&in, 0);
    decode_head(&in);
    make_queries(&in, r, 0);
    return in;
}

static void inputs_free(struct inputs *in)
{
    free(in->key);
    free(in->value);
    free(in->page);
    free(in->key64);
    free(in->value64);
    free(in->rotation);
    free(in->by_channel);
    free(in->q);
    free(in->positions);
}

static void attend_page(const struct inputs *in, float *out, float *lse)
{
    const struct shape *s = &in->s;
    struct qr_attend_acc acc;
    acc_make(&acc, s->count, s->value_dim);
    const size_t bytes =
        qr_attend_scratch_bytes(s->page_tokens, s->key_dim, s->value_dim, s->count);
    uint8_t *scratch = test_alloc(bytes + 64);
    memset(scratch, 0xff, bytes + 64);
    qr_attend_page(&in->view, in->head, &in->queries, s->rotary_dim ? in->rotation : NULL,
                   s->rotary_dim, &acc, scratch);
    for (int i = 0; i < 64; i++) /* nothing past what was asked for */
        assert_int_equal(scratch[bytes + (size_t)i], 0xff);
    qr_attend_finish(&acc, s->count, s->value_dim, out, s->value_dim, lse);
    acc_free(&acc);
    free(scratch);
}

static void check(const struct inputs *in, uint64_t seed)
{
    const struct shape *s = &in->s;
    float *out = test_alloc(s->count * s->value_dim * sizeof(float));
    float *lse = test_alloc(s->count * sizeof(float));
    attend_page(in, out, lse);
    const struct reference ref = {in->key64,    in->value64, s->page_tokens, s->key_dim,
                                  s->value_dim, 0,           &in->queries};
    double out_error, lse_error;
    reference_errors(&ref, out, s->value_dim, lse, &out_error, &lse_error);
    if (!(out_error <= BOUND_OUT && lse_error <= BOUND_LSE))
        fail_msg("%s seed %llu: K %u bits axis %u group %u, V %u bits axis %u group %u, %u "
                 "tokens, dims %u/%u, %u rows: out %g lse %g",
                 qr_isa_name(qr_isa()), (unsigned long long)seed, s->key.bits, s->key.axis,
                 s->key.group, s->value.bits, s->value.axis, s->value.group, s->page_tokens,
                 s->key_dim, s->value_dim, s->count, out_error, lse_error);
    free(out);
    free(lse);
}

static void stays_in_the_bound_for_every_form(void **state)
{
    (void)state;
    for (int isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512; isa++) {
        if (!qr_isa_force((enum qr_isa)isa))
            continue;
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
            struct random r = {test_seed() + i};
            struct inputs in = inputs_make(&shapes[i], &r);
            check(&in, test_seed() + i);
            inputs_free(&in);
        }
    }
}

static void masks_cut_pages_anywhere(void **state)
{
    (void)state;
    for (int isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512; isa++) {
        if (!qr_isa_force((enum qr_isa)isa))
            continue;
        struct random r = {test_seed()};
        struct inputs in = inputs_make(&shapes[0], &r);
        for (uint32_t i = 0; i < 40; i++) {
            in.queries.first = random_below(&r, 128);
            in.queries.last = in.queries.first + random_below(&r, 129);
            in.queries.window = random_below(&r, 3) ? 0 : 1 + random_below(&r, 64);
            in.queries.causal = random_below(&r, 2);
            in.queries.count = 1 + i % 4;
            in.s.count = in.queries.count;
            check(&in, test_seed());
        }
        inputs_free(&in);
    }
}

/** One token has nearly all the weight, the others 1e-6 of it and less, and its scale is small
 * beside theirs: integer weights must not lose it. */
static void a_peak_among_wide_tokens_survives(void **state)
{
    (void)state;
    for (int isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512; isa++) {
        if (!qr_isa_force((enum qr_isa)isa))
            continue;
        struct random r = {test_seed()};
        struct inputs in = inputs_make(&shapes[0], &r);
        const size_t row = 3 * 128, at = 2 * 128;
        for (uint32_t c = 0; c < 128; c++) {
            in.value[77 * row + at + c] = qr_f16_from_f32(0.01f * random_normal(&r));
            for (uint32_t t = 0; t < 128; t++)
                if (t != 77)
                    in.value[t * row + at + c] = qr_f16_from_f32(30.0f * random_normal(&r));
        }
        for (uint32_t c = 0; c < 128; c++) { /* every query points at the peak's key */
            for (uint32_t i = 0; i < in.s.count; i++)
                in.q[i * 128 + c] = (float)(2.5 * in.key64[77 * 128 + c]);
        }
        for (uint32_t i = 0; i < in.s.count; i++)
            in.positions[i] = 127;
        free(in.page);
        encode(&in, 0);
        decode_head(&in);
        check(&in, test_seed());
        inputs_free(&in);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stays_in_the_bound_for_every_form),
        cmocka_unit_test(masks_cut_pages_anywhere),
        cmocka_unit_test(a_peak_among_wide_tokens_survives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
