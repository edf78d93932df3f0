/* SPDX-License-Identifier: Apache-2.0
 *
 * The commit thread: takes what is queued as one group, syncs the devices and
 * the tail log, writes the index once, frees slots, answers. While it works the
 * next group gathers. Between groups it looks after what has failed, and after
 * the tail log's sparse segments.
 *
 *   queued -> syncs (each device on its own, with a deadline) -> index batch of those whose
 * syncs were good -> freed slots released -> done
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <time.h>

#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "tier_disk_impl.h"

#define GROUP_MAX 256u
#define UPKEEP_NS UINT64_C(500000000)
#define SYNC_TIMEOUT_MS 5000u

/* ---- syncs ------------------------------------------------------------------------------ */

struct syncs {
    pthread_mutex_t lock;
    pthread_cond_t all_done;
    uint32_t left;                            /* guarded by lock */
    quire_status status[QR_DISK_DEVICES_MAX]; /* guarded by lock */
};

struct sync_one {
    struct syncs *all;
    uint32_t device;
};

static void sync_done(void *arg, quire_status status)
{
    const struct sync_one *one = arg;
    struct syncs *all = one->all;

    pthread_mutex_lock(&all->lock);
    all->status[one->device] = status;
    if (--all->left == 0)
        pthread_cond_signal(&all->all_done);
    pthread_mutex_unlock(&all->lock);
}

/* Without the way over the ring's thread and back. */
static quire_status sync_here(struct qr_disk *disk, uint32_t device)
{
    struct qr_disk_io *io = disk->config.io;
    int error;

    do {
        error = io->sync(io, disk->home.devices[device].slab_fd);
    } while (error == -EINTR);
    return qr_disk_status(error);
}

static void sync_start(struct qr_disk *disk, struct sync_one *one)
{
    const uint32_t timeout_ms =
        disk->config.sync_timeout_ms ? disk->config.sync_timeout_ms : SYNC_TIMEOUT_MS;
    const struct qr_ring_op op = {.op = QR_DISK_SYNC,
                                  .file = disk->ring_files[one->device],
                                  .urgency = QR_RING_COMMIT,
                                  .deadline_ns = qr_clock_ns() + timeout_ms * UINT64_C(1000000),
                                  .done = sync_done,
                                  .arg = one};

    if (disk->home.devices[one->device].slab_fd < 0)
        sync_done(one, QUIRE_EIO);
    else if (disk->home.count == 1) /* none to protect from it, and the index is on it too */
        sync_done(one, sync_here(disk, one->device));
    else if (qr_ring_submit(disk->ring, &op, NULL) != QUIRE_OK)
        sync_done(one, QUIRE_ETIMEOUT); /* earlier syncs hang */
}

void qr_disk_device_failed(struct qr_disk *disk, uint32_t device, quire_status status)
{
    const uint32_t bit = 1u << device;

    atomic_store(&disk->probes[device].good, false);
    if (atomic_fetch_or(&disk->failed_devices, bit) & bit)
        return;
    qr_disk_slabs_set_failed(disk->slabs, device, true);
    QR_LOG(QR_LOG_ERROR, "disk.device_failed",
           QR_LOG_STR("folder", disk->config.folders[device]),
           QR_LOG_STR("status", qr_status_name(status)));
}

/* A sync's verdict: a failed device is back when a write and then a sync succeeded. */
static void note_sync(struct qr_disk *disk, uint32_t device, quire_status status)
{
    const uint32_t bit = 1u << device;

    if (status != QUIRE_OK) {
        qr_counter_add(&disk->sync_failures, 1);
        qr_disk_device_failed(disk, device, status);
    } else if ((atomic_load(&disk->failed_devices) & bit) &&
               atomic_load(&disk->probes[device].good)) {
        atomic_fetch_and(&disk->failed_devices, ~bit);
        qr_disk_slabs_set_failed(disk->slabs, device, false);
        QR_LOG(QR_LOG_INFO, "disk.device_back",
               QR_LOG_STR("folder", disk->config.folders[device]));
    }
}

