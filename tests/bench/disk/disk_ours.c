/* SPDX-License-Identifier: Apache-2.0
 *
 * Quire's side: the same pages through the disk tier, with slots, group commits
 * and index entries.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "disk_bench.h"
#include "proto/page.h"
#include "storage/base/clock.h"

#define DEADLINE_NS UINT64_C(10000000000)

void ours_open(struct ours *ours, const char *folder, const struct shape *shape,
               uint32_t rounds)
{
    static char path[512];
    struct qr_error e = {0};
    const uint64_t bytes = (uint64_t)shape->pages * rounds * shape->page_bytes;
    struct qr_disk_config config = {
        .count = 1, .create = true, .cap_bytes = {bytes + bytes / 8 + (UINT64_C(1) << 30)}};

    (void)snprintf(path, sizeof(path), "%s/store", folder);
    config.folders[0] = path;
    const quire_status status = qr_disk_open(&config, NULL, NULL, &ours->disk, &e);
    if (status != QUIRE_OK)
        fprintf(stderr, "%s\n", e.text);
    must(status == QUIRE_OK, "open the store");
    ours->places = calloc((size_t)shape->pages * rounds, sizeof(*ours->places));
    must(ours->places != NULL, "memory");
    /* The raw file is allocated beforehand: so are the slabs. */
    struct qr_tier *tier = qr_disk_tier(ours->disk);
    struct qr_slot *slots = calloc((size_t)shape->pages * rounds, sizeof(*slots));
    must(slots != NULL, "memory");
    for (uint32_t i = 0; i < shape->pages * rounds; i++)
        must(tier->ops->reserve(tier, shape->page_bytes, &slots[i]) == QUIRE_OK, "reserve");
    for (uint32_t i = 0; i < shape->pages * rounds; i++)
        tier->ops->release(tier, &slots[i]);
    free(slots);
}

void ours_close(struct ours *ours)
{
    qr_disk_close(&ours->disk);
    free(ours->places);
}

/* ---- write ------------------------------------------------------------------------------ */

struct appender {
    struct ours *ours;
    const struct shape *shape;
    const uint8_t *page;
    uint32_t round;
    _Atomic uint32_t *next; /* first page of the next batch */
};

static void append_batch(const struct appender *a, uint32_t first)
{
    const struct shape *shape = a->shape;
    struct qr_disk_put puts[256];
    uint8_t ids[256][QR_HASH_BYTES];

    for (uint32_t i = 0; i < shape->batch; i++) {
        const uint64_t number = (uint64_t)a->round * shape->pages + first + i;
        const uint64_t mixed[4] = {(number + 1) * UINT64_C(0x9E3779B97F4A7C15), number};
        memcpy(ids[i], mixed, QR_HASH_BYTES); /* page ids are hashes: spread them like those */
        puts[i] = (struct qr_disk_put){
            .page_id = ids[i],
            .bytes = (void *)(uintptr_t)a->page,
            .capacity = shape->page_bytes,
            .page = {.place = {.bytes = (uint32_t)shape->page_bytes}, .checksum = number}};
    }
    must(qr_disk_put_pages(a->ours->disk, puts, shape->batch, NULL) == QUIRE_OK, "append");
    for (uint32_t i = 0; i < shape->batch; i++)
        a->ours->places[a->round * shape->pages + first + i] = puts[i].page.place;
}

static void *append_main(void *arg)
{
    const struct appender *a = arg;

    for (;;) {
        const uint32_t first = atomic_fetch_add(a->next, a->shape->batch);
        if (first >= a->shape->pages)
            return NULL;
        append_batch(a, first);
    }
}

double ours_write(struct ours *ours, const struct shape *shape, uint32_t round,
                  const uint8_t *page, uint32_t appenders)
{
    _Atomic uint32_t next = 0;
    struct appender a = {ours, shape, page, round, &next};
    pthread_t threads[16];
    const double start = seconds();

    for (uint32_t t = 1; t < appenders; t++)
        must(pthread_create(&threads[t], NULL, append_main, &a) == 0, "thread");
    (void)append_main(&a);
    for (uint32_t t = 1; t < appenders; t++)
        (void)pthread_join(threads[t], NULL);
    return seconds() - start;
}

/* ---- read ------------------------------------------------------------------------------- */

struct reading {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    uint32_t buffers[256], free_count; /* guarded by lock */
    bool failed;
};

struct read_one {
    struct reading *all;
    uint32_t buffer;
};

static void read_done(void *arg, quire_status status)
{
    const struct read_one *one = arg;
    struct reading *all = one->all;

    pthread_mutex_lock(&all->lock);
    all->failed = all->failed || status != QUIRE_OK;
    all->buffers[all->free_count++] = one->buffer;
    pthread_cond_signal(&all->freed);
    pthread_mutex_unlock(&all->lock);
}

static uint32_t take_buffer(struct reading *all)
{
    pthread_mutex_lock(&all->lock);
    while (all->free_count == 0)
        pthread_cond_wait(&all->freed, &all->lock);
    const uint32_t buffer = all->buffers[--all->free_count];
    pthread_mutex_unlock(&all->lock);
    return buffer;
}

double ours_read(struct ours *ours, const struct shape *shape, uint32_t round,
                 const uint32_t *order, bool deadline)
{
    struct reading all = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, {0}, 0, false};
    struct read_one ones[256];
    uint8_t *buffers = must_alloc_aligned(shape->batch * shape->page_bytes);

    for (uint32_t i = 0; i < shape->batch; i++) {
        ones[i] = (struct read_one){&all, i};
        all.buffers[all.free_count++] = i;
    }
    const double start = seconds();
    for (uint32_t i = 0; i < shape->pages; i++) {
        const uint32_t buffer = take_buffer(&all);
        const struct qr_disk_transfer transfer = {
            .place = ours->places[round * shape->pages + order[i]],
            .buffer = buffers + buffer * shape->page_bytes,
            .capacity = shape->page_bytes,
            .deadline_ns = deadline ? qr_clock_ns() + DEADLINE_NS : 0,
            .done = read_done,
            .arg = &ones[buffer]};
        must(qr_disk_read(ours->disk, &transfer, NULL) == QUIRE_OK, "read");
    }
    for (uint32_t i = 0; i < shape->batch; i++)
        (void)take_buffer(&all);
    must(!all.failed, "read");
    const double spent = seconds() - start;
    free(buffers);
    return spent;
}
