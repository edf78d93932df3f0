/* SPDX-License-Identifier: Apache-2.0
 *
 * A save round: what the session has and the disk has not, taken under the
 * session's lock; page writes; rows to the tail log; what is noted afterwards.
 */
#include <stdlib.h>
#include <string.h>

#include "durable.h"

#define TOKEN_HEAD 16u

#define ROOM(round, array, capacity, wanted)                                                   \
    qr_round_room(&(round)->array, &(round)->capacity, (wanted), sizeof(*(round)->array))

/* ---- gather -------------------------------------------------------------------------------
 */

static uint32_t first_unsaved(const struct qr_lane *lane)
{
    return lane->saved.sealed < lane->saved.changed ? lane->saved.sealed : lane->saved.changed;
}

/* Pages of a lane from the first unsaved one on; false: no memory. */
static bool gather_pages(struct qr_round *round, uint32_t number, struct qr_lane *lane,
                         uint32_t *end_out)
{
    const uint32_t first = first_unsaved(lane);
    const size_t room = QR_ROUND_PAGES - round->page_count;
    const uint32_t most = lane->sealed > first ? lane->sealed - first : 0;
    const uint32_t n = most < room ? most : (uint32_t)room;

    *end_out = first + n;
    if (!ROOM(round, pages, page_capacity, round->page_count + n))
        return false;
    for (uint32_t b = first; b < first + n; b++)
        round->pages[round->page_count++] = (struct qr_round_page){
            .round = round, .lane = number, .block = b, .entry = lane->pages[b]};
    if (n > 0)
        qr_index_ref(round->session->store->index, lane->pages + first, n);
    return true;
}

/* Rows that are in no page and not in the log: one part a chunk. */
static bool gather_rows(struct qr_round *round, uint32_t number, const struct qr_lane *lane)
{
    const uint32_t page_tokens = round->session->policy.page_tokens;
    uint64_t position = qr_max_u64(lane->saved.length, (uint64_t)lane->sealed * page_tokens);

    if (!ROOM(round, chunks, chunk_capacity, round->chunk_count + lane->tail_count))
        return false;
    while (position < lane->length) {
        const uint32_t block = (uint32_t)(position / page_tokens);
        const uint64_t end = qr_min_u64(lane->length, (uint64_t)(block + 1) * page_tokens);
        struct qr_chunk *chunk = lane->tail[block - lane->sealed];
        (void)qr_chunk_pin(chunk); /* a store with a disk loses none */
        round->chunks[round->chunk_count++] =
            (struct qr_round_chunk){.chunk = chunk,
                                    .lane = number,
                                    .first = (uint32_t)(position % page_tokens),
                                    .rows = (uint32_t)(end - position),
                                    .position = position};
        position = end;
    }
    return true;
}

static bool gather_lane(struct qr_round *round, uint32_t number)
{
    struct qr_lane *lane = &round->session->lanes[number];
    uint32_t end;

    if (lane->saved.sealed == lane->sealed && lane->saved.changed == UINT32_MAX &&
        (lane->saved.length == lane->length || !round->with_rows)) {
        round->left = round->left || lane->saved.length != lane->length;
        return true;
    }
    if (!ROOM(round, lanes, lane_capacity, round->lane_count + 1) ||
        !gather_pages(round, number, lane, &end))
        return false;
    struct qr_round_lane *out = &round->lanes[round->lane_count++];
    *out = (struct qr_round_lane){.lane = number,
                                  .sealed = end > lane->saved.sealed ? end : lane->saved.sealed,
                                  .length = lane->saved.length,
                                  .cut_sequence = lane->saved.cut_sequence,
                                  .cut_length = lane->saved.cut_length};
    if (end < lane->sealed) {
        round->whole = false;
        out->length =
            qr_max_u64(out->length, (uint64_t)out->sealed * round->session->policy.page_tokens);
        return true;
    }
    if (!round->with_rows) { /* pages alone: rows wait until somebody does */
        round->left = true;
        out->length =
            qr_max_u64(out->length, (uint64_t)out->sealed * round->session->policy.page_tokens);
        return true;
    }
    out->length = lane->length;
    return gather_rows(round, number, lane);
}

