/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring's scheduler: what is accepted, what starts next, and what a result
 * means. Knows neither io_uring nor threads; its engines do.
 *
 *   FREE -submit-> QUEUED -next-> BUSY -gate-> FLYING -landed-> BUSY -> FREE, or QUEUED again
 *                    |               \-> PARKED -expire-> BUSY    (short count, EAGAIN)
 *                    \-deadline, cancel-> FREE
 *
 * Invariants, under `lock`:
 *  1. a request that is not FREE counts in accepted_of of its file; one that is BUSY, PARKED or
 *     FLYING counts in flying_of and flying_class and, if bounced, owns one of the buffers;
 *  2. no more than depth / file_count of a file are flying, so a device that hangs leaves
 *     buffers and starts to the others; likewise for accepted_of and the queue, but that a few
 *     requests are kept for syncs;
 *  3. done fires once: when a request becomes FREE, or earlier, and then `answered` is set.
 */
#include "disk_ring_impl.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/base/clock.h"

#define RETRIES_MAX 1000u
#define FAIR_EVERY 8u
#define PARKED_TICK_NS UINT64_C(2000000)

static void list_push(struct qr_ring_list *list, struct qr_ring_request *r)
{
    r->next = NULL;
    r->previous = list->last;
    if (list->last)
        list->last->next = r;
    else
        list->first = r;
    list->last = r;
}

static void list_push_front(struct qr_ring_list *list, struct qr_ring_request *r)
{
    r->previous = NULL;
    r->next = list->first;
    if (list->first)
        list->first->previous = r;
    else
        list->last = r;
    list->first = r;
}

static void list_remove(struct qr_ring_list *list, struct qr_ring_request *r)
{
    if (r->previous)
        r->previous->next = r->next;
    else
        list->first = r->next;
    if (r->next)
        r->next->previous = r->previous;
    else
        list->last = r->previous;
}

static uint32_t share(const struct qr_ring *ring, uint32_t whole)
{
    const uint32_t part = whole / ring->config.file_count;
    return part > 0 ? part : 1;
}

/* Write-back and prefetch never fill the devices' queues. */
static uint32_t class_depth(const struct qr_ring *ring, enum qr_ring_class urgency)
{
    const uint32_t depth = ring->config.depth;

    if (urgency == QR_RING_WRITE_BACK)
        return depth / 2 + 1;
    return urgency == QR_RING_PREFETCH ? depth / 4 + 1 : depth;
}

/* ---- accept ----------------------------------------------------------------------------- */

static bool in_place(const struct qr_ring_op *op)
{
    return op->deadline_ns == 0 && (uintptr_t)op->buffer % QR_DISK_BLOCK == 0 &&
           op->capacity >= qr_disk_round_up(op->bytes);
}

static quire_status accept_locked(struct qr_ring *ring, const struct qr_ring_op *op,
                                  uint64_t *ticket_out)
{
    struct qr_ring_request *r = ring->free.first;

    const bool full = ring->accepted_of[op->file] >= share(ring, ring->config.queue_max);

    if (!r || (full && op->op != QR_DISK_SYNC)) {
        ring->stat.refused++;
        return QUIRE_EAGAIN;
    }
    list_remove(&ring->free, r);
    const uint32_t generation = r->generation;
    *r = (struct qr_ring_request){.op = *op, .state = QR_RING_QUEUED, .generation = generation};
    r->bounced = op->op != QR_DISK_SYNC && !in_place(op);
    ring->stat.bounced += r->bounced;
    ring->accepted_of[op->file]++;
    ring->stat.queued++;
    list_push(&ring->queues[op->urgency], r);
    if (ticket_out)
        *ticket_out = (uint64_t)generation << 32 | (uint64_t)(r - ring->requests);
    return QUIRE_OK;
}

quire_status qr_ring_submit(struct qr_ring *ring, const struct qr_ring_op *op,
                            uint64_t *ticket_out)
{
    assert(op->file < ring->config.file_count && op->urgency < QR_RING_CLASSES && op->done);
    assert(op->offset % QR_DISK_BLOCK == 0);
    assert(op->op == QR_DISK_SYNC || (op->bytes > 0 && op->buffer));

    pthread_mutex_lock(&ring->lock);
    assert(!ring->stopping);
    const quire_status status = accept_locked(ring, op, ticket_out);
    pthread_mutex_unlock(&ring->lock);
    /* Refused: those before it may have counted on its wake. */
    if (status != QUIRE_OK || !op->more)
        ring->engine->wake(ring);
    return status;
}

