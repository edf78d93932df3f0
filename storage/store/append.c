/* SPDX-License-Identifier: Apache-2.0
 *
 * Begin and end of every append: who may, where it starts, and the commit that makes all lanes
 * longer at once or none.
 */
#include "append.h"
#include "durable.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SCRATCH_KEPT_BYTES (1u << 20) /* larger scratch is not kept between appends */

size_t qr_append_bytes(void)
{
    return sizeof(struct qr_append_job);
}

void qr_append_end(void *object)
{
    struct qr_append_job *job = object;

    free(job->lanes);
    free(job->chunks);
    free(job->pages);
    free(job->pins);
    free(job->targets);
    free(job->scratch);
}

/* ---- arrays that outlive the append ------------------------------------------------------ */

static quire_status room(void **array, size_t *capacity, size_t wanted, size_t element_bytes,
                         struct qr_error *e)
{
    if (wanted <= *capacity)
        return QUIRE_OK;
    const size_t grown = wanted + wanted / 2 + 16;
    void *moved = realloc(*array, grown * element_bytes);
    if (!moved)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for an append of %zu parts", wanted);
    *array = moved;
    *capacity = grown;
    return QUIRE_OK;
}

#define ROOM(job, array, capacity, wanted, e)                                                  \
    room((void **)(void *)&(job)->array, &(job)->capacity, (wanted), sizeof(*(job)->array), (e))

quire_status qr_append_room_lanes(struct qr_append_job *job, size_t n, struct qr_error *e)
{
    return ROOM(job, lanes, lane_capacity, job->lane_count + n, e);
}

quire_status qr_append_room_pages(struct qr_append_job *job, size_t n, struct qr_error *e)
{
    return ROOM(job, pages, page_capacity, job->page_count + n, e);
}

quire_status qr_append_keep(struct qr_append_job *job, uint32_t entry, struct qr_error *e)
{
    struct qr_pinned pinned;
    quire_status status = ROOM(job, pins, pin_capacity, job->pin_count + 1, e);

    if (status != QUIRE_OK)
        return status;
    if (qr_index_pin(job->session->store->index, entry, &pinned) == QR_PAGE_RESIDENT) {
        job->pins[job->pin_count++] = entry;
        return QUIRE_OK;
    }
    qr_error_set(e, QUIRE_EFULL, "a page that was repeated was evicted at once: retry");
    if (e)
        e->retry_after_ms = QR_RETRY_BUSY_MS;
    return QUIRE_EFULL;
}

enum qr_page_state qr_append_hold(struct qr_append_job *job, uint32_t entry, uint32_t block,
                                  struct qr_pinned *out)
{
    return qr_page_hold(job->session, entry, block, !job->append->no_wait, out);
}

quire_status qr_append_busy(const struct qr_append_job *job, struct qr_error *e)
{
    if (job->append->no_wait)
        return qr_error_set(e, QUIRE_EAGAIN, "a page that is repeated is on disk only");
    qr_error_set(e, QUIRE_EFULL, "no room in memory for a page that is repeated: retry");
    if (e)
        e->retry_after_ms = QR_RETRY_BUSY_MS;
    return QUIRE_EFULL;
}

quire_status qr_append_room_chunks(struct qr_append_job *job, size_t n, struct qr_error *e)
{
    return ROOM(job, chunks, chunk_capacity, job->chunk_count + n, e);
}

quire_status qr_append_room_targets(struct qr_append_job *job, size_t n, struct qr_error *e)
{
    return ROOM(job, targets, target_capacity, n, e);
}

quire_status qr_append_room_scratch(struct qr_append_job *job, size_t bytes, struct qr_error *e)
{
    if (bytes <= job->scratch_capacity)
        return QUIRE_OK;
    const size_t rounded = (bytes + 4095u) & ~(size_t)4095u;
    uint8_t *scratch = aligned_alloc(64, rounded);
    if (!scratch)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for a scratch of %zu bytes", bytes);
    free(job->scratch);
    job->scratch = scratch;
    job->scratch_capacity = rounded;
    return QUIRE_OK;
}

