/* SPDX-License-Identifier: Apache-2.0
 *
 * Fetch: layer by layer, head shard by head shard, ascending tokens; each step finds, pins and
 * verifies one page, or pins rows of a tail, or reports a hole. A cursor holds its session's
 * record, not its contents: after a drop the rest of the range is a hole, and so is what a
 * truncate cut, also when other rows were appended there since.
 */
#include <assert.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "durable.h"
#include "fetch.h"
#include "storage/base/log.h"

/* A place on the way over the wanted lanes. */
struct walk {
    uint32_t lane; /* number of the session's lanes */
    uint64_t position;
    uint64_t step; /* parts passed */
};

struct qr_fetch_cursor {
    struct qr_session *session;
    struct qr_reading reading;
    struct qr_fetch fetch;
    uint32_t lane_end;
    struct walk at, ahead; /* the next part, and the next page to be asked for */
    uint64_t end;
    struct qr_ahead pages; /* asked for ahead of `at` */
    void *held;            /* pin of a page that was not there yet */
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

/* Pinned under the session's lock; verified without any lock. false: look again, there may be
 * another copy. */
static bool finish_page(struct qr_session *session, const struct qr_lane *lane,
                        const struct qr_found *found, struct qr_part *part)
{
    struct qr_error cause;

    if (qr_page_verify(session, lane, found, &part->view, &cause) == QUIRE_OK) {
        part->page = found->pinned.bytes;
        part->page_bytes = found->pinned.n;
        part->pin = page_pin(found->entry);
        return true;
    }
    log_damage(session, lane, part->position, &cause);
    const bool other = qr_index_quarantine(session->store->index, found->entry);
    qr_index_unpin(session->store->index, found->entry);
    part->status = QR_PART_CORRUPT;
    return !other;
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
    if (!qr_chunk_pin(chunk)) {
        part->status = QR_PART_MISSING;
        return;
    }
    qr_chunk_rows(session, lane, chunk, &key, &value);
    part->key_rows = key.data + row * key.token_stride;
    part->value_rows = value.data + row * value.token_stride;
    part->pin = chunk;
}

static void find_page(struct qr_session *session, const struct qr_lane *lane,
                      struct qr_found *found)
{
    found->entry = lane->pages[found->block];
    memcpy(found->block_id, session->blocks.ids[found->block], QR_HASH_BYTES);
    found->want =
        qr_index_want(session->store->index, found->entry, true, &found->pinned, &found->disk);
    if (found->want == QR_WANT_READ)
        found->place = qr_session_read_place(session, found->block);
    found->is_page = true;
}

/* The page is not in memory: start its read when nobody has, and say so, or wait for it. */
static bool await_page(struct qr_session *session, const struct qr_found *found, bool wait,
                       struct qr_part *part)
{
    struct qr_store *store = session->store;
    quire_status status = QUIRE_OK;
    bool came = true;

