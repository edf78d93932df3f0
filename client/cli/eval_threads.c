/* SPDX-License-Identifier: Apache-2.0
 *
 * See eval_threads.h. Threads live for one loop: loops here are long.
 */
#include "eval_threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

struct loop {
    size_t units;
    qr_eval_unit *unit;
    void *arg;
    atomic_size_t next; /* atomic: the first unit that nobody has taken */
};

struct worker {
    pthread_t thread;
    struct loop *loop;
    uint32_t number;
};

static void *work(void *arg)
{
    const struct worker *w = arg;
    struct loop *loop = w->loop;
    for (;;) {
        const size_t unit = atomic_fetch_add(&loop->next, 1);
        if (unit >= loop->units)
            return NULL;
        loop->unit(loop->arg, unit, w->number);
    }
}

uint32_t qr_eval_threads(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return 1;
    const uint32_t count = (uint32_t)CPU_COUNT(&set);
    return count < QR_EVAL_THREADS_MAX ? count : QR_EVAL_THREADS_MAX;
}

void qr_eval_parallel(uint32_t threads, size_t units, qr_eval_unit *unit, void *arg)
{
    struct worker workers[QR_EVAL_THREADS_MAX];
    struct loop loop = {units, unit, arg, 0};
    uint32_t started = 1;
    workers[0] = (struct worker){.loop = &loop};
    for (; started < threads && started < units; started++) {
        workers[started] = (struct worker){.loop = &loop, .number = started};
        if (pthread_create(&workers[started].thread, NULL, work, &workers[started]) != 0)
            break;
    }
    work(&workers[0]);
    for (uint32_t i = 1; i < started; i++)
        pthread_join(workers[i].thread, NULL);
}
