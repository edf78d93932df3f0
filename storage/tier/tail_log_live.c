/* SPDX-License-Identifier: Apache-2.0
 *
 * The account of records that count: by lane, a few each, since a tail is short.
 * A segment's live_records and live_bytes are the sums over the entries in it.
 * Every function runs under the log's `lock`, or takes it where it is public.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tail_log_impl.h"

#define ENTRIES_START 4u

static bool is_lane(const struct qr_tail_lane *at, const uint8_t session[QR_DISK_UUID_BYTES],
                    uint32_t lane)
{
    return at->lane == lane && memcmp(at->session, session, QR_DISK_UUID_BYTES) == 0;
}

static struct qr_tail_lane **find(struct qr_tail_log *log,
                                  const uint8_t session[QR_DISK_UUID_BYTES], uint32_t lane)
{
    uint64_t hash;

    memcpy(&hash, session, sizeof(hash)); /* a uuid is random */
    hash = (hash + lane) * UINT64_C(0x9E3779B97F4A7C15);
    struct qr_tail_lane **at = &log->buckets[hash >> 50]; /* top 14 bits */
    while (*at && !is_lane(*at, session, lane))
        at = &(*at)->next;
    return at;
}

_Static_assert(QR_TAIL_LANE_BUCKETS == 1u << 14, "14 bits of the hash");

const struct qr_tail_lane *qr_tail_live_lane(struct qr_tail_log *log,
                                             const uint8_t session[QR_DISK_UUID_BYTES],
                                             uint32_t lane)
{
    return *find(log, session, lane);
}

static struct qr_tail_lane *
find_or_make(struct qr_tail_log *log, const uint8_t session[QR_DISK_UUID_BYTES], uint32_t lane)
{
    struct qr_tail_lane **at = find(log, session, lane);

    if (*at != NULL)
        return *at;
    struct qr_tail_lane *made = calloc(1, sizeof(*made));
    if (!made)
        return NULL;
    memcpy(made->session, session, QR_DISK_UUID_BYTES);
    made->lane = lane;
    *at = made;
    return made;
}

quire_status qr_tail_live_add(struct qr_tail_log *log, const struct qr_tail_record *record,
                              struct qr_tail_segment *segment, uint32_t offset, uint32_t bytes)
{
    struct qr_tail_lane *lane = find_or_make(log, record->session, record->lane);

    if (!lane)
        return QUIRE_ENOMEM;
    if (lane->count == lane->capacity) {
        const uint32_t capacity = lane->capacity ? lane->capacity * 2 : ENTRIES_START;
        struct qr_tail_entry *grown = realloc(lane->entries, capacity * sizeof(*lane->entries));
        if (!grown)
            return QUIRE_ENOMEM;
        lane->entries = grown;
        lane->capacity = capacity;
    }
    lane->entries[lane->count++] = (struct qr_tail_entry){.position = record->position,
                                                          .sequence = record->sequence,
                                                          .tokens = record->tokens,
                                                          .bytes = bytes,
                                                          .segment = segment,
                                                          .offset = offset};
    segment->live_records++;
    segment->live_bytes += bytes;
    log->stat.live_records++;
    log->stat.live_bytes += bytes;
    return QUIRE_OK;
}

static void entry_dead(struct qr_tail_log *log, struct qr_tail_lane *lane, uint32_t i)
{
    const struct qr_tail_entry *entry = &lane->entries[i];

    assert(entry->segment->live_records > 0);
    entry->segment->live_records--;
    entry->segment->live_bytes -= entry->bytes;
    log->stat.live_records--;
    log->stat.live_bytes -= entry->bytes;
    lane->entries[i] = lane->entries[--lane->count];
}

void qr_tail_live_move(struct qr_tail_log *log, const struct qr_tail_record *record,
                       struct qr_tail_segment *from, struct qr_tail_segment *to,
                       uint32_t offset)
{
    struct qr_tail_lane *lane = *find(log, record->session, record->lane);

    for (uint32_t i = 0; lane && i < lane->count; i++) {
        struct qr_tail_entry *entry = &lane->entries[i];
        if (entry->segment != from || entry->sequence != record->sequence)
            continue;
        from->live_records--;
        from->live_bytes -= entry->bytes;
        to->live_records++;
        to->live_bytes += entry->bytes;
        entry->segment = to;
        entry->offset = offset;
        return;
    }
}

