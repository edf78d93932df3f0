/* SPDX-License-Identifier: Apache-2.0
 *
 * Verifies pages against their records, and marks damaged ones. The mark is
 * written by a commit that goes alone, so that the record cannot be deleted, and
 * its slot given away, between the look at it and the write.
 */
#include "disk_verify.h"

#include <inttypes.h>
#include <string.h>

#include "storage/base/log.h"
#include "tier_disk_impl.h"

/* ---- verify ----------------------------------------------------------------------------- */

quire_status qr_disk_page_verify(const struct qr_disk_page *record, const void *bytes,
                                 struct qr_page_view *view_out, struct qr_error *e)
{
    struct qr_page_view view;
    const quire_status status = qr_page_open(bytes, record->place.bytes, &view, e);

    if (status != QUIRE_OK)
        return status;
    const struct qr_page_header *h = view.header;
    const struct {
        const char *what;
        uint64_t found, wanted;
    } fields[] = {
        {"layer", h->layer, record->layer},
        {"first head", h->first_head, record->first_head},
        {"heads", h->heads, record->heads},
        {"first position", h->first_position, record->first_position},
        {"checksum", h->checksum, record->checksum},
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (fields[i].found != fields[i].wanted)
            return qr_error_set(e, QUIRE_EMISMATCH,
                                "another page lies here: its %s is %" PRIu64
                                ", the index says %" PRIu64,
                                fields[i].what, fields[i].found, fields[i].wanted);
    }
    if (view_out)
        *view_out = view;
    return QUIRE_OK;
}

/* ---- quarantine ------------------------------------------------------------------------- */

static struct qr_disk_quarantine *of_commit(struct qr_disk_commit *commit)
{
    uint8_t *at = (uint8_t *)commit - offsetof(struct qr_disk_quarantine, commit);
    return (struct qr_disk_quarantine *)(void *)at;
}

/* On the commit thread, nothing else under way: what the index says now holds until our batch
 * is written. */
static void prepare(struct qr_disk_commit *commit)
{
    struct qr_disk_quarantine *q = of_commit(commit);
    const struct qr_disk_key key = qr_disk_key_page(q->page_id);
    uint8_t record[QR_DISK_PAGE_RECORD_BYTES];
    struct qr_disk_page page;
    size_t n;

    if (qr_disk_index_get(q->disk->index, &key, record, sizeof(record), &n) != QUIRE_OK ||
        qr_disk_page_read(record, n, &page) != QUIRE_OK ||
        memcmp(&page.place, &q->place, sizeof(page.place)) != 0)
        return;
    q->marked = true;
    if (page.flags & QR_DISK_QUARANTINED)
        return;
    page.flags |= QR_DISK_QUARANTINED;
    qr_disk_page_write(&page, record);
    qr_disk_batch_put(&q->batch, &key, record, sizeof(record));
    commit->batch = &q->batch;
    qr_counter_add(&q->disk->quarantined, 1);
    QR_LOG(QR_LOG_ERROR, "disk.page_quarantined",
           QR_LOG_STR("folder", q->disk->config.folders[page.place.device]),
           QR_LOG_U64("slab", page.place.region), QR_LOG_U64("slot", page.place.slot),
           QR_LOG_U64("layer", page.layer), QR_LOG_U64("first_position", page.first_position));
}

static void marked(void *arg, quire_status status)
{
    struct qr_disk_quarantine *q = arg;

    qr_disk_batch_free(&q->batch);
    q->marked = q->marked && status == QUIRE_OK;
    if (q->done)
        q->done(q->arg, status);
}

static void begin(struct qr_disk *disk, struct qr_disk_quarantine *q)
{
    q->disk = disk;
    q->marked = false;
    q->batch = (struct qr_disk_batch){0};
    q->commit = (struct qr_disk_commit){.prepare = prepare, .done = marked, .arg = q};
}

quire_status qr_disk_quarantine(struct qr_disk *disk, struct qr_disk_quarantine *quarantine)
{
    begin(disk, quarantine);
    return qr_disk_commit(disk, &quarantine->commit);
}

quire_status qr_disk_quarantine_wait(struct qr_disk *disk,
                                     struct qr_disk_quarantine *quarantine)
{
    begin(disk, quarantine);
    quarantine->done = NULL;
    const quire_status status = qr_disk_commit_wait(disk, &quarantine->commit);
    marked(quarantine, status);
    return status;
}
