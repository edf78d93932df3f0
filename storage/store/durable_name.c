/* SPDX-License-Identifier: Apache-2.0
 *
 * Names: which manifests on disk name a page, and what follows when one more or
 * one less does. A page record counts them; what a commit under way will make of
 * it is in the page's index entry, which the round keeps alive until then.
 */
#include <string.h>

#include "durable.h"
#include "storage/base/log.h"
#include "storage/base/random.h"

/* ---- records ------------------------------------------------------------------------------
 */

static quire_status read_record(struct qr_round *round, const uint8_t id[QR_HASH_BYTES],
                                struct qr_disk_page *out)
{
    const struct qr_disk_key key = qr_disk_key_page(id);
    uint8_t value[QR_DISK_PAGE_RECORD_BYTES];
    size_t n;
    quire_status status =
        qr_disk_index_get(qr_disk_index_of(round->mover->disk), &key, value, sizeof(value), &n);

    if (status == QUIRE_OK)
        status = qr_disk_page_read(value, n, out);
    return status;
}

static void put_record(struct qr_round *round, const uint8_t id[QR_HASH_BYTES],
                       const struct qr_disk_page *page)
{
    const struct qr_disk_key key = qr_disk_key_page(id);
    uint8_t bytes[QR_DISK_PAGE_RECORD_BYTES];

    qr_disk_page_write(page, bytes);
    qr_disk_batch_put(&round->batch, &key, bytes, sizeof(bytes));
}

/* Remember how the record was; the round refers to the entry until it ends. */
static bool note_undo(struct qr_round *round, uint32_t entry, const struct qr_naming *before)
{
    if (!qr_round_room(&round->undo, &round->undo_capacity, round->undo_count + 1,
                       sizeof(*round->undo)))
        return false;
    qr_index_ref(round->mover->store->index, &entry, 1);
    round->undo[round->undo_count++] =
        (struct qr_round_undo){.entry = entry, .before = *before};
    return true;
}

/* A failed commit changed nothing on disk, but later rounds may have counted on from it: a
 * count may stay too high, which wastes a slot until the next start, and must not be too low.
 */
static void take_back(const struct qr_naming *before, struct qr_naming *now)
{
    const bool fresh = !before->recorded;

    if (now->erased && now->slot.bytes == 0) {
        *now = *before;
    } else if (now->erased) {
        now->erased = false;
    } else if (fresh && now->named <= 1) {
        now->recorded = now->counted = false;
        now->named = 0;
    } else if (!fresh && now->named < before->named) {
        now->named++;
    }
}

void qr_names_settle(struct qr_round *round)
{
    struct qr_index *index = round->mover->store->index;

    for (size_t i = round->undo_count; i-- > 0;) {
        struct qr_naming now;
        qr_index_naming(index, round->undo[i].entry, &now);
        if (round->status == QUIRE_OK) {
            now.erased = false;
        } else if (round->commit.in_doubt) {
            now.recorded = true; /* perhaps: neither record nor slot is touched any more */
            now.counted = now.erased = false;
        } else {
            take_back(&round->undo[i].before, &now);
        }
        qr_index_set_naming(index, round->undo[i].entry, &now);
    }
}

/* ---- one more -----------------------------------------------------------------------------
 */

static void fill_identity(const struct qr_session *session, const struct qr_round_page *page,
                          struct qr_disk_page *out)
{
    const struct qr_lane *lane = &session->lanes[page->lane];

    out->layer = lane->layer;
    out->first_head = lane->first_head;
    out->heads = lane->heads;
    out->first_position = (uint64_t)page->block * session->policy.page_tokens;
    out->ns = session->ns;
}

/* The disk has other bytes under this id: ours goes there under a random one. */
static quire_status take_other_id(struct qr_round *round, uint32_t entry)
{
    uint8_t id[QR_HASH_BYTES];
    const quire_status status = qr_random_fill(id, sizeof(id), NULL);

    if (status == QUIRE_OK)
        qr_index_rename(round->mover->store->index, entry, id);
    return status;
}