bool qr_tail_live_has(struct qr_tail_log *log, const struct qr_tail_record *record,
                      const struct qr_tail_segment *segment)
{
    const struct qr_tail_lane *lane = *find(log, record->session, record->lane);

    for (uint32_t i = 0; lane && i < lane->count; i++) {
        if (lane->entries[i].segment == segment &&
            lane->entries[i].sequence == record->sequence)
            return true;
    }
    return false;
}

static void lane_free_if_empty(struct qr_tail_lane **at)
{
    struct qr_tail_lane *lane = *at;

    if (!lane || lane->count > 0)
        return;
    *at = lane->next;
    free(lane->entries);
    free(lane);
}

/* Records of the lane that lie wholly in [from, to) no longer count. */
static void kill_range(struct qr_tail_log *log, const uint8_t session[QR_DISK_UUID_BYTES],
                       uint32_t lane_number, uint64_t from, uint64_t to)
{
    struct qr_tail_lane **at = find(log, session, lane_number);
    struct qr_tail_record record;

    for (uint32_t i = *at ? (*at)->count : 0; i-- > 0;) {
        const struct qr_tail_entry *entry = &(*at)->entries[i];
        if (entry->position >= from && entry->position + entry->tokens <= to)
            entry_dead(log, *at, i);
    }
    lane_free_if_empty(at);
    for (uint32_t i = 0; i < log->pending.count; i++) {
        struct qr_tail_pending *p = &log->pending.records[i];
        memcpy(record.session, log->pending.bytes + p->at + 32, QR_DISK_UUID_BYTES);
        memcpy(&record.lane, log->pending.bytes + p->at + 48, 4);
        memcpy(&record.tokens, log->pending.bytes + p->at + 52, 4);
        memcpy(&record.position, log->pending.bytes + p->at + 56, 8);
        if (record.lane == lane_number && record.position >= from &&
            record.position + record.tokens <= to &&
            memcmp(record.session, session, QR_DISK_UUID_BYTES) == 0)
            p->dead = true;
    }
}

void qr_tail_log_drop(struct qr_tail_log *log, const uint8_t session[QR_DISK_UUID_BYTES],
                      uint32_t lane, uint64_t position)
{
    pthread_mutex_lock(&log->lock);
    kill_range(log, session, lane, 0, position);
    pthread_mutex_unlock(&log->lock);
}

uint64_t qr_tail_log_sequence(struct qr_tail_log *log)
{
    pthread_mutex_lock(&log->lock);
    const uint64_t sequence = log->next_sequence;
    pthread_mutex_unlock(&log->lock);
    return sequence;
}

void qr_tail_log_cut(struct qr_tail_log *log, const uint8_t session[QR_DISK_UUID_BYTES],
                     uint32_t lane, uint64_t length, uint64_t *sequence_out)
{
    pthread_mutex_lock(&log->lock);
    *sequence_out = log->next_sequence;
    kill_range(log, session, lane, length, UINT64_MAX);
    pthread_mutex_unlock(&log->lock);
}

void qr_tail_log_forget(struct qr_tail_log *log, const uint8_t session[QR_DISK_UUID_BYTES],
                        uint32_t lane)
{
    pthread_mutex_lock(&log->lock);
    kill_range(log, session, lane, 0, UINT64_MAX);
    pthread_mutex_unlock(&log->lock);
}

void qr_tail_live_free(struct qr_tail_log *log)
{
    for (uint32_t b = 0; b < QR_TAIL_LANE_BUCKETS; b++) {
        while (log->buckets[b]) {
            struct qr_tail_lane *lane = log->buckets[b];
            log->buckets[b] = lane->next;
            free(lane->entries);
            free(lane);
        }
    }
}
