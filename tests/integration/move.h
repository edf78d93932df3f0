/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of export and import share: a file in memory with faults, sessions made of
 * real and of made-up keys and values, and comparing two sessions of two servers bit for bit.
 */
#ifndef QR_TEST_MOVE_H
#define QR_TEST_MOVE_H

#include "client/quire.h"
#include "proto/export.h"
#include "quired.h"
#include "tests/golden.h"

/* ---- a file in memory ---------------------------------------------------------------------
 */

struct mem_file {
    uint8_t *bytes;
    size_t n, capacity;
    size_t at;          /* of the reader */
    size_t fail_at;     /* a write or read past it fails; 0: none */
    uint64_t cancel_at; /* progress past it cancels; 0: never */
    uint64_t told, told_last;
    void (*meanwhile)(void); /* called once, at the first progress past half */
};

static inline int mem_write(void *context, const void *bytes, size_t n)
{
    struct mem_file *f = context;

    if (f->fail_at && f->n + n > f->fail_at) {
        n = f->fail_at - f->n; /* as a full disk does */
        memcpy(f->bytes + f->n, bytes, n);
        f->n += n;
        return ENOSPC;
    }
    if (f->n + n > f->capacity) {
        f->capacity = (f->n + n) * 2;
        f->bytes = realloc(f->bytes, f->capacity);
    }
    memcpy(f->bytes + f->n, bytes, n);
    f->n += n;
    return 0;
}

/* Odd pieces: nobody may count on whole ones. */
static inline int mem_read(void *context, void *bytes, size_t capacity, size_t *bytes_out)
{
    struct mem_file *f = context;
    size_t n = f->n - f->at < capacity ? f->n - f->at : capacity;

    n = n > 100003 ? 100003 : n;
    if (f->fail_at && f->at + n > f->fail_at)
        return EIO;
    if (n > 0)
        memcpy(bytes, f->bytes + f->at, n);
    f->at += n;
    *bytes_out = n;
    return 0;
}

static inline int mem_cut(void *context, uint64_t length)
{
    struct mem_file *f = context;

    if (length > f->n)
        return EINVAL;
    f->n = (size_t)length;
    return 0;
}

static inline bool mem_progress(void *context, const struct quire_transfer *t)
{
    struct mem_file *f = context;

    f->told++;
    if (t->bytes < f->told_last || t->bytes > t->total_bytes) /* it only grows */
        return false;
    f->told_last = t->bytes;
    if (f->meanwhile && t->bytes > t->total_bytes / 2) {
        f->meanwhile();
        f->meanwhile = NULL;
    }
    return !f->cancel_at || t->bytes < f->cancel_at;
}

/* ---- servers ------------------------------------------------------------------------------
 */

static inline quire_client *move_connect(const struct quired *q)
{
    quire_client *client = NULL;

    if (quire_client_open(q->target, NULL, &client))
        fail_msg("%s", quire_last_error()->text);
    return client;
}

/** Two servers and a client of each. */
struct two {
    struct quired from_server, to_server;
    quire_client *from, *to;
};

static inline void two_start(struct two *two, const char *const *to_flags)
{
    quired_folder(&two->from_server);
    quired_folder(&two->to_server);
    quired_start(&two->from_server, NULL);
    quired_start(&two->to_server, to_flags);
    two->from = move_connect(&two->from_server);
    two->to = move_connect(&two->to_server);
}

static inline void two_stop(struct two *two)
{
    quire_client_close(&two->from);
    quire_client_close(&two->to);
    quired_stop(&two->from_server);
    quired_stop(&two->to_server);
    quired_clean(&two->from_server);
    quired_clean(&two->to_server);
}

static inline double move_metric(quire_client *client, const char *name)
{
    static struct quire_metric metrics[256];
    size_t count;

    assert_ok(quire_stat(client, metrics, ARRAY_LEN(metrics), &count));
    for (size_t i = 0; i < count; i++)
        if (strcmp(metrics[i].name, name) == 0)
            return metrics[i].value;
    fail_msg("no metric %s", name);
    return 0;
}