quire_status qr_name_prepare(struct qr_round *round, const struct qr_round_page *page)
{
    struct qr_index *index = round->mover->store->index;
    uint8_t id[QR_HASH_BYTES];
    struct qr_disk_page record;
    struct qr_naming naming;
    uint64_t tag;

    /* Also ids without token ids may be there: an import brings those of another session. */
    qr_index_naming(index, page->entry, &naming);
    if (naming.recorded || naming.erased || naming.slot.bytes > 0)
        return QUIRE_OK;
    qr_index_id(index, page->entry, id);
    const quire_status status = read_record(round, id, &record);
    if (status != QUIRE_OK)
        return status == QUIRE_ENOTFOUND ? QUIRE_OK : status;
    const uint32_t bytes = qr_index_bytes_and_tag(index, page->entry, &tag);
    if (record.flags != 0 || record.checksum != tag ||
        (bytes > 0 && record.place.bytes != bytes))
        return take_other_id(round, page->entry);
    naming.slot = qr_disk_slot_of(round->mover->disk, &record.place);
    naming.named = record.named;
    naming.counted = naming.recorded = true;
    qr_index_set_naming(index, page->entry, &naming);
    return QUIRE_OK;
}

static void put_block(struct qr_round *round, const struct qr_round_page *page,
                      const struct qr_disk_block *block)
{
    const struct qr_disk_key key = qr_disk_key_manifest(round->uuid, page->lane, page->block);
    uint8_t bytes[QR_DISK_BLOCK_RECORD_BYTES];

    qr_disk_block_write(block, bytes);
    qr_disk_batch_put(&round->batch, &key, bytes, sizeof(bytes));
}

/* How many names it had before; without a record: none. */
static quire_status count_names(struct qr_round *round, const uint8_t id[QR_HASH_BYTES],
                                struct qr_naming *naming)
{
    struct qr_disk_page record;

    if (!naming->recorded) {
        naming->named = 0;
        return QUIRE_OK;
    }
    if (naming->counted)
        return QUIRE_OK;
    const quire_status status = read_record(round, id, &record);
    if (status == QUIRE_OK)
        naming->named = record.named;
    return status;
}

/* The entry that the manifest on disk has for a block that was replaced; *same: this page. */
static quire_status unname_old(struct qr_round *round, const struct qr_round_page *page,
                               const uint8_t id[QR_HASH_BYTES], bool *same)
{
    const struct qr_disk_key key = qr_disk_key_manifest(round->uuid, page->lane, page->block);
    uint8_t value[QR_DISK_BLOCK_RECORD_BYTES];
    struct qr_disk_block block;
    size_t n;
    quire_status status =
        qr_disk_index_get(qr_disk_index_of(round->mover->disk), &key, value, sizeof(value), &n);

    *same = false;
    if (status == QUIRE_ENOTFOUND)
        return QUIRE_OK;
    if (status == QUIRE_OK)
        status = qr_disk_block_read(value, n, &block);
    if (status != QUIRE_OK || block.place.bytes == 0)
        return status;
    *same = memcmp(block.page_id, id, QR_HASH_BYTES) == 0;
    return *same ? QUIRE_OK : qr_unname(round, &block, 1);
}

