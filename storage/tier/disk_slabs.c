/* SPDX-License-Identifier: Apache-2.0
 *
 * Free slots of the slab files.
 *
 * Invariants, under `lock`:
 *  1. regions [0, grown) of a device lie in its file, and grown never passes the cap's regions
 *     but by what the file had at start;
 *  2. a region in use has 1 .. slots_max slots taken, as its bits say, all of one class;
 *  3. a region is in its class's list exactly when it is in use, has room, and lies below the
 *     cap; free regions below the cap are in no list and `free_hint` is not above the lowest.
 */
#include "disk_slabs.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "disk_block.h"
#include "disk_class.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"

#define NONE UINT32_MAX
#define REGIONS_WANTED 64u                 /* at least, below the cap, so that sizes can mix */
#define FULL_PAUSE_NS UINT64_C(1000000000) /* after a full file system, before asking again */

struct region {
    uint32_t size_class;
    uint32_t slots_max; /* 0: free */
    uint32_t taken;
    uint32_t next, previous;
};

struct device {
    uint32_t regions_cap; /* const: regions that the cap allows */
    uint32_t regions;     /* const: of the arrays; more when the file was larger */
    uint32_t grown;       /* guarded by lock, like all below */
    uint32_t free_hint, regions_used;
    struct region *table;            /* [regions] */
    uint64_t *bits;                  /* [regions][words] */
    uint32_t lists[QR_DISK_CLASSES]; /* first region with room */
    uint64_t full_until_ns;
    struct qr_disk_device_stat stat;
};

struct qr_disk_slabs {
    struct qr_disk_slabs_config config; /* const */
    uint64_t region_bytes;              /* const */
    uint32_t words;                     /* const: of one region's bits */
    pthread_mutex_t grow_lock;          /* outside lock: one file grows at a time */
    pthread_mutex_t lock;               /* a leaf */
    uint32_t turn;                      /* guarded by lock */
    uint64_t failures;                  /* guarded by lock */
    uint32_t count;                     /* const */
    struct device devices[QR_DISK_DEVICES_MAX];
};

uint64_t qr_disk_region_bytes(uint64_t cap_bytes)
{
    uint64_t bytes = QR_DISK_REGION_MAX;

    while (bytes > QR_DISK_REGION_MIN && cap_bytes / bytes < REGIONS_WANTED)
        bytes /= 2;
    return bytes;
}

static uint64_t *bits_of(struct qr_disk_slabs *slabs, struct device *d, uint32_t region)
{
    return d->bits + (size_t)region * slabs->words;
}

static uint32_t slots_of(const struct qr_disk_slabs *slabs, uint32_t size_class)
{
    return (uint32_t)(slabs->region_bytes / qr_disk_class_bytes(size_class));
}

static void list_add(struct device *d, uint32_t r)
{
    uint32_t *head = &d->lists[d->table[r].size_class];

    d->table[r].previous = NONE;
    d->table[r].next = *head;
    if (*head != NONE)
        d->table[*head].previous = r;
    *head = r;
}

static void list_remove(struct device *d, uint32_t r)
{
    const struct region *region = &d->table[r];

    if (region->previous != NONE)
        d->table[region->previous].next = region->next;
    else
        d->lists[region->size_class] = region->next;
    if (region->next != NONE)
        d->table[region->next].previous = region->previous;
}

/* ---- create ----------------------------------------------------------------------------- */

static quire_status device_init(struct qr_disk_slabs *slabs, uint32_t number,
                                struct qr_error *e)
{
    struct device *d = &slabs->devices[number];
    const struct qr_disk_device *device = &slabs->config.home->devices[number];
    uint64_t cap = slabs->config.cap_bytes[number], bytes = 0;

