/* SPDX-License-Identifier: Apache-2.0
 *
 * Fetch: layer by layer, head shard by head shard, ascending tokens; each step finds, pins and
 * verifies one page, or pins rows of a tail, or reports a hole. A cursor holds its session's
 * record, not its contents: after a drop the rest of the range is a hole.
 */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "fetch.h"
#include "storage/base/log.h"

struct qr_fetch_cursor {
    struct qr_session *session;
    struct qr_fetch fetch;
    uint32_t lane, lane_end; /* numbers of the session's lanes */
    uint64_t position, end;
};

size_t qr_cursor_bytes(void)
{
    return sizeof(struct qr_fetch_cursor);
}

/* A pin is a chunk's address, or an entry number with the lowest bit set. */
static void *page_pin(uint32_t entry)
{
    return (void *)((uintptr_t)entry << 1 | 1u);
}

void qr_part_release(struct qr_store *store, void *pin)
{
    if (!pin)
        return;
    if ((uintptr_t)pin & 1u)
        qr_index_unpin(store->index, (uint32_t)((uintptr_t)pin >> 1));
    else
        qr_chunk_unpin(pin);
}

static void log_damage(const struct qr_session *session, const struct qr_lane *lane,
                       uint64_t position, const struct qr_error *cause)
{
    QR_LOG(QR_LOG_ERROR, "page.damaged", QR_LOG_STR("session", session->name),
           QR_LOG_U64("layer", lane->layer), QR_LOG_U64("first_head", lane->first_head),
           QR_LOG_U64("position", position), QR_LOG_STR("cause", cause->text));
}

/* Pinned under the session's lock; verified without any lock. */
static void finish_page(struct qr_session *session, const struct qr_lane *lane,
                        const struct qr_found *found, struct qr_part *part)
{
    struct qr_error cause;

    if (qr_page_verify(session, lane, found, &part->view, &cause) == QUIRE_OK) {
        part->page = found->pinned.bytes;
        part->page_bytes = found->pinned.n;
        part->pin = page_pin(found->entry);
        return;
    }
    log_damage(session, lane, part->position, &cause);
    qr_index_quarantine(session->store->index, found->entry);
    qr_index_unpin(session->store->index, found->entry);
    part->status = QR_PART_CORRUPT;
}

static void find_rows(const struct qr_session *session, const struct qr_lane *lane,
                      struct qr_part *part)
{
    const uint32_t page_tokens = session->policy.page_tokens;
    const uint32_t block = (uint32_t)(part->position / page_tokens);
    const uint32_t row = (uint32_t)(part->position % page_tokens);
    struct qr_chunk *chunk = lane->tail[block - lane->sealed];
    struct qr_rows key, value;

    part->tokens = (uint32_t)qr_min_u64(part->tokens, lane->length - part->position);
    qr_chunk_rows(session, lane, chunk, &key, &value);
    part->key_rows = key.data + row * key.token_stride;
    part->value_rows = value.data + row * value.token_stride;
    qr_chunk_pin(chunk);
    part->pin = chunk;
}

static void find_page(const struct qr_session *session, const struct qr_lane *lane,
                      struct qr_found *found, struct qr_part *part)
{
    found->entry = lane->pages[found->block];
    memcpy(found->block_id, session->blocks.ids[found->block], QR_HASH_BYTES);
    const enum qr_page_state state =
        qr_index_pin(session->store->index, found->entry, &found->pinned);
    found->is_page = state == QR_PAGE_RESIDENT;
    if (state == QR_PAGE_EVICTED)
        part->status = QR_PART_MISSING;
    else if (state == QR_PAGE_DAMAGED)
        part->status = QR_PART_CORRUPT;
}

void qr_lane_read(struct qr_session *session, const struct qr_lane *lane, uint64_t position,
                  uint64_t end, struct qr_part *part)
{
    const uint32_t page_tokens = session->policy.page_tokens;
    struct qr_found found = {.block = (uint32_t)(position / page_tokens)};
    const uint64_t block_end = (uint64_t)(found.block + 1) * page_tokens;

    assert(position < end);
    *part = (struct qr_part){.layer = lane->layer,
                             .first_head = lane->first_head,
                             .heads = lane->heads,
                             .position = position,
                             .tokens = (uint32_t)(qr_min_u64(end, block_end) - position),
                             .model = session->model};
    pthread_mutex_lock(&session->lock);
    if (session->dead || position >= lane->length) /* dropped or cut while being read */
        part->status = QR_PART_MISSING;
    else if (found.block < lane->sealed)
        find_page(session, lane, &found, part);
    else
        find_rows(session, lane, part);
    pthread_mutex_unlock(&session->lock);
    if (found.is_page)
        finish_page(session, lane, &found, part);
}

/* ---- the cursor -------------------------------------------------------------------------- */

static bool lane_wanted(const struct qr_fetch_cursor *cursor, const struct qr_lane *lane)
{
    const struct qr_fetch *fetch = &cursor->fetch;
    const uint32_t head_end = fetch->heads ? fetch->first_head + fetch->heads : UINT32_MAX;

    return lane->first_head < head_end && lane->first_head + lane->heads > fetch->first_head;
}

