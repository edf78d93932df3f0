/* SPDX-License-Identifier: Apache-2.0
 *
 * One step of reading a lane, and asking for pages ahead of it, shared by fetch
 * and attend.
 */
#ifndef QR_FETCH_H
#define QR_FETCH_H

#include "store_impl.h"

/**
 * What is at `position` of a lane, up to `end` or the end of its block: pinned and verified, or
 * a hole. Takes the session's lock for a moment; the caller holds a reference to the session.
 *
 * A page that is only on disk: its read is started, and with `wait` waited for; else status is
 * QR_PART_LATER, and the pin, if any, keeps the page once it has come.
 */
void qr_lane_read(struct qr_session *session, const struct qr_lane *lane, uint64_t position,
                  uint64_t end, bool wait, struct qr_part *part);

#define QR_AHEAD_PAGES 32u /* that one reader asks for ahead of what it reads */
#define QR_AHEAD_SHARE 4u  /* all together: at most a quarter of the host budget */

struct qr_ahead_page {
    uint64_t step;
    uint32_t entry, bytes;
};

/** Pages asked for ahead, each pinned. owner: its reader. Zero-initialized is empty. */
struct qr_ahead {
    struct qr_ahead_page pages[QR_AHEAD_PAGES];
    uint32_t first, last; /* counted up; number % QR_AHEAD_PAGES is the place */
};

/** Ask for the page of a block; `step` orders them. false: no more now. */
bool qr_ahead_ask(struct qr_session *session, const struct qr_lane *lane, uint32_t block,
                  uint64_t step, struct qr_ahead *ahead);
/** The reader is past everything below `step`. */
void qr_ahead_pass(struct qr_store *store, struct qr_ahead *ahead, uint64_t step);
void qr_ahead_clear(struct qr_store *store, struct qr_ahead *ahead);

#endif
