/* SPDX-License-Identifier: Apache-2.0
 *
 * Entries, look-up, references and pins. Eviction is in index_evict.c.
 *
 * Life of an entry, under `lock`:
 *
 *   find -> EVICTED (no bytes) -- publish --> RESIDENT -- evict, last pin of a damaged one -->
 * EVICTED last reference gone -> freed; a pin keeps the bytes and the entry until it is gone as
 * well
 *
 * Invariants:
 *  1. slot.bytes > 0 exactly when the entry owns a slot; the entry is linked for eviction
 * exactly when it owns a slot, is not doomed, and is not tail rows that somebody holds;
 *  2. an entry of a page is in its hash chain exactly when refs + pins > 0 (pins alone keep a
 * dropped page); tail rows have no id and are in none;
 *  3. bytes are given back only when pins == 0;
 *  4. an entry whose bytes went keeps their tag in slot.region and slot.number.
 */
#include "index_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SEGMENT                                                                                \
    QR_INDEX_SEGMENT /* entries made at a time; never moved, so numbers map without a lock */

struct qr_entry *qr_index_entry(const struct qr_index *index, uint32_t number)
{
    return &index->segments[number / SEGMENT][number % SEGMENT];
}

struct qr_stored *qr_index_stored_of(const struct qr_index *index, uint32_t number)
{
    return index->stored ? &index->stored[number / SEGMENT][number % SEGMENT] : NULL;
}

static struct qr_evict_node *node_of(void *arg, uint32_t page)
{
    return &qr_index_entry(arg, page)->node;
}

size_t qr_index_entry_bytes(void)
{
    /* The table has one 4-byte bucket for two entries. */
    return sizeof(struct qr_entry) + sizeof(uint32_t) / 2;
}

quire_status qr_index_create(const struct qr_index_config *config, struct qr_index **out,
                             struct qr_error *e)
{
    struct qr_index *index = calloc(1, sizeof(*index));

    if (!index)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the page index");
    index->config = *config;
    pthread_mutex_init(&index->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&index->arrived, &monotonic);
    pthread_condattr_destroy(&monotonic);
    index->free = QR_ENTRY_NONE;
    index->buckets_mask = 1023;
    while ((uint64_t)(index->buckets_mask + 1) * 2 < config->entries_max)
        index->buckets_mask = index->buckets_mask * 2 + 1;
    /* Untouched zero pages cost nothing: buckets hold number + 1, 0 = empty. */
    index->buckets = calloc((size_t)index->buckets_mask + 1, sizeof(*index->buckets));
    index->segments = calloc(config->entries_max / SEGMENT + 1, sizeof(*index->segments));
    if (config->disk)
        index->stored = calloc(config->entries_max / SEGMENT + 1, sizeof(*index->stored));
    index->region_first = calloc(config->tier->regions_max, sizeof(*index->region_first));
    index->evict = qr_evict_create(&(struct qr_evict_config){
        .node = node_of, .arg = index, .groups_max = config->groups_max});
    if (!index->buckets || !index->segments || (config->disk && !index->stored) ||
        !index->region_first || !index->evict) {
        qr_index_destroy(&index);
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for a page index of %u entries",
                            config->entries_max);
    }
    for (uint32_t r = 0; r < config->tier->regions_max; r++)
        index->region_first[r] = QR_ENTRY_NONE;
    index->spare_group = config->disk ? qr_evict_group_open(index->evict) : QR_EVICT_NONE;
    *out = index;
    return QUIRE_OK;
}

void qr_index_destroy(struct qr_index **index)
{
    struct qr_index *x = *index;

    if (!x)
        return;
    assert(x->stat.entries == 0 && x->stat.rows == 0);
    for (uint32_t s = 0; x->segments && s * SEGMENT < x->made; s++)
        free(x->segments[s]);
    for (uint32_t s = 0; x->stored && s * SEGMENT < x->made; s++)
        free(x->stored[s]);
    free(x->stored);
    free(x->segments);
    free(x->buckets);
    free(x->region_first);
    qr_evict_destroy(&x->evict);
    pthread_cond_destroy(&x->arrived);
    pthread_mutex_destroy(&x->lock);
    free(x);
    *index = NULL;
}

/* Ids are hashes already: any 4 bytes will do. */
static uint32_t *bucket_of(struct qr_index *index, const uint8_t id[QR_HASH_BYTES])
{
    uint32_t hash;

    memcpy(&hash, id, sizeof(hash));
    return &index->buckets[hash & index->buckets_mask];
}

