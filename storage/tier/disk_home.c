/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens, checks and makes the folders of a store. Must not know what the slabs
 * hold.
 *
 * Names in a folder: QUIRE (identity), QUIRE.new (while it is replaced), LOCK, slabs; in the
 * first folder also index/ and tail/.
 */
#include "disk_home.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disk_block.h"
#include "disk_identity.h"
#include "storage/base/log.h"
#include "storage/base/random.h"

#define IDENTITY "QUIRE"
#define IDENTITY_NEW "QUIRE.new"
#define FOLDER_MODE 0700
#define FILE_MODE 0600

/* What a folder is before anything is done to it. */
enum found { FOUND_NOTHING, FOUND_EMPTY, FOUND_IDENTITY };

static quire_status fail(struct qr_error *e, const char *folder, const char *what, int error)
{
    const quire_status status = qr_disk_status(error);
    if (error == -EACCES)
        return qr_error_set(e, status,
                            "%s: cannot %s: %s: it must belong to the user that runs this",
                            folder, what, strerror(-error));
    return qr_error_set(e, status, "%s: cannot %s: %s", folder, what, strerror(-error));
}

static quire_status read_identity(struct qr_disk_io *io, int folder_fd, const char *folder,
                                  struct qr_disk_identity *out, struct qr_error *e)
{
    char text[QR_DISK_IDENTITY_MAX];
    size_t n = 0;
    const int fd = io->open(io, folder_fd, IDENTITY, O_RDONLY, 0);

    if (fd < 0)
        return fail(e, folder, "open its file QUIRE", fd);
    while (n < sizeof(text)) {
        const ssize_t got = io->read(io, fd, text + n, sizeof(text) - n, n);
        if (got < 0) {
            io->close(io, fd);
            return fail(e, folder, "read its file QUIRE", (int)got);
        }
        if (got == 0)
            break;
        n += (size_t)got;
    }
    io->close(io, fd);
    const quire_status status = qr_disk_identity_read(text, n, out);
    if (status == QUIRE_EUNSUPPORTED)
        return qr_error_set(e, status,
                            "%s: made by a newer Quire (store version %u, this one knows up to "
                            "%u): start that Quire, or use another folder",
                            folder, out->version, QR_DISK_VERSION);
    if (status != QUIRE_OK)
        return qr_error_set(e, status,
                            "%s: its file QUIRE is damaged or not Quire's: restore it from a "
                            "backup, or use another folder",
                            folder);
    return QUIRE_OK;
}

static quire_status write_identity(struct qr_disk_io *io, int folder_fd, const char *folder,
                                   const struct qr_disk_identity *identity, struct qr_error *e)
{
    char text[QR_DISK_IDENTITY_MAX];
    const size_t n = qr_disk_identity_write(identity, text);
    const int fd =
        io->open(io, folder_fd, IDENTITY_NEW, O_WRONLY | O_CREAT | O_TRUNC, FILE_MODE);

    if (fd < 0)
        return fail(e, folder, "make its file QUIRE", fd);
    int error = qr_disk_write_all(io, fd, text, n, 0);
    if (error == 0)
        error = io->sync_all(io, fd);
    io->close(io, fd);
    if (error == 0)
        error = io->rename(io, folder_fd, IDENTITY_NEW, IDENTITY);
    if (error == 0)
        error = io->sync_all(io, folder_fd);
    return error == 0 ? QUIRE_OK : fail(e, folder, "write its file QUIRE", error);
}

/* A folder that a start was making when it died before its identity was in place. */
static bool is_ours_or_none(const char *name)
{
    static const char *const ours[] = {".", "..", "LOCK", IDENTITY_NEW, "lost+found"};

    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        if (strcmp(name, ours[i]) == 0)
            return true;
    }
    return false;
}

static quire_status look(const char *folder, enum found *out, struct qr_error *e)
{
    DIR *listing = opendir(folder);
    struct dirent *entry;
    char strange[64] = "";
    bool identity = false;

    if (!listing && errno == ENOENT) {
        *out = FOUND_NOTHING;
        return QUIRE_OK;
    }
    if (!listing)
        return fail(e, folder, "list the folder", -errno);
    while ((entry = readdir(listing)) != NULL) {
        if (strcmp(entry->d_name, IDENTITY) == 0)
            identity = true;
        else if (!is_ours_or_none(entry->d_name) && !strange[0])
            (void)snprintf(strange, sizeof(strange), "%.60s", entry->d_name);
    }
    (void)closedir(listing);
    if (!identity && strange[0])
        return qr_error_set(
            e, QUIRE_EMISMATCH,
            "%s: holds '%s' and no file QUIRE, so it is not a Quire store: give "
            "an empty folder, or a store's",
            folder, strange);
    *out = identity ? FOUND_IDENTITY : FOUND_EMPTY;
    return QUIRE_OK;
}

