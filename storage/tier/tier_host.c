/* SPDX-License-Identifier: Apache-2.0
 *
 * The host-RAM tier: one arena, mapped and touched at start, cut into units; a
 * region is one or more units in a row that hold slots of one size class, and
 * goes back to the common pool when its last slot is released.
 *
 * Invariants, under `lock`:
 *  1. a unit belongs to no region (its bit in unit_free is set) or to exactly one;
 *  2. a region in use has 1 .. slots_max slots taken; its bitmap says which;
 *  3. a region is in its class's list exactly when it is in use and not full.
 */
#include "tier.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "size_class.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, n) ((void)(at), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(at, n) ((void)(at), (void)(n))
#endif

#define UNIT_BYTES_MAX (2u << 20) /* one huge page */
#define UNIT_BYTES_MIN (64u << 10)
#define UNITS_WANTED 64u /* small budgets get small units, so that sizes can mix */
#define BUDGET_MIN (4u << 20)
#define REGION_UNITS_TRIED 8u  /* how far to look for a region that loses less at its end */
#define REGION_LOSS_PERCENT 3u /* good enough: stop looking */
#define SLOTS_MAX (UNIT_BYTES_MAX / QR_SIZE_CLASS_MIN_BYTES)
#define NONE UINT32_MAX

struct region {
    uint32_t size_class;
    uint32_t units;            /* 0: not in use */
    uint32_t slots_max, taken; /* slots */
    uint32_t next, previous;   /* in the class's list */
    uint64_t used[SLOTS_MAX / 64];
};

struct tier_host {
    struct qr_tier tier;
    uint8_t *arena;                       /* const */
    size_t arena_bytes;                   /* const */
    size_t unit_bytes;                    /* const: power of two */
    uint32_t units;                       /* const */
    pthread_mutex_t lock;                 /* a leaf: nothing else is locked under it */
    struct region *regions;               /* [units], by first unit; guarded by lock */
    uint64_t *unit_free;                  /* bitmap; guarded by lock */
    uint32_t units_left;                  /* guarded by lock */
    uint32_t class_list[QR_SIZE_CLASSES]; /* first region with room; guarded by lock */
    struct qr_tier_stat stat;             /* guarded by lock */
};

static struct tier_host *host_of(struct qr_tier *tier)
{
    return (struct tier_host *)(void *)tier;
}

static uint32_t div_up(size_t a, size_t b)
{
    return (uint32_t)((a + b - 1) / b);
}

static uint8_t *slot_address(const struct tier_host *h, uint32_t region, uint32_t number)
{
    const size_t slot_bytes = qr_size_class_bytes(h->regions[region].size_class);
    return h->arena + (size_t)region * h->unit_bytes + number * slot_bytes;
}

static bool unit_is_free(const struct tier_host *h, uint32_t unit)
{
    return (h->unit_free[unit / 64] >> (unit % 64)) & 1;
}

static void units_mark(struct tier_host *h, uint32_t first, uint32_t count, bool is_free)
{
    for (uint32_t u = first; u < first + count; u++) {
        if (is_free)
            h->unit_free[u / 64] |= UINT64_C(1) << (u % 64);
        else
            h->unit_free[u / 64] &= ~(UINT64_C(1) << (u % 64));
    }
    if (is_free)
        h->units_left += count;
    else
        h->units_left -= count;
}

/* First fit: keeps the arena's end free for regions of many units. */
static uint32_t units_find(const struct tier_host *h, uint32_t count)
{
    uint32_t run = 0;

    if (count > h->units_left)
        return NONE;
    for (uint32_t u = 0; u < h->units; u++) {
        if (u % 64 == 0 && h->unit_free[u / 64] == 0) {
            u += 63;
            run = 0;
            continue;
        }
        run = unit_is_free(h, u) ? run + 1 : 0;
        if (run == count)
            return u + 1 - count;
    }
    return NONE;
}

/* Units for a region of this slot size: the smallest number that loses little at its end. */
static uint32_t region_units(const struct tier_host *h, size_t slot_bytes)
{
    const uint32_t least = div_up(slot_bytes, h->unit_bytes);
    uint32_t best = least;
    size_t best_loss = SIZE_MAX; /* per mille */

    for (uint32_t n = least; n < least + REGION_UNITS_TRIED; n++) {
        const size_t bytes = (size_t)n * h->unit_bytes;
        const size_t loss = bytes % slot_bytes * 1000u / bytes;
        if (n > least && n > h->units / 16)
            break;
        if (loss < best_loss) {
            best = n;
            best_loss = loss;
        }
        if (loss <= REGION_LOSS_PERCENT * 10u)
            break;
    }
    return best;
}

