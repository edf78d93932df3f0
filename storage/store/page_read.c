/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages from the disk into host memory: room is reserved, the ring reads straight
 * into it, and what arrived becomes the entry's. Readers of the same page share
 * one read. What arrived is verified by each reader, like every page it looks at.
 */
#include <time.h>

#include "durable.h"

#define HOLD_TRIES 100u /* while there is no room for the page */
#define HOLD_PAUSE_NS 1000000

struct page_read {
    struct qr_store *store;
    uint32_t entry;
    struct qr_slot host;
    struct qr_place place;
};

size_t qr_page_read_bytes(void)
{
    return sizeof(struct page_read);
}

static void read_done(void *arg, quire_status status)
{
    struct page_read *read = arg;
    struct qr_store *store = read->store;
    const bool ok = status == QUIRE_OK;

    qr_counter_add(ok ? &store->counters.disk_pages_read : &store->counters.disk_read_failures,
                   1);
    if (!ok)
        qr_index_release(store->index, &read->host);
    qr_index_read_end(store->index, read->entry, ok ? &read->host : NULL, &read->place, false);
    qr_pool_give(store->reads, read);
}

static quire_status give_up(struct qr_store *store, uint32_t entry, struct page_read *read,
                            quire_status status)
{
    const bool busy = status == QUIRE_EFULL || status == QUIRE_EAGAIN;

    if (status == QUIRE_EFULL)
        qr_mover_press(store);
    if (read)
        qr_pool_give(store->reads, read);
    qr_index_read_end(store->index, entry, NULL, NULL, busy);
    return status;
}

quire_status qr_page_read_start(struct qr_store *store, uint32_t entry,
                                const struct qr_slot *disk_slot, const struct qr_place *place,
                                bool ahead)
{
    struct page_read *read = qr_pool_take(store->reads);

    if (!read)
        return give_up(store, entry, NULL, QUIRE_EAGAIN);
    *read = (struct page_read){.store = store, .entry = entry, .place = *place};
    quire_status status = qr_index_reserve(store->index, disk_slot->bytes, &read->host, NULL);
    if (status != QUIRE_OK)
        return give_up(store, entry, read, status);
    struct qr_disk *disk = store->mover->disk;
    const struct qr_disk_transfer transfer = {
        .place = qr_disk_place_of(disk, disk_slot),
        .buffer = qr_index_map(store->index, &read->host),
        .capacity = store->tier->ops->rounded(store->tier, disk_slot->bytes),
        .urgency = ahead ? QR_RING_PREFETCH : QR_RING_FOREGROUND,
        .done = read_done,
        .arg = read};
    status = qr_disk_read(disk, &transfer, NULL);
    if (status != QUIRE_OK) {
        qr_index_release(store->index, &read->host);
        return give_up(store, entry, read, status);
    }
    return QUIRE_OK;
}

enum qr_page_state qr_page_hold(struct qr_session *session, uint32_t entry, uint32_t block,
                                bool wait, struct qr_pinned *out)
{
    struct qr_store *store = session->store;
    struct qr_slot disk;

    pthread_mutex_lock(&session->lock);
    const struct qr_place place = qr_session_read_place(session, block);
    pthread_mutex_unlock(&session->lock);

    for (uint32_t tries = 0; tries < HOLD_TRIES; tries++) {
        const enum qr_want want = qr_index_want(store->index, entry, true, out, &disk);
        quire_status status = QUIRE_OK;
        if (want == QR_WANT_RESIDENT)
            return QR_PAGE_RESIDENT;
        if (want == QR_WANT_GONE)
            return QR_PAGE_EVICTED;
        if (want == QR_WANT_DAMAGED)
            return QR_PAGE_DAMAGED;
        if (want == QR_WANT_READ)
            status = qr_page_read_start(store, entry, &disk, &place, false);
        if (status == QUIRE_OK && wait)
            wait = qr_index_read_wait(store->index, entry, store->read_wait_ms);
        else if (wait)
            nanosleep(&(struct timespec){.tv_nsec = HOLD_PAUSE_NS}, NULL);
        qr_index_unpin(store->index, entry);
        if (!wait)
            break;
    }
    return QR_PAGE_STORED;
}
