/* SPDX-License-Identifier: Apache-2.0
 *
 * XXH3-64 compiled once per instruction set; qr_checksum picks. Only
 * checksum*.c include this.
 */
#ifndef QR_CHECKSUM_H
#define QR_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint64_t qr_checksum_avx2(const void *bytes, size_t n);
uint64_t qr_checksum_avx512(const void *bytes, size_t n);

#endif
