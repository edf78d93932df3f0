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

#define LAYERS 4
#define BLOCK_TOKENS 128 /* a page of Quire's default policy */
#define MAX_PASSES 15
#define MIN_MIB 12
#define MAX_ERROR                                                                              \
    0.2 /* K4/V4 of uniform noise is near 0.07; anything else is not our numbers */

struct options {
    uint32_t mib;
    uint32_t passes;
    int transports[2]; /* indexed by enum transport: wanted */
};

/* Of one store: a pass of each kind after the other, in turns with the other stores. */
struct passes {
    double append_s[MAX_PASSES], fetch_s[MAX_PASSES];         /* by the clock */
    double append_cpu_s[MAX_PASSES], fetch_cpu_s[MAX_PASSES]; /* of client and server */
};

/* Blocks of 384 KiB and of 1 MiB. */
static const struct {
    uint32_t heads, dim;
} geometries[] = {{12, 64}, {16, 128}};

/* The peers first: Quire's rows are compared with the better of them. */
static const struct store_ops *const all_ops[] = {&memcached_ops,    &redis_ops,
                                                  &quire_block_ops,  &quire_block_wire_ops,
                                                  &quire_sealed_ops, &quire_sealed_wire_ops,
                                                  &quire_layer_ops,  &quire_layer_wire_ops};
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

static double median(const double *values, uint32_t count)
{
    double sorted[MAX_PASSES];
    memcpy(sorted, values, count * sizeof(*sorted));
    qsort(sorted, count, sizeof(*sorted), compare_doubles);
    return sorted[count / 2];
}

/* Processor time of this process and the store's server: other work on the machine hardly
 * changes it. */
static double cpu_s(const struct store *s)
{
    clockid_t theirs;
    struct timespec own, other;
    if (clock_getcpuclockid(s->server, &theirs) || clock_gettime(theirs, &other) ||
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own))
        return NAN;
    return (double)(own.tv_sec + other.tv_sec) + (double)(own.tv_nsec + other.tv_nsec) * 1e-9;
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

static int time_pass(struct store *s, const struct workload *w, uint32_t pass,
                     struct passes *out)
{
    double start = now_s(), cpu = cpu_s(s);
    if (s->ops->append(s, w))
        return -1;
    out->append_s[pass] = now_s() - start;
    out->append_cpu_s[pass] = cpu_s(s) - cpu;
    start = now_s();
    cpu = cpu_s(s);
    if (s->ops->fetch(s, w))
        return -1;
    out->fetch_s[pass] = now_s() - start;
    out->fetch_cpu_s[pass] = cpu_s(s) - cpu;
    return 0;
}

static double copy_s(const struct workload *w)
{
    const double start = now_s();
    memcpy(w->into, w->blocks, workload_bytes(w));
    return now_s() - start;
}

/* Number `i` of what the store was given, in the order in which it delivers. */
static uint16_t put_at(const struct workload *w, bool by_layer, size_t i)
{
    if (!by_layer)
        return w->blocks[i];
    const size_t tensor = (size_t)w->tokens * w->heads * w->dim;
    const size_t layer = i / (2 * tensor), at = i % tensor;
    return (i / tensor % 2 ? w->value : w->key)[layer * tensor + at];
}

/* ||got - put|| / ||put|| over a sample of the numbers. */
static double relative_error(const struct workload *w, bool by_layer)
{
    const size_t count = workload_bytes(w) / sizeof(uint16_t);
    double error = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < count; i += 13) {
        const double put = (double)qr_f16_to_f32(put_at(w, by_layer, i));
        const double got = (double)qr_f16_to_f32(w->into[i]);
        error += (got - put) * (got - put);
        norm += put * put;
    }
    return sqrt(error / norm);
}

/* Quire quantizes; the peers must give the very bytes back. Noise is the worst case for codes.
 */
