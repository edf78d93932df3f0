/* SPDX-License-Identifier: Apache-2.0
 *
 * What leaves the disk: the end of a session that was cut, a session that was
 * dropped (its record at once, the rest in the background), pages that nobody
 * names any more.
 */
#include <stdlib.h>
#include <string.h>

#include "durable.h"
#include "storage/base/log.h"

/* Manifest entries of a prefix, at most `most`, as copies: the index must not be written while
 * it is read. */
struct entries {
    struct qr_disk_key keys[QR_RECLAIM_PAGES];
    struct qr_disk_block blocks[QR_RECLAIM_PAGES];
    uint32_t count, from_block;
    bool more;
};

static bool note_entry(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                       size_t value_bytes)
{
    struct entries *entries = arg;
    uint32_t lane, block;

    if (!qr_disk_key_manifest_read(key, key_bytes, &lane, &block) ||
        block < entries->from_block)
        return true;
    if (entries->count == QR_RECLAIM_PAGES) {
        entries->more = true;
        return false;
    }
    struct qr_disk_key *to = &entries->keys[entries->count];
    memcpy(to->bytes, key, key_bytes);
    to->n = (uint32_t)key_bytes;
    if (qr_disk_block_read(value, value_bytes, &entries->blocks[entries->count]) != QUIRE_OK)
        entries->blocks[entries->count].place.bytes = 0; /* fsck finds the page */
    entries->count++;
    return true;
}

/* Delete entries of the prefix from a block on; *more: there are others. */
static quire_status unname_entries(struct qr_round *round, const struct qr_disk_key *prefix,
                                   uint32_t from_block, uint32_t *count, bool *more)
{
    struct entries *entries = calloc(1, sizeof(*entries));

    if (!entries)
        return QUIRE_ENOMEM;
    entries->from_block = from_block;
    quire_status status = qr_disk_index_each(qr_disk_index_of(round->mover->disk), prefix,
                                             note_entry, entries, NULL);
    for (uint32_t i = 0; i < entries->count && status == QUIRE_OK; i++) {
        if (entries->blocks[i].place.bytes > 0)
            status = qr_unname(round, &entries->blocks[i], 1);
        qr_disk_batch_delete(&round->batch, &entries->keys[i]);
    }
    *count = entries->count;
    *more = entries->more;
    free(entries);
    return status;
}

/* ---- cut ----------------------------------------------------------------------------------
 */

static bool note_cut_lane(struct qr_round *round, uint32_t number)
{
    const struct qr_session *session = round->session;
    const struct qr_lane_saved *saved = &session->lanes[number].saved;
    const uint32_t whole = (uint32_t)(saved->cut_to / session->policy.page_tokens);

    if (!qr_round_room(&round->lanes, &round->lane_capacity, round->lane_count + 1,
                       sizeof(*round->lanes)))
        return false;
    struct qr_round_lane *lane = &round->lanes[round->lane_count++];
    *lane = (struct qr_round_lane){.lane = number,
                                   .sealed = saved->sealed < whole ? saved->sealed : whole,
                                   .cut = saved->cut,
                                   /* Rows that are not in the log yet must not be taken from
                                    * what was there before an earlier cut. */
                                   .cut_length = qr_min_u64(saved->cut_to, saved->length),
                                   .cut_to = saved->cut_to};
    return true;
}

static void put_lane(struct qr_round *round, struct qr_round_lane *lane)
{
    const struct qr_disk_key key = qr_disk_key_lane(round->uuid, lane->lane);
    uint8_t bytes[QR_DISK_LANE_RECORD_BYTES];

    lane->cut_sequence = qr_tail_log_sequence(qr_disk_tail_log_of(round->mover->disk));
    const struct qr_disk_lane record = {.sealed = lane->sealed,
                                        .cut_sequence = lane->cut_sequence,
                                        .cut_length = lane->cut_length};
    qr_disk_lane_write(&record, bytes);
    qr_disk_batch_put(&round->batch, &key, bytes, sizeof(bytes));
}

