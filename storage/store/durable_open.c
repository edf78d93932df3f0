/* SPDX-License-Identifier: Apache-2.0
 *
 * The start: namespaces, models and sessions as the disk's index has them, and
 * which rows of the tail log still count. Sessions come without their lanes: that
 * is read when one is used (durable_load.c).
 */
#include <stdlib.h>
#include <string.h>

#include "durable.h"
#include "storage/base/log.h"

struct opening {
    struct qr_store *store;
    struct qr_error *e;
    quire_status status;
    struct qr_session **by_uuid; /* sorted */
    uint32_t count, capacity;
    uint32_t bad; /* records that cannot be used */
    /* the lane that the last tail record was of */
    uint8_t uuid[QR_DISK_UUID_BYTES];
    uint32_t lane;
    uint64_t sealed; /* tokens */
    struct qr_disk_lane cut;
    struct qr_session *session; /* NULL: nobody's */
    bool any;
};

/* ---- namespaces and models -----------------------------------------------------------------
 */

static bool open_namespace(void *arg, const uint8_t *key, size_t key_bytes,
                           const uint8_t *value, size_t value_bytes)
{
    struct opening *o = arg;
    struct qr_store *store = o->store;
    uint32_t big;

    if (key_bytes != 5 || value_bytes < QR_HASH_BYTES ||
        value_bytes > QR_HASH_BYTES + QR_NAME_MAX) {
        o->bad++;
        return true;
    }
    memcpy(&big, key + 1, sizeof(big));
    const uint32_t number = __builtin_bswap32(big);
    if (number >= QR_NAMESPACES_MAX) {
        o->bad++;
        return true;
    }
    struct qr_namespace *ns = &store->namespaces[number];
    memcpy(ns->secret, value, QR_HASH_BYTES);
    memcpy(ns->name, value + QR_HASH_BYTES, value_bytes - QR_HASH_BYTES);
    ns->name[value_bytes - QR_HASH_BYTES] = '\0';
    ns->used = true;
    if (number >= atomic_load(&store->namespace_count))
        atomic_store(&store->namespace_count, number + 1);
    return true;
}

static bool open_model(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                       size_t value_bytes)
{
    struct opening *o = arg;
    struct qr_store *store = o->store;
    struct qr_model *model = malloc(sizeof(*model));

    if (!model) {
        o->status = qr_error_set(o->e, QUIRE_ENOMEM, "no memory for a model of the disk");
        return false;
    }
    if (store->model_count == store->config.models_max) {
        o->status = qr_error_set(o->e, QUIRE_EFULL,
                                 "the disk has more than %u models: raise max_models",
                                 store->model_count);
        free(model);
        return false;
    }
    const bool good = qr_record_read_model(value, value_bytes, model, NULL) == QUIRE_OK &&
                      key_bytes == 1 + QR_HASH_BYTES &&
                      memcmp(model->fingerprint, key + 1, QR_HASH_BYTES) == 0;
    if (good) {
        store->models[store->model_count++] = model;
    } else {
        o->bad++;
        free(model);
    }
    return true;
}

/* ---- sessions ------------------------------------------------------------------------------
 */

static void summary_of(struct qr_session *session, const struct qr_disk_session *record)
{
    const uint64_t now_ms = qr_store_now_ms(session->store);
    const uint64_t wall_us = qr_wall_us();
    const uint64_t idle_ms =
        wall_us > record->used_us ? (wall_us - record->used_us) / 1000u : 0;

    session->epoch = session->save.epoch = record->epoch;
    if (atomic_load(&session->store->next_epoch) <= record->epoch) /* a clock set back */
        atomic_store(&session->store->next_epoch, record->epoch + 1);
    session->save.stored = true;
    session->save.created_us = record->created_us;
    session->save.length = record->length;
    session->save.longest = record->longest;
    session->save.sealed_tokens = record->sealed_tokens;
    session->save.pages = record->pages;
    session->save.missing_pages = record->missing_pages;
    session->save.page_bytes = record->page_bytes;
    atomic_store(&session->ttl_ms, record->ttl_ms);
    /* A machine that was just started has a monotonic clock near zero. */
    session->idle_before_ms = idle_ms > now_ms ? idle_ms - now_ms : 0;
    atomic_store(&session->used_ms, now_ms > idle_ms ? now_ms - idle_ms : 0);
    session->save.used_ms = atomic_load(&session->used_ms);
}

/* Two of one name: the older one was being dropped when the younger was made. */
static quire_status add_session(struct opening *o, struct qr_session *session)
{
    struct qr_session *other = qr_session_acquire_name(o->store, session->ns, session->name);

    if (!other)
        return qr_session_table_add(session, o->e);
    const bool younger = session->save.created_us > other->save.created_us;
    struct qr_session *goes = younger ? other : session;
    quire_status status = QUIRE_OK;
    if (younger) {
        qr_session_table_remove(other);
        status = qr_session_table_add(session, o->e);
    }
    goes->dead = true; /* its drop round is run once the mover runs */
    qr_durable_want(goes, NULL);
    qr_session_release(other);
    return status;
}

static bool note_session(struct opening *o, struct qr_session *session)
{
    if (o->count == o->capacity) {
        const uint32_t capacity = o->capacity * 2 + 64;
        struct qr_session **grown = realloc(o->by_uuid, capacity * sizeof(*grown));
        if (!grown)
            return false;
        o->by_uuid = grown;
        o->capacity = capacity;
    }
    o->by_uuid[o->count++] = session;
    return true;
}