/* Ids of blocks that are sealed and not on disk, or were given anew since. */
static bool gather_ids(struct qr_round *round, bool quiet)
{
    struct qr_session *session = round->session;
    const struct qr_blocks *blocks = &session->blocks;
    uint32_t top = session->save.blocks < blocks->fixed ? session->save.blocks : blocks->fixed;

    round->first_block = session->save.cut_blocks < session->save.blocks
                             ? session->save.cut_blocks
                             : session->save.blocks;
    session->save.cut_blocks = UINT32_MAX;
    for (size_t i = 0; i < round->lane_count; i++) {
        if (round->lanes[i].sealed > top)
            top = round->lanes[i].sealed;
    }
    round->blocks = top > round->first_block ? top - round->first_block : 0;
    if (!ROOM(round, ids, id_capacity, round->blocks))
        return false;
    if (round->blocks > 0)
        memcpy(round->ids, blocks->ids[round->first_block],
               (size_t)round->blocks * QR_HASH_BYTES);
    if (blocks->chained == 0 && blocks->token_count == 0 && !session->save.tokens)
        return true; /* and no record that would say otherwise */
    if (!quiet) {
        round->left = true;
        return true;
    }
    const uint32_t head[4] = {1, blocks->fixed, blocks->chained, blocks->token_count};
    round->token_bytes = TOKEN_HEAD + (size_t)blocks->token_count * 5;
    if (!qr_round_room(&round->tokens, &round->token_capacity, round->token_bytes, 1))
        return false;
    memcpy(round->tokens, head, TOKEN_HEAD);
    if (blocks->token_count > 0) {
        memcpy(round->tokens + TOKEN_HEAD, blocks->tokens, (size_t)blocks->token_count * 4);
        /* STAGED ones belong to an append under way: not known yet. */
        for (uint32_t i = 0; i < blocks->token_count; i++)
            round->tokens[TOKEN_HEAD + (size_t)blocks->token_count * 4 + i] =
                blocks->known[i] == 1;
    }
    return true;
}

quire_status qr_round_gather(struct qr_round *round)
{
    struct qr_session *session = round->session;
    quire_status status = QUIRE_OK;
    bool ok = true;
    /* An append stages token ids under this lock alone: then they wait for the next round, and
     * a crash before it costs the chain of ids, so that later pages are shared less. */
    const bool quiet = pthread_mutex_trylock(&session->write_lock) == 0;

    pthread_mutex_lock(&session->lock);
    round->epoch = session->epoch;
    atomic_store(&session->unsaved, false);
    if (session->dead)
        status = QUIRE_ENOTFOUND;
    else if (atomic_load(&session->loaded)) {
        for (uint32_t i = 0; i < session->lane_count && ok; i++)
            ok = gather_lane(round, i);
        ok = ok && gather_ids(round, quiet);
    }
    pthread_mutex_unlock(&session->lock);
    if (quiet)
        pthread_mutex_unlock(&session->write_lock);
    if (status == QUIRE_OK && !ok)
        status = QUIRE_ENOMEM;
    return status;
}

/* ---- writes -------------------------------------------------------------------------------
 */

static void one_less(struct qr_round *round)
{
    if (atomic_fetch_sub(&round->pending, 1) == 1)
        qr_mover_event(round);
}

static void page_written(void *arg, quire_status status)
{
    struct qr_round_page *page = arg;
    struct qr_round *round = page->round;
    struct qr_store *store = round->mover->store;
    struct qr_tier *disk = qr_disk_tier(round->mover->disk);

    if (status == QUIRE_OK) {
        qr_counter_add(&store->counters.disk_pages_written, 1);
        qr_index_write_end(store->index, page->entry, &page->slot);
    } else {
        atomic_store(&round->failed, status);
        qr_index_write_end(store->index, page->entry, NULL);
        disk->ops->release(disk, &page->slot);
    }
    one_less(round);
}

static quire_status submit(struct qr_round *round, struct qr_round_page *page,
                           const struct qr_pinned *pinned)
{
    struct qr_tier *host = round->mover->store->tier;
    const struct qr_disk_transfer transfer = {
        .place = qr_disk_place_of(round->mover->disk, &page->slot),
        .buffer = (void *)(uintptr_t)pinned->bytes,
        .capacity = host->ops->rounded(host, pinned->n),
        .urgency = round->urgent ? QR_RING_COMMIT : QR_RING_WRITE_BACK,
        .done = page_written,
        .arg = page};
    quire_status status;

    atomic_fetch_add(&round->pending, 1);
    /* The ring's queue is bounded: it empties by itself. */
    while ((status = qr_disk_write(round->mover->disk, &transfer, NULL)) == QUIRE_EAGAIN)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    if (status != QUIRE_OK)
        atomic_fetch_sub(&round->pending, 1);
    return status;
}

