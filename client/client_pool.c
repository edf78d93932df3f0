/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool of buffers: a short list searched for the first that fits. Sizes come
 * in powers of two, so that one session's pages do not crowd out another's.
 */
#include "client_pool.h"

#include <pthread.h>
#include <stdlib.h>

#define CAPACITY_MIN 4096

struct qr_pool {
    pthread_mutex_t lock;
    struct qr_buffer *idle;             /* guarded by lock; most recent first */
    size_t idle_count, idle_bytes, out; /* guarded by lock; out: buffers taken */
    bool closed;                        /* guarded by lock */
};

struct qr_pool *qr_pool_create(void)
{
    struct qr_pool *pool = calloc(1, sizeof(*pool));

    if (pool)
        pthread_mutex_init(&pool->lock, NULL);
    return pool;
}

static void buffer_free(struct qr_buffer *buffer)
{
    free(buffer->data);
    free(buffer);
}

static void pool_free(struct qr_pool *pool)
{
    while (pool->idle) {
        struct qr_buffer *buffer = pool->idle;
        pool->idle = buffer->next;
        buffer_free(buffer);
    }
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void qr_pool_close(struct qr_pool **pool)
{
    if (!*pool)
        return;
    pthread_mutex_lock(&(*pool)->lock);
    (*pool)->closed = true;
    const bool last = (*pool)->out == 0;
    pthread_mutex_unlock(&(*pool)->lock);
    if (last)
        pool_free(*pool);
    *pool = NULL;
}

static struct qr_buffer *take_idle(struct qr_pool *pool, size_t capacity)
{
    pthread_mutex_lock(&pool->lock);
    struct qr_buffer **at = &pool->idle;
    while (*at && (*at)->capacity != capacity)
        at = &(*at)->next;
    struct qr_buffer *found = *at;
    if (found) {
        *at = found->next;
        pool->idle_count--;
        pool->idle_bytes -= found->capacity;
    }
    pool->out++;
    pthread_mutex_unlock(&pool->lock);
    return found;
}

static struct qr_buffer *buffer_make(struct qr_pool *pool, size_t capacity)
{
    struct qr_buffer *buffer = calloc(1, sizeof(*buffer));

    if (!buffer)
        return NULL;
    buffer->data = aligned_alloc(64, capacity);
    if (!buffer->data) {
        free(buffer);
        return NULL;
    }
    buffer->capacity = capacity;
    buffer->pool = pool;
    return buffer;
}

/* One buffer fewer is out; keep it when there is room. */
static void taken_back(struct qr_pool *pool, struct qr_buffer *buffer)
{
    pthread_mutex_lock(&pool->lock);
    pool->out--;
    const bool over = pool->closed && pool->out == 0;
    const bool keep = buffer && !pool->closed && pool->idle_count < QR_POOL_KEEP &&
                      pool->idle_bytes + buffer->capacity <= QR_POOL_KEEP_BYTES;
    if (keep) {
        buffer->next = pool->idle;
        pool->idle = buffer;
        pool->idle_count++;
        pool->idle_bytes += buffer->capacity;
    }
    pthread_mutex_unlock(&pool->lock);
    if (buffer && !keep)
        buffer_free(buffer);
    if (over)
        pool_free(pool);
}

struct qr_buffer *qr_pool_take(struct qr_pool *pool, size_t bytes)
{
    size_t capacity = CAPACITY_MIN;
    while (capacity < bytes) {
        if (capacity > SIZE_MAX / 2)
            return NULL;
        capacity *= 2;
    }

    struct qr_buffer *buffer = take_idle(pool, capacity);
    if (!buffer)
        buffer = buffer_make(pool, capacity);
    if (!buffer) {
        taken_back(pool, NULL);
        return NULL;
    }
    buffer->bytes = 0;
    buffer->next = NULL;
    return buffer;
}

void qr_pool_put(struct qr_buffer *buffer)
{
    if (buffer)
        taken_back(buffer->pool, buffer);
}

void qr_buffer_lend(struct qr_buffer *buffer, unsigned times)
{
    atomic_store(&buffer->lent, times);
}

void qr_buffer_release(void *buffer)
{
    struct qr_buffer *b = buffer;

    if (atomic_fetch_sub(&b->lent, 1) == 1)
        qr_pool_put(b);
}