static uint32_t lookup(struct qr_index *index, const uint8_t id[QR_HASH_BYTES])
{
    uint32_t number = *bucket_of(index, id) - 1;

    while (number != QR_ENTRY_NONE) {
        const struct qr_entry *entry = qr_index_entry(index, number);
        if (memcmp(entry->id, id, QR_HASH_BYTES) == 0)
            return number;
        number = entry->hash_next;
    }
    return QR_ENTRY_NONE;
}

static bool grow(struct qr_index *index)
{
    const uint32_t segment = index->made / SEGMENT;
    const uint64_t bytes = SEGMENT * ((uint64_t)qr_index_entry_bytes() +
                                      (index->stored ? sizeof(struct qr_stored) : 0));

    if (index->config.entries_max - index->made < SEGMENT ||
        !qr_meta_take(index->config.meta, bytes))
        return false;
    index->segments[segment] = calloc(SEGMENT, sizeof(struct qr_entry));
    if (index->stored)
        index->stored[segment] = calloc(SEGMENT, sizeof(struct qr_stored));
    if (!index->segments[segment] || (index->stored && !index->stored[segment])) {
        free(index->segments[segment]);
        qr_meta_give(index->config.meta, bytes);
        return false;
    }
    index->made += SEGMENT;
    for (uint32_t i = 0; i < SEGMENT; i++) {
        index->segments[segment][SEGMENT - 1 - i].hash_next = index->free;
        index->free = index->made - 1 - i;
    }
    return true;
}

uint32_t qr_index_entry_take(struct qr_index *index)
{
    if (index->free == QR_ENTRY_NONE && !grow(index))
        return QR_ENTRY_NONE;
    const uint32_t number = index->free;
    struct qr_entry *entry = qr_index_entry(index, number);
    index->free = entry->hash_next;
    memset(entry, 0, sizeof(*entry));
    if (index->stored)
        *qr_index_stored_of(index, number) = (struct qr_stored){0};
    return number;
}

static void entry_give(struct qr_index *index, uint32_t number)
{
    qr_index_entry(index, number)->hash_next = index->free;
    index->free = number;
}

static uint32_t entry_make(struct qr_index *index, const uint8_t id[QR_HASH_BYTES])
{
    const uint32_t number = qr_index_entry_take(index);

    if (number == QR_ENTRY_NONE)
        return number;
    struct qr_entry *entry = qr_index_entry(index, number);
    uint32_t *bucket = bucket_of(index, id);
    memcpy(entry->id, id, QR_HASH_BYTES);
    entry->hash_next = *bucket - 1;
    *bucket = number + 1;
    index->stat.entries++;
    return number;
}

static void unchain(struct qr_index *index, uint32_t number)
{
    struct qr_entry *entry = qr_index_entry(index, number);
    uint32_t *bucket = bucket_of(index, entry->id);

    if (entry->node.rows) {
        index->stat.rows--;
        entry_give(index, number);
        return;
    }
    if (*bucket == number + 1) {
        *bucket = entry->hash_next + 1;
    } else {
        struct qr_entry *before = qr_index_entry(index, *bucket - 1);
        while (before->hash_next != number)
            before = qr_index_entry(index, before->hash_next);
        before->hash_next = entry->hash_next;
    }
}

void qr_index_rename(struct qr_index *index, uint32_t number, const uint8_t id[QR_HASH_BYTES])
{
    struct qr_entry *entry = qr_index_entry(index, number);
    uint32_t *bucket = bucket_of(index, id);

    pthread_mutex_lock(&index->lock);
    unchain(index, number);
    memcpy(entry->id, id, QR_HASH_BYTES);
    entry->hash_next = *bucket - 1;
    *bucket = number + 1;
    pthread_mutex_unlock(&index->lock);
}

static void entry_free(struct qr_index *index, uint32_t number)
{
    if (qr_index_entry(index, number)->node.rows) {
        index->stat.rows--;
        entry_give(index, number);
        return;
    }
    if (index->stored)
        qr_index_forget_stored(index, number);
    unchain(index, number);
    index->stat.entries--;
    entry_give(index, number);
}

uint32_t qr_index_lookup(struct qr_index *index, const uint8_t id[QR_HASH_BYTES], bool make)
{
    const uint32_t number = lookup(index, id);

    return number == QR_ENTRY_NONE && make ? entry_make(index, id) : number;
}