static void list_add(struct tier_host *h, uint32_t r)
{
    struct region *region = &h->regions[r];
    uint32_t *head = &h->class_list[region->size_class];

    region->previous = NONE;
    region->next = *head;
    if (*head != NONE)
        h->regions[*head].previous = r;
    *head = r;
}

static void list_remove(struct tier_host *h, uint32_t r)
{
    struct region *region = &h->regions[r];

    if (region->previous != NONE)
        h->regions[region->previous].next = region->next;
    else
        h->class_list[region->size_class] = region->next;
    if (region->next != NONE)
        h->regions[region->next].previous = region->previous;
}

static uint32_t region_start(struct tier_host *h, uint32_t size_class)
{
    const size_t slot_bytes = qr_size_class_bytes(size_class);
    uint32_t count = region_units(h, slot_bytes);
    uint32_t r = units_find(h, count);

    if (r == NONE) { /* a lossier region is better than none */
        count = div_up(slot_bytes, h->unit_bytes);
        r = units_find(h, count);
    }
    if (r == NONE)
        return NONE;
    units_mark(h, r, count, false);
    struct region *region = &h->regions[r];
    memset(region, 0, sizeof(*region));
    region->size_class = size_class;
    region->units = count;
    region->slots_max = (uint32_t)(count * h->unit_bytes / slot_bytes);
    list_add(h, r);
    return r;
}

static uint32_t slot_take(struct region *region)
{
    for (uint32_t word = 0;; word++) {
        const uint64_t room = ~region->used[word];
        if (room == 0)
            continue;
        const uint32_t bit = (uint32_t)__builtin_ctzll(room);
        region->used[word] |= UINT64_C(1) << bit;
        region->taken++;
        return word * 64 + bit;
    }
}

static quire_status host_reserve(struct qr_tier *tier, size_t bytes, struct qr_slot *out)
{
    struct tier_host *h = host_of(tier);

    if (bytes == 0 || bytes > QR_SIZE_CLASS_MAX_BYTES)
        return QUIRE_ETOOBIG;
    const uint32_t size_class = qr_size_class(bytes);
    const size_t slot_bytes = qr_size_class_bytes(size_class);
    if (slot_bytes > h->arena_bytes)
        return QUIRE_ETOOBIG;

    pthread_mutex_lock(&h->lock);
    uint32_t r = h->class_list[size_class];
    if (r == NONE)
        r = region_start(h, size_class);
    if (r == NONE) {
        h->stat.failures++;
        pthread_mutex_unlock(&h->lock);
        return QUIRE_EFULL;
    }
    struct region *region = &h->regions[r];
    *out = (struct qr_slot){.region = r, .number = slot_take(region), .bytes = (uint32_t)bytes};
    if (region->taken == region->slots_max)
        list_remove(h, r);
    h->stat.slots++;
    h->stat.reserved_bytes += slot_bytes;
    h->stat.payload_bytes += bytes;
    ASAN_UNPOISON_MEMORY_REGION(slot_address(h, r, out->number), slot_bytes);
    pthread_mutex_unlock(&h->lock);
    return QUIRE_OK;
}

static void host_release(struct qr_tier *tier, struct qr_slot *slot)
{
    struct tier_host *h = host_of(tier);
    const uint32_t r = slot->region;

    pthread_mutex_lock(&h->lock);
    assert(r < h->units);
    struct region *region = &h->regions[r];
    uint64_t *word = &region->used[slot->number / 64];
    const uint64_t bit = UINT64_C(1) << (slot->number % 64);
    assert(region->units > 0 && slot->number < region->slots_max && (*word & bit));

    const size_t slot_bytes = qr_size_class_bytes(region->size_class);
    ASAN_POISON_MEMORY_REGION(slot_address(h, r, slot->number), slot_bytes);
    *word &= ~bit;
    if (region->taken-- == region->slots_max)
        list_add(h, r);
    if (region->taken == 0) {
        list_remove(h, r);
        units_mark(h, r, region->units, true);
        region->units = 0;
    }
    h->stat.slots--;
    h->stat.reserved_bytes -= slot_bytes;
    h->stat.payload_bytes -= slot->bytes;
    pthread_mutex_unlock(&h->lock);
    memset(slot, 0, sizeof(*slot));
}