/* With read_only a LOCK that is not there is nobody's: whoever opens a store makes it first. */
static quire_status lock(struct qr_disk_io *io, struct qr_disk_device *device, bool read_only,
                         const char *folder, struct qr_error *e)
{
    const int flags = read_only ? O_RDONLY : O_RDWR | O_CREAT;
    const int fd = io->open(io, device->folder_fd, "LOCK", flags, FILE_MODE);

    if (fd == -ENOENT && read_only)
        return QUIRE_OK;
    if (fd < 0)
        return fail(e, folder, "open its file LOCK", fd);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const int error = -errno;
        io->close(io, fd);
        if (error == -EWOULDBLOCK)
            return qr_error_set(e, QUIRE_EUNAVAILABLE,
                                "%s: another process has this store open: stop it first, or "
                                "use another folder",
                                folder);
        return fail(e, folder, "lock its file LOCK", error);
    }
    device->lock_fd = fd;
    return QUIRE_OK;
}

static int open_slabs(struct qr_disk_io *io, struct qr_disk_device *device, int flags)
{
    int fd = io->open(io, device->folder_fd, "slabs", O_DIRECT | flags, FILE_MODE);

    device->direct = fd >= 0;
    if (fd == -EINVAL) /* the file system has no O_DIRECT */
        fd = io->open(io, device->folder_fd, "slabs", flags, FILE_MODE);
    return fd;
}

static quire_status make_slabs(struct qr_disk_io *io, struct qr_disk_device *device,
                               const struct qr_disk_identity *identity, const char *folder,
                               struct qr_error *e)
{
    _Alignas(QR_DISK_BLOCK) uint8_t block[QR_DISK_BLOCK];
    const int fd = open_slabs(io, device, O_RDWR | O_CREAT);

    if (fd < 0)
        return fail(e, folder, "make its file slabs", fd);
    qr_disk_slab_header_write(identity, block);
    int error = qr_disk_write_all(io, fd, block, sizeof(block), 0);
    if (error == 0)
        error = io->sync_all(io, fd);
    if (error == 0)
        error = io->sync_all(io, device->folder_fd);
    device->slab_fd = fd;
    return error == 0 ? QUIRE_OK : fail(e, folder, "write its file slabs", error);
}

static quire_status check_slabs(struct qr_disk_io *io, struct qr_disk_device *device,
                                const struct qr_disk_identity *identity, bool read_only,
                                const char *folder, struct qr_error *e)
{
    _Alignas(QR_DISK_BLOCK) uint8_t block[QR_DISK_BLOCK];
    const int fd = open_slabs(io, device, read_only ? O_RDONLY : O_RDWR);

    if (fd < 0)
        return fail(e, folder, "open its file slabs, which the store needs", fd);
    device->slab_fd = fd;
    const int error = qr_disk_read_all(io, fd, block, sizeof(block), 0);
    if (error != 0)
        return fail(e, folder, "read its file slabs", error);
    const quire_status status = qr_disk_slab_header_check(identity, block);
    if (status == QUIRE_EMISMATCH)
        return qr_error_set(e, status,
                            "%s: its file slabs is of another store or device: put each slab "
                            "file back into its own folder",
                            folder);
    if (status != QUIRE_OK)
        return qr_error_set(
            e, status, "%s: the first block of its file slabs is damaged: put back a good copy",
            folder);
    return QUIRE_OK;
}

/* Identity in place and of this store: carry on making it, or check it. */
static quire_status enter(const struct qr_disk_home_config *config,
                          struct qr_disk_device *device, struct qr_disk_identity *identity,
                          const char *folder, struct qr_error *e)
{
    struct qr_disk_io *io = config->io;
    quire_status status = QUIRE_OK;

    if (identity->ready) {
        status = check_slabs(io, device, identity, config->read_only, folder, e);
    } else if (config->read_only) {
        return qr_error_set(e, QUIRE_EUNAVAILABLE,
                            "%s: a store that is still being made: start quired once, it "
                            "carries on",
                            folder);
    } else {
        status = make_slabs(io, device, identity, folder, e);
        identity->ready = true;
        if (status == QUIRE_OK)
            status = write_identity(io, device->folder_fd, folder, identity, e);
    }
    if (status == QUIRE_OK && !device->direct)
        QR_LOG(QR_LOG_WARN, "disk.buffered", QR_LOG_STR("folder", folder),
               QR_LOG_STR("why", "the file system has no O_DIRECT"));
    return status;
}