static quire_status write_page(struct qr_round *round, struct qr_round_page *page)
{
    struct qr_store *store = round->mover->store;
    struct qr_tier *disk = qr_disk_tier(round->mover->disk);
    struct qr_pinned pinned;
    struct qr_slot known;
    uint64_t tag;
    quire_status status = qr_name_prepare(round, page);

    page->flying = false;
    if (status != QUIRE_OK)
        return status;
    const enum qr_write write =
        qr_index_write_begin(store->index, page->entry, &pinned, &known, &tag);
    page->flying = write == QR_WRITE_FLYING;
    if (write != QR_WRITE_START)
        return QUIRE_OK;
    status = disk->ops->reserve(disk, pinned.n, &page->slot);
    if (status != QUIRE_OK) {
        qr_index_write_end(store->index, page->entry, NULL);
        return status;
    }
    status = submit(round, page, &pinned);
    if (status != QUIRE_OK) {
        qr_index_write_end(store->index, page->entry, NULL);
        disk->ops->release(disk, &page->slot);
    }
    return status;
}

void qr_round_write(struct qr_round *round)
{
    atomic_store(&round->pending, 1);
    for (size_t i = 0; i < round->page_count; i++) {
        const quire_status status = write_page(round, &round->pages[i]);
        if (status == QUIRE_OK)
            continue;
        atomic_store(&round->failed, status);
        break;
    }
    one_less(round);
}

enum qr_round_state qr_round_written(struct qr_round *round)
{
    bool flying = false;

    if (atomic_load(&round->failed) != QUIRE_OK)
        return QR_ROUND_READY;
    for (size_t i = 0; i < round->page_count && !flying; i++)
        flying = round->pages[i].flying;
    if (!flying)
        return QR_ROUND_READY;
    /* Another round had them under way: written by now, or ours to write. */
    atomic_store(&round->pending, 1);
    flying = false;
    for (size_t i = 0; i < round->page_count; i++) {
        struct qr_round_page *page = &round->pages[i];
        const quire_status status = page->flying ? write_page(round, page) : QUIRE_OK;
        if (status != QUIRE_OK)
            atomic_store(&round->failed, status);
        flying = flying || page->flying;
    }
    if (atomic_fetch_sub(&round->pending, 1) > 1)
        return QR_ROUND_WRITING; /* an event comes */
    return flying ? QR_ROUND_STALLED : QR_ROUND_READY;
}

/* ---- rows ---------------------------------------------------------------------------------
 */

static quire_status log_rows(struct qr_round *round, const struct qr_round_chunk *part)
{
    struct qr_session *session = round->session;
    struct qr_tail_log *log = qr_disk_tail_log_of(round->mover->disk);
    const struct qr_lane *lane = &session->lanes[part->lane];
    struct qr_rows key, value;
    uint64_t sequence;
    quire_status status;

    qr_chunk_rows(session, lane, part->chunk, &key, &value);
    const size_t key_bytes = part->rows * key.token_stride * sizeof(uint16_t);
    const size_t value_bytes = part->rows * value.token_stride * sizeof(uint16_t);
    if (!qr_round_room(&round->rows, &round->row_capacity, key_bytes + value_bytes, 1))
        return QUIRE_ENOMEM;
    memcpy(round->rows, key.data + part->first * key.token_stride, key_bytes);
    memcpy(round->rows + key_bytes, value.data + part->first * value.token_stride, value_bytes);
    struct qr_tail_record record = {.lane = part->lane,
                                    .tokens = part->rows,
                                    .position = part->position,
                                    .epoch = round->epoch,
                                    .payload = round->rows,
                                    .payload_bytes = (uint32_t)(key_bytes + value_bytes)};
    memcpy(record.session, round->uuid, sizeof(record.session));
    while ((status = qr_tail_log_append(log, &record, &sequence)) == QUIRE_EAGAIN) {
        status = qr_tail_log_sync(log, NULL);
        if (status != QUIRE_OK)
            break;
    }
    return status;
}

/* ---- the batch ----------------------------------------------------------------------------
 */

static void fill_ids(struct qr_round *round)
{
    for (uint32_t i = 0; i < round->blocks; i++) {
        const struct qr_disk_key key = qr_disk_key_block(round->uuid, round->first_block + i);
        qr_disk_batch_put(&round->batch, &key, round->ids[i], QR_HASH_BYTES);
    }
    if (round->token_bytes > 0) {
        const struct qr_disk_key key = qr_disk_key_tokens(round->uuid);
        qr_disk_batch_put(&round->batch, &key, round->tokens, round->token_bytes);
    }
}

static void fill_lanes(struct qr_round *round)
{
    for (size_t i = 0; i < round->lane_count; i++) {
        const struct qr_round_lane *lane = &round->lanes[i];
        const struct qr_disk_key key = qr_disk_key_lane(round->uuid, lane->lane);
        const struct qr_disk_lane record = {.sealed = lane->sealed,
                                            .cut_sequence = lane->cut_sequence,
                                            .cut_length = lane->cut_length};
        uint8_t bytes[QR_DISK_LANE_RECORD_BYTES];
        qr_disk_lane_write(&record, bytes);
        qr_disk_batch_put(&round->batch, &key, bytes, sizeof(bytes));
    }
}

