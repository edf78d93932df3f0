/* SPDX-License-Identifier: Apache-2.0
 *
 * Older stores become this version: a step for each version, in order. Must not
 * know what a version changed; the steps do.
 *
 *   index of version v -step- every entry as version v + 1 has it -> version key v + 1 -> ...
 *   -> index of this version -> identity files say so
 *
 * A start that dies anywhere between is carried on by the next: a step may find some of its
 * changes made, and the version key is written behind them. An older Quire refuses the index
 * from its first step on, and the folders from the end on.
 */
#ifndef QR_DISK_UPGRADE_H
#define QR_DISK_UPGRADE_H

#include "disk_index.h"

struct qr_disk_upgrade {
    uint32_t from; /* makes from + 1 of it */
    const char *what;
    /** Change what `from` has otherwise; changes may be there already. */
    quire_status (*run)(struct qr_disk_index *index, struct qr_error *e);
};

/** The steps of this Quire, ascending; version 1 is the first, so there is none yet. */
extern const struct qr_disk_upgrade qr_disk_upgrades[];
extern const size_t qr_disk_upgrade_count;

/** Run the steps from version `from` to version `to`. EUNSUPPORTED: no step leads there. */
quire_status qr_disk_upgrade(struct qr_disk_index *index, const struct qr_disk_upgrade *steps,
                             size_t count, uint32_t from, uint32_t to, struct qr_error *e);

#endif
