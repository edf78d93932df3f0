/* SPDX-License-Identifier: Apache-2.0
 *
 * A session that is on disk comes to memory when it is used: block ids, token
 * ids, manifests, and the rows of its tails. Page bytes stay where they are.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "durable.h"
#include "storage/base/log.h"

#define TOKEN_HEAD 16u
#define ADOPT_MAX 256u

struct loading {
    struct qr_session *session;
    struct qr_error *e;
    quire_status status;
    struct qr_blocks blocks;
    struct qr_disk_lane *records; /* [lanes] */
    uint32_t lane;                /* being filled */
    uint32_t next_block;
    struct qr_adopted adopted[ADOPT_MAX];
    uint32_t adopted_count;
    uint8_t *filled;   /* bits: rows of the lane's tail that came */
    uint64_t rows_end; /* of the last one */
};

/* ---- block ids and token ids ----------------------------------------------------------------
 */

static bool load_id(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                    size_t value_bytes)
{
    struct loading *l = arg;
    uint32_t block;

    if (!qr_disk_key_block_read(key, key_bytes, &block) || value_bytes != QR_HASH_BYTES ||
        block != l->blocks.fixed)
        return false; /* what follows a gap cannot be used */
    l->status = qr_blocks_reserve(&l->blocks, block + 1, 0, l->e);
    if (l->status != QUIRE_OK)
        return false;
    memcpy(l->blocks.ids[block], value, QR_HASH_BYTES);
    l->blocks.fixed = l->blocks.staged = block + 1;
    return true;
}

static bool load_tokens(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                        size_t value_bytes)
{
    struct loading *l = arg;
    struct qr_blocks *blocks = &l->blocks;
    uint32_t head[4];

    (void)key;
    (void)key_bytes;
    l->session->save.tokens = true;
    if (value_bytes < TOKEN_HEAD)
        return false;
    memcpy(head, value, sizeof(head));
    const uint32_t fixed = head[1], chained = head[2], count = head[3];
    if (head[0] != 1 || count > QR_POSITION_MAX ||
        value_bytes != TOKEN_HEAD + (size_t)count * 5 || chained > fixed)
        return false;
    blocks->chained = blocks->chained_staged =
        chained < blocks->fixed ? chained : blocks->fixed;
    if (fixed != blocks->fixed || count == 0)
        return false;
    l->status = qr_blocks_reserve(blocks, fixed + 1,
                                  (uint64_t)fixed * blocks->page_tokens + count, l->e);
    if (l->status != QUIRE_OK)
        return false;
    memcpy(blocks->tokens, value + TOKEN_HEAD, (size_t)count * 4);
    memcpy(blocks->known, value + TOKEN_HEAD + (size_t)count * 4, count);
    for (uint32_t i = 0; i < count; i++)
        blocks->known[i] = blocks->known[i] != 0;
    blocks->token_count = count;
    return false;
}

/* ---- lanes ----------------------------------------------------------------------------------
 */

static bool load_lane(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                      size_t value_bytes)
{
    struct loading *l = arg;
    uint32_t lane;

    if (qr_disk_key_lane_read(key, key_bytes, &lane) && lane < l->session->lane_count &&
        qr_disk_lane_read(value, value_bytes, &l->records[lane]) == QUIRE_OK &&
        l->records[lane].sealed > l->blocks.fixed)
        l->records[lane].sealed = l->blocks.fixed; /* blocks without an id cannot be served */
    return true;
}

static bool adopt(struct loading *l)
{
    struct qr_lane *lane = &l->session->lanes[l->lane];

    if (l->adopted_count == 0)
        return true;
    l->status = qr_index_adopt(l->session->store->index, l->adopted, l->adopted_count,
                               lane->pages + lane->sealed, l->e);
    if (l->status == QUIRE_OK)
        lane->sealed += l->adopted_count;
    l->adopted_count = 0;
    return l->status == QUIRE_OK;
}

/* A block without an entry: a hole. */
static bool add_page(struct loading *l, const struct qr_disk_block *block)
{
    struct qr_adopted *page = &l->adopted[l->adopted_count++];

    *page = (struct qr_adopted){.tag = block->checksum};
    memcpy(page->id, block->page_id, QR_HASH_BYTES);
    if (block->place.bytes > 0)
        page->slot = qr_disk_slot_of(l->session->store->mover->disk, &block->place);
    l->next_block++;
    return l->adopted_count < ADOPT_MAX || adopt(l);
}

static bool fill_holes(struct loading *l, uint32_t until)
{
    struct qr_lane *lane = &l->session->lanes[l->lane];

    while (l->next_block < until) {
        struct qr_disk_block hole = {.place = {0}};
        qr_lane_page_id(l->session, lane, l->blocks.ids[l->next_block], hole.page_id);
        if (!add_page(l, &hole))
            return false;
    }
    return true;
}

