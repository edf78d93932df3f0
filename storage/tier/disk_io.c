/* SPDX-License-Identifier: Apache-2.0
 *
 * The system's calls behind the table of disk_io.h, and loops that carry on
 * after short counts.
 */
#include "disk_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define RETRIES_MAX 1000u /* of EAGAIN in a row: a device that only says so is broken */

static int system_open(struct qr_disk_io *io, int folder, const char *path, int flags,
                       mode_t mode)
{
    (void)io;
    const int fd = openat(folder, path, flags | O_CLOEXEC, mode);
    return fd < 0 ? -errno : fd;
}

static void system_close(struct qr_disk_io *io, int fd)
{
    (void)io;
    (void)close(fd);
}

static int system_allocate(struct qr_disk_io *io, int fd, uint64_t offset, uint64_t bytes)
{
    (void)io;
    return -posix_fallocate(fd, (off_t)offset, (off_t)bytes);
}

static ssize_t system_read(struct qr_disk_io *io, int fd, void *to, size_t n, uint64_t offset)
{
    (void)io;
    const ssize_t got = pread(fd, to, n, (off_t)offset);
    return got < 0 ? -errno : got;
}

static ssize_t system_write(struct qr_disk_io *io, int fd, const void *from, size_t n,
                            uint64_t offset)
{
    (void)io;
    const ssize_t put = pwrite(fd, from, n, (off_t)offset);
    return put < 0 ? -errno : put;
}

static int system_sync(struct qr_disk_io *io, int fd)
{
    (void)io;
    return fdatasync(fd) < 0 ? -errno : 0;
}

static int system_sync_all(struct qr_disk_io *io, int fd)
{
    (void)io;
    return fsync(fd) < 0 ? -errno : 0;
}

static int system_rename(struct qr_disk_io *io, int folder, const char *from, const char *to)
{
    (void)io;
    return renameat(folder, from, folder, to) < 0 ? -errno : 0;
}

static int system_unlink(struct qr_disk_io *io, int folder, const char *path)
{
    (void)io;
    return unlinkat(folder, path, 0) < 0 ? -errno : 0;
}

struct qr_disk_io *qr_disk_io_system(void)
{
    static struct qr_disk_io io = {
        .open = system_open,
        .close = system_close,
        .allocate = system_allocate,
        .read = system_read,
        .write = system_write,
        .sync = system_sync,
        .sync_all = system_sync_all,
        .rename = system_rename,
        .unlink = system_unlink,
    };
    return &io;
}

/* True when the call is to be made again. */
static bool again(ssize_t result, uint32_t *retries)
{
    if (result != -EINTR && result != -EAGAIN)
        return false;
    return ++*retries <= RETRIES_MAX;
}

int qr_disk_read_all(struct qr_disk_io *io, int fd, void *to, size_t n, uint64_t offset)
{
    uint32_t retries = 0;

    for (size_t at = 0; at < n;) {
        const ssize_t got = io->read(io, fd, (char *)to + at, n - at, offset + at);
        if (again(got, &retries))
            continue;
        if (got <= 0)
            return got < 0 ? (int)got : -ENODATA;
        at += (size_t)got;
        retries = 0;
    }
    return 0;
}

int qr_disk_write_all(struct qr_disk_io *io, int fd, const void *from, size_t n,
                      uint64_t offset)
{
    uint32_t retries = 0;

    for (size_t at = 0; at < n;) {
        const ssize_t put = io->write(io, fd, (const char *)from + at, n - at, offset + at);
        if (again(put, &retries))
            continue;
        if (put <= 0)
            return put < 0 ? (int)put : -ENOSPC;
        at += (size_t)put;
        retries = 0;
    }
    return 0;
}

quire_status qr_disk_status(int negative_errno)
{
    switch (-negative_errno) {
    case 0:
        return QUIRE_OK;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return QUIRE_EFULL;
    case ENOMEM:
        return QUIRE_ENOMEM;
    case EACCES:
    case EPERM:
    case EROFS:
        return QUIRE_EPERM;
    case ETIMEDOUT:
        return QUIRE_ETIMEOUT;
    case ECANCELED:
        return QUIRE_ECANCELED;
    default:
        return QUIRE_EIO;
    }
}
