/* SPDX-License-Identifier: Apache-2.0
 *
 * Slot sizes on disk: multiples of 4 KiB. Up to 64 KiB every multiple is a class,
 * so a slot loses less than 4 KiB; above, the 16 steps between two powers of
 * two of size_class.h, which lose less than 1/17 (5.9 %). Pure arithmetic.
 */
#ifndef QR_DISK_CLASS_H
#define QR_DISK_CLASS_H

#include "disk_io.h"
#include "size_class.h"

#define QR_DISK_FINE_BYTES (16u * QR_DISK_BLOCK)
#define QR_DISK_FINE_CLASSES 16u
#define QR_DISK_COARSE_FIRST (6u * 16u) /* qr_size_class(64 KiB) */
#define QR_DISK_CLASSES (QR_SIZE_CLASSES - QR_DISK_COARSE_FIRST + QR_DISK_FINE_CLASSES - 1u)

/** Class of `bytes` in 1 .. QR_SIZE_CLASS_MAX_BYTES; below QR_DISK_CLASSES. */
static inline uint32_t qr_disk_class(size_t bytes)
{
    if (bytes <= QR_DISK_FINE_BYTES)
        return (uint32_t)((bytes - 1) / QR_DISK_BLOCK);
    return qr_size_class(bytes) - QR_DISK_COARSE_FIRST + QR_DISK_FINE_CLASSES - 1u;
}

/** Slot bytes of a class. */
static inline size_t qr_disk_class_bytes(uint32_t size_class)
{
    if (size_class < QR_DISK_FINE_CLASSES)
        return (size_t)(size_class + 1u) * QR_DISK_BLOCK;
    return qr_size_class_bytes(size_class - QR_DISK_FINE_CLASSES + 1u + QR_DISK_COARSE_FIRST);
}

#endif
