/* SPDX-License-Identifier: Apache-2.0
 *
 * One client of the same-host path from its connection to its end: the cookie, the memory, the
 * bell. Must not know frames.
 */
#include "local_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "storage/base/log.h"

#define BELLS_READ 256 /* bytes of bells taken at once; what is left comes again */

/* ---- the memory ------------------------------------------------------------------------- */

/* Sealed: a client that could shrink it would kill us with SIGBUS. Allocated at once: a page
 * that cannot be had later would, too. */
static int make_memory(size_t bytes)
{
    const int fd = memfd_create("quire-local", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd >= 0 && (ftruncate(fd, (off_t)bytes) || fallocate(fd, 0, 0, (off_t)bytes) ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool map_memory(struct qr_local_conn *conn, int fd)
{
    const struct qr_local_config *config = &conn->thread->local->config;

    conn->memory = mmap(NULL, conn->memory_bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_POPULATE, fd, 0);
    if (conn->memory == MAP_FAILED) {
        conn->memory = NULL;
        return false;
    }
    qr_ring_reader_init(&conn->up, conn->memory, config->up_bytes);
    qr_ring_writer_init(&conn->down,
                        (uint8_t *)conn->memory + qr_local_down_offset(config->up_bytes),
                        config->down_bytes);
    return true;
}

/* ---- agreeing --------------------------------------------------------------------------- */

/* fd -1: none goes along. */
static bool send_welcome(int socket, const struct qr_local_welcome *welcome, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)welcome, .iov_len = sizeof(*welcome)};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof(*welcome);
}

/* A place among the clients; false: none is left. */
static bool take_place(struct qr_local *local)
{
    const uint64_t each =
        qr_local_memory_bytes(local->config.up_bytes, local->config.down_bytes);
    const unsigned by_memory = (unsigned)(local->config.memory_bytes / each);
    const unsigned most =
        by_memory < local->config.clients_max ? by_memory : local->config.clients_max;
    unsigned n = atomic_load(&local->clients);

    while (n < most)
        if (atomic_compare_exchange_weak(&local->clients, &n, n + 1))
            return true;
    return false;
}

static quire_status give_memory(struct qr_local_conn *conn, struct qr_local_welcome *welcome)
{
    struct qr_local *local = conn->thread->local;
    struct qr_error e;

    if (!take_place(local)) {
        qr_counter_add(&local->clients_refused, 1);
        return QUIRE_EFULL;
    }
    conn->agreed = true; /* from here on its place is given back */
    atomic_fetch_sub(&local->handshakes, 1);
    conn->memory_bytes =
        qr_local_memory_bytes(local->config.up_bytes, local->config.down_bytes);
    quire_status status = local->config.identify(local->config.service, "unix:", &conn->ns, &e);
    if (status)
        return status;
    const int fd = make_memory(conn->memory_bytes);
    if (fd < 0 || !map_memory(conn, fd))
        status = QUIRE_ENOMEM;
    if (!status && !send_welcome(conn->source.fd, welcome, fd))
        conn->ended = true;
    if (fd >= 0)
        close(fd);
    return status;
}

static void answer_hello(struct qr_local_conn *conn)
{
    struct qr_local *local = conn->thread->local;
    const struct qr_local_hello *hello = &conn->hello;
    struct qr_local_welcome welcome = {.magic = QR_LOCAL_MAGIC,
                                       .version = QR_LOCAL_VERSION,
                                       .up_bytes = local->config.up_bytes,
                                       .down_bytes = local->config.down_bytes};

    if (memcmp(hello->magic, QR_LOCAL_MAGIC, sizeof(hello->magic)) ||
        hello->version != QR_LOCAL_VERSION ||
        !qr_local_cookie_equal(hello->cookie, local->cookie)) {
        qr_counter_add(&local->clients_refused, 1);
        conn->ended = true; /* a stranger: not a word */
        return;
    }
    memcpy(welcome.cookie, local->cookie + sizeof(welcome.cookie), sizeof(welcome.cookie));
    const quire_status status = give_memory(conn, &welcome);
    if (!status) {
        conn->since_ms = 0;
        conn->ready = true;
        QR_LOG(QR_LOG_DEBUG, "local.client", QR_LOG_U64("memory", conn->memory_bytes),
               QR_LOG_U64("clients", atomic_load(&local->clients)));
        return;
    }
    QR_LOG(QR_LOG_INFO, "local.refused", QR_LOG_STR("why", qr_status_name(status)),
           QR_LOG_U64("clients", atomic_load(&local->clients)));
    welcome.status = (uint32_t)status;
    (void)send_welcome(conn->source.fd, &welcome, -1);
    conn->ended = true;
}

/* ---- what comes over the socket --------------------------------------------------------- */

static void read_hello(struct qr_local_conn *conn)
{
    uint8_t *to = (uint8_t *)&conn->hello + conn->hello_bytes;
    const ssize_t n =
        recv(conn->source.fd, to, sizeof(conn->hello) - conn->hello_bytes, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        conn->ended = true;
        return;
    }
    conn->hello_bytes += (size_t)n;
    if (conn->hello_bytes == sizeof(conn->hello))
        answer_hello(conn);
}

void qr_local_conn_readable(struct qr_local_conn *conn)
{
    uint8_t bells[BELLS_READ];

    if (!conn->agreed) {
        read_hello(conn);
        return;
    }
    const ssize_t n = recv(conn->source.fd, bells, sizeof(bells), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        conn->ended = true; /* the client is gone */
    conn->ready = true;
}

void qr_local_ring_bell(struct qr_local_conn *conn)
{
    /* A full socket has a bell that was not heard yet: one more would say nothing new. */
    if (send(conn->source.fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN &&
        errno != EINTR)
        conn->ended = true;
}

/* ---- life ------------------------------------------------------------------------------- */

static bool take_handshake(struct qr_local *local)
{
    if (atomic_fetch_add(&local->handshakes, 1) < QR_LOCAL_HANDSHAKES_MAX)
        return true;
    atomic_fetch_sub(&local->handshakes, 1);
    return false;
}

static bool adopt(struct qr_local_thread *thread, int fd)
{
    struct qr_local_conn *conn = calloc(1, sizeof(*conn));
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = conn};

    if (!conn)
        return false;
    conn->source = (struct qr_local_source){.kind = QR_LOCAL_CONN, .fd = fd};
    conn->thread = thread;
    conn->since_ms = qr_clock_ms();
    if (epoll_ctl(thread->epoll, EPOLL_CTL_ADD, fd, &event)) {
        free(conn);
        return false;
    }
    conn->next = thread->conns;
    thread->conns = conn;
    return true;
}

void qr_local_accept(struct qr_local_thread *thread, int listener)
{
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return;
    if (!take_handshake(thread->local)) {
        qr_counter_add(&thread->local->clients_refused, 1);
        close(fd);
    } else if (!adopt(thread, fd)) {
        atomic_fetch_sub(&thread->local->handshakes, 1);
        close(fd);
    }
}

void qr_local_conn_destroy(struct qr_local_conn *conn)
{
    struct qr_local *local = conn->thread->local;

    qr_local_drop_calls(conn);
    close(conn->source.fd);
    if (conn->memory)
        munmap(conn->memory, conn->memory_bytes);
    atomic_fetch_sub(conn->agreed ? &local->clients : &local->handshakes, 1);
    free(conn);
}