static quire_status make_session(struct opening *o, uint32_t ns,
                                 const uint8_t uuid[QR_DISK_UUID_BYTES],
                                 const struct qr_disk_session *record)
{
    struct qr_session_shape shape = {.ns = ns,
                                     .head_shards = record->head_shards,
                                     .name = record->name,
                                     .policy = &record->policy,
                                     .stub = true,
                                     .uuid = uuid};
    struct qr_session *session;
    quire_status status = qr_store_model_get(o->store, record->fingerprint, &shape.model, o->e);

    if (status == QUIRE_OK)
        status = qr_session_make(o->store, &shape, &session, o->e);
    if (status != QUIRE_OK)
        return status;
    summary_of(session, record);
    status = add_session(o, session);
    if (status == QUIRE_OK && !session->dead && !note_session(o, session))
        status = qr_error_set(o->e, QUIRE_ENOMEM, "no memory for the sessions of the disk");
    qr_session_release(session);
    return status;
}

static bool open_session(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                         size_t value_bytes)
{
    struct opening *o = arg;
    struct qr_disk_session record;
    uint8_t uuid[QR_DISK_UUID_BYTES];
    uint32_t ns;

    if (!qr_disk_key_session_read(key, key_bytes, &ns, uuid) ||
        qr_disk_session_read(value, value_bytes, &record) != QUIRE_OK ||
        !qr_store_namespace_of(o->store, ns)) {
        o->bad++;
        return true;
    }
    const quire_status status = make_session(o, ns, uuid, &record);
    if (status == QUIRE_OK)
        return true;
    if (status == QUIRE_EFULL || status == QUIRE_ENOMEM) {
        o->status = status; /* the limits are too low for what the disk has */
        return false;
    }
    o->bad++;
    return true;
}

static bool open_going(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                       size_t value_bytes)
{
    struct opening *o = arg;
    uint8_t uuid[QR_DISK_UUID_BYTES];

    (void)value;
    (void)value_bytes;
    if (qr_disk_key_going_read(key, key_bytes, uuid))
        qr_mover_going(o->store->mover, uuid);
    return true;
}

/* ---- the tail log --------------------------------------------------------------------------
 */

static int compare_uuids(const void *a, const void *b)
{
    const struct qr_session *const *x = a, *const *y = b;
    return memcmp((*x)->uuid, (*y)->uuid, QR_DISK_UUID_BYTES);
}

static struct qr_session *find_uuid(const struct opening *o, const uint8_t *uuid)
{
    uint32_t low = 0, high = o->count;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = memcmp(o->by_uuid[middle]->uuid, uuid, QR_DISK_UUID_BYTES);
        if (order == 0)
            return o->by_uuid[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static void look_at_lane(struct opening *o, const struct qr_tail_record *record)
{
    const struct qr_disk_key key = qr_disk_key_lane(record->session, record->lane);
    uint8_t value[QR_DISK_LANE_RECORD_BYTES];
    size_t n;

    o->any = true;
    memcpy(o->uuid, record->session, sizeof(o->uuid));
    o->lane = record->lane;
    o->session = find_uuid(o, record->session);
    o->cut = (struct qr_disk_lane){0};
    if (!o->session || record->lane >= o->session->lane_count ||
        qr_disk_index_get(qr_disk_index_of(o->store->mover->disk), &key, value, sizeof(value),
                          &n) != QUIRE_OK ||
        qr_disk_lane_read(value, n, &o->cut) != QUIRE_OK)
        o->cut = (struct qr_disk_lane){0};
    o->sealed = o->session ? (uint64_t)o->cut.sealed * o->session->policy.page_tokens : 0;
}

/* Whether a record still counts: its session is there, and its last row is in no page and was
 * not cut. */
static bool still_counts(void *arg, const struct qr_tail_record *record)
{
    struct opening *o = arg;

    if (!o->any || record->lane != o->lane ||
        memcmp(record->session, o->uuid, sizeof(o->uuid)) != 0)
        look_at_lane(o, record);
    if (!o->session || record->lane >= o->session->lane_count)
        return false;
    if (record->sequence < o->cut.cut_sequence && record->position >= o->cut.cut_length)
        return false;
    return record->position + record->tokens > o->sealed;
}

static quire_status replay(struct opening *o)
{
    struct qr_tail_log_report report;

    if (o->count > 0)
        qsort(o->by_uuid, o->count, sizeof(*o->by_uuid), compare_uuids);
    const quire_status status = qr_tail_log_replay(qr_disk_tail_log_of(o->store->mover->disk),
                                                   still_counts, o, &report, o->e);
    if (status == QUIRE_OK)
        QR_LOG(QR_LOG_INFO, "disk.opened", QR_LOG_U64("sessions", o->count),
               QR_LOG_U64("tail_records", report.records),
               QR_LOG_U64("tail_bytes", report.bytes), QR_LOG_U64("bad_records", o->bad));
    return status;
}

quire_status qr_durable_open(struct qr_store *store, struct qr_error *e)
{
    static const struct {
        uint8_t kind;
        qr_disk_index_each_fn *each;
    } steps[] = {{QR_DISK_KEY_NAMESPACE, open_namespace},
                 {QR_DISK_KEY_MODEL, open_model},
                 {QR_DISK_KEY_SESSION, open_session},
                 {QR_DISK_KEY_GOING, open_going}};
    struct opening o = {.store = store, .e = e};
    quire_status status = QUIRE_OK;

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && status == QUIRE_OK; i++) {
        const struct qr_disk_key prefix = {.bytes = {steps[i].kind}, .n = 1};
        status = qr_disk_index_each(qr_disk_index_of(store->mover->disk), &prefix,
                                    steps[i].each, &o, e);
        if (status == QUIRE_OK)
            status = o.status;
    }
    if (status == QUIRE_OK)
        status = replay(&o);
    free(o.by_uuid);
    return status;
}
