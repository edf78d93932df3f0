/* SPDX-License-Identifier: Apache-2.0
 *
 * Append, sync and move records of the tail log.
 *
 * Invariants:
 *  1. a record is in the account only once its segment is synced up to its end, or from replay;
 *  2. a segment that a write or sync failed on takes no more records: behind the failure there
 *     is nothing that anybody relies on;
 *  3. a segment is deleted only when no record in it is in the account and a younger one
 *     exists, after the replay, and never between the write of a group and its entry.
 * exists.
 */
#include "tail_log.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tail_log_impl.h"

#define SEGMENT_BYTES (64u << 20)
#define SEGMENT_BYTES_MIN (64u << 10)
#define SEGMENT_BYTES_MAX (1u << 30)
#define MAX_BYTES (UINT64_C(1) << 30)
#define FOLDER_MODE 0700

static quire_status fill_in(struct qr_tail_log_config *config, struct qr_error *e)
{
    if (config->segment_bytes == 0)
        config->segment_bytes = SEGMENT_BYTES;
    if (config->max_bytes == 0)
        config->max_bytes = MAX_BYTES;
    if (config->pending_max == 0)
        config->pending_max = config->segment_bytes;
    if (config->segment_bytes < SEGMENT_BYTES_MIN ||
        config->segment_bytes > SEGMENT_BYTES_MAX || config->segment_bytes % QR_DISK_BLOCK != 0)
        return qr_error_set(
            e, QUIRE_EINVAL, "tail log segments of %u bytes: a multiple of %u from %u to %u",
            config->segment_bytes, QR_DISK_BLOCK, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
    if (config->max_bytes / 3 < config->segment_bytes)
        return qr_error_set(e, QUIRE_EINVAL,
                            "tail log of at most %" PRIu64
                            " bytes: three segments of %u at least",
                            config->max_bytes, config->segment_bytes);
    return QUIRE_OK;
}

static int open_folder(struct qr_disk_io *io, int folder_fd)
{
    if (mkdirat(folder_fd, "tail", FOLDER_MODE) != 0 && errno != EEXIST)
        return -errno;
    const int fd = io->open(io, folder_fd, "tail", O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return fd;
    const int error = io->sync_all(io, folder_fd);
    if (error != 0)
        io->close(io, fd);
    return error != 0 ? error : fd;
}

quire_status qr_tail_log_open(const struct qr_tail_log_config *config, struct qr_tail_log **out,
                              struct qr_error *e)
{
    struct qr_tail_log_config filled = *config;
    quire_status status = fill_in(&filled, e);

    if (status != QUIRE_OK)
        return status;
    struct qr_tail_log *log = calloc(1, sizeof(*log));
    if (!log)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the tail log");
    log->config = filled;
    memcpy(log->store, config->store, sizeof(log->store));
    log->next_sequence = 1;
    pthread_mutex_init(&log->io_lock, NULL);
    pthread_mutex_init(&log->lock, NULL);
    log->folder_fd = open_folder(config->io, config->folder_fd);
    if (log->folder_fd < 0)
        status =
            qr_error_set(e, qr_disk_status(log->folder_fd),
                         "tail log: cannot open its folder: %s", strerror(-log->folder_fd));
    else
        status = qr_tail_segments_find(log, e);
    if (status != QUIRE_OK) {
        qr_tail_log_close(&log);
        return status;
    }
    *out = log;
    return QUIRE_OK;
}

void qr_tail_group_free(struct qr_tail_group *group)
{
    free(group->bytes);
    free(group->records);
    *group = (struct qr_tail_group){0};
}

void qr_tail_log_close(struct qr_tail_log **log)
{
    struct qr_tail_log *l = *log;

    if (!l)
        return;
    qr_tail_segments_close(l);
    qr_tail_live_free(l);
    qr_tail_group_free(&l->pending);
    if (l->folder_fd >= 0)
        l->config.io->close(l->config.io, l->folder_fd);
    pthread_mutex_destroy(&l->lock);
    pthread_mutex_destroy(&l->io_lock);
    free(l);
    *log = NULL;
}

/* ---- append ----------------------------------------------------------------------------- */

static bool group_grow(struct qr_tail_group *group, size_t bytes, uint32_t records)
{
    if (!group->bytes || group->n + bytes > group->capacity) {
        size_t capacity = group->capacity ? group->capacity : 65536;
        while (capacity < group->n + bytes)
            capacity *= 2;
        uint8_t *grown = realloc(group->bytes, capacity);
        if (!grown)
            return false;
        group->bytes = grown;
        group->capacity = capacity;
    }
    if (group->count + records > group->records_capacity) {
        uint32_t capacity = group->records_capacity ? group->records_capacity : 64;
        while (capacity < group->count + records)
            capacity *= 2;
        struct qr_tail_pending *grown =
            realloc(group->records, capacity * sizeof(*group->records));
        if (!grown)
            return false;
        group->records = grown;
        group->records_capacity = capacity;
    }
    return true;
}

static quire_status append_locked(struct qr_tail_log *log, const struct qr_tail_record *record,
                                  uint32_t bytes)
{
    struct qr_tail_group *group = &log->pending;

    if (!group_grow(group, bytes, 1))
        return QUIRE_ENOMEM;
    qr_tail_record_encode(record, group->bytes + group->n);
    group->records[group->count++] = (struct qr_tail_pending){.at = group->n};
    group->n += bytes;
    log->stat.pending_bytes = group->n;
    return QUIRE_OK;
}

quire_status qr_tail_log_append(struct qr_tail_log *log, const struct qr_tail_record *record,
                                uint64_t *sequence_out)
{
    const uint32_t most = log->config.segment_bytes - QR_DISK_BLOCK;
    struct qr_tail_record numbered = *record;
    quire_status status;

    assert(record->tokens > 0 && record->payload_bytes > 0);
    if (record->payload_bytes > most - QR_TAIL_RECORD_HEAD - QR_TAIL_ALIGN)
        return QUIRE_ETOOBIG;
    const uint32_t bytes = qr_tail_record_bytes(record->payload_bytes);
    pthread_mutex_lock(&log->lock);
    numbered.sequence = log->next_sequence;
    if (log->pending.n > 0 && log->pending.n + bytes > log->config.pending_max)
        status = QUIRE_EAGAIN;
    else
        status = append_locked(log, &numbered, bytes);
    if (status == QUIRE_OK) {
        log->next_sequence++;
        *sequence_out = numbered.sequence;
    }
    pthread_mutex_unlock(&log->lock);
    return status;
}

bool qr_tail_group_add(struct qr_tail_group *group, const uint8_t *record, uint32_t bytes)
{
    if (!group_grow(group, bytes, 1))
        return false;
    memcpy(group->bytes + group->n, record, bytes);
    group->records[group->count++] = (struct qr_tail_pending){.at = group->n};
    group->n += bytes;
    return true;
}

/* ---- sync ------------------------------------------------------------------------------- */

/* As many records from `first` on as the segment takes; one write, one sync. */
static quire_status write_run(struct qr_tail_log *log, struct qr_tail_group *group,
                              uint32_t first, struct qr_tail_landing *landings,
                              uint32_t *next_out, struct qr_error *e)
{
    struct qr_disk_io *io = log->config.io;
    struct qr_tail_segment *segment;
    uint8_t *start = group->bytes + group->records[first].at;
    quire_status status = qr_tail_segment_for(log, qr_tail_record_size(start), &segment, e);
    uint32_t i = first;
    size_t bytes = 0;

    if (status != QUIRE_OK)
        return status;
    for (; i < group->count; i++) {
        uint8_t *record = group->bytes + group->records[i].at;
        const uint32_t size = qr_tail_record_size(record);
        if (size > log->config.segment_bytes - segment->used - bytes)
            break;
        qr_tail_record_finish(record, segment->number);
        landings[i] = (struct qr_tail_landing){segment, segment->used + (uint32_t)bytes};
        bytes += size;
    }
    int error = qr_disk_write_all(io, segment->fd, start, bytes, segment->used);
    if (error == 0)
        error = io->sync(io, segment->fd);
    if (error != 0) {
        segment->closed = true;
        return qr_error_set(e, qr_disk_status(error),
                            "tail log: cannot write segment %" PRIu64 ": %s", segment->number,
                            strerror(-error));
    }
    segment->used += (uint32_t)bytes;
    log->stat.written_bytes += bytes;
    *next_out = i;
    return QUIRE_OK;
}

quire_status qr_tail_group_write(struct qr_tail_log *log, struct qr_tail_group *group,
                                 struct qr_tail_landing *landings, uint32_t *done_out,
                                 struct qr_error *e)
{
    quire_status status = QUIRE_OK;

    *done_out = 0;
    while (*done_out < group->count && status == QUIRE_OK)
        status = write_run(log, group, *done_out, landings, done_out, e);
    return status;
}

/* Enter records [0, count) of the group, which are durable. lock held. */
static quire_status enter(struct qr_tail_log *log, const struct qr_tail_group *group,
                          const struct qr_tail_landing *landings, uint32_t count)
{
    quire_status status = QUIRE_OK;

    for (uint32_t i = 0; i < count && status == QUIRE_OK; i++) {
        struct qr_tail_record record;
        const uint8_t *bytes = group->bytes + group->records[i].at;
        const uint32_t size = qr_tail_record_decode(bytes, group->n - group->records[i].at,
                                                    landings[i].segment->number, &record);
        assert(size > 0);
        if (!group->records[i].dead)
            status =
                qr_tail_live_add(log, &record, landings[i].segment, landings[i].offset, size);
    }
    return status;
}

/* Records [0, count) of `pending` are durable, or none counts any more: keep only the rest,
 * which may have grown meanwhile. lock held. */
static void pending_consume(struct qr_tail_log *log, uint32_t count)
{
    struct qr_tail_group *group = &log->pending;
    const size_t cut = count < group->count ? group->records[count].at : group->n;

    if (count == 0)
        return;
    memmove(group->bytes, group->bytes + cut, group->n - cut);
    memmove(group->records, group->records + count,
            (group->count - count) * sizeof(*group->records));
    group->count -= count;
    group->n -= cut;
    for (uint32_t i = 0; i < group->count; i++)
        group->records[i].at -= cut;
    log->stat.pending_bytes = group->n;
}

static quire_status copy_pending(struct qr_tail_log *log, struct qr_tail_group *out)
{
    quire_status status = QUIRE_OK;

    pthread_mutex_lock(&log->lock);
    const struct qr_tail_group *group = &log->pending;
    if (group->count > 0) {
        if (group_grow(out, group->n, group->count)) {
            memcpy(out->bytes, group->bytes, group->n);
            memcpy(out->records, group->records, group->count * sizeof(*group->records));
            out->n = group->n;
            out->count = group->count;
        } else {
            status = QUIRE_ENOMEM;
        }
    }
    pthread_mutex_unlock(&log->lock);
    return status;
}

static quire_status sync_io_locked(struct qr_tail_log *log, struct qr_error *e)
{
    struct qr_tail_group group = {0};

    qr_tail_segments_sweep(log);
    quire_status status = copy_pending(log, &group);
    struct qr_tail_landing *landings =
        status == QUIRE_OK ? calloc(group.count + 1, sizeof(*landings)) : NULL;
    uint32_t done = 0;

    if (!landings) {
        qr_tail_group_free(&group);
        return qr_error_set(e, QUIRE_ENOMEM, "no memory to sync the tail log");
    }
    status = qr_tail_group_write(log, &group, landings, &done, e);
    pthread_mutex_lock(&log->lock);
    for (uint32_t i = 0; i < done; i++) /* drops that came while it was written */
        group.records[i].dead = log->pending.records[i].dead;
    const quire_status entered = enter(log, &group, landings, done);
    pending_consume(log, done);
    log->stat.syncs++;
    log->stat.records += done;
    log->stat.failures += status != QUIRE_OK;
    pthread_mutex_unlock(&log->lock);
    free(landings);
    qr_tail_group_free(&group);
    if (status == QUIRE_OK && entered != QUIRE_OK)
        status = qr_error_set(e, entered, "no memory for the tail log's account");
    return status;
}

quire_status qr_tail_log_sync(struct qr_tail_log *log, struct qr_error *e)
{
    bool moved = true;

    pthread_mutex_lock(&log->io_lock);
    quire_status status = sync_io_locked(log, e);
    while (status == QUIRE_EFULL && moved) {
        if (qr_tail_move_sparse(log, &moved, NULL) != QUIRE_OK || !moved)
            break;
        status = sync_io_locked(log, e);
    }
    pthread_mutex_unlock(&log->io_lock);
    return status;
}

void qr_tail_log_stat(struct qr_tail_log *log, struct qr_tail_log_stat *out)
{
    pthread_mutex_lock(&log->lock);
    *out = log->stat;
    pthread_mutex_unlock(&log->lock);
}
