/* SPDX-License-Identifier: Apache-2.0
 *
 * A same-host call machine with methods of its own, and a client of it written by hand: what
 * the tests of server/local.h share.
 */
#ifndef QR_LOCAL_PEER_H
#define QR_LOCAL_PEER_H

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/local.h"
#include "storage/base/clock.h"
#include "tests/test.h"

#define PAGE_BYTES (128u << 10)
#define UP_BYTES (1u << 20)
#define DOWN_BYTES (512u << 10)

static uint8_t page[PAGE_BYTES];
static atomic_int pins_out, streams_open;

/* ---- methods ----------------------------------------------------------------------------- */

/* Sends the message back; "fail" fails. */
static inline quire_status echo(void *service, const struct qr_request *request,
                                size_t *reply_bytes, struct qr_error *e)
{
    struct qr_wire_cursor cursor = qr_wire_cursor_all(request->fragments, request->count);
    const size_t n = cursor.bytes < 200 ? (size_t)cursor.bytes : 200;
    (void)service;

    assert(qr_wire_cursor_read(&cursor, request->scratch->reply, n));
    *reply_bytes = n;
    if (n == 4 && !memcmp(request->scratch->reply, "fail", 4)) {
        qr_error_set(e, QUIRE_EGAP, "a gap after %d", 7);
        e->length = 7;
        return QUIRE_EGAP;
    }
    return QUIRE_OK;
}

/* A stream of as many pages as the request's first byte says. */
static inline quire_status pages_open(void *service, const struct qr_request *request,
                                      void **out, struct qr_error *e)
{
    struct qr_wire_cursor cursor = qr_wire_cursor_all(request->fragments, request->count);
    uint8_t *left = malloc(1);
    (void)service;

    if (!qr_wire_cursor_read(&cursor, left, 1)) {
        free(left);
        return qr_error_set(e, QUIRE_EINVAL, "no count");
    }
    atomic_fetch_add(&streams_open, 1);
    *out = left;
    return QUIRE_OK;
}

static inline quire_status pages_next(void *service, void *state, struct qr_chunk *chunk,
                                      bool *more_out, struct qr_error *e)
{
    uint8_t *left = state;
    const struct qr_range ranges[] = {{page, PAGE_BYTES / 2},
                                      {page + PAGE_BYTES / 2, PAGE_BYTES / 2}};
    (void)service;
    (void)e;

    while (*left && qr_chunk_has_room(chunk) && chunk->bytes < chunk->most) {
        atomic_fetch_add(&pins_out, 1);
        assert(qr_chunk_pinned(chunk, (const uint8_t *)"head", 4, ranges, 2, page));
        --*left;
    }
    *more_out = *left > 0;
    return QUIRE_OK;
}

static inline void pages_close(void *service, void *state)
{
    (void)service;
    free(state);
    atomic_fetch_sub(&streams_open, 1);
}

static const struct qr_stream_ops pages = {pages_open, pages_next, pages_close};
static const struct qr_method methods[] = {
    {.path = "/quire.v1.Quire/Append", .kind = QR_METHOD_UNARY, .handle = echo},
    {.path = "/quire.v1.Quire/AppendStream", .kind = QR_METHOD_CONVERSATION, .handle = echo},
    {.path = "/quire.v1.Quire/Fetch", .kind = QR_METHOD_STREAM, .stream = &pages},
};

static inline quire_status identify(void *service, const char *peer, uint32_t *ns_out,
                                    struct qr_error *e)
{
    (void)service;
    (void)e;
    assert(!strcmp(peer, "unix:"));
    *ns_out = 3;
    return QUIRE_OK;
}

static inline void release(void *service, void *pin)
{
    (void)service;
    assert(pin == page);
    atomic_fetch_sub(&pins_out, 1);
}

/* ---- a client ---------------------------------------------------------------------------- */

static struct qr_local *local;
static char folder[64], path[96];

struct peer {
    int fd;
    uint8_t *memory;
    size_t bytes;
    struct qr_ring_writer up;
    struct qr_ring_reader down;
};

static inline int dial(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval limit = {.tv_sec = 5};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(address.sun_path, path, strlen(path) + 1);
    assert_ok(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
    assert_ok(connect(fd, (struct sockaddr *)&address, sizeof(address)));
    return fd;
}

static inline struct qr_local_hello good_hello(void)
{
    struct qr_local_hello hello = {.magic = QR_LOCAL_MAGIC, .version = QR_LOCAL_VERSION};

    memcpy(hello.cookie, qr_local_cookie(local), sizeof(hello.cookie));
    return hello;
}

/* The welcome and its descriptor, -1: none; false: the server hung up. */
static inline bool welcome(int fd, struct qr_local_welcome *out, int *memory_fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {out, sizeof(*out)};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};

    *memory_fd = -1;
    if (recvmsg(fd, &message, MSG_WAITALL) != (ssize_t)sizeof(*out))
        return false;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header)
        memcpy(memory_fd, CMSG_DATA(header), sizeof(int));
    return true;
}

