/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 in pieces, little-endian integers included; for model.c, id.c and export.c.
 */
#ifndef QR_SHA256_H
#define QR_SHA256_H

#include <stddef.h>
#include <stdint.h>

/** Room for the library's own state, so that its header stays in sha256.c. */
struct qr_sha256 {
    uint32_t state[28];
};

void qr_sha256_init(struct qr_sha256 *sha);
void qr_sha256_bytes(struct qr_sha256 *sha, const void *bytes, size_t n);
void qr_sha256_u8(struct qr_sha256 *sha, uint8_t v);
void qr_sha256_u16(struct qr_sha256 *sha, uint16_t v);
void qr_sha256_u32(struct qr_sha256 *sha, uint32_t v);
void qr_sha256_u64(struct qr_sha256 *sha, uint64_t v);
void qr_sha256_finish(struct qr_sha256 *sha, uint8_t out[32]);

#endif