    if (found->want == QR_WANT_READ)
        status = qr_page_read_start(store, found->entry, &found->disk, &found->place, false);
    if (wait && status == QUIRE_OK)
        came = qr_index_read_wait(store->index, found->entry, store->read_wait_ms);
    else if (wait)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    part->status = came ? QR_PART_LATER : QR_PART_CORRUPT; /* the device hangs */
    if (!wait && status == QUIRE_OK)
        part->pin = page_pin(found->entry); /* so that it stays when it has come */
    else
        qr_index_unpin(store->index, found->entry);
    return wait && came;
}

/* One look; true: look again. */
static bool look(struct qr_session *session, const struct qr_lane *lane, uint64_t position,
                 uint64_t end, bool wait, struct qr_part *part)
{
    const uint32_t page_tokens = session->policy.page_tokens;
    struct qr_found found = {.block = (uint32_t)(position / page_tokens)};
    const uint64_t block_end = (uint64_t)(found.block + 1) * page_tokens;

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
        find_page(session, lane, &found);
    else
        find_rows(session, lane, part);
    pthread_mutex_unlock(&session->lock);
    if (!found.is_page)
        return false;
    if (found.want == QR_WANT_RESIDENT)
        return !finish_page(session, lane, &found, part);
    if (found.want == QR_WANT_READ || found.want == QR_WANT_READING)
        return await_page(session, &found, wait, part);
    part->status = found.want == QR_WANT_GONE ? QR_PART_MISSING : QR_PART_CORRUPT;
    return false;
}

void qr_lane_read(struct qr_session *session, const struct qr_lane *lane, uint64_t position,
                  uint64_t end, bool wait, struct qr_part *part)
{
    assert(position < end);
    /* A look that found no room in memory for the page took a millisecond. */
    for (uint32_t tries = 0; look(session, lane, position, end, wait, part); tries++) {
        if (tries < session->store->read_wait_ms)
            continue;
        part->status = QR_PART_MISSING;
        break;
    }
}

/* ---- ahead --------------------------------------------------------------------------------
 */

static void ahead_drop(struct qr_store *store, struct qr_ahead *ahead)
{
    struct qr_ahead_page *page = &ahead->pages[ahead->first++ % QR_AHEAD_PAGES];

    qr_index_unpin(store->index, page->entry);
    atomic_fetch_sub(&store->ahead_bytes, page->bytes);
}

void qr_ahead_pass(struct qr_store *store, struct qr_ahead *ahead, uint64_t step)
{
    while (ahead->first != ahead->last &&
           ahead->pages[ahead->first % QR_AHEAD_PAGES].step < step)
        ahead_drop(store, ahead);
}

void qr_ahead_clear(struct qr_store *store, struct qr_ahead *ahead)
{
    while (ahead->first != ahead->last)
        ahead_drop(store, ahead);
}

/* Room in the window, and in what all readers together may ask for ahead. */
static bool ahead_room(struct qr_store *store, const struct qr_ahead *ahead, uint32_t bytes)
{
    if (ahead->last - ahead->first >= QR_AHEAD_PAGES)
        return false;
    if (atomic_fetch_add(&store->ahead_bytes, bytes) + bytes <=
        store->config.host_budget_bytes / QR_AHEAD_SHARE)
        return true;
    atomic_fetch_sub(&store->ahead_bytes, bytes);
    return false;
}

bool qr_ahead_ask(struct qr_session *session, const struct qr_lane *lane, uint32_t block,
                  uint64_t step, struct qr_ahead *ahead)
{
    struct qr_store *store = session->store;
    struct qr_place place = {.order = block};
    struct qr_pinned pinned;
    struct qr_slot disk;
    enum qr_want want = QR_WANT_GONE;
    uint32_t entry = QR_ENTRY_NONE, bytes = 0;

    if (!store->mover || ahead->last - ahead->first >= QR_AHEAD_PAGES)
        return store->mover == NULL;
    pthread_mutex_lock(&session->lock);
    if (!session->dead && block < lane->sealed) {
        entry = lane->pages[block];
        bytes = qr_index_bytes(store->index, entry);
        place = qr_session_read_place(session, block);
        if (bytes > 0 && ahead_room(store, ahead, bytes))
            want = qr_index_want(store->index, entry, false, &pinned, &disk);
        else if (bytes > 0)
            entry = QR_ENTRY_NONE;
    }
    pthread_mutex_unlock(&session->lock);
    if (want == QR_WANT_GONE || want == QR_WANT_DAMAGED) {
        if (entry != QR_ENTRY_NONE && bytes > 0)
            atomic_fetch_sub(&store->ahead_bytes, bytes);
        return bytes == 0 || entry != QR_ENTRY_NONE;
    }
    ahead->pages[ahead->last++ % QR_AHEAD_PAGES] =
        (struct qr_ahead_page){.step = step, .entry = entry, .bytes = bytes};
    return want != QR_WANT_READ ||
           qr_page_read_start(store, entry, &disk, &place, true) == QUIRE_OK;
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
    uint32_t first = 0;

    cursor->lane_end = 0;
    for (uint32_t i = 0; i < session->lane_count; i++) {
        const struct qr_lane *lane = &session->lanes[i];
        if (lane->layer < fetch->first_layer)
            first = i + 1;
        if (lane->layer < fetch->first_layer + fetch->layers)
            cursor->lane_end = i + 1;
        if (lane->layer < fetch->first_layer || i >= cursor->lane_end ||
            !lane_wanted(cursor, lane))
            continue;
        if (fetch->position > lane->length || fetch->tokens > lane->length - fetch->position)
            return past_end(fetch, lane, e);
    }
    cursor->at = cursor->ahead = (struct walk){.lane = first, .position = fetch->position};
    cursor->end = fetch->position + fetch->tokens;
    return QUIRE_OK;
}

static quire_status make_cursor(struct qr_session *session, const struct qr_fetch *fetch,
                                struct qr_fetch_cursor **out, struct qr_error *e)
{
    struct qr_store *store = session->store;
    struct qr_fetch_cursor *cursor = qr_pool_take(store->cursors);