/* ---- begin ------------------------------------------------------------------------------- */

quire_status qr_append_stage_blocks(struct qr_append_job *job, struct qr_error *e)
{
    const struct qr_append *append = job->append;
    struct qr_blocks *blocks = &job->session->blocks;
    const uint64_t end = append->position + append->tokens;

    /* Readers copy block ids under the lock; growing may move them. */
    pthread_mutex_lock(&job->session->lock);
    quire_status status = qr_blocks_reserve(blocks, (uint32_t)(end / blocks->page_tokens) + 1,
                                            append->token_ids ? end : 0, e);
    pthread_mutex_unlock(&job->session->lock);
    if (status == QUIRE_OK && append->token_ids)
        status = qr_blocks_stage_tokens(blocks, append->position, append->token_ids,
                                        append->tokens, e);
    return status;
}

quire_status qr_append_begin(struct qr_store *store, uint32_t ns,
                             const struct qr_append *append, struct qr_append_job **out,
                             struct qr_error *e)
{
    struct qr_session *session;
    quire_status status = qr_session_acquire(store, ns, append->session, &session, e);

    if (status != QUIRE_OK)
        return status;
    if (append->no_wait && !atomic_load(&session->loaded))
        status =
            qr_error_set(e, QUIRE_EAGAIN, "session \"%s\" is not in memory", session->name);
    if (status == QUIRE_OK)
        status = qr_session_load(session, e);
    if (status != QUIRE_OK) {
        qr_session_release(session);
        return status;
    }
    struct qr_append_job *job = qr_pool_take(store->appends);
    if (!job) {
        qr_session_release(session);
        qr_error_set(e, QUIRE_EFULL, "%u appends are under way: retry", QR_APPENDS_MAX);
        if (e)
            e->retry_after_ms = QR_RETRY_BUSY_MS;
        return QUIRE_EFULL;
    }
    job->session = session;
    job->append = append;
    job->lane_count = job->chunk_count = job->page_count = job->pin_count = 0;
    job->sealed = job->shared = job->unshared = job->restored = job->received = 0;
    job->tails_restored = 0;
    pthread_mutex_lock(&session->write_lock);
    pthread_mutex_lock(&session->lock);
    status = qr_session_check_writer(session, append->epoch, e);
    pthread_mutex_unlock(&session->lock);
    qr_session_used(session);
    if (status == QUIRE_OK)
        status = qr_append_check(job, e);
    if (status == QUIRE_OK)
        *out = job;
    else
        (void)qr_append_finish(job, status, NULL, NULL);
    return status;
}

/* ---- staging ----------------------------------------------------------------------------- */

quire_status qr_append_stage_lane(struct qr_append_job *job, struct qr_lane *lane,
                                  struct qr_error *e)
{
    quire_status status = qr_append_room_lanes(job, 1, e);

    if (status != QUIRE_OK)
        return status;
    job->lanes[job->lane_count++] = (struct qr_staged_lane){
        .lane = lane,
        .length = lane->length,
        .sealed = lane->sealed,
        .first_chunk = (uint32_t)job->chunk_count,
        .first_page = (uint32_t)job->page_count,
    };
    return QUIRE_OK;
}

static struct qr_chunk *staged_chunk(const struct qr_append_job *job,
                                     const struct qr_staged_lane *staged, uint32_t block)
{
    for (uint32_t i = 0; i < staged->chunks; i++) {
        const struct qr_staged_chunk *c = &job->chunks[staged->first_chunk + i];
        if (c->chunk && c->block == block)
            return c->chunk;
    }
    return NULL;
}

struct qr_chunk *qr_append_chunk(const struct qr_append_job *job,
                                 const struct qr_staged_lane *staged, uint32_t block)
{
    const struct qr_lane *lane = staged->lane;
    struct qr_chunk *chunk = staged_chunk(job, staged, block);

    if (chunk)
        return chunk;
    if (block >= lane->sealed && block - lane->sealed < lane->tail_count)
        return lane->tail[block - lane->sealed];
    return NULL;
}

