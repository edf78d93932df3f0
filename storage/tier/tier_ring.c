/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring's io_uring engine, and the only includer of liburing: one owner
 * thread that starts operations in batches and takes their completions. Other
 * threads wake it through an eventfd. Must not know what an operation is for.
 *
 * No SQPOLL: on a machine of few cores its polling thread costs more than the
 * system call that it saves.
 */
#include <errno.h>
#include <liburing.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "disk_ring_impl.h"
#include "storage/base/clock.h"

#define EXTRA_ENTRIES 8u /* the eventfd's read, and the timeout of old kernels */
#define WAIT_MAX_NS UINT64_C(1000000000)

struct uring {
    struct io_uring ring; /* owner: ring thread, once it runs */
    pthread_t thread;
    int wake_fd;
    uint64_t wake_count;   /* owner: ring thread; read from wake_fd */
    _Atomic bool sleeping; /* atomic: whether a wake needs the eventfd */
    bool files_registered;
};

static void uring_wake(struct qr_ring *ring)
{
    struct uring *u = ring->engine_state;
    const uint64_t one = 1;

    if (atomic_exchange(&u->sleeping, false)) {
        const ssize_t put = write(u->wake_fd, &one, sizeof(one));
        (void)put; /* full counter: it is awake */
    }
}

static void listen_for_wakes(struct uring *u)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

    io_uring_prep_read(sqe, u->wake_fd, &u->wake_count, sizeof(u->wake_count), 0);
    io_uring_sqe_set_data(sqe, u);
}

static void prepare_transfer(struct qr_ring *ring, struct qr_ring_request *r,
                             struct io_uring_sqe *sqe, int fd)
{
    const bool reads = r->op.op == QR_DISK_READ;
    const uint64_t offset = qr_ring_offset(r);
    const unsigned bytes = (unsigned)r->issued;

    if (r->bounced && r->buffer < ring->buffers_registered) {
        if (reads)
            io_uring_prep_read_fixed(sqe, fd, r->address, bytes, offset, (int)r->buffer);
        else
            io_uring_prep_write_fixed(sqe, fd, r->address, bytes, offset, (int)r->buffer);
    } else if (reads) {
        io_uring_prep_read(sqe, fd, r->address, bytes, offset);
    } else {
        io_uring_prep_write(sqe, fd, r->address, bytes, offset);
    }
}

static void start_all(struct qr_ring *ring)
{
    struct uring *u = ring->engine_state;

    for (struct qr_ring_request *r; (r = qr_ring_next(ring)) != NULL;) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
        const int fd = u->files_registered ? (int)r->op.file : qr_ring_fd(ring, r);
        if (r->op.op == QR_DISK_SYNC)
            io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
        else
            prepare_transfer(ring, r, sqe, fd);
        if (u->files_registered)
            sqe->flags |= IOSQE_FIXED_FILE;
        io_uring_sqe_set_data(sqe, r);
    }
}

static void take_completions(struct qr_ring *ring)
{
    struct uring *u = ring->engine_state;
    struct io_uring_cqe *cqe;

    while (io_uring_peek_cqe(&u->ring, &cqe) == 0 && cqe) {
        void *data = io_uring_cqe_get_data(cqe);
        const ssize_t result = cqe->res;
        io_uring_cqe_seen(&u->ring, cqe);
        if (data == u)
            listen_for_wakes(u);
        else if (data && (uintptr_t)data != (uintptr_t)LIBURING_UDATA_TIMEOUT)
            qr_ring_landed(ring, data, result);
    }
}

/* Submit what start_all prepared and sleep until something happens. `sleeping` is set before
 * the last look at the queue, so that no wake is lost. */
static void submit_and_wait(struct qr_ring *ring, uint64_t until_ns)
{
    struct uring *u = ring->engine_state;
    const uint64_t now_ns = qr_clock_ns();
    uint64_t wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    struct io_uring_cqe *cqe;

    if (wait_ns > WAIT_MAX_NS)
        wait_ns = WAIT_MAX_NS;
    struct __kernel_timespec ts = {.tv_sec = (long long)(wait_ns / 1000000000u),
                                   .tv_nsec = (long long)(wait_ns % 1000000000u)};
    (void)io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &ts, NULL);
}

static void *uring_main(void *arg)
{
    struct qr_ring *ring = arg;
    struct uring *u = ring->engine_state;

    listen_for_wakes(u);
    while (!qr_ring_drained(ring)) {
        atomic_store(&u->sleeping, true);
        const uint64_t until_ns = qr_ring_expire(ring, qr_clock_ns());
        start_all(ring);
        submit_and_wait(ring, until_ns);
        atomic_store(&u->sleeping, false);
        take_completions(ring);
    }
    return NULL;
}

static void uring_free(struct uring *u)
{
    if (u->wake_fd >= 0)
        (void)close(u->wake_fd);
    free(u);
}

/* Locked memory may be limited: register as many buffers as are allowed, and use the others
 * all the same. */
static void register_buffers(struct qr_ring *ring, struct uring *u)
{
    struct iovec parts[QR_RING_DEPTH_MAX];

    for (uint32_t i = 0; i < ring->config.depth; i++)
        parts[i] = (struct iovec){ring->buffers + (size_t)i * ring->config.buffer_bytes,
                                  ring->config.buffer_bytes};
    for (uint32_t n = ring->config.depth; n > 0; n /= 2) {
        if (io_uring_register_buffers(&u->ring, parts, n) == 0) {
            ring->buffers_registered = n;
            return;
        }
    }
}

/* The kernel may know the call and lack what we need of it. */
static bool knows_operations(struct io_uring *ring)
{
    static const int needed[] = {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED,
                                 IORING_OP_WRITE_FIXED, IORING_OP_FSYNC};
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool all = probe != NULL;

    for (size_t i = 0; all && i < sizeof(needed) / sizeof(needed[0]); i++)
        all = io_uring_opcode_supported(probe, needed[i]);
    if (probe)
        io_uring_free_probe(probe);
    return all;
}

static int uring_start(struct qr_ring *ring)
{
    struct uring *u = calloc(1, sizeof(*u));

    if (!u)
        return -ENOMEM;
    u->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (u->wake_fd < 0) {
        const int error = -errno;
        uring_free(u);
        return error;
    }
    int error = io_uring_queue_init(ring->config.depth + EXTRA_ENTRIES, &u->ring, 0);
    if (error != 0) {
        uring_free(u);
        return error;
    }
    error = knows_operations(&u->ring) ? 0 : -ENOSYS;
    if (error == 0) {
        u->files_registered =
            io_uring_register_files(&u->ring, ring->config.files, ring->config.file_count) == 0;
        register_buffers(ring, u);
        ring->engine_state = u;
        error = -pthread_create(&u->thread, NULL, uring_main, ring);
    }
    if (error != 0) {
        io_uring_queue_exit(&u->ring);
        uring_free(u);
        ring->engine_state = NULL;
        ring->buffers_registered = 0;
    }
    return error;
}

static void uring_stop(struct qr_ring *ring)
{
    struct uring *u = ring->engine_state;

    atomic_store(&u->sleeping, true);
    uring_wake(ring);
    (void)pthread_join(u->thread, NULL);
    io_uring_queue_exit(&u->ring);
    uring_free(u);
    ring->engine_state = NULL;
}

const struct qr_ring_engine qr_ring_uring = {
    .name = "io_uring", .start = uring_start, .wake = uring_wake, .stop = uring_stop};
