/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages that the disk has: entries made from manifests, reads into host memory,
 * writes, and how many manifests on disk name a page. See index.c for entries.
 *
 *   resident, dirty -- write --> resident and stored -- evict --> stored -- read --> resident
 * and stored ...
 *
 * Invariants:
 *  1. stored.bytes > 0 exactly when the entry knows a place on disk with its whole page;
 *  2. such a place is freed only by a commit that deletes its record, or here when there was
 * none;
 *  3. a page that no other tier has is dirty, and stays in host memory until it is written;
 *  4. `reading` holds a reference, so the entry outlives its read.
 */
#include "index_impl.h"

#include <assert.h>
#include <string.h>

#include "storage/base/clock.h"
#include "storage/base/random.h"

static void set_place(struct qr_stored *stored, const struct qr_slot *slot)
{
    stored->region = slot->region;
    stored->number = slot->number;
    __atomic_store_n(&stored->bytes, slot->bytes, __ATOMIC_RELAXED);
}

static struct qr_slot place_of(const struct qr_stored *stored)
{
    return (struct qr_slot){
        .region = stored->region, .number = stored->number, .bytes = stored->bytes};
}

static uint64_t tag_of(struct qr_index *index, const struct qr_entry *entry)
{
    return entry->slot.bytes > 0 ? index->config.tag(qr_index_map(index, &entry->slot))
                                 : qr_index_tag(entry);
}

void qr_index_forget_stored(struct qr_index *index, uint32_t number)
{
    struct qr_stored *stored = qr_index_stored_of(index, number);
    struct qr_slot slot = place_of(stored);

    assert(!stored->writing && !stored->reading);
    if (stored->bytes > 0 && !stored->recorded && !stored->borrowed)
        index->config.disk->ops->release(index->config.disk, &slot);
    else if (stored->bytes > 0 && stored->recorded && stored->counted && stored->named == 0)
        index->config.orphaned(index->config.arg, qr_index_entry(index, number)->id);
}

bool qr_index_try_stored(struct qr_index *index, uint32_t number)
{
    struct qr_stored *stored = qr_index_stored_of(index, number);

    if (!stored || stored->bytes == 0 || stored->suspect)
        return false;
    stored->suspect = 1;
    return true;
}

/* ---- adopting ---------------------------------------------------------------------------- */

/* Whether an entry of this id has, or had, the adopted page's bytes. */
static bool is_same(struct qr_index *index, uint32_t number, const struct qr_adopted *page)
{
    const struct qr_entry *entry = qr_index_entry(index, number);
    const struct qr_stored *stored = qr_index_stored_of(index, number);

    if (stored->bytes > 0 && !stored->borrowed)
        return stored->region == page->slot.region && stored->number == page->slot.number;
    if (stored->writing || stored->erased)
        return false;
    if (entry->slot.bytes == 0 && !entry->node.tagged)
        return true; /* nothing is known of it */
    return tag_of(index, entry) == page->tag;
}

static void note_stored(struct qr_index *index, uint32_t number, const struct qr_adopted *page,
                        bool borrowed)
{
    struct qr_entry *entry = qr_index_entry(index, number);
    struct qr_stored *stored = qr_index_stored_of(index, number);

    if (entry->slot.bytes == 0 && !entry->node.tagged) {
        entry->slot.region = (uint32_t)(page->tag >> 32);
        entry->slot.number = (uint32_t)page->tag;
        entry->node.tagged = 1;
    }
    if (page->slot.bytes == 0 || stored->bytes > 0)
        return;
    set_place(stored, &page->slot);
    stored->borrowed = borrowed;
    stored->recorded = !borrowed;
    qr_index_mark(index, number);
}

static uint32_t adopt_one(struct qr_index *index, const struct qr_adopted *page)
{
    uint32_t number = qr_index_lookup(index, page->id, true);
    const bool same = number != QR_ENTRY_NONE && is_same(index, number, page);

    if (number != QR_ENTRY_NONE && !same) {
        /* Another session appended other values under this id while the disk's were not known
         * here: the stored page gets an entry of its own. */
        uint8_t id[QR_HASH_BYTES];
        number = qr_random_fill(id, sizeof(id), NULL) == QUIRE_OK
                     ? qr_index_lookup(index, id, true)
                     : QR_ENTRY_NONE;
    }
    if (number == QR_ENTRY_NONE)
        return number;
    qr_index_entry(index, number)->refs++;
    note_stored(index, number, page, !same);
    return number;
}

