/* SPDX-License-Identifier: Apache-2.0
 *
 * What there is of a session: infos, and exactly which tokens are missing.
 */
#include "durable.h"

#include <inttypes.h>
#include <string.h>

uint64_t qr_session_length(const struct qr_session *session, uint64_t *longest_out)
{
    uint64_t shortest = UINT64_MAX, longest = 0;

    for (uint32_t i = 0; i < session->lane_count; i++) {
        shortest = qr_min_u64(shortest, session->lanes[i].length);
        longest = qr_max_u64(longest, session->lanes[i].length);
    }
    if (longest_out)
        *longest_out = longest;
    return shortest;
}

static void add_lane(const struct qr_session *session, const struct qr_lane *lane,
                     struct qr_session_info *info)
{
    const uint64_t row_elements = (uint64_t)lane->heads * (lane->key_dim + lane->value_dim);
    struct qr_index *index = session->store->index;

    info->pages += lane->sealed;
    for (uint32_t b = 0; b < lane->sealed; b++) {
        const uint32_t bytes = qr_index_bytes(index, lane->pages[b]);
        info->page_bytes += bytes;
        info->missing_pages += bytes == 0;
    }
    for (uint32_t i = 0; i < lane->tail_count; i++)
        info->tail_bytes += qr_chunk_resident_bytes(lane->tail[i]);
    info->fp16_bytes += lane->length * row_elements * 2;
    info->sealed =
        qr_min_u64(info->sealed, (uint64_t)lane->sealed * session->policy.page_tokens);
}

/* Of a session that is on disk only, as of its last commit: all lanes count as the shortest. */
static void fill_stored(const struct qr_session *session, struct qr_session_info *info)
{
    const struct qr_session_save *save = &session->save;

    info->length = save->length;
    info->longest = save->longest;
    info->sealed = save->sealed_tokens;
    info->pages = save->pages;
    info->missing_pages = save->missing_pages;
    info->page_bytes = save->page_bytes;
    for (uint32_t l = 0; l < session->model->layer_count; l++) {
        const struct qr_layer *layer = &session->model->layers[l];
        info->fp16_bytes +=
            save->length * layer->kv_heads * ((uint64_t)layer->key_dim + layer->value_dim) * 2;
    }
}

void qr_session_fill_info(const struct qr_session *session, struct qr_session_info *info)
{
    const uint64_t now_ms = qr_store_now_ms(session->store);
    const uint64_t ttl_ms = atomic_load(&session->ttl_ms);
    const uint64_t idle_ms = now_ms - qr_min_u64(now_ms, atomic_load(&session->used_ms));

    memset(info, 0, sizeof(*info));
    info->session = session->handle;
    memcpy(info->name, session->name, sizeof(info->name));
    info->model = session->model;
    info->policy = session->policy;
    info->head_shards = session->head_shards;
    info->epoch = session->epoch;
    info->leased = session->leased && now_ms < session->lease_end_ms;
    info->ttl_ms = ttl_ms > idle_ms ? ttl_ms - idle_ms : 0;
    if (!atomic_load(&session->loaded)) {
        fill_stored(session, info);
        return;
    }
    info->receipts = session->receipts;
    info->length = qr_session_length(session, &info->longest);
    info->sealed = UINT64_MAX;
    for (uint32_t i = 0; i < session->lane_count; i++)
        add_lane(session, &session->lanes[i], info);
}

quire_status qr_session_describe(struct qr_session *session, struct qr_session_info *out,
                                 struct qr_error *e)
{
    quire_status status = QUIRE_OK;

    pthread_mutex_lock(&session->lock);
    if (session->dead)
        status = qr_session_gone(e, session->name);
    else
        qr_session_fill_info(session, out);
    pthread_mutex_unlock(&session->lock);
    return status;
}

quire_status qr_session_info(struct qr_store *store, uint32_t ns, const char *name,
                             struct qr_session_info *out, struct qr_error *e)
{
    struct qr_session *session = qr_session_acquire_name(store, ns, name);

    if (!session)
        return qr_session_gone(e, name);
    quire_status status = qr_session_load(session, e);
    if (status == QUIRE_OK)
        status = qr_session_describe(session, out, e);
    qr_session_release(session);
    return status;
}

quire_status qr_session_info_of(struct qr_store *store, uint32_t ns, uint64_t handle,
                                struct qr_session_info *out, struct qr_error *e)
{
    struct qr_session *session;
    quire_status status = qr_session_acquire(store, ns, handle, &session, e);

    if (status != QUIRE_OK)
        return status;
    status = qr_session_describe(session, out, e);
    qr_session_release(session);
    return status;
}

