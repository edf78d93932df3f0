/* SPDX-License-Identifier: Apache-2.0
 *
 * One thread that helps whoever has independent units of work: long appends are
 * surveyed and sealed by two threads. Must not know what the work is.
 */
#ifndef QR_CLIENT_HELPER_H
#define QR_CLIENT_HELPER_H

#include <stdint.h>

struct qr_helper;

/** One unit; called on the caller's thread or the helper's, with no lock held. */
typedef void qr_helper_unit(void *arg, uint32_t unit);

/** NULL: no memory, or no thread could be started; qr_helper_run works all the same. */
struct qr_helper *qr_helper_create(void);
/** No run may be under way. Nulls the pointer; NULL allowed. */
void qr_helper_destroy(struct qr_helper **helper);
/**
 * Run unit(arg, 0 .. units-1), each exactly once, and return when all are done. The helper
 * takes part unless it is busy with another run; the caller waits only for the unit that it is
 * at. Any thread. helper NULL: the caller alone.
 */
void qr_helper_run(struct qr_helper *helper, uint32_t units, qr_helper_unit *unit, void *arg);

#endif