/* ---- start ------------------------------------------------------------------------------ */

static bool may_start(const struct qr_ring *ring, const struct qr_ring_request *r)
{
    return ring->stat.flying < ring->config.depth &&
           ring->flying_of[r->op.file] < share(ring, ring->config.depth) &&
           ring->flying_class[r->op.urgency] < class_depth(ring, r->op.urgency);
}

static struct qr_ring_request *pick_locked(struct qr_ring *ring)
{
    const bool least_first = ring->starts % FAIR_EVERY == FAIR_EVERY - 1;

    if (ring->waking.first)
        return ring->waking.first;
    for (uint32_t i = 0; i < QR_RING_CLASSES; i++) {
        const uint32_t c = least_first ? QR_RING_CLASSES - 1 - i : i;
        for (struct qr_ring_request *r = ring->queues[c].first; r; r = r->next) {
            if (may_start(ring, r))
                return r;
        }
    }
    return NULL;
}

/* Take it off its list and give it what it needs; a woken one has all that. */
static void begin_locked(struct qr_ring *ring, struct qr_ring_request *r)
{
    if (r->state == QR_RING_PARKED) {
        list_remove(&ring->waking, r);
        r->state = QR_RING_BUSY;
        return;
    }
    list_remove(&ring->queues[r->op.urgency], r);
    ring->starts++;
    ring->stat.queued--;
    ring->stat.flying++;
    ring->flying_of[r->op.file]++;
    ring->flying_class[r->op.urgency]++;
    if (r->bounced) {
        assert(ring->free_buffer_count > 0);
        r->buffer = ring->free_buffers[--ring->free_buffer_count];
    }
    r->state = QR_RING_BUSY;
}

/* BUSY, no lock: nobody else touches it. */
static void prepare(struct qr_ring *ring, struct qr_ring_request *r)
{
    const size_t rest = r->op.bytes - r->moved;

    if (r->op.op == QR_DISK_SYNC)
        return;
    if (!r->bounced) {
        r->address = (uint8_t *)r->op.buffer + r->moved;
        r->asked = r->issued = (size_t)qr_disk_round_up(rest);
        return;
    }
    const size_t most = ring->config.buffer_bytes;
    const size_t bytes = rest < most ? rest : most;
    r->asked = r->issued = (size_t)qr_disk_round_up(bytes);
    r->address = ring->buffers + (size_t)r->buffer * most;
    if (r->op.op == QR_DISK_WRITE && !r->answered) {
        memcpy(r->address, (const uint8_t *)r->op.buffer + r->moved, bytes);
        memset((uint8_t *)r->address + bytes, 0, r->issued - bytes);
    }
}

/* Ask the gate of the tests: true when the engine is to run it. */
static bool pass_gate(struct qr_ring *ring, struct qr_ring_request *r)
{
    struct qr_disk_io *io = ring->config.io;
    ssize_t said = (ssize_t)r->issued;

    if (io->gate)
        said = io->gate(io, r->op.op, qr_ring_fd(ring, r), r->issued);
    if (said < 0 && said != QR_DISK_GATE_HANG) {
        qr_ring_landed(ring, r, said);
        return false;
    }
    pthread_mutex_lock(&ring->lock);
    if (said == QR_DISK_GATE_HANG) {
        r->state = QR_RING_PARKED;
        list_push(&ring->parked, r);
    } else {
        r->issued = (size_t)said;
        r->state = QR_RING_FLYING;
        list_push(&ring->flying, r);
    }
    pthread_mutex_unlock(&ring->lock);
    return said != QR_DISK_GATE_HANG;
}

struct qr_ring_request *qr_ring_next(struct qr_ring *ring)
{
    for (;;) {
        pthread_mutex_lock(&ring->lock);
        struct qr_ring_request *r = pick_locked(ring);
        const bool woken = r && r->state == QR_RING_PARKED;
        if (r)
            begin_locked(ring, r);
        pthread_mutex_unlock(&ring->lock);
        if (!r)
            return NULL;
        if (!woken)
            prepare(ring, r);
        if (pass_gate(ring, r))
            return r;
    }
}

/* ---- end -------------------------------------------------------------------------------- */