static quire_status open_folder(const struct qr_disk_home_config *config, const char *folder,
                                struct qr_disk_device *device, struct qr_error *e)
{
    struct qr_disk_io *io = config->io;
    const int fd = io->open(io, AT_FDCWD, folder, O_RDONLY | O_DIRECTORY, 0);

    if (fd < 0)
        return fail(e, folder, "open the folder", fd);
    device->folder_fd = fd;
    return lock(io, device, config->read_only, folder, e);
}

/* The folder's identity must be the store's, at this place of the list. */
static quire_status join(const struct qr_disk_home *home,
                         const struct qr_disk_identity *identity, uint32_t number,
                         const char *folder, struct qr_error *e)
{
    if (memcmp(identity->store, home->store, QR_DISK_UUID_BYTES) != 0)
        return qr_error_set(e, QUIRE_EMISMATCH,
                            "%s: belongs to another store than the first folder: list the "
                            "folders of one store",
                            folder);
    if (identity->device != number)
        return qr_error_set(e, QUIRE_EMISMATCH,
                            "%s: is folder %u of its store, and is listed as number %u: list "
                            "the folders in their order",
                            folder, identity->device, number);
    if (identity->count != home->count)
        return qr_error_set(e, QUIRE_EMISMATCH,
                            "%s: its store has %u folders, and %u are listed: list all of them",
                            folder, identity->count, home->count);
    return QUIRE_OK;
}

static quire_status make_folder(const struct qr_disk_home_config *config,
                                struct qr_disk_home *home, uint32_t number, struct qr_error *e)
{
    const char *folder = config->folders[number];
    struct qr_disk_device *device = &home->devices[number];
    struct qr_disk_identity identity = {.version = QR_DISK_VERSION,
                                        .device = number,
                                        .count = home->count,
                                        .region_bytes = home->region_bytes};

    if (mkdir(folder, FOLDER_MODE) != 0 && errno != EEXIST)
        return fail(e, folder, "make the folder", -errno);
    memcpy(identity.store, home->store, sizeof(identity.store));
    memcpy(identity.device_ids, home->device_ids, sizeof(identity.device_ids));
    quire_status status = open_folder(config, folder, device, e);
    if (status == QUIRE_OK)
        status = write_identity(config->io, device->folder_fd, folder, &identity, e);
    if (status == QUIRE_OK)
        status = enter(config, device, &identity, folder, e);
    return status;
}

static quire_status enter_folder(const struct qr_disk_home_config *config,
                                 struct qr_disk_home *home, uint32_t number, struct qr_error *e)
{
    const char *folder = config->folders[number];
    struct qr_disk_device *device = &home->devices[number];
    struct qr_disk_identity identity = {0};
    quire_status status = open_folder(config, folder, device, e);

    if (status == QUIRE_OK)
        status = read_identity(config->io, device->folder_fd, folder, &identity, e);
    if (status == QUIRE_OK)
        status = join(home, &identity, number, folder, e);
    if (status == QUIRE_OK)
        status = enter(config, device, &identity, folder, e);
    return status;
}

/* A folder but the first: there, or to be made as long as the first is not ready, or missing.
 */
static quire_status open_other(const struct qr_disk_home_config *config,
                               struct qr_disk_home *home, uint32_t number, bool making,
                               struct qr_error *e)
{
    const bool block = qr_disk_is_block(config->folders[number]);
    enum found found = FOUND_NOTHING;
    quire_status status = block ? QUIRE_OK : look(config->folders[number], &found, e);

    if (block)
        status = qr_disk_block_enter(config, home, number, making, e);
    else if (status == QUIRE_OK && found == FOUND_IDENTITY)
        status = enter_folder(config, home, number, e);
    else if (status == QUIRE_OK && making && !config->read_only)
        status = make_folder(config, home, number, e);
    else if (status == QUIRE_OK)
        status = qr_error_set(e, QUIRE_ENOTFOUND,
                              "%s: has no file QUIRE, and its store has: mount the device, or "
                              "allow a start without it",
                              config->folders[number]);
    if (config->allow_missing && !making &&
        (status == QUIRE_ENOTFOUND || status == QUIRE_EIO)) {
        QR_LOG(QR_LOG_WARN, "disk.device_missing",
               QR_LOG_STR("folder", config->folders[number]));
        return QUIRE_OK;
    }
    return status;
}

/* The first folder's identity names the store and every device before any other folder is
 * touched, so that a start that dies can be carried on. */
