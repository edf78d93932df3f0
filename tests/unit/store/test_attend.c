/* SPDX-License-Identifier: Apache-2.0
 *
 * Attend equals FP64 attention over what a fetch of the same tokens dequantizes to, for every
 * way of cutting the session: pages, tails, shards, ranges, windows.
 */
#include "fixture.h"

#define QUERIES 3
#define OUTPUT_BOUND 2e-3 /* docs/FORMULAS.md */
#define LSE_BOUND 1e-3

/* FP32 K (rotated) and V of [0, tokens) of a layer, [token][head][dim]. */
static void expand_layer(struct fixture *f, const struct qr_session_info *s, uint32_t layer,
                         uint64_t tokens, float *key, float *value)
{
    const struct qr_layer *l = &f->model.layers[layer];
    const struct qr_fetch fetch = {
        .session = s->session, .tokens = tokens, .first_layer = layer, .layers = 1};
    struct qr_fetch_cursor *cursor;
    struct qr_part part;
    static _Alignas(64) float rotation[512 * 16];

    assert_ok(qr_fetch_open(f->store, f->ns, &fetch, &cursor, NULL));
    while (qr_fetch_next(cursor, &part)) {
        assert_int_equal(part.status, QR_PART_OK);
        for (int which = 0; which < 2; which++) {
            const uint32_t dim = which ? l->value_dim : l->key_dim;
            const bool rotate = which == 0 && l->rope_stored == QR_ROPE_PRE;
            const struct qr_rope *rope = &f->model.ropes[l->rope];
            float *dst =
                (which ? value : key) + (part.position * l->kv_heads + part.first_head) * dim;
            struct qr_expand to = {.token_count = part.tokens,
                                   .head_count = part.heads,
                                   .dtype = QR_F32,
                                   .dst = dst,
                                   .token_stride = (size_t)l->kv_heads * dim * 4,
                                   .head_stride = dim * 4u};
            if (rotate) {
                const uint64_t first =
                    part.page ? part.view.header->first_position : part.position;
                qr_rotation_make(rope, first, part.page ? f->policy.page_tokens : part.tokens,
                                 rotation);
                to.rotation = rotation;
                to.rotary_dim = rope->rotary_dim;
                to.rope_layout = rope->layout;
            }
            if (part.page) {
                to.first_token = (uint32_t)(part.position - part.view.header->first_position);
                qr_page_expand(&part.view, which ? QR_VALUE : QR_KEY, &to);
            } else {
                const struct qr_rows in = {.data = which ? part.value_rows : part.key_rows,
                                           .token_stride = (size_t)part.heads * dim,
                                           .head_stride = dim};
                qr_rows_expand(&in, part.tokens, part.heads, dim, &to);
            }
        }
        qr_part_release(f->store, part.pin);
    }
    qr_fetch_close(&cursor);
}

struct reference {
    double output[256], lse;
};

/* What a layer holds: [tokens][KV heads][dim]. */
struct held {
    float *key, *value;
    uint64_t tokens;
};

static void reference_row(const struct qr_layer *l, const struct qr_attend *a, const float *q,
                          uint64_t position, uint32_t head, const struct held *held,
                          struct reference *out)
{
    const float *key = held->key, *value = held->value;
    const uint64_t tokens = held->tokens;
    const uint64_t window = a->window == UINT32_MAX ? 0 : a->window;
    const uint64_t last = a->last_token ? a->last_token : tokens;
    const double scale = a->scale > 0 ? (double)a->scale : 1.0 / sqrt(l->key_dim);
    double sum = 0, max = -INFINITY, *z = malloc(tokens * sizeof(double));

    memset(out, 0, sizeof(*out));
    for (uint64_t t = 0; t < tokens; t++) {
        const bool seen = t >= a->first_token && t < last && (!a->causal || t <= position) &&
                          (window == 0 || t + window > position);
        double dot = 0;
        for (uint32_t c = 0; c < l->key_dim; c++)
            dot += (double)q[c] * (double)key[(t * l->kv_heads + head) * l->key_dim + c];
        z[t] = dot * scale;
        if (a->softcap > 0)
            z[t] = (double)a->softcap * tanh(z[t] / (double)a->softcap);
        if (!seen)
            z[t] = -INFINITY;
        max = z[t] > max ? z[t] : max;
    }
    for (uint64_t t = 0; t < tokens && max > -INFINITY; t++) {
        const double w = exp(z[t] - max);
        sum += w;
        for (uint32_t c = 0; c < l->value_dim; c++)
            out->output[c] += w * (double)value[(t * l->kv_heads + head) * l->value_dim + c];
    }
    for (uint32_t c = 0; c < l->value_dim && sum > 0; c++)
        out->output[c] /= sum;
    out->lse = sum > 0 ? max + log(sum) : -INFINITY;
    free(z);
}

