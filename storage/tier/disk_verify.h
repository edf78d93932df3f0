/* SPDX-License-Identifier: Apache-2.0
 *
 * Is what lies in a slot the page that the index says? And what is done when it
 * is not: the page's record is marked, so that it is never served again. Used by
 * reads, the scrubber and fsck. Must not know sessions.
 */
#ifndef QR_DISK_VERIFY_H
#define QR_DISK_VERIFY_H

#include "proto/page.h"
#include "tier_disk.h"

/**
 * Check bytes read from a page's slot: whole and valid by themselves (qr_page_open), and the
 * very page of the record: checksum, size, layer, heads, position.
 *
 * bytes: record->place.bytes of them, 8-byte aligned. view_out: may be NULL.
 * Errors: ECORRUPT, EUNSUPPORTED (as qr_page_open), EMISMATCH (another page's bytes, first
 * differing field).
 */
quire_status qr_disk_page_verify(const struct qr_disk_page *record, const void *bytes,
                                 struct qr_page_view *view_out, struct qr_error *e);

/** A page to be marked, and who waits for it. */
struct qr_disk_quarantine {
    uint8_t page_id[QR_HASH_BYTES];
    struct qr_disk_place place; /* where it was found damaged */
    qr_tier_done *done;
    void *arg;
    bool marked; /* out: the index did name this page at this place, and says so now */
    /* the tier's own */
    struct qr_disk *disk;
    struct qr_disk_commit commit;
    struct qr_disk_batch batch;
};
/**
 * Durably set QR_DISK_QUARANTINED in the page's record, unless the index no longer has it at
 * this place by then (dropped or replaced meanwhile: nothing is written). The slot stays taken
 * until the record is deleted or replaced.
 *
 * Ownership: the struct is borrowed until done fires, on the commit thread.
 * Threads:   any, callbacks too.
 * Errors:    EAGAIN (commit queue full, done never fires); done gets those of a commit.
 */
quire_status qr_disk_quarantine(struct qr_disk *disk, struct qr_disk_quarantine *quarantine);
/** The same, waiting; `done` and `arg` are not used. Not from a callback. */
quire_status qr_disk_quarantine_wait(struct qr_disk *disk,
                                     struct qr_disk_quarantine *quarantine);

#endif
