/* SPDX-License-Identifier: Apache-2.0
 *
 * Everybody on this machine is the namespace "default" until callers prove who
 * they are with certificates or tokens.
 */
#include "identity.h"

#include <string.h>

static bool begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

static bool is_local(const char *peer)
{
    return begins(peer, "unix:") || begins(peer, "ipv4:127.") || begins(peer, "ipv6:[::1]") ||
           begins(peer, "ipv6:%5B::1%5D") || begins(peer, "ipv6:[::ffff:127.") ||
           begins(peer, "ipv6:%5B::ffff:127.");
}

quire_status qr_identity_namespace(const char *peer, const char **name_out, struct qr_error *e)
{
    if (!peer || !is_local(peer))
        return qr_error_set(e, QUIRE_EPERM,
                            "peer %.80s is not on this machine; callers from other machines "
                            "need TLS",
                            peer ? peer : "(unknown)");
    *name_out = "default";
    return QUIRE_OK;
}