static bool load_page(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                      size_t value_bytes)
{
    struct loading *l = arg;
    struct qr_disk_block block;
    uint32_t number, lane;

    if (!qr_disk_key_manifest_read(key, key_bytes, &lane, &number) || lane != l->lane ||
        number >= l->records[l->lane].sealed)
        return false;
    if (qr_disk_block_read(value, value_bytes, &block) != QUIRE_OK)
        return true; /* damaged: filled as a hole */
    return fill_holes(l, number) && add_page(l, &block);
}

/* ---- rows -----------------------------------------------------------------------------------
 */

static bool make_chunks(struct loading *l, struct qr_lane *lane, uint64_t end)
{
    const uint32_t page_tokens = l->session->policy.page_tokens;

    while ((uint64_t)(lane->sealed + lane->tail_count) * page_tokens < end) {
        l->status = qr_chunk_make(
            &l->session->store->chunk_home, lane->sealed + lane->tail_count,
            qr_lane_chunk_bytes(l->session, lane), &lane->tail[lane->tail_count], l->e);
        if (l->status != QUIRE_OK)
            return false;
        lane->tail_count++;
    }
    return true;
}

static void copy_row(struct loading *l, struct qr_lane *lane,
                     const struct qr_tail_record *record, uint64_t position)
{
    const uint32_t page_tokens = l->session->policy.page_tokens;
    const size_t row = position - record->position;
    const struct qr_chunk *chunk = lane->tail[position / page_tokens - lane->sealed];
    struct qr_rows key, value;

    qr_chunk_rows(l->session, lane, chunk, &key, &value);
    const uint16_t *from = record->payload;
    const size_t at = position % page_tokens;
    memcpy((uint16_t *)(uintptr_t)key.data + at * key.token_stride,
           from + row * key.token_stride, key.token_stride * sizeof(uint16_t));
    memcpy((uint16_t *)(uintptr_t)value.data + at * value.token_stride,
           from + record->tokens * key.token_stride + row * value.token_stride,
           value.token_stride * sizeof(uint16_t));
}

static bool load_rows(void *arg, const struct qr_tail_record *record)
{
    struct loading *l = arg;
    struct qr_lane *lane = &l->session->lanes[l->lane];
    const struct qr_disk_lane *cut = &l->records[l->lane];
    const uint32_t page_tokens = l->session->policy.page_tokens;
    const uint64_t start = (uint64_t)lane->sealed * page_tokens;
    const uint64_t most = start + (uint64_t)l->session->tail_max * page_tokens;
    const size_t row_bytes =
        (size_t)lane->heads * ((size_t)lane->key_dim + lane->value_dim) * sizeof(uint16_t);
    uint64_t end = record->position + record->tokens;

    if (record->payload_bytes != record->tokens * row_bytes)
        return true;
    if (record->sequence < cut->cut_sequence)
        end = qr_min_u64(end, cut->cut_length);
    if (end <= start || record->position >= end)
        return true;
    l->rows_end = qr_max_u64(l->rows_end, end);
    end = qr_min_u64(end, most);
    if (record->position >= end)
        return true;
    if (!make_chunks(l, lane, end))
        return false;
    for (uint64_t p = qr_max_u64(record->position, start); p < end; p++) {
        copy_row(l, lane, record, p);
        l->filled[(p - start) / 8] |= (uint8_t)(1u << (p - start) % 8);
    }
    return true;
}

/* The rows from the sealed ones on, up to the first gap: nothing behind it was acknowledged. */
static void settle_rows(struct loading *l, struct qr_lane *lane)
{
    const uint32_t page_tokens = l->session->policy.page_tokens;
    const uint64_t most = (uint64_t)lane->tail_count * page_tokens;
    uint64_t rows = 0;

    while (rows < most && (l->filled[rows / 8] >> rows % 8 & 1))
        rows++;
    lane->length = (uint64_t)lane->sealed * page_tokens + rows;
    const uint32_t chunks = (uint32_t)((rows + page_tokens - 1) / page_tokens);
    while (lane->tail_count > chunks)
        qr_lane_disown(l->session, lane->tail[--lane->tail_count]);
    for (uint32_t i = 0; i < chunks; i++)
        atomic_store(&lane->tail[i]->high,
                     (uint32_t)qr_min_u64(rows - (uint64_t)i * page_tokens, page_tokens));
}

