/* SPDX-License-Identifier: Apache-2.0
 *
 * Append, fetch and a decode step through a real server, on TCP loopback and on a
 * unix socket, beside memcpy and an empty call of the same run. Prints ratios;
 * checks only that what came back is near what went in.
 * usage: net [tokens [layers [rounds [client threads]]]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net_bench.h"

struct options {
    uint32_t tokens, layers, rounds, threads;
};

static const struct {
    const char *name;
    uint32_t bits;
    double fetch_due;
} codecs[] = {{"K4/V4", 4, 0.8}, {"K2/V2", 2, 1.0}};

static void report(const char *what, const char *where, double bytes, double seconds,
                   double memcpy_rate, double due)
{
    const double rate = bytes / seconds;

    printf("%-18s %-5s %6.2f GB/s  %5.2f x memcpy  (due: %.2f)%s\n", what, where, rate / 1e9,
           rate / memcpy_rate, due, rate / memcpy_rate >= due ? "" : "  SHORT");
}

/* Best of `rounds`: other work on the machine only ever makes a round longer. */
static double best_memcpy(const struct net_data *d, uint32_t rounds)
{
    double best = 1e9;

    for (uint32_t i = 0; i < rounds; i++) {
        const double start = net_now();
        memcpy(d->out, d->in, d->bytes);
        const double took = net_now() - start;
        best = took < best ? took : best;
    }
    return (double)d->bytes / best;
}

static void bench_bulk(const struct net_server *server, quire_client *client, const char *where,
                       size_t codec, struct net_data *d, uint32_t rounds)
{
    double append = 1e9, fetch = 1e9, turned = 1e9, cpu = 1e9;
    char what[64];
    const double rate = best_memcpy(d, rounds);

    for (uint32_t i = 0; i < rounds; i++) {
        struct net_times t = net_round(server, client, d, codecs[codec].bits);
        cpu = t.append_cpu < cpu ? t.append_cpu : cpu;
        append = t.append < append ? t.append : append;
        fetch = t.fetch < fetch ? t.fetch : fetch;
        turned = t.rotated < turned ? t.rotated : turned;
    }
    snprintf(what, sizeof(what), "append %s", codecs[codec].name);
    report(what, where, (double)d->bytes, append, rate, 0.6);
    printf("%-18s %-5s %6.3f processor seconds a GB, both processes\n", what, where,
           cpu / (double)d->bytes * 1e9);
    snprintf(what, sizeof(what), "fetch %s", codecs[codec].name);
    report(what, where, (double)d->bytes, fetch, rate, codecs[codec].fetch_due);
    snprintf(what, sizeof(what), "fetch %s, RoPE", codecs[codec].name);
    report(what, where, (double)d->bytes, turned, rate, 0);
}

static void bench_decode(quire_client *client, const char *where)
{
    const struct net_latency l = net_decode(client, 600);

    printf("decode step        %-5s p50 %6.1f us  %5.2f x an empty call of %.1f us (due: "
           "3.00)%s\n",
           where, l.step_us, l.step_us / l.ping_us, l.ping_us,
           l.step_us / l.ping_us <= 3 ? "" : "  SHORT");
}

/* Numbers of 1 .. 1Mi, in order; false for anything else. */
static bool read_options(int argc, char **argv, struct options *o)
{
    uint32_t *const fields[] = {&o->tokens, &o->layers, &o->rounds, &o->threads};

    if (argc > 5)
        return false;
    for (int i = 1; i < argc; i++) {
        char *end;
        const unsigned long n = strtoul(argv[i], &end, 10);
        if (*end || n < 1 || n > 1u << 20)
            return false;
        *fields[i - 1] = (uint32_t)n;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct options o = {4096, 8, 5, 1};
    struct net_server server;
    struct net_data data;

    if (!read_options(argc, argv, &o)) {
        fprintf(stderr, "usage: net [tokens [layers [rounds [client threads]]]]\n");
        return 2;
    }
    net_server_start(&server);
    net_data_make(&data, o.tokens, o.layers);
    printf("%u tokens x %u layers, 8 KV heads, d 128: %.0f MB of FP16; best of %u\n", o.tokens,
           o.layers, (double)data.bytes / 1e6, o.rounds);
    for (int i = 0; i < 2; i++) {
        const char *where = i ? "unix" : "tcp";
        quire_client *client = net_connect(&server, i, o.threads);
        for (size_t c = 0; c < 2; c++)
            bench_bulk(&server, client, where, c, &data, o.rounds);
        bench_decode(client, where);
        quire_client_close(&client);
    }
    net_data_free(&data);
    net_server_stop(&server);
    return 0;
}