static size_t host_rounded(struct qr_tier *tier, size_t bytes)
{
    (void)tier;
    return qr_size_class_bytes(qr_size_class(bytes));
}

/* Lock-free: the class of a region does not change while one of its slots is held. */
static void *host_map(struct qr_tier *tier, const struct qr_slot *slot)
{
    return slot_address(host_of(tier), slot->region, slot->number);
}

static void host_stat(struct qr_tier *tier, struct qr_tier_stat *out)
{
    struct tier_host *h = host_of(tier);

    pthread_mutex_lock(&h->lock);
    *out = h->stat;
    pthread_mutex_unlock(&h->lock);
}

static void host_destroy(struct qr_tier **tier)
{
    struct tier_host *h = *tier ? host_of(*tier) : NULL;

    if (!h)
        return;
    if (h->arena) {
        ASAN_UNPOISON_MEMORY_REGION(h->arena, h->arena_bytes);
        (void)munmap(h->arena, h->arena_bytes);
    }
    free(h->regions);
    free(h->unit_free);
    pthread_mutex_destroy(&h->lock);
    free(h);
    *tier = NULL;
}

static const struct qr_tier_ops host_ops = {
    .name = "host",
    .destroy = host_destroy,
    .reserve = host_reserve,
    .rounded = host_rounded,
    .release = host_release,
    .map = host_map,
    .stat = host_stat,
};

/* MAP_POPULATE would touch before the advice; touching by hand works on every kernel. */
static void touch(uint8_t *arena, size_t bytes)
{
    if (madvise(arena, bytes, MADV_POPULATE_WRITE) == 0)
        return;
    for (size_t at = 0; at < bytes; at += 4096)
        ((volatile uint8_t *)arena)[at] = 0;
}

/* Aligned to a unit, so that a huge page never straddles two. */
static uint8_t *map_arena(size_t bytes, bool huge)
{
    const size_t mapped = bytes + UNIT_BYTES_MAX;
    uint8_t *base =
        mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (base == MAP_FAILED)
        return NULL;
    const size_t head = (UNIT_BYTES_MAX - (uintptr_t)base % UNIT_BYTES_MAX) % UNIT_BYTES_MAX;
    if (head > 0)
        (void)munmap(base, head);
    (void)munmap(base + head + bytes, mapped - head - bytes);
    (void)madvise(base + head, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    touch(base + head, bytes);
    return base + head;
}

static size_t unit_bytes_for(uint64_t budget_bytes)
{
    size_t unit = UNIT_BYTES_MAX;

    while (unit > UNIT_BYTES_MIN && budget_bytes / unit < UNITS_WANTED)
        unit /= 2;
    return unit;
}

quire_status qr_tier_host_create(const struct qr_tier_host_config *config, struct qr_tier **out,
                                 struct qr_error *e)
{
    const size_t unit_bytes = unit_bytes_for(config->budget_bytes);
    const uint64_t units = config->budget_bytes / unit_bytes;

    if (config->budget_bytes < BUDGET_MIN || units >= NONE)
        return qr_error_set(e, QUIRE_EINVAL,
                            "host budget of %llu bytes: need at least %u and at most 8 PiB",
                            (unsigned long long)config->budget_bytes, BUDGET_MIN);
    struct tier_host *h = calloc(1, sizeof(*h));
    if (!h)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the host tier");
    pthread_mutex_init(&h->lock, NULL);
    h->tier.ops = &host_ops;
    h->tier.regions_max = (uint32_t)units;
    h->unit_bytes = unit_bytes;
    h->units = (uint32_t)units;
    h->arena_bytes = (size_t)units * unit_bytes;
    h->stat.budget_bytes = h->arena_bytes;
    h->regions = calloc(h->units, sizeof(*h->regions));
    h->unit_free = calloc(div_up(h->units, 64), sizeof(*h->unit_free));
    h->arena = map_arena(h->arena_bytes, config->huge_pages != 0);
    for (uint32_t c = 0; c < QR_SIZE_CLASSES; c++)
        h->class_list[c] = NONE;
    if (!h->regions || !h->unit_free || !h->arena) {
        struct qr_tier *tier = &h->tier;
        host_destroy(&tier);
        return qr_error_set(e, QUIRE_ENOMEM, "cannot map %llu bytes for the host tier",
                            (unsigned long long)config->budget_bytes);
    }
    units_mark(h, 0, h->units, true);
    ASAN_POISON_MEMORY_REGION(h->arena, h->arena_bytes);
    *out = &h->tier;
    return QUIRE_OK;
}