static void check_attend(struct fixture *f, const struct qr_session_info *s,
                         const struct qr_attend *request, uint64_t tokens)
{
    struct qr_attend a = *request;
    size_t query_n, output_n, lse_n, q_at = 0, o_at = 0, l_at = 0;
    struct qr_error e = {0};

    a.session = s->session;
    assert_ok(qr_attend_sizes(f->store, f->ns, &a, &query_n, &output_n, &lse_n, &e));
    float *query = malloc(query_n * sizeof(float)), *output = malloc(output_n * sizeof(float)),
          *lse = malloc(lse_n * sizeof(float));
    for (size_t i = 0; i < query_n; i++)
        query[i] = (float)((i * 7919) % 1000) / 500.0f - 1.0f;
    a.query = query;
    if (qr_store_attend(f->store, f->ns, &a, output, lse, NULL, NULL, &e) != QUIRE_OK)
        fail_msg("%s", e.text);

    for (uint32_t i = 0; i < a.layers; i++) {
        const uint32_t layer = a.first_layer + i;
        const struct qr_layer *l = &f->model.layers[layer];
        if (l->kv_heads == 0)
            continue;
        float *key = malloc(tokens * l->kv_heads * l->key_dim * sizeof(float));
        float *value = malloc(tokens * l->kv_heads * l->value_dim * sizeof(float));
        expand_layer(f, s, layer, tokens, key, value);
        const uint32_t heads = a.query_heads ? a.query_heads : l->query_heads;
        for (uint32_t row = 0; row < a.queries * heads; row++) {
            const uint32_t head =
                (a.first_query_head + row % heads) / (uint32_t)(l->query_heads / l->kv_heads);
            struct reference r;
            double largest = 0;
            reference_row(l, &a, query + q_at, a.positions[row / heads], head,
                          &(struct held){key, value, tokens}, &r);
            for (uint32_t c = 0; c < l->value_dim; c++)
                largest = fmax(largest, fabs(r.output[c]));
            for (uint32_t c = 0; c < l->value_dim; c++)
                assert_true(fabs((double)output[o_at + c] - r.output[c]) <=
                            OUTPUT_BOUND * largest);
            if (isinf(r.lse))
                assert_true(isinf(lse[l_at]) && lse[l_at] < 0);
            else
                assert_true(fabs((double)lse[l_at] - r.lse) <= LSE_BOUND);
            q_at += l->key_dim;
            o_at += l->value_dim;
            l_at++;
        }
        free(key);
        free(value);
    }
    assert_int_equal(q_at, query_n);
    assert_int_equal(o_at, output_n);
    assert_int_equal(l_at, lse_n);
    free(query);
    free(output);
    free(lse);
}

static void equals_attention_over_what_is_fetched(void **state)
{
    static const uint64_t positions[QUERIES] = {690, 699, 30};
    const struct qr_attend base = {.layers = 3, .queries = QUERIES, .positions = positions};
    (void)state;

    for (uint32_t shards = 1; shards <= 2; shards++) {
        struct fixture f;
        fixture_start(&f, 32u << 20);
        f.head_shards = shards;
        const struct qr_session_info s = fixture_open(&f, "a");
        for (uint32_t shard = 0; shard < shards; shard++) {
            struct qr_append append = fixture_all(&s, 0, 700);
            struct qr_append_result result;
            append.shard = shard;
            assert_ok(fixture_append_as(&f, &append, 5, &result, NULL));
        }
        struct qr_attend a = base;
        check_attend(&f, &s, &a, 700);
        a.causal = true;
        check_attend(&f, &s, &a, 700);
        a.window = 100;
        check_attend(&f, &s, &a, 700);
        a = base;
        a.first_token = 45;
        a.last_token = 555;
        a.softcap = 5.0f;
        a.scale = 0.3f;
        check_attend(&f, &s, &a, 700);
        a = base;
        a.layers = 1;
        a.first_query_head = 4;
        a.query_heads = 4;
        check_attend(&f, &s, &a, 700);
        a = base;
        a.first_token = 700; /* empty */
        check_attend(&f, &s, &a, 700);
        fixture_end(&f);
    }
}

