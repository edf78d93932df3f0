/* SPDX-License-Identifier: Apache-2.0
 *
 * The identity file of a device's folder and the header of its slab file: text
 * and bytes to struct and back. Pure functions; layouts in proto/INDEX.md.
 */
#ifndef QR_DISK_IDENTITY_H
#define QR_DISK_IDENTITY_H

#include "disk_home.h"

#define QR_DISK_IDENTITY_MAX 2048u /* bytes of the file */

struct qr_disk_identity {
    uint32_t version;
    uint8_t store[QR_DISK_UUID_BYTES];
    uint32_t device, count; /* which of how many */
    uint64_t region_bytes;
    bool ready; /* false: the folder is being made */
    uint8_t device_ids[QR_DISK_DEVICES_MAX][QR_DISK_UUID_BYTES];
};

/** Text of the file; bytes without the NUL. */
size_t qr_disk_identity_write(const struct qr_disk_identity *identity,
                              char out[QR_DISK_IDENTITY_MAX]);
/** EUNSUPPORTED: newer version, the only field then set; ECORRUPT: anything else wrong. */
quire_status qr_disk_identity_read(const char *text, size_t n, struct qr_disk_identity *out);

/** The slab file's first block. */
void qr_disk_slab_header_write(const struct qr_disk_identity *identity,
                               uint8_t out[QR_DISK_BLOCK]);
/** EMISMATCH: whole, but of another store or device; ECORRUPT. */
quire_status qr_disk_slab_header_check(const struct qr_disk_identity *identity,
                                       const uint8_t block[QR_DISK_BLOCK]);

#endif