static void leave_flight_locked(struct qr_ring *ring, struct qr_ring_request *r)
{
    ring->stat.flying--;
    ring->flying_of[r->op.file]--;
    ring->flying_class[r->op.urgency]--;
    if (r->bounced)
        ring->free_buffers[ring->free_buffer_count++] = r->buffer;
}

static void free_locked(struct qr_ring *ring, struct qr_ring_request *r)
{
    ring->accepted_of[r->op.file]--;
    ring->stat.abandoned -= r->answered;
    r->state = QR_RING_FREE;
    r->generation++;
    list_push(&ring->free, r);
    pthread_cond_broadcast(&ring->room);
}

static void count_locked(struct qr_ring *ring, const struct qr_ring_request *r,
                         quire_status status)
{
    ring->stat.failures += status != QUIRE_OK;
    if (status != QUIRE_OK)
        return;
    ring->stat.reads += r->op.op == QR_DISK_READ;
    ring->stat.writes += r->op.op == QR_DISK_WRITE;
    ring->stat.syncs += r->op.op == QR_DISK_SYNC;
    if (r->op.op == QR_DISK_READ)
        ring->stat.read_bytes += r->op.bytes;
    if (r->op.op == QR_DISK_WRITE)
        ring->stat.write_bytes += qr_disk_round_up(r->op.bytes);
}

/* Move on by what came; true when there is more to do. Bytes that end inside a block are asked
 * for again, since O_DIRECT goes by blocks. */
static bool advance(struct qr_ring_request *r, ssize_t result, int *error_out)
{
    const size_t rest = r->op.bytes - r->moved;
    size_t came = result > 0 ? (size_t)result : 0;

    *error_out = result < 0 ? (int)result : 0;
    if (result == -EAGAIN || result == -EINTR) {
        *error_out = ++r->retries > RETRIES_MAX ? -EIO : 0;
        return *error_out == 0;
    }
    if (result < 0 || r->op.op == QR_DISK_SYNC)
        return false;
    if (came < rest)
        came -= came % QR_DISK_BLOCK;
    else
        came = rest;
    if (came == 0 && ++r->retries > (result == 0 ? 1u : RETRIES_MAX))
        *error_out = -EIO; /* the file ends before the slot does */
    if (*error_out)
        return false;
    if (came > 0 && r->op.op == QR_DISK_READ && r->bounced && !r->answered)
        memcpy((uint8_t *)r->op.buffer + r->moved, r->address, came);
    r->moved += came;
    return r->moved < r->op.bytes;
}

void qr_ring_landed(struct qr_ring *ring, struct qr_ring_request *r, ssize_t result)
{
    const size_t asked = r->asked;
    int error = 0;

    pthread_mutex_lock(&ring->lock);
    if (r->state == QR_RING_FLYING)
        list_remove(&ring->flying, r);
    r->state = QR_RING_BUSY;
    pthread_mutex_unlock(&ring->lock);
    const bool more = advance(r, result, &error) && !r->answered;

    pthread_mutex_lock(&ring->lock);
    leave_flight_locked(ring, r);
    if (more) {
        ring->stat.retried += result == -EAGAIN || result == -EINTR;
        ring->stat.shortened += result >= 0 && (size_t)result < asked;
        r->state = QR_RING_QUEUED;
        ring->stat.queued++;
        list_push_front(&ring->queues[r->op.urgency], r);
        pthread_mutex_unlock(&ring->lock);
        return;
    }
    const quire_status status = qr_disk_status(error);
    const struct qr_ring_op op = r->op;
    const bool answered = r->answered;
    count_locked(ring, r, status);
    free_locked(ring, r);
    pthread_mutex_unlock(&ring->lock);
    if (status == QUIRE_EIO && op.op == QR_DISK_WRITE && ring->config.write_failed)
        ring->config.write_failed(ring->config.arg, op.file);
    if (!answered)
        op.done(op.arg, status);
    else if (op.landed)
        op.landed(op.arg);
}

/* ---- deadlines and cancel --------------------------------------------------------------- */

/* What to answer, taken under the lock and answered without it. */
struct answer {
    qr_ring_done *done;
    void (*landed)(void *arg);
    void *arg;
};

