/* SPDX-License-Identifier: Apache-2.0
 *
 * The store as a whole: start, end, namespaces, models.
 */
#include "durable.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/random.h"
#include "storage/tier/disk_scrub.h"

#define META_SHARE 12u              /* a twelfth of the budget, 8.3 %, and */
#define META_BASE_BYTES (16u << 20) /* this, may be metadata */
#define ENTRY_PER_BYTES 2048u       /* one index entry for so many bytes of budget */
#define ENTRIES_MIN 65536u
#define ENTRY_BYTES_MIN 96u

uint64_t qr_store_now_ms(const struct qr_store *store)
{
    return store->config.clock_ms ? store->config.clock_ms() : qr_clock_ms();
}

static quire_status check_config(const struct qr_store_config *c, struct qr_error *e)
{
    if (c->sessions_max < 1 || c->sessions_max >= 1u << QR_SESSION_SLOT_BITS)
        return qr_error_set(e, QUIRE_EINVAL, "sessions_max %u: need 1 to %u", c->sessions_max,
                            (1u << QR_SESSION_SLOT_BITS) - 1);
    if (c->models_max < 1)
        return qr_error_set(e, QUIRE_EINVAL, "models_max 0: need at least 1");
    if (c->lease_ms < 1 || c->ttl_ms < 1)
        return qr_error_set(e, QUIRE_EINVAL, "lease_ms and ttl_ms: need at least 1");
    return QUIRE_OK;
}

/* With a disk, pages are known that memory has no room for; metadata_limit_bytes bounds them.
 */
static uint32_t entries_max(const struct qr_store *store)
{
    const uint64_t entries = store->disk ? store->meta.limit_bytes / ENTRY_BYTES_MIN
                                         : store->config.host_budget_bytes / ENTRY_PER_BYTES;

    if (entries < ENTRIES_MIN)
        return ENTRIES_MIN;
    return entries < (1u << 31) ? (uint32_t)entries : 1u << 31;
}

static quire_status start_tables(struct qr_store *store, struct qr_error *e)
{
    const uint32_t sessions_max = store->config.sessions_max;

    store->namespaces = calloc(QR_NAMESPACES_MAX, sizeof(*store->namespaces));
    store->models = calloc(store->config.models_max, sizeof(*store->models));
    store->slots = calloc(sessions_max, sizeof(*store->slots));
    store->free_slots = calloc(sessions_max, sizeof(*store->free_slots));
    store->sorted = calloc(sessions_max, sizeof(struct qr_session *));
    if (!store->namespaces || !store->models || !store->slots || !store->free_slots ||
        !store->sorted)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for tables of %u sessions",
                            sessions_max);
    for (uint32_t i = 0; i < sessions_max; i++)
        store->free_slots[store->free_slot_count++] = sessions_max - 1 - i;
    /* Handles of an earlier start are not taken for ones of this: begin at a random place. */
    quire_status status = qr_random_fill(&store->sequence, sizeof(store->sequence), e);
    store->sequence = (store->sequence & 0x3fffffffffu) + 1;
    return status;
}

/* The checksum covers everything, and encoding is deterministic. */
static uint64_t page_tag(const void *bytes)
{
    return ((const struct qr_page_header *)bytes)->checksum;
}

static quire_status start_parts(struct qr_store *store, struct qr_error *e)
{
    const struct qr_index_config index = {
        .tier = store->tier,
        .disk = store->disk ? qr_disk_tier(store->disk) : NULL,
        .orphaned = qr_mover_orphan,
        .arg = store->mover,
        .meta = &store->meta,
        .counters = &store->counters,
        .entries_max = entries_max(store),
        .tag = page_tag,
        /* A group outlives its session while forks share its pages, so at most one a page. */
        .groups_max = 2 * store->config.sessions_max + entries_max(store) + 1,
    };
    quire_status status = start_tables(store, e);

    if (status == QUIRE_OK)
        status = qr_index_create(&index, &store->index, e);
    if (status == QUIRE_OK)
        status = qr_workers_create(store->config.attend_threads, &store->workers, e);
    if (status != QUIRE_OK)
        return status;
    if (qr_pool_create(sizeof(struct qr_chunk), QR_CHUNKS_MAX, &store->chunks) != QUIRE_OK ||
        qr_pool_create(qr_cursor_bytes(), QR_CURSORS_MAX, &store->cursors) != QUIRE_OK ||
        qr_pool_create(qr_append_bytes(), QR_APPENDS_MAX, &store->appends) != QUIRE_OK)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the store's pools");
    store->chunk_home = (struct qr_chunk_home){.keep = store->disk != NULL,
                                               .index = store->index,
                                               .pool = store->chunks,
                                               .meta = &store->meta};
    return QUIRE_OK;
}

/* Pages of no manifest: their deletion was not done when the last process ended. */
static void note_orphan(void *arg, const uint8_t id[QR_HASH_BYTES],
                        const struct qr_disk_page *page)
{
    if (page->named == 0)
        qr_mover_orphan(arg, id);
}

