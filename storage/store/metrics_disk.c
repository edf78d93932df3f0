/* SPDX-License-Identifier: Apache-2.0
 *
 * Gauges of the disk tier: how full it is, what waits, how much is written for
 * what was asked to be written, whether its index takes writes.
 */
#include <inttypes.h>
#include <stdio.h>

#include "durable.h"
#include "metrics.h"
#include "storage/tier/disk_scrub.h"

/* What this process has caused to be written to block devices; 0 where the kernel does not say.
 */
static uint64_t written_bytes(void)
{
    uint64_t bytes = 0;
    char line[128];
    FILE *file = fopen("/proc/self/io", "re");

    if (!file)
        return 0;
    while (fgets(line, sizeof(line), file)) {
        if (sscanf(line, "write_bytes: %" SCNu64, &bytes) == 1)
            break;
    }
    fclose(file);
    return bytes;
}

static void add_space(struct qr_metric_list *list, const struct qr_disk_stat *stat)
{
    uint64_t cap = 0, reserved = 0, payload = 0, slots = 0, files = 0, failed = 0;

    for (uint32_t d = 0; d < stat->devices; d++) {
        cap += stat->device[d].cap_bytes;
        reserved += stat->device[d].reserved_bytes;
        payload += stat->device[d].payload_bytes;
        slots += stat->device[d].slots;
        files += stat->device[d].file_bytes;
        failed += stat->device[d].failed;
    }
    qr_metric_add(list, "disk_devices", "devices", "Disk tier: folders", stat->devices);
    qr_metric_add(list, "disk_devices_failed", "devices",
                  "Disk tier: folders that take no writes", failed);
    qr_metric_add(list, "disk_cap_bytes", "bytes", "Disk tier: hard limit of pages", cap);
    qr_metric_add(list, "disk_file_bytes", "bytes", "Disk tier: slab files", files);
    qr_metric_add(list, "disk_reserved_bytes", "bytes",
                  "Disk tier: in slots, rounding included", reserved);
    qr_metric_add(list, "disk_payload_bytes", "bytes", "Disk tier: in slots, as asked for",
                  payload);
    qr_metric_add(list, "disk_slots", "slots", "Disk tier: slots in use", slots);
}

static void add_work(struct qr_metric_list *list, const struct qr_disk_stat *stat)
{
    const double payload = (double)stat->ring.write_bytes + (double)stat->tail.written_bytes;
    const double written = (double)written_bytes();

    qr_metric_add(list, "disk_queued", "operations", "Disk tier: waiting for a device",
                  stat->ring.queued);
    qr_metric_add(list, "disk_flying", "operations", "Disk tier: at a device now",
                  stat->ring.flying);
    qr_metric_add(list, "disk_commits_queued", "commits", "Disk tier: commits waiting",
                  stat->commits_queued);
    qr_metric_add(list, "disk_read_bytes", "bytes", "Disk tier: page bytes read",
                  stat->ring.read_bytes);
    qr_metric_add(list, "disk_write_bytes", "bytes", "Disk tier: page bytes written",
                  stat->ring.write_bytes);
    qr_metric_add(list, "disk_commits", "commits", "Disk tier: commits", stat->commits);
    qr_metric_add(list, "disk_syncs", "groups",
                  "Disk tier: groups of commits that shared a sync", stat->groups);
    qr_metric_add(list, "disk_sync_failures", "syncs", "Disk tier: syncs that failed",
                  stat->sync_failures);
    qr_metric_add_double(list, "disk_write_amplification", "ratio",
                         "Bytes that this process wrote to devices for one of pages and rows",
                         payload > 0 ? written / payload : 0);
    qr_metric_add(list, "tail_log_bytes", "bytes", "Tail log: files", stat->tail.file_bytes);
    qr_metric_add(list, "tail_log_live_bytes", "bytes", "Tail log: records that count",
                  stat->tail.live_bytes);
    qr_metric_add(list, "tail_log_write_bytes", "bytes", "Tail log: written",
                  stat->tail.written_bytes);
}

static void add_index(struct qr_metric_list *list, const struct qr_disk_stat *stat)
{
    qr_metric_add(list, "disk_index_state", "state",
                  "Disk index: 0 takes writes, 1 reads only, 2 closed", stat->index.state);
    qr_metric_add(list, "disk_index_entries", "entries", "Disk index: about so many",
                  stat->index.entries);
    qr_metric_add(list, "disk_index_memory_bytes", "bytes", "Disk index: memory",
                  stat->index.ram_bytes);
    qr_metric_add(list, "disk_bad_entries", "entries",
                  "Disk index: entries that could not be right at the start",
                  stat->bad_entries);
    qr_metric_add(list, "disk_quarantined", "pages", "Pages on disk found damaged",
                  stat->quarantined);
}

static void add_scrub(struct qr_store *store, struct qr_metric_list *list)
{
    struct qr_disk_scrub_stat stat = {0};

    if (store->scrub)
        qr_disk_scrub_stat(store->scrub, &stat);
    qr_metric_add(list, "scrub_bytes_per_s", "bytes", "Scrubber: how much it may read a second",
                  stat.bytes_per_s);
    qr_metric_add(list, "scrub_pages", "pages", "Scrubber: read and found right", stat.pages);
    qr_metric_add(list, "scrub_bad", "pages", "Scrubber: found damaged, in quarantine now",
                  stat.bad);
    qr_metric_add(list, "scrub_passes", "passes", "Scrubber: passes over all pages",
                  stat.passes);
    qr_metric_add_double(list, "scrub_position", "ratio", "Scrubber: of the pass under way",
                         stat.position_permille / 1000.0);
}

void qr_metrics_disk(struct qr_store *store, struct qr_metric_list *list)
{
    struct qr_disk_stat stat;

    if (!store->disk)
        return;
    qr_disk_stat(store->disk, &stat);
    qr_metric_add(list, "dirty_bytes", "bytes", "Pages that only memory has",
                  qr_index_dirty_bytes(store->index));
    add_space(list, &stat);
    add_work(list, &stat);
    add_index(list, &stat);
    add_scrub(store, list);
}

bool qr_store_disk_writable(struct qr_store *store)
{
    struct qr_disk_stat stat;

    if (!store->disk)
        return false;
    qr_disk_stat(store->disk, &stat);
    return stat.index.state == QR_DISK_WRITABLE;
}
