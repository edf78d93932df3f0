/* SPDX-License-Identifier: Apache-2.0
 *
 * The same-host connection and the threads that serve it. What happens within a call is
 * transport_local_call.c. Must not know any message.
 */
#include "transport_local.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SLEEP_NS 1000000000u /* the longest sleep: calls with a later deadline need no wake */
#define BELLS_READ 256

uint64_t qr_local_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- waking and sleeping ---------------------------------------------------------------- */

void qr_local_wake_server(struct qr_local *local)
{
    (void)!send(local->socket, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void qr_local_wake_leader(struct qr_local *local)
{
    const uint64_t one = 1;

    (void)!write(local->poke, &one, sizeof(one));
}

/* Hear bells; false: the server is gone. */
static bool hear(struct qr_local *local, const struct pollfd fds[2])
{
    uint8_t bells[BELLS_READ];
    uint64_t count;

    if (fds[1].revents)
        (void)!read(local->poke, &count, sizeof(count));
    if (!fds[0].revents)
        return true;
    const ssize_t n = recv(local->socket, bells, sizeof(bells), MSG_DONTWAIT);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

static int sleep_ms(struct qr_local *local)
{
    pthread_mutex_lock(&local->lock);
    const uint64_t now_ns = qr_local_now_ns(), deadline_ns = qr_local_next_deadline(local);
    local->sleep_until_ns = deadline_ns < now_ns + SLEEP_NS ? deadline_ns : now_ns + SLEEP_NS;
    const uint64_t left_ns =
        local->sleep_until_ns > now_ns ? local->sleep_until_ns - now_ns : 0;
    pthread_mutex_unlock(&local->lock);
    return (int)((left_ns + 999999u) / 1000000u);
}

/* Until there is a frame, room that somebody waits for, a deadline, or a poke. */
static void rest(struct qr_local *local)
{
    struct pollfd fds[2] = {{.fd = local->socket, .events = POLLIN},
                            {.fd = local->poke, .events = POLLIN}};
    const int timeout_ms = sleep_ms(local);

    qr_ring_reader_waits(&local->down);
    if (!qr_ring_has_data(&local->down) && !atomic_load(&local->attention) &&
        poll(fds, 2, timeout_ms) > 0 && !hear(local, fds))
        qr_local_break(local);
    qr_ring_reader_awake(&local->down);
}

/* ---- the lead --------------------------------------------------------------------------- */

/* Under lock: the lead is free. */
static void hand_on(struct qr_local *local, bool somebody)
{
    local->leading = false;
    if (somebody)
        pthread_cond_signal(&local->follow);
    pthread_cond_broadcast(&local->idle);
}

static unsigned book(struct qr_local *local, const struct qr_ring_frame *frame)
{
    const unsigned slot = (local->taken_first + local->taken_count) % QR_LOCAL_TAKEN_MAX;

    local->taken[slot].end = frame->end;
    local->taken[slot].done = false;
    local->taken_count++;
    return slot;
}

void qr_local_frame_done(struct qr_local *local, unsigned slot)
{
    bool moved = false;

    pthread_mutex_lock(&local->lock);
    const bool full = local->taken_count == QR_LOCAL_TAKEN_MAX;
    local->taken[slot].done = true;
    while (local->taken_count > 0 && local->taken[local->taken_first].done) {
        qr_ring_free(&local->down, local->taken[local->taken_first].end);
        local->taken_first = (local->taken_first + 1) % QR_LOCAL_TAKEN_MAX;
        local->taken_count--;
        moved = true;
    }
    const bool wake = moved && qr_ring_writer_sleeps(&local->down);
    if (full && moved) /* nobody leads while too many are taken */
        pthread_cond_signal(&local->follow);
    pthread_cond_broadcast(&local->idle);
    pthread_mutex_unlock(&local->lock);
    if (wake)
        qr_local_wake_server(local);
}

/* Pads that no frame follows. */
static void free_pads(struct qr_local *local)
{
    pthread_mutex_lock(&local->lock);
    const bool none = local->taken_count == 0;
    if (none)
        qr_ring_free(&local->down, local->down.next);
    const bool wake = none && qr_ring_writer_sleeps(&local->down);
    pthread_mutex_unlock(&local->lock);
    if (wake)
        qr_local_wake_server(local);
}

enum found { FOUND_NOTHING, FOUND_FRAME, FOUND_ATTENTION };

/** What one thread works with. */
struct desk {
    struct qr_ring_frame frame;
    struct qr_frame_room room;
    struct qr_local_task task;
    unsigned slot;
};

/* As the leader: the next thing to do. Gives the lead away. */
static enum found lead(struct qr_local *local, struct desk *desk)
{
    enum found found = FOUND_NOTHING;

    if (!qr_ring_take(&local->down, &desk->frame)) {
        if (!local->down.broken) {
            free_pads(local);
            rest(local);
            found = FOUND_ATTENTION;
        }
    } else if (qr_local_sort(local, &desk->frame, &desk->room, &desk->task)) {
        found = FOUND_FRAME;
    }
    if (found == FOUND_NOTHING) /* what came cannot be */
        qr_local_break(local);
    const bool more = found == FOUND_FRAME && qr_ring_has_data(&local->down);
    pthread_mutex_lock(&local->lock);
    if (found == FOUND_FRAME)
        desk->slot = book(local, &desk->frame);
    hand_on(local, more || atomic_load(&local->attention));
    pthread_mutex_unlock(&local->lock);
    return found;
}

/* Wait for the lead. false: stop. */
static bool take_lead(struct qr_local *local)
{
    pthread_mutex_lock(&local->lock);
    while (!local->stop && (local->leading || local->state != QR_LOCAL_UP ||
                            local->taken_count == QR_LOCAL_TAKEN_MAX))
        pthread_cond_wait(&local->follow, &local->lock);
    const bool go = !local->stop;
    local->leading = local->leading || go;
    pthread_mutex_unlock(&local->lock);
    return go;
}

static void *serve(void *argument)
{
    struct qr_local *local = argument;
    struct desk desk = {.room = {.heads = malloc(QR_FRAME_HEADS_MAX),
                                 .fragments = calloc((size_t)2 * QR_FRAME_PARTS_MAX,
                                                     sizeof(struct qr_wire_fragment))}};

    while (desk.room.heads && desk.room.fragments && take_lead(local)) {
        const enum found found = lead(local, &desk);
        if (found == FOUND_FRAME)
            qr_local_run(local, &desk.task, &desk.room, desk.slot);
        if (found == FOUND_ATTENTION || atomic_load(&local->attention))
            qr_local_attend_calls(local);
    }
    free(desk.room.heads);
    free(desk.room.fragments);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------- */

struct qr_local *qr_local_create(uint32_t threads)
{
    struct qr_local *local = calloc(1, sizeof(*local));

    if (!local)
        return NULL;
    local->poke = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&local->send_lock, NULL);
    pthread_mutex_init(&local->lock, NULL);
    pthread_cond_init(&local->follow, NULL);
    pthread_cond_init(&local->idle, NULL);
    qr_local_make_calls(local);
    for (; local->thread_count < threads; local->thread_count++)
        if (pthread_create(&local->threads[local->thread_count], NULL, serve, local))
            break;
    if (local->poke < 0 || local->thread_count < threads)
        qr_local_destroy(&local);
    return local;
}

/* Nothing of the connection is used any more. */
static void unlink_memory(struct qr_local *local)
{
    if (local->state == QR_LOCAL_OFF)
        return;
    munmap(local->memory, local->memory_bytes);
    close(local->socket);
    local->state = QR_LOCAL_OFF;
}

void qr_local_destroy(struct qr_local **pointer)
{
    struct qr_local *local = *pointer;

    if (!local)
        return;
    pthread_mutex_lock(&local->lock);
    while (local->used > 0)
        pthread_cond_wait(&local->idle, &local->lock);
    local->stop = true;
    pthread_cond_broadcast(&local->follow);
    pthread_mutex_unlock(&local->lock);
    if (local->poke >= 0)
        qr_local_wake_leader(local);
    for (uint32_t i = 0; i < local->thread_count; i++)
        pthread_join(local->threads[i], NULL);
    unlink_memory(local);
    if (local->poke >= 0)
        close(local->poke);
    pthread_cond_destroy(&local->follow);
    pthread_cond_destroy(&local->idle);
    pthread_mutex_destroy(&local->lock);
    pthread_mutex_destroy(&local->send_lock);
    free(local);
    *pointer = NULL;
}

bool qr_local_is_up(struct qr_local *local)
{
    pthread_mutex_lock(&local->lock);
    const bool up = local->state == QR_LOCAL_UP;
    pthread_mutex_unlock(&local->lock);
    return up;
}

/* Under both locks: nobody is in the broken connection any more. */
static bool is_quiet(const struct qr_local *local)
{
    return !local->leading && local->taken_count == 0 && local->used == 0;
}

static void install(struct qr_local *local, const struct qr_local_link *link)
{
    local->socket = link->socket;
    local->memory = link->memory;
    local->memory_bytes = link->memory_bytes;
    const uint64_t least =
        link->up_bytes < link->down_bytes ? link->up_bytes : link->down_bytes;
    local->part_bytes_max = least - least / 8; /* heads and token ids come on top */
    qr_ring_writer_init(&local->up, link->memory, link->up_bytes);
    qr_ring_reader_init(&local->down,
                        (uint8_t *)link->memory + qr_local_down_offset(link->up_bytes),
                        link->down_bytes);
    local->state = QR_LOCAL_UP;
    qr_local_make_calls(local);
    pthread_cond_signal(&local->follow);
}

quire_status qr_local_connect(struct qr_local *local, const struct qr_local_offer *offer,
                              struct qr_error *e)
{
    struct qr_local_link link;
    quire_status status = QUIRE_OK;

    if (qr_local_is_up(local))
        return QUIRE_OK;
    status = qr_local_dial(offer, &link, e);
    if (status)
        return status;
    pthread_mutex_lock(&local->send_lock);
    pthread_mutex_lock(&local->lock);
    const bool wanted = local->state != QR_LOCAL_UP && is_quiet(local);
    const bool late = local->state == QR_LOCAL_UP;
    if (wanted) {
        unlink_memory(local);
        install(local, &link);
    }
    pthread_mutex_unlock(&local->lock);
    pthread_mutex_unlock(&local->send_lock);
    if (wanted)
        return QUIRE_OK;
    munmap(link.memory, link.memory_bytes);
    close(link.socket);
    return late ? QUIRE_OK
                : qr_error_set(e, QUIRE_EUNAVAILABLE,
                               "calls of the broken local connection are still held");
}
