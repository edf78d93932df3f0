/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over pages of real keys and values equals the golden FP64 outputs
 * within the bound of docs/FORMULAS.md, on every instruction set: eight pages of
 * 128 tokens, the first rows raw, keys rotated at read.
 */
#include "attend_reference.h"

#include "tests/golden.h"

#define PAGE 128u
#define THETA 100000.0f

static struct golden golden, data;

struct layer {
    uint32_t tokens, heads, dim;
    const uint16_t *key, *value; /* [tokens][heads][dim] */
    float *rotation;             /* [tokens][dim] */
};

static uint16_t *copy_tensor(const struct golden *g, const char *format, uint32_t layer,
                             uint32_t shape[4])
{
    char name[32];
    snprintf(name, sizeof(name), format, layer);
    const void *from = golden_tensor(g, name, shape);
    const size_t bytes = (size_t)shape[0] * shape[1] * shape[2] * sizeof(uint16_t);
    uint16_t *to = test_alloc(bytes);
    memcpy(to, from, bytes);
    return to;
}

static struct layer layer_load(uint32_t number)
{
    struct layer l = {0};
    uint32_t shape[4];
    l.value = copy_tensor(&data, "v_layer%02u", number, shape);
    l.key = copy_tensor(&data, "k_layer%02u", number, shape);
    l.tokens = shape[0];
    l.heads = shape[1];
    l.dim = shape[2];
    l.rotation = test_alloc((size_t)l.tokens * l.dim * sizeof(float));
    struct qr_rope_params params = {.type = QR_ROPE_DEFAULT,
                                    .layout = QR_ROPE_HALF,
                                    .rotary_dim = l.dim,
                                    .theta = (double)THETA,
                                    .factor = 1.0};
    struct qr_rope rope;
    struct qr_error e = {0};
    if (qr_rope_make(&params, &rope, &e))
        fail_msg("%s", e.text);
    qr_rotation_make(&rope, 0, l.tokens, l.rotation);
    return l;
}

static void layer_free(struct layer *l)
{
    free((void *)(uintptr_t)l->key);
    free((void *)(uintptr_t)l->value);
    free(l->rotation);
}

/** The policy of a case: bits 0 stand for FP16. */
static struct qr_policy policy_of(const cJSON *item)
{
    struct qr_policy policy;
    qr_policy_default(&policy);
    const uint8_t key_bits = (uint8_t)golden_number(item, "key_bits");
    const uint8_t value_bits = (uint8_t)golden_number(item, "value_bits");
    const uint16_t group = (uint16_t)golden_number(item, "group");
    policy.page_tokens = PAGE;
    policy.outlier_rows = 0;
    policy.sink_rows =
        (uint16_t)cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(item, "raw_rows"));
    policy.key = (struct qr_codec_spec){
        .codec = QR_CODEC_CHAN, .bits = key_bits, .axis = QR_AXIS_CHANNEL, .group = group};
    policy.value = (struct qr_codec_spec){
        .codec = QR_CODEC_CHAN, .bits = value_bits, .axis = QR_AXIS_TOKEN, .group = group};
    if (!key_bits)
        policy.key = (struct qr_codec_spec){.codec = QR_CODEC_RAW, .bits = 16};
    if (!value_bits)
        policy.value = (struct qr_codec_spec){.codec = QR_CODEC_RAW, .bits = 16};
    return policy;
}

static void *encode_page(const struct layer *l, const struct qr_policy *policy, uint32_t first,
                         struct qr_page_view *view)
{
    const struct qr_page_identity id = {.heads = (uint16_t)l->heads,
                                        .key_dim = (uint16_t)l->dim,
                                        .value_dim = (uint16_t)l->dim,
                                        .rope_stored = QR_ROPE_PRE,
                                        .rope_layout = QR_ROPE_HALF,
                                        .page_tokens = PAGE,
                                        .first_position = first,
                                        .key = policy->key,
                                        .value = policy->value};
    const size_t row = (size_t)l->heads * l->dim, most = qr_page_bytes_max(&id, policy);
    const struct qr_rows key = {l->key + first * row, row, l->dim};
    const struct qr_rows value = {l->value + first * row, row, l->dim};
    void *page = test_alloc(most);
    size_t bytes;
    assert_ok(qr_page_encode(&id, policy, &key, &value, page, most, &bytes, NULL));
    assert_ok(qr_page_open(page, bytes, view, NULL));
    return page;
}

/** The golden rows of one KV head: queries [position][query head][dim], as FP32 rows. */
struct rows {
    uint32_t count;
    float *q, *want, *lse;
    uint64_t *positions;
};

