/* SPDX-License-Identifier: Apache-2.0
 *
 * The helping thread. A run lies on its caller's stack; it is offered by `run`, and
 * the caller does not return before the helper has let go of it.
 */
#include "client_helper.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

struct run {
    qr_helper_unit *unit; /* const, as are the next two */
    void *arg;
    uint32_t units;
    atomic_uint next; /* atomic: units before it were taken */
};

struct qr_helper {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t offered, left;
    struct run *run; /* guarded by lock; NULL: none is offered or helped with */
    bool inside;     /* guarded by lock: the helper is at `run` */
    bool closing;    /* guarded by lock */
};

static void work(struct run *run)
{
    uint32_t unit;

    while ((unit = atomic_fetch_add(&run->next, 1)) < run->units)
        run->unit(run->arg, unit);
}

static void *help(void *arg)
{
    struct qr_helper *h = arg;

    pthread_mutex_lock(&h->lock);
    while (!h->closing) {
        if (!h->run) {
            pthread_cond_wait(&h->offered, &h->lock);
            continue;
        }
        struct run *run = h->run;
        h->inside = true;
        pthread_mutex_unlock(&h->lock);
        work(run);
        pthread_mutex_lock(&h->lock);
        h->inside = false;
        h->run = NULL;
        pthread_cond_broadcast(&h->left);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

struct qr_helper *qr_helper_create(void)
{
    struct qr_helper *h = calloc(1, sizeof(*h));

    if (!h)
        return NULL;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->offered, NULL);
    pthread_cond_init(&h->left, NULL);
    if (pthread_create(&h->thread, NULL, help, h) == 0)
        return h;
    pthread_cond_destroy(&h->left);
    pthread_cond_destroy(&h->offered);
    pthread_mutex_destroy(&h->lock);
    free(h);
    return NULL;
}

void qr_helper_destroy(struct qr_helper **helper)
{
    struct qr_helper *h = *helper;

    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    h->closing = true;
    pthread_cond_signal(&h->offered);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    pthread_cond_destroy(&h->left);
    pthread_cond_destroy(&h->offered);
    pthread_mutex_destroy(&h->lock);
    free(h);
    *helper = NULL;
}

static bool offer(struct qr_helper *h, struct run *run)
{
    if (!h || run->units < 2)
        return false;
    pthread_mutex_lock(&h->lock);
    const bool free_now = !h->run;
    if (free_now) {
        h->run = run;
        pthread_cond_signal(&h->offered);
    }
    pthread_mutex_unlock(&h->lock);
    return free_now;
}

/* Nothing is left to take: wait until the helper is out of it, if it ever came. */
static void withdraw(struct qr_helper *h, struct run *run)
{
    pthread_mutex_lock(&h->lock);
    while (h->run == run && h->inside)
        pthread_cond_wait(&h->left, &h->lock);
    if (h->run == run)
        h->run = NULL;
    pthread_mutex_unlock(&h->lock);
}

void qr_helper_run(struct qr_helper *helper, uint32_t units, qr_helper_unit *unit, void *arg)
{
    struct run run = {.unit = unit, .arg = arg, .units = units};
    const bool offered = offer(helper, &run);

    work(&run);
    if (offered)
        withdraw(helper, &run);
}
