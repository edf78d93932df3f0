/* SPDX-License-Identifier: Apache-2.0
 *
 * A calibration: level tables of `nuq` for each layer of one model, keys and
 * values apart, and the file that carries it. Part of the model and of its
 * fingerprint. Must not know how the levels were found.
 *
 * File, little-endian: "QUIRECAL", u64 XXH3-64 of what follows, u16 version 1,
 * u16 0, u32 layers, u32 set of bits (bit b: tables of 2^b levels), u32 0, the
 * 32 bytes of the model's fingerprint without calibration, then for each layer,
 * keys and then values, its tables by ascending bits: FP16, ascending, -1 to 1.
 */
#ifndef QR_CALIBRATION_H
#define QR_CALIBRATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define QR_CALIBRATION_MAGIC "QUIRECAL" /* without a NUL: 8 bytes */
#define QR_CALIBRATION_VERSION 1
#define QR_CALIBRATION_HEAD_BYTES 64u
#define QR_CALIBRATION_LAYERS 512
#define QR_CALIBRATION_LEVELS 28 /* 4 + 8 + 16 */
#define QR_CALIBRATION_BYTES_MAX                                                               \
    (QR_CALIBRATION_HEAD_BYTES + QR_CALIBRATION_LAYERS * 2u * QR_CALIBRATION_LEVELS * 2u)

struct qr_calibration {
    uint32_t layers; /* 0: there is none, and all else is zero */
    uint32_t bits;   /* set: 1 << 2, 1 << 3, 1 << 4 */
    uint8_t model[32];
    uint16_t levels[QR_CALIBRATION_LAYERS][2][QR_CALIBRATION_LEVELS]; /* of 2, 3, 4 bits */
};

/** Table of `bits` bits of a layer's keys (which 0) or values (1), 2^bits FP16; NULL when the
 * calibration has none. */
const uint16_t *qr_calibration_levels(const struct qr_calibration *c, uint32_t layer, int which,
                                      uint32_t bits);

/** Whether 2^bits FP16 are finite, ascending and within -1 to 1; EINVAL starts with `what`. */
quire_status qr_levels_check(const uint16_t *levels, uint32_t bits, const char *what,
                             struct qr_error *e);

/** Bytes of the file; out: at least QR_CALIBRATION_BYTES_MAX. */
size_t qr_calibration_write(const struct qr_calibration *c, uint8_t *out);

/** Read a file: any bytes are safe. Errors: ECORRUPT (length, checksum), EUNSUPPORTED
 * (version), EINVAL (a table that is not one: by layer, tensor, bits). *out is filled only on
 * success. */
quire_status qr_calibration_read(const void *bytes, size_t n, struct qr_calibration *out,
                                 struct qr_error *e);

#endif