static quire_status unname_lane(struct qr_round *round, const struct qr_round_lane *lane,
                                uint32_t saved)
{
    struct qr_disk_block block;
    uint8_t value[QR_DISK_BLOCK_RECORD_BYTES];
    quire_status status = QUIRE_OK;

    for (uint32_t b = lane->sealed; b < saved && status == QUIRE_OK; b++) {
        const struct qr_disk_key key = qr_disk_key_manifest(round->uuid, lane->lane, b);
        size_t n;
        status = qr_disk_index_get(qr_disk_index_of(round->mover->disk), &key, value,
                                   sizeof(value), &n);
        if (status == QUIRE_OK && qr_disk_block_read(value, n, &block) == QUIRE_OK &&
            block.place.bytes > 0)
            status = qr_unname(round, &block, 1);
        if (status == QUIRE_ENOTFOUND)
            status = QUIRE_OK;
        qr_disk_batch_delete(&round->batch, &key);
    }
    return status;
}

/* Blocks that some lane still has on disk after the cut: their ids stay. */
static uint32_t kept_blocks(const struct qr_round *round)
{
    const struct qr_session *session = round->session;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < session->lane_count; i++) {
        const struct qr_lane_saved *saved = &session->lanes[i].saved;
        if (!saved->cut && saved->sealed > kept)
            kept = saved->sealed;
    }
    for (size_t i = 0; i < round->lane_count; i++) {
        if (round->lanes[i].sealed > kept)
            kept = round->lanes[i].sealed;
    }
    return kept < session->save.blocks ? kept : session->save.blocks;
}

quire_status qr_round_fill_cut(struct qr_round *round)
{
    struct qr_session *session = round->session;
    quire_status status = QUIRE_OK;
    bool ok = true;

    pthread_mutex_lock(&session->lock);
    if (session->dead)
        status = QUIRE_ENOTFOUND;
    for (uint32_t i = 0; status == QUIRE_OK && ok && i < session->lane_count; i++)
        ok = !session->lanes[i].saved.cut || note_cut_lane(round, i);
    const uint32_t blocks = session->save.blocks;
    round->first_block = status == QUIRE_OK && ok ? kept_blocks(round) : blocks;
    pthread_mutex_unlock(&session->lock);
    if (!ok)
        status = QUIRE_ENOMEM;
    for (size_t i = 0; i < round->lane_count && status == QUIRE_OK; i++) {
        struct qr_round_lane *lane = &round->lanes[i];
        put_lane(round, lane);
        status = unname_lane(round, lane, session->lanes[lane->lane].saved.sealed);
    }
    for (uint32_t b = round->first_block; b < blocks; b++) {
        const struct qr_disk_key key = qr_disk_key_block(round->uuid, b);
        qr_disk_batch_delete(&round->batch, &key);
    }
    /* With the rows of others that wait: a start must not give out numbers below the cut's. */
    round->commit.tail = true;
    if (!session->save.stored) {
        const struct qr_disk_key going = qr_disk_key_going(round->uuid);
        qr_disk_batch_put(&round->batch, &going, "", 0);
    }
    return status;
}

void qr_round_unsaved(struct qr_round *round)
{
    struct qr_session *session = round->session;
    const bool logged = round->chunk_count > 0 || round->commit.in_doubt;

    pthread_mutex_lock(&session->lock);
    if (round->first_block < session->save.cut_blocks)
        session->save.cut_blocks = round->first_block;
    for (size_t i = 0; i < round->lane_count && logged && !session->dead; i++) {
        struct qr_lane_saved *saved = &session->lanes[round->lanes[i].lane].saved;
        saved->cut_to = saved->cut ? qr_min_u64(saved->cut_to, saved->length) : saved->length;
        saved->cut = true;
    }
    pthread_mutex_unlock(&session->lock);
}

/* ---- drop ---------------------------------------------------------------------------------
 */

quire_status qr_round_fill_drop(struct qr_round *round)
{
    const struct qr_session *session = round->session;
    const struct qr_disk_key record = qr_disk_key_session(session->ns, round->uuid);
    const struct qr_disk_key going = qr_disk_key_going(round->uuid);

    if (!session->save.stored && !session->save.going)
        return QUIRE_OK;
    qr_disk_batch_delete(&round->batch, &record);
    qr_disk_batch_put(&round->batch, &going, "", 0);
    return QUIRE_OK;
}

/* ---- reclaim -------------------------------------------------------------------------------
 */

struct keys {
    struct qr_disk_batch *batch;
    uint32_t count;
};

static bool delete_key(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                       size_t value_bytes)
{
    struct keys *keys = arg;
    struct qr_disk_key copy = {.n = (uint32_t)key_bytes};

    (void)value;
    (void)value_bytes;
    memcpy(copy.bytes, key, key_bytes);
    qr_disk_batch_delete(keys->batch, &copy);
    return ++keys->count < 4 * QR_RECLAIM_PAGES;
}

