/* SPDX-License-Identifier: Apache-2.0
 *
 * Addresses to serve on: what may be bound, and unix socket files left behind by
 * a server that is gone. Must not know gRPC.
 */
#ifndef QR_LISTEN_H
#define QR_LISTEN_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/status.h"

#define QR_ADDRESS_MAX 255

struct qr_address {
    bool is_unix;
    char text[QR_ADDRESS_MAX + 1]; /* as gRPC takes it: "unix:/path" or "host:port" */
    char path[108];                /* unix: the socket file */
    char host[QR_ADDRESS_MAX + 1]; /* else: without brackets */
    uint16_t port;                 /* 0: a free one */
};

/**
 * Read an address. Errors: EINVAL (form, port, path length), EPERM for a host that is not
 * loopback: everything off this machine needs TLS. Hosts are numbers or "localhost"; names are
 * not resolved, since what they mean may change.
 */
quire_status qr_address_parse(const char *text, struct qr_address *out, struct qr_error *e);

/**
 * Make the path of a unix address free to bind: a socket file on which nobody listens is
 * removed; EEXIST when somebody listens or the file is no socket. Others: nothing to do.
 */
quire_status qr_address_claim(const struct qr_address *address, struct qr_error *e);
/** Remove the socket file of a unix address that this process bound. */
void qr_address_release(const struct qr_address *address);

#endif