/* ---- lookup ----------------------------------------------------------------------------- */

struct missing_list {
    struct qr_token_range *ranges;
    size_t capacity, count;
    bool more;
};

static void add_missing(struct missing_list *list, const struct qr_token_range *range)
{
    struct qr_token_range *last = list->count ? &list->ranges[list->count - 1] : NULL;

    if (last && last->layer == range->layer && last->shard == range->shard &&
        last->position + last->tokens == range->position) {
        last->tokens += range->tokens;
        return;
    }
    if (list->count == list->capacity) {
        list->more = true;
        return;
    }
    list->ranges[list->count++] = *range;
}

static void lookup_lane(const struct qr_session *session, uint32_t lane_number,
                        const struct qr_token_range *what, struct missing_list *list)
{
    const struct qr_lane *lane = &session->lanes[lane_number];
    const uint32_t page_tokens = session->policy.page_tokens;
    const uint64_t end = what->position + what->tokens;

    for (uint64_t p = what->position; p < end && !list->more;) {
        const uint64_t block = p / page_tokens;
        const uint64_t next = qr_min_u64((block + 1) * page_tokens, end);
        if (qr_lane_lost(session, lane, block))
            add_missing(list,
                        &(struct qr_token_range){.position = p,
                                                 .tokens = next - p,
                                                 .layer = lane->layer,
                                                 .shard = lane_number % session->head_shards});
        p = next;
    }
}

static quire_status check_layers(const struct qr_session *session, uint32_t first, uint32_t n,
                                 struct qr_error *e)
{
    const uint32_t count = session->model->layer_count;

    if (n < 1 || first >= count || n > count - first)
        return qr_error_set(e, QUIRE_EINVAL, "layers [%u, +%u): the model has %u", first, n,
                            count);
    return QUIRE_OK;
}

static bool is_named(const struct qr_lane *lane, const struct qr_token_range *what,
                     uint32_t layers)
{
    return lane->layer >= what->layer && lane->layer - what->layer < layers && what->tokens > 0;
}

/* Tokens that were never there are not missing. */
static quire_status check_end(const struct qr_session *session,
                              const struct qr_token_range *what, uint32_t layers,
                              struct qr_error *e)
{
    for (uint32_t i = 0; i < session->lane_count; i++) {
        const struct qr_lane *lane = &session->lanes[i];
        if (!is_named(lane, what, layers) || what->position + what->tokens <= lane->length)
            continue;
        qr_error_set(e, QUIRE_ERANGE,
                     "tokens [%" PRIu64 ", +%" PRIu64 ") of layer %u, which has %" PRIu64,
                     what->position, what->tokens, lane->layer, lane->length);
        if (e) {
            e->length = lane->length;
            e->layer = lane->layer;
        }
        return QUIRE_ERANGE;
    }
    return QUIRE_OK;
}

/* NOLINTNEXTLINE(readability-function-size): store.h's contract */
quire_status qr_session_lookup(struct qr_store *store, uint32_t ns, uint64_t handle,
                               const struct qr_token_range *what, uint32_t layers,
                               struct qr_token_range *missing, size_t capacity,
                               size_t *count_out, bool *more_out, uint64_t *length_out,
                               struct qr_error *e)
{
    struct missing_list list = {.ranges = missing, .capacity = capacity};
    struct qr_session *session;
    quire_status status = qr_session_acquire(store, ns, handle, &session, e);

    if (status != QUIRE_OK)
        return status;
    qr_session_used(session);
    status = qr_session_load(session, e);
    if (status == QUIRE_OK)
        status = check_layers(session, what->layer, layers, e);
    if (status == QUIRE_OK && what->position + what->tokens < what->position)
        status = qr_error_set(e, QUIRE_EINVAL,
                              "tokens [%" PRIu64 ", +%" PRIu64 ") pass the end of numbers",
                              what->position, what->tokens);
    pthread_mutex_lock(&session->lock);
    if (status == QUIRE_OK && session->dead)
        status = qr_session_gone(e, session->name);
    if (status == QUIRE_OK)
        status = check_end(session, what, layers, e);
    for (uint32_t i = 0; status == QUIRE_OK && i < session->lane_count; i++) {
        if (is_named(&session->lanes[i], what, layers))
            lookup_lane(session, i, what, &list);
    }
    if (status == QUIRE_OK) {
        *length_out = qr_session_length(session, NULL);
        *count_out = list.count;
        *more_out = list.more;
    }
    pthread_mutex_unlock(&session->lock);
    qr_session_release(session);
    return status;
}
