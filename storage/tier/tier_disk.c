/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the parts of the disk tier in order and closes them in reverse, and
 * speaks for the slots as a tier of tier.h.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "disk_block.h"
#include "disk_class.h"
#include "disk_identity.h"
#include "disk_upgrade.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "tier_disk_impl.h"

#define COMMIT_QUEUE_MAX 4096u

static struct qr_disk *disk_of(struct qr_tier *tier)
{
    return (struct qr_disk *)(void *)tier;
}

/* ---- open ------------------------------------------------------------------------------- */

static uint64_t smallest_cap(const struct qr_disk_config *config)
{
    uint64_t cap = UINT64_MAX;

    for (uint32_t d = 0; d < config->count && d < QR_DISK_DEVICES_MAX; d++)
        cap =
            config->cap_bytes[d] > 0 && config->cap_bytes[d] < cap ? config->cap_bytes[d] : cap;
    return cap;
}

static struct qr_disk_home_config home_config(const struct qr_disk *disk)
{
    struct qr_disk_home_config home = {.io = disk->config.io,
                                       .count = disk->config.count,
                                       .region_bytes =
                                           qr_disk_region_bytes(smallest_cap(&disk->config)),
                                       .create = disk->config.create,
                                       .allow_missing = disk->config.allow_missing};

    memcpy(home.folders, disk->config.folders, sizeof(home.folders));
    return home;
}

/* Limits first: nothing is made that cannot be used. */
static quire_status open_home(struct qr_disk *disk, struct qr_error *e)
{
    const struct qr_disk_home_config home = home_config(disk);
    const uint64_t least = QR_DISK_SLAB_START + QR_DISK_REGION_MIN;

    for (uint32_t d = 0; d < disk->config.count && d < QR_DISK_DEVICES_MAX; d++) {
        const bool all =
            disk->config.cap_bytes[d] == 0 && qr_disk_is_block(disk->config.folders[d]);
        if (disk->config.cap_bytes[d] < least && !all)
            return qr_error_set(e, QUIRE_EINVAL,
                                "%s: a cap of %" PRIu64
                                " bytes has no room for one slab: give it %" PRIu64 " at least",
                                disk->config.folders[d], disk->config.cap_bytes[d], least);
    }
    return qr_disk_home_open(&home, &disk->home, e);
}

/* Last, so that a start that dies on the way upgrades again. */
static quire_status note_version(struct qr_disk *disk, struct qr_error *e)
{
    const struct qr_disk_home_config home = home_config(disk);

    return disk->home.version < QR_DISK_VERSION ? qr_disk_home_upgraded(&home, &disk->home, e)
                                                : QUIRE_OK;
}

static quire_status open_slabs(struct qr_disk *disk, struct qr_error *e)
{
    struct qr_disk_slabs_config slabs = {.io = disk->config.io, .home = &disk->home};

    memcpy(slabs.cap_bytes, disk->config.cap_bytes, sizeof(slabs.cap_bytes));
    const quire_status status = qr_disk_slabs_create(&slabs, &disk->slabs, e);
    if (status == QUIRE_OK) {
        disk->regions_of_device = qr_disk_slabs_regions_max(disk->slabs);
        disk->tier.regions_max = disk->regions_of_device * disk->home.count;
    }
    return status;
}

/* An index is made only for slab files that hold nothing yet: a lost one is no new one. */
static bool has_regions(struct qr_disk *disk)
{
    bool any = false;

    for (uint32_t d = 0; d < disk->home.count; d++) {
        struct qr_disk_device_stat stat;
        qr_disk_slabs_stat(disk->slabs, d, &stat);
        /* A block device has all its regions at once: only a store just made has none used. */
        any = any || (stat.regions > 0 &&
                      !(disk->home.fresh && disk->home.devices[d].block_bytes > 0));
    }
    return any;
}

static quire_status upgrade(struct qr_disk_index *index, uint32_t from, struct qr_error *e)
{
    return qr_disk_upgrade(index, qr_disk_upgrades, qr_disk_upgrade_count, from,
                           QR_DISK_VERSION, e);
}

static quire_status open_index(struct qr_disk *disk, struct qr_error *e)
{
    char path[4096];
    const uint64_t start_ns = qr_clock_ns();
    struct qr_disk_index_config index = {.path = path,
                                         .create = !has_regions(disk),
                                         .cache_bytes = disk->config.index_cache_bytes,
                                         .upgrade = upgrade};

    const int n = snprintf(path, sizeof(path), "%s/index", disk->config.folders[0]);
    if (n < 0 || (size_t)n >= sizeof(path))
        return qr_error_set(e, QUIRE_EINVAL, "%.100s...: a path of %d bytes, at most %zu",
                            disk->config.folders[0], n, sizeof(path) - 1);
    const quire_status status = qr_disk_index_open(&index, &disk->index, e);
    disk->open_index_us = (qr_clock_ns() - start_ns) / 1000;
    return status;
}