static int check_delivered(const struct store_ops *ops, const struct workload *w)
{
    const double error = relative_error(w, ops->by_layer);
    const bool right =
        ops->is_quire ? error < MAX_ERROR : memcmp(w->into, w->blocks, workload_bytes(w)) == 0;
    if (!right)
        fprintf(stderr, "peers: %s gave something else back: relative error %g\n", ops->name,
                error);
    return right ? 0 : -1;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static void print_kind(bool is_quire, size_t bytes, double seconds, double cpu, double copy,
                       double peer)
{
    const double gb = (double)bytes * 1e-9;
    printf("  %6.2f %5.2f %6.3f", gb / seconds, copy / seconds, cpu / gb);
    if (is_quire)
        printf(" %5.2f", peer / seconds);
    else
        printf(" %5s", "-"); /* it has no ratio to itself */
}

static void report(const struct store *stores, const struct passes *passes, double copy,
                   const struct workload *w, uint32_t count)
{
    const size_t bytes = workload_bytes(w);
    double append = INFINITY, fetch = INFINITY; /* the better peer's; peers come first */
    for (size_t i = 0; i < STORES; i++) {
        const bool quire = stores[i].ops->is_quire;
        const double append_s = median(passes[i].append_s, count);
        const double fetch_s = median(passes[i].fetch_s, count);
        append = quire ? append : smaller(append, append_s);
        fetch = quire ? fetch : smaller(fetch, fetch_s);
        printf("%-13s %-4s %4zu KiB", stores[i].name,
               stores[i].transport == TRANSPORT_UNIX ? "unix" : "tcp",
               workload_block_bytes(w) >> 10);
        print_kind(quire, bytes, append_s, median(passes[i].append_cpu_s, count), copy, append);
        print_kind(quire, bytes, fetch_s, median(passes[i].fetch_cpu_s, count), copy, fetch);
        printf("\n");
    }
    fflush(stdout);
}

static int start_all(struct store *stores, enum transport transport, const char *scratch,
                     const struct workload *w)
{
    for (size_t i = 0; i < STORES; i++)
        stores[i] = (struct store){
            .name = all_ops[i]->name, .transport = transport, .fd = -1, .ops = all_ops[i]};
    for (size_t i = 0; i < STORES; i++)
        if (stores[i].ops->start(&stores[i], scratch, w))
            return -1;
    return 0;
}

/* In turns, so that what else the machine does meets all stores alike. */
static int take_turns(struct store *stores, const struct workload *w, uint32_t count,
                      struct passes *passes, double *copies)
{
    for (uint32_t pass = 0; pass < count; pass++) {
        copies[pass] = copy_s(w);
        for (size_t i = 0; i < STORES; i++) {
            memset(w->into, 0, workload_bytes(w));
            if (time_pass(&stores[i], w, pass, &passes[i]) || check_delivered(stores[i].ops, w))
                return -1;
        }
    }
    return 0;
}

static int run_size(const struct workload *w, enum transport transport, uint32_t count)
{
    char scratch[] = "/tmp/quire-peers-XXXXXX";
    struct store stores[STORES];
    struct passes passes[STORES];
    double copies[MAX_PASSES];
    char command[64];
    if (!mkdtemp(scratch)) {
        perror("peers: mkdtemp");
        return -1;
    }
    const int bad = start_all(stores, transport, scratch, w) ||
                    take_turns(stores, w, count, passes, copies);
    for (size_t i = 0; i < STORES; i++)
        stores[i].ops->stop(&stores[i]);
    if (bad) {
        fprintf(stderr, "peers: failed; the servers' logs are in %s\n", scratch);
        return -1;
    }
    report(stores, passes, median(copies, count), w, count);
    snprintf(command, sizeof(command), "rm -rf %s", scratch);
    if (system(command) != 0)
        fprintf(stderr, "peers: %s is left behind\n", scratch);
    return 0;
}

static int workload_make(struct workload *w, uint32_t heads, uint32_t dim, uint32_t mib)
{
    *w = (struct workload){
        .layers = LAYERS, .heads = heads, .dim = dim, .block_tokens = BLOCK_TOKENS};
    const uint32_t tokens =
        (uint32_t)(((size_t)mib << 20) / LAYERS / workload_block_bytes(w)) * BLOCK_TOKENS;
    w->tokens = tokens;
    const size_t bytes = workload_bytes(w);
    uint16_t *halves = malloc(bytes);
    uint16_t *blocks = malloc(bytes);
    w->into = malloc(bytes);
    if (tokens == 0 || !halves || !blocks || !w->into) {
        fprintf(stderr, "peers: cannot make %u MiB of keys and values; from %d MiB on\n", mib,
                MIN_MIB);
        free(halves);
        free(blocks);
        free(w->into);
        return -1;
    }
    fill_halves(halves, bytes / sizeof(*halves));
    w->key = halves;
    w->value = halves + bytes / sizeof(*halves) / 2;
    w->blocks = blocks;
    lay_blocks(w, blocks);
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
    *o = (struct options){.mib = 252, .passes = 5, .transports = {1, 1}};
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
    return any && o->passes >= 1 && o->passes <= MAX_PASSES && o->mib >= MIN_MIB ? 0 : -1;
}

static int run_geometry(uint32_t heads, uint32_t dim, const struct options *o)
{
    struct workload workload;
    if (workload_make(&workload, heads, dim, o->mib))
        return -1;
    int failed = 0;
    for (int transport = 0; transport < 2 && !failed; transport++)
        if (o->transports[transport])
            failed = run_size(&workload, (enum transport)transport, o->passes);
    workload_free(&workload);
    return failed;
}

int main(int argc, char **argv)
{
    struct options options;
    if (parse_options(argc, argv, &options)) {
        fprintf(stderr,
                "usage: peers [--mib N (from %d)] [--passes N (1 to %d)] "
                "[--transport unix|tcp]\n",
                MIN_MIB, MAX_PASSES);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    printf("%u MiB of FP16 keys and values, %d requests in flight, medians of %u passes.\n"
           "GB/s | x: times memcpy | cpu: processor seconds a GB, client and server | peer: "
           "times the better of the peers\n",
           options.mib, PEERS_DEPTH, options.passes);
    printf("%-13s %-4s %8s  %6s %5s %6s %5s  %6s %5s %6s %5s\n", "store", "over", "block",
           "append", "x", "cpu", "peer", "fetch", "x", "cpu", "peer");
    int failed = 0;
    for (size_t g = 0; g < sizeof(geometries) / sizeof(geometries[0]) && !failed; g++)
        failed = run_geometry(geometries[g].heads, geometries[g].dim, &options);
    return failed ? 1 : 0;
}
