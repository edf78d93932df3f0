/* SPDX-License-Identifier: Apache-2.0
 *
 * A whole block device in the place of a folder: its first block is the header
 * that a slab file has, the rest are regions. It has no file QUIRE and no LOCK:
 * the header says whose it is, and it is opened exclusively. Must not know slots.
 */
#ifndef QR_DISK_BLOCK_DEVICE_H
#define QR_DISK_BLOCK_DEVICE_H

#include "disk_home.h"

/** Whether the path is a block device that is there. */
bool qr_disk_is_block(const char *path);

/**
 * Open device `number` of the store, whose other facts `home` has. With `making` an empty one
 * (its first MiB is zeros) becomes the store's.
 *
 * Errors: EMISMATCH (of another store or place; holds something else), EUNAVAILABLE (mounted,
 * or in use), ENOTFOUND (empty, and the store is not being made), ETOOBIG (too small), EPERM,
 * EIO.
 */
quire_status qr_disk_block_enter(const struct qr_disk_home_config *config,
                                 struct qr_disk_home *home, uint32_t number, bool making,
                                 struct qr_error *e);

/** Bytes that a device has for the header and regions: those of its slab file, or of the block
 * device up to `cap_bytes` (0: all of it). False: cannot tell. */
bool qr_disk_device_bytes(const struct qr_disk_device *device, uint64_t cap_bytes,
                          uint64_t *out);

#endif
