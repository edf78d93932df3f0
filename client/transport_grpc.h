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

#include "transport.h"

struct qr_transport {
    grpc_channel *channel;          /* const after open */
    grpc_completion_queue *queue;   /* const after open */
    void *methods[QR_METHOD_COUNT]; /* const after open: registered calls */
    pthread_t threads[QR_TRANSPORT_THREADS_MAX];
    uint32_t thread_count;
    pthread_mutex_t lock;
    pthread_cond_t idle;        /* live became 0 */
    struct qr_call *free_calls; /* guarded by lock */
    size_t live;                /* guarded by lock: calls handed out */
};

/** What a completion queue event carries: run(call, ok). Lives in its call. */
struct qr_tag {
    atomic_bool armed; /* a batch with this tag is under way; hands the call to the thread that
                          gets its event, in a way that tools which cannot see into gRPC see */
    void (*run)(struct qr_call *call, bool ok);
    struct qr_call *call;
};

/** Free the memory of every pooled call; none may be live. */
void qr_call_pool_drain(struct qr_transport *transport);

#endif