static quire_status start_new(const struct qr_disk_home_config *config,
                              struct qr_disk_home *home, struct qr_disk_identity *identity,
                              struct qr_error *e)
{
    *identity = (struct qr_disk_identity){.version = QR_DISK_VERSION,
                                          .count = config->count,
                                          .region_bytes = config->region_bytes};
    home->fresh = true;
    quire_status status = qr_random_fill(identity->store, sizeof(identity->store), e);
    for (uint32_t d = 0; d < config->count && status == QUIRE_OK; d++)
        status = qr_random_fill(identity->device_ids[d], QR_DISK_UUID_BYTES, e);
    if (status == QUIRE_OK && mkdir(config->folders[0], FOLDER_MODE) != 0 && errno != EEXIST)
        status = fail(e, config->folders[0], "make the folder", -errno);
    if (status == QUIRE_OK)
        status = open_folder(config, config->folders[0], &home->devices[0], e);
    if (status == QUIRE_OK)
        status = write_identity(config->io, home->devices[0].folder_fd, config->folders[0],
                                identity, e);
    return status;
}

static quire_status open_all(const struct qr_disk_home_config *config,
                             struct qr_disk_home *home, bool exists, struct qr_error *e)
{
    struct qr_disk_identity first = {0};
    quire_status status;

    if (exists) {
        status = open_folder(config, config->folders[0], &home->devices[0], e);
        if (status == QUIRE_OK)
            status = read_identity(config->io, home->devices[0].folder_fd, config->folders[0],
                                   &first, e);
    } else {
        status = start_new(config, home, &first, e);
    }
    if (status != QUIRE_OK)
        return status;
    memcpy(home->store, first.store, sizeof(home->store));
    memcpy(home->device_ids, first.device_ids, sizeof(home->device_ids));
    home->version = first.version;
    home->fresh = !first.ready; /* or a start that died while making it */
    home->region_bytes = first.region_bytes;
    status = join(home, &first, 0, config->folders[0], e);
    for (uint32_t d = 1; d < home->count && status == QUIRE_OK; d++)
        status = open_other(config, home, d, !first.ready, e);
    return status == QUIRE_OK ? enter(config, &home->devices[0], &first, config->folders[0], e)
                              : status;
}

quire_status qr_disk_home_open(const struct qr_disk_home_config *config,
                               struct qr_disk_home *out, struct qr_error *e)
{
    struct qr_disk_home home = {.count = config->count, .version = QR_DISK_VERSION};
    enum found first = FOUND_NOTHING;

    if (config->count == 0 || config->count > QR_DISK_DEVICES_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "%u disk folders: 1 to %u", config->count,
                            QR_DISK_DEVICES_MAX);
    for (uint32_t d = 0; d < QR_DISK_DEVICES_MAX; d++)
        home.devices[d] = (struct qr_disk_device){-1, -1, -1, false, 0};
    if (qr_disk_is_block(config->folders[0]))
        return qr_error_set(e, QUIRE_EINVAL,
                            "%s: is a block device; name a folder before it, which holds index "
                            "and tail log",
                            config->folders[0]);
    quire_status status = look(config->folders[0], &first, e);
    if (status == QUIRE_OK && first != FOUND_IDENTITY && !config->create)
        status =
            qr_error_set(e, QUIRE_ENOTFOUND, "%s: no Quire store here", config->folders[0]);
    if (status == QUIRE_OK)
        status = open_all(config, &home, first == FOUND_IDENTITY, e);
    if (status != QUIRE_OK) {
        qr_disk_home_close(config->io, &home);
        return status;
    }
    *out = home;
    return QUIRE_OK;
}

quire_status qr_disk_home_upgraded(const struct qr_disk_home_config *config,
                                   struct qr_disk_home *home, struct qr_error *e)
{
    struct qr_disk_identity identity = {.version = QR_DISK_VERSION,
                                        .count = home->count,
                                        .region_bytes = home->region_bytes,
                                        .ready = true};
    quire_status status = QUIRE_OK;

    memcpy(identity.store, home->store, sizeof(identity.store));
    memcpy(identity.device_ids, home->device_ids, sizeof(identity.device_ids));
    for (; identity.device < home->count && status == QUIRE_OK; identity.device++) {
        const int folder_fd = home->devices[identity.device].folder_fd;
        if (folder_fd >= 0)
            status = write_identity(config->io, folder_fd, config->folders[identity.device],
                                    &identity, e);
    }
    if (status == QUIRE_OK)
        home->version = QR_DISK_VERSION;
    return status;
}

void qr_disk_home_close(struct qr_disk_io *io, struct qr_disk_home *home)
{
    for (uint32_t d = 0; d < home->count && d < QR_DISK_DEVICES_MAX; d++) {
        struct qr_disk_device *device = &home->devices[d];
        if (device->slab_fd >= 0)
            io->close(io, device->slab_fd);
        if (device->lock_fd >= 0)
            io->close(io, device->lock_fd);
        if (device->folder_fd >= 0)
            io->close(io, device->folder_fd);
        *device = (struct qr_disk_device){-1, -1, -1, false, 0};
    }
}