static void probe_done(void *arg, quire_status status)
{
    struct qr_disk_probe *probe = arg;

    atomic_store(&probe->good, status == QUIRE_OK);
    atomic_store(&probe->flying, false);
}

/* One at a time: on a device that hangs it waits as long as it takes. */
static void probe_start(struct qr_disk *disk, uint32_t device)
{
    struct qr_disk_probe *probe = &disk->probes[device];
    const struct qr_ring_op op = {.op = QR_DISK_WRITE,
                                  .file = disk->ring_files[device],
                                  .buffer = disk->headers + (size_t)device * QR_DISK_BLOCK,
                                  .bytes = QR_DISK_BLOCK,
                                  .capacity = QR_DISK_BLOCK,
                                  .urgency = QR_RING_COMMIT,
                                  .done = probe_done,
                                  .arg = probe};

    if (disk->home.devices[device].slab_fd < 0 || atomic_exchange(&probe->flying, true))
        return;
    if (qr_ring_submit(disk->ring, &op, NULL) != QUIRE_OK)
        atomic_store(&probe->flying, false);
}

/* Sync the devices of a mask, and meanwhile the tail log on this thread. */
static quire_status sync_all(struct qr_disk *disk, uint32_t devices, bool tail,
                             quire_status status[QR_DISK_DEVICES_MAX])
{
    struct syncs all = {.left = (uint32_t)__builtin_popcount(devices)};
    struct sync_one ones[QR_DISK_DEVICES_MAX];
    quire_status tail_status = QUIRE_OK;

    pthread_mutex_init(&all.lock, NULL);
    pthread_cond_init(&all.all_done, NULL);
    for (uint32_t d = 0; d < disk->home.count; d++) {
        ones[d] = (struct sync_one){&all, d};
        if (devices >> d & 1)
            sync_start(disk, &ones[d]);
    }
    if (tail)
        tail_status = qr_tail_log_sync(disk->tail, NULL);
    pthread_mutex_lock(&all.lock);
    while (all.left > 0)
        pthread_cond_wait(&all.all_done, &all.lock);
    pthread_mutex_unlock(&all.lock);
    for (uint32_t d = 0; d < disk->home.count; d++) {
        status[d] = all.status[d];
        if (devices >> d & 1)
            note_sync(disk, d, status[d]);
    }
    pthread_cond_destroy(&all.all_done);
    pthread_mutex_destroy(&all.lock);
    return tail_status;
}

/* ---- groups ----------------------------------------------------------------------------- */

static void judge(const struct qr_disk *disk, struct qr_disk_commit *commit,
                  const quire_status devices[QR_DISK_DEVICES_MAX], quire_status tail)
{
    commit->in_doubt = false;
    commit->status = commit->tail ? tail : QUIRE_OK;
    for (uint32_t d = 0; d < disk->home.count && commit->status == QUIRE_OK; d++) {
        if (commit->devices >> d & 1)
            commit->status = devices[d];
    }
    if (commit->status == QUIRE_OK && commit->batch && commit->batch->failed)
        commit->status = QUIRE_ENOMEM;
}

/* After a failed write the index was opened anew: whether its files have the batch, which is
 * there as a whole or not at all. When it does not open there is no telling. */
static bool may_be_there(struct qr_disk *disk, const struct qr_disk_batch *batch)
{
    uint8_t value[QR_DISK_SESSION_RECORD_MAX];
    struct qr_disk_change change;
    struct qr_disk_key key;
    size_t at = 0, n;

    if (!qr_disk_batch_next(batch, &at, &change) || change.key_bytes > sizeof(key.bytes))
        return true;
    key.n = change.key_bytes;
    memcpy(key.bytes, change.key, key.n);
    const quire_status status = qr_disk_index_get(disk->index, &key, value, sizeof(value), &n);
    if (status != QUIRE_OK)
        return status != QUIRE_ENOTFOUND || !change.put;
    return change.put && (n != change.value_bytes || n > sizeof(value) ||
                          memcmp(value, change.value, n) == 0);
}