quire_status qr_round_fill(struct qr_round *round)
{
    struct qr_session *session = round->session;
    quire_status status = QUIRE_OK;

    for (size_t i = 0; i < round->page_count && status == QUIRE_OK; i++)
        status = qr_name_page(round, &round->pages[i]);
    for (size_t i = 0; i < round->chunk_count && status == QUIRE_OK; i++)
        status = log_rows(round, &round->chunks[i]);
    if (status != QUIRE_OK)
        return status;
    round->commit.tail = round->chunk_count > 0;
    fill_ids(round);
    fill_lanes(round);
    const struct qr_disk_key going = qr_disk_key_going(round->uuid);
    if (!round->whole && !session->save.stored) {
        qr_disk_batch_put(&round->batch, &going, "", 0);
        return status;
    }
    if (session->save.going)
        qr_disk_batch_delete(&round->batch, &going);
    return qr_record_session(round, !session->save.stored);
}

/* ---- afterwards ----------------------------------------------------------------------------
 */

static void note_lane(struct qr_round *round, const struct qr_round_lane *saved)
{
    struct qr_lane_saved *to = &round->session->lanes[saved->lane].saved;

    if (round->kind == QR_ROUND_CUT) {
        if (to->cut_to >= saved->cut_to)
            to->cut = false; /* not cut again meanwhile */
        to->cut_sequence = saved->cut_sequence;
        to->cut_length = saved->cut_length;
        to->length = qr_min_u64(to->length, saved->cut_length);
    } else {
        to->length = saved->length;
    }
    to->sealed = saved->sealed;
}

static void note_changed(struct qr_round *round)
{
    for (size_t i = 0; i < round->page_count; i++) {
        const struct qr_round_page *page = &round->pages[i];
        struct qr_lane *lane = &round->session->lanes[page->lane];
        if (lane->saved.changed == page->block)
            lane->saved.changed =
                page->block + 1 < lane->saved.sealed ? page->block + 1 : UINT32_MAX;
    }
}

/* Rows in pages, or cut, need no log any more. */
static void trim_log(struct qr_round *round)
{
    struct qr_tail_log *log = qr_disk_tail_log_of(round->mover->disk);
    const uint64_t page_tokens = round->session->policy.page_tokens;

    for (size_t i = 0; i < round->lane_count; i++) {
        const struct qr_round_lane *lane = &round->lanes[i];
        uint64_t sequence;
        if (round->kind == QR_ROUND_CUT)
            qr_tail_log_cut(log, round->uuid, lane->lane, lane->cut_length, &sequence);
        qr_tail_log_drop(log, round->uuid, lane->lane, lane->sealed * page_tokens);
    }
}

void qr_round_saved(struct qr_round *round)
{
    struct qr_session *session = round->session;
    struct qr_tail_log *log = qr_disk_tail_log_of(round->mover->disk);

    if (round->kind == QR_ROUND_DROP) {
        for (uint32_t i = 0; i < session->lane_count; i++)
            qr_tail_log_forget(log, round->uuid, i);
        return;
    }
    pthread_mutex_lock(&session->lock);
    if (atomic_load(&session->loaded) && !session->dead) {
        for (size_t i = 0; i < round->lane_count; i++)
            note_lane(round, &round->lanes[i]);
        note_changed(round);
        const uint32_t end = round->first_block + round->blocks;
        if (round->kind == QR_ROUND_CUT || end > session->save.blocks)
            session->save.blocks = end;
        session->save.tokens = session->save.tokens || round->token_bytes > 0;
    }
    if (round->kind == QR_ROUND_SAVE && round->whole)
        session->save.stored = true;
    session->save.going = !session->save.stored;
    if (round->epoch_saved)
        session->save.epoch = round->epoch;
    pthread_mutex_unlock(&session->lock);
    trim_log(round);
}

void qr_round_release(struct qr_round *round)
{
    struct qr_index *index = round->mover->store->index;

    for (size_t i = 0; i < round->page_count; i++)
        qr_index_unref(index, &round->pages[i].entry, 1);
    for (size_t i = 0; i < round->chunk_count; i++)
        qr_chunk_unpin(round->chunks[i].chunk);
    for (size_t i = 0; i < round->undo_count; i++)
        qr_index_unref(index, &round->undo[i].entry, 1);
    round->page_count = round->chunk_count = round->undo_count = 0;
}
