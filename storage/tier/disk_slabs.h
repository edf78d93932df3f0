/* SPDX-License-Identifier: Apache-2.0
 *
 * Which slots of the slab files are taken: in RAM only, rebuilt at start from the
 * index. A slab file is a header block and regions of equal size, added one by
 * one up to the device's cap; a region holds slots of one size class, and takes
 * another once it is empty. Must not know what is in a slot.
 */
#ifndef QR_DISK_SLABS_H
#define QR_DISK_SLABS_H

#include "disk_home.h"

#define QR_DISK_REGION_MIN (1u << 20)
#define QR_DISK_REGION_MAX (256u << 20)

/** Where bytes lie on disk. */
struct qr_disk_place {
    uint32_t device;
    uint32_t region; /* within the device's slab file */
    uint32_t slot;   /* within the region */
    uint32_t bytes;  /* as asked for; gives the size class */
};

struct qr_disk_slabs_config {
    struct qr_disk_io *io;
    const struct qr_disk_home *home; /* outlives the slabs */
    uint64_t cap_bytes[QR_DISK_DEVICES_MAX];
    uint64_t (*clock_ns)(void); /* NULL: the system's */
};

struct qr_disk_device_stat {
    uint64_t cap_bytes, file_bytes;
    uint64_t reserved_bytes, payload_bytes, slots;
    uint32_t regions, regions_used;
    bool failed;
};

struct qr_disk_slabs;

/** Region size of a new store with this much room on each device. */
uint64_t qr_disk_region_bytes(uint64_t cap_bytes);

/** All slots free. EINVAL: a cap below one region. */
quire_status qr_disk_slabs_create(const struct qr_disk_slabs_config *config,
                                  struct qr_disk_slabs **out, struct qr_error *e);
void qr_disk_slabs_destroy(struct qr_disk_slabs **slabs);

/** Rebuild, before the first reserve: this place is taken. ECORRUPT when it cannot be: outside
 * the file, taken already, or in a region of another class. */
quire_status qr_disk_slabs_mark(struct qr_disk_slabs *slabs, const struct qr_disk_place *place,
                                struct qr_error *e);

/**
 * A free slot for `bytes`, devices in turn. May add a region to a file (one allocating system
 * call, under no lock that release or stat take).
 *
 * Threads: any.  Errors: EFULL (caps, or the file systems, are full), ETOOBIG.
 */
quire_status qr_disk_slabs_reserve(struct qr_disk_slabs *slabs, size_t bytes,
                                   struct qr_disk_place *out);
/** Add a region to each file in use that has none free, so that reserve need not. Any thread.
 */
void qr_disk_slabs_grow_ahead(struct qr_disk_slabs *slabs);
/** The slot is free at once, so nothing durable may name it any more. Any thread. */
void qr_disk_slabs_release(struct qr_disk_slabs *slabs, const struct qr_disk_place *place);

/** A failed device gets no new slots; what it holds stays. */
void qr_disk_slabs_set_failed(struct qr_disk_slabs *slabs, uint32_t device, bool failed);
uint64_t qr_disk_slabs_offset(const struct qr_disk_slabs *slabs,
                              const struct qr_disk_place *place);
/** True when the place lies in a slab file as it is now; any place, a stranger's too. */
bool qr_disk_slabs_valid(struct qr_disk_slabs *slabs, const struct qr_disk_place *place);
/** Most regions of any device: region numbers are below. */
uint32_t qr_disk_slabs_regions_max(const struct qr_disk_slabs *slabs);
void qr_disk_slabs_stat(struct qr_disk_slabs *slabs, uint32_t device,
                        struct qr_disk_device_stat *out);
/** Reserve calls answered EFULL. */
uint64_t qr_disk_slabs_failures(struct qr_disk_slabs *slabs);

#endif