static void write_index(struct qr_disk *disk, struct qr_disk_commit *first)
{
    const struct qr_disk_batch *batches[GROUP_MAX];
    struct qr_error e = {0};
    size_t count = 0;

    for (struct qr_disk_commit *c = first; c; c = c->next) {
        if (c->status == QUIRE_OK && c->batch && c->batch->count > 0)
            batches[count++] = c->batch;
    }
    if (count == 0)
        return;
    const quire_status status = qr_disk_index_write(disk->index, batches, count, &e);
    if (status == QUIRE_OK)
        return;
    QR_LOG(QR_LOG_ERROR, "disk.commit_failed", QR_LOG_STR("why", e.text),
           QR_LOG_U64("commits", count));
    for (struct qr_disk_commit *c = first; c; c = c->next) {
        if (c->status == QUIRE_OK && c->batch && c->batch->count > 0) {
            c->status = status;
            c->in_doubt = may_be_there(disk, c->batch);
            qr_counter_add(&disk->in_doubt, c->in_doubt);
        }
    }
}

static void finish(struct qr_disk *disk, struct qr_disk_commit *first)
{
    while (first) {
        struct qr_disk_commit *commit = first;
        first = commit->next; /* done may free it */
        for (size_t i = 0; i < commit->freed_count && commit->status == QUIRE_OK; i++)
            qr_disk_slabs_release(disk->slabs, &commit->freed[i]);
        qr_counter_add(&disk->commits, 1);
        commit->done(commit->arg, commit->status);
    }
}

static void run_group(struct qr_disk *disk, struct qr_disk_commit *first)
{
    quire_status devices[QR_DISK_DEVICES_MAX] = {0};
    uint32_t mask = 0;
    bool tail = false;

    if (first->prepare)
        first->prepare(first);
    for (const struct qr_disk_commit *c = first; c; c = c->next) {
        mask |= c->devices;
        tail = tail || c->tail;
    }
    const quire_status tail_status = sync_all(disk, mask, tail, devices);
    for (struct qr_disk_commit *c = first; c; c = c->next)
        judge(disk, c, devices, tail_status);
    write_index(disk, first);
    qr_counter_add(&disk->groups, 1);
    finish(disk, first);
}

/* ---- the thread ------------------------------------------------------------------------- */

static void heal_devices(struct qr_disk *disk)
{
    quire_status ignored[QR_DISK_DEVICES_MAX];
    const uint32_t failed = atomic_load(&disk->failed_devices);
    uint32_t probed = 0;
    for (uint32_t d = 0; d < disk->home.count; d++) {
        if (!(failed >> d & 1))
            continue;
        if (atomic_load(&disk->probes[d].good))
            probed |= 1u << d;
        else
            probe_start(disk, d);
    }
    if (probed)
        (void)sync_all(disk, probed, false, ignored);
}

static void upkeep(struct qr_disk *disk)
{
    struct qr_disk_index_stat stat;
    struct qr_error e = {0};

    heal_devices(disk);
    qr_disk_slabs_grow_ahead(disk->slabs);
    qr_disk_index_stat(disk->index, &stat);
    if (stat.state != QR_DISK_WRITABLE)
        (void)qr_disk_index_recover(disk->index, NULL);
    if (qr_tail_log_compact(disk->tail, &e) != QUIRE_OK)
        QR_LOG(QR_LOG_WARN, "disk.tail_log_not_compacted", QR_LOG_STR("why", e.text));
}

static void wait_until(struct qr_disk *disk, uint64_t until_ns)
{
    const struct timespec at = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                .tv_nsec = (long)(until_ns % 1000000000u)};
    (void)pthread_cond_timedwait(&disk->work, &disk->lock, &at);
}

/* Up to GROUP_MAX commits, in order; one with `prepare` goes alone. lock held. */
static struct qr_disk_commit *take_group(struct qr_disk *disk)
{
    struct qr_disk_commit *first = disk->first, *last = first;
    uint32_t n = 1;

    if (!first)
        return NULL;
    for (; !first->prepare && last->next && !last->next->prepare && n < GROUP_MAX; n++)
        last = last->next;
    disk->first = last->next;
    disk->queued -= n;
    pthread_cond_broadcast(&disk->room);
    if (!disk->first)
        disk->last = NULL;
    last->next = NULL;
    return first;
}

