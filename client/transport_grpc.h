/* SPDX-License-Identifier: Apache-2.0
 *
 * What transport.c and transport_call.c share: the channel and its pool of calls.
 * Included by those two alone.
 */
#ifndef QR_TRANSPORT_GRPC_H
#define QR_TRANSPORT_GRPC_H

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdatomic.h>

#include "transport_impl.h"

struct qr_transport {
    grpc_channel *channel;          /* const after open */
    grpc_completion_queue *queue;   /* const after open */
    void *methods[QR_METHOD_COUNT]; /* const after open: registered calls */
    pthread_t threads[QR_TRANSPORT_THREADS_MAX];
    uint32_t thread_count;
    pthread_mutex_t lock;
    pthread_cond_t idle;             /* live became 0 */
    struct qr_grpc_call *free_calls; /* guarded by lock */
    struct qr_local *local;          /* const after open */
    size_t live;                     /* guarded by lock: calls handed out */
};

/** What a completion queue event carries: run(call, ok). Lives in its call. */
struct qr_tag {
    atomic_bool armed; /* a batch with this tag is under way; hands the call to the thread that
                          gets its event, in a way that tools which cannot see into gRPC see */
    void (*run)(struct qr_grpc_call *call, bool ok);
    struct qr_grpc_call *call;
};

/** A call; its life: transport_call.c. */
struct qr_grpc_call {
    struct qr_call base;                 /* first member */
    struct qr_transport *transport;      /* const */
    struct qr_grpc_call *next_free;      /* guarded by transport->lock */
    const struct qr_call_events *events; /* const */
    void *context;                       /* const */
    bool ordered, wait_for_ready;        /* const */
    pthread_mutex_t lock;
    grpc_call *grpc;       /* const until pending is 0 */
    unsigned pending, due; /* guarded by lock */
    bool over;             /* guarded by lock: no batch may start any more */
    unsigned refs;         /* guarded by lock: handles, and the call until done */
    grpc_byte_buffer *received, *sending; /* owner: the batch under way */
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice details;
    struct qr_tag unary, sent, closed, arrived, ended;
};

/** A call through gRPC, as qr_call_new describes it. */
struct qr_call *qr_grpc_call_new(struct qr_transport *transport,
                                 const struct qr_call_options *options,
                                 const struct qr_call_events *events, void *context);
/** Free the memory of every pooled call; none may be live. */
void qr_call_pool_drain(struct qr_transport *transport);

#endif
