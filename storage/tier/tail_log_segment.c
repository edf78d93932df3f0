/* SPDX-License-Identifier: Apache-2.0
 *
 * The tail log's files: found at start, made when the last is full, deleted when
 * nothing in them counts. All under `io_lock`.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/base/log.h"
#include "tail_log_impl.h"

#define FILE_MODE 0600

void qr_tail_segment_name(uint64_t number, char out[QR_TAIL_NAME_BYTES])
{
    (void)snprintf(out, QR_TAIL_NAME_BYTES, "%016" PRIx64 ".log", number);
}

static quire_status fail(struct qr_error *e, const char *what, uint64_t number, int error)
{
    return qr_error_set(e, qr_disk_status(error), "tail log: cannot %s segment %" PRIu64 ": %s",
                        what, number, strerror(-error));
}

static int compare_numbers(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Other files are not ours. */
quire_status qr_tail_segments_list(int folder_fd, uint64_t **out, size_t *count_out,
                                   struct qr_error *e)
{
    const int fd = dup(folder_fd);
    DIR *listing = fd >= 0 ? fdopendir(fd) : NULL;
    uint64_t *numbers = NULL, number;
    size_t count = 0;
    struct dirent *entry;
    int end;

    if (!listing)
        return fail(e, "list the folder of", 0, -errno);
    rewinddir(listing);
    while ((entry = readdir(listing)) != NULL) {
        end = 0;
        if (sscanf(entry->d_name, "%16" SCNx64 ".log%n", &number, &end) != 1 || end != 20 ||
            entry->d_name[end] != '\0')
            continue;
        uint64_t *grown = realloc(numbers, (count + 1) * sizeof(*numbers));
        if (!grown) {
            free(numbers);
            (void)closedir(listing);
            return qr_error_set(e, QUIRE_ENOMEM, "no memory for the tail log's segments");
        }
        numbers = grown;
        numbers[count++] = number;
    }
    (void)closedir(listing);
    if (count > 1)
        qsort(numbers, count, sizeof(*numbers), compare_numbers);
    *out = numbers;
    *count_out = count;
    return QUIRE_OK;
}

static struct qr_tail_segment *segment_add(struct qr_tail_log *log, uint64_t number, int fd)
{
    struct qr_tail_segment *segment = calloc(1, sizeof(*segment));

    if (!segment)
        return NULL;
    segment->number = number;
    segment->fd = fd;
    segment->used = QR_DISK_BLOCK;
    if (log->last)
        log->last->next = segment;
    else
        log->first = segment;
    log->last = segment;
    return segment;
}

static quire_status header_state(struct qr_tail_log *log, uint64_t number, int fd,
                                 bool *whole_out, struct qr_error *e)
{
    uint8_t block[QR_DISK_BLOCK];
    uint64_t base = 0;
    const int error = qr_disk_read_all(log->config.io, fd, block, sizeof(block), 0);
    quire_status status = error == 0 ? qr_tail_segment_check(log->store, number, block, &base)
                          : error == -ENODATA ? QUIRE_ECORRUPT
                                              : qr_disk_status(error);

    *whole_out = status == QUIRE_OK;
    if (status == QUIRE_OK && base > log->next_sequence)
        log->next_sequence = base;
    if (status == QUIRE_ECORRUPT) /* died while it was made, or damaged: replay finds out */
        return QUIRE_OK;
    if (status == QUIRE_EMISMATCH)
        return qr_error_set(e, status,
                            "tail log: segment %" PRIu64
                            " is of another store, or renamed: put "
                            "it back where it came from",
                            number);
    if (status == QUIRE_EUNSUPPORTED)
        return qr_error_set(e, status,
                            "tail log: segment %" PRIu64 " is of a newer Quire: start that one",
                            number);
    return status == QUIRE_OK ? status : fail(e, "read", number, error);
}

static quire_status segment_enter(struct qr_tail_log *log, uint64_t number, struct qr_error *e)
{
    char name[QR_TAIL_NAME_BYTES];
    struct stat st;
    bool whole;

    qr_tail_segment_name(number, name);
    const int fd = log->config.io->open(log->config.io, log->folder_fd, name, O_RDWR, 0);
    if (fd < 0)
        return fail(e, "open", number, fd);
    const quire_status status = header_state(log, number, fd, &whole, e);
    struct qr_tail_segment *segment = status == QUIRE_OK ? segment_add(log, number, fd) : NULL;
    if (!segment || fstat(fd, &st) != 0) {
        if (!segment)
            log->config.io->close(log->config.io, fd);
        return status != QUIRE_OK ? status : fail(e, "open", number, -ENOMEM);
    }
    segment->closed = true;
    segment->file_bytes = (uint32_t)st.st_size;
    log->stat.file_bytes += segment->file_bytes;
    log->stat.segments++;
    return QUIRE_OK;
}

quire_status qr_tail_segments_find(struct qr_tail_log *log, struct qr_error *e)
{
    uint64_t *numbers = NULL;
    size_t count = 0;
    quire_status status = qr_tail_segments_list(log->folder_fd, &numbers, &count, e);

    for (size_t i = 0; i < count && status == QUIRE_OK; i++)
        status = segment_enter(log, numbers[i], e);
    free(numbers);
    log->replayed = count == 0;
    return status;
}