/* ---- commit ------------------------------------------------------------------------------ */

static void commit_pages(struct qr_append_job *job, const struct qr_staged_lane *staged)
{
    struct qr_index *index = job->session->store->index;
    struct qr_lane *lane = staged->lane;

    for (uint32_t i = 0; i < staged->pages; i++) {
        const struct qr_staged_page *page = &job->pages[staged->first_page + i];
        const uint32_t old = page->block < lane->sealed ? lane->pages[page->block] : 0;
        const bool replaces = page->block < lane->sealed;
        lane->pages[page->block] = page->entry;
        qr_receipt_add(&job->session->receipts, &page->receipt);
        if (replaces && old != page->entry && page->block < lane->saved.sealed &&
            page->block < lane->saved.changed)
            lane->saved.changed = page->block;
        if (replaces) /* the manifest had its own reference */
            qr_index_unref(index, &old, 1);
    }
}

static void commit_tail(struct qr_append_job *job, const struct qr_staged_lane *staged)
{
    const uint32_t page_tokens = job->session->policy.page_tokens;
    struct qr_lane *lane = staged->lane;
    const uint32_t end = (uint32_t)((staged->length + page_tokens - 1) / page_tokens);
    const uint32_t old_count = lane->tail_count, old_sealed = lane->sealed;

    for (uint32_t i = 0; i < old_count; i++) {
        const uint32_t block = old_sealed + i;
        if (block < staged->sealed || staged_chunk(job, staged, block))
            qr_lane_disown(job->session, lane->tail[i]);
    }
    lane->tail_count = 0;
    for (uint32_t block = staged->sealed; block < end; block++) {
        struct qr_chunk *chunk = staged_chunk(job, staged, block);
        const uint64_t rows =
            qr_min_u64(staged->length - (uint64_t)block * page_tokens, page_tokens);
        if (!chunk) /* moves down: its old place is not overwritten yet */
            chunk = lane->tail[block - old_sealed];
        if (atomic_load(&chunk->high) < rows)
            atomic_store(&chunk->high, (uint32_t)rows);
        assert(lane->tail_count < job->session->tail_max);
        lane->tail[lane->tail_count++] = chunk;
    }
}

static void commit(struct qr_append_job *job, struct qr_append_result *out)
{
    struct qr_session *session = job->session;
    struct qr_append_result result = {.length = UINT64_MAX, .repeated_tokens = UINT32_MAX};

    pthread_mutex_lock(&session->lock);
    for (size_t i = 0; i < job->lane_count; i++) {
        const struct qr_staged_lane *staged = &job->lanes[i];
        commit_pages(job, staged);
        commit_tail(job, staged);
        staged->lane->sealed = staged->sealed;
        staged->lane->length = staged->length;
        result.length = qr_min_u64(result.length, staged->length);
        if (staged->repeated < result.repeated_tokens)
            result.repeated_tokens = staged->repeated;
    }
    qr_blocks_commit(&session->blocks);
    result.committed = qr_session_length(session, NULL);
    job->write_through = session->store->mover && job->page_count > 0 &&
                         (session->save.stored || job->append->soon);
    pthread_mutex_unlock(&session->lock);
    if (out)
        *out = result;
}

static void count(const struct qr_append_job *job)
{
    struct qr_counters *counters = &job->session->store->counters;
    uint64_t repeated = 0;

    for (size_t i = 0; i < job->lane_count; i++)
        repeated += job->lanes[i].repeated;
    qr_counter_add(&counters->appends, 1);
    qr_counter_add(&counters->repeated_tokens, repeated);
    qr_counter_add(&counters->appended_tokens,
                   job->lane_count * (uint64_t)job->append->tokens - repeated);
    qr_counter_add(&counters->pages_sealed, job->sealed);
    qr_counter_add(&counters->pages_shared, job->shared);
    qr_counter_add(&counters->pages_unshared, job->unshared);
    qr_counter_add(&counters->pages_restored, job->restored);
    qr_counter_add(&counters->pages_received, job->received);
    qr_counter_add(&counters->tails_restored, job->tails_restored);
}

