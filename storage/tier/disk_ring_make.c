/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes and ends a ring: limits filled in, buffers, the choice of an engine, and
 * the call that waits. Must not know how an engine works.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "disk_ring_impl.h"
#include "storage/base/log.h"

#define DEPTH_OF_FILE 16u
#define QUEUE_MAX 1024u
#define SYNCS_OF_FILE 4u /* accepted however full the queue is */
#define BUFFER_BYTES (512u << 10)

static quire_status fill_in(struct qr_ring_config *config, struct qr_error *e)
{
    if (config->file_count == 0 || config->file_count > QR_RING_FILES_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "a ring of %u files: 1 to %u", config->file_count,
                            QR_RING_FILES_MAX);
    if (config->depth == 0)
        config->depth = DEPTH_OF_FILE * config->file_count;
    if (config->queue_max == 0)
        config->queue_max = QUEUE_MAX;
    if (config->buffer_bytes == 0)
        config->buffer_bytes = BUFFER_BYTES;
    if (config->depth < config->file_count || config->depth > QR_RING_DEPTH_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "ring depth %u: %u (one a device) to %u",
                            config->depth, config->file_count, QR_RING_DEPTH_MAX);
    if (config->queue_max < config->file_count)
        return qr_error_set(e, QUIRE_EINVAL, "ring queue of %u: at least one a device (%u)",
                            config->queue_max, config->file_count);
    if (config->buffer_bytes % QR_DISK_BLOCK != 0)
        return qr_error_set(e, QUIRE_EINVAL, "ring buffers of %u bytes: a multiple of %u",
                            config->buffer_bytes, QR_DISK_BLOCK);
    return QUIRE_OK;
}

static void ring_free(struct qr_ring *ring)
{
    pthread_cond_destroy(&ring->room);
    pthread_mutex_destroy(&ring->lock);
    free(ring->requests);
    free(ring->free_buffers);
    free(ring->buffers);
    free(ring);
}

static struct qr_ring *ring_alloc(const struct qr_ring_config *config)
{
    struct qr_ring *ring = calloc(1, sizeof(*ring));

    if (!ring)
        return NULL;
    ring->config = *config;
    pthread_mutex_init(&ring->lock, NULL);
    pthread_cond_init(&ring->room, NULL);
    ring->request_count = config->queue_max + SYNCS_OF_FILE * config->file_count;
    ring->requests = calloc(ring->request_count, sizeof(*ring->requests));
    ring->free_buffers = calloc(config->depth, sizeof(*ring->free_buffers));
    ring->buffers = aligned_alloc(QR_DISK_BLOCK, (size_t)config->depth * config->buffer_bytes);
    if (!ring->requests || !ring->free_buffers || !ring->buffers) {
        ring_free(ring);
        return NULL;
    }
    for (uint32_t i = ring->request_count; i-- > 0;) {
        ring->requests[i].next = ring->free.first;
        if (ring->free.first)
            ring->free.first->previous = &ring->requests[i];
        else
            ring->free.last = &ring->requests[i];
        ring->free.first = &ring->requests[i];
    }
    for (uint32_t i = config->depth; i-- > 0;)
        ring->free_buffers[ring->free_buffer_count++] = i;
    return ring;
}

/* io_uring where it is allowed, else threads. */
static int start_engine(struct qr_ring *ring)
{
    int refused = 0;

    if (!ring->config.no_uring) {
        ring->engine = &qr_ring_uring;
        refused = ring->engine->start(ring);
        if (refused == 0) {
            QR_LOG(QR_LOG_INFO, "disk.ring_started", QR_LOG_STR("engine", ring->engine->name),
                   QR_LOG_U64("depth", ring->config.depth),
                   QR_LOG_U64("buffers_registered", ring->buffers_registered));
            return 0;
        }
    }
    ring->engine = &qr_ring_threads;
    QR_LOG(ring->config.no_uring ? QR_LOG_INFO : QR_LOG_WARN, "disk.ring_started",
           QR_LOG_STR("engine", ring->engine->name),
           QR_LOG_STR("why", ring->config.no_uring ? "as configured" : strerror(-refused)),
           QR_LOG_U64("depth", ring->config.depth));
    return ring->engine->start(ring);
}

quire_status qr_ring_create(const struct qr_ring_config *config, struct qr_ring **out,
                            struct qr_error *e)
{
    struct qr_ring_config filled = *config;
    const quire_status status = fill_in(&filled, e);

    if (status != QUIRE_OK)
        return status;
    struct qr_ring *ring = ring_alloc(&filled);
    if (!ring)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for a ring of %u buffers of %u bytes",
                            filled.depth, filled.buffer_bytes);
    const int error = start_engine(ring);
    if (error != 0) {
        ring_free(ring);
        return qr_error_set(e, QUIRE_ENOMEM, "cannot start the threads of the ring: %s",
                            strerror(-error));
    }
    *out = ring;
    return QUIRE_OK;
}

void qr_ring_destroy(struct qr_ring **ring)
{
    if (!*ring)
        return;
    pthread_mutex_lock(&(*ring)->lock);
    (*ring)->stopping = true;
    pthread_mutex_unlock(&(*ring)->lock);
    (*ring)->engine->stop(*ring);
    ring_free(*ring);
    *ring = NULL;
}

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t all_done;
    size_t left;         /* guarded by lock */
    quire_status status; /* guarded by lock: the first failure */
};

static void waiter_done(void *arg, quire_status status)
{
    struct waiter *w = arg;

    pthread_mutex_lock(&w->lock);
    if (w->status == QUIRE_OK)
        w->status = status;
    if (--w->left == 0)
        pthread_cond_signal(&w->all_done);
    pthread_mutex_unlock(&w->lock);
}

quire_status qr_ring_run(struct qr_ring *ring, const struct qr_ring_op *ops, size_t count)
{
    struct waiter w = {.left = count};

    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.all_done, NULL);
    for (size_t i = 0; i < count; i++) {
        struct qr_ring_op op = ops[i];
        op.done = waiter_done;
        op.landed = NULL;
        op.arg = &w;
        op.more = i + 1 < count;
        qr_ring_submit_waiting(ring, &op);
    }
    pthread_mutex_lock(&w.lock);
    while (w.left > 0)
        pthread_cond_wait(&w.all_done, &w.lock);
    pthread_mutex_unlock(&w.lock);
    pthread_cond_destroy(&w.all_done);
    pthread_mutex_destroy(&w.lock);
    return w.status;
}
