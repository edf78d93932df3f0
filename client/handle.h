/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands behind quire_client and quire_session. Must not know calls in
 * flight, which are client_op.h.
 */
#ifndef QR_HANDLE_H
#define QR_HANDLE_H

#include <pthread.h>
#include <stdatomic.h>

#include "client_helper.h"
#include "client_pool.h"
#include "client_rotation.h"
#include "proto/model.h"
#include "quire.h"
#include "transport.h"

struct quire_op;

struct quire_client {
    struct quire_client_options options; /* const */
    char target[256];                    /* const */
    struct qr_transport *transport;      /* const */
    uint64_t message_bytes_max;          /* const after open: the server's limit */
    uint64_t local_tried_ns;             /* guarded by lock: last try of the same-host path */
    char local_why[256];                 /* guarded by lock: why it is not used; "": it is */
    struct qr_pool *buffers;             /* const */
    struct qr_rotations *rotations;      /* const */
    struct qr_helper *helper;            /* const; may be NULL */
    atomic_uint_fast64_t sessions;       /* atomic: opened so far, to number them */
    pthread_mutex_t lock;
    struct quire_op *free_ops; /* guarded by lock */
};

struct quire_session {
    struct quire_client *client; /* const */
    char name[QR_NAME_MAX + 1];  /* const */
    uint64_t handle, epoch;      /* const: the server's; epoch 0 = a reader */
    bool joined;                 /* const: the lease is another handle's to give back */
    uint32_t head_shards, shard; /* const */
    uint64_t serial;             /* const: unlike that of any other session of the client */
    uint32_t lease_ms;           /* const */
    uint64_t part_bytes;         /* const: largest message of an append, or part of a fetch */
    struct qr_policy policy;     /* const */
    struct qr_model model;       /* const, sealed */
};

#endif