static quire_status fill_lane(struct loading *l, uint32_t number)
{
    struct qr_session *session = l->session;
    struct qr_mover *mover = session->store->mover;
    struct qr_lane *lane = &session->lanes[number];
    const struct qr_disk_lane *record = &l->records[number];
    struct qr_disk_key prefix = qr_disk_key_lane(session->uuid, number);
    uint32_t damaged = 0;

    prefix.bytes[0] = QR_DISK_KEY_MANIFEST;
    l->lane = number;
    l->next_block = 0;
    quire_status status = qr_lane_grow(session, lane, record->sealed, l->e);
    if (status == QUIRE_OK)
        status = qr_disk_index_each(qr_disk_index_of(mover->disk), &prefix, load_page, l, l->e);
    if (status == QUIRE_OK && l->status == QUIRE_OK && fill_holes(l, record->sealed))
        (void)adopt(l);
    if (status == QUIRE_OK)
        status = l->status;
    if (status != QUIRE_OK)
        return status;
    l->rows_end = 0;
    memset(l->filled, 0, (size_t)session->tail_max * session->policy.page_tokens / 8 + 1);
    status = qr_tail_log_read(qr_disk_tail_log_of(mover->disk), session->uuid, number,
                              load_rows, l, &damaged);
    if (status == QUIRE_OK)
        status = l->status;
    if (status != QUIRE_OK)
        return status == l->status
                   ? status
                   : qr_error_set(l->e, status, "session \"%s\": its tail log cannot be read",
                                  session->name);
    if (damaged > 0)
        QR_LOG(QR_LOG_ERROR, "tail.damaged", QR_LOG_STR("session", session->name),
               QR_LOG_U64("layer", lane->layer), QR_LOG_U64("records", damaged));
    settle_rows(l, lane);
    lane->saved = (struct qr_lane_saved){.sealed = lane->sealed,
                                         .changed = UINT32_MAX,
                                         .length = lane->length,
                                         .cut_sequence = record->cut_sequence,
                                         .cut_length = record->cut_length,
                                         /* Rows behind a gap must not come back once it is
                                          * filled with others. */
                                         .cut = l->rows_end > lane->length,
                                         .cut_to = lane->length};
    return QUIRE_OK;
}

/* ---- all of it
 * ------------------------------------------------------------------------------- */

static quire_status read_parts(struct loading *l)
{
    static const struct {
        uint8_t kind;
        qr_disk_index_each_fn *each;
    } steps[] = {{QR_DISK_KEY_BLOCK, load_id},
                 {QR_DISK_KEY_TOKENS, load_tokens},
                 {QR_DISK_KEY_LANE, load_lane}};
    struct qr_session *session = l->session;
    struct qr_disk_index *index = qr_disk_index_of(session->store->mover->disk);
    quire_status status = QUIRE_OK;

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && status == QUIRE_OK; i++) {
        const struct qr_disk_key prefix = qr_disk_key_prefix(steps[i].kind, session->uuid);
        status = qr_disk_index_each(index, &prefix, steps[i].each, l, l->e);
        if (status == QUIRE_OK)
            status = l->status;
    }
    for (uint32_t i = 0; i < session->lane_count && status == QUIRE_OK; i++)
        status = fill_lane(l, i);
    return status;
}

static quire_status load(struct qr_session *session, struct qr_error *e)
{
    struct loading *l = calloc(1, sizeof(*l));
    quire_status status = QUIRE_ENOMEM;

    if (l) {
        l->session = session;
        l->e = e;
        l->blocks = session->blocks; /* empty, with a fresh uuid */
        l->records = calloc(session->lane_count, sizeof(*l->records));
        l->filled = calloc(1, (size_t)session->tail_max * session->policy.page_tokens / 8 + 1);
    }
    if (l && l->records && l->filled) {
        status = qr_session_make_lanes(session, e);
        if (status == QUIRE_OK)
            status = read_parts(l);
    } else {
        (void)qr_error_set(e, status, "no memory to load session \"%s\"", session->name);
    }
    pthread_mutex_lock(&session->lock);
    if (l)
        session->blocks = l->blocks;
    if (status == QUIRE_OK) {
        uint64_t longest;
        (void)qr_session_length(session, &longest);
        session->save.blocks = session->blocks.fixed;
        if (session->blocks.token_count > 0)
            qr_blocks_cut(&session->blocks, session->blocks.fixed, longest, session->uuid);
        atomic_store(&session->loaded, true);
    } else {
        qr_session_unload(session);
    }
    pthread_mutex_unlock(&session->lock);
    if (l) {
        free(l->records);
        free(l->filled);
    }
    free(l);
    return status;
}

quire_status qr_session_load(struct qr_session *session, struct qr_error *e)
{
    quire_status status = QUIRE_OK;

    if (atomic_load(&session->loaded))
        return status;
    pthread_mutex_lock(&session->write_lock);
    if (session->dead)
        status = qr_session_gone(e, session->name);
    else if (!atomic_load(&session->loaded)) {
        status = load(session, e);
        if (status == QUIRE_EFULL)
            qr_mover_press(session->store);
        qr_counter_add(&session->store->counters.sessions_loaded, 1);
    }
    pthread_mutex_unlock(&session->write_lock);
    return status;
}
