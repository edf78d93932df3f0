/* SPDX-License-Identifier: Apache-2.0
 *
 * The folders of a disk store: one for each device, each with an identity file,
 * a lock and a slab file. Makes a new store in empty folders, or checks that the
 * folders are all of one store, in order, and of a version known here. Deletes
 * and rewrites nothing that it did not make. Must not know slots or the index.
 *
 *   (empty) -make-> identity says "making" -> lock, slab file -> identity says "ready"
 *   A start that finds "making" carries on; one that finds "ready" creates nothing.
 */
#ifndef QR_DISK_HOME_H
#define QR_DISK_HOME_H

#include "disk_io.h"

#define QR_DISK_DEVICES_MAX 16u
#define QR_DISK_VERSION 1u /* of everything in the folders; see proto/INDEX.md */
#define QR_DISK_UUID_BYTES 16u
#define QR_DISK_SLAB_START QR_DISK_BLOCK /* regions begin behind the slab file's header */

struct qr_disk_home_config {
    struct qr_disk_io *io;
    const char *folders[QR_DISK_DEVICES_MAX]; /* the first also holds index and tail log; others
                                                 may be block devices, see disk_block.h */
    uint32_t count;
    uint64_t region_bytes; /* of a new store; an old one keeps its own */
    bool create;           /* make a store where the folders are absent or empty */
    bool read_only;        /* make, write and create nothing; the lock is taken all the same */
    bool allow_missing;    /* serve without folders that cannot be opened, but for the first */
};

struct qr_disk_device {
    int folder_fd, lock_fd; /* -1 on a device that is missing */
    int slab_fd;
    bool direct;          /* O_DIRECT works */
    uint64_t block_bytes; /* size of a block device; 0: a folder with a slab file */
};

struct qr_disk_home {
    uint8_t store[QR_DISK_UUID_BYTES];
    uint8_t device_ids[QR_DISK_DEVICES_MAX][QR_DISK_UUID_BYTES];
    uint32_t version; /* that the folders had before this start */
    uint64_t region_bytes;
    uint32_t count;
    bool fresh; /* made, or made to its end, by this call */
    struct qr_disk_device devices[QR_DISK_DEVICES_MAX];
};

/**
 * Open or make the folders; fills `*out`, which qr_disk_home_close gives back.
 *
 * Errors: ENOTFOUND (no store there and !create), EPERM, EUNSUPPORTED (newer version),
 * EMISMATCH (foreign folder, folders mixed up, slab file of another), EUNAVAILABLE (another
 * process has it open), ECORRUPT (identity damaged), EFULL, EIO. The text is one line and says
 * what to do.
 */
quire_status qr_disk_home_open(const struct qr_disk_home_config *config,
                               struct qr_disk_home *out, struct qr_error *e);
/** Once the index is of this version: the folders that are there say so, too. */
quire_status qr_disk_home_upgraded(const struct qr_disk_home_config *config,
                                   struct qr_disk_home *home, struct qr_error *e);
void qr_disk_home_close(struct qr_disk_io *io, struct qr_disk_home *home);

/** 32 hexadecimal digits and a NUL. */
void qr_disk_uuid_text(const uint8_t uuid[QR_DISK_UUID_BYTES], char out[33]);

#endif