/** How many sessions there are whose names begin so. */
static inline size_t move_sessions(quire_client *client, const char *prefix)
{
    static struct quire_session_info infos[16];
    size_t count;
    bool more;

    assert_ok(quire_session_list(client, prefix, NULL, infos, ARRAY_LEN(infos), &count, &more));
    return count;
}

/* ---- the verbs ----------------------------------------------------------------------------
 */

static inline quire_status move_export(quire_client *client, const char *name,
                                       struct mem_file *file, bool resumable,
                                       struct quire_transfer *out)
{
    struct quire_export args;

    quire_export_init(&args);
    args.write = mem_write;
    args.read = resumable ? mem_read : NULL;
    args.cut = mem_cut;
    args.progress = mem_progress;
    args.context = file;
    file->at = 0;
    file->told_last = 0;
    return quire_session_export(client, name, &args, out);
}

static inline quire_status move_import(quire_client *client, const char *name,
                                       struct mem_file *file, struct quire_transfer *out)
{
    struct quire_import args;

    quire_import_init(&args);
    args.read = mem_read;
    args.progress = mem_progress;
    args.context = file;
    file->at = 0;
    file->told_last = 0;
    return quire_session_import(client, name, &args, out);
}

#define MOVE_OK(expr)                                                                          \
    do {                                                                                       \
        if (expr)                                                                              \
            fail_msg("%s: %s", #expr, quire_last_error()->text);                               \
    } while (0)

/* ---- sessions -----------------------------------------------------------------------------
 */

/** What a session is made of. Rows: [tokens][heads][dim] of each layer, FP16. */
struct move_source {
    struct quire_model model;
    uint32_t layers, heads, key_dim, value_dim, tokens, head_shards;
    const uint16_t *key[8], *value[8];
    const uint32_t *token_ids; /* NULL: none */
    struct quire_policy policy;
};

static inline quire_session *move_open(quire_client *client, const char *name,
                                       const struct move_source *s, uint32_t shard,
                                       uint64_t epoch)
{
    struct quire_open_options options;
    quire_session *session = NULL;
    uint8_t fingerprint[32];

    MOVE_OK(quire_model_register(client, &s->model, fingerprint));
    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_WRITE | QUIRE_OPEN_CREATE;
    options.fingerprint = fingerprint;
    options.policy = &s->policy;
    options.head_shards = s->head_shards;
    options.shard = shard;
    options.epoch = epoch;
    options.ttl_ms = 7654321;
    MOVE_OK(quire_session_open(client, name, &options, &session));
    return session;
}

static inline void move_append_shard(quire_session *session, const struct move_source *s,
                                     uint32_t shard, uint32_t position, uint32_t tokens)
{
    const void *key[8], *value[8];
    const uint32_t first = shard * (s->heads / s->head_shards);
    struct quire_append append = {.position = position,
                                  .tokens = tokens,
                                  .layers = s->layers,
                                  .dtype = QUIRE_F16,
                                  .key = key,
                                  .value = value,
                                  .key_token_stride = (size_t)s->heads * s->key_dim * 2,
                                  .key_head_stride = (size_t)s->key_dim * 2,
                                  .value_token_stride = (size_t)s->heads * s->value_dim * 2,
                                  .value_head_stride = (size_t)s->value_dim * 2};

    for (uint32_t l = 0; l < s->layers; l++) {
        key[l] = s->key[l] + ((size_t)position * s->heads + first) * s->key_dim;
        value[l] = s->value[l] + ((size_t)position * s->heads + first) * s->value_dim;
    }
    append.token_ids = s->token_ids ? s->token_ids + position : NULL;
    MOVE_OK(quire_append(session, &append, NULL));
}

/** Append [position, +tokens) of the source in steps, as an engine does, by every shard. */
static inline void move_append(quire_client *client, const char *name,
                               const struct move_source *s, uint32_t position, uint32_t tokens,
                               uint32_t step)
{
    quire_session *sessions[8] = {NULL};
    struct quire_session_info info;

    sessions[0] = move_open(client, name, s, 0, 0);
    MOVE_OK(quire_session_info(sessions[0], &info));
    for (uint32_t shard = 1; shard < s->head_shards; shard++)
        sessions[shard] = move_open(client, name, s, shard, info.epoch);
    for (uint32_t p = position; p < position + tokens; p += step)
        for (uint32_t shard = 0; shard < s->head_shards; shard++)
            move_append_shard(sessions[shard], s, shard, p,
                              step < position + tokens - p ? step : position + tokens - p);
    for (uint32_t shard = s->head_shards; shard-- > 0;)
        quire_session_close(&sessions[shard]);
}

/** The real keys and values: 4 layers of SmolLM2, 3 KV heads of 64. */
static inline void move_real(struct golden *g, struct move_source *s)
{
    static const uint32_t numbers[] = {0, 12, 18, 26};
    static struct quire_rope rope = {.type = QUIRE_ROPE_DEFAULT,
                                     .layout = QUIRE_ROPE_HALF,
                                     .rotary_dim = 64,
                                     .theta = 100000};
    static struct quire_layers layers = {.count = 4,
                                         .query_heads = 9,
                                         .kv_heads = 3,
                                         .key_dim = 64,
                                         .value_dim = 64,
                                         .rope_stored = QUIRE_ROPE_PRE};
    char name[32];

    golden_open_data(g, "smollm2_kv");
    memset(s, 0, sizeof(*s));
    s->model = (struct quire_model){
        .name = "SmolLM2", .layers = &layers, .layer_runs = 1, .ropes = &rope, .rope_count = 1};
    s->layers = 4;
    s->heads = 3;
    s->key_dim = s->value_dim = 64;
    s->tokens = 1024;
    s->head_shards = 1;
    for (uint32_t l = 0; l < 4; l++) {
        snprintf(name, sizeof(name), "k_layer%02u", numbers[l]);
        s->key[l] = golden_tensor(g, name, NULL);
        snprintf(name, sizeof(name), "v_layer%02u", numbers[l]);
        s->value[l] = golden_tensor(g, name, NULL);
    }
    s->token_ids = golden_tensor(g, "token_ids", NULL);
    quire_policy_default(&s->policy);
}

/** Made-up rows of any geometry; *memory is to be freed. */
static inline void move_made(struct move_source *s, struct quire_layers *layers,
                             uint32_t tokens, uint16_t **memory)
{
    const size_t key = (size_t)tokens * layers->kv_heads * layers->key_dim;
    const size_t value = (size_t)tokens * layers->kv_heads * layers->value_dim;
    uint32_t x = 12345;

    memset(s, 0, sizeof(*s));
    *memory = malloc((key + value) * layers->count * 2);
    for (size_t i = 0; i < (key + value) * layers->count; i++) {
        x = x * 1664525u + 1013904223u;
        (*memory)[i] = (uint16_t)((x >> 16 & 0x83ffu) | (12u + (x >> 9 & 3u)) << 10);
    }
    s->model = (struct quire_model){.name = "made", .layers = layers, .layer_runs = 1};
    s->layers = layers->count;
    s->heads = layers->kv_heads;
    s->key_dim = layers->key_dim;
    s->value_dim = layers->value_dim;
    s->tokens = tokens;
    s->head_shards = 1;
    for (uint32_t l = 0; l < layers->count; l++) {
        s->key[l] = *memory + l * (key + value);
        s->value[l] = s->key[l] + key;
    }
    quire_policy_default(&s->policy);
}

/* ---- comparing ----------------------------------------------------------------------------
 */

static inline void *move_fetch(quire_client *client, const char *name,
                               const struct move_source *s, uint64_t tokens, size_t *bytes_out)
{
    const size_t key = (size_t)tokens * s->heads * s->key_dim * 2;
    const size_t value = (size_t)tokens * s->heads * s->value_dim * 2;
    quire_session *session = NULL;
    uint8_t *out = malloc((key + value) * s->layers);
    void *keys[8], *values[8];

    memset(out, 0xee, (key + value) * s->layers);
    for (uint32_t l = 0; l < s->layers; l++) {
        keys[l] = out + l * (key + value);
        values[l] = out + l * (key + value) + key;
    }
    const struct quire_fetch fetch = {.tokens = tokens,
                                      .layers = s->layers,
                                      .dtype = QUIRE_F16,
                                      .key = keys,
                                      .value = values};
    MOVE_OK(quire_session_open(client, name, NULL, &session));
    MOVE_OK(quire_fetch(session, &fetch));
    quire_session_close(&session);
    *bytes_out = (key + value) * s->layers;
    return out;
}

/* Pages byte by byte, headers and block ids too. Returns how many. */
static inline uint32_t move_same_pages(quire_client *a, const char *name_a, quire_client *b,
                                       const char *name_b, const struct move_source *s,
                                       uint64_t tokens)
{
    static uint64_t page_a[1 << 17], page_b[1 << 17];
    quire_session *sa = NULL, *sb = NULL;
    uint32_t pages = 0;

    MOVE_OK(quire_session_open(a, name_a, NULL, &sa));
    MOVE_OK(quire_session_open(b, name_b, NULL, &sb));
    for (uint32_t l = 0; l < s->layers; l++)
        for (uint32_t h = 0; h < s->heads; h += s->heads / s->head_shards)
            for (uint64_t p = 0; p < tokens; p += s->policy.page_tokens) {
                const struct quire_page_at at = {.position = p, .layer = l, .head = h};
                size_t na = 0, nb = 0;
                const quire_status status =
                    quire_session_page(sa, &at, page_a, sizeof(page_a), &na);
                assert_status(status, quire_session_page(sb, &at, page_b, sizeof(page_b), &nb));
                if (status == QUIRE_ERANGE) /* a tail on both sides */
                    break;
                assert_ok(status);
                assert_int_equal(na, nb);
                assert_memory_equal(page_a, page_b, na);
                pages++;
            }
    quire_session_close(&sa);
    quire_session_close(&sb);
    return pages;
}

/** Two sessions hold the same: rows as they are fetched, pages, and what their infos say. */
static inline void move_same(quire_client *a, const char *name_a, quire_client *b,
                             const char *name_b, const struct move_source *s, uint64_t tokens)
{
    struct quire_session_info ia, ib;
    quire_session *session = NULL;
    size_t na, nb;
    void *ra = move_fetch(a, name_a, s, tokens, &na),
         *rb = move_fetch(b, name_b, s, tokens, &nb);

    assert_int_equal(na, nb);
    assert_memory_equal(ra, rb, na);
    free(ra);
    free(rb);
    MOVE_OK(quire_session_open(a, name_a, NULL, &session));
    MOVE_OK(quire_session_info(session, &ia));
    quire_session_close(&session);
    MOVE_OK(quire_session_open(b, name_b, NULL, &session));
    MOVE_OK(quire_session_info(session, &ib));
    quire_session_close(&session);
    assert_int_equal(ib.length, tokens);
    assert_int_equal(ib.longest, tokens);
    assert_int_equal(ib.missing_pages, 0);
    assert_int_equal(ib.head_shards, ia.head_shards);
    assert_memory_equal(ib.fingerprint, ia.fingerprint, 32);
    assert_memory_equal(&ib.policy, &ia.policy, sizeof(ia.policy));
    assert_true(ib.ttl_ms > 7600000 && ib.ttl_ms <= 7654321);
    assert_true(move_same_pages(a, name_a, b, name_b, s, tokens) > 0);
}

#endif
