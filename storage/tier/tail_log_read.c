/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of one lane, read back from the tail log's files when its session is used
 * again, so that a start needs to hold none of them.
 */
#include <stdlib.h>
#include <string.h>

#include "tail_log_impl.h"

static int compare_sequences(const void *a, const void *b)
{
    const struct qr_tail_entry *x = a, *y = b;
    return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

/* Entries of a lane, ascending by sequence; *out to be freed. */
static quire_status copy_entries(struct qr_tail_log *log,
                                 const uint8_t session[QR_DISK_UUID_BYTES], uint32_t number,
                                 struct qr_tail_entry **out, uint32_t *count_out)
{
    quire_status status = QUIRE_OK;

    pthread_mutex_lock(&log->lock);
    const struct qr_tail_lane *lane = qr_tail_live_lane(log, session, number);
    *count_out = lane ? lane->count : 0;
    *out = malloc((*count_out + 1) * sizeof(**out));
    if (!*out)
        status = QUIRE_ENOMEM;
    else if (lane)
        memcpy(*out, lane->entries, lane->count * sizeof(**out));
    pthread_mutex_unlock(&log->lock);
    if (status == QUIRE_OK)
        qsort(*out, *count_out, sizeof(**out), compare_sequences);
    return status;
}

static quire_status read_entry(struct qr_tail_log *log, const struct qr_tail_entry *entry,
                               uint8_t *buffer, struct qr_tail_record *out)
{
    const int error = qr_disk_read_all(log->config.io, entry->segment->fd, buffer, entry->bytes,
                                       entry->offset);

    if (error != 0)
        return qr_disk_status(error);
    if (qr_tail_record_decode(buffer, entry->bytes, entry->segment->number, out) == 0 ||
        out->sequence != entry->sequence)
        return QUIRE_ECORRUPT;
    return QUIRE_OK;
}

static uint32_t most_bytes(const struct qr_tail_entry *entries, uint32_t count)
{
    uint32_t most = 1;

    for (uint32_t i = 0; i < count; i++)
        most = entries[i].bytes > most ? entries[i].bytes : most;
    return most;
}

quire_status qr_tail_log_read(struct qr_tail_log *log,
                              const uint8_t session[QR_DISK_UUID_BYTES], uint32_t lane,
                              qr_tail_log_replay_fn *each, void *arg, uint32_t *damaged_out)
{
    struct qr_tail_entry *entries;
    uint32_t count;

    *damaged_out = 0;
    /* io_lock: no segment is moved or deleted meanwhile. */
    pthread_mutex_lock(&log->io_lock);
    quire_status status = copy_entries(log, session, lane, &entries, &count);
    uint8_t *buffer = status == QUIRE_OK ? malloc(most_bytes(entries, count)) : NULL;
    if (status == QUIRE_OK && !buffer)
        status = QUIRE_ENOMEM;
    for (uint32_t i = 0; i < count && status == QUIRE_OK; i++) {
        struct qr_tail_record record;
        status = read_entry(log, &entries[i], buffer, &record);
        if (status == QUIRE_ECORRUPT) {
            (*damaged_out)++;
            status = QUIRE_OK;
        } else if (status == QUIRE_OK && !each(arg, &record)) {
            break;
        }
    }
    pthread_mutex_unlock(&log->io_lock);
    free(buffer);
    free(entries);
    return status;
}
