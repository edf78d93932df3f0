/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the tail log share: segments, records, and the account of
 * those that count.
 */
#ifndef QR_TAIL_LOG_IMPL_H
#define QR_TAIL_LOG_IMPL_H

#include <pthread.h>

#include "tail_log.h"

#define QR_TAIL_RECORD_HEAD 80u
#define QR_TAIL_ALIGN 16u
#define QR_TAIL_LANE_BUCKETS 16384u
#define QR_TAIL_NAME_BYTES 32

/** A record that counts, and where it is. */
struct qr_tail_entry {
    uint64_t position, sequence;
    uint32_t tokens, bytes; /* bytes of the whole record */
    struct qr_tail_segment *segment;
    uint32_t offset;
};

struct qr_tail_segment {
    struct qr_tail_segment *next; /* ascending numbers */
    uint64_t number;
    int fd;
    uint32_t file_bytes; /* what it takes on the device */
    uint32_t used;       /* end of its records */
    uint64_t live_bytes; /* guarded by lock */
    uint32_t live_records;
    bool closed; /* no more records */
};

struct qr_tail_lane {
    struct qr_tail_lane *next; /* of its bucket */
    uint8_t session[QR_DISK_UUID_BYTES];
    uint32_t lane, count, capacity;
    struct qr_tail_entry *entries; /* in no order */
};

/** A record in the pending buffer. */
struct qr_tail_pending {
    size_t at; /* in the buffer */
    bool dead; /* dropped or cut before it was synced */
};

struct qr_tail_group {
    uint8_t *bytes; /* encoded records but for segment and checksum */
    size_t n, capacity;
    struct qr_tail_pending *records;
    uint32_t count, records_capacity;
};

/** Where a record of a group went. */
struct qr_tail_landing {
    struct qr_tail_segment *segment;
    uint32_t offset;
};

struct qr_tail_log {
    struct qr_tail_log_config config;  /* const, sizes filled in */
    uint8_t store[QR_DISK_UUID_BYTES]; /* const */
    int folder_fd;                     /* const: tail/ */
    pthread_mutex_t io_lock;           /* outside lock: writes, syncs, moves, one at a time */
    pthread_mutex_t lock;
    struct qr_tail_segment *first, *last; /* list: io_lock; counts: lock */
    bool moving;   /* guarded by io_lock: the segment kept free for moves may be used */
    bool replayed; /* guarded by io_lock: until then no record is in the account, so that
                      nothing may be taken for dead */
    uint64_t next_sequence; /* guarded by lock, like all below */
    struct qr_tail_group pending;
    struct qr_tail_lane *buckets[QR_TAIL_LANE_BUCKETS];
    struct qr_tail_log_stat stat;
};

/* ---- tail_log_record.c: bytes ----------------------------------------------------------- */

uint32_t qr_tail_record_bytes(uint32_t payload_bytes);
/** Everything but segment and checksum. */
void qr_tail_record_encode(const struct qr_tail_record *record, uint8_t *out);
/** Fill in segment and checksum. */
void qr_tail_record_finish(uint8_t *record, uint64_t segment);
/** Whole record of this segment at the start of n bytes: its bytes, else 0. */
uint32_t qr_tail_record_decode(const uint8_t *at, size_t n, uint64_t segment,
                               struct qr_tail_record *out);
uint32_t qr_tail_record_size(const uint8_t *record);
void qr_tail_segment_header(const struct qr_tail_log *log, uint64_t number,
                            uint64_t base_sequence, uint8_t out[QR_DISK_BLOCK]);
/** EMISMATCH (other store or number), EUNSUPPORTED, ECORRUPT. */
quire_status qr_tail_segment_check(const uint8_t store[QR_DISK_UUID_BYTES], uint64_t number,
                                   const uint8_t block[QR_DISK_BLOCK],
                                   uint64_t *base_sequence_out);
/** Whether the records end at `at` as a file that was closed in peace does: with zeros, or the
 * file's end. */