    d->stat.failed = device->slab_fd < 0;
    if (device->slab_fd >= 0 && !qr_disk_device_bytes(device, cap, &bytes))
        return qr_error_set(e, QUIRE_EIO, "cannot ask the size of slab file %u", number);
    if (device->block_bytes > 0)
        cap = bytes; /* all of it is there from the start */
    const uint64_t allowed =
        cap > QR_DISK_SLAB_START ? (cap - QR_DISK_SLAB_START) / slabs->region_bytes : 0;
    if (allowed == 0 || allowed >= NONE / 2)
        return qr_error_set(e, QUIRE_EINVAL,
                            "cap of disk folder %u is %" PRIu64
                            " bytes: give it one slab (%" PRIu64 ") and a block at least",
                            number, cap, slabs->region_bytes);
    if (bytes > QR_DISK_SLAB_START)
        d->grown = (uint32_t)((bytes - QR_DISK_SLAB_START) / slabs->region_bytes);
    d->regions_cap = (uint32_t)allowed;
    d->regions = d->grown > d->regions_cap ? d->grown : d->regions_cap;
    d->stat.cap_bytes = cap;
    if (d->grown > d->regions_cap)
        QR_LOG(QR_LOG_WARN, "disk.cap_below_file", QR_LOG_U64("device", number),
               QR_LOG_U64("cap_bytes", cap), QR_LOG_U64("file_bytes", bytes));
    for (uint32_t c = 0; c < QR_DISK_CLASSES; c++)
        d->lists[c] = NONE;
    /* calloc of this size is mapped lazily: only regions in use cost memory. */
    d->table = calloc(d->regions, sizeof(*d->table));
    d->bits = calloc(d->regions, (size_t)slabs->words * sizeof(*d->bits));
    if (!d->table || !d->bits)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the slots of disk folder %u",
                            number);
    return QUIRE_OK;
}

quire_status qr_disk_slabs_create(const struct qr_disk_slabs_config *config,
                                  struct qr_disk_slabs **out, struct qr_error *e)
{
    struct qr_disk_slabs *slabs = calloc(1, sizeof(*slabs));
    quire_status status = QUIRE_OK;

    if (!slabs)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the disk tier");
    slabs->config = *config;
    slabs->count = config->home->count;
    slabs->region_bytes = config->home->region_bytes;
    slabs->words = (uint32_t)((slabs->region_bytes / QR_DISK_BLOCK + 63) / 64);
    if (!slabs->config.clock_ns)
        slabs->config.clock_ns = qr_clock_ns;
    pthread_mutex_init(&slabs->lock, NULL);
    pthread_mutex_init(&slabs->grow_lock, NULL);
    if (slabs->region_bytes < QR_DISK_REGION_MIN || slabs->region_bytes > QR_DISK_REGION_MAX ||
        slabs->region_bytes % QR_DISK_BLOCK != 0)
        status = qr_error_set(e, QUIRE_EINVAL, "slabs of %" PRIu64 " bytes: %u to %u",
                              slabs->region_bytes, QR_DISK_REGION_MIN, QR_DISK_REGION_MAX);
    for (uint32_t d = 0; d < slabs->count && status == QUIRE_OK; d++)
        status = device_init(slabs, d, e);
    if (status != QUIRE_OK) {
        qr_disk_slabs_destroy(&slabs);
        return status;
    }
    *out = slabs;
    return QUIRE_OK;
}

void qr_disk_slabs_destroy(struct qr_disk_slabs **slabs)
{
    struct qr_disk_slabs *s = *slabs;

    if (!s)
        return;
    for (uint32_t d = 0; d < s->count; d++) {
        free(s->devices[d].table);
        free(s->devices[d].bits);
    }
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->grow_lock);
    free(s);
    *slabs = NULL;
}

/* ---- slots, lock held ------------------------------------------------------------------- */

static void region_start(struct qr_disk_slabs *slabs, struct device *d, uint32_t r,
                         uint32_t size_class)
{
    struct region *region = &d->table[r];

    memset(bits_of(slabs, d, r), 0, slabs->words * sizeof(uint64_t));
    *region =
        (struct region){.size_class = size_class, .slots_max = slots_of(slabs, size_class)};
    d->regions_used++;
    if (r < d->regions_cap)
        list_add(d, r);
}

