/* SPDX-License-Identifier: Apache-2.0
 *
 * The same keys and values through memcached, redis and Quire, in one run: one table of what
 * each delivers beside a memcpy of the same bytes. Figures of different machines do not
 * compare; the ratios do. usage: peers [--mib N] [--passes N] [--transport unix|tcp]
 */
#include "peers.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto/quant.h"

#define HEADS 8
#define DIM 128
#define LAYERS 4
#define MAX_PASSES 15
#define MAX_ERROR                                                                              \
    0.2 /* K4/V4 of uniform noise is near 0.07; anything else is not our numbers */

struct options {
    uint32_t mib;
    uint32_t passes;
    int transports[2]; /* indexed by enum transport: wanted */
};

struct speeds {
    double append, fetch; /* GB/s, the median pass */
};

static const struct store_ops *const all_ops[] = {&memcached_ops, &redis_ops, &quire_ops};
#define STORES (sizeof(all_ops) / sizeof(all_ops[0]))

size_t workload_block_bytes(const struct workload *w)
{
    return (size_t)w->block_tokens * w->heads * w->dim * 2 * sizeof(uint16_t);
}

size_t workload_bytes(const struct workload *w)
{
    return (size_t)w->layers * w->tokens * w->heads * w->dim * 2 * sizeof(uint16_t);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_speed(double *seconds, uint32_t passes, size_t bytes)
{
    qsort(seconds, passes, sizeof(*seconds), compare_doubles);
    return (double)bytes / seconds[passes / 2] * 1e-9;
}

/* FP16 numbers around 1 in size, with random sign and mantissa: nothing that compresses. */
static void fill_halves(uint16_t *out, size_t count)
{
    uint64_t state = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const uint64_t bits = state >> 40;
        out[i] = (uint16_t)((bits & 0x83ff) | (14 + ((bits >> 16) & 1)) << 10);
    }
}

/* The same numbers in the two orders that the stores are handed: by token, and by block. */
static void lay_blocks(const struct workload *w, uint16_t *blocks)
{
    const size_t row = (size_t)w->heads * w->dim;
    const size_t part = row * w->block_tokens;
    const size_t count = (size_t)w->layers * w->tokens / w->block_tokens;
    for (size_t i = 0; i < count; i++) {
        memcpy(blocks + 2 * i * part, w->key + i * part, part * sizeof(*blocks));
        memcpy(blocks + (2 * i + 1) * part, w->value + i * part, part * sizeof(*blocks));
    }
}

static int time_passes(struct store *s, const struct workload *w, uint32_t passes,
                       struct speeds *out)
{
    double append_s[MAX_PASSES] = {0};
    double fetch_s[MAX_PASSES] = {0};
    for (uint32_t i = 0; i < passes; i++) {
        const double start = now_s();
        if (s->ops->append(s, w))
            return -1;
        const double middle = now_s();
        if (s->ops->fetch(s, w))
            return -1;
        fetch_s[i] = now_s() - middle;
        append_s[i] = middle - start;
    }
    out->append = median_speed(append_s, passes, workload_bytes(w));
    out->fetch = median_speed(fetch_s, passes, workload_bytes(w));
    return 0;
}

static double memcpy_speed(const struct workload *w, uint32_t passes)
{
    double seconds[MAX_PASSES] = {0};
    for (uint32_t i = 0; i < passes; i++) {
        const double start = now_s();
        memcpy(w->into, w->blocks, workload_bytes(w));
        seconds[i] = now_s() - start;
    }
    return median_speed(seconds, passes, workload_bytes(w));
}

static int run_store(const struct store_ops *ops, enum transport transport,
                     const struct workload *w, uint32_t passes, struct speeds *out)
{
    char scratch[] = "/tmp/quire-peers-XXXXXX";
    if (!mkdtemp(scratch)) {
        perror("peers: mkdtemp");
        return -1;
    }
    struct store store = {.name = ops->name, .transport = transport, .fd = -1, .ops = ops};
    memset(w->into, 0, workload_bytes(w));
    int failed = ops->start(&store, scratch, w) || time_passes(&store, w, passes, out);
    ops->stop(&store);
    char command[64];
    snprintf(command, sizeof(command), "rm -rf %s", scratch);
    if (failed)
        fprintf(stderr, "peers: %s failed; its log is in %s\n", ops->name, scratch);
    else if (system(command) != 0)
        fprintf(stderr, "peers: %s is left behind\n", scratch);
    return failed ? -1 : 0;
}

/* ||got - put|| / ||put|| over a sample of the numbers. */
static double relative_error(const struct workload *w)
{
    const size_t count = workload_bytes(w) / sizeof(uint16_t);
    double error = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < count; i += 13) {
        const double put = (double)qr_f16_to_f32(w->blocks[i]);
        const double got = (double)qr_f16_to_f32(w->into[i]);
        error += (got - put) * (got - put);
        norm += put * put;
    }
    return sqrt(error / norm);
}

/* Quire quantizes; the peers must give the very bytes back. Noise is the worst case for codes.
 */