static quire_status open_tail(struct qr_disk *disk, struct qr_error *e)
{
    const struct qr_tail_log_config tail = {.io = disk->config.io,
                                            .folder_fd = disk->home.devices[0].folder_fd,
                                            .store = disk->home.store,
                                            .segment_bytes = disk->config.tail_segment_bytes,
                                            .max_bytes = disk->config.tail_log_bytes};
    return qr_tail_log_open(&tail, &disk->tail, e);
}

static void write_failed(void *arg, uint32_t file)
{
    struct qr_disk *disk = arg;

    for (uint32_t d = 0; d < disk->home.count; d++) {
        if (disk->home.devices[d].slab_fd >= 0 && disk->ring_files[d] == file)
            qr_disk_device_failed(disk, d, QUIRE_EIO);
    }
}

/* The first blocks again, for probes of failed devices. */
static quire_status make_headers(struct qr_disk *disk, struct qr_error *e)
{
    struct qr_disk_identity identity = {.version = disk->home.version,
                                        .count = disk->home.count};

    memcpy(identity.store, disk->home.store, sizeof(identity.store));
    memcpy(identity.device_ids, disk->home.device_ids, sizeof(identity.device_ids));
    disk->headers = aligned_alloc(QR_DISK_BLOCK, (size_t)disk->home.count * QR_DISK_BLOCK);
    if (!disk->headers)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the disk tier");
    for (; identity.device < disk->home.count; identity.device++)
        qr_disk_slab_header_write(&identity, disk->headers + identity.device * QR_DISK_BLOCK);
    return QUIRE_OK;
}

static quire_status open_ring(struct qr_disk *disk, struct qr_error *e)
{
    struct qr_ring_config ring = {.io = disk->config.io,
                                  .depth = disk->config.ring_depth,
                                  .queue_max = disk->config.ring_queue_max,
                                  .no_uring = disk->config.no_uring};

    ring.write_failed = write_failed;
    ring.arg = disk;
    for (uint32_t d = 0; d < disk->home.count; d++) {
        if (disk->home.devices[d].slab_fd < 0)
            continue;
        disk->ring_files[d] = ring.file_count;
        ring.files[ring.file_count++] = disk->home.devices[d].slab_fd;
    }
    return qr_ring_create(&ring, &disk->ring, e);
}

struct scan {
    struct qr_disk *disk;
    qr_disk_page_fn *each;
    void *arg;
};

static bool scan_page(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                      size_t value_bytes)
{
    struct scan *scan = arg;
    struct qr_disk *disk = scan->disk;
    struct qr_disk_page page;
    struct qr_error e = {0};
    quire_status status = QUIRE_ECORRUPT;

    if (key_bytes == 1 + QR_HASH_BYTES)
        status = qr_disk_page_read(value, value_bytes, &page);
    if (status == QUIRE_OK)
        status = qr_disk_slabs_mark(disk->slabs, &page.place, &e);
    if (status != QUIRE_OK) {
        if (disk->bad_entries++ == 0) /* the first speaks for all */
            QR_LOG(QR_LOG_ERROR, "disk.bad_entry",
                   QR_LOG_STR("why", e.text[0] ? e.text : "page record damaged"));
        return true;
    }
    disk->pages_at_open++;
    if (scan->each)
        scan->each(scan->arg, key + 1, &page);
    return true;
}

static quire_status rebuild(struct qr_disk *disk, qr_disk_page_fn *each, void *arg,
                            struct qr_error *e)
{
    const struct qr_disk_key pages = {.bytes = {QR_DISK_KEY_PAGE}, .n = 1};
    struct scan scan = {disk, each, arg};
    const uint64_t start_ns = qr_clock_ns();

    const quire_status status = qr_disk_index_each(disk->index, &pages, scan_page, &scan, e);
    disk->open_scan_us = (qr_clock_ns() - start_ns) / 1000;
    return status;
}

static const struct qr_tier_ops disk_ops;

static struct qr_disk *disk_alloc(const struct qr_disk_config *config)
{
    struct qr_disk *disk = calloc(1, sizeof(*disk));
    pthread_condattr_t monotonic;

