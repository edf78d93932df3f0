/* SPDX-License-Identifier: Apache-2.0
 *
 * The raw side: one file, O_DIRECT, io_uring, nothing else. What the device and
 * the file system give to a program that keeps no index and promises nothing.
 */
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "disk_bench.h"

#define DEPTH_MAX 256u

struct raw {
    struct shape shape;
    struct io_uring ring;
    int fd;
    char path[512];
    uint8_t *buffers; /* [batch] pages */
};

struct raw *raw_open(const char *folder, const struct shape *shape, uint32_t rounds)
{
    struct raw *raw = calloc(1, sizeof(*raw));

    must(raw != NULL && shape->batch <= DEPTH_MAX, "memory");
    raw->shape = *shape;
    (void)snprintf(raw->path, sizeof(raw->path), "%s/raw", folder);
    raw->fd = open(raw->path, O_RDWR | O_CREAT | O_DIRECT, 0600);
    must(raw->fd >= 0, "open the raw file with O_DIRECT");
    const off_t bytes = (off_t)((uint64_t)shape->pages * rounds * shape->page_bytes);
    must(posix_fallocate(raw->fd, 0, bytes) == 0 && fsync(raw->fd) == 0,
         "allocate the raw file");
    must(io_uring_queue_init(DEPTH_MAX, &raw->ring, 0) == 0, "io_uring");
    raw->buffers = must_alloc_aligned(shape->batch * shape->page_bytes);
    return raw;
}

void raw_close(struct raw **raw)
{
    io_uring_queue_exit(&(*raw)->ring);
    (void)close((*raw)->fd);
    (void)unlink((*raw)->path);
    free((*raw)->buffers);
    free(*raw);
    *raw = NULL;
}

static uint64_t offset_of(const struct raw *raw, uint32_t round, uint32_t page)
{
    return ((uint64_t)round * raw->shape.pages + page) * raw->shape.page_bytes;
}

static uint64_t wait_one(struct raw *raw)
{
    struct io_uring_cqe *cqe;

    must(io_uring_wait_cqe(&raw->ring, &cqe) == 0, "wait");
    must(cqe->res == (int)raw->shape.page_bytes, "a whole raw transfer");
    const uint64_t data = io_uring_cqe_get_data64(cqe);
    io_uring_cqe_seen(&raw->ring, cqe);
    return data;
}

double raw_write(struct raw *raw, uint32_t round, const uint8_t *page)
{
    const struct shape *shape = &raw->shape;
    const double start = seconds();

    for (uint32_t first = 0; first < shape->pages; first += shape->batch) {
        for (uint32_t i = 0; i < shape->batch; i++) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&raw->ring);
            io_uring_prep_write(sqe, raw->fd, page, (unsigned)shape->page_bytes,
                                offset_of(raw, round, first + i));
        }
        must(io_uring_submit(&raw->ring) == (int)shape->batch, "submit");
        for (uint32_t i = 0; i < shape->batch; i++)
            (void)wait_one(raw);
        must(fdatasync(raw->fd) == 0, "fdatasync");
    }
    return seconds() - start;
}

static void start_read(struct raw *raw, uint64_t offset, uint32_t buffer)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&raw->ring);

    io_uring_prep_read(sqe, raw->fd, raw->buffers + buffer * raw->shape.page_bytes,
                       (unsigned)raw->shape.page_bytes, offset);
    io_uring_sqe_set_data64(sqe, buffer);
    must(io_uring_submit(&raw->ring) == 1, "submit");
}

double raw_read(struct raw *raw, uint32_t round, const uint32_t *order)
{
    const struct shape *shape = &raw->shape;
    const double start = seconds();
    uint32_t started = 0;

    for (; started < shape->batch; started++)
        start_read(raw, offset_of(raw, round, order[started]), started);
    for (uint32_t done = 0; done < shape->pages; done++) {
        const uint32_t buffer = (uint32_t)wait_one(raw);
        if (started < shape->pages)
            start_read(raw, offset_of(raw, round, order[started++]), buffer);
    }
    return seconds() - start;
}
