/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk tier's own record, shared by tier_disk*.c and disk_commit.c.
 */
#ifndef QR_TIER_DISK_IMPL_H
#define QR_TIER_DISK_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "storage/base/counter.h"
#include "tier_disk.h"

/** Whether a failed device takes writes again: its first block is written once more. */
struct qr_disk_probe {
    _Atomic bool flying; /* atomic: set by the commit thread, cleared when it has landed */
    _Atomic bool good;   /* atomic: the last one succeeded */
};

struct qr_disk {
    struct qr_tier tier;                      /* first: the two pointers are one */
    struct qr_disk_config config;             /* const */
    struct qr_disk_home home;                 /* const after open */
    struct qr_disk_slabs *slabs;              /* const */
    struct qr_disk_index *index;              /* const */
    struct qr_tail_log *tail;                 /* const */
    struct qr_ring *ring;                     /* const */
    uint32_t ring_files[QR_DISK_DEVICES_MAX]; /* const: ring file of a device */
    uint32_t regions_of_device;               /* const */
    uint64_t pages_at_open, bad_entries;      /* const after open */
    uint64_t open_index_us, open_scan_us;     /* const after open */

    pthread_t committer;
    bool committer_runs;
    pthread_mutex_t lock;                /* a leaf */
    pthread_cond_t work, room;           /* something to do; `queued` has shrunk */
    struct qr_disk_commit *first, *last; /* guarded by lock */
    uint32_t queued;                     /* guarded by lock: between first and last */
    bool stopping;                       /* guarded by lock */
    _Atomic uint32_t failed_devices;     /* atomic: bits; set by anyone, cleared by committer */
    struct qr_disk_probe probes[QR_DISK_DEVICES_MAX];
    uint8_t *headers; /* const: [devices] blocks, what the slab files begin with */
    struct qr_counter commits, commits_refused, groups, sync_failures, in_doubt, quarantined;
};

/** No new slots on it until a probe and a sync succeed. Any thread. */
void qr_disk_device_failed(struct qr_disk *disk, uint32_t device, quire_status status);
/** Start and end the commit thread. ENOMEM. */
quire_status qr_disk_commit_start(struct qr_disk *disk, struct qr_error *e);
void qr_disk_commit_stop(struct qr_disk *disk);

#endif