quire_status qr_index_adopt(struct qr_index *index, const struct qr_adopted *pages, size_t n,
                            uint32_t *entries_out, struct qr_error *e)
{
    size_t made = 0;

    pthread_mutex_lock(&index->lock);
    for (; made < n; made++) {
        entries_out[made] = adopt_one(index, &pages[made]);
        if (entries_out[made] == QR_ENTRY_NONE)
            break;
    }
    pthread_mutex_unlock(&index->lock);
    if (made == n)
        return QUIRE_OK;
    qr_index_unref(index, entries_out, made);
    qr_error_set(e, QUIRE_EFULL,
                 "page index is full (%u pages known): drop sessions, or raise the budget",
                 index->made);
    if (e)
        e->retry_after_ms = QR_RETRY_FULL_MS;
    return QUIRE_EFULL;
}

/* ---- reading ------------------------------------------------------------------------------
 */

/* The look that the page was read for does not count as a read: what is looked at once goes
 * first. */
static void note_look(struct qr_index *index, struct qr_entry *entry, struct qr_stored *stored)
{
    if (stored && stored->fresh) {
        stored->fresh = 0;
        qr_counter_add(&index->config.counters->memory_misses, 1);
        return;
    }
    qr_evict_read(&entry->node);
    if (stored)
        qr_counter_add(&index->config.counters->memory_hits, 1);
}

enum qr_want qr_index_want(struct qr_index *index, uint32_t number, bool look,
                           struct qr_pinned *out, struct qr_slot *disk_out)
{
    struct qr_entry *entry = qr_index_entry(index, number);
    enum qr_want want = QR_WANT_GONE;

    pthread_mutex_lock(&index->lock);
    struct qr_stored *stored = qr_index_stored_of(index, number);
    const enum qr_page_state state = qr_index_state(index, number);
    if (state == QR_PAGE_RESIDENT) {
        want = QR_WANT_RESIDENT;
        if (look)
            note_look(index, entry, stored);
        out->bytes = qr_index_map(index, &entry->slot);
        out->n = entry->slot.bytes;
    } else if (state == QR_PAGE_DAMAGED || (stored && stored->unreadable)) {
        want = QR_WANT_DAMAGED;
        if (stored)
            stored->unreadable = 0;
    } else if (state != QR_PAGE_STORED || !stored) {
        want = QR_WANT_GONE;
    } else if (stored->reading) {
        want = QR_WANT_READING;
    } else if (entry->slot.bytes > 0) {
        want = QR_WANT_DAMAGED; /* a damaged copy is still being looked at: try later */
    } else {
        want = QR_WANT_READ;
        stored->reading = 1;
        entry->refs++;
        *disk_out = place_of(stored);
    }
    if (want <= QR_WANT_READ)
        entry->node.pins++;
    pthread_mutex_unlock(&index->lock);
    return want;
}

void qr_index_read_end(struct qr_index *index, uint32_t number, const struct qr_slot *host,
                       const struct qr_place *place, bool busy)
{
    pthread_mutex_lock(&index->lock);
    struct qr_entry *entry = qr_index_entry(index, number);
    struct qr_stored *stored = qr_index_stored_of(index, number);
    assert(stored->reading && entry->refs > 0);
    stored->reading = 0;
    bool taken = false;
    if (host && entry->slot.bytes == 0 && !entry->node.damaged &&
        qr_evict_group_is_open(index->evict, place->group)) {
        qr_index_take(index, number, host, place);
        stored->fresh = 1;
        taken = true;
    } else if (!host && !busy) {
        stored->unreadable = 1;
    }
    entry->refs--;
    qr_index_settle(index, number);
    pthread_cond_broadcast(&index->arrived);
    pthread_mutex_unlock(&index->lock);
    if (host && !taken) { /* an append brought it meanwhile */
        struct qr_slot slot = *host;
        qr_index_release(index, &slot);
    }
}

bool qr_index_read_wait(struct qr_index *index, uint32_t number, uint32_t timeout_ms)
{
    const uint64_t until_ns = qr_clock_ns() + timeout_ms * UINT64_C(1000000);
    const struct timespec at = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                .tv_nsec = (long)(until_ns % 1000000000u)};
    int error = 0;

    pthread_mutex_lock(&index->lock);
    while (qr_index_stored_of(index, number)->reading && error == 0)
        error = pthread_cond_timedwait(&index->arrived, &index->lock, &at);
    const bool came = !qr_index_stored_of(index, number)->reading;
    pthread_mutex_unlock(&index->lock);
    return came;
}

