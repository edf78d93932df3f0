/* SPDX-License-Identifier: Apache-2.0
 *
 * The same-host path: the hot methods over shared memory, for clients that can open a unix
 * socket of this server and know its cookie (Hello tells it). The second call machine beside
 * rpc.h, with the same handlers. Must not know what a message means, nor gRPC.
 */
#ifndef QR_LOCAL_H
#define QR_LOCAL_H

#include "proto/wire_frame.h"
#include "rpc.h"

struct qr_local_config {
    const struct qr_method *methods; /* borrowed for the machine's life */
    size_t method_count;
    void *service;
    quire_status (*identify)(void *service, const char *peer, uint32_t *ns_out,
                             struct qr_error *e);
    void (*release)(void *service, void *pin);
    uint32_t threads;
    uint32_t clients_max;          /* connections, of all threads */
    uint64_t up_bytes, down_bytes; /* rings of one connection: to the server, to the client */
    uint64_t memory_bytes;         /* of all connections */
    uint64_t message_bytes_max;
    uint32_t stall_ms, handshake_ms;
};

/** What the machine counts; any thread may read. */
struct qr_local_stat {
    uint64_t clients, clients_refused, clients_broken;
    uint64_t calls, failed, canceled, stalled, live;
    uint64_t bytes_in, bytes_out, memory_bytes;
};

struct qr_local;

/** EINVAL: a ring's size; ENOMEM; EIO. */
quire_status qr_local_create(const struct qr_local_config *config, struct qr_local **out,
                             struct qr_error *e);
/** Listen on a path ("/path") or an abstract name ("@name"); before qr_local_start. A socket
 * file on which nobody listens is replaced. EUNAVAILABLE, EEXIST. */
quire_status qr_local_listen(struct qr_local *local, const char *path, struct qr_error *e);
/** QR_LOCAL_COOKIE_BYTES, random for each machine. */
const uint8_t *qr_local_cookie(const struct qr_local *local);
quire_status qr_local_start(struct qr_local *local, struct qr_error *e);
/** Refuse new calls from now on. */
void qr_local_refuse(struct qr_local *local);
/** Wait until no call is under way or the clock (qr_clock_ms) shows until_ms, then end every
 * connection and all threads. false: a reply was still held back after five more seconds; then
 * only leaving the process is safe. */
bool qr_local_stop(struct qr_local *local, uint64_t until_ms);
/** Stops first when it runs. NULL allowed. */
void qr_local_destroy(struct qr_local **local);
void qr_local_stat(struct qr_local *local, struct qr_local_stat *out);

#endif