/* Pages first; when there are none left, the rest and with it the mark. */
static quire_status reclaim_session(struct qr_round *round, const uint8_t uuid[16],
                                    bool *done_out)
{
    static const uint8_t kinds[] = {QR_DISK_KEY_BLOCK, QR_DISK_KEY_LANE, QR_DISK_KEY_TOKENS};
    struct qr_disk_index *index = qr_disk_index_of(round->mover->disk);
    const struct qr_disk_key manifest = qr_disk_key_prefix(QR_DISK_KEY_MANIFEST, uuid);
    const struct qr_disk_key going = qr_disk_key_going(uuid);
    struct keys keys = {.batch = &round->batch};
    uint32_t count = 0;
    bool more = false;
    quire_status status = unname_entries(round, &manifest, 0, &count, &more);

    for (size_t i = 0; i < sizeof(kinds) && status == QUIRE_OK && !more; i++) {
        const struct qr_disk_key prefix = qr_disk_key_prefix(kinds[i], uuid);
        status = qr_disk_index_each(index, &prefix, delete_key, &keys, NULL);
        more = keys.count >= 4 * QR_RECLAIM_PAGES;
    }
    *done_out = status == QUIRE_OK && !more;
    if (*done_out)
        qr_disk_batch_delete(&round->batch, &going);
    return status;
}

/* A page that has a record and no name; it may have got one again meanwhile. */
static quire_status reclaim_orphan(struct qr_round *round, const uint8_t id[QR_HASH_BYTES])
{
    const struct qr_disk_key key = qr_disk_key_page(id);
    uint8_t value[QR_DISK_PAGE_RECORD_BYTES];
    struct qr_disk_block block = {.place = {0}};
    struct qr_disk_page record = {.named = 0};
    size_t n;
    quire_status status =
        qr_disk_index_get(qr_disk_index_of(round->mover->disk), &key, value, sizeof(value), &n);

    if (status == QUIRE_OK)
        status = qr_disk_page_read(value, n, &record);
    if (status != QUIRE_OK || record.named > 0)
        return status == QUIRE_EIO ? status : QUIRE_OK;
    memcpy(block.page_id, id, QR_HASH_BYTES);
    block.place = record.place;
    block.checksum = record.checksum;
    return qr_unname(round, &block, 0);
}

static quire_status reclaim_orphans(struct qr_round *round, bool *more_out)
{
    struct qr_mover *mover = round->mover;
    uint8_t id[QR_HASH_BYTES];
    quire_status status = QUIRE_OK;

    for (uint32_t i = 0; i < QR_RECLAIM_PAGES && status == QUIRE_OK; i++) {
        pthread_mutex_lock(&mover->lock);
        const bool any = mover->orphan_count > 0;
        if (any)
            memcpy(id, mover->orphans[--mover->orphan_count], QR_HASH_BYTES);
        pthread_mutex_unlock(&mover->lock);
        if (!any)
            break;
        *more_out = true;
        status = reclaim_orphan(round, id);
        if (status != QUIRE_OK)
            qr_mover_orphan(mover, id);
    }
    return status;
}

quire_status qr_round_fill_reclaim(struct qr_round *round, bool *more_out)
{
    struct qr_mover *mover = round->mover;
    bool done = false;
    quire_status status = reclaim_orphans(round, more_out);

    pthread_mutex_lock(&mover->lock);
    const bool any = mover->going_count > 0;
    if (any)
        memcpy(round->uuid, mover->going[mover->going_count - 1], QR_DISK_UUID_BYTES);
    pthread_mutex_unlock(&mover->lock);
    if (status != QUIRE_OK || !any)
        return status;
    *more_out = true;
    status = reclaim_session(round, round->uuid, &done);
    if (status != QUIRE_OK || !done)
        return status;
    /* The list only grows at its end meanwhile; a failed commit leaves the mark for a start. */
    pthread_mutex_lock(&mover->lock);
    for (size_t i = 0; i < mover->going_count; i++) {
        if (memcmp(mover->going[i], round->uuid, QR_DISK_UUID_BYTES) == 0) {
            memcpy(mover->going[i], mover->going[--mover->going_count], QR_DISK_UUID_BYTES);
            break;
        }
    }
    pthread_mutex_unlock(&mover->lock);
    return status;
}
