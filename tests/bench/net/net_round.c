/* SPDX-License-Identifier: Apache-2.0
 *
 * Data and rounds of the network benchmark: what is timed is one call each.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "net_bench.h"
#include "proto/quant.h"

#define LAYERS_MAX 32
#define FETCHES 4 /* of each kind in a round */

static double clock_of(clockid_t clock)
{
    struct timespec t;

    if (clock_gettime(clock, &t))
        return 0;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double net_now(void)
{
    return clock_of(CLOCK_MONOTONIC);
}

struct net_cpu net_cpu_now(pid_t server)
{
    clockid_t clock;
    const struct net_cpu now = {.client = clock_of(CLOCK_PROCESS_CPUTIME_ID),
                                .server =
                                    clock_getcpuclockid(server, &clock) ? 0 : clock_of(clock)};

    return now;
}

static struct net_cpu cpu_since(pid_t server, const struct net_cpu *start, unsigned times)
{
    const struct net_cpu now = net_cpu_now(server);
    const struct net_cpu took = {(now.client - start->client) / times,
                                 (now.server - start->server) / times};

    return took;
}

static void need(quire_status status, const char *what)
{
    if (status == QUIRE_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, quire_status_name(status), quire_last_error()->text);
    exit(1);
}

static void *pages(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        exit(1);
    madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 1, bytes);
    return p;
}

void net_data_make(struct net_data *d, uint32_t tokens, uint32_t layers)
{
    uint64_t seed = 88172645463325252u;

    d->tokens = tokens;
    d->layers = layers > LAYERS_MAX ? LAYERS_MAX : layers;
    d->bytes = (size_t)tokens * d->layers * NET_HEADS * NET_DIM * 2 * sizeof(uint16_t);
    d->in = pages(d->bytes);
    d->out = pages(d->bytes);
    for (size_t i = 0; i < d->bytes / 2; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        /* FP16 of +-[0.5, 2): sign, two exponents, ten random bits. */
        d->in[i] = (uint16_t)((seed & 0x83ff) | (seed & 0x400000 ? 0x3c00 : 0x3800));
    }
}

void net_data_free(struct net_data *d)
{
    munmap(d->in, d->bytes);
    munmap(d->out, d->bytes);
}

static quire_session *open_session(quire_client *client, uint32_t layers, uint32_t bits)
{
    const struct quire_rope rope = {.type = QUIRE_ROPE_DEFAULT,
                                    .layout = QUIRE_ROPE_HALF,
                                    .rotary_dim = NET_DIM,
                                    .theta = 500000};
    const struct quire_layers runs = {.count = layers,
                                      .query_heads = 32,
                                      .kv_heads = NET_HEADS,
                                      .key_dim = NET_DIM,
                                      .value_dim = NET_DIM,
                                      .rope_stored = QUIRE_ROPE_PRE};
    const struct quire_model model = {
        .name = "bench", .layers = &runs, .layer_runs = 1, .ropes = &rope, .rope_count = 1};
    uint8_t fingerprint[32];
    struct quire_policy policy;
    struct quire_open_options options;
    quire_session *session;

    need(quire_model_register(client, &model, fingerprint), "register");
    quire_policy_default(&policy);
    policy.key.bits = policy.value.bits = bits;
    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_CREATE | QUIRE_OPEN_WRITE;
    options.fingerprint = fingerprint;
    options.policy = &policy;
    need(quire_session_open(client, "bench", &options, &session), "open");
    return session;
}

static void close_session(quire_client *client, quire_session *session)
{
    quire_session_close(&session);
    need(quire_session_drop(client, "bench", true), "drop");
}

/* Pointers to each layer's K and V in one block of memory. */
static void layer_pointers(const struct net_data *d, uint16_t *base, void **key, void **value)
{
    const size_t tensor = (size_t)d->tokens * NET_HEADS * NET_DIM;

    for (uint32_t l = 0; l < d->layers; l++) {
        key[l] = base + 2 * l * tensor;
        value[l] = base + (2 * l + 1) * tensor;
    }
}

