/* SPDX-License-Identifier: Apache-2.0
 *
 * Append, fetch and a decode step through a real server, on TCP loopback and on a
 * unix socket, each without and with shared memory, beside memcpy and an empty call of the same
 * run. Prints ratios;
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

    printf("%-18s %-8s %6.2f GB/s  %5.2f x memcpy  (due: %.2f)%s\n", what, where, rate / 1e9,
           rate / memcpy_rate, due, rate / memcpy_rate >= due ? "" : "  SHORT");
}

struct rate {
    double wall, cpu; /* bytes a second of the clock, and of the thread's own time */
};

/* Best of `rounds`: other work on the machine only ever makes a round longer. */
static struct rate best_memcpy(const struct net_data *d, uint32_t rounds)
{
    double wall = 1e9, cpu = 1e9;

    for (uint32_t i = 0; i < rounds; i++) {
        const double start = net_now(), cpu_start = net_cpu_now(0).client;
        memcpy(d->out, d->in, d->bytes);
        const double took = net_now() - start;
        const double cpu_took = net_cpu_now(0).client - cpu_start;
        wall = took < wall ? took : wall;
        cpu = cpu_took < cpu ? cpu_took : cpu;
    }
    return (struct rate){(double)d->bytes / wall, (double)d->bytes / cpu};
}

static void least(double *best, double value)
{
    *best = value < *best ? value : *best;
}

static void least_cpu(struct net_cpu *best, const struct net_cpu *value)
{
    if (value->client + value->server < best->client + best->server)
        *best = *value;
}

/* What the two processes compute for: unlike the clock, hardly longer when others do too. */
static void report_cpu(const char *what, const char *where, const struct net_cpu *cpu,
                       double bytes, double memcpy_rate)
{
    const double client = cpu->client / bytes * 1e9, server = cpu->server / bytes * 1e9;
    const double memcpy_cost = 1e9 / memcpy_rate;

    printf("%-18s %-8s CPU s per GB: client %.3f, server %.3f, memcpy %.3f; two cores allow "
           "%.2f x "
           "memcpy\n",
           what, where, client, server, memcpy_cost, 2 * memcpy_cost / (client + server));
}

static void bench_bulk(quire_client *client, pid_t server, const char *where, size_t codec,
                       struct net_data *d, uint32_t rounds)
{
    struct net_times best = {1e9, 1e9, 1e9, 1e9, {1e9, 0}, {1e9, 0}};
    char what[64];
    const struct rate rate = best_memcpy(d, rounds);
    const double bytes = (double)d->bytes;

    for (uint32_t i = 0; i < rounds; i++) {
        const struct net_times t = net_round(client, server, d, codecs[codec].bits);
        least(&best.append, t.append);
        least(&best.first, t.first);
        least(&best.fetch, t.fetch);
        least(&best.rotated, t.rotated);
        least_cpu(&best.append_cpu, &t.append_cpu);
        least_cpu(&best.fetch_cpu, &t.fetch_cpu);
    }
    snprintf(what, sizeof(what), "append %s", codecs[codec].name);
    report(what, where, bytes, best.append, rate.wall, 0.6);
    report_cpu(what, where, &best.append_cpu, bytes, rate.cpu);
    snprintf(what, sizeof(what), "1st fetch %s", codecs[codec].name);
    report(what, where, bytes, best.first, rate.wall, 0);
    snprintf(what, sizeof(what), "fetch %s", codecs[codec].name);
    report(what, where, bytes, best.fetch, rate.wall, codecs[codec].fetch_due);
    report_cpu(what, where, &best.fetch_cpu, bytes, rate.cpu);
    snprintf(what, sizeof(what), "fetch %s, RoPE", codecs[codec].name);
    report(what, where, bytes, best.rotated, rate.wall, 0);
}

static void bench_decode(quire_client *client, const char *where)
{
    const struct net_latency l = net_decode(client, 600);

    printf("decode step        %-8s p50 %6.1f us  %5.2f x an empty call of %.1f us (due: "
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
    struct options o = {4096, 8, 5, 2};
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
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"tcp", "unix", "tcp shm", "unix shm"};
        const char *where = names[i];
        quire_client *client = net_connect(&server, i % 2, i / 2, o.threads);
        for (size_t c = 0; c < 2; c++)
            bench_bulk(client, server.pid, where, c, &data, o.rounds);
        bench_decode(client, where);
        quire_client_close(&client);
    }
    net_data_free(&data);
    net_server_stop(&server);
    return 0;
}