static quire_status past_end(const struct qr_fetch *fetch, const struct qr_lane *lane,
                             struct qr_error *e)
{
    qr_error_set(e, QUIRE_ERANGE,
                 "tokens [%" PRIu64 ", +%" PRIu64 ") of layer %u, which has %" PRIu64,
                 fetch->position, fetch->tokens, lane->layer, lane->length);
    if (e) {
        e->length = lane->length;
        e->layer = lane->layer;
    }
    return QUIRE_ERANGE;
}

static quire_status check_fetch(const struct qr_session *session, const struct qr_fetch *fetch,
                                struct qr_error *e)
{
    const uint32_t layers = session->model->layer_count;

    if (fetch->layers < 1 || fetch->first_layer >= layers ||
        fetch->layers > layers - fetch->first_layer)
        return qr_error_set(e, QUIRE_EINVAL, "layers [%u, +%u): the model has %u",
                            fetch->first_layer, fetch->layers, layers);
    if (fetch->tokens < 1)
        return qr_error_set(e, QUIRE_EINVAL, "fetch of 0 tokens: need at least 1");
    for (uint32_t i = 0; i < fetch->layers; i++) {
        const uint32_t heads = session->model->layers[fetch->first_layer + i].kv_heads;
        if (heads > 0 &&
            (fetch->first_head >= heads || fetch->heads > heads - fetch->first_head))
            return qr_error_set(e, QUIRE_EINVAL, "KV heads [%u, +%u): layer %u has %u",
                                fetch->first_head, fetch->heads, fetch->first_layer + i, heads);
    }
    return QUIRE_OK;
}

/* Lanes of the layers asked for, in order; each must have the whole range. */
static quire_status aim(struct qr_fetch_cursor *cursor, struct qr_error *e)
{
    const struct qr_session *session = cursor->session;
    const struct qr_fetch *fetch = &cursor->fetch;

    cursor->lane = cursor->lane_end = 0;
    for (uint32_t i = 0; i < session->lane_count; i++) {
        const struct qr_lane *lane = &session->lanes[i];
        if (lane->layer < fetch->first_layer)
            cursor->lane = i + 1;
        if (lane->layer < fetch->first_layer + fetch->layers)
            cursor->lane_end = i + 1;
        if (lane->layer < fetch->first_layer || i >= cursor->lane_end ||
            !lane_wanted(cursor, lane))
            continue;
        if (fetch->position > lane->length || fetch->tokens > lane->length - fetch->position)
            return past_end(fetch, lane, e);
    }
    cursor->position = fetch->position;
    cursor->end = fetch->position + fetch->tokens;
    return QUIRE_OK;
}

quire_status qr_fetch_open(struct qr_store *store, uint32_t ns, const struct qr_fetch *fetch,
                           struct qr_fetch_cursor **out, struct qr_error *e)
{
    struct qr_session *session;
    quire_status status = qr_session_acquire(store, ns, fetch->session, &session, e);

    if (status != QUIRE_OK)
        return status;
    qr_session_used(session);
    struct qr_fetch_cursor *cursor = NULL;
    status = check_fetch(session, fetch, e);
    if (status == QUIRE_OK) {
        cursor = qr_pool_take(store->cursors);
        if (!cursor) {
            status = qr_error_set(e, QUIRE_EFULL, "%u fetches are open: retry", QR_CURSORS_MAX);
            if (e)
                e->retry_after_ms = QR_RETRY_BUSY_MS;
        }
    }
    if (status == QUIRE_OK) {
        *cursor = (struct qr_fetch_cursor){.session = session, .fetch = *fetch};
        pthread_mutex_lock(&session->lock);
        status = session->dead ? qr_session_gone(e, session->name) : aim(cursor, e);
        pthread_mutex_unlock(&session->lock);
    }
    if (status == QUIRE_OK) {
        qr_counter_add(&store->counters.fetches, 1);
        *out = cursor;
        return status;
    }
    if (cursor)
        qr_pool_give(store->cursors, cursor);
    qr_session_release(session);
    return status;
}

bool qr_fetch_next(struct qr_fetch_cursor *cursor, struct qr_part *out)
{
    struct qr_session *session = cursor->session;

    while (cursor->lane < cursor->lane_end &&
           (cursor->position >= cursor->end ||
            !lane_wanted(cursor, &session->lanes[cursor->lane]))) {
        cursor->lane++;
        cursor->position = cursor->fetch.position;
    }
    if (cursor->lane >= cursor->lane_end)
        return false;
    qr_session_used(session);
    qr_lane_read(session, &session->lanes[cursor->lane], cursor->position, cursor->end, out);
    cursor->position += out->tokens;
    qr_counter_add(out->status == QR_PART_OK ? &session->store->counters.fetched_parts
                                             : &session->store->counters.missing_parts,
                   1);
    return true;
}

void qr_fetch_close(struct qr_fetch_cursor **cursor)
{
    struct qr_fetch_cursor *c = *cursor;

    if (!c)
        return;
    struct qr_session *session = c->session;
    qr_pool_give(session->store->cursors, c);
    qr_session_release(session);
    *cursor = NULL;
}