static void refuses_what_it_cannot_mean(void **state)
{
    static const uint64_t positions[1] = {5};
    const struct qr_attend good = {.layers = 1, .queries = 1, .positions = positions};
    struct qr_attend bad[9];
    float query[8 * 32] = {0}, output[8 * 32], lse[8];
    struct qr_error e;
    struct fixture f;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 50, 1, NULL));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        bad[i] = good;
        bad[i].session = s.session;
        bad[i].query = query;
    }
    bad[0].layers = 0;
    bad[1].first_layer = 3;
    bad[2].first_layer = 1; /* no KV cache */
    bad[3].queries = 0;
    bad[4].scale = NAN;
    bad[5].softcap = -1.0f;
    bad[6].first_query_head = 1; /* cuts a group */
    bad[6].query_heads = 2;
    bad[7].query_heads = 9;
    bad[8].first_token = 9;
    bad[8].last_token = 8;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_status(QUIRE_EINVAL,
                      qr_store_attend(f.store, f.ns, &bad[i], output, lse, NULL, NULL, &e));
    struct qr_attend a = good;
    a.session = s.session;
    a.query = query;
    a.last_token = 51;
    assert_status(QUIRE_ERANGE,
                  qr_store_attend(f.store, f.ns, &a, output, lse, NULL, NULL, &e));
    assert_int_equal(e.length, 50);
    a.last_token = 0;
    const atomic_bool canceled = true;
    assert_status(QUIRE_ECANCELED,
                  qr_store_attend(f.store, f.ns, &a, output, lse, NULL, &canceled, &e));
    fixture_end(&f);
}

static void a_query_that_is_no_number_is_named(void **state)
{
    static const uint64_t positions[2] = {5, 7};
    static float query[2 * (8 * 32 + 4 * 64)], output[2 * 12 * 32], lse[2 * 12];
    const float bad[] = {NAN, INFINITY, -INFINITY};
    struct qr_error e;
    struct fixture f;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 50, 1, NULL));
    struct qr_attend a = {.session = s.session,
                          .first_layer = 1,
                          .layers = 2,
                          .first_query_head = 2,
                          .query_heads = 2,
                          .queries = 2,
                          .positions = positions,
                          .query = query};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        query[(1 * 2 + 1) * 64 + 9] = bad[i]; /* query 1, head 3, of layer 2 */
        output[0] = -7;
        assert_status(QUIRE_EVALUE,
                      qr_store_attend(f.store, f.ns, &a, output, lse, NULL, NULL, &e));
        assert_int_equal(e.layer, 2);
        assert_int_equal(e.head, 3);
        assert_int_equal(e.position, 7);
        assert_int_equal(e.channel, 9);
        assert_true(output[0] == -7);
    }
    fixture_end(&f);
}

static void holes_are_an_error_or_listed(void **state)
{
    static const uint64_t positions[1] = {100000};
    static float query[8 * 32 + 4 * 64], output[8 * 32 + 4 * 32], lse[12];
    struct qr_token_range ranges[512];
    struct qr_attend_missing missing = {.ranges = ranges, .capacity = ARRAY_LEN(ranges)};
    struct qr_error e;
    struct fixture f;
    uint32_t n = 0;
    (void)state;

    fixture_start(&f, 4u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    while (fixture_metric(&f, "pages_evicted") < 20) {
        assert_ok(fixture_append(&f, &s, n, 64, 1, NULL));
        n += 64;
    }
    struct qr_attend a = {.session = s.session,
                          .layers = 3,
                          .queries = 1,
                          .positions = positions,
                          .query = query};
    assert_status(QUIRE_EMISSING,
                  qr_store_attend(f.store, f.ns, &a, output, lse, &missing, NULL, &e));
    assert_int_equal(missing.count, 0);
    const struct qr_error first = e;
    a.allow_missing = true;
    assert_ok(qr_store_attend(f.store, f.ns, &a, output, lse, &missing, NULL, &e));
    assert_false(missing.more);

    struct qr_token_range expected[512];
    const struct qr_token_range all = {.tokens = n};
    size_t count;
    bool more;
    uint64_t length;
    assert_ok(qr_session_lookup(f.store, f.ns, s.session, &all, 3, expected, 512, &count, &more,
                                &length, NULL));
    assert_int_equal(count, missing.count);
    assert_memory_equal(expected, ranges, count * sizeof(ranges[0]));
    assert_int_equal(first.layer, expected[0].layer);
    assert_int_equal(first.position, expected[0].position);
    assert_int_equal(first.tokens, expected[0].tokens);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_attention_over_what_is_fetched),
        cmocka_unit_test(refuses_what_it_cannot_mean),
        cmocka_unit_test(a_query_that_is_no_number_is_named),
        cmocka_unit_test(holes_are_an_error_or_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
