/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions that the calls about sessions share: policies, infos, names.
 */
#ifndef QR_CLIENT_SESSION_H
#define QR_CLIENT_SESSION_H

#include "proto/wire.h"
#include "quire.h"

/** 1 .. 255 bytes without control characters; EINVAL names `field`. */
quire_status qr_client_check_name(const char *field, const char *name, struct qr_error *e);
void qr_client_policy_to(const struct qr_policy *from, struct quire_policy *to);
/** Checked (qr_policy_check). */
quire_status qr_client_policy_from(const struct quire_policy *from, struct qr_policy *to,
                                   struct qr_error *e);
struct quire_range qr_client_range_from(const Quire__V1__TokenRange *from);
/** Errors: ECORRUPT; *to untouched. */
quire_status qr_client_info_from(const Quire__V1__SessionInfo *from,
                                 struct quire_session_info *to, struct qr_error *e);

#endif
