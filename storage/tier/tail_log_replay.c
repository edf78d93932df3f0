/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the tail log's segments at start, and moves live records out of sparse
 * segments later.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "storage/base/log.h"
#include "tail_log_impl.h"

#define SPARSE 4u /* a segment of which less than a quarter counts is moved */

static void report_end(struct qr_tail_log_report *report, uint64_t segment, size_t at,
                       bool damaged)
{
    if (report->torn == 0) {
        report->torn_segment = segment;
        report->torn_offset = at;
    }
    report->torn++;
    report->damaged += damaged;
    QR_LOG(damaged ? QR_LOG_ERROR : QR_LOG_INFO, "disk.tail_log_torn",
           QR_LOG_STR("what", damaged ? "damaged: whole records follow" : "torn end"),
           QR_LOG_U64("segment", segment), QR_LOG_U64("offset", at));
}

static quire_status replay_record(struct qr_tail_log *log, struct qr_tail_segment *segment,
                                  const struct qr_tail_record *record, uint32_t bytes,
                                  bool counts)
{
    quire_status status = QUIRE_OK;

    pthread_mutex_lock(&log->lock);
    if (record->sequence >= log->next_sequence)
        log->next_sequence = record->sequence + 1;
    if (counts)
        status = qr_tail_live_add(log, record, segment, segment->used, bytes);
    pthread_mutex_unlock(&log->lock);
    return status;
}

/* Records from segment->used on; over damaged ones that say how long they are. */
static quire_status replay_records(struct qr_tail_log *log, struct qr_tail_segment *segment,
                                   const uint8_t *contents, size_t bytes,
                                   qr_tail_log_replay_fn *each, void *arg,
                                   struct qr_tail_log_report *report)
{
    const uint64_t skipped = report->skipped;
    quire_status status = QUIRE_OK;

    while (status == QUIRE_OK && segment->used < bytes) {
        struct qr_tail_record record;
        uint32_t size = qr_tail_record_decode(contents + segment->used, bytes - segment->used,
                                              segment->number, &record);
        if (size > 0) {
            status = replay_record(log, segment, &record, size, each(arg, &record));
            report->records++;
            report->bytes += size;
        } else {
            size = qr_tail_record_skip(contents, segment->used, bytes, segment->number);
            if (size == 0)
                break;
            if (report->skipped++ == skipped)
                report_end(report, segment->number, segment->used, true);
        }
        segment->used += size;
    }
    if (status == QUIRE_OK && segment->used < bytes && report->skipped == skipped) {
        const bool follows =
            qr_tail_record_follows(contents, segment->used, bytes, segment->number);
        if (follows || !qr_tail_is_clean_end(contents, segment->used, bytes))
            report_end(report, segment->number, segment->used, follows);
    }
    return status;
}

static quire_status replay_segment(struct qr_tail_log *log, struct qr_tail_segment *segment,
                                   qr_tail_log_replay_fn *each, void *arg,
                                   struct qr_tail_log_report *report, struct qr_error *e)
{
    uint8_t *contents;
    size_t bytes;
    uint64_t base;
    quire_status status = qr_tail_segment_load(log, segment, &contents, &bytes, e);

    if (status != QUIRE_OK)
        return status;
    report->segments++;
    segment->used = QR_DISK_BLOCK;
    if (bytes >= QR_DISK_BLOCK &&
        qr_tail_segment_check(log->store, segment->number, contents, &base) == QUIRE_OK)
        status = replay_records(log, segment, contents, bytes, each, arg, report);
    else if (bytes > 0)
        report_end(report, segment->number, 0,
                   qr_tail_record_follows(contents, QR_DISK_BLOCK, bytes, segment->number));
    free(contents);
    if (status != QUIRE_OK)
        return qr_error_set(e, status, "no memory for the tail log");
    /* What a process left unsynced when it died counts from now on, so it must stay. */
    const int error = log->config.io->sync(log->config.io, segment->fd);
    if (error != 0)
        return qr_error_set(e, qr_disk_status(error),
                            "tail log: cannot sync segment %" PRIu64 ": %s", segment->number,
                            strerror(-error));
    return QUIRE_OK;
}

quire_status qr_tail_log_replay(struct qr_tail_log *log, qr_tail_log_replay_fn *each, void *arg,
                                struct qr_tail_log_report *report, struct qr_error *e)
{
    quire_status status = QUIRE_OK;

