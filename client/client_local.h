/* SPDX-License-Identifier: Apache-2.0
 *
 * The same-host path as the rest of the library sees it.
 */
#ifndef QR_CLIENT_LOCAL_H
#define QR_CLIENT_LOCAL_H

#include "handle.h"

/** Take what a Hello offered, or remember why not. */
void qr_client_use_local(struct quire_client *client, const char *offered_path,
                         const uint8_t *cookie, size_t cookie_bytes);
/** Ask again when it is not in use and the last try is a while ago. Errors are not the
 * caller's. */
void qr_client_retry_local(struct quire_client *client);
/** The largest message of an append of this session, and the largest part of a fetch. */
uint64_t qr_client_part_bytes(const struct quire_session *session);

#endif
