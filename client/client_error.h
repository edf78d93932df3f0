/* SPDX-License-Identifier: Apache-2.0
 *
 * How failures reach the caller: the thread's last error, and what the end of a
 * call means. Must not know operations.
 */
#ifndef QR_CLIENT_ERROR_H
#define QR_CLIENT_ERROR_H

#include "quire.h"
#include "transport.h"

/** Make `e` the calling thread's last error; returns its status. Every public call that fails
 * ends here. */
quire_status qr_client_fail(const struct qr_error *e);
/** The same for an error made on the spot. */
quire_status qr_client_fail_text(quire_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** The public view of an error: the two structs have the same layout. */
const struct quire_error *qr_client_error_view(const struct qr_error *e);
/**
 * What the end of a call to `method` means; QUIRE_OK for success (e zeroed then). target,
 * timeout_ms: for the text.
 */
quire_status qr_client_error_of_call(const struct qr_call_result *result, enum qr_method method,
                                     const char *target, uint64_t timeout_ms,
                                     struct qr_error *e);

#ifdef __clang_analyzer__ /* it looks into one file at a time: a failure is never QUIRE_OK */
#define qr_client_fail(e) ((void)qr_client_fail(e), QUIRE_EINTERNAL)
#define qr_client_fail_text(status, ...)                                                       \
    ((void)qr_client_fail_text(status, __VA_ARGS__), (status))
#endif

#endif