bool qr_index_is_reading(struct qr_index *index, uint32_t number)
{
    pthread_mutex_lock(&index->lock);
    const bool reading = qr_index_stored_of(index, number)->reading;
    pthread_mutex_unlock(&index->lock);
    return reading;
}

/* ---- writing ------------------------------------------------------------------------------
 */

enum qr_write qr_index_write_begin(struct qr_index *index, uint32_t number,
                                   struct qr_pinned *out, struct qr_slot *disk_out,
                                   uint64_t *tag_out)
{
    struct qr_entry *entry = qr_index_entry(index, number);
    enum qr_write result = QR_WRITE_LOST;

    pthread_mutex_lock(&index->lock);
    struct qr_stored *stored = qr_index_stored_of(index, number);
    const bool resident = qr_index_state(index, number) == QR_PAGE_RESIDENT;
    *tag_out = tag_of(index, entry);
    if (stored->bytes > 0 && !stored->borrowed) {
        result = QR_WRITE_DONE;
        *disk_out = place_of(stored);
    } else if (stored->writing) {
        result = QR_WRITE_FLYING;
    } else if (resident) {
        result = QR_WRITE_START;
        stored->writing = 1;
        entry->node.pins++;
        out->bytes = qr_index_map(index, &entry->slot);
        out->n = entry->slot.bytes;
    } else if (stored->bytes > 0 && !entry->node.damaged) {
        result = QR_WRITE_READ;
    }
    pthread_mutex_unlock(&index->lock);
    return result;
}

void qr_index_write_end(struct qr_index *index, uint32_t number, const struct qr_slot *disk)
{
    pthread_mutex_lock(&index->lock);
    struct qr_entry *entry = qr_index_entry(index, number);
    struct qr_stored *stored = qr_index_stored_of(index, number);
    assert(stored->writing && entry->node.pins > 0);
    stored->writing = 0;
    if (disk) {
        set_place(stored, disk);
        stored->borrowed = 0;
        qr_index_mark(index, number);
    }
    entry->node.pins--;
    qr_index_settle(index, number);
    pthread_mutex_unlock(&index->lock);
}

/* ---- names --------------------------------------------------------------------------------
 */

void qr_index_naming(struct qr_index *index, uint32_t number, struct qr_naming *out)
{
    pthread_mutex_lock(&index->lock);
    const struct qr_entry *entry = qr_index_entry(index, number);
    const struct qr_stored *stored = qr_index_stored_of(index, number);
    *out = (struct qr_naming){.slot = place_of(stored),
                              .named = stored->named,
                              .refs = entry->refs,
                              .counted = stored->counted,
                              .recorded = stored->recorded,
                              .erased = stored->erased,
                              .damaged = entry->node.damaged};
    if (stored->borrowed)
        out->slot.bytes = 0;
    pthread_mutex_unlock(&index->lock);
}

void qr_index_set_naming(struct qr_index *index, uint32_t number,
                         const struct qr_naming *naming)
{
    pthread_mutex_lock(&index->lock);
    struct qr_stored *stored = qr_index_stored_of(index, number);
    stored->named = naming->named & 0x7fffffu;
    stored->counted = naming->counted;
    stored->recorded = naming->recorded;
    stored->erased = naming->erased;
    set_place(stored, &naming->slot);
    qr_index_mark(index, number);
    pthread_mutex_unlock(&index->lock);
}

bool qr_index_detach(struct qr_index *index, uint32_t number)
{
    pthread_mutex_lock(&index->lock);
    const struct qr_entry *entry = qr_index_entry(index, number);
    struct qr_stored *stored = qr_index_stored_of(index, number);
    const bool alone = entry->refs == 1 && entry->node.pins == 0 && !stored->reading;
    if (alone) {
        set_place(stored, &(struct qr_slot){0});
        stored->named = 0;
        stored->counted = stored->recorded = 0;
        stored->erased = 1;
        qr_index_mark(index, number);
    }
    pthread_mutex_unlock(&index->lock);
    return alone;
}

uint32_t qr_index_bytes_and_tag(struct qr_index *index, uint32_t number, uint64_t *tag_out)
{
    pthread_mutex_lock(&index->lock);
    const struct qr_entry *entry = qr_index_entry(index, number);
    *tag_out = tag_of(index, entry);
    const uint32_t bytes =
        entry->slot.bytes > 0 ? entry->slot.bytes : qr_index_stored_of(index, number)->bytes;
    pthread_mutex_unlock(&index->lock);
    return bytes;
}

uint64_t qr_index_dirty_bytes(struct qr_index *index)
{
    return atomic_load(&index->dirty_bytes);
}
