/* SPDX-License-Identifier: Apache-2.0
 *
 * Quire as one of the stores compared: a quired of our own, spoken to through the public header
 * with PEERS_DEPTH operations in flight. Must not use anything that a user could not.
 */
#include "peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/quire.h"

/* One operation in flight: the pointers are borrowed by the library until it is done. */
struct flight {
    quire_op *op;
    const void *from_key, *from_value;
    void *into_key, *into_value;
};

struct state {
    quire_client *client;
    quire_session *session;
    uint8_t fingerprint[32];
    uint32_t pass;
};

static int failed(const char *what)
{
    const struct quire_error *e = quire_last_error();
    fprintf(stderr, "peers: quire: %s: %s: %s\n", what, quire_status_name(e->status), e->text);
    return -1;
}

static int land(struct flight *f)
{
    if (!f->op)
        return 0;
    const quire_status status = quire_op_wait(f->op, UINT32_MAX);
    if (status != QUIRE_OK)
        fprintf(stderr, "peers: quire: %s: %s\n", quire_status_name(status),
                quire_op_error(f->op)->text);
    quire_op_free(&f->op);
    return status == QUIRE_OK ? 0 : -1;
}

static int land_all(struct flight flights[PEERS_DEPTH])
{
    int bad = 0;
    for (uint32_t i = 0; i < PEERS_DEPTH; i++)
        bad |= land(&flights[i]);
    return bad ? -1 : 0;
}

static int register_model(struct state *q, const struct workload *w)
{
    const struct quire_rope rope = {.type = QUIRE_ROPE_DEFAULT,
                                    .layout = QUIRE_ROPE_HALF,
                                    .rotary_dim = w->dim,
                                    .theta = 10000.0,
                                    .attention_factor = 1.0,
                                    .max_position = 131072};
    const struct quire_layers layers = {.count = w->layers,
                                        .query_heads = 4 * w->heads,
                                        .kv_heads = w->heads,
                                        .key_dim = w->dim,
                                        .value_dim = w->dim,
                                        .rope_stored = QUIRE_ROPE_PRE};
    const struct quire_model model = {
        .name = "peers", .layers = &layers, .layer_runs = 1, .ropes = &rope, .rope_count = 1};
    return quire_model_register(q->client, &model, q->fingerprint) ? failed("model") : 0;
}

/* quired of the build folder that this program lies in: <build>/tests/bench/peers. */
static int server_path(char *out, size_t size)
{
    char self[1024];
    const ssize_t bytes = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (bytes < 0)
        return -1;
    self[bytes] = '\0';
    for (int i = 0; i < 3; i++) {
        char *slash = strrchr(self, '/');
        if (!slash)
            return -1;
        *slash = '\0';
    }
    return (size_t)snprintf(out, size, "%s/server/quired", self) < size ? 0 : -1;
}

static int server_start(struct store *s, const char *scratch, const struct workload *w)
{
    char path[1200];
    char target[128];
    char memory[24];
    if (server_path(path, sizeof(path))) {
        fprintf(stderr, "peers: cannot tell where quired is\n");
        return -1;
    }
    const char *name = s->ops->file_name;
    snprintf(s->socket_path, sizeof(s->socket_path), "%s/%s.sock", scratch, name);
    s->port = port_pick();
    if (s->transport == TRANSPORT_UNIX)
        snprintf(target, sizeof(target), "unix:%s", s->socket_path);
    else
        snprintf(target, sizeof(target), "127.0.0.1:%u", s->port);
    snprintf(memory, sizeof(memory), "%zuMiB", 2 * (workload_bytes(w) >> 20) + 128);
    char *argv[] = {path, "--listen", target, "--memory", memory, "--log-level", "warn", NULL};
    s->server = process_start(scratch, name, argv);
    if (s->server < 0)
        return -1;
    struct state *q = s->state;
    struct quire_client_options options;
    quire_client_options_init(&options);
    options.connect_ms = 60000; /* eight servers start on what cores there are */
    options.local = s->ops->shared;
    if (quire_client_open(target, &options, &q->client))
        return failed(target);
    char why[256];
    if (quire_client_is_local(q->client, why, sizeof(why)) == s->ops->shared)
        return 0;
    fprintf(stderr, "peers: quire: shared memory is not used: %s\n", why);
    return -1;
}

static int quire_start(struct store *s, const char *scratch, const struct workload *w)
{
    struct state *q = calloc(1, sizeof(*q));
    if (!q)
        return -1;
    s->state = q;
    return server_start(s, scratch, w) || register_model(q, w) ? -1 : 0;
}

/* A session of its own for each pass; the last one goes, as a peer's values do. */
static int new_session(struct store *s)
{
    struct state *q = s->state;
    char name[32];
    quire_session_close(&q->session);
    if (q->pass > 0) {
        snprintf(name, sizeof(name), "pass%u", q->pass - 1);
        if (quire_session_drop(q->client, name, true))
            return failed("drop");
    }
    struct quire_open_options options;
    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_CREATE | QUIRE_OPEN_WRITE;
    struct quire_policy policy;
    quire_policy_default(&policy);
    policy.window = s->ops->all_sealed ? 0 : policy.window;
    options.policy = &policy;
    options.fingerprint = q->fingerprint;
    snprintf(name, sizeof(name), "pass%u", q->pass++);
    return quire_session_open(q->client, name, &options, &q->session) ? failed("open") : 0;
}