    if (!cursor) {
        qr_error_set(e, QUIRE_EFULL, "%u fetches are open: retry", QR_CURSORS_MAX);
        if (e)
            e->retry_after_ms = QR_RETRY_BUSY_MS;
        return QUIRE_EFULL;
    }
    cursor->session = session;
    cursor->fetch = *fetch;
    cursor->pages.first = cursor->pages.last = 0;
    cursor->held = NULL;
    pthread_mutex_lock(&session->lock);
    const quire_status status =
        session->dead ? qr_session_gone(e, session->name) : aim(cursor, e);
    if (status == QUIRE_OK)
        qr_reading_begin(session, &cursor->reading);
    pthread_mutex_unlock(&session->lock);
    if (status == QUIRE_OK)
        *out = cursor;
    else
        qr_pool_give(store->cursors, cursor);
    return status;
}

quire_status qr_fetch_open(struct qr_store *store, uint32_t ns, const struct qr_fetch *fetch,
                           struct qr_fetch_cursor **out, struct qr_error *e)
{
    struct qr_session *session;
    quire_status status = qr_session_acquire(store, ns, fetch->session, &session, e);

    if (status != QUIRE_OK)
        return status;
    qr_session_used(session);
    status = qr_session_load(session, e);
    if (status == QUIRE_OK)
        status = check_fetch(session, fetch, e);
    if (status == QUIRE_OK)
        status = make_cursor(session, fetch, out, e);
    if (status == QUIRE_OK)
        qr_counter_add(&store->counters.fetches, 1);
    else
        qr_session_release(session);
    return status;
}

/* To the next wanted lane where one is done; false at the end. */
static bool settle(const struct qr_fetch_cursor *cursor, struct walk *walk)
{
    while (walk->lane < cursor->lane_end &&
           (walk->position >= cursor->end ||
            !lane_wanted(cursor, &cursor->session->lanes[walk->lane]))) {
        walk->lane++;
        walk->position = cursor->fetch.position;
    }
    return walk->lane < cursor->lane_end;
}

static void advance(const struct qr_fetch_cursor *cursor, struct walk *walk, uint64_t tokens)
{
    (void)cursor;
    walk->position += tokens;
    walk->step++;
}

/* Ask for pages ahead, over the borders of lanes and layers, as far as the window goes. */
static void ask_ahead(struct qr_fetch_cursor *cursor)
{
    struct qr_session *session = cursor->session;
    const uint32_t page_tokens = session->policy.page_tokens;

    if (!session->store->mover)
        return;
    if (cursor->ahead.step < cursor->at.step)
        cursor->ahead = cursor->at;
    while (cursor->ahead.step < cursor->at.step + QR_AHEAD_PAGES &&
           settle(cursor, &cursor->ahead)) {
        struct walk *ahead = &cursor->ahead;
        const uint32_t block = (uint32_t)(ahead->position / page_tokens);
        if (!qr_ahead_ask(session, &session->lanes[ahead->lane], block, ahead->step,
                          &cursor->pages))
            break;
        const uint64_t block_end = (uint64_t)(block + 1) * page_tokens;
        advance(cursor, ahead, qr_min_u64(cursor->end, block_end) - ahead->position);
    }
}

/* What was read may be rows of after the cut. */
static void make_hole(struct qr_store *store, struct qr_part *part)
{
    qr_part_release(store, part->pin);
    part->status = QR_PART_MISSING;
    part->page = part->pin = NULL;
    part->page_bytes = 0;
    part->view = (struct qr_page_view){0};
    part->key_rows = part->value_rows = NULL;
}

enum qr_fetch_step qr_fetch_next(struct qr_fetch_cursor *cursor, struct qr_part *out)
{
    struct qr_session *session = cursor->session;
    struct qr_store *store = session->store;
    void *held = cursor->held;

    if (!settle(cursor, &cursor->at))
        return QR_FETCH_END;
    qr_session_used(session);
    ask_ahead(cursor);
    qr_lane_read(session, &session->lanes[cursor->at.lane], cursor->at.position, cursor->end,
                 false, out);
    cursor->held = out->status == QR_PART_LATER ? out->pin : NULL;
    qr_part_release(store, held);
    if (out->status == QR_PART_LATER) {
        out->pin = NULL;
        return QR_FETCH_LATER;
    }
    if (qr_reading_is_cut(&cursor->reading, out->position + out->tokens))
        make_hole(store, out);
    advance(cursor, &cursor->at, out->tokens);
    qr_ahead_pass(store, &cursor->pages, cursor->at.step);
    qr_counter_add(out->status == QR_PART_OK ? &store->counters.fetched_parts
                                             : &store->counters.missing_parts,
                   1);
    return QR_FETCH_PART;
}

void qr_fetch_close(struct qr_fetch_cursor **cursor)
{
    struct qr_fetch_cursor *c = *cursor;

    if (!c)
        return;
    struct qr_session *session = c->session;
    qr_reading_end(session, &c->reading);
    qr_ahead_clear(session->store, &c->pages);
    qr_part_release(session->store, c->held);
    qr_pool_give(session->store->cursors, c);
    qr_session_release(session);
    *cursor = NULL;
}
