/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces of the network benchmark: a server of its own, data, one round of append
 * and fetch, decode steps. Everything ends the program on failure.
 */
#ifndef NET_BENCH_H
#define NET_BENCH_H

#include <stdbool.h>
#include <sys/types.h>

#include "client/quire.h"

struct net_server {
    pid_t pid;
    char folder[64], socket[96], tcp[96];
};
void net_server_start(struct net_server *server);
void net_server_stop(struct net_server *server);
/** over: 0 TCP, 1 unix socket; local: through shared memory, which there has to be. */
quire_client *net_connect(const struct net_server *server, int over, bool local,
                          uint32_t threads);

#define NET_HEADS 8
#define NET_DIM 128

/** FP16 K and V of `layers` layers: in (to append), out (to fetch into). */
struct net_data {
    uint32_t tokens, layers;
    size_t bytes; /* of each of in and out */
    uint16_t *in, *out;
};
void net_data_make(struct net_data *data, uint32_t tokens, uint32_t layers);
void net_data_free(struct net_data *data);

/** CPU seconds of the two processes: of all their threads, kernel time included. */
struct net_cpu {
    double client, server;
};

/** So far; server 0: only this process. */
struct net_cpu net_cpu_now(pid_t server);

struct net_times {
    double append, first, fetch, rotated; /* seconds; first: the fetch after the append */
    struct net_cpu append_cpu, fetch_cpu; /* of one append, of one fetch */
};
/** A session with K and V of `bits` bits: append all, fetch all, fetch rotated, compare, drop.
 * server: its pid, for its CPU time. */
struct net_times net_round(quire_client *client, pid_t server, struct net_data *data,
                           uint32_t bits);

struct net_latency {
    double ping_us, step_us; /* medians */
};
/** Appends of 1 token for 32 layers, alternating with empty calls. */
struct net_latency net_decode(quire_client *client, unsigned steps);

double net_now(void);

#endif