void qr_index_settle(struct qr_index *index, uint32_t number)
{
    struct qr_entry *entry = qr_index_entry(index, number);

    if (entry->node.pins > 0)
        return;
    if (entry->slot.bytes > 0 && (entry->refs == 0 || entry->node.doomed))
        qr_index_drop_bytes(index, number);
    if (entry->refs == 0)
        entry_free(index, number);
}

enum qr_page_state qr_index_state(const struct qr_index *index, uint32_t number)
{
    const struct qr_entry *entry = qr_index_entry(index, number);

    if (entry->slot.bytes > 0 && !entry->node.doomed)
        return QR_PAGE_RESIDENT;
    if (entry->node.damaged)
        return QR_PAGE_DAMAGED;
    return index->stored && qr_index_stored_of(index, number)->bytes > 0 ? QR_PAGE_STORED
                                                                         : QR_PAGE_EVICTED;
}

static enum qr_page_state pin_locked(struct qr_index *index, uint32_t number,
                                     struct qr_pinned *out)
{
    struct qr_entry *entry = qr_index_entry(index, number);
    const enum qr_page_state state = qr_index_state(index, number);

    if (state == QR_PAGE_RESIDENT) {
        entry->node.pins++;
        out->bytes = qr_index_map(index, &entry->slot);
        out->n = entry->slot.bytes;
    }
    return state;
}

quire_status qr_index_full(const struct qr_index *index, struct qr_error *e)
{
    qr_error_set(e, QUIRE_EFULL,
                 "page index is full (%u pages known): drop sessions, or raise the budget",
                 index->made);
    if (e)
        e->retry_after_ms = QR_RETRY_FULL_MS;
    return QUIRE_EFULL;
}

quire_status qr_index_find(struct qr_index *index, const uint8_t id[QR_HASH_BYTES],
                           uint32_t *entry_out, enum qr_page_state *state_out,
                           struct qr_pinned *out, struct qr_error *e)
{
    pthread_mutex_lock(&index->lock);
    const uint32_t number = qr_index_lookup(index, id, true);
    if (number == QR_ENTRY_NONE) {
        pthread_mutex_unlock(&index->lock);
        return qr_index_full(index, e);
    }
    struct qr_entry *entry = qr_index_entry(index, number);
    entry->refs++;
    *entry_out = number;
    *state_out = pin_locked(index, number, out);
    pthread_mutex_unlock(&index->lock);
    return QUIRE_OK;
}

void qr_index_take_slot(struct qr_index *index, uint32_t number, const struct qr_slot *slot)
{
    struct qr_entry *entry = qr_index_entry(index, number);
    uint32_t *first = &index->region_first[slot->region];

    entry->slot.region = slot->region;
    entry->slot.number = slot->number;
    __atomic_store_n(&entry->slot.bytes, slot->bytes, __ATOMIC_RELAXED);
    entry->region_previous = QR_ENTRY_NONE;
    entry->region_next = *first;
    if (*first != QR_ENTRY_NONE)
        qr_index_entry(index, *first)->region_previous = number;
    *first = number;
}

/* A dirty page stands for eviction once it is clean. */
static void set_dirty(struct qr_index *index, uint32_t number)
{
    struct qr_entry *entry = qr_index_entry(index, number);

    entry->node.dirty = 1;
    atomic_fetch_add(&index->dirty_bytes, entry->slot.bytes);
}

void qr_index_take(struct qr_index *index, uint32_t number, const struct qr_slot *slot,
                   const struct qr_place *place)
{
    struct qr_entry *entry = qr_index_entry(index, number);

    qr_index_take_slot(index, number, slot);
    index->stat.resident++;
    if (!index->stored || qr_index_stored_of(index, number)->bytes > 0) {
        qr_evict_link(index->evict, number, place->group, place->order, slot->bytes,
                      place->hint);
        return;
    }
    entry->node.group = place->group;
    entry->node.order = place->order & QR_EVICT_ORDER_MAX;
    set_dirty(index, number);
}