    if (!disk)
        return NULL;
    disk->config = *config;
    if (!disk->config.io)
        disk->config.io = qr_disk_io_system();
    if (disk->config.commit_queue_max == 0)
        disk->config.commit_queue_max = COMMIT_QUEUE_MAX;
    disk->tier.ops = &disk_ops;
    pthread_mutex_init(&disk->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&disk->work, &monotonic);
    pthread_cond_init(&disk->room, NULL);
    pthread_condattr_destroy(&monotonic);
    return disk;
}

quire_status qr_disk_open(const struct qr_disk_config *config, qr_disk_page_fn *each, void *arg,
                          struct qr_disk **out, struct qr_error *e)
{
    struct qr_disk *disk = disk_alloc(config);

    if (!disk)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the disk tier");
    quire_status status = open_home(disk, e);
    if (status == QUIRE_OK)
        status = open_slabs(disk, e);
    if (status == QUIRE_OK)
        status = open_index(disk, e);
    if (status == QUIRE_OK)
        status = note_version(disk, e);
    if (status == QUIRE_OK)
        status = rebuild(disk, each, arg, e);
    if (status == QUIRE_OK)
        status = open_tail(disk, e);
    if (status == QUIRE_OK)
        status = make_headers(disk, e);
    if (status == QUIRE_OK)
        status = open_ring(disk, e);
    if (status == QUIRE_OK)
        status = qr_disk_commit_start(disk, e);
    if (status != QUIRE_OK) {
        qr_disk_close(&disk);
        return status;
    }
    *out = disk;
    return QUIRE_OK;
}

void qr_disk_close(struct qr_disk **disk)
{
    struct qr_disk *d = *disk;

    if (!d)
        return;
    qr_disk_commit_stop(d);
    qr_ring_destroy(&d->ring);
    qr_tail_log_close(&d->tail);
    qr_disk_index_close(&d->index);
    qr_disk_slabs_destroy(&d->slabs);
    qr_disk_home_close(d->config.io, &d->home);
    free(d->headers);
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->room);
    pthread_mutex_destroy(&d->lock);
    free(d);
    *disk = NULL;
}

/* ---- transfers -------------------------------------------------------------------------- */

static quire_status transfer_start(struct qr_disk *disk, enum qr_disk_op kind,
                                   const struct qr_disk_transfer *transfer,
                                   uint64_t *ticket_out)
{
    const struct qr_disk_place *place = &transfer->place;
    const struct qr_ring_op op = {.op = kind,
                                  .file = disk->ring_files[place->device],
                                  .offset = qr_disk_slabs_offset(disk->slabs, place),
                                  .buffer = transfer->buffer,
                                  .bytes = place->bytes,
                                  .capacity = transfer->capacity,
                                  .urgency = transfer->urgency,
                                  .more = transfer->more,
                                  .deadline_ns = transfer->deadline_ns,
                                  .done = transfer->done,
                                  .arg = transfer->arg};

    if (disk->home.devices[place->device].slab_fd < 0)
        return QUIRE_EIO;
    return qr_ring_submit(disk->ring, &op, ticket_out);
}

quire_status qr_disk_read(struct qr_disk *disk, const struct qr_disk_transfer *transfer,
                          uint64_t *ticket_out)
{
    return transfer_start(disk, QR_DISK_READ, transfer, ticket_out);
}

/* An answer before the device's would let the slot be given to another page while the first
 * one's bytes may still arrive. */
quire_status qr_disk_write(struct qr_disk *disk, const struct qr_disk_transfer *transfer,
                           uint64_t *ticket_out)
{
    assert(transfer->deadline_ns == 0);
    return transfer_start(disk, QR_DISK_WRITE, transfer, ticket_out);
}

bool qr_disk_cancel(struct qr_disk *disk, uint64_t ticket)
{
    return qr_ring_cancel(disk->ring, ticket);
}

/* ---- as a tier -------------------------------------------------------------------------- */

struct qr_disk_place qr_disk_place_of(struct qr_disk *disk, const struct qr_slot *slot)
{
    return (struct qr_disk_place){.device = slot->region / disk->regions_of_device,
                                  .region = slot->region % disk->regions_of_device,
                                  .slot = slot->number,
                                  .bytes = slot->bytes};
}

struct qr_slot qr_disk_slot_of(struct qr_disk *disk, const struct qr_disk_place *place)
{
    return (struct qr_slot){.region = place->device * disk->regions_of_device + place->region,
                            .number = place->slot,
                            .bytes = place->bytes};
}

static void tier_destroy(struct qr_tier **tier)
{
    *tier = NULL; /* qr_disk_close ends it */
}

