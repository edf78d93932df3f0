/* SPDX-License-Identifier: Apache-2.0
 *
 * The scrubber: while a store is in use, reads its pages one after the other at a
 * bounded rate and the ring's lowest priority, verifies them, and puts damaged
 * ones into quarantine. Remembers in the index how far it came, so that a
 * restart goes on from there. Must not know who uses a page.
 *
 *   RUNNING -end of the pages-> RESTING -time is up-> RUNNING;   rate 0: PAUSED, in either
 */
#ifndef QR_DISK_SCRUB_H
#define QR_DISK_SCRUB_H

#include "tier_disk.h"

struct qr_disk_scrub;

/** A page is in quarantine now, durably. why: ECORRUPT, EMISMATCH, EUNSUPPORTED (what lies
 * there is not the page), EIO (it cannot be read, and others on its device can). On the
 * scrubber's thread; it may call the disk, but not stop the scrubber. */
typedef void qr_disk_scrub_bad_fn(void *arg, const uint8_t page_id[QR_HASH_BYTES],
                                  const struct qr_disk_page *page, quire_status why);

struct qr_disk_scrub_config {
    uint64_t bytes_per_s; /* 0: paused, until qr_disk_scrub_rate */
    uint32_t rest_s;      /* between two passes; 0: a day */
    qr_disk_scrub_bad_fn *bad;
    void *arg;
};

struct qr_disk_scrub_stat {
    uint64_t passes;       /* since the start */
    uint64_t pages, bytes; /* read and found right */
    uint64_t bad;          /* put into quarantine */
    uint64_t stale;        /* dropped or replaced while they were read */
    uint64_t unreadable;   /* on a device that does not read at all: not judged */
    uint64_t bytes_per_s;
    uint32_t position_permille; /* of the pass under way */
};

/**
 * Start the thread. It stops before the disk is closed.
 *
 * Errors: ENOMEM, EIO (the index).
 */
quire_status qr_disk_scrub_start(struct qr_disk *disk,
                                 const struct qr_disk_scrub_config *config,
                                 struct qr_disk_scrub **out, struct qr_error *e);
/** Ends the read under way, remembers the position. */
void qr_disk_scrub_stop(struct qr_disk_scrub **scrub);
/** From now on; 0 pauses. Any thread. */
void qr_disk_scrub_rate(struct qr_disk_scrub *scrub, uint64_t bytes_per_s);
void qr_disk_scrub_stat(struct qr_disk_scrub *scrub, struct qr_disk_scrub_stat *out);

#endif
