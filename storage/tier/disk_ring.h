/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring: reads, writes and syncs of a few files, submitted from any thread
 * through a bounded queue and run by io_uring on one owner thread, or by a few
 * threads with pread and pwrite where io_uring is not allowed. Takes care of
 * alignment, short counts, EAGAIN, priorities and deadlines. Must not know
 * slots, pages or indexes.
 */
#ifndef QR_DISK_RING_H
#define QR_DISK_RING_H

#include "disk_io.h"

#define QR_RING_FILES_MAX 16u
#define QR_RING_DEPTH_MAX 256u

struct qr_ring;

/** Most urgent first. A class waits while a more urgent one has work, but for every eighth
 * start, so that none starves. */
enum qr_ring_class {
    QR_RING_FOREGROUND, /* reads that somebody waits for */
    QR_RING_COMMIT,     /* writes and syncs of durable appends */
    QR_RING_WRITE_BACK,
    QR_RING_PREFETCH,
    QR_RING_CLASSES
};

/** Fires exactly once for each accepted operation, on a ring thread or the thread that cancels;
 * no lock is held. It must not wait for another operation of the ring. */
typedef void qr_ring_done(void *arg, quire_status status);

struct qr_ring_op {
    enum qr_disk_op op;
    uint32_t file;   /* below config.file_count */
    uint64_t offset; /* multiple of 4 KiB */
    void *buffer;    /* read into, or only read from */
    size_t bytes;    /* wanted; up to a multiple of 4 KiB may move on the device */
    size_t capacity; /* of buffer: when it and the address allow whole blocks, the device moves
                        the bytes in place; else they go through a buffer of the ring */
    enum qr_ring_class urgency;
    bool more;            /* another one follows at once: it need not start before that one */
    uint64_t deadline_ns; /* monotonic; 0: none. With one, bytes go through the ring's buffers,
                             so that the caller's is free again at the deadline even when the
                             device hangs */
    qr_ring_done *done;
    /** NULL, or fires after `done` when an operation that a deadline or a cancel answered early
     * is at its end: until then a write may still reach the device. */
    void (*landed)(void *arg);
    void *arg;
};

struct qr_ring_config {
    struct qr_disk_io *io;
    int files[QR_RING_FILES_MAX]; /* owned by the caller, open until the ring is destroyed */
    uint32_t file_count;
    uint32_t depth;        /* operations at the devices at once; 0: 16 a file */
    uint32_t queue_max;    /* operations accepted and not done; 0: 1024 */
    uint32_t buffer_bytes; /* of one of the ring's `depth` buffers; 0: 512 KiB */
    /** NULL, or told of each write that failed with EIO, before its done. Any ring thread. */
    void (*write_failed)(void *arg, uint32_t file);
    void *arg;
    bool no_uring; /* fallback at once */
};

struct qr_ring_stat {
    const char *engine;          /* "io_uring" or "threads" */
    uint32_t buffers_registered; /* of `depth` */
    uint32_t depth, queued, flying;
    uint32_t abandoned; /* flying, their caller has been answered by a deadline */
    uint64_t reads, writes, syncs, read_bytes, write_bytes;
    uint64_t bounced;   /* operations through the ring's buffers */
    uint64_t shortened; /* continued after a short count */
    uint64_t retried;   /* EAGAIN, EINTR */
    uint64_t timeouts, failures, refused;
};

/** Start; says in the log which engine runs. EINVAL, ENOMEM. */
quire_status qr_ring_create(const struct qr_ring_config *config, struct qr_ring **out,
                            struct qr_error *e);
/** Waits for every operation. */
void qr_ring_destroy(struct qr_ring **ring);

/**
 * Hand over one operation; `*ticket_out` (may be NULL) names it for qr_ring_cancel.
 *
 * Ownership: the buffer is the ring's until done fires.
 * Errors:    EAGAIN when the queue, or this file's share of it, is full; done never fires then.
 *            Four syncs a file are taken all the same.
 */
quire_status qr_ring_submit(struct qr_ring *ring, const struct qr_ring_op *op,
                            uint64_t *ticket_out);
/** Hand over `count` operations and wait for all, waiting for room too; `done` and `arg` of
 * them are not used. The first failure's status. Not from a callback. */
quire_status qr_ring_run(struct qr_ring *ring, const struct qr_ring_op *ops, size_t count);
/** Answer ECANCELED if it is still queued, or moves through the ring's buffers; else it runs to
 * its end. True when it will be, or was, answered so. */
bool qr_ring_cancel(struct qr_ring *ring, uint64_t ticket);

void qr_ring_stat(struct qr_ring *ring, struct qr_ring_stat *out);

#endif
