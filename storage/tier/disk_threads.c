/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring's engine without io_uring: a few threads, each running one operation
 * at a time with pread, pwrite or fdatasync. Used where the kernel or a
 * container's profile refuses io_uring.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "disk_ring_impl.h"
#include "storage/base/clock.h"

#define THREADS_OF_FILE 4u

struct threads {
    pthread_mutex_t lock;
    pthread_cond_t work;
    uint64_t wakes; /* guarded by lock */
    uint32_t count, depth_before;
    pthread_t ids[];
};

static ssize_t run(struct qr_ring *ring, struct qr_ring_request *r)
{
    struct qr_disk_io *io = ring->config.io;
    const int fd = qr_ring_fd(ring, r);

    switch (r->op.op) {
    case QR_DISK_READ:
        return io->read(io, fd, r->address, r->issued, qr_ring_offset(r));
    case QR_DISK_WRITE:
        return io->write(io, fd, r->address, r->issued, qr_ring_offset(r));
    default:
        return io->sync(io, fd);
    }
}

static void sleep_until(struct threads *t, uint64_t seen, uint64_t until_ns)
{
    const struct timespec at = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                .tv_nsec = (long)(until_ns % 1000000000u)};

    pthread_mutex_lock(&t->lock);
    while (t->wakes == seen) {
        if (until_ns == UINT64_MAX)
            pthread_cond_wait(&t->work, &t->lock);
        else if (pthread_cond_timedwait(&t->work, &t->lock, &at) == ETIMEDOUT)
            break;
    }
    pthread_mutex_unlock(&t->lock);
}

static void threads_wake(struct qr_ring *ring)
{
    struct threads *t = ring->engine_state;

    pthread_mutex_lock(&t->lock);
    t->wakes++;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
}

static void *threads_main(void *arg)
{
    struct qr_ring *ring = arg;
    struct threads *t = ring->engine_state;

    while (!qr_ring_drained(ring)) {
        pthread_mutex_lock(&t->lock);
        const uint64_t seen = t->wakes;
        pthread_mutex_unlock(&t->lock);
        const uint64_t until_ns = qr_ring_expire(ring, qr_clock_ns());
        struct qr_ring_request *r = qr_ring_next(ring);
        if (!r) {
            if (!qr_ring_drained(ring))
                sleep_until(t, seen, until_ns);
            continue;
        }
        qr_ring_landed(ring, r, run(ring, r));
        threads_wake(ring); /* a file or class may have room again */
    }
    return NULL;
}

static void threads_stop(struct qr_ring *ring)
{
    struct threads *t = ring->engine_state;

    threads_wake(ring);
    for (uint32_t i = 0; i < t->count; i++)
        (void)pthread_join(t->ids[i], NULL);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->lock);
    free(t);
    ring->engine_state = NULL;
}

/* One thread more than operations may run: with a device that hangs, one is left to see to
 * deadlines. */
static int threads_start(struct qr_ring *ring)
{
    const uint32_t most = THREADS_OF_FILE * ring->config.file_count;
    if (ring->config.depth > most)
        ring->config.depth = most;
    const uint32_t wanted = ring->config.depth + 1;
    struct threads *t = calloc(1, sizeof(*t) + wanted * sizeof(t->ids[0]));
    pthread_condattr_t monotonic;

    if (!t)
        return -ENOMEM;
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->work, &monotonic);
    pthread_condattr_destroy(&monotonic);
    ring->engine_state = t;
    for (; t->count < wanted; t->count++) {
        const int error = pthread_create(&t->ids[t->count], NULL, threads_main, ring);
        if (error != 0) {
            ring->stopping = true;
            threads_stop(ring);
            return -error;
        }
    }
    return 0;
}

const struct qr_ring_engine qr_ring_threads = {
    .name = "threads", .start = threads_start, .wake = threads_wake, .stop = threads_stop};
