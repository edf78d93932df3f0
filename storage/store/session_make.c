/* SPDX-License-Identifier: Apache-2.0
 *
 * A session's record: making it, growing its manifests, giving everything back.
 */
#include "store_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "storage/base/random.h"
#include "storage/codec/codec.h"

static quire_status check_name(const char *name, struct qr_error *e)
{
    const size_t n = strlen(name);

    if (n < 1 || n > QR_NAME_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "session name of %zu bytes: need 1 to %d", n,
                            QR_NAME_MAX);
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)name[i] < 0x20 || (unsigned char)name[i] == 0x7f)
            return qr_error_set(e, QUIRE_EINVAL,
                                "session name has control character 0x%02x at byte %zu",
                                (unsigned)(unsigned char)name[i], i);
    }
    return QUIRE_OK;
}

/* Every lane must be encodable under the policy before there is a session. */
static quire_status check_geometry(const struct qr_session *session, struct qr_error *e)
{
    const struct qr_model *model = session->model;
    uint32_t lanes = 0;
    const quire_status fits = qr_policy_check_layers(&session->policy, model->layer_count, e);

    if (fits != QUIRE_OK)
        return fits;
    for (uint32_t l = 0; l < model->layer_count; l++) {
        const struct qr_layer *layer = &model->layers[l];
        if (layer->kv_heads == 0)
            continue;
        if (layer->kv_heads % session->head_shards != 0)
            return qr_error_set(e, QUIRE_EINVAL,
                                "%u head shards do not divide the %u KV heads of layer %u",
                                session->head_shards, layer->kv_heads, l);
        struct qr_lane lane = {.layer = l,
                               .heads = (uint16_t)(layer->kv_heads / session->head_shards),
                               .key_dim = layer->key_dim,
                               .value_dim = layer->value_dim};
        struct qr_page_identity id;
        qr_lane_identity(session, &lane, 0, &id);
        quire_status status = qr_codec_check_encode(&id, e);
        if (status != QUIRE_OK)
            return status;
        if (qr_page_bytes_max(&id, &session->policy) > QR_PAGE_BYTES_MAX)
            return qr_error_set(e, QUIRE_ETOOBIG,
                                "a page of layer %u takes up to %zu bytes: at most %u", l,
                                qr_page_bytes_max(&id, &session->policy), QR_PAGE_BYTES_MAX);
        lanes++;
    }
    if (lanes == 0)
        return qr_error_set(e, QUIRE_EINVAL, "the model has no layer with a KV cache");
    return QUIRE_OK;
}

static void fill_lanes(struct qr_session *session)
{
    const struct qr_model *model = session->model;
    struct qr_chunk **tails =
        (struct qr_chunk **)(void *)(session->lanes + session->lane_count);
    uint32_t n = 0;

    for (uint32_t l = 0; l < model->layer_count; l++) {
        const struct qr_layer *layer = &model->layers[l];
        session->lane_row[l] = QR_NO_LANE;
        if (layer->kv_heads == 0)
            continue;
        session->lane_row[l] = (uint16_t)(n / session->head_shards);
        const uint16_t heads = (uint16_t)(layer->kv_heads / session->head_shards);
        for (uint32_t shard = 0; shard < session->head_shards; shard++, n++) {
            session->lanes[n] = (struct qr_lane){.layer = l,
                                                 .first_head = (uint16_t)(shard * heads),
                                                 .heads = heads,
                                                 .key_dim = layer->key_dim,
                                                 .value_dim = layer->value_dim,
                                                 .tail = tails + (size_t)n * session->tail_max,
                                                 .saved = {.changed = UINT32_MAX}};
        }
    }
}

static uint32_t count_lanes(const struct qr_session *session)
{
    uint32_t layers = 0;

    for (uint32_t l = 0; l < session->model->layer_count; l++)
        layers += session->model->layers[l].kv_heads > 0;
    return layers * session->head_shards;
}

static size_t lanes_bytes_of(const struct qr_session *session)
{
    return session->lane_count * (sizeof(struct qr_lane) + session->tail_max * sizeof(void *));
}

quire_status qr_session_make_lanes(struct qr_session *session, struct qr_error *e)
{
    const size_t lanes_bytes = lanes_bytes_of(session);
    const size_t rows_bytes = session->model->layer_count * sizeof(uint16_t);
    if (!qr_meta_take(&session->store->meta, lanes_bytes + rows_bytes))
        return qr_error_set(e, QUIRE_EFULL,
                            "no room for the metadata of a session of %u lanes: drop sessions, "
                            "or raise the budget",
                            session->lane_count);
    session->lanes_meta_bytes = lanes_bytes + rows_bytes;
    session->lanes = calloc(1, lanes_bytes);
    session->lane_row = calloc(1, rows_bytes);
    if (!session->lanes || !session->lane_row)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for %u lanes", session->lane_count);
    fill_lanes(session);
    session->group = qr_index_group_open(session->store->index);
    if (session->group == QR_EVICT_NONE)
        return qr_error_set(e, QUIRE_EFULL,
                            "too many dropped sessions still have shared pages");
    return QUIRE_OK;
}

quire_status qr_session_make(struct qr_store *store, const struct qr_session_shape *shape,
                             struct qr_session **out, struct qr_error *e)
{
    uint8_t uuid[16];
    quire_status status = check_name(shape->name, e);

