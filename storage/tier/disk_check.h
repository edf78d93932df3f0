/* SPDX-License-Identifier: Apache-2.0
 *
 * The offline check of a store (quire fsck): every page against its record,
 * records against slab files, manifests against records, the tail log. Opens the
 * folders by itself, and refuses when a server has them open. A check changes
 * nothing; a repair drops what cannot be proved right, and nothing else.
 *
 * Must not know what a model is, nor how findings are shown.
 */
#ifndef QR_DISK_CHECK_H
#define QR_DISK_CHECK_H

#include "disk_record.h"

enum qr_disk_finding_kind {
#define X(name, severity, text, what) QR_DISK_##name,
#include "disk_check.def"
#undef X
    QR_DISK_FINDINGS
};
enum qr_disk_severity { QR_DISK_NOTE, QR_DISK_BAD };

/** "page-damaged"; "page damaged"; NOTE or BAD. */
const char *qr_disk_finding_name(enum qr_disk_finding_kind kind);
const char *qr_disk_finding_what(enum qr_disk_finding_kind kind);
enum qr_disk_severity qr_disk_finding_severity(enum qr_disk_finding_kind kind);

/** One thing found. Pointers are valid during the call. */
struct qr_disk_finding {
    enum qr_disk_finding_kind kind;
    bool dropped;                      /* a repair drops it */
    char text[QR_ERROR_TEXT_MAX];      /* more of it, without the names below; may be empty */
    const struct qr_disk_place *place; /* NULL: none */
    uint64_t offset;                   /* of the place in its slab file, bytes */
    const char *session;               /* name, or the uuid in hexadecimal; NULL: none */
    uint32_t ns;                       /* of the session, when its record is there */
    uint32_t lane;                     /* when there is a session */
    uint64_t first_token, end_token;   /* of the lane; equal: none */
};
typedef void qr_disk_finding_fn(void *arg, const struct qr_disk_finding *finding);
/** bytes of `total` pages read so far; from time to time, on the calling thread. */
typedef void qr_disk_progress_fn(void *arg, uint64_t done_bytes, uint64_t total_bytes);

struct qr_disk_check_config {
    struct qr_disk_io *io; /* NULL: the system's */
    const char *folders[QR_DISK_DEVICES_MAX];
    uint32_t count;
    bool allow_missing; /* without devices that are absent; their pages are counted, not judged
                         */
    bool repair;
    bool quick; /* do not read pages: index, manifests and tail log only */
    bool no_uring;
    /** NULL, or whether these bytes are the model of this fingerprint. */
    bool (*is_model)(void *arg, const uint8_t fingerprint[QR_HASH_BYTES], const uint8_t *bytes,
                     size_t n);
    qr_disk_finding_fn *found; /* NULL: only counted */
    qr_disk_progress_fn *progress;
    void *arg;
};

struct qr_disk_check_result {
    uint8_t store[QR_DISK_UUID_BYTES];
    uint32_t version, devices;
    uint64_t counts[QR_DISK_FINDINGS];
    uint64_t pages, page_bytes, verified, verified_bytes; /* records; read and found right */
    uint64_t free_slots;                                  /* of slabs in use, looked into */
    uint64_t namespaces, models, sessions, lanes, blocks; /* blocks: manifest entries */
    uint64_t tail_segments, tail_records, tail_live;      /* live: rows that a session has */
    uint64_t dropped; /* index entries that the repair dropped */
    uint64_t counted; /* page records whose count of names it put right */
    uint64_t bad;     /* findings of severity BAD */
};

/**
 * Check, and with `repair` drop. RAM: 92 bytes a page.
 *
 * Errors: those of disk_home.h and disk_index.h (EUNAVAILABLE: a server has it open), EIO,
 *         ENOMEM; findings are no error. After a failure the result holds what was found till
 * then.
 */
quire_status qr_disk_check(const struct qr_disk_check_config *config,
                           struct qr_disk_check_result *result, struct qr_error *e);

#endif
