/* SPDX-License-Identifier: Apache-2.0
 *
 * One step of reading a lane, shared by fetch and attend.
 */
#ifndef QR_FETCH_H
#define QR_FETCH_H

#include "store_impl.h"

/**
 * What is at `position` of a lane, up to `end` or the end of its block: pinned and verified, or
 * a hole. Takes the session's lock for a moment; the caller holds a reference to the session.
 */
void qr_lane_read(struct qr_session *session, const struct qr_lane *lane, uint64_t position,
                  uint64_t end, struct qr_part *part);

#endif