    if (status == QUIRE_OK)
        status = qr_policy_check(shape->policy, e);
    if (status == QUIRE_OK)
        status = qr_random_fill(uuid, sizeof(uuid), e);
    if (status != QUIRE_OK)
        return status;
    struct qr_session *session = calloc(1, sizeof(*session));
    if (!session)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for a session");
    session->store = store;
    memcpy(session->uuid, shape->uuid ? shape->uuid : uuid, sizeof(session->uuid));
    session->save.cut_blocks = UINT32_MAX;
    session->ns = shape->ns;
    memcpy(session->name, shape->name, strlen(shape->name) + 1);
    session->model = shape->model;
    session->policy = *shape->policy;
    session->head_shards = shape->head_shards;
    session->group = session->read_group = QR_EVICT_NONE;
    atomic_store(&session->refs, 1);
    pthread_mutex_init(&session->write_lock, NULL);
    pthread_mutex_init(&session->lock, NULL);
    qr_blocks_init(&session->blocks, shape->model->fingerprint, uuid,
                   shape->policy->page_tokens, &store->meta);
    status = check_geometry(session, e);
    session->lane_count = count_lanes(session);
    /* n - sealed * P < P + W tokens, in chunks of P, plus one while a window is cut unevenly.
     */
    session->tail_max = session->policy.window / session->policy.page_tokens + 2u;
    if (status == QUIRE_OK && qr_meta_take(&store->meta, sizeof(*session)))
        session->meta_bytes = sizeof(*session);
    else if (status == QUIRE_OK)
        status =
            qr_error_set(e, QUIRE_EFULL,
                         "no room for the record of a session: drop sessions, or raise the "
                         "budget");
    if (status == QUIRE_OK && !shape->stub)
        status = qr_session_make_lanes(session, e);
    atomic_store(&session->loaded, !shape->stub);
    if (status == QUIRE_OK)
        *out = session;
    else
        qr_session_free(session);
    return status;
}

quire_status qr_lane_grow(struct qr_session *session, struct qr_lane *lane, uint32_t blocks,
                          struct qr_error *e)
{
    if (blocks <= lane->pages_capacity)
        return QUIRE_OK;
    const uint32_t capacity = blocks + blocks / 8 + 4;
    const uint64_t more = (uint64_t)(capacity - lane->pages_capacity) * sizeof(uint32_t);
    if (!qr_meta_take(&session->store->meta, more))
        return qr_error_set(e, QUIRE_EFULL,
                            "no room for a manifest of %u pages: drop sessions, or raise the "
                            "budget",
                            blocks);
    pthread_mutex_lock(&session->lock);
    uint32_t *pages = realloc(lane->pages, (size_t)capacity * sizeof(uint32_t));
    if (pages) {
        lane->pages = pages;
        lane->pages_capacity = capacity;
    }
    pthread_mutex_unlock(&session->lock);
    if (pages)
        return QUIRE_OK;
    qr_meta_give(&session->store->meta, more);
    return qr_error_set(e, QUIRE_ENOMEM, "no memory for a manifest of %u pages", blocks);
}

static void empty_lane(struct qr_session *session, struct qr_lane *lane)
{
    struct qr_store *store = session->store;

    qr_index_unref(store->index, lane->pages, lane->sealed);
    for (uint32_t i = 0; i < lane->tail_count; i++)
        qr_lane_disown(session, lane->tail[i]);
    free(lane->pages);
    qr_meta_give(&store->meta, (uint64_t)lane->pages_capacity * sizeof(uint32_t));
    lane->pages = NULL;
    lane->sealed = lane->pages_capacity = lane->tail_count = 0;
    lane->length = 0;
}

static void empty(struct qr_session *session)
{
    qr_session_unkeep(session);
    for (uint32_t i = 0; session->lanes && i < session->lane_count; i++)
        empty_lane(session, &session->lanes[i]);
    qr_blocks_free(&session->blocks);
    if (session->group != QR_EVICT_NONE)
        qr_index_group_close(session->store->index, session->group);
    if (session->read_group != QR_EVICT_NONE)
        qr_index_group_close(session->store->index, session->read_group);
    session->group = session->read_group = QR_EVICT_NONE;
}

struct qr_place qr_session_read_place(struct qr_session *session, uint32_t block)
{
    if (session->read_group == QR_EVICT_NONE)
        session->read_group = qr_index_group_open(session->store->index);
    return (struct qr_place){
        .group = session->read_group == QR_EVICT_NONE ? session->group : session->read_group,
        .order = block,
        .hint = QR_ENTRY_NONE};
}

static void free_lanes(struct qr_session *session)
{
    qr_meta_give(&session->store->meta, session->lanes_meta_bytes);
    session->lanes_meta_bytes = 0;
    free(session->lanes);
    free(session->lane_row);
    session->lanes = NULL;
    session->lane_row = NULL;
}

void qr_session_unload(struct qr_session *session)
{
    atomic_store(&session->loaded, false);
    empty(session);
    free_lanes(session);
}

void qr_session_empty(struct qr_session *session)
{
    if (session->dead)
        return;
    session->dead = true;
    qr_reading_cut(session, 0);
    empty(session);
}

void qr_session_free(struct qr_session *session)
{
    qr_session_empty(session);
    qr_meta_give(&session->store->meta, session->meta_bytes);
    free_lanes(session);
    pthread_mutex_destroy(&session->lock);
    pthread_mutex_destroy(&session->write_lock);
    free(session);
}