/* `tokens` tokens of one layer, from `token` on. */
static int submit_append(struct state *q, const struct workload *w, uint32_t layer,
                         uint32_t token, uint32_t tokens, struct flight *f)
{
    const size_t at = ((size_t)layer * w->tokens + token) * w->heads * w->dim;
    f->from_key = w->key + at;
    f->from_value = w->value + at;
    const struct quire_append append = {.position = token,
                                        .tokens = tokens,
                                        .first_layer = layer,
                                        .layers = 1,
                                        .dtype = QUIRE_F16,
                                        .key = &f->from_key,
                                        .value = &f->from_value};
    return quire_append_submit(q->session, &append, &f->op) ? failed("append") : 0;
}

/* Appends in flight together have to name different layers, so a layer is a slot. */
static int append_pieces(struct store *s, const struct workload *w, uint32_t tokens)
{
    struct state *q = s->state;
    struct flight flights[PEERS_DEPTH] = {0};
    int bad = new_session(s);
    for (uint32_t token = 0; token < w->tokens && !bad; token += tokens)
        for (uint32_t layer = 0; layer < w->layers && !bad; layer++) {
            struct flight *f = &flights[layer % PEERS_DEPTH];
            bad = land(f) || submit_append(q, w, layer, token, tokens, f);
        }
    return land_all(flights) || bad ? -1 : 0;
}

static int append_blocks(struct store *s, const struct workload *w)
{
    return append_pieces(s, w, w->block_tokens);
}

static int append_layers(struct store *s, const struct workload *w)
{
    return append_pieces(s, w, w->tokens);
}

/* Piece number `piece` of `tokens` tokens each; pieces follow each other in layer after layer,
 * and each is delivered as its keys, then its values. */
static int submit_fetch(struct state *q, const struct workload *w, uint32_t piece,
                        uint32_t tokens, struct flight *f)
{
    const uint32_t of_layer = w->tokens / tokens;
    const size_t part = (size_t)tokens * w->heads * w->dim;
    f->into_key = w->into + 2 * piece * part;
    f->into_value = w->into + (2 * piece + 1) * part;
    const struct quire_fetch fetch = {.position = (uint64_t)(piece % of_layer) * tokens,
                                      .tokens = tokens,
                                      .first_layer = piece / of_layer,
                                      .layers = 1,
                                      .dtype = QUIRE_F16,
                                      .layout = QUIRE_TOKEN_MAJOR,
                                      .key = &f->into_key,
                                      .value = &f->into_value};
    return quire_fetch_submit(q->session, &fetch, &f->op) ? failed("fetch") : 0;
}

static int fetch_pieces(struct store *s, const struct workload *w, uint32_t tokens)
{
    struct state *q = s->state;
    struct flight flights[PEERS_DEPTH] = {0};
    const uint32_t count = w->layers * (w->tokens / tokens);
    int bad = 0;
    for (uint32_t piece = 0; piece < count && !bad; piece++) {
        struct flight *f = &flights[piece % PEERS_DEPTH];
        bad = land(f) || submit_fetch(q, w, piece, tokens, f);
    }
    return land_all(flights) || bad ? -1 : 0;
}

static int fetch_blocks(struct store *s, const struct workload *w)
{
    return fetch_pieces(s, w, w->block_tokens);
}

static int fetch_layers(struct store *s, const struct workload *w)
{
    return fetch_pieces(s, w, w->tokens);
}

static void quire_stop(struct store *s)
{
    struct state *q = s->state;
    if (q) {
        quire_session_close(&q->session);
        quire_client_close(&q->client);
        free(q);
    }
    s->state = NULL;
    process_stop(s->server);
    s->server = 0;
}

/* Each once through shared memory, once through the socket alone. */
#define QUIRE_OPS(symbol, row_name, file, ...)                                                 \
    const struct store_ops symbol = {.name = row_name,                                         \
                                     .file_name = file,                                        \
                                     .is_quire = true,                                         \
                                     .start = quire_start,                                     \
                                     .stop = quire_stop,                                       \
                                     __VA_ARGS__}

#define BLOCKS .append = append_blocks, .fetch = fetch_blocks
#define LAYERS .append = append_layers, .fetch = fetch_layers, .by_layer = true

QUIRE_OPS(quire_block_ops, "quire, blocks", "blocks", BLOCKS, .shared = true);
QUIRE_OPS(quire_sealed_ops, "quire, sealed", "sealed", BLOCKS, .all_sealed = true,
          .shared = true);
QUIRE_OPS(quire_layer_ops, "quire, layers", "layers", LAYERS, .shared = true);
QUIRE_OPS(quire_block_wire_ops, "  by socket", "wblocks", BLOCKS);
QUIRE_OPS(quire_sealed_wire_ops, "  by socket", "wsealed", BLOCKS, .all_sealed = true);
QUIRE_OPS(quire_layer_wire_ops, "  by socket", "wlayers", LAYERS);