static struct rows rows_load(const cJSON *item, const struct layer *l, uint32_t head)
{
    uint32_t shape[4];
    const uint8_t *q = golden_case_tensor(&golden, item, "q", shape);
    const uint8_t *o = golden_case_tensor(&golden, item, "o", NULL);
    const uint8_t *lse = golden_case_tensor(&golden, item, "lse", NULL);
    const cJSON *positions = cJSON_GetObjectItemCaseSensitive(item, "query_positions");
    const uint32_t share = shape[1] / l->heads; /* query head i reads KV head i / share */
    struct rows r = {.count = shape[0] * share};
    r.q = test_alloc(r.count * l->dim * sizeof(float));
    r.want = test_alloc(r.count * l->dim * sizeof(float));
    r.lse = test_alloc(r.count * sizeof(float));
    r.positions = test_alloc(r.count * sizeof(uint64_t));
    for (uint32_t i = 0; i < r.count; i++) {
        const size_t from = (size_t)(i / share) * shape[1] + head * share + i % share;
        for (uint32_t c = 0; c < l->dim; c++) {
            uint16_t x;
            memcpy(&x, q + (from * l->dim + c) * sizeof(x), sizeof(x));
            r.q[i * l->dim + c] = qr_f16_to_f32(x);
        }
        memcpy(r.want + i * l->dim, o + from * l->dim * sizeof(float), l->dim * sizeof(float));
        memcpy(r.lse + i, lse + from * sizeof(float), sizeof(float));
        r.positions[i] = (uint64_t)cJSON_GetArrayItem(positions, (int)(i / share))->valuedouble;
    }
    return r;
}

static void rows_free(struct rows *r)
{
    free(r->q);
    free(r->want);
    free(r->lse);
    free(r->positions);
}

static void compare(const cJSON *item, const struct rows *r, const struct layer *l,
                    const float *out, const float *lse)
{
    double worst = 0.0, top = 0.0, lse_error = 0.0;
    for (uint32_t i = 0; i < r->count * l->dim; i++) {
        worst = fmax(worst, fabs((double)out[i] - (double)r->want[i]));
        top = fmax(top, fabs((double)r->want[i]));
    }
    for (uint32_t i = 0; i < r->count; i++)
        lse_error = fmax(lse_error, fabs((double)lse[i] - (double)r->lse[i]));
    if (!(worst <= BOUND_OUT * top && lse_error <= BOUND_LSE))
        fail_msg("%s %s: out %g of %g, lse %g", qr_isa_name(qr_isa()),
                 golden_string(item, "name"), worst, top, lse_error);
}

static void check_head(const cJSON *item, const struct layer *l,
                       const struct qr_page_view *views, uint32_t head)
{
    struct rows r = rows_load(item, l, head);
    const struct qr_attend_queries queries = {
        .count = r.count,
        .q = r.q,
        .q_stride = l->dim,
        .positions = r.positions,
        .scale = (float)golden_number(item, "scale"),
        .causal = true,
        .last = l->tokens,
    };
    struct qr_attend_acc acc;
    acc_make(&acc, r.count, l->dim);
    void *scratch = test_alloc(qr_attend_scratch_bytes(PAGE, l->dim, l->dim, r.count));
    for (uint32_t p = 0; p < l->tokens / PAGE; p++)
        qr_attend_page(&views[p], head, &queries, l->rotation + (size_t)p * PAGE * l->dim,
                       l->dim, &acc, scratch);
    float *out = test_alloc(r.count * l->dim * sizeof(float));
    float *lse = test_alloc(r.count * sizeof(float));
    qr_attend_finish(&acc, r.count, l->dim, out, l->dim, lse);
    compare(item, &r, l, out, lse);
    free(out);
    free(lse);
    free(scratch);
    acc_free(&acc);
    rows_free(&r);
}

static void check_case(const cJSON *item)
{
    struct layer l = layer_load((uint32_t)golden_number(item, "layer"));
    const struct qr_policy policy = policy_of(item);
    struct qr_page_view views[64];
    void *pages[64];
    const uint32_t count = l.tokens / PAGE;
    assert_true(l.tokens % PAGE == 0 && count <= ARRAY_LEN(views));
    for (uint32_t p = 0; p < count; p++)
        pages[p] = encode_page(&l, &policy, p * PAGE, &views[p]);
    for (uint32_t head = 0; head < l.heads; head++)
        check_head(item, &l, views, head);
    for (uint32_t p = 0; p < count; p++)
        free(pages[p]);
    layer_free(&l);
}

static void real_attention_stays_in_the_bound(void **state)
{
    const cJSON *item;
    (void)state;
    for (int isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512; isa++)
        if (qr_isa_force((enum qr_isa)isa))
            cJSON_ArrayForEach(item, golden.cases) check_case(item);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_attention_stays_in_the_bound),
    };
    if (getenv("QUIRE_DATA") && !getenv("QUIRE_GOLDEN")) {
        puts("skipped: the golden outputs are of the sample in tests/data, not of QUIRE_DATA; "
             "set QUIRE_GOLDEN to theirs");
        return 77;
    }
    golden_open(&golden, "attend");
    golden_open_data(&data, "smollm2_kv");
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    golden_close(&golden);
    golden_close(&data);
    return failed;
}