static double timed_append(quire_session *session, const struct net_data *d)
{
    void *key[LAYERS_MAX], *value[LAYERS_MAX];
    layer_pointers(d, d->in, key, value);
    const struct quire_append append = {.tokens = d->tokens,
                                        .layers = d->layers,
                                        .dtype = QUIRE_F16,
                                        .key = (const void *const *)(const void *)key,
                                        .value = (const void *const *)(const void *)value};
    const double start = net_now();
    need(quire_append(session, &append, NULL), "append");
    return net_now() - start;
}

static double timed_fetch(quire_session *session, const struct net_data *d, bool rotate)
{
    void *key[LAYERS_MAX], *value[LAYERS_MAX];
    layer_pointers(d, d->out, key, value);
    const struct quire_fetch fetch = {.tokens = d->tokens,
                                      .layers = d->layers,
                                      .dtype = QUIRE_F16,
                                      .key = key,
                                      .value = value,
                                      .rotate = rotate};
    const double start = net_now();
    need(quire_fetch(session, &fetch), "fetch");
    return net_now() - start;
}

static double best_fetch(quire_session *session, const struct net_data *d, bool rotate)
{
    double best = timed_fetch(session, d, rotate);

    for (unsigned i = 1; i < FETCHES; i++) {
        const double took = timed_fetch(session, d, rotate);
        best = took < best ? took : best;
    }
    return best;
}

/* Uniform in a span of 4 in `bits` bits: half a step, and FP16's rounding of scale and sum. */
static void compare(const struct net_data *d, uint32_t bits)
{
    const float bound = 4.0f / (float)((1u << bits) - 1) * 0.52f;

    for (size_t i = 0; i < d->bytes / 2; i += 997) {
        const float a = qr_f16_to_f32(d->in[i]), b = qr_f16_to_f32(d->out[i]);
        if (!(fabsf(a - b) <= bound)) {
            fprintf(stderr, "element %zu: %g came back as %g\n", i, (double)a, (double)b);
            exit(1);
        }
    }
}

struct net_times net_round(quire_client *client, pid_t server, struct net_data *d,
                           uint32_t bits)
{
    struct net_times t;
    quire_session *session = open_session(client, d->layers, bits);

    struct net_cpu start = net_cpu_now(server);
    t.append = timed_append(session, d);
    t.append_cpu = cpu_since(server, &start, 1);
    t.first = timed_fetch(session, d, false);
    t.rotated = best_fetch(session, d, true);
    start = net_cpu_now(server);
    t.fetch = best_fetch(session, d, false);
    t.fetch_cpu = cpu_since(server, &start, FETCHES);
    compare(d, bits);
    close_session(client, session);
    return t;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_us(double *seconds, unsigned n)
{
    qsort(seconds, n, sizeof(*seconds), by_value);
    return seconds[n / 2] * 1e6;
}

struct net_latency net_decode(quire_client *client, unsigned steps)
{
    struct net_data d;
    double *ping = calloc(steps, sizeof(double)), *step = calloc(steps, sizeof(double));
    void *key[LAYERS_MAX], *value[LAYERS_MAX];
    struct quire_append append = {.tokens = 1,
                                  .layers = LAYERS_MAX,
                                  .dtype = QUIRE_F16,
                                  .key = (const void *const *)(const void *)key,
                                  .value = (const void *const *)(const void *)value};

    net_data_make(&d, 1, LAYERS_MAX);
    layer_pointers(&d, d.in, key, value);
    quire_session *session = open_session(client, LAYERS_MAX, 4);
    for (unsigned i = 0; i < steps; i++) {
        double start = net_now();
        need(quire_client_ping(client), "ping");
        ping[i] = net_now() - start;
        start = net_now();
        append.position = i;
        need(quire_append(session, &append, NULL), "append");
        step[i] = net_now() - start;
    }
    close_session(client, session);
    net_data_free(&d);
    const struct net_latency latency = {median_us(ping, steps), median_us(step, steps)};
    free(ping);
    free(step);
    return latency;
}
