/* SPDX-License-Identifier: Apache-2.0
 *
 * Unpredictable bytes for secrets and unique ids.
 */
#ifndef QR_RANDOM_H
#define QR_RANDOM_H

#include <stddef.h>

#include "proto/status.h"

/** Fill `out` with n bytes from the kernel. EIO when it refuses; `out` is then meaningless. Any
 * thread. */
quire_status qr_random_fill(void *out, size_t n, struct qr_error *e);

#endif