quire_status qr_name_page(struct qr_round *round, const struct qr_round_page *page)
{
    struct qr_index *index = round->mover->store->index;
    struct qr_disk_block block = {.place = {0}};
    struct qr_naming naming;
    quire_status status = QUIRE_OK;
    bool same = false;

    qr_index_id(index, page->entry, block.page_id);
    (void)qr_index_bytes_and_tag(index, page->entry, &block.checksum);
    if (page->block < round->session->lanes[page->lane].saved.sealed)
        status = unname_old(round, page, block.page_id, &same);
    qr_index_naming(index, page->entry, &naming);
    const struct qr_naming before = naming;
    if (status == QUIRE_OK && !same)
        status = count_names(round, block.page_id, &naming);
    if (status == QUIRE_ENOTFOUND || status == QUIRE_ECORRUPT) {
        naming.slot.bytes = 0; /* the index lost its record: so the page is lost */
        status = QUIRE_OK;
    }
    if (naming.slot.bytes > 0)
        block.place = qr_disk_place_of(round->mover->disk, &naming.slot);
    put_block(round, page, &block);
    if (status != QUIRE_OK || naming.slot.bytes == 0 || same)
        return status; /* a hole names nothing */
    if (!note_undo(round, page->entry, &before))
        return QUIRE_ENOMEM;
    naming.named++;
    naming.counted = naming.recorded = true;
    qr_index_set_naming(index, page->entry, &naming);
    struct qr_disk_page record = {
        .place = block.place, .checksum = block.checksum, .named = naming.named};
    fill_identity(round->session, page, &record);
    put_record(round, block.page_id, &record);
    qr_disk_commit_touch(&round->commit, &block.place);
    return QUIRE_OK;
}

/* ---- one less -----------------------------------------------------------------------------
 */

/* Nobody names the page: its record goes, and its place once that is durable. */
static quire_status erase(struct qr_round *round, const uint8_t id[QR_HASH_BYTES],
                          const struct qr_disk_place *place)
{
    const struct qr_disk_key key = qr_disk_key_page(id);

    if (!qr_round_room(&round->freed, &round->freed_capacity, round->freed_count + 1,
                       sizeof(*round->freed)))
        return QUIRE_ENOMEM;
    round->freed[round->freed_count++] = *place;
    qr_disk_batch_delete(&round->batch, &key);
    return QUIRE_OK;
}

static quire_status unname_entry(struct qr_round *round, uint32_t entry,
                                 const struct qr_disk_block *block,
                                 const struct qr_naming *before, struct qr_disk_page *record)
{
    struct qr_index *index = round->mover->store->index;

    /* Detach looks at references: those of our own undo list come after it. */
    if (record->named == 0 && qr_index_detach(index, entry)) {
        if (!note_undo(round, entry, before))
            return QUIRE_ENOMEM;
        return erase(round, block->page_id, &record->place);
    }
    if (!note_undo(round, entry, before))
        return QUIRE_ENOMEM;
    struct qr_naming after = *before;
    after.slot = qr_disk_slot_of(round->mover->disk, &record->place);
    after.named = record->named;
    after.counted = after.recorded = true;
    qr_index_set_naming(index, entry, &after);
    put_record(round, block->page_id, record);
    return QUIRE_OK;
}

quire_status qr_unname(struct qr_round *round, const struct qr_disk_block *block, uint32_t less)
{
    struct qr_index *index = round->mover->store->index;
    struct qr_adopted page = {.slot = qr_disk_slot_of(round->mover->disk, &block->place),
                              .tag = block->checksum};
    struct qr_disk_page record;
    struct qr_naming before;
    uint32_t entry;
    quire_status status = read_record(round, block->page_id, &record);

    if (status != QUIRE_OK) /* no record, or a damaged one: nothing is known of its place */
        return status == QUIRE_EIO ? status : QUIRE_OK;
    memcpy(page.id, block->page_id, QR_HASH_BYTES);
    status = qr_index_adopt(index, &page, 1, &entry, NULL);
    if (status != QUIRE_OK)
        return status;
    uint8_t id[QR_HASH_BYTES];
    qr_index_id(index, entry, id);
    qr_index_naming(index, entry, &before);
    if (before.counted) /* changed by a commit under way, perhaps */
        record.named = before.named;
    record.named -= record.named < less ? record.named : less;
    if (less == 0 && record.named > 0)
        status = QUIRE_OK; /* an orphan that got a name */
    else if (memcmp(id, block->page_id, QR_HASH_BYTES) == 0 && before.recorded)
        status = unname_entry(round, entry, block, &before, &record);
    else if (record.named == 0)
        status = erase(round, block->page_id, &record.place);
    else
        put_record(round, block->page_id, &record);
    qr_index_unref(index, &entry, 1);
    return status;
}