static void *committer_main(void *arg)
{
    struct qr_disk *disk = arg;
    uint64_t upkeep_at_ns = qr_clock_ns() + UPKEEP_NS;

    pthread_mutex_lock(&disk->lock);
    while (!disk->stopping || disk->first) {
        if (!disk->first && qr_clock_ns() < upkeep_at_ns) {
            wait_until(disk, upkeep_at_ns);
            continue;
        }
        if (disk->first && disk->first == disk->last && disk->config.commit_wait_us > 0)
            wait_until(disk, qr_clock_ns() + disk->config.commit_wait_us * UINT64_C(1000));
        struct qr_disk_commit *group = take_group(disk);
        pthread_mutex_unlock(&disk->lock);
        if (group)
            run_group(disk, group);
        if (qr_clock_ns() >= upkeep_at_ns) {
            upkeep(disk);
            upkeep_at_ns = qr_clock_ns() + UPKEEP_NS;
        }
        pthread_mutex_lock(&disk->lock);
    }
    pthread_mutex_unlock(&disk->lock);
    return NULL;
}

quire_status qr_disk_commit_start(struct qr_disk *disk, struct qr_error *e)
{
    const int error = pthread_create(&disk->committer, NULL, committer_main, disk);

    if (error != 0)
        return qr_error_set(e, QUIRE_ENOMEM, "cannot start the commit thread");
    disk->committer_runs = true;
    return QUIRE_OK;
}

void qr_disk_commit_stop(struct qr_disk *disk)
{
    if (!disk->committer_runs)
        return;
    pthread_mutex_lock(&disk->lock);
    disk->stopping = true;
    pthread_cond_broadcast(&disk->work);
    pthread_mutex_unlock(&disk->lock);
    (void)pthread_join(disk->committer, NULL);
    disk->committer_runs = false;
}

/* ---- callers ---------------------------------------------------------------------------- */

static void queue_locked(struct qr_disk *disk, struct qr_disk_commit *commit)
{
    assert(!disk->stopping);
    commit->next = NULL;
    if (disk->last)
        disk->last->next = commit;
    else
        disk->first = commit;
    disk->last = commit;
    disk->queued++;
    pthread_cond_signal(&disk->work);
}

quire_status qr_disk_commit(struct qr_disk *disk, struct qr_disk_commit *commit)
{
    pthread_mutex_lock(&disk->lock);
    const bool full = disk->queued >= disk->config.commit_queue_max;
    if (!full)
        queue_locked(disk, commit);
    pthread_mutex_unlock(&disk->lock);
    if (full)
        qr_counter_add(&disk->commits_refused, 1);
    return full ? QUIRE_EAGAIN : QUIRE_OK;
}

struct commit_waiter {
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool fired;          /* guarded by lock */
    quire_status status; /* guarded by lock */
};

static void wake_waiter(void *arg, quire_status status)
{
    struct commit_waiter *w = arg;

    pthread_mutex_lock(&w->lock);
    w->fired = true;
    w->status = status;
    pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->lock);
}

quire_status qr_disk_commit_wait(struct qr_disk *disk, struct qr_disk_commit *commit)
{
    struct commit_waiter w = {.fired = false};

    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.done, NULL);
    commit->done = wake_waiter;
    commit->arg = &w;
    pthread_mutex_lock(&disk->lock);
    while (disk->queued >= disk->config.commit_queue_max)
        pthread_cond_wait(&disk->room, &disk->lock);
    queue_locked(disk, commit);
    pthread_mutex_unlock(&disk->lock);
    pthread_mutex_lock(&w.lock);
    while (!w.fired)
        pthread_cond_wait(&w.done, &w.lock);
    pthread_mutex_unlock(&w.lock);
    pthread_cond_destroy(&w.done);
    pthread_mutex_destroy(&w.lock);
    return w.status;
}

quire_status qr_disk_flush(struct qr_disk *disk)
{
    struct qr_disk_commit commit = {.tail = true};

    for (uint32_t d = 0; d < disk->home.count; d++) {
        if (disk->home.devices[d].slab_fd >= 0)
            commit.devices |= 1u << d;
    }
    return qr_disk_commit_wait(disk, &commit);
}
