/* SPDX-License-Identifier: Apache-2.0
 *
 * The FileDescriptorSet of every service here, as protoc wrote it; the build makes
 * the bytes (CMakeLists.txt).
 */
#ifndef QR_DESCRIPTOR_SET_H
#define QR_DESCRIPTOR_SET_H

#include <stddef.h>
#include <stdint.h>

extern const uint8_t qr_descriptor_set[];
extern const size_t qr_descriptor_set_bytes;

#endif
