/* SPDX-License-Identifier: Apache-2.0
 *
 * The tail log: FP16 rows that are not in a sealed page yet, appended to segment
 * files that all sessions share, so that one sync makes many sessions' rows
 * durable. Keeps in RAM which records still count; segments without any are
 * deleted, sparse ones are moved together. Must not know what a row is.
 *
 *   open -> replay (once) -> append* -> sync -> ... ; drop, cut, forget whenever the index says
 * so
 */
#ifndef QR_TAIL_LOG_H
#define QR_TAIL_LOG_H

#include "disk_home.h"

struct qr_tail_log;

struct qr_tail_log_config {
    struct qr_disk_io *io;
    int folder_fd;          /* of the store's first folder; tail/ is made in it */
    const uint8_t *store;   /* uuid [16]; copied */
    uint32_t segment_bytes; /* 0: 64 MiB; multiple of 4 KiB, at least 64 KiB */
    uint64_t max_bytes;     /* of all segments, hard; 0: 1 GiB; at least 3 segments, one
                               of which is kept for moves */
    uint64_t pending_max;   /* bytes appended and not synced; 0: segment_bytes */
};

struct qr_tail_record {
    uint8_t session[QR_DISK_UUID_BYTES];
    uint32_t lane, tokens;
    uint64_t position, epoch;
    uint64_t sequence; /* set by the log */
    const void *payload;
    uint32_t payload_bytes;
};

struct qr_tail_log_report {
    uint64_t segments, records, bytes;
    uint32_t torn;    /* segments with something that is not a whole record */
    uint32_t damaged; /* of them: whole records follow, so acknowledged rows may be lost; of the
                         others none is, as nothing behind a torn end was acknowledged */
    uint64_t skipped; /* damaged records that were passed over: the rows of those alone are
                         lost, which leaves a gap in their lane */
    uint64_t torn_segment, torn_offset; /* the first one's */
};

struct qr_tail_log_stat {
    uint64_t segments, file_bytes, live_bytes, live_records, pending_bytes;
    uint64_t syncs, records, written_bytes, moved_bytes, failures;
};

/** Finds the segments; EINVAL, EMISMATCH (a segment of another store), EUNSUPPORTED, EIO. */
quire_status qr_tail_log_open(const struct qr_tail_log_config *config, struct qr_tail_log **out,
                              struct qr_error *e);
/** What was appended and not synced is gone. */
void qr_tail_log_close(struct qr_tail_log **log);

/** Return whether the record still counts; false: its session is gone or its rows are sealed.
 */
typedef bool qr_tail_log_replay_fn(void *arg, const struct qr_tail_record *record);
/**
 * Every whole record, segment by segment, in the order written; a moved record comes later than
 * younger ones, so of records with the same position the one of higher sequence counts.
 * A damaged record that still says how long it is, with a whole one behind, is passed over; at
 * any other that is not whole a segment ends. The report says where.
 */
quire_status qr_tail_log_replay(struct qr_tail_log *log, qr_tail_log_replay_fn *each, void *arg,
                                struct qr_tail_log_report *report, struct qr_error *e);

/**
 * The synced records of a lane that count, ascending by sequence, read from their files; ends
 * when `each` returns false. Records that are damaged now are left out and counted.
 *
 * Threads: any, after the replay; waits for syncs under way. `each` must not call the log.
 * Errors:  EIO, ENOMEM.
 */
quire_status qr_tail_log_read(struct qr_tail_log *log,
                              const uint8_t session[QR_DISK_UUID_BYTES], uint32_t lane,
                              qr_tail_log_replay_fn *each, void *arg, uint32_t *damaged_out);

/**
 * Take a copy of a record for the next sync.
 *
 * Threads: any, after the replay.
 * Errors:  ETOOBIG, EAGAIN (pending_max: sync first), ENOMEM; nothing is taken then.
 */
quire_status qr_tail_log_append(struct qr_tail_log *log, const struct qr_tail_record *record,
                                uint64_t *sequence_out);
/**
 * Make durable what was appended before the call. On failure the records stay pending, and the
 * next sync tries again in a new segment. Any thread; one at a time does the work.
 * Errors: EFULL (max_bytes, or the file system), EIO, ENOMEM.
 */
quire_status qr_tail_log_sync(struct qr_tail_log *log, struct qr_error *e);

/** Rows below `position` are sealed, and the index that says so is durable. Any thread. */
void qr_tail_log_drop(struct qr_tail_log *log, const uint8_t session[QR_DISK_UUID_BYTES],
                      uint32_t lane, uint64_t position);
/** The sequence that the next record will have: every one so far is below. Any thread. */
uint64_t qr_tail_log_sequence(struct qr_tail_log *log);
/**
 * Rows from `length` on are truncated, and no longer count: only once the lane record that says
 * so is durable, whose cut_sequence is what qr_tail_log_sequence gave before, and before rows
 * at these positions are appended again. *sequence_out as qr_tail_log_sequence.
 */
void qr_tail_log_cut(struct qr_tail_log *log, const uint8_t session[QR_DISK_UUID_BYTES],
                     uint32_t lane, uint64_t length, uint64_t *sequence_out);
/** Every row of a lane; the index no longer has it. */
void qr_tail_log_forget(struct qr_tail_log *log, const uint8_t session[QR_DISK_UUID_BYTES],
                        uint32_t lane);
/** Move the live records of sparse segments and delete what is empty; at most one segment a
 * call. Not urgent: from a background thread. */
quire_status qr_tail_log_compact(struct qr_tail_log *log, struct qr_error *e);

void qr_tail_log_stat(struct qr_tail_log *log, struct qr_tail_log_stat *out);

#endif