/* Room is allocated at once, so that a sync has no size to write; without it the file grows. */
static int segment_write_header(struct qr_tail_log *log, int fd, uint64_t number,
                                uint32_t *file_bytes_out)
{
    struct qr_disk_io *io = log->config.io;
    uint8_t block[QR_DISK_BLOCK];

    pthread_mutex_lock(&log->lock);
    qr_tail_segment_header(log, number, log->next_sequence, block);
    pthread_mutex_unlock(&log->lock);
    int error = io->allocate(io, fd, 0, log->config.segment_bytes);
    *file_bytes_out = log->config.segment_bytes;
    if (error == 0)
        error = qr_disk_write_all(io, fd, block, sizeof(block), 0);
    if (error == 0)
        error = io->sync_all(io, fd);
    if (error == 0)
        error = io->sync_all(io, log->folder_fd);
    return error;
}

static quire_status segment_make(struct qr_tail_log *log, struct qr_error *e)
{
    struct qr_disk_io *io = log->config.io;
    const uint64_t number = log->last ? log->last->number + 1 : 1;
    char name[QR_TAIL_NAME_BYTES];
    uint32_t file_bytes;

    /* Without the last segment nothing could be moved together once the log is full. */
    const uint64_t kept = log->moving ? 0 : log->config.segment_bytes;
    if (log->stat.file_bytes + log->config.segment_bytes + kept > log->config.max_bytes)
        return qr_error_set(e, QUIRE_EFULL,
                            "tail log: its %" PRIu64 " bytes are full: seal or drop sessions, "
                            "or raise its limit",
                            log->config.max_bytes);
    qr_tail_segment_name(number, name);
    const int fd = io->open(io, log->folder_fd, name, O_RDWR | O_CREAT | O_EXCL, FILE_MODE);
    if (fd < 0)
        return fail(e, "make", number, fd);
    const int error = segment_write_header(log, fd, number, &file_bytes);
    struct qr_tail_segment *segment = error == 0 ? segment_add(log, number, fd) : NULL;
    if (!segment) {
        io->close(io, fd);
        (void)io->unlink(io, log->folder_fd, name);
        return fail(e, "make", number, error == 0 ? -ENOMEM : error);
    }
    segment->file_bytes = file_bytes;
    pthread_mutex_lock(&log->lock);
    log->stat.segments++;
    log->stat.file_bytes += file_bytes;
    pthread_mutex_unlock(&log->lock);
    return QUIRE_OK;
}

quire_status qr_tail_segment_for(struct qr_tail_log *log, uint32_t bytes,
                                 struct qr_tail_segment **out, struct qr_error *e)
{
    struct qr_tail_segment *last = log->last;

    if (last && !last->closed && log->config.segment_bytes - last->used >= bytes) {
        *out = last;
        return QUIRE_OK;
    }
    if (last)
        last->closed = true;
    const quire_status status = segment_make(log, e);
    if (status == QUIRE_OK)
        *out = log->last;
    return status;
}

void qr_tail_segments_sweep(struct qr_tail_log *log)
{
    struct qr_disk_io *io = log->config.io;
    char name[QR_TAIL_NAME_BYTES];

    if (!log->replayed)
        return;
    for (struct qr_tail_segment **at = &log->first; *at && *at != log->last;) {
        struct qr_tail_segment *segment = *at;
        pthread_mutex_lock(&log->lock);
        const bool dead = segment->closed && segment->live_records == 0;
        pthread_mutex_unlock(&log->lock);
        qr_tail_segment_name(segment->number, name);
        if (!dead || io->unlink(io, log->folder_fd, name) != 0) {
            at = &segment->next;
            continue;
        }
        *at = segment->next;
        io->close(io, segment->fd);
        pthread_mutex_lock(&log->lock);
        log->stat.segments--;
        log->stat.file_bytes -= segment->file_bytes;
        pthread_mutex_unlock(&log->lock);
        free(segment);
    }
}

void qr_tail_segments_close(struct qr_tail_log *log)
{
    while (log->first) {
        struct qr_tail_segment *segment = log->first;
        log->first = segment->next;
        log->config.io->close(log->config.io, segment->fd);
        free(segment);
    }
    log->last = NULL;
}

quire_status qr_tail_segment_load(struct qr_tail_log *log, struct qr_tail_segment *segment,
                                  uint8_t **out, size_t *bytes_out, struct qr_error *e)
{
    struct stat st;
    int error = fstat(segment->fd, &st) == 0 ? 0 : -errno;
    const size_t bytes = error == 0 ? (size_t)st.st_size : 0;
    uint8_t *contents = malloc(bytes + 1);

    if (!contents)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for a tail log segment of %zu bytes",
                            bytes);
    if (error == 0)
        error = qr_disk_read_all(log->config.io, segment->fd, contents, bytes, 0);
    if (error != 0) {
        free(contents);
        return fail(e, "read", segment->number, error);
    }
    *out = contents;
    *bytes_out = bytes;
    return QUIRE_OK;
}