static void count_taken(struct device *d, uint32_t bytes, uint32_t size_class)
{
    d->stat.slots++;
    d->stat.payload_bytes += bytes;
    d->stat.reserved_bytes += qr_disk_class_bytes(size_class);
}

static void slot_take(struct qr_disk_slabs *slabs, struct device *d, uint32_t r, uint32_t slot)
{
    struct region *region = &d->table[r];

    bits_of(slabs, d, r)[slot / 64] |= UINT64_C(1) << (slot % 64);
    region->taken++;
    if (region->taken == region->slots_max && r < d->regions_cap)
        list_remove(d, r);
}

static uint32_t slot_find(struct qr_disk_slabs *slabs, struct device *d, uint32_t r)
{
    const uint64_t *bits = bits_of(slabs, d, r);

    for (uint32_t word = 0;; word++) {
        assert(word < slabs->words);
        if (~bits[word] != 0)
            return word * 64 + (uint32_t)__builtin_ctzll(~bits[word]);
    }
}

static uint32_t region_find(struct device *d)
{
    const uint32_t end = d->grown < d->regions_cap ? d->grown : d->regions_cap;

    while (d->free_hint < end && d->table[d->free_hint].slots_max > 0)
        d->free_hint++;
    return d->free_hint < end ? d->free_hint : NONE;
}

static bool take_on(struct qr_disk_slabs *slabs, uint32_t number, size_t bytes,
                    struct qr_disk_place *out)
{
    struct device *d = &slabs->devices[number];
    const uint32_t size_class = qr_disk_class(bytes);
    uint32_t r = d->lists[size_class];

    if (d->stat.failed)
        return false;
    if (r == NONE) {
        r = region_find(d);
        if (r == NONE)
            return false;
        region_start(slabs, d, r, size_class);
    }
    const uint32_t slot = slot_find(slabs, d, r);
    slot_take(slabs, d, r, slot);
    count_taken(d, (uint32_t)bytes, size_class);
    *out = (struct qr_disk_place){number, r, slot, (uint32_t)bytes};
    return true;
}

/* Devices in turn, so that neighbouring pages lie on different ones. */
static bool take_in_turn(struct qr_disk_slabs *slabs, size_t bytes, struct qr_disk_place *out)
{
    for (uint32_t i = 0; i < slabs->count; i++) {
        const uint32_t number = (slabs->turn + i) % slabs->count;
        if (take_on(slabs, number, bytes, out)) {
            slabs->turn = number + 1;
            return true;
        }
    }
    return false;
}

/* ---- grow ------------------------------------------------------------------------------- */

static bool may_grow(const struct device *d, uint64_t now_ns)
{
    return !d->stat.failed && d->grown < d->regions_cap && d->full_until_ns <= now_ns;
}

/* Add a region to one file; lock held on entry and exit, not while the system works. */
static bool grow_one(struct qr_disk_slabs *slabs, uint32_t number)
{
    struct qr_disk_io *io = slabs->config.io;
    struct device *d = &slabs->devices[number];
    const uint64_t at = QR_DISK_SLAB_START + (uint64_t)d->grown * slabs->region_bytes;
    const int fd = slabs->config.home->devices[number].slab_fd;

    pthread_mutex_unlock(&slabs->lock);
    /* Not synced here: the sync of the first commit in the region makes it durable. */
    const int error = io->allocate(io, fd, at, slabs->region_bytes);
    pthread_mutex_lock(&slabs->lock);
    if (error == 0) {
        d->grown++;
        return true;
    }
    d->full_until_ns = slabs->config.clock_ns() + FULL_PAUSE_NS;
    QR_LOG(QR_LOG_WARN, "disk.cannot_grow", QR_LOG_STR("why", strerror(-error)),
           QR_LOG_U64("device", number), QR_LOG_U64("file_bytes", at));
    return false;
}