static void give_back(struct qr_append_job *job)
{
    struct qr_session *session = job->session;

    for (size_t i = 0; i < job->page_count; i++)
        qr_index_unref(session->store->index, &job->pages[i].entry, 1);
    for (size_t i = 0; i < job->chunk_count; i++) {
        if (job->chunks[i].chunk)
            qr_lane_disown(session, job->chunks[i].chunk);
    }
    qr_blocks_abort(&session->blocks);
    qr_counter_add(&session->store->counters.appends_failed, 1);
}

/* ---- durability -------------------------------------------------------------------------- */

/* An append that waits for the disk; from a pool. */
struct durable {
    struct qr_waiter waiter;
    struct qr_store *store;
    qr_durable_done *done;
    void *arg;
};

size_t qr_durable_bytes(void)
{
    return sizeof(struct durable);
}

static quire_status not_durable(quire_status status, struct qr_error *e)
{
    qr_error_set(e, status, "the rows are in memory, but not on disk: %s", qr_disk_why(status));
    if (e && (status == QUIRE_EFULL || status == QUIRE_ETIMEOUT))
        e->retry_after_ms = QR_RETRY_DISK_MS;
    return status;
}

static void durable_done(void *arg, quire_status status)
{
    struct durable *durable = arg;
    struct qr_store *store = durable->store;
    struct qr_error e = {0};

    qr_counter_add(status == QUIRE_OK ? &store->counters.durable_appends
                                      : &store->counters.durable_failures,
                   1);
    if (status != QUIRE_OK)
        (void)not_durable(status, &e);
    durable->done(durable->arg, status, &e);
    qr_pool_give(store->durables, durable);
}

static quire_status make_durable(struct qr_session *session, const struct qr_append *append,
                                 struct qr_error *e)
{
    struct qr_store *store = session->store;

    if (!append->done) {
        const quire_status status = qr_durable_wait(session);
        qr_counter_add(status == QUIRE_OK ? &store->counters.durable_appends
                                          : &store->counters.durable_failures,
                       1);
        return status == QUIRE_OK ? status : not_durable(status, e);
    }
    struct durable *durable = qr_pool_take(store->durables);
    if (!durable)
        return not_durable(QUIRE_EFULL, e);
    *durable = (struct durable){.waiter = {.done = durable_done, .arg = durable},
                                .store = store,
                                .done = append->done,
                                .arg = append->arg};
    qr_durable_want(session, &durable->waiter);
    return QUIRE_OK;
}

quire_status qr_append_finish(struct qr_append_job *job, quire_status status,
                              struct qr_append_result *out, struct qr_error *e)
{
    struct qr_session *session = job->session;
    struct qr_store *store = session->store;
    const struct qr_append *append = job->append;

    job->write_through = false;
    if (status == QUIRE_OK) {
        commit(job, out);
        count(job);
        atomic_store(&session->unsaved, true);
    } else {
        give_back(job);
        if (status == QUIRE_EFULL)
            qr_mover_press(store);
    }
    if (status == QUIRE_OK && job->pin_count > 0) {
        qr_session_keep(session, job->pins, job->pin_count);
        job->pin_count = 0;
    }
    while (job->pin_count > 0)
        qr_index_unpin(store->index, job->pins[--job->pin_count]);
    pthread_mutex_unlock(&session->write_lock);
    if (job->scratch_capacity > SCRATCH_KEPT_BYTES) {
        free(job->scratch);
        job->scratch = NULL;
        job->scratch_capacity = 0;
    }
    const bool write_through = job->write_through;
    qr_pool_give(store->appends, job);
    if (status == QUIRE_OK && append->durable)
        status = make_durable(session, append, e);
    else if (status == QUIRE_OK && (write_through || qr_mover_wants_write_back(store)))
        qr_durable_want(session, NULL);
    qr_session_release(session);
    return status;
}
