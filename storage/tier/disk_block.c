/* SPDX-License-Identifier: Apache-2.0
 *
 * Block devices as devices of a store. What is on one already is only ever
 * overwritten when it is nothing.
 */
#include "disk_block.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>

#include <linux/fs.h>

#include "disk_identity.h"

#define BUSY_TRIES 100u
#define BUSY_PAUSE_NS 10000000
#define EMPTY_BYTES (1u << 20) /* where file systems, tables and volumes have their marks */

bool qr_disk_is_block(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISBLK(st.st_mode);
}

bool qr_disk_device_bytes(const struct qr_disk_device *device, uint64_t cap_bytes,
                          uint64_t *out)
{
    struct stat st;

    if (device->block_bytes > 0) {
        *out =
            cap_bytes > 0 && cap_bytes < device->block_bytes ? cap_bytes : device->block_bytes;
        return true;
    }
    if (device->slab_fd < 0 || fstat(device->slab_fd, &st) != 0)
        return false;
    *out = (uint64_t)st.st_size;
    return true;
}

static quire_status fail(struct qr_error *e, const char *path, const char *what, int error)
{
    if (error == -EBUSY)
        return qr_error_set(e, QUIRE_EUNAVAILABLE,
                            "%s: this device is mounted or in use: unmount it, or stop the "
                            "process that has it",
                            path);
    return qr_error_set(e, qr_disk_status(error), "%s: cannot %s this device: %s", path, what,
                        strerror(-error));
}

static quire_status open_device(const struct qr_disk_home_config *config, const char *path,
                                struct qr_disk_device *device, struct qr_error *e)
{
    const int flags = (config->read_only ? O_RDONLY : O_RDWR) | O_DIRECT | O_EXCL;
    int fd = config->io->open(config->io, AT_FDCWD, path, flags, 0);

    /* The kernel lets go of an io_uring's files a little after they were closed. */
    for (uint32_t i = 0; fd == -EBUSY && i < BUSY_TRIES; i++) {
        (void)nanosleep(&(struct timespec){.tv_nsec = BUSY_PAUSE_NS}, NULL);
        fd = config->io->open(config->io, AT_FDCWD, path, flags, 0);
    }

    if (fd < 0)
        return fail(e, path, "open", fd);
    device->slab_fd = fd;
    device->direct = true;
    if (ioctl(fd, BLKGETSIZE64, &device->block_bytes) != 0)
        return fail(e, path, "ask the size of", -errno);
    if (device->block_bytes < QR_DISK_SLAB_START + EMPTY_BYTES)
        return qr_error_set(e, QUIRE_ETOOBIG,
                            "%s: a device of %" PRIu64 " bytes has no room for a slab", path,
                            device->block_bytes);
    return QUIRE_OK;
}

/* Make it the store's; `start`: its first EMPTY_BYTES. */
static quire_status claim(const struct qr_disk_home_config *config, const char *path,
                          const struct qr_disk_identity *identity, int fd, uint8_t *start,
                          struct qr_error *e)
{
    for (size_t i = 0; i < EMPTY_BYTES; i++) {
        if (start[i] != 0)
            return qr_error_set(
                e, QUIRE_EMISMATCH,
                "%s: this device holds something that is not this store's "
                "(byte %zu is not zero): empty it with blkdiscard or wipefs, or "
                "name another",
                path, i);
    }
    qr_disk_slab_header_write(identity, start);
    int error = qr_disk_write_all(config->io, fd, start, QR_DISK_BLOCK, 0);
    if (error == 0)
        error = config->io->sync_all(config->io, fd);
    return error == 0 ? QUIRE_OK : fail(e, path, "write", error);
}

static quire_status check_start(const struct qr_disk_home_config *config, const char *path,
                                const struct qr_disk_identity *identity, int fd, bool making,
                                struct qr_error *e)
{
    uint8_t *start = aligned_alloc(QR_DISK_BLOCK, EMPTY_BYTES);

    if (!start)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory to look at %s", path);
    const int error = qr_disk_read_all(config->io, fd, start, EMPTY_BYTES, 0);
    quire_status status =
        error == 0 ? qr_disk_slab_header_check(identity, start) : fail(e, path, "read", error);
    if (error == 0 && status == QUIRE_EMISMATCH)
        (void)qr_error_set(e, status,
                           "%s: this device is of another store, or another one of this store: "
                           "name the store's devices in their order",
                           path);
    else if (error == 0 && status != QUIRE_OK && making && !config->read_only)
        status = claim(config, path, identity, fd, start, e);
    else if (error == 0 && status != QUIRE_OK)
        status =
            qr_error_set(e, QUIRE_ENOTFOUND,
                         "%s: this device is not the store's: name the right one, or allow "
                         "a start without it",
                         path);
    free(start);
    return status;
}

quire_status qr_disk_block_enter(const struct qr_disk_home_config *config,
                                 struct qr_disk_home *home, uint32_t number, bool making,
                                 struct qr_error *e)
{
    const char *path = config->folders[number];
    struct qr_disk_device *device = &home->devices[number];
    struct qr_disk_identity identity = {
        .version = QR_DISK_VERSION, .device = number, .count = home->count};

    memcpy(identity.store, home->store, sizeof(identity.store));
    memcpy(identity.device_ids, home->device_ids, sizeof(identity.device_ids));
    quire_status status = open_device(config, path, device, e);
    if (status == QUIRE_OK)
        status = check_start(config, path, &identity, device->slab_fd, making, e);
    if (status != QUIRE_OK && device->slab_fd >= 0) {
        config->io->close(config->io, device->slab_fd);
        *device = (struct qr_disk_device){.folder_fd = -1, .lock_fd = -1, .slab_fd = -1};
    }
    return status;
}
