/* SPDX-License-Identifier: Apache-2.0
 *
 * The same-host call machine as a whole: listeners, threads, drain. See local_impl.h.
 */
#include "local_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "listen.h"
#include "storage/base/random.h"

#define EVENTS 32
#define BACKLOG 16

/* ---- the threads ------------------------------------------------------------------------ */

static void take_events(struct qr_local_thread *thread, int timeout_ms)
{
    struct epoll_event events[EVENTS];
    const int n = epoll_wait(thread->epoll, events, EVENTS, timeout_ms);
    uint64_t count;

    for (int i = 0; i < n; i++) {
        struct qr_local_source *source = events[i].data.ptr;
        if (source->kind == QR_LOCAL_LISTENER)
            qr_local_accept(thread, source->fd);
        else if (source->kind == QR_LOCAL_POKE)
            (void)!read(source->fd, &count, sizeof(count));
        else
            qr_local_conn_readable((struct qr_local_conn *)source);
    }
}

/* A handshake that takes too long, a client that reads nothing although there is something. */
static void check_times(struct qr_local_conn *conn)
{
    struct qr_local *local = conn->thread->local;
    const uint32_t limit_ms =
        conn->agreed ? local->config.stall_ms : local->config.handshake_ms;

    if (!conn->since_ms || qr_clock_ms() - conn->since_ms < limit_ms)
        return;
    if (conn->agreed)
        qr_counter_add(&local->stalled, 1);
    conn->ended = true;
}

/* Its calls are over; true when it can be freed: no reply is to be released any more. */
static bool end(struct qr_local_conn *conn)
{
    qr_local_drop_calls(conn);
    (void)epoll_ctl(conn->thread->epoll, EPOLL_CTL_DEL, conn->source.fd, NULL);
    return qr_local_holds_gone(conn);
}

/* Every connection's turn; ended ones go. Returns how long nothing is to be done, -1: for ever.
 */
static int visit(struct qr_local_thread *thread, bool closing)
{
    struct qr_local_conn **link = &thread->conns;
    int timeout_ms = QR_LOCAL_TICK_MS;

    while (*link) {
        struct qr_local_conn *conn = *link;
        if (conn->agreed && (conn->ready || conn->later || conn->hold_count) && !conn->ended)
            qr_local_serve(conn);
        check_times(conn);
        conn->ended = conn->ended || closing;
        if (conn->ended && end(conn)) {
            *link = conn->next;
            qr_local_conn_destroy(conn);
            continue;
        }
        if (!conn->ended && conn->later && timeout_ms > QR_LOCAL_PAUSE_MS)
            timeout_ms = QR_LOCAL_PAUSE_MS;
        if (!conn->ended && conn->ready)
            timeout_ms = 0;
        link = &conn->next;
    }
    return thread->conns ? timeout_ms : -1;
}

static void *run(void *arg)
{
    struct qr_local_thread *thread = arg;
    int timeout_ms = -1;
    bool closing = false;

    while (!closing || thread->conns) {
        take_events(thread, timeout_ms);
        closing = atomic_load(&thread->local->closing);
        timeout_ms = visit(thread, closing);
    }
    atomic_store(&thread->over, true);
    return NULL;
}

static bool watch(int epoll, struct qr_local_source *source)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};

    return epoll_ctl(epoll, EPOLL_CTL_ADD, source->fd, &event) == 0;
}

static bool start_thread(struct qr_local_thread *thread)
{
    struct qr_local *local = thread->local;

    thread->epoll = epoll_create1(EPOLL_CLOEXEC);
    thread->poke = (struct qr_local_source){.kind = QR_LOCAL_POKE,
                                            .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    thread->room.heads = malloc(QR_FRAME_HEADS_MAX);
    thread->room.fragments =
        calloc((size_t)2 * QR_FRAME_PARTS_MAX, sizeof(*thread->room.fragments));
    if (thread->epoll < 0 || thread->poke.fd < 0 || !thread->room.heads ||
        !thread->room.fragments || !watch(thread->epoll, &thread->poke) ||
        qr_scratch_create(&thread->scratch, local->config.message_bytes_max))
        return false;
    for (uint32_t i = 0; i < local->listener_count; i++)
        if (!watch(thread->epoll, &local->listeners[i]))
            return false;
    thread->started = pthread_create(&thread->thread, NULL, run, thread) == 0;
    return thread->started;
}

quire_status qr_local_start(struct qr_local *local, struct qr_error *e)
{
    for (uint32_t i = 0; i < local->config.threads; i++)
        if (!start_thread(&local->threads[i]))
            return qr_error_set(e, QUIRE_ENOMEM, "cannot start a thread of the local path: %s",
                                strerror(errno));
    return QUIRE_OK;
}

/* ---- listening -------------------------------------------------------------------------- */

static socklen_t socket_address(const char *path, struct sockaddr_un *out)
{
    const size_t n = strlen(path);

    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(out->sun_path, path, n);
    if (path[0] != '@')
        return (socklen_t)sizeof(*out);
    out->sun_path[0] = 0;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
}

static quire_status claim(const char *path, struct qr_error *e)
{
    struct qr_address address;
    char text[QR_LOCAL_PATH_MAX + 8];

    if (path[0] == '@')
        return QUIRE_OK;
    snprintf(text, sizeof(text), "unix:%s", path);
    const quire_status status = qr_address_parse(text, &address, e);
    return status ? status : qr_address_claim(&address, e);
}

quire_status qr_local_listen(struct qr_local *local, const char *path, struct qr_error *e)
{
    struct sockaddr_un address;
    const uint32_t at = local->listener_count;

    if (at == QR_LOCAL_LISTENERS_MAX || strlen(path) > QR_LOCAL_PATH_MAX)
        return qr_error_set(e, QUIRE_ETOOBIG,
                            "the local path %.40s... has %zu bytes, at most %d fit a socket "
                            "address",
                            path, strlen(path), QR_LOCAL_PATH_MAX);
    const quire_status status = claim(path, e);
    if (status)
        return status;
    const socklen_t bytes = socket_address(path, &address);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, bytes) || listen(fd, BACKLOG)) {
        qr_error_set(e, QUIRE_EUNAVAILABLE, "the local path %s cannot be bound: %s", path,
                     strerror(errno));
        if (fd >= 0)
            close(fd);
        return QUIRE_EUNAVAILABLE;
    }
    local->listeners[at] = (struct qr_local_source){.kind = QR_LOCAL_LISTENER, .fd = fd};
    snprintf(local->paths[at], sizeof(local->paths[at]), "%s", path);
    local->listener_count++;
    return QUIRE_OK;
}

