/* SPDX-License-Identifier: Apache-2.0
 *
 * What the disk benchmark's parts share: the raw side (a plain O_DIRECT io_uring
 * user), Quire's side, and the clock. Sizes in bytes, times in seconds.
 */
#ifndef QR_DISK_BENCH_H
#define QR_DISK_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "storage/tier/tier_disk.h"

struct shape {
    size_t page_bytes; /* multiple of 4 KiB */
    uint32_t batch;    /* pages that are made durable together; reads under way at once */
    uint32_t pages;    /* of one round */
};

double seconds(void);
void must(bool good, const char *what);
void *must_alloc_aligned(size_t bytes);

/** A file of `pages` slots, allocated as the slab files are. */
struct raw;
struct raw *raw_open(const char *folder, const struct shape *shape, uint32_t rounds);
void raw_close(struct raw **raw);
/** Write round `round`: batch by batch, each followed by fdatasync. Seconds. */
double raw_write(struct raw *raw, uint32_t round, const uint8_t *page);
/** Read a round's slots in this order, `batch` under way. Seconds. */
double raw_read(struct raw *raw, uint32_t round, const uint32_t *order);

struct ours {
    struct qr_disk *disk;
    struct qr_disk_place *places; /* [pages * rounds] */
};
void ours_open(struct ours *ours, const char *folder, const struct shape *shape,
               uint32_t rounds);
void ours_close(struct ours *ours);
/** The same rounds through the tier: slots, writes, syncs, index; by up to 16 appenders, so
 * that one's writes run while another's commit does. */
double ours_write(struct ours *ours, const struct shape *shape, uint32_t round,
                  const uint8_t *page, uint32_t appenders);
/** deadline: through the ring's buffers, as a caller that must not hang would. */
double ours_read(struct ours *ours, const struct shape *shape, uint32_t round,
                 const uint32_t *order, bool deadline);

/** Entries written, then closed, opened and read: prints times and RAM. */
void measure_index(const char *folder, uint32_t entries);
/** A store of so many index entries: resident bytes a page, and a cold open. Leaves its
 * folders. */
void measure_ram(const char *folder, uint64_t pages);

#endif
