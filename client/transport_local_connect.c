/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening the same-host path: a socket, the two halves of the cookie, the memory. Nothing that
 * the other side says is believed before it was checked. Must not know calls.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "transport_local.h"

#define DIAL_MS 1000

static bool set_timeouts(int fd)
{
    const struct timeval limit = {.tv_sec = DIAL_MS / 1000, .tv_usec = DIAL_MS % 1000 * 1000};

    return !setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) &&
           !setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

static int connect_to(const char *path, struct qr_error *e)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof(address);
    const size_t n = strlen(path);

    if (n == 0 || n > QR_LOCAL_PATH_MAX) {
        qr_error_set(e, QUIRE_EUNAVAILABLE, "the local path has %zu bytes, 1 .. %d are right",
                     n, QR_LOCAL_PATH_MAX);
        return -1;
    }
    memcpy(address.sun_path, path, n);
    if (path[0] == '@') {
        address.sun_path[0] = 0;
        bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    }
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || !set_timeouts(fd) || connect(fd, (struct sockaddr *)&address, bytes)) {
        qr_error_set(e, QUIRE_EUNAVAILABLE, "%s cannot be opened: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return fd;
}

static bool say_hello(int fd, const uint8_t *cookie)
{
    struct qr_local_hello hello = {.magic = QR_LOCAL_MAGIC, .version = QR_LOCAL_VERSION};

    memcpy(hello.cookie, cookie, sizeof(hello.cookie));
    return send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) == (ssize_t)sizeof(hello);
}

/* *fd_out: the descriptor that came along, or -1. */
static bool receive_welcome(int socket, struct qr_local_welcome *out, int *fd_out)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = out, .iov_len = sizeof(*out)};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    const ssize_t n = recvmsg(socket, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC);

    *fd_out = -1;
    for (struct cmsghdr *h = n > 0 ? CMSG_FIRSTHDR(&message) : NULL; h;
         h = CMSG_NXTHDR(&message, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS &&
            h->cmsg_len == CMSG_LEN(sizeof(int)))
            memcpy(fd_out, CMSG_DATA(h), sizeof(*fd_out));
    return n == (ssize_t)sizeof(*out);
}

static quire_status check_welcome(const struct qr_local_welcome *w, const uint8_t *cookie,
                                  const char *path, struct qr_error *e)
{
    if (memcmp(w->magic, QR_LOCAL_MAGIC, sizeof(w->magic)) || w->version != QR_LOCAL_VERSION ||
        !qr_local_cookie_equal(w->cookie, cookie + sizeof(w->cookie)))
        return qr_error_set(e, QUIRE_EUNAVAILABLE,
                            "who listens at %s is not the server that was asked", path);
    if (w->status)
        return qr_error_set(e, w->status == QUIRE_EFULL ? QUIRE_EFULL : QUIRE_EUNAVAILABLE,
                            "the server has no room for one more local client (%s)",
                            qr_status_name((quire_status)w->status));
    if (!qr_ring_capacity_valid(w->up_bytes) || !qr_ring_capacity_valid(w->down_bytes))
        return qr_error_set(e, QUIRE_EUNAVAILABLE, "the server offers rings of %llu and %llu",
                            (unsigned long long)w->up_bytes, (unsigned long long)w->down_bytes);
    return QUIRE_OK;
}

/* The memory must be whole and stay so: reading past its end would be SIGBUS. */
static quire_status map(int fd, struct qr_local_link *link, struct qr_error *e)
{
    struct stat file;
    const int seals = fcntl(fd, F_GET_SEALS);

    link->memory_bytes = qr_local_memory_bytes(link->up_bytes, link->down_bytes);
    if (fd < 0 || seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &file) ||
        (uint64_t)file.st_size < link->memory_bytes)
        return qr_error_set(e, QUIRE_EUNAVAILABLE,
                            "the server's memory is not sealed, or not of %zu bytes",
                            link->memory_bytes);
    link->memory = mmap(NULL, link->memory_bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_POPULATE, fd, 0);
    if (link->memory == MAP_FAILED)
        return qr_error_set(e, QUIRE_ENOMEM, "%zu bytes of the server cannot be mapped: %s",
                            link->memory_bytes, strerror(errno));
    return QUIRE_OK;
}

quire_status qr_local_dial(const struct qr_local_offer *offer, struct qr_local_link *out,
                           struct qr_error *e)
{
    struct qr_local_welcome welcome;
    int fd = -1;
    quire_status status = QUIRE_OK;
    const int socket = connect_to(offer->path, e);

    if (socket < 0)
        return QUIRE_EUNAVAILABLE;
    if (!say_hello(socket, offer->cookie) || !receive_welcome(socket, &welcome, &fd))
        status =
            qr_error_set(e, QUIRE_EUNAVAILABLE,
                         "who listens at %s did not answer as the server would", offer->path);
    if (!status)
        status = check_welcome(&welcome, offer->cookie, offer->path, e);
    struct qr_local_link link = {.socket = socket};
    if (!status) {
        link.up_bytes = welcome.up_bytes;
        link.down_bytes = welcome.down_bytes;
        status = map(fd, &link, e);
    }
    if (fd >= 0)
        close(fd);
    if (status)
        close(socket);
    else
        *out = link;
    return status;
}
