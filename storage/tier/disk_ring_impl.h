/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ring's scheduler (disk_ring.c) and its two engines share; nobody
 * else. An engine asks for the next operation, runs it, and says how it ended.
 */
#ifndef QR_DISK_RING_IMPL_H
#define QR_DISK_RING_IMPL_H

#include <pthread.h>

#include "disk_ring.h"

/** BUSY: an engine thread copies its bytes or asks the gate; nobody else may touch it. */
enum qr_ring_state {
    QR_RING_FREE,
    QR_RING_QUEUED,
    QR_RING_BUSY,
    QR_RING_PARKED,
    QR_RING_FLYING
};

struct qr_ring_request {
    struct qr_ring_op op;
    struct qr_ring_request *next, *previous; /* in its queue, or among the free ones */
    enum qr_ring_state state;                /* guarded by lock, like all below */
    bool answered; /* done has fired: a deadline or a cancel came first */
    uint32_t generation, retries;
    size_t moved;    /* bytes of op.bytes that are through */
    size_t asked;    /* bytes to move next, whole blocks */
    size_t issued;   /* of them, what the gate let through */
    bool bounced;    /* through a buffer of the ring */
    uint32_t buffer; /* which one, when bounced and started */
    void *address;   /* of the bytes on their way */
};

struct qr_ring_list {
    struct qr_ring_request *first, *last;
};

struct qr_ring;
struct qr_ring_engine {
    const char *name;
    /** Start threads; -errno when this engine cannot run here. */
    int (*start)(struct qr_ring *ring);
    void (*wake)(struct qr_ring *ring);
    /** Called with ring->stopping set: end the threads once nothing is left. */
    void (*stop)(struct qr_ring *ring);
};

struct qr_ring {
    struct qr_ring_config config; /* const, sizes filled in */
    const struct qr_ring_engine *engine;
    void *engine_state; /* owner: engine */
    uint8_t *buffers;   /* const: [depth][buffer_bytes], block aligned */
    uint32_t buffers_registered;

    pthread_mutex_t lock;
    pthread_cond_t room;              /* queue_max is no longer reached */
    bool stopping;                    /* guarded by lock, like all below */
    struct qr_ring_request *requests; /* [request_count] */
    uint32_t request_count;           /* const: queue_max, and some for syncs */
    struct qr_ring_list free, queues[QR_RING_CLASSES], flying;
    struct qr_ring_list parked, waking; /* the gate holds them; to ask it again */
    uint32_t *free_buffers, free_buffer_count;
    uint32_t accepted_of[QR_RING_FILES_MAX]; /* accepted, by file */
    uint32_t flying_of[QR_RING_FILES_MAX];
    uint32_t flying_class[QR_RING_CLASSES];
    uint32_t starts; /* for fairness */
    struct qr_ring_stat stat;
};

/** Next operation to start, ready: address, issued, buffer. NULL: nothing may start now. */
struct qr_ring_request *qr_ring_next(struct qr_ring *ring);
/** It ended with `result` (bytes or -errno). Any engine thread. */
void qr_ring_landed(struct qr_ring *ring, struct qr_ring_request *request, ssize_t result);
/** Answer what is past its deadline; when to call again, UINT64_MAX for no need. */
uint64_t qr_ring_expire(struct qr_ring *ring, uint64_t now_ns);
/** Like qr_ring_submit, waiting while the queue is full. */
void qr_ring_submit_waiting(struct qr_ring *ring, const struct qr_ring_op *op);
/** True when stopping and nothing is accepted. */
bool qr_ring_drained(struct qr_ring *ring);

static inline int qr_ring_fd(const struct qr_ring *ring, const struct qr_ring_request *request)
{
    return ring->config.files[request->op.file];
}

static inline uint64_t qr_ring_offset(const struct qr_ring_request *request)
{
    return request->op.offset + request->moved;
}

extern const struct qr_ring_engine qr_ring_uring, qr_ring_threads;

#endif
