/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests of the disk tier share: a scratch folder that goes away, and an I/O
 * table whose faults the test steers.
 */
#ifndef QR_DISK_TEST_H
#define QR_DISK_TEST_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/tier/disk_io.h"
#include "tests/test.h"

/** A new folder: below QUIRE_DISK_DIR, else below the working directory (a real file system,
 * where /tmp may be RAM). */
static inline char *test_folder(void)
{
    const char *base = getenv("QUIRE_DISK_DIR");
    char *path = NULL;

    assert_true(asprintf(&path, "%s/quire-disk-XXXXXX", base ? base : ".") > 0);
    assert_non_null(mkdtemp(path));
    return path;
}

static inline int test_unlink(const char *path, const struct stat *st, int kind,
                              struct FTW *walk)
{
    (void)st;
    (void)kind;
    (void)walk;
    return remove(path);
}

static inline void test_folder_remove(char *path)
{
    (void)nftw(path, test_unlink, 16, FTW_DEPTH | FTW_PHYS);
    free(path);
}

/** The system's table with faults; `io` first, so that the two pointers are one. */
struct fault_io {
    struct qr_disk_io io;
    _Atomic uint64_t calls;       /* of any kind that may fail */
    _Atomic uint64_t fail_from;   /* the first call that fails, 1 = the next; 0: none */
    _Atomic uint64_t fail_count;  /* how many fail from there on */
    _Atomic int error;            /* positive errno */
    _Atomic uint64_t short_bytes; /* most that a read or write moves; 0: all */
    _Atomic int write_fd;         /* the gate fails its writes with EIO; -1: none */
    _Atomic int hang_fd;          /* the gate holds its operations; -1: none */
};

static inline int fault_check(struct qr_disk_io *io)
{
    struct fault_io *f = (struct fault_io *)(void *)io;
    const uint64_t call = atomic_fetch_add(&f->calls, 1) + 1;
    const uint64_t from = atomic_load(&f->fail_from);

    if (from == 0 || call < from || call - from >= atomic_load(&f->fail_count))
        return 0;
    return -atomic_load(&f->error);
}

static inline size_t fault_shorten(struct qr_disk_io *io, size_t n)
{
    const uint64_t most = atomic_load(&((struct fault_io *)(void *)io)->short_bytes);
    return most > 0 && n > most ? (size_t)most : n;
}

static inline int fault_open(struct qr_disk_io *io, int folder, const char *path, int flags,
                             mode_t mode)
{
    const int error = fault_check(io);
    return error ? error : qr_disk_io_system()->open(io, folder, path, flags, mode);
}

static inline int fault_allocate(struct qr_disk_io *io, int fd, uint64_t offset, uint64_t n)
{
    const int error = fault_check(io);
    return error ? error : qr_disk_io_system()->allocate(io, fd, offset, n);
}

static inline ssize_t fault_read(struct qr_disk_io *io, int fd, void *to, size_t n,
                                 uint64_t offset)
{
    const int error = fault_check(io);
    return error ? error : qr_disk_io_system()->read(io, fd, to, fault_shorten(io, n), offset);
}

static inline ssize_t fault_write(struct qr_disk_io *io, int fd, const void *from, size_t n,
                                  uint64_t offset)
{
    const int error = fault_check(io);
    return error ? error
                 : qr_disk_io_system()->write(io, fd, from, fault_shorten(io, n), offset);
}

static inline int fault_sync(struct qr_disk_io *io, int fd)
{
    const int error = fault_check(io);
    return error ? error : qr_disk_io_system()->sync(io, fd);
}

static inline int fault_sync_all(struct qr_disk_io *io, int fd)
{
    const int error = fault_check(io);
    return error ? error : qr_disk_io_system()->sync_all(io, fd);
}

static inline int fault_rename(struct qr_disk_io *io, int folder, const char *from,
                               const char *to)
{
    const int error = fault_check(io);
    return error ? error : qr_disk_io_system()->rename(io, folder, from, to);
}

static inline int fault_unlink(struct qr_disk_io *io, int folder, const char *path)
{
    const int error = fault_check(io);
    return error ? error : qr_disk_io_system()->unlink(io, folder, path);
}

/* io_uring's operations never come to the calls above, the threads' do: count each once. */
static inline ssize_t fault_gate(struct qr_disk_io *io, enum qr_disk_op op, int fd, size_t n)
{
    struct fault_io *f = (struct fault_io *)(void *)io;

    if (atomic_load(&f->hang_fd) == fd)
        return QR_DISK_GATE_HANG;
    if (op == QR_DISK_WRITE && atomic_load(&f->write_fd) == fd)
        return -EIO;
    const int error = fault_check(io);
    return error ? error : (ssize_t)fault_shorten(io, n);
}

static inline void fault_init(struct fault_io *f)
{
    *f = (struct fault_io){.io = {.open = fault_open,
                                  .close = qr_disk_io_system()->close,
                                  .allocate = fault_allocate,
                                  .read = fault_read,
                                  .write = fault_write,
                                  .sync = fault_sync,
                                  .sync_all = fault_sync_all,
                                  .rename = fault_rename,
                                  .unlink = fault_unlink,
                                  .gate = fault_gate},
                           .error = EIO,
                           .write_fd = -1,
                           .hang_fd = -1};
}

/** Fail `count` calls from the n-th one counted from now. */
static inline void fault_arm(struct fault_io *f, uint64_t n, uint64_t count, int error)
{
    atomic_store(&f->error, error);
    atomic_store(&f->fail_count, count);
    atomic_store(&f->fail_from, n == 0 ? 0 : atomic_load(&f->calls) + n);
}

#endif