/* Answer early when the caller's buffer is not in use; true when `out` is to be fired. */
static bool give_up_locked(struct qr_ring *ring, struct qr_ring_request *r, struct answer *out)
{
    if (r->answered || r->state == QR_RING_FREE || r->state == QR_RING_BUSY)
        return false;
    *out = (struct answer){.done = r->op.done, .arg = r->op.arg};
    if (r->state == QR_RING_QUEUED) {
        out->landed = r->moved > 0 ? r->op.landed : NULL;
        list_remove(&ring->queues[r->op.urgency], r);
        ring->stat.queued--;
        free_locked(ring, r);
        return true;
    }
    if (!r->bounced && r->op.op != QR_DISK_SYNC)
        return false;
    r->answered = true;
    ring->stat.abandoned++;
    return true;
}

static void fire(const struct answer *answer, quire_status status)
{
    answer->done(answer->arg, status);
    if (answer->landed)
        answer->landed(answer->arg);
}

/* One expired request, or the time at which the next one expires. */
static bool expire_one(struct qr_ring *ring, uint64_t now_ns, struct answer *out,
                       uint64_t *next_ns)
{
    *next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < ring->request_count; i++) {
        struct qr_ring_request *r = &ring->requests[i];
        if (r->state == QR_RING_FREE || r->op.deadline_ns == 0 || r->answered)
            continue;
        if (r->op.deadline_ns <= now_ns && give_up_locked(ring, r, out)) {
            ring->stat.timeouts++;
            return true;
        }
        const uint64_t at =
            r->op.deadline_ns > now_ns ? r->op.deadline_ns : now_ns + PARKED_TICK_NS;
        *next_ns = at < *next_ns ? at : *next_ns;
    }
    return false;
}

uint64_t qr_ring_expire(struct qr_ring *ring, uint64_t now_ns)
{
    struct answer answer;
    uint64_t next_ns;

    pthread_mutex_lock(&ring->lock);
    while (expire_one(ring, now_ns, &answer, &next_ns)) {
        pthread_mutex_unlock(&ring->lock);
        fire(&answer, QUIRE_ETIMEOUT);
        pthread_mutex_lock(&ring->lock);
    }
    while (ring->parked.first) {
        struct qr_ring_request *r = ring->parked.first;
        list_remove(&ring->parked, r);
        list_push(&ring->waking, r);
    }
    if (ring->waking.first && now_ns + PARKED_TICK_NS < next_ns)
        next_ns = now_ns + PARKED_TICK_NS;
    pthread_mutex_unlock(&ring->lock);
    return next_ns;
}

bool qr_ring_cancel(struct qr_ring *ring, uint64_t ticket)
{
    const uint32_t number = (uint32_t)ticket;
    struct answer answer;
    bool given_up = false;

    assert(number < ring->request_count);
    struct qr_ring_request *r = &ring->requests[number];
    pthread_mutex_lock(&ring->lock);
    if (r->generation == (uint32_t)(ticket >> 32))
        given_up = give_up_locked(ring, r, &answer);
    pthread_mutex_unlock(&ring->lock);
    if (given_up)
        fire(&answer, QUIRE_ECANCELED);
    return given_up;
}

bool qr_ring_drained(struct qr_ring *ring)
{
    uint32_t accepted = 0;

    pthread_mutex_lock(&ring->lock);
    for (uint32_t f = 0; f < ring->config.file_count; f++)
        accepted += ring->accepted_of[f];
    const bool drained = ring->stopping && accepted == 0;
    pthread_mutex_unlock(&ring->lock);
    return drained;
}

void qr_ring_stat(struct qr_ring *ring, struct qr_ring_stat *out)
{
    pthread_mutex_lock(&ring->lock);
    *out = ring->stat;
    pthread_mutex_unlock(&ring->lock);
    out->engine = ring->engine->name;
    out->buffers_registered = ring->buffers_registered;
    out->depth = ring->config.depth;
}

/* Used by qr_ring_run, which waits for room where submit refuses. */
void qr_ring_submit_waiting(struct qr_ring *ring, const struct qr_ring_op *op)
{
    pthread_mutex_lock(&ring->lock);
    while (accept_locked(ring, op, NULL) != QUIRE_OK) {
        pthread_mutex_unlock(&ring->lock);
        ring->engine->wake(ring);
        pthread_mutex_lock(&ring->lock);
        if (accept_locked(ring, op, NULL) == QUIRE_OK)
            break;
        pthread_cond_wait(&ring->room, &ring->lock);
    }
    pthread_mutex_unlock(&ring->lock);
    if (!op->more)
        ring->engine->wake(ring);
}
