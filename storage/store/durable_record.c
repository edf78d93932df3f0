/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of sessions, namespaces and models for the disk's index. The only file
 * here that sees wire messages: a model is stored as it is on the wire.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "durable.h"
#include "proto/wire.h"

#define MODEL_BYTES_MAX (1u << 20)
#define MODEL_ARENA_BYTES (4u << 20)

uint64_t qr_wall_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

void qr_record_namespace(const struct qr_namespace *ns, uint32_t number,
                         struct qr_disk_batch *batch)
{
    const struct qr_disk_key key = qr_disk_key_namespace(number);
    uint8_t value[QR_HASH_BYTES + QR_NAME_MAX];
    const size_t n = strlen(ns->name);

    memcpy(value, ns->secret, QR_HASH_BYTES);
    memcpy(value + QR_HASH_BYTES, ns->name, n);
    qr_disk_batch_put(batch, &key, value, QR_HASH_BYTES + n);
}

quire_status qr_record_model(const struct qr_model *model, struct qr_disk_batch *batch,
                             struct qr_error *e)
{
    const struct qr_disk_key key = qr_disk_key_model(model->fingerprint);
    struct qr_wire_model *wire = malloc(sizeof(*wire));
    uint8_t *bytes = malloc(MODEL_BYTES_MAX);
    quire_status status = QUIRE_ENOMEM;
    size_t n = 0;

    if (wire && bytes) {
        qr_wire_model_to(model, wire);
        status = qr_wire_pack(&wire->message.base, bytes, MODEL_BYTES_MAX, &n, e);
    }
    if (status == QUIRE_OK)
        qr_disk_batch_put(batch, &key, bytes, n);
    free(bytes);
    free(wire);
    return status;
}

quire_status qr_durable_model(struct qr_store *store, const struct qr_model *model,
                              struct qr_error *e)
{
    struct qr_disk_batch batch = {0};
    struct qr_disk_commit commit = {.batch = &batch};
    quire_status status = qr_record_model(model, &batch, e);

    if (status == QUIRE_OK) {
        status = qr_disk_commit_wait(store->disk, &commit);
        if (status != QUIRE_OK)
            qr_error_set(e, status, "model \"%s\" is registered, but not on disk: %s",
                         model->name, qr_disk_why(status));
    }
    qr_disk_batch_free(&batch);
    return status;
}

quire_status qr_record_read_model(const uint8_t *value, size_t n, struct qr_model *out,
                                  struct qr_error *e)
{
    const struct qr_wire_fragment fragment = {.data = value, .bytes = n};
    struct qr_wire_arena arena;
    ProtobufCMessage *message = NULL;
    void *memory = aligned_alloc(64, MODEL_ARENA_BYTES);

    if (!memory)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory to read a model");
    qr_wire_arena_init(&arena, memory, MODEL_ARENA_BYTES);
    quire_status status =
        qr_wire_unpack(&quire__v1__model__descriptor, &fragment, 1, &arena, &message, e);
    if (status == QUIRE_OK)
        status = qr_wire_model_from((const Quire__V1__Model *)message, out, e);
    free(memory);
    return status;
}

/* Monotonic time of the last use as wall time. */
static uint64_t used_us(const struct qr_session *session, uint64_t used_ms)
{
    const uint64_t now_ms = qr_store_now_ms(session->store);
    const uint64_t idle_us = (now_ms > used_ms ? now_ms - used_ms : 0) * 1000u;
    const uint64_t wall_us = qr_wall_us();

    return wall_us > idle_us ? wall_us - idle_us : 0;
}

static void summarize(struct qr_session *session, struct qr_disk_session *out)
{
    struct qr_session_info info;

    if (!atomic_load(&session->loaded)) {
        out->length = session->save.length;
        out->longest = session->save.longest;
        out->sealed_tokens = session->save.sealed_tokens;
        out->pages = session->save.pages;
        out->missing_pages = session->save.missing_pages;
        out->page_bytes = session->save.page_bytes;
    } else if (qr_session_describe(session, &info, NULL) == QUIRE_OK) {
        out->length = info.length;
        out->longest = info.longest;
        out->sealed_tokens = info.sealed;
        out->pages = info.pages;
        out->missing_pages = info.missing_pages;
        out->page_bytes = info.page_bytes;
    }
}

quire_status qr_record_session(struct qr_round *round, bool first)
{
    struct qr_session *session = round->session;
    const struct qr_disk_key key = qr_disk_key_session(session->ns, round->uuid);
    struct qr_disk_session record = {.policy = session->policy,
                                     .head_shards = session->head_shards,
                                     .ttl_ms = atomic_load(&session->ttl_ms),
                                     .created_us = session->save.created_us};
    uint8_t bytes[QR_DISK_SESSION_RECORD_MAX];
    const uint64_t used_ms = atomic_load(&session->used_ms);

    memcpy(record.name, session->name, sizeof(record.name));
    memcpy(record.fingerprint, session->model->fingerprint, QR_HASH_BYTES);
    round->epoch = (round->epoch / QR_EPOCHS_AHEAD + 2) * QR_EPOCHS_AHEAD;
    round->epoch_saved = true;
    record.epoch = round->epoch;
    record.used_us = used_us(session, used_ms);
    summarize(session, &record);
    qr_disk_batch_put(&round->batch, &key, bytes, qr_disk_session_write(&record, bytes));
    pthread_mutex_lock(&session->lock);
    session->save.used_ms = used_ms;
    pthread_mutex_unlock(&session->lock);
    if (!first)
        return QUIRE_OK;
    qr_record_namespace(qr_store_namespace_of(session->store, session->ns), session->ns,
                        &round->batch);
    return qr_record_model(session->model, &round->batch, NULL);
}
