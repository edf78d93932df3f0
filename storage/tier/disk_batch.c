/* SPDX-License-Identifier: Apache-2.0
 *
 * A batch: changes to the index one after the other in a growing buffer, so that
 * several callers' batches can be written as one.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "disk_record.h"

#define HEAD_BYTES 9u
#define START_BYTES 4096u

static uint8_t *room(struct qr_disk_batch *batch, size_t bytes)
{
    if (batch->failed || bytes > QR_DISK_BATCH_MAX - batch->n) {
        batch->failed = true;
        return NULL;
    }
    if (batch->n + bytes > batch->capacity) {
        size_t capacity = batch->capacity ? batch->capacity : START_BYTES;
        while (capacity < batch->n + bytes)
            capacity *= 2;
        uint8_t *grown = realloc(batch->bytes, capacity);
        if (!grown) {
            batch->failed = true;
            return NULL;
        }
        batch->bytes = grown;
        batch->capacity = capacity;
    }
    uint8_t *at = batch->bytes + batch->n;
    batch->n += bytes;
    return at;
}

static void add(struct qr_disk_batch *batch, uint8_t kind, const struct qr_disk_key *key,
                const void *value, size_t value_bytes)
{
    assert(key->n > 0 && key->n <= QR_DISK_KEY_MAX);
    if (value_bytes > QR_DISK_BATCH_MAX) {
        batch->failed = true;
        return;
    }
    const uint32_t sizes[2] = {key->n, (uint32_t)value_bytes};
    uint8_t *at = room(batch, HEAD_BYTES + key->n + value_bytes);
    if (!at)
        return;
    at[0] = kind;
    memcpy(at + 1, sizes, sizeof(sizes));
    memcpy(at + HEAD_BYTES, key->bytes, key->n);
    if (value_bytes > 0)
        memcpy(at + HEAD_BYTES + key->n, value, value_bytes);
    batch->count++;
}

void qr_disk_batch_put(struct qr_disk_batch *batch, const struct qr_disk_key *key,
                       const void *value, size_t value_bytes)
{
    add(batch, 1, key, value, value_bytes);
}

void qr_disk_batch_delete(struct qr_disk_batch *batch, const struct qr_disk_key *key)
{
    add(batch, 0, key, NULL, 0);
}

void qr_disk_batch_clear(struct qr_disk_batch *batch)
{
    batch->n = 0;
    batch->count = 0;
    batch->failed = false;
}

void qr_disk_batch_free(struct qr_disk_batch *batch)
{
    free(batch->bytes);
    *batch = (struct qr_disk_batch){0};
}

bool qr_disk_batch_next(const struct qr_disk_batch *batch, size_t *at,
                        struct qr_disk_change *out)
{
    uint32_t sizes[2];

    if (*at >= batch->n)
        return false;
    const uint8_t *head = batch->bytes + *at;
    memcpy(sizes, head + 1, sizeof(sizes));
    *out = (struct qr_disk_change){.put = head[0] == 1,
                                   .key = head + HEAD_BYTES,
                                   .value = head + HEAD_BYTES + sizes[0],
                                   .key_bytes = sizes[0],
                                   .value_bytes = sizes[1]};
    *at += HEAD_BYTES + sizes[0] + sizes[1];
    return true;
}