static quire_status open_disk(struct qr_store *store, struct qr_error *e)
{
    const struct qr_store_disk_config *from = store->config.disk;
    struct qr_disk_config config = {.io = from->io,
                                    .count = from->count,
                                    .create = true,
                                    .allow_missing = from->allow_missing,
                                    .no_uring = from->no_uring,
                                    .tail_log_bytes = from->tail_log_bytes,
                                    .tail_segment_bytes = from->tail_segment_bytes,
                                    .index_cache_bytes = from->index_cache_bytes};
    struct qr_mover *mover = calloc(1, sizeof(*mover));
    pthread_condattr_t monotonic;

    if (!mover)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the disk's thread");
    store->mover = mover;
    mover->store = store;
    pthread_mutex_init(&mover->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&mover->work, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (qr_pool_create(qr_durable_bytes(), QR_DURABLES_MAX, &store->durables) != QUIRE_OK ||
        qr_pool_create(qr_page_read_bytes(), QR_READS_MAX, &store->reads) != QUIRE_OK)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the store's pools");
    store->drop_when_full = from->drop_when_full;
    store->read_wait_ms = QR_READ_WAIT_MS;
    memcpy(config.folders, from->folders, sizeof(config.folders));
    memcpy(config.cap_bytes, from->cap_bytes, sizeof(config.cap_bytes));
    const quire_status status = qr_disk_open(&config, note_orphan, mover, &store->disk, e);
    mover->disk = store->disk;
    return status;
}

/* Damaged pages that it finds are in quarantine, and told by the log and by metrics; whoever
 * reads one finds it damaged as well, since what comes from the disk is always verified. */
static quire_status start_scrub(struct qr_store *store, struct qr_error *e)
{
    const struct qr_disk_scrub_config config = {.bytes_per_s =
                                                    store->config.disk->scrub_bytes_per_s};

    return config.bytes_per_s > 0 ? qr_disk_scrub_start(store->disk, &config, &store->scrub, e)
                                  : QUIRE_OK;
}

static void close_disk(struct qr_store *store)
{
    struct qr_mover *mover = store->mover;

    qr_disk_close(&store->disk);
    if (store->reads)
        qr_pool_destroy(&store->reads, NULL);
    if (store->durables)
        qr_pool_destroy(&store->durables, NULL);
    if (!mover)
        return;
    free(mover->orphans);
    free(mover->going);
    pthread_cond_destroy(&mover->work);
    pthread_mutex_destroy(&mover->lock);
    free(mover);
    store->mover = NULL;
}

quire_status qr_store_create_on(const struct qr_store_config *config, struct qr_tier *tier,
                                struct qr_store **out, struct qr_error *e)
{
    quire_status status = check_config(config, e);
    struct qr_store *store = status == QUIRE_OK ? calloc(1, sizeof(*store)) : NULL;

    if (!store) {
        tier->ops->destroy(&tier);
        return status == QUIRE_OK ? qr_error_set(e, QUIRE_ENOMEM, "no memory for a store")
                                  : status;
    }
    store->config = *config;
    store->tier = tier;
    /* Ascending over restarts, too, while leases are taken at less than one a microsecond. */
    atomic_store(&store->next_epoch, qr_clock_wall_us());
    store->meta.limit_bytes = config->host_budget_bytes / META_SHARE + META_BASE_BYTES;
    pthread_mutex_init(&store->table_lock, NULL);
    status = config->disk ? open_disk(store, e) : QUIRE_OK;
    if (status == QUIRE_OK)
        status = start_parts(store, e);
    if (status == QUIRE_OK && store->mover)
        status = qr_durable_open(store, e);
    if (status == QUIRE_OK && store->mover)
        status = qr_mover_start(store, e);
    if (status == QUIRE_OK && store->mover)
        status = start_scrub(store, e);
    store->config.disk = NULL; /* the caller's */
    if (status != QUIRE_OK)
        qr_store_destroy(&store);
    else
        *out = store;
    return status;
}

quire_status qr_store_create(const struct qr_store_config *config, struct qr_store **out,
                             struct qr_error *e)
{
    const struct qr_tier_host_config host = {.budget_bytes = config->host_budget_bytes,
                                             .huge_pages = config->huge_pages};
    struct qr_tier *tier;
    quire_status status = qr_tier_host_create(&host, &tier, e);

    return status == QUIRE_OK ? qr_store_create_on(config, tier, out, e) : status;
}

static void drop_sessions(struct qr_store *store)
{
    while (store->session_count > 0) {
        struct qr_session *session = store->sorted[store->session_count - 1];
        pthread_mutex_lock(&session->write_lock);
        pthread_mutex_lock(&session->lock);
        qr_session_empty(session);
        pthread_mutex_unlock(&session->lock);
        pthread_mutex_unlock(&session->write_lock);
        qr_session_table_remove(session);
    }
}

/* What an orderly end leaves behind is there at the next start, durable or not. */
static void flush_all(struct qr_store *store)
{
    for (uint32_t ns = 0; ns < atomic_load(&store->namespace_count); ns++) {
        struct qr_error e = {0};
        if (qr_store_flush(store, ns, &e) != QUIRE_OK)
            QR_LOG(QR_LOG_ERROR, "disk.not_flushed", QR_LOG_STR("why", e.text));
    }
}

void qr_store_destroy(struct qr_store **store)
{
    struct qr_store *s = *store;

    if (!s)
        return;
    qr_disk_scrub_stop(&s->scrub);
    if (s->mover && s->mover->runs)
        flush_all(s);
    qr_mover_stop(s);
    drop_sessions(s);
    qr_pool_destroy(&s->appends, qr_append_end);
    qr_pool_destroy(&s->cursors, NULL);
    qr_pool_destroy(&s->chunks, NULL);
    qr_workers_destroy(&s->workers);
    qr_index_destroy(&s->index);
    close_disk(s);
    s->tier->ops->destroy(&s->tier);
    for (uint32_t i = 0; s->models && i < s->model_count; i++)
        free(s->models[i]);
    free(s->models);
    free(s->namespaces);
    free(s->slots);
    free(s->free_slots);
    free(s->sorted);
    pthread_mutex_destroy(&s->table_lock);
    free(s);
    *store = NULL;
}

/* ---- namespaces ------------------------------------------------------------------------- */

static uint32_t namespace_find(struct qr_store *store, const char *name)
{
    const uint32_t count = atomic_load(&store->namespace_count);

    for (uint32_t i = 0; i < count; i++) {
        if (store->namespaces[i].used && strcmp(store->namespaces[i].name, name) == 0)
            return i;
    }
    return count;
}

quire_status qr_store_namespace(struct qr_store *store, const char *name, uint32_t *ns_out,
                                struct qr_error *e)
{
    quire_status status = QUIRE_OK;

    if (strlen(name) > QR_NAME_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "namespace name of %zu bytes: at most %d",
                            strlen(name), QR_NAME_MAX);
    pthread_mutex_lock(&store->table_lock);
    const uint32_t count = atomic_load(&store->namespace_count);
    const uint32_t i = namespace_find(store, name);
    if (i == QR_NAMESPACES_MAX) {
        status = qr_error_set(e, QUIRE_EFULL, "%u namespaces exist: no more", i);
    } else if (i == count) {
        struct qr_namespace *ns = &store->namespaces[i];
        status = qr_random_fill(ns->secret, sizeof(ns->secret), e);
        memcpy(ns->name, name, strlen(name) + 1);
        ns->used = true;
        if (status == QUIRE_OK)
            atomic_store(&store->namespace_count, count + 1);
    }
    pthread_mutex_unlock(&store->table_lock);
    if (status == QUIRE_OK)
        *ns_out = i;
    return status;
}

const struct qr_namespace *qr_store_namespace_of(struct qr_store *store, uint32_t ns)
{
    return ns < atomic_load(&store->namespace_count) ? &store->namespaces[ns] : NULL;
}

/* ---- models ----------------------------------------------------------------------------- */

static const struct qr_model *model_find(struct qr_store *store,
                                         const uint8_t fingerprint[QR_HASH_BYTES])
{
    for (uint32_t i = 0; i < store->model_count; i++) {
        if (memcmp(store->models[i]->fingerprint, fingerprint, QR_HASH_BYTES) == 0)
            return store->models[i];
    }
    return NULL;
}

quire_status qr_store_model_put(struct qr_store *store, const struct qr_model *model,
                                struct qr_error *e)
{
    quire_status status = QUIRE_OK;
    bool added = false;

    pthread_mutex_lock(&store->table_lock);
    if (model_find(store, model->fingerprint)) {
        /* known already */
    } else if (store->model_count == store->config.models_max) {
        status = qr_error_set(e, QUIRE_EFULL, "%u models are registered: raise models_max",
                              store->model_count);
    } else {
        struct qr_model *copy = malloc(sizeof(*copy));
        if (copy) {
            *copy = *model;
            store->models[store->model_count++] = copy;
            added = true;
        } else {
            status = qr_error_set(e, QUIRE_ENOMEM, "no memory for one more model");
        }
    }
    pthread_mutex_unlock(&store->table_lock);
    return added && store->mover ? qr_durable_model(store, model, e) : status;
}

quire_status qr_store_model_get(struct qr_store *store,
                                const uint8_t fingerprint[QR_HASH_BYTES],
                                const struct qr_model **out, struct qr_error *e)
{
    pthread_mutex_lock(&store->table_lock);
    const struct qr_model *model = model_find(store, fingerprint);
    pthread_mutex_unlock(&store->table_lock);
    if (!model)
        return qr_error_set(e, QUIRE_ENOTFOUND,
                            "no model with fingerprint %02x%02x%02x%02x... is registered",
                            fingerprint[0], fingerprint[1], fingerprint[2], fingerprint[3]);
    *out = model;
    return QUIRE_OK;
}
