/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of tails as entries without an id.
 *
 *   add -> held -- last hold let go --> linked for eviction -- evict --> lost
 *          held <-- held again ---------'                              (drop frees it)
 */
#include "index_impl.h"

#include <assert.h>

quire_status qr_index_add_rows(struct qr_index *index, const struct qr_slot *slot,
                               uint32_t *entry_out, struct qr_error *e)
{
    pthread_mutex_lock(&index->lock);
    const uint32_t number = qr_index_entry_take(index);
    if (number != QR_ENTRY_NONE) {
        struct qr_entry *entry = qr_index_entry(index, number);
        entry->node.rows = 1;
        entry->refs = 2; /* the chunk's, and the hold */
        qr_index_take_slot(index, number, slot);
        index->stat.rows++;
        atomic_fetch_add(&index->row_bytes, slot->bytes);
    }
    pthread_mutex_unlock(&index->lock);
    if (number == QR_ENTRY_NONE)
        return qr_index_full(index, e);
    *entry_out = number;
    return QUIRE_OK;
}

void qr_index_hold(struct qr_index *index, uint32_t number)
{
    struct qr_entry *entry = qr_index_entry(index, number);

    pthread_mutex_lock(&index->lock);
    assert(entry->node.rows);
    if (entry->refs++ == 1)
        qr_evict_unlink(index->evict, number, entry->slot.bytes);
    pthread_mutex_unlock(&index->lock);
}

void qr_index_let_go(struct qr_index *index, uint32_t number, const struct qr_place *place)
{
    struct qr_entry *entry = qr_index_entry(index, number);

    pthread_mutex_lock(&index->lock);
    assert(entry->node.rows && entry->refs > 1);
    if (--entry->refs == 1 && entry->slot.bytes > 0)
        qr_evict_link(index->evict, number, place->group, place->order, entry->slot.bytes,
                      place->hint);
    pthread_mutex_unlock(&index->lock);
}

void qr_index_drop_rows(struct qr_index *index, uint32_t number)
{
    struct qr_entry *entry = qr_index_entry(index, number);

    pthread_mutex_lock(&index->lock);
    assert(entry->node.rows && entry->node.pins == 0);
    entry->refs = 0;
    qr_index_settle(index, number);
    pthread_mutex_unlock(&index->lock);
}