static quire_status tier_reserve(struct qr_tier *tier, size_t bytes, struct qr_slot *out)
{
    struct qr_disk *disk = disk_of(tier);
    struct qr_disk_place place;
    const quire_status status = qr_disk_slabs_reserve(disk->slabs, bytes, &place);

    if (status == QUIRE_OK)
        *out = qr_disk_slot_of(disk, &place);
    return status;
}

static size_t tier_rounded(struct qr_tier *tier, size_t bytes)
{
    (void)tier;
    return qr_disk_class_bytes(qr_disk_class(bytes));
}

static void tier_release(struct qr_tier *tier, struct qr_slot *slot)
{
    const struct qr_disk_place place = qr_disk_place_of(disk_of(tier), slot);

    qr_disk_slabs_release(disk_of(tier)->slabs, &place);
    memset(slot, 0, sizeof(*slot));
}

static void *tier_map(struct qr_tier *tier, const struct qr_slot *slot)
{
    (void)tier;
    (void)slot;
    return NULL;
}

static quire_status tier_write(struct qr_tier *tier, const struct qr_slot *slot,
                               const void *bytes, qr_tier_done *done, void *arg)
{
    const struct qr_disk_transfer transfer = {.place = qr_disk_place_of(disk_of(tier), slot),
                                              .buffer = (void *)(uintptr_t)bytes,
                                              .capacity = slot->bytes,
                                              .urgency = QR_RING_WRITE_BACK,
                                              .done = done,
                                              .arg = arg};
    return qr_disk_write(disk_of(tier), &transfer, NULL);
}

static quire_status tier_read(struct qr_tier *tier, const struct qr_slot *slot, void *bytes,
                              qr_tier_done *done, void *arg)
{
    const struct qr_disk_transfer transfer = {.place = qr_disk_place_of(disk_of(tier), slot),
                                              .buffer = bytes,
                                              .capacity = slot->bytes,
                                              .urgency = QR_RING_FOREGROUND,
                                              .done = done,
                                              .arg = arg};
    return qr_disk_read(disk_of(tier), &transfer, NULL);
}

static void tier_stat(struct qr_tier *tier, struct qr_tier_stat *out)
{
    struct qr_disk *disk = disk_of(tier);

    *out = (struct qr_tier_stat){.failures = qr_disk_slabs_failures(disk->slabs)};
    for (uint32_t d = 0; d < disk->home.count; d++) {
        struct qr_disk_device_stat device;
        qr_disk_slabs_stat(disk->slabs, d, &device);
        out->budget_bytes += device.cap_bytes;
        out->reserved_bytes += device.reserved_bytes;
        out->payload_bytes += device.payload_bytes;
        out->slots += device.slots;
    }
}

static const struct qr_tier_ops disk_ops = {.name = "disk",
                                            .destroy = tier_destroy,
                                            .reserve = tier_reserve,
                                            .rounded = tier_rounded,
                                            .release = tier_release,
                                            .map = tier_map,
                                            .write = tier_write,
                                            .read = tier_read,
                                            .stat = tier_stat};

struct qr_tier *qr_disk_tier(struct qr_disk *disk)
{
    return &disk->tier;
}

struct qr_disk_index *qr_disk_index_of(struct qr_disk *disk)
{
    return disk->index;
}

struct qr_tail_log *qr_disk_tail_log_of(struct qr_disk *disk)
{
    return disk->tail;
}

void qr_disk_stat(struct qr_disk *disk, struct qr_disk_stat *out)
{
    *out = (struct qr_disk_stat){.devices = disk->home.count,
                                 .pages_at_open = disk->pages_at_open,
                                 .bad_entries = disk->bad_entries,
                                 .open_index_us = disk->open_index_us,
                                 .open_scan_us = disk->open_scan_us,
                                 .commits = qr_counter_read(&disk->commits),
                                 .groups = qr_counter_read(&disk->groups),
                                 .sync_failures = qr_counter_read(&disk->sync_failures),
                                 .commits_refused = qr_counter_read(&disk->commits_refused),
                                 .in_doubt = qr_counter_read(&disk->in_doubt),
                                 .quarantined = qr_counter_read(&disk->quarantined)};
    pthread_mutex_lock(&disk->lock);
    out->commits_queued = disk->queued;
    pthread_mutex_unlock(&disk->lock);
    for (uint32_t d = 0; d < disk->home.count; d++)
        qr_disk_slabs_stat(disk->slabs, d, &out->device[d]);
    qr_ring_stat(disk->ring, &out->ring);
    qr_disk_index_stat(disk->index, &out->index);
    qr_tail_log_stat(disk->tail, &out->tail);
}
