/* SPDX-License-Identifier: Apache-2.0
 *
 * What the comparison asks of each store: hold the keys and values of token blocks and give
 * them back, with several requests in flight. Must not know how a store does it.
 */
#ifndef QR_BENCH_PEERS_H
#define QR_BENCH_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum transport { TRANSPORT_UNIX, TRANSPORT_TCP };

#define PEERS_DEPTH 4 /* requests in flight */

/** The workload: `layers` x `tokens` tokens, each with `token_bytes` of FP16 keys and as many
 * of values. */
struct workload {
    uint32_t layers, tokens;
    uint32_t heads, dim;
    uint32_t block_tokens; /* tokens of one value */
    const uint16_t *key;   /* [layers][tokens][heads][dim] */
    const uint16_t *value; /* likewise */
    const uint16_t
        *blocks;    /* [layers][blocks][2][block_tokens][heads][dim]: keys, then values */
    uint16_t *into; /* where a fetch delivers: as `blocks`, or by layer */
};

/** Bytes of the keys and values of all tokens. */
size_t workload_bytes(const struct workload *w);
/** Bytes of one block: keys and values of block_tokens tokens of one layer. */
size_t workload_block_bytes(const struct workload *w);

/** A running store. All calls return 0, or -1 after saying on stderr what went wrong. */
struct store {
    const char *name;
    enum transport transport;
    pid_t server;
    char socket_path[108];
    uint16_t port;
    int fd; /* peers: the one connection */
    void *state;
    const struct store_ops *ops;
};

struct store_ops {
    const char *name;
    const char *file_name; /* of its socket and log; peers have their own way */
    bool is_quire;
    bool all_sealed; /* no window of FP16 tokens at a session's end */
    bool shared;     /* bytes through shared memory, not through the socket */
    bool by_layer;   /* delivers [layers][2][tokens][heads][dim]: keys, then values */
    /** Start a server of our own and connect. `scratch` is a folder that the caller removes. */
    int (*start)(struct store *s, const char *scratch, const struct workload *w);
    /** Write all blocks; they replace those of an earlier pass. */
    int (*append)(struct store *s, const struct workload *w);
    /** Read all blocks into w->into. */
    int (*fetch)(struct store *s, const struct workload *w);
    /** End connection and server. */
    void (*stop)(struct store *s);
};

extern const struct store_ops memcached_ops;
extern const struct store_ops redis_ops;
extern const struct store_ops quire_block_ops, quire_sealed_ops, quire_layer_ops;
extern const struct store_ops quire_block_wire_ops, quire_sealed_wire_ops, quire_layer_wire_ops;

/** Start argv[0] with its output in scratch/<name>.log; it dies with us. */
pid_t process_start(const char *scratch, const char *name, char *const argv[]);
/** SIGTERM, and SIGKILL after five seconds. */
void process_stop(pid_t pid);
/** A free port of the loopback interface. */
uint16_t port_pick(void);
/** Connect to the store's socket, trying for ten seconds while its server starts. */
int store_connect(struct store *s);

#endif
