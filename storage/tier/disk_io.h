/* SPDX-License-Identifier: Apache-2.0
 *
 * Every system call of the disk tier on files of its own, behind one table, so
 * that tests can fail the n-th one, shorten it, or let it hang. RocksDB's files
 * are not among them. Must not know what the files hold.
 */
#ifndef QR_DISK_IO_H
#define QR_DISK_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/status.h"

#define QR_DISK_BLOCK 4096u /* alignment of every offset, length and buffer under O_DIRECT */

enum qr_disk_op { QR_DISK_READ, QR_DISK_WRITE, QR_DISK_SYNC };

#define QR_DISK_GATE_HANG (-100000) /* of `gate`: do not start it yet, ask again later */

/** Calls return what the system call does, or -errno; any thread. */
struct qr_disk_io {
    int (*open)(struct qr_disk_io *io, int folder, const char *path, int flags, mode_t mode);
    void (*close)(struct qr_disk_io *io, int fd);
    int (*allocate)(struct qr_disk_io *io, int fd, uint64_t offset, uint64_t bytes);
    ssize_t (*read)(struct qr_disk_io *io, int fd, void *to, size_t n, uint64_t offset);
    ssize_t (*write)(struct qr_disk_io *io, int fd, const void *from, size_t n,
                     uint64_t offset);
    int (*sync)(struct qr_disk_io *io, int fd);     /* fdatasync */
    int (*sync_all)(struct qr_disk_io *io, int fd); /* fsync: folders and sizes */
    int (*rename)(struct qr_disk_io *io, int folder, const char *from, const char *to);
    int (*unlink)(struct qr_disk_io *io, int folder, const char *path);
    /** Asked before the ring starts an operation of `n` bytes: n to go on, less for a short
     * one, -errno to fail it, QR_DISK_GATE_HANG. NULL: always go on. */
    ssize_t (*gate)(struct qr_disk_io *io, enum qr_disk_op op, int fd, size_t n);
};

/** The system's calls; one table for all, never freed. */
struct qr_disk_io *qr_disk_io_system(void);

/** Read or write all n bytes, over short counts, EINTR and EAGAIN. 0 or -errno; -ENODATA when
 * the file ends first. */
int qr_disk_read_all(struct qr_disk_io *io, int fd, void *to, size_t n, uint64_t offset);
int qr_disk_write_all(struct qr_disk_io *io, int fd, const void *from, size_t n,
                      uint64_t offset);

/** Status of a -errno: EFULL for a full device or quota, EPERM, ENOMEM, ETIMEOUT, ECANCELED,
 * else EIO. */
quire_status qr_disk_status(int negative_errno);

static inline uint64_t qr_disk_round_up(uint64_t n)
{
    return (n + QR_DISK_BLOCK - 1) / QR_DISK_BLOCK * QR_DISK_BLOCK;
}

#endif