static int check_delivered(const struct store_ops *ops, const struct workload *w, double *error)
{
    *error = relative_error(w);
    const int right = ops == &quire_ops ? *error < MAX_ERROR
                                        : memcmp(w->into, w->blocks, workload_bytes(w)) == 0;
    if (!right)
        fprintf(stderr, "peers: %s gave something else back: relative error %g\n", ops->name,
                *error);
    return right ? 0 : -1;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static int run_size(const struct workload *w, enum transport transport, uint32_t passes)
{
    const char *over = transport == TRANSPORT_UNIX ? "unix" : "tcp";
    const double copy = memcpy_speed(w, passes);
    struct speeds best_peer = {0.0, 0.0};
    struct speeds speeds = {0.0, 0.0};
    for (size_t i = 0; i < STORES; i++) {
        double error = 0.0;
        if (run_store(all_ops[i], transport, w, passes, &speeds) ||
            check_delivered(all_ops[i], w, &error))
            return -1;
        printf("%-10s %-5s %5zu KiB  %8.2f %6.2f  %8.2f %6.2f  %7.4f\n", all_ops[i]->name, over,
               workload_block_bytes(w) >> 10, speeds.append, speeds.append / copy, speeds.fetch,
               speeds.fetch / copy, error);
        fflush(stdout);
        if (all_ops[i] == &quire_ops)
            continue;
        best_peer.append = larger(best_peer.append, speeds.append);
        best_peer.fetch = larger(best_peer.fetch, speeds.fetch);
    }
    printf("quire / better peer %12.2fx %22.2fx\n", speeds.append / best_peer.append,
           speeds.fetch / best_peer.fetch);
    return 0;
}

static int workload_make(struct workload *w, uint32_t mib)
{
    /* 96 and 256 tokens a block have to divide it: 768 tokens are 3 MiB a layer. */
    const uint32_t tokens = mib / (3 * LAYERS) * 768;
    *w = (struct workload){.layers = LAYERS, .tokens = tokens, .heads = HEADS, .dim = DIM};
    const size_t bytes = workload_bytes(w);
    uint16_t *halves = malloc(bytes);
    uint16_t *blocks = malloc(bytes);
    w->into = malloc(bytes);
    if (tokens == 0 || !halves || !blocks || !w->into) {
        fprintf(stderr, "peers: cannot make %u MiB of keys and values; from %d MiB on\n", mib,
                3 * LAYERS);
        free(halves);
        free(blocks);
        free(w->into);
        return -1;
    }
    fill_halves(halves, bytes / sizeof(*halves));
    w->key = halves;
    w->value = halves + bytes / sizeof(*halves) / 2;
    w->blocks = blocks;
    return 0;
}

static void workload_free(struct workload *w)
{
    free((void *)(uintptr_t)w->key);
    free((void *)(uintptr_t)w->blocks);
    free(w->into);
}

static int parse_options(int argc, char **argv, struct options *o)
{
    *o = (struct options){.mib = 252, .passes = 3, .transports = {1, 1}};
    for (int i = 1; i < argc; i += 2) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--mib") == 0)
            o->mib = (uint32_t)strtoul(next, NULL, 10);
        else if (strcmp(argv[i], "--passes") == 0)
            o->passes = (uint32_t)strtoul(next, NULL, 10);
        else if (strcmp(argv[i], "--transport") == 0) {
            o->transports[TRANSPORT_UNIX] = strcmp(next, "unix") == 0;
            o->transports[TRANSPORT_TCP] = strcmp(next, "tcp") == 0;
        } else
            return -1;
    }
    const int any = o->transports[0] || o->transports[1];
    return any && o->passes >= 1 && o->passes <= MAX_PASSES && o->mib >= 12 ? 0 : -1;
}

int main(int argc, char **argv)
{
    struct options options;
    if (parse_options(argc, argv, &options)) {
        fprintf(stderr,
                "usage: peers [--mib N (from 12)] [--passes N (1 to %d)] "
                "[--transport unix|tcp]\n",
                MAX_PASSES);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    struct workload workload;
    if (workload_make(&workload, options.mib))
        return 1;
    printf("%zu MiB of FP16 keys and values, %d requests in flight, median of %u passes; "
           "GB/s, and beside it the ratio to memcpy\n",
           workload_bytes(&workload) >> 20, PEERS_DEPTH, options.passes);
    printf("%-10s %-5s %9s  %8s %6s  %8s %6s  %7s\n", "store", "over", "block", "append",
           "ratio", "fetch", "ratio", "error");
    int failed = 0;
    for (int transport = 0; transport < 2 && !failed; transport++)
        for (uint32_t tokens = 96; tokens <= 256 && !failed; tokens += 160) {
            workload.block_tokens = tokens;
            uint16_t *blocks = (uint16_t *)(uintptr_t)workload.blocks;
            lay_blocks(&workload, blocks);
            if (options.transports[transport])
                failed = run_size(&workload, (enum transport)transport, options.passes);
        }
    workload_free(&workload);
    return failed ? 1 : 0;
}
