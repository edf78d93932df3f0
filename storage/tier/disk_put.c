/* SPDX-License-Identifier: Apache-2.0
 *
 * Durable pages in one waiting call: reserve, write, commit. For callers that
 * have nothing to do meanwhile; the store's mover does the same steps without
 * waiting.
 */
#include <stdlib.h>
#include <string.h>

#include "tier_disk_impl.h"

static void release_all(struct qr_disk *disk, const struct qr_disk_put *puts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        qr_disk_slabs_release(disk->slabs, &puts[i].page.place);
}

static quire_status reserve_all(struct qr_disk *disk, struct qr_disk_put *puts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct qr_disk_place place;
        const quire_status status =
            qr_disk_slabs_reserve(disk->slabs, puts[i].page.place.bytes, &place);
        if (status != QUIRE_OK) {
            release_all(disk, puts, i);
            return status;
        }
        puts[i].page.place = place;
    }
    return QUIRE_OK;
}

static quire_status write_all(struct qr_disk *disk, const struct qr_disk_put *puts,
                              size_t count)
{
    struct qr_ring_op *ops = calloc(count + 1, sizeof(*ops));

    if (!ops)
        return QUIRE_ENOMEM;
    for (size_t i = 0; i < count; i++) {
        const struct qr_disk_place *place = &puts[i].page.place;
        ops[i] = (struct qr_ring_op){.op = QR_DISK_WRITE,
                                     .file = disk->ring_files[place->device],
                                     .offset = qr_disk_slabs_offset(disk->slabs, place),
                                     .buffer = puts[i].bytes,
                                     .bytes = place->bytes,
                                     .capacity = puts[i].capacity,
                                     .urgency = QR_RING_COMMIT};
    }
    const quire_status status = qr_ring_run(disk->ring, ops, count);
    free(ops);
    return status;
}

quire_status qr_disk_put_pages(struct qr_disk *disk, struct qr_disk_put *puts, size_t count,
                               struct qr_disk_batch *batch)
{
    struct qr_disk_batch own = {0};
    struct qr_disk_commit commit = {.batch = batch ? batch : &own};
    quire_status status = reserve_all(disk, puts, count);

    if (status != QUIRE_OK)
        return status;
    status = write_all(disk, puts, count);
    for (size_t i = 0; i < count && status == QUIRE_OK; i++) {
        const struct qr_disk_key key = qr_disk_key_page(puts[i].page_id);
        uint8_t record[QR_DISK_PAGE_RECORD_BYTES];
        qr_disk_page_write(&puts[i].page, record);
        qr_disk_batch_put(batch ? batch : &own, &key, record, sizeof(record));
        qr_disk_commit_touch(&commit, &puts[i].page.place);
    }
    if (status == QUIRE_OK)
        status = qr_disk_commit_wait(disk, &commit);
    if (status != QUIRE_OK && !commit.in_doubt)
        release_all(disk, puts, count);
    qr_disk_batch_free(&own);
    return status;
}