    *report = (struct qr_tail_log_report){0};
    pthread_mutex_lock(&log->io_lock);
    for (struct qr_tail_segment *s = log->first; s && status == QUIRE_OK; s = s->next)
        status = replay_segment(log, s, each, arg, report, e);
    log->replayed = status == QUIRE_OK;
    qr_tail_segments_sweep(log);
    pthread_mutex_unlock(&log->io_lock);
    return status;
}

/* ---- moving ----------------------------------------------------------------------------- */

static struct qr_tail_segment *sparse_segment(struct qr_tail_log *log)
{
    struct qr_tail_segment *found = NULL;

    pthread_mutex_lock(&log->lock);
    for (struct qr_tail_segment *s = log->first; s && !found; s = s->next) {
        if (s->closed && s != log->last && s->live_records > 0 &&
            s->live_bytes < s->file_bytes / SPARSE)
            found = s;
    }
    pthread_mutex_unlock(&log->lock);
    return found;
}

/* Copies of the records of a segment that count. */
static quire_status gather_live(struct qr_tail_log *log, struct qr_tail_segment *from,
                                const uint8_t *contents, size_t bytes,
                                struct qr_tail_group *out, struct qr_error *e)
{
    struct qr_tail_record record;

    for (size_t at = QR_DISK_BLOCK; at < from->used;) {
        uint32_t size = qr_tail_record_decode(contents + at, bytes - at, from->number, &record);
        if (size == 0 && (size = qr_tail_record_skip(contents, at, bytes, from->number)) > 0) {
            at += size; /* lost at the replay already */
            continue;
        }
        if (size == 0)
            return qr_error_set(e, QUIRE_ECORRUPT,
                                "tail log: segment %" PRIu64 " is damaged at byte %zu: it is "
                                "kept as it is",
                                from->number, at);
        pthread_mutex_lock(&log->lock);
        const bool live = qr_tail_live_has(log, &record, from);
        pthread_mutex_unlock(&log->lock);
        if (live && !qr_tail_group_add(out, contents + at, size))
            return qr_error_set(e, QUIRE_ENOMEM, "no memory to move tail log records");
        at += size;
    }
    return QUIRE_OK;
}

static quire_status move_segment(struct qr_tail_log *log, struct qr_tail_segment *from,
                                 struct qr_error *e)
{
    struct qr_tail_group group = {0};
    struct qr_tail_landing *landings = NULL;
    uint8_t *contents;
    size_t bytes;
    uint32_t done = 0;
    quire_status status = qr_tail_segment_load(log, from, &contents, &bytes, e);

    if (status != QUIRE_OK)
        return status;
    status = gather_live(log, from, contents, bytes, &group, e);
    if (status == QUIRE_OK)
        landings = calloc(group.count + 1, sizeof(*landings));
    if (landings)
        status = qr_tail_group_write(log, &group, landings, &done, e);
    pthread_mutex_lock(&log->lock);
    for (uint32_t i = 0; i < done; i++) {
        struct qr_tail_record record;
        const uint8_t *at = group.bytes + group.records[i].at;
        log->stat.moved_bytes += qr_tail_record_decode(at, group.n - group.records[i].at,
                                                       landings[i].segment->number, &record);
        qr_tail_live_move(log, &record, from, landings[i].segment, landings[i].offset);
    }
    pthread_mutex_unlock(&log->lock);
    free(landings);
    qr_tail_group_free(&group);
    free(contents);
    return status;
}

quire_status qr_tail_move_sparse(struct qr_tail_log *log, bool *moved_out, struct qr_error *e)
{
    struct qr_tail_segment *sparse = log->replayed ? sparse_segment(log) : NULL;
    quire_status status = QUIRE_OK;

    *moved_out = sparse != NULL;
    log->moving = true;
    if (sparse)
        status = move_segment(log, sparse, e);
    log->moving = false;
    qr_tail_segments_sweep(log);
    return status;
}

quire_status qr_tail_log_compact(struct qr_tail_log *log, struct qr_error *e)
{
    bool moved;

    pthread_mutex_lock(&log->io_lock);
    const quire_status status = qr_tail_move_sparse(log, &moved, e);
    pthread_mutex_unlock(&log->io_lock);
    return status;
}
