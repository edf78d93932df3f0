/* SPDX-License-Identifier: Apache-2.0
 *
 * Who a caller is: from the connection to the name of a namespace, here and
 * nowhere else. Must not know sessions or messages.
 */
#ifndef QR_IDENTITY_H
#define QR_IDENTITY_H

#include <stdbool.h>

#include "proto/status.h"

/**
 * Namespace name of a peer as gRPC writes it ("unix:/path", "unix:", "ipv4:127.0.0.1:4711",
 * "ipv6:%5B::1%5D:4711"). *name_out is static. Errors: EPERM for a peer that is not on this
 * machine, which no address that may be bound lets in.
 */
quire_status qr_identity_namespace(const char *peer, const char **name_out, struct qr_error *e);

#endif