void qr_index_mark(struct qr_index *index, uint32_t number)
{
    struct qr_entry *entry = qr_index_entry(index, number);
    struct qr_evict_node *node = &entry->node;
    const bool dirty = qr_index_stored_of(index, number)->bytes == 0;

    if (entry->slot.bytes == 0 || node->doomed || dirty == node->dirty)
        return;
    if (dirty) {
        qr_evict_unlink(index->evict, number, entry->slot.bytes);
        set_dirty(index, number);
        return;
    }
    node->dirty = 0;
    atomic_fetch_sub(&index->dirty_bytes, entry->slot.bytes);
    /* Its session may be gone while others share the page. */
    const uint32_t group =
        qr_evict_group_is_open(index->evict, node->group) ? node->group : index->spare_group;
    qr_evict_link(index->evict, number, group, node->order, entry->slot.bytes, QR_ENTRY_NONE);
}

enum qr_publish qr_index_publish(struct qr_index *index, uint32_t number,
                                 const struct qr_slot *slot, const struct qr_place *place)
{
    struct qr_entry *entry = qr_index_entry(index, number);
    const uint64_t tag = index->config.tag(qr_index_map(index, slot));
    enum qr_publish result = QR_PUBLISH_DONE;

    pthread_mutex_lock(&index->lock);
    if (entry->slot.bytes > 0)
        result = QR_PUBLISH_TAKEN;
    else if (entry->node.damaged || (entry->node.tagged && qr_index_tag(entry) != tag))
        result = QR_PUBLISH_DIFFERS;
    if (result == QR_PUBLISH_DONE)
        qr_index_take(index, number, slot, place);
    pthread_mutex_unlock(&index->lock);
    return result;
}

enum qr_page_state qr_index_pin(struct qr_index *index, uint32_t number, struct qr_pinned *out)
{
    struct qr_entry *entry = qr_index_entry(index, number);

    pthread_mutex_lock(&index->lock);
    const enum qr_page_state state = pin_locked(index, number, out);
    if (state == QR_PAGE_RESIDENT)
        qr_evict_read(&entry->node);
    pthread_mutex_unlock(&index->lock);
    return state;
}

void qr_index_unpin(struct qr_index *index, uint32_t number)
{
    pthread_mutex_lock(&index->lock);
    struct qr_entry *entry = qr_index_entry(index, number);
    assert(entry->node.pins > 0);
    entry->node.pins--;
    qr_index_settle(index, number);
    pthread_mutex_unlock(&index->lock);
}

bool qr_index_quarantine(struct qr_index *index, uint32_t number)
{
    struct qr_entry *entry = qr_index_entry(index, number);
    bool other = false;

    pthread_mutex_lock(&index->lock);
    assert(entry->node.pins > 0);
    if (!entry->node.doomed) {
        qr_evict_unlink(index->evict, number, entry->slot.bytes);
        entry->node.doomed = 1;
        other = qr_index_try_stored(index, number);
        entry->node.damaged = !other;
        qr_counter_add(&index->config.counters->pages_corrupt, 1);
    }
    pthread_mutex_unlock(&index->lock);
    return other;
}

void qr_index_ref(struct qr_index *index, const uint32_t *entries, size_t n)
{
    pthread_mutex_lock(&index->lock);
    for (size_t i = 0; i < n; i++)
        qr_index_entry(index, entries[i])->refs++;
    pthread_mutex_unlock(&index->lock);
}

void qr_index_unref(struct qr_index *index, const uint32_t *entries, size_t n)
{
    pthread_mutex_lock(&index->lock);
    for (size_t i = 0; i < n; i++) {
        struct qr_entry *entry = qr_index_entry(index, entries[i]);
        assert(entry->refs > 0);
        entry->refs--;
        qr_index_settle(index, entries[i]);
    }
    pthread_mutex_unlock(&index->lock);
}

uint32_t qr_index_bytes(struct qr_index *index, uint32_t entry)
{
    const uint32_t bytes =
        __atomic_load_n(&qr_index_entry(index, entry)->slot.bytes, __ATOMIC_RELAXED);

    if (bytes > 0 || !index->stored)
        return bytes;
    return __atomic_load_n(&qr_index_stored_of(index, entry)->bytes, __ATOMIC_RELAXED);
}

void qr_index_id(struct qr_index *index, uint32_t entry, uint8_t out[QR_HASH_BYTES])
{
    memcpy(out, qr_index_entry(index, entry)->id, QR_HASH_BYTES); /* const while referred to */
}

void qr_index_stat(struct qr_index *index, struct qr_index_stat *out)
{
    pthread_mutex_lock(&index->lock);
    *out = index->stat;
    pthread_mutex_unlock(&index->lock);
}
