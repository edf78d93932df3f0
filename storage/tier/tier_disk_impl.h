/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk tier's own record, shared by tier_disk*.c and disk_commit.c.
 */
#ifndef QR_TIER_DISK_IMPL_H
#define QR_TIER_DISK_IMPL_H

#include <pthread.h>

#include "storage/base/counter.h"
#include "tier_disk.h"

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
    pthread_mutex_t lock; /* a leaf */
    pthread_cond_t work;
    struct qr_disk_commit *first, *last; /* guarded by lock */
    bool stopping;                       /* guarded by lock */
    uint32_t failed_devices;             /* owner: commit thread */
    struct qr_counter commits, groups, sync_failures, in_doubt;
};

/** Start and end the commit thread. ENOMEM. */
quire_status qr_disk_commit_start(struct qr_disk *disk, struct qr_error *e);
void qr_disk_commit_stop(struct qr_disk *disk);

#endif