/* Grow the file that is smallest beside its cap, then the next when that fails. */
static bool grow_any(struct qr_disk_slabs *slabs)
{
    const uint64_t now_ns = slabs->config.clock_ns();

    for (uint32_t i = 0; i < slabs->count; i++) {
        uint32_t best = NONE;
        for (uint32_t n = 0; n < slabs->count; n++) {
            if (may_grow(&slabs->devices[n], now_ns) &&
                (best == NONE || slabs->devices[n].grown < slabs->devices[best].grown))
                best = n;
        }
        if (best == NONE)
            return false;
        if (grow_one(slabs, best))
            return true;
    }
    return false;
}

void qr_disk_slabs_grow_ahead(struct qr_disk_slabs *slabs)
{
    pthread_mutex_lock(&slabs->grow_lock);
    pthread_mutex_lock(&slabs->lock);
    for (uint32_t n = 0; n < slabs->count; n++) {
        struct device *d = &slabs->devices[n];
        if (d->regions_used > 0 && region_find(d) == NONE &&
            may_grow(d, slabs->config.clock_ns()))
            (void)grow_one(slabs, n);
    }
    pthread_mutex_unlock(&slabs->lock);
    pthread_mutex_unlock(&slabs->grow_lock);
}

quire_status qr_disk_slabs_reserve(struct qr_disk_slabs *slabs, size_t bytes,
                                   struct qr_disk_place *out)
{
    if (bytes == 0 || bytes > QR_SIZE_CLASS_MAX_BYTES ||
        qr_disk_class_bytes(qr_disk_class(bytes)) > slabs->region_bytes)
        return QUIRE_ETOOBIG;

    pthread_mutex_lock(&slabs->lock);
    bool taken = take_in_turn(slabs, bytes, out);
    pthread_mutex_unlock(&slabs->lock);
    if (taken)
        return QUIRE_OK;

    pthread_mutex_lock(&slabs->grow_lock);
    pthread_mutex_lock(&slabs->lock);
    taken = take_in_turn(slabs, bytes, out); /* somebody else may have grown a file */
    while (!taken && grow_any(slabs))
        taken = take_in_turn(slabs, bytes, out);
    slabs->failures += !taken;
    pthread_mutex_unlock(&slabs->lock);
    pthread_mutex_unlock(&slabs->grow_lock);
    return taken ? QUIRE_OK : QUIRE_EFULL;
}

/* ---- release and rebuild ---------------------------------------------------------------- */

void qr_disk_slabs_release(struct qr_disk_slabs *slabs, const struct qr_disk_place *place)
{
    assert(place->device < slabs->count);
    struct device *d = &slabs->devices[place->device];
    const uint32_t r = place->region;

    pthread_mutex_lock(&slabs->lock);
    assert(r < d->regions);
    struct region *region = &d->table[r];
    uint64_t *word = &bits_of(slabs, d, r)[place->slot / 64];
    const uint64_t bit = UINT64_C(1) << (place->slot % 64);
    assert(place->slot < region->slots_max && (*word & bit));
    assert(qr_disk_class(place->bytes) == region->size_class);

    *word &= ~bit;
    if (region->taken-- == region->slots_max && r < d->regions_cap)
        list_add(d, r);
    if (region->taken == 0) {
        if (r < d->regions_cap)
            list_remove(d, r);
        region->slots_max = 0;
        d->regions_used--;
        if (r < d->free_hint)
            d->free_hint = r;
    }
    d->stat.slots--;
    d->stat.payload_bytes -= place->bytes;
    d->stat.reserved_bytes -= qr_disk_class_bytes(qr_disk_class(place->bytes));
    d->full_until_ns = 0;
    pthread_mutex_unlock(&slabs->lock);
}

