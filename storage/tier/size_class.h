/* SPDX-License-Identifier: Apache-2.0
 *
 * Size classes: 16 steps between two powers of two, so that rounding up loses
 * less than 1/17 (5.9 %) of a slot. Pure arithmetic.
 */
#ifndef QR_SIZE_CLASS_H
#define QR_SIZE_CLASS_H

#include <stddef.h>
#include <stdint.h>

#define QR_SIZE_CLASS_MIN_BYTES 1024u
#define QR_SIZE_CLASS_MAX_BYTES (256u << 20)
#define QR_SIZE_CLASSES (18 * 16 + 1)

/** Class of `bytes` in 1 .. QR_SIZE_CLASS_MAX_BYTES. */
uint32_t qr_size_class(size_t bytes);
/** Slot bytes of a class below QR_SIZE_CLASSES: a multiple of 64, at least what it was made
 * for.
 */
size_t qr_size_class_bytes(uint32_t size_class);

#endif
