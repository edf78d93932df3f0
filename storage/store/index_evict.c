/* SPDX-License-Identifier: Apache-2.0
 *
 * Making room. Pages of one size replace each other one by one; for another
 * size a whole region must become free, since slots of different sizes cannot
 * share one.
 */
#include "index_impl.h"

#include <assert.h>

/* Evictions for one reserve: bound the time under the lock. */
#define PICKS_MAX 4096u
#define REGIONS_MAX 256u
#define SINGLES_MAX 256u

uint64_t qr_index_chunk_bytes(struct qr_index *index)
{
    return atomic_load(&index->row_bytes);
}

void *qr_index_map(struct qr_index *index, const struct qr_slot *slot)
{
    struct qr_tier *tier = index->config.tier;
    return tier->ops->map(tier, slot);
}

void qr_index_release(struct qr_index *index, struct qr_slot *slot)
{
    struct qr_tier *tier = index->config.tier;
    tier->ops->release(tier, slot);
}

void qr_index_drop_bytes(struct qr_index *index, uint32_t number)
{
    struct qr_entry *entry = qr_index_entry(index, number);
    struct qr_slot slot = entry->slot;

    assert(entry->node.pins == 0 && slot.bytes > 0);
    qr_evict_unlink(index->evict, number, slot.bytes);
    entry->node.doomed = 0;
    if (entry->node.dirty)
        atomic_fetch_sub(&index->dirty_bytes, slot.bytes);
    entry->node.dirty = 0;
    if (entry->region_previous != QR_ENTRY_NONE)
        qr_index_entry(index, entry->region_previous)->region_next = entry->region_next;
    else
        index->region_first[slot.region] = entry->region_next;
    if (entry->region_next != QR_ENTRY_NONE)
        qr_index_entry(index, entry->region_next)->region_previous = entry->region_previous;
    const uint64_t tag = entry->node.rows ? 0 : index->config.tag(qr_index_map(index, &slot));
    entry->slot.region = (uint32_t)(tag >> 32);
    entry->slot.number = (uint32_t)tag;
    entry->node.tagged = 1;
    __atomic_store_n(&entry->slot.bytes, 0, __ATOMIC_RELAXED);
    index->stat.resident -= !entry->node.rows;
    if (entry->node.rows)
        atomic_fetch_sub(&index->row_bytes, slot.bytes);
    qr_index_release(index, &slot);
}

static void evict(struct qr_index *index, uint32_t number)
{
    struct qr_counters *counters = index->config.counters;
    const bool rows = qr_index_entry(index, number)->node.rows;

    qr_index_drop_bytes(index, number);
    qr_counter_add(rows ? &counters->tails_evicted : &counters->pages_evicted, 1);
}

static void evict_region(struct qr_index *index, uint32_t region)
{
    uint32_t number = index->region_first[region];

    qr_counter_add(&index->config.counters->regions_evicted, 1);
    while (number != QR_ENTRY_NONE) {
        const struct qr_entry *entry = qr_index_entry(index, number);
        const uint32_t next = entry->region_next;
        evict(index, number);
        number = next;
    }
}

static bool region_is_free_to_go(const struct qr_index *index, uint32_t region)
{
    uint32_t number = index->region_first[region];

    if (number == QR_ENTRY_NONE)
        return false;
    for (; number != QR_ENTRY_NONE; number = qr_index_entry(index, number)->region_next) {
        const struct qr_evict_node *node = &qr_index_entry(index, number)->node;
        if (node->pins > 0 || !node->linked)
            return false;
    }
    return true;
}

/* The first region from `from` on without parts that are read or held. */
static bool evict_some_region(struct qr_index *index, uint32_t from)
{
    const uint32_t regions = index->config.tier->regions_max;

    for (uint32_t i = 0; i < regions; i++) {
        const uint32_t region = (from + i) % regions;
        if (region_is_free_to_go(index, region)) {
            evict_region(index, region);
            return true;
        }
    }
    return false;
}

/* What one reserve may still evict in vain. */
struct room {
    size_t rounded;
    uint32_t regions_left, singles_left;
};

/* The victim has another size, so all of a region must go: its own, if nothing there is read or
 * held. Otherwise a tail goes alone, since the rest of its session, of a size that serves, is
 * next; pages are worth more than that, so another region goes. */
static bool empty_a_region(struct qr_index *index, uint32_t victim, struct room *room)
{
    const struct qr_entry *entry = qr_index_entry(index, victim);
    const uint32_t region = entry->slot.region;
    const bool alone = entry->node.rows && room->singles_left > 0;

    if (room->regions_left > 0 && (!alone || region_is_free_to_go(index, region)) &&
        evict_some_region(index, region)) {
        room->regions_left--;
        return true;
    }
    if (room->singles_left == 0)
        return false;
    room->singles_left--;
    evict(index, victim);
    return true;
}

/* false: nothing can be evicted. */
static bool make_room(struct qr_index *index, struct room *room)
{
    struct qr_tier *tier = index->config.tier;
    const uint32_t victim = qr_evict_pick(index->evict);

    if (victim == QR_EVICT_NONE)
        return false;
    if (tier->ops->rounded(tier, qr_index_entry(index, victim)->slot.bytes) != room->rounded)
        return empty_a_region(index, victim, room);
    evict(index, victim);
    return true;
}

quire_status qr_index_reserve(struct qr_index *index, size_t bytes, struct qr_slot *out,
                              struct qr_error *e)
{
    struct qr_tier *tier = index->config.tier;
    quire_status status = tier->ops->reserve(tier, bytes, out);
    struct room room = {.regions_left = REGIONS_MAX, .singles_left = SINGLES_MAX};
    uint64_t left = 0;

    if (status == QUIRE_EFULL) {
        room.rounded = tier->ops->rounded(tier, bytes);
        pthread_mutex_lock(&index->lock);
        for (uint32_t i = 0; i < PICKS_MAX && status == QUIRE_EFULL; i++) {
            if (!make_room(index, &room))
                break;
            status = tier->ops->reserve(tier, bytes, out);
        }
        left = index->stat.resident;
        pthread_mutex_unlock(&index->lock);
    }
    if (status == QUIRE_OK)
        return status;
    struct qr_tier_stat stat;
    tier->ops->stat(tier, &stat);
    if (status != QUIRE_EFULL)
        return qr_error_set(e, status, "%zu bytes never fit the budget of %llu", bytes,
                            (unsigned long long)stat.budget_bytes);
    qr_counter_add(&index->config.counters->reserve_full, 1);
    qr_error_set(
        e, status,
        "no room for %zu bytes: %llu of %llu bytes are held by tails of leased sessions "
        "and %llu pages that cannot be evicted now",
        bytes, (unsigned long long)stat.reserved_bytes, (unsigned long long)stat.budget_bytes,
        (unsigned long long)left);
    if (e)
        e->retry_after_ms = left > 0 ? QR_RETRY_PINNED_MS : QR_RETRY_FULL_MS;
    return status;
}

uint32_t qr_index_group_open(struct qr_index *index)
{
    pthread_mutex_lock(&index->lock);
    const uint32_t group = qr_evict_group_open(index->evict);
    pthread_mutex_unlock(&index->lock);
    return group;
}

void qr_index_group_close(struct qr_index *index, uint32_t group)
{
    pthread_mutex_lock(&index->lock);
    qr_evict_group_close(index->evict, group);
    pthread_mutex_unlock(&index->lock);
}