static bool valid_locked(const struct qr_disk_slabs *slabs, const struct qr_disk_place *place)
{
    if (place->device >= slabs->count || place->bytes == 0 ||
        place->bytes > QR_SIZE_CLASS_MAX_BYTES)
        return false;
    const struct device *d = &slabs->devices[place->device];
    /* A missing device's file cannot be asked; what the index says of it is kept. */
    const uint32_t regions =
        slabs->config.home->devices[place->device].slab_fd < 0 ? d->regions : d->grown;
    return place->region < regions &&
           place->slot < slots_of(slabs, qr_disk_class(place->bytes));
}

bool qr_disk_slabs_valid(struct qr_disk_slabs *slabs, const struct qr_disk_place *place)
{
    pthread_mutex_lock(&slabs->lock);
    const bool valid = valid_locked(slabs, place);
    pthread_mutex_unlock(&slabs->lock);
    return valid;
}

static const char *why_not(struct qr_disk_slabs *slabs, const struct qr_disk_place *place)
{
    if (!valid_locked(slabs, place))
        return "lies outside its slab file";
    struct device *d = &slabs->devices[place->device];
    const struct region *region = &d->table[place->region];
    if (region->slots_max > 0 && region->size_class != qr_disk_class(place->bytes))
        return "is in a slab of another size";
    if (region->slots_max > 0 &&
        (bits_of(slabs, d, place->region)[place->slot / 64] >> (place->slot % 64)) & 1)
        return "is in a slot that another page has";
    return NULL;
}

quire_status qr_disk_slabs_mark(struct qr_disk_slabs *slabs, const struct qr_disk_place *place,
                                struct qr_error *e)
{
    pthread_mutex_lock(&slabs->lock);
    const char *wrong = why_not(slabs, place);
    if (!wrong) {
        struct device *d = &slabs->devices[place->device];
        const uint32_t size_class = qr_disk_class(place->bytes);
        if (d->table[place->region].slots_max == 0)
            region_start(slabs, d, place->region, size_class);
        slot_take(slabs, d, place->region, place->slot);
        count_taken(d, place->bytes, size_class);
    }
    pthread_mutex_unlock(&slabs->lock);
    if (!wrong)
        return QUIRE_OK;
    return qr_error_set(e, QUIRE_ECORRUPT,
                        "page of %u bytes at device %u, slab %u, slot %u %s: left out",
                        place->bytes, place->device, place->region, place->slot, wrong);
}

/* ---- facts ------------------------------------------------------------------------------ */

void qr_disk_slabs_set_failed(struct qr_disk_slabs *slabs, uint32_t device, bool failed)
{
    pthread_mutex_lock(&slabs->lock);
    slabs->devices[device].stat.failed =
        failed || slabs->config.home->devices[device].slab_fd < 0;
    pthread_mutex_unlock(&slabs->lock);
}

uint64_t qr_disk_slabs_offset(const struct qr_disk_slabs *slabs,
                              const struct qr_disk_place *place)
{
    return QR_DISK_SLAB_START + place->region * slabs->region_bytes +
           place->slot * (uint64_t)qr_disk_class_bytes(qr_disk_class(place->bytes));
}

uint32_t qr_disk_slabs_regions_max(const struct qr_disk_slabs *slabs)
{
    uint32_t most = 0;

    for (uint32_t d = 0; d < slabs->count; d++)
        most = slabs->devices[d].regions > most ? slabs->devices[d].regions : most;
    return most;
}

void qr_disk_slabs_stat(struct qr_disk_slabs *slabs, uint32_t device,
                        struct qr_disk_device_stat *out)
{
    pthread_mutex_lock(&slabs->lock);
    const struct device *d = &slabs->devices[device];
    *out = d->stat;
    out->regions = d->grown;
    out->regions_used = d->regions_used;
    out->file_bytes = QR_DISK_SLAB_START + d->grown * slabs->region_bytes;
    pthread_mutex_unlock(&slabs->lock);
}

uint64_t qr_disk_slabs_failures(struct qr_disk_slabs *slabs)
{
    pthread_mutex_lock(&slabs->lock);
    const uint64_t failures = slabs->failures;
    pthread_mutex_unlock(&slabs->lock);
    return failures;
}
