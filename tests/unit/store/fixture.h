/* SPDX-License-Identifier: Apache-2.0
 *
 * What the store's tests share: small models, a store whose clock the test owns, rows that are
 * a function of where they stand, and checks of what a fetch hands out.
 */
#ifndef QR_STORE_FIXTURE_H
#define QR_STORE_FIXTURE_H

#include "tests/test.h"

#include <unistd.h>

#include "storage/codec/codec.h"
#include "storage/store/store_impl.h"

#define FIXTURE_ROW_MAX 4096 /* elements of K and V of one token of a lane */

struct fixture {
    struct qr_store *store;
    struct qr_model model;
    struct qr_policy policy;
    uint32_t ns;
    uint32_t head_shards;
};

static _Atomic uint64_t fixture_now_ms =
    1000000; /* atomic: the store reads it on its threads */

static inline uint64_t fixture_clock(void)
{
    return fixture_now_ms;
}

/* Layer 1 of three has no KV cache; layers differ in geometry. */
static inline void fixture_model(struct qr_model *model)
{
    memset(model, 0, sizeof(*model));
    strcpy(model->name, "toy");
    strcpy(model->revision, "1");
    model->layer_count = 3;
    model->rope_count = 1;
    model->ropes[0] =
        (struct qr_rope){.layout = QR_ROPE_HALF, .rotary_dim = 16, .attention_factor = 1.0f};
    for (int i = 0; i < 8; i++)
        model->ropes[0].inv_freq[i] = 1.0f / (float)(1 << i);
    model->layers[0] = (struct qr_layer){.query_heads = 8,
                                         .kv_heads = 4,
                                         .key_dim = 32,
                                         .value_dim = 32,
                                         .rope_stored = QR_ROPE_PRE};
    model->layers[1] = (struct qr_layer){.query_heads = 8, .key_dim = 32, .value_dim = 32};
    model->layers[2] = (struct qr_layer){.query_heads = 4,
                                         .kv_heads = 2,
                                         .key_dim = 64,
                                         .value_dim = 32,
                                         .rope_stored = QR_ROPE_POST};
    assert_ok(qr_model_seal(model, NULL));
}

static inline void fixture_policy(struct qr_policy *policy)
{
    qr_policy_default(policy);
    policy->page_tokens = 32;
    policy->window = 32;
    policy->sink_rows = 4;
}

static inline struct qr_store_config fixture_config(uint64_t budget_bytes)
{
    return (struct qr_store_config){.host_budget_bytes = budget_bytes,
                                    .sessions_max = 64,
                                    .models_max = 4,
                                    .lease_ms = 10000,
                                    .ttl_ms = 100000,
                                    .attend_threads = 2,
                                    .clock_ms = fixture_clock};
}

static inline void fixture_start_with(struct fixture *f, const struct qr_store_config *config)
{
    struct qr_error e = {0};

    memset(f, 0, sizeof(*f));
    f->head_shards = 1;
    fixture_model(&f->model);
    fixture_policy(&f->policy);
    if (qr_store_create(config, &f->store, &e) != QUIRE_OK)
        fail_msg("%s", e.text);
    assert_ok(qr_store_namespace(f->store, "tests", &f->ns, NULL));
    assert_ok(qr_store_model_put(f->store, &f->model, NULL));
}

static inline void fixture_start(struct fixture *f, uint64_t budget_bytes)
{
    const struct qr_store_config config = fixture_config(budget_bytes);

    fixture_start_with(f, &config);
}

static inline void fixture_end(struct fixture *f)
{
    qr_store_destroy(&f->store);
    assert_null(f->store);
}

static inline struct qr_session_info fixture_open(struct fixture *f, const char *name)
{
    const struct qr_session_open open = {.name = name,
                                         .fingerprint = f->model.fingerprint,
                                         .policy = &f->policy,
                                         .head_shards = f->head_shards,
                                         .create = true,
                                         .write = true};
    struct qr_session_info info;
    struct qr_error e = {0};

    if (qr_session_open(f->store, f->ns, &open, &info, &e) != QUIRE_OK)
        fail_msg("%s", e.text);
    return info;
}

/* ---- rows -------------------------------------------------------------------------------- */

/* What the salt of a check means at a place; tests that mix values replace it. */
static inline uint32_t fixture_same_salt(uint32_t salt, uint32_t layer, uint64_t position)
{
    (void)layer;
    (void)position;
    return salt;
}

static uint32_t (*fixture_salt_of)(uint32_t salt, uint32_t layer,
                                   uint64_t position) = fixture_same_salt;

