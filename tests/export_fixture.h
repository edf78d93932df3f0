/* SPDX-License-Identifier: Apache-2.0
 *
 * A small export made in memory by the format's own writer: 4 lanes of 2 layers and 2 head
 * shards, 2 pages (the last lane: 1) and rows up to 37 tokens, token ids with a gap.
 */
#ifndef QR_EXPORT_FIXTURE_H
#define QR_EXPORT_FIXTURE_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/export.h"

#define EXPORT_LENGTH 37u
#define EXPORT_PAGE 16u
#define EXPORT_BLOCKS 2u
#define EXPORT_MARKS_MAX 64u

struct export_file {
    uint8_t *bytes; /* 64-byte aligned */
    size_t n;
    size_t marks[EXPORT_MARKS_MAX]; /* offset of each record */
    size_t records;
};

static inline void export_model(struct qr_model *model)
{
    memset(model, 0, sizeof(*model));
    strcpy(model->name, "toy");
    strcpy(model->adapter, "none");
    model->layer_count = 3;
    model->rope_count = 1;
    model->ropes[0] = (struct qr_rope){.layout = QR_ROPE_INTERLEAVED,
                                       .rotary_dim = 8,
                                       .attention_factor = 1.0f,
                                       .inv_freq = {1.0f, 0.5f, 0.25f, 0.125f}};
    model->layers[0] = (struct qr_layer){.query_heads = 4,
                                         .kv_heads = 2,
                                         .key_dim = 16,
                                         .value_dim = 24,
                                         .rope_stored = QR_ROPE_PRE,
                                         .sliding_window = 4096};
    model->layers[2] =
        (struct qr_layer){.query_heads = 4, .kv_heads = 4, .key_dim = 16, .value_dim = 16};
    if (qr_model_seal(model, NULL))
        abort();
}

static inline void export_policy(struct qr_policy *policy)
{
    qr_policy_default(policy);
    policy->page_tokens = EXPORT_PAGE;
    policy->window = 4;
    policy->key.group = policy->value.group = 16;
    policy->override_count = 1; /* layer 2 has keys of 8 bits */
    policy->overrides[0] =
        (struct qr_override){.first_layer = 2, .last_layer = 2, .tensors = QR_TENSOR_KEY};
    policy->overrides[0].spec = policy->key;
    policy->overrides[0].spec.bits = 8;
}

static inline size_t export_page(const struct qr_export_walk *walk,
                                 const struct qr_export_record *r, uint8_t *out)
{
    const uint8_t bitmap[QR_PAGE_TOKENS_MAX / 8] = {0x11};
    const struct qr_layer *l = &walk->model.layers[r->layer];
    struct qr_page_sections sections;
    struct qr_page_identity id = {.layer = r->layer,
                                  .first_head = (uint16_t)r->first_head,
                                  .heads = (uint16_t)r->heads,
                                  .key_dim = l->key_dim,
                                  .value_dim = l->value_dim,
                                  .rope_stored = l->rope_stored,
                                  .rope_layout = l->rope_stored ? QR_ROPE_INTERLEAVED : 0,
                                  .page_tokens = EXPORT_PAGE,
                                  .first_position = r->position};

    qr_policy_specs(&walk->policy, r->layer, &id.key, &id.value);
    memcpy(id.fingerprint, walk->head.fingerprint, QR_HASH_BYTES);
    memset(id.block_id, (int)(1 + r->position), QR_HASH_BYTES);
    const size_t n = qr_page_bytes(&id, 2);
    if (qr_page_begin(out, n, &id, bitmap, &sections, NULL))
        abort();
    memset(sections.key_codes, 0x5a + (int)r->lane,
           qr_spec_codes_bytes(&id.key, EXPORT_PAGE, r->heads, l->key_dim));
    memset(sections.key_raw, 0x11, (size_t)2 * r->heads * l->key_dim * 2);
    qr_page_finish(out);
    return n;
}

/* Payload of the record that comes next, padded; fills count and bytes. */
static inline void export_payload(const struct qr_export_walk *walk,
                                  const struct qr_model *model, struct qr_export_record *r,
                                  uint8_t *out)
{
    memset(out, 0, 32768);
    switch (r->type) {
    case QR_EXPORT_MODEL:
        r->bytes = qr_model_pack(model, out);
        break;
    case QR_EXPORT_BLOCK_IDS:
        for (uint32_t i = 0; i < r->count; i++)
            memset(out + (size_t)i * QR_HASH_BYTES, (int)(1 + i * EXPORT_PAGE), QR_HASH_BYTES);
        break;
    case QR_EXPORT_TOKEN_IDS:
        for (uint32_t i = 0; i < r->count; i++) {
            out[i * 4] = i == 2 ? 0 : (uint8_t)(100 + i);
            out[r->count * 4 + i / 8] |= (uint8_t)((i != 2) << (i % 8));
        }
        break;
    case QR_EXPORT_PAGE:
        r->count = EXPORT_PAGE;
        r->bytes = export_page(walk, r, out);
        break;
    case QR_EXPORT_ROWS:
        r->count = EXPORT_PAGE - (uint32_t)r->position % EXPORT_PAGE;
        if (r->count > EXPORT_LENGTH - r->position)
            r->count = (uint32_t)(EXPORT_LENGTH - r->position);
        r->bytes = r->count * qr_export_row_bytes(walk, r);
        memset(out, 0x30 + (int)r->lane, r->bytes);
        break;
    case QR_EXPORT_END:
        qr_export_end_fill(walk, (struct qr_export_end *)(void *)out);
        break;
    }
}

/* One lane has sealed one block less than the others. */
static inline bool export_is_rows(const struct qr_export_record *r)
{
    return r->lane == 3 && r->position >= EXPORT_PAGE;
}

/* All of it into file->bytes, which is large enough. */
static inline void export_write(struct export_file *file, uint64_t file_bytes)
{
    static struct qr_export_walk walk;
    struct qr_export_head head = {.length = EXPORT_LENGTH,
                                  .file_bytes = file_bytes,
                                  .ttl_ms = 123456789,
                                  .head_shards = 2,
                                  .block_count = EXPORT_BLOCKS,
                                  .chained = 1,
                                  .token_count = EXPORT_LENGTH - EXPORT_BLOCKS * EXPORT_PAGE};
    struct qr_model model;
    struct qr_policy policy;
    struct qr_export_record r;

    export_model(&model);
    export_policy(&policy);
    memset(head.file_id, 7, sizeof(head.file_id));
    memcpy(head.fingerprint, model.fingerprint, QR_HASH_BYTES);
    qr_export_head_finish(&head, "chat/1", &policy);
    memcpy(file->bytes, &head, sizeof(head));
    if (qr_export_begin(&walk, &head, NULL))
        abort();
    file->records = 0;
    while (qr_export_next(&walk, &r)) {
        uint8_t *mark = file->bytes + walk.offset;
        if (export_is_rows(&r))
            r.type = QR_EXPORT_ROWS;
        export_payload(&walk, &model, &r, mark + 64);
        if (r.type == QR_EXPORT_END && file_bytes == 1u << 20) /* the first time: to measure */
            break;
        file->marks[file->records++] = walk.offset;
        if (qr_export_seal(&walk, &r, mark + 64, (struct qr_export_mark *)(void *)mark, NULL))
            abort();
    }
    file->n = (size_t)walk.offset;
}

static inline void export_make(struct export_file *file)
{
    file->bytes = aligned_alloc(64, 1u << 20);
    if (!file->bytes)
        abort();
    memset(file->bytes, 0, 1u << 20);
    export_write(file, 1u << 20);
    export_write(file, file->n + 128);
}

#endif
