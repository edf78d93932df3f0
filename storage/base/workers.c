/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs stand in a list, each on its caller's stack; a worker takes the next unit of the first
 * job under the lock and runs it without. A job leaves the list when its last unit is taken and
 * wakes its caller when its last unit is done.
 */
#include "workers.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct job {
    struct job *next;      /* guarded by lock, as are all fields below */
    size_t taken, left;    /* next unit; units not done yet */
    const size_t units;    /* const */
    qr_workers_unit *unit; /* const */
    void *arg;             /* const */
    pthread_cond_t done;
};

struct worker {
    struct qr_workers *workers;
    uint32_t number;
    pthread_t thread;
};

struct qr_workers {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct job *first, **last; /* guarded by lock */
    bool stop;                 /* guarded by lock */
    uint32_t count;            /* const after start */
    struct worker workers[];
};

static struct job *take_unit(struct qr_workers *w, size_t *unit_out)
{
    while (!w->first && !w->stop)
        pthread_cond_wait(&w->work, &w->lock);
    struct job *job = w->first;
    if (!job)
        return NULL;
    *unit_out = job->taken++;
    if (job->taken == job->units) {
        w->first = job->next;
        if (!w->first)
            w->last = &w->first;
    }
    return job;
}

static void *worker_main(void *arg)
{
    const struct worker *self = arg;
    struct qr_workers *w = self->workers;
    struct job *job;
    size_t unit;

    pthread_mutex_lock(&w->lock);
    while ((job = take_unit(w, &unit)) != NULL) {
        pthread_mutex_unlock(&w->lock);
        job->unit(job->arg, unit, self->number);
        pthread_mutex_lock(&w->lock);
        if (--job->left == 0)
            pthread_cond_signal(&job->done);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

quire_status qr_workers_create(uint32_t threads, struct qr_workers **out, struct qr_error *e)
{
    if (threads < 1 || threads > QR_WORKERS_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "%u worker threads: need 1 to %d", threads,
                            QR_WORKERS_MAX);
    struct qr_workers *w = calloc(1, sizeof(*w) + threads * sizeof(w->workers[0]));
    if (!w)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for %u workers", threads);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    w->last = &w->first;
    for (uint32_t i = 0; i < threads; i++) {
        struct worker *self = &w->workers[i];
        self->workers = w;
        self->number = i;
        if (pthread_create(&self->thread, NULL, worker_main, self) != 0) {
            qr_workers_destroy(&w);
            return qr_error_set(e, QUIRE_ENOMEM, "cannot start worker thread %u of %u", i + 1,
                                threads);
        }
        w->count++;
    }
    *out = w;
    return QUIRE_OK;
}

void qr_workers_destroy(struct qr_workers **workers)
{
    struct qr_workers *w = *workers;

    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    assert(!w->first);
    w->stop = true;
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < w->count; i++)
        pthread_join(w->workers[i].thread, NULL);
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
    free(w);
    *workers = NULL;
}

uint32_t qr_workers_count(const struct qr_workers *workers)
{
    return workers->count;
}

void qr_workers_run(struct qr_workers *workers, size_t units, qr_workers_unit *unit, void *arg)
{
    struct job job = {.units = units, .left = units, .unit = unit, .arg = arg};

    if (units == 0)
        return;
    pthread_cond_init(&job.done, NULL);
    pthread_mutex_lock(&workers->lock);
    *workers->last = &job;
    workers->last = &job.next;
    if (units == 1)
        pthread_cond_signal(&workers->work);
    else
        pthread_cond_broadcast(&workers->work);
    while (job.left > 0)
        pthread_cond_wait(&job.done, &workers->lock);
    pthread_mutex_unlock(&workers->lock);
    pthread_cond_destroy(&job.done);
}