/* FP16 bits of magnitude 1/16 .. 2, a function of all arguments. which: 0 K, 1 V. */
static inline uint16_t fixture_value(uint32_t salt, uint32_t layer, int which,
                                     uint64_t position, uint32_t head, uint32_t channel)
{
    uint64_t x = fixture_salt_of(salt, layer, position) * 0x9e3779b97f4a7c15u +
                 layer * 0xbf58476d1ce4e5b9u + (uint64_t)which * 0x94d049bb133111ebu +
                 position * 0xd6e8feb86659fd93u + head * 0xa0761d6478bd642fu +
                 channel * 0xe7037ed1a0b428dbu;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 29;
    return (uint16_t)((x & 0x83ffu) | (uint64_t)(11 + (x >> 20 & 3)) << 10);
}

struct memory_source {
    struct qr_source source;
    const uint8_t *at;
};

static inline bool memory_read(struct qr_source *source, void *dst, size_t n)
{
    struct memory_source *m = (struct memory_source *)(void *)source;

    if (n > source->bytes)
        return false;
    memcpy(dst, m->at, n);
    m->at += n;
    source->bytes -= n;
    return true;
}

static inline struct memory_source memory_source(const void *bytes, size_t n)
{
    return (struct memory_source){.source = {.read = memory_read, .bytes = n}, .at = bytes};
}

/* Payload of an append as the wire has it, FP16. Returns bytes; *out is malloc'ed. */
static inline size_t fixture_rows(const struct fixture *f, const struct qr_append *a,
                                  uint32_t salt, uint16_t **out)
{
    size_t n = 0, capacity = 0;

    for (uint32_t i = 0; i < a->layers; i++) {
        const struct qr_layer *l = &f->model.layers[a->first_layer + i];
        capacity += (size_t)a->tokens * (l->kv_heads / f->head_shards) *
                    ((size_t)l->key_dim + l->value_dim);
    }
    *out = malloc(capacity * 2 + 1);
    for (uint32_t i = 0; i < a->layers; i++) {
        const uint32_t layer = a->first_layer + i;
        const struct qr_layer *l = &f->model.layers[layer];
        const uint32_t heads = l->kv_heads / f->head_shards;
        for (int which = 0; which < 2 && heads > 0; which++) {
            const uint32_t dim = which ? l->value_dim : l->key_dim;
            for (uint32_t t = 0; t < a->tokens; t++)
                for (uint32_t h = 0; h < heads; h++)
                    for (uint32_t c = 0; c < dim; c++)
                        (*out)[n++] = fixture_value(salt, layer, which, a->position + t,
                                                    a->shard * heads + h, c);
        }
    }
    return n * 2;
}

static inline quire_status fixture_append_as(struct fixture *f, const struct qr_append *append,
                                             uint32_t salt, struct qr_append_result *out,
                                             struct qr_error *e)
{
    uint16_t *rows;
    const size_t bytes = fixture_rows(f, append, salt, &rows);
    struct memory_source m = memory_source(rows, bytes);
    const quire_status status = qr_append_rows(f->store, f->ns, append, &m.source, out, e);

    free(rows);
    return status;
}

/* All layers of shard 0. */
static inline struct qr_append fixture_all(const struct qr_session_info *s, uint64_t position,
                                           uint32_t tokens)
{
    return (struct qr_append){.session = s->session,
                              .epoch = s->epoch,
                              .position = position,
                              .tokens = tokens,
                              .layers = s->model->layer_count,
                              .dtype = QR_F16};
}

static inline quire_status fixture_append(struct fixture *f, const struct qr_session_info *s,
                                          uint64_t position, uint32_t tokens, uint32_t salt,
                                          struct qr_error *e)
{
    const struct qr_append append = fixture_all(s, position, tokens);
    struct qr_append_result result;

    return fixture_append_as(f, &append, salt, &result, e);
}

/* ---- checks ------------------------------------------------------------------------------ */

static inline void fixture_check_rows(const struct qr_part *part, uint32_t salt)
{
    const struct qr_layer *l = &part->model->layers[part->layer];

    for (int which = 0; which < 2; which++) {
        const uint32_t dim = which ? l->value_dim : l->key_dim;
        const uint16_t *row = which ? part->value_rows : part->key_rows;
        for (uint32_t t = 0; t < part->tokens; t++)
            for (uint32_t h = 0; h < part->heads; h++)
                for (uint32_t c = 0; c < dim; c++)
                    assert_int_equal(*row++,
                                     fixture_value(salt, part->layer, which, part->position + t,
                                                   part->first_head + h, c));
    }
}