static inline void peer_open(struct peer *p)
{
    struct qr_local_welcome w;
    int memory_fd;

    p->fd = dial();
    const struct qr_local_hello hello = good_hello();
    assert_int_equal(send(p->fd, &hello, sizeof(hello), 0), sizeof(hello));
    assert_true(welcome(p->fd, &w, &memory_fd));
    assert_int_equal(w.status, 0);
    assert_int_equal(w.up_bytes, UP_BYTES);
    assert_int_equal(w.down_bytes, DOWN_BYTES);
    assert_memory_equal(w.cookie, qr_local_cookie(local) + sizeof(w.cookie), sizeof(w.cookie));
    assert_true(memory_fd >= 0);
    assert_int_not_equal(ftruncate(memory_fd, 0), 0); /* sealed: nobody can make it SIGBUS */
    p->bytes = qr_local_memory_bytes(UP_BYTES, DOWN_BYTES);
    p->memory = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
    assert_true(p->memory != MAP_FAILED);
    close(memory_fd);
    qr_ring_writer_init(&p->up, p->memory, UP_BYTES);
    qr_ring_reader_init(&p->down, p->memory + qr_local_down_offset(UP_BYTES), DOWN_BYTES);
}

static inline void peer_close(struct peer *p)
{
    close(p->fd);
    munmap(p->memory, p->bytes);
}

static inline void ring_bell(struct peer *p)
{
    (void)!send(p->fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static inline void peer_send(struct peer *p, enum qr_frame_type type, uint32_t call,
                             uint32_t value, const char *text)
{
    const struct qr_frame_part part = {.head = text, .head_bytes = text ? strlen(text) : 0};
    const size_t bytes = QR_RING_LINE + (text ? qr_frame_part_bytes(part.head_bytes, 0) : 0);
    uint8_t *frame = qr_ring_reserve(&p->up, bytes, NULL);
    const struct qr_ring_head head = {.bytes = (uint32_t)bytes,
                                      .type = (uint16_t)type,
                                      .parts = text != NULL,
                                      .call = call,
                                      .value = value};

    assert_non_null(frame);
    memcpy(frame, &head, sizeof(head));
    if (text)
        (void)qr_frame_put_part(frame + QR_RING_LINE, &part);
    qr_ring_publish(&p->up, bytes);
    if (qr_ring_reader_sleeps(&p->up))
        ring_bell(p);
}

/* The next frame; its message, joined, is in `text`. false: the server hung up or was silent
 * for five seconds. */
static inline bool peer_receive(struct peer *p, struct qr_ring_head *head, char *text,
                                size_t size)
{
    static uint8_t heads[QR_FRAME_HEADS_MAX];
    static struct qr_wire_fragment fragments[2 * QR_FRAME_PARTS_MAX];
    struct qr_frame_room room = {.heads = heads, .fragments = fragments};
    struct qr_ring_frame frame;
    char bells[64];

    while (!qr_ring_take(&p->down, &frame)) {
        assert_false(p->down.broken);
        qr_ring_free(&p->down, p->down.next);
        if (qr_ring_writer_sleeps(&p->down))
            ring_bell(p);
        qr_ring_reader_waits(&p->down);
        if (!qr_ring_has_data(&p->down) && recv(p->fd, bells, sizeof(bells), 0) <= 0)
            return false;
    }
    assert_true(qr_frame_gather(&frame, &room));
    struct qr_wire_cursor all = qr_wire_cursor_all(room.fragments, room.count);
    const size_t n = all.bytes < size - 1 ? (size_t)all.bytes : size - 1;
    assert_true(qr_wire_cursor_read(&all, text, n));
    text[n] = 0;
    *head = frame.head;
    qr_ring_free(&p->down, frame.end);
    if (qr_ring_writer_sleeps(&p->down))
        ring_bell(p);
    return true;
}

static inline void expect(struct peer *p, enum qr_frame_type type, uint32_t call,
                          const char *wanted, uint32_t flags)
{
    struct qr_ring_head head;
    char text[1024];

    assert_true(peer_receive(p, &head, text, sizeof(text)));
    assert_int_equal(head.type, type);
    assert_int_equal(head.call, call);
    assert_int_equal(head.flags, flags);
    if (wanted)
        assert_string_equal(text, wanted);
}

/* The server has closed this connection, and soon. */
static inline void expect_hang_up(struct peer *p)
{
    char bells[64];
    ssize_t n;

    while ((n = recv(p->fd, bells, sizeof(bells), 0)) > 0)
        ;
    assert_true(n == 0 || errno == ECONNRESET);
}

static inline uint64_t clients(void)
{
    struct qr_local_stat stat;

    qr_local_stat(local, &stat);
    return stat.clients;
}

static inline void wait_for_clients(uint64_t wanted)
{
    for (int i = 0; i < 3000 && clients() != wanted; i++)
        usleep(1000);
    assert_int_equal(clients(), wanted);
}

static inline struct qr_local_config config_of(void)
{
    return (struct qr_local_config){.methods = methods,
                                    .method_count = ARRAY_LEN(methods),
                                    .identify = identify,
                                    .release = release,
                                    .threads = 1,
                                    .clients_max = 3,
                                    .up_bytes = UP_BYTES,
                                    .down_bytes = DOWN_BYTES,
                                    .memory_bytes = 8u << 20,
                                    .message_bytes_max = 512u << 10,
                                    .stall_ms = 400,
                                    .handshake_ms = 300};
}

static inline int setup(void **state)
{
    const struct qr_local_config config = config_of();
    struct qr_error e = {0};

    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/quire-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/s.local", folder);
    assert_ok(qr_local_create(&config, &local, &e));
    assert_ok(qr_local_listen(local, path, &e));
    assert_ok(qr_local_start(local, &e));
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    qr_local_destroy(&local);
    assert_int_equal(atomic_load(&pins_out), 0);
    assert_int_equal(atomic_load(&streams_open), 0);
    assert_ok(rmdir(folder)); /* its socket file is gone */
    return 0;
}

#endif