/* ---- life ------------------------------------------------------------------------------- */

static const struct qr_method *find_method(const struct qr_local_config *config,
                                           const char *path)
{
    for (size_t i = 0; i < config->method_count; i++)
        if (!strcmp(config->methods[i].path, path))
            return &config->methods[i];
    return NULL;
}

quire_status qr_local_create(const struct qr_local_config *config, struct qr_local **out,
                             struct qr_error *e)
{
    if (!qr_ring_capacity_valid(config->up_bytes) ||
        !qr_ring_capacity_valid(config->down_bytes))
        return qr_error_set(e, QUIRE_EINVAL,
                            "rings of %llu and %llu bytes: powers of two in %u .. %u are right",
                            (unsigned long long)config->up_bytes,
                            (unsigned long long)config->down_bytes, QR_RING_BYTES_MIN,
                            QR_RING_BYTES_MAX);
    struct qr_local *local = calloc(1, sizeof(*local));
    if (!local || !(local->threads = calloc(config->threads, sizeof(*local->threads)))) {
        free(local);
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the local path");
    }
    local->config = *config;
    for (uint32_t i = 0; i < config->threads; i++)
        local->threads[i] = (struct qr_local_thread){
            .local = local, .epoll = -1, .poke = {.kind = QR_LOCAL_POKE, .fd = -1}};
    local->methods[QR_FRAME_APPEND] = find_method(config, "/quire.v1.Quire/Append");
    local->methods[QR_FRAME_APPEND_STREAM] =
        find_method(config, "/quire.v1.Quire/AppendStream");
    local->methods[QR_FRAME_FETCH] = find_method(config, "/quire.v1.Quire/Fetch");
    const quire_status status = qr_random_fill(local->cookie, sizeof(local->cookie), e);
    if (status)
        qr_local_destroy(&local);
    else
        *out = local;
    return status;
}

const uint8_t *qr_local_cookie(const struct qr_local *local)
{
    return local->cookie;
}

void qr_local_refuse(struct qr_local *local)
{
    atomic_store(&local->refusing, true);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

bool qr_local_stop(struct qr_local *local, uint64_t until_ms)
{
    const uint64_t one = 1;
    bool over = true;

    qr_local_refuse(local);
    while (qr_counter_read(&local->live) > 0 && qr_clock_ms() < until_ms)
        nap();
    atomic_store(&local->closing, true);
    const uint64_t end_ms = qr_clock_ms() + QR_LOCAL_ENDING_MS;
    for (uint32_t i = 0; i < local->config.threads; i++) {
        struct qr_local_thread *thread = &local->threads[i];
        if (!thread->started)
            continue;
        (void)!write(thread->poke.fd, &one, sizeof(one));
        while (!atomic_load(&thread->over) && qr_clock_ms() < end_ms)
            nap();
        over = over && atomic_load(&thread->over);
        if (!atomic_load(&thread->over))
            continue;
        pthread_join(thread->thread, NULL);
        thread->started = false;
    }
    return over;
}

static void end_thread(struct qr_local_thread *thread)
{
    if (thread->epoll >= 0)
        close(thread->epoll);
    if (thread->poke.fd >= 0)
        close(thread->poke.fd);
    qr_scratch_destroy(&thread->scratch);
    free(thread->room.heads);
    free(thread->room.fragments);
}

void qr_local_destroy(struct qr_local **pointer)
{
    struct qr_local *local = *pointer;

    if (!local)
        return;
    (void)qr_local_stop(local, 0);
    for (uint32_t i = 0; i < local->config.threads; i++)
        end_thread(&local->threads[i]);
    for (uint32_t i = 0; i < local->listener_count; i++) {
        close(local->listeners[i].fd);
        if (local->paths[i][0] != '@')
            (void)unlink(local->paths[i]);
    }
    free(local->threads);
    free(local);
    *pointer = NULL;
}

void qr_local_stat(struct qr_local *local, struct qr_local_stat *out)
{
    const uint64_t clients = atomic_load(&local->clients);

    *out = (struct qr_local_stat){
        .clients = clients,
        .clients_refused = qr_counter_read(&local->clients_refused),
        .clients_broken = qr_counter_read(&local->clients_broken),
        .calls = qr_counter_read(&local->calls),
        .failed = qr_counter_read(&local->failed),
        .canceled = qr_counter_read(&local->canceled),
        .stalled = qr_counter_read(&local->stalled),
        .live = qr_counter_read(&local->live),
        .bytes_in = qr_counter_read(&local->bytes_in),
        .bytes_out = qr_counter_read(&local->bytes_out),
        .memory_bytes =
            clients * qr_local_memory_bytes(local->config.up_bytes, local->config.down_bytes),
    };
}