/* The page must be exactly what encoding the right rows gives, but for its block id. */
static inline void fixture_check_page(const struct fixture *f, const struct qr_part *part,
                                      uint32_t salt)
{
    const struct qr_layer *l = &part->model->layers[part->layer];
    const struct qr_page_header *header = part->page;
    const uint32_t page_tokens = f->policy.page_tokens;
    const uint64_t start = part->position / page_tokens * page_tokens;
    uint16_t *rows[2];
    struct qr_rows views[2];

    for (int which = 0; which < 2; which++) {
        const uint32_t dim = which ? l->value_dim : l->key_dim;
        size_t n = 0;
        rows[which] = malloc((size_t)page_tokens * part->heads * dim * 2);
        for (uint32_t t = 0; t < page_tokens; t++)
            for (uint32_t h = 0; h < part->heads; h++)
                for (uint32_t c = 0; c < dim; c++)
                    rows[which][n++] = fixture_value(salt, part->layer, which, start + t,
                                                     part->first_head + h, c);
        views[which] = (struct qr_rows){
            .data = rows[which], .token_stride = (size_t)part->heads * dim, .head_stride = dim};
    }
    struct qr_page_identity id = {
        .layer = part->layer,
        .first_head = (uint16_t)part->first_head,
        .heads = (uint16_t)part->heads,
        .key_dim = l->key_dim,
        .value_dim = l->value_dim,
        .rope_stored = l->rope_stored,
        .rope_layout = l->rope_stored ? (uint8_t)part->model->ropes[l->rope].layout : 0,
        .page_tokens = f->policy.page_tokens,
        .first_position = start,
        .key = f->policy.key,
        .value = f->policy.value};
    memcpy(id.fingerprint, f->model.fingerprint, QR_HASH_BYTES);
    memcpy(id.block_id, header->block_id, QR_HASH_BYTES);
    const size_t most = qr_page_bytes_max(&id, &f->policy);
    void *expected = aligned_alloc(64, (most + 63) / 64 * 64);
    size_t bytes;
    assert_ok(
        qr_page_encode(&id, &f->policy, &views[0], &views[1], expected, most, &bytes, NULL));
    assert_int_equal(bytes, part->page_bytes);
    assert_memory_equal(expected, part->page, bytes);
    free(expected);
    free(rows[0]);
    free(rows[1]);
}

struct fixture_seen {
    uint64_t pages, rows, missing, corrupt; /* parts */
    uint64_t tokens, missing_tokens;
};

/* Fetch and check every part; order and coverage too. */
static inline struct fixture_seen fixture_fetch(struct fixture *f, const struct qr_fetch *fetch,
                                                uint32_t salt)
{
    struct qr_fetch_cursor *cursor;
    struct fixture_seen seen = {0};
    struct qr_part part;
    struct qr_error e = {0};
    uint64_t next = fetch->position, lane = 0;

    if (qr_fetch_open(f->store, f->ns, fetch, &cursor, &e) != QUIRE_OK)
        fail_msg("%s", e.text);
    enum qr_fetch_step step;
    while ((step = qr_fetch_next(cursor, &part)) != QR_FETCH_END) {
        if (step == QR_FETCH_LATER) {
            usleep(100);
            continue;
        }
        const uint64_t this_lane = (uint64_t)part.layer << 32 | part.first_head;
        if (seen.tokens > 0 && this_lane != lane) {
            assert_true(this_lane > lane);
            assert_int_equal(next, fetch->position + fetch->tokens);
            next = fetch->position;
        }
        lane = this_lane;
        assert_int_equal(part.position, next);
        next += part.tokens;
        seen.tokens += part.tokens;
        seen.missing += part.status == QR_PART_MISSING;
        seen.corrupt += part.status == QR_PART_CORRUPT;
        if (part.status != QR_PART_OK) {
            seen.missing_tokens += part.tokens;
            assert_null(part.page);
            assert_null(part.key_rows);
            assert_null(part.pin);
            continue;
        }
        assert_non_null(part.pin);
        if (part.page)
            fixture_check_page(f, &part, salt);
        else
            fixture_check_rows(&part, salt);
        seen.pages += part.page != NULL;
        seen.rows += part.page == NULL;
        qr_part_release(f->store, part.pin);
    }
    assert_true(seen.tokens == 0 || next == fetch->position + fetch->tokens);
    qr_fetch_close(&cursor);
    assert_null(cursor);
    return seen;
}

static inline struct fixture_seen fixture_fetch_all(struct fixture *f,
                                                    const struct qr_session_info *s,
                                                    uint64_t position, uint64_t tokens,
                                                    uint32_t salt)
{
    const struct qr_fetch fetch = {.session = s->session,
                                   .position = position,
                                   .tokens = tokens,
                                   .layers = f->model.layer_count};
    return fixture_fetch(f, &fetch, salt);
}

static inline double fixture_metric(struct fixture *f, const char *name)
{
    struct qr_metric metrics[128];
    const size_t n = qr_store_metrics(f->store, metrics, ARRAY_LEN(metrics));

    assert_true(n <= ARRAY_LEN(metrics));
    for (size_t i = 0; i < n; i++) {
        if (strcmp(metrics[i].name, name) == 0)
            return metrics[i].value;
    }
    fail_msg("no metric \"%s\"", name);
    return 0;
}

#endif