bool qr_tail_is_clean_end(const uint8_t *contents, size_t at, size_t bytes);
/** Whether a whole record lies anywhere from `at` on. */
bool qr_tail_record_follows(const uint8_t *contents, size_t at, size_t bytes, uint64_t segment);
/**
 * Bytes of a damaged record at `at` that may be passed over: its head is sound enough to say
 * how long it is (both of its sizes agree), and a whole record stands behind it. Else 0.
 * Payloads are the clients', so what looks like a record in the middle of one is never taken
 * for one.
 */
uint32_t qr_tail_record_skip(const uint8_t *contents, size_t at, size_t bytes,
                             uint64_t segment);

/* ---- tail_log_live.c: the account, lock held -------------------------------------------- */

/** ENOMEM. */
quire_status qr_tail_live_add(struct qr_tail_log *log, const struct qr_tail_record *record,
                              struct qr_tail_segment *segment, uint32_t offset, uint32_t bytes);
/** The record was moved: its entry of this sequence and segment now lies elsewhere. */
void qr_tail_live_move(struct qr_tail_log *log, const struct qr_tail_record *record,
                       struct qr_tail_segment *from, struct qr_tail_segment *to,
                       uint32_t offset);
/** True when the record counts, and its place is in this segment. */
bool qr_tail_live_has(struct qr_tail_log *log, const struct qr_tail_record *record,
                      const struct qr_tail_segment *segment);
void qr_tail_live_free(struct qr_tail_log *log);
/** NULL: no record of it counts. */
const struct qr_tail_lane *qr_tail_live_lane(struct qr_tail_log *log,
                                             const uint8_t session[QR_DISK_UUID_BYTES],
                                             uint32_t lane);

/* ---- tail_log_segment.c: files, io_lock held -------------------------------------------- */

void qr_tail_segment_name(uint64_t number, char out[QR_TAIL_NAME_BYTES]);
/** Numbers of the segments in a folder, ascending; *out to be freed. Any time. ENOMEM, EIO. */
quire_status qr_tail_segments_list(int folder_fd, uint64_t **out, size_t *count_out,
                                   struct qr_error *e);
quire_status qr_tail_segments_find(struct qr_tail_log *log, struct qr_error *e);
/** A segment with room for `bytes`: the last one or a new one. EFULL, EIO. */
quire_status qr_tail_segment_for(struct qr_tail_log *log, uint32_t bytes,
                                 struct qr_tail_segment **out, struct qr_error *e);
/** Delete closed segments without live records, but for the last of all; nothing before the
 * replay. Not between the write of a group and its entry in the account. */
void qr_tail_segments_sweep(struct qr_tail_log *log);
void qr_tail_segments_close(struct qr_tail_log *log);
/** Whole contents up to the end of file; *out to be freed. ENOMEM, EIO. */
quire_status qr_tail_segment_load(struct qr_tail_log *log, struct qr_tail_segment *segment,
                                  uint8_t **out, size_t *bytes_out, struct qr_error *e);

/* ---- tail_log_replay.c ------------------------------------------------------------------ */

/** Move the live records of the first sparse segment and delete what is empty; *moved_out:
 * there was one. io_lock held. */
quire_status qr_tail_move_sparse(struct qr_tail_log *log, bool *moved_out, struct qr_error *e);

/* ---- tail_log.c: groups ----------------------------------------------------------------- */

/** Add an encoded record; false without memory. */
bool qr_tail_group_add(struct qr_tail_group *group, const uint8_t *record, uint32_t bytes);
void qr_tail_group_free(struct qr_tail_group *group);
/** Write and sync the records of a group; *done_out of them, with landings, also on failure.
 * io_lock held. */
quire_status qr_tail_group_write(struct qr_tail_log *log, struct qr_tail_group *group,
                                 struct qr_tail_landing *landings, uint32_t *done_out,
                                 struct qr_error *e);

#endif
