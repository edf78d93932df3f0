/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of quire-fsck share: how it was asked, and the output under way.
 */
#ifndef QR_FSCK_H
#define QR_FSCK_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "storage/tier/disk_check.h"

/** Exit codes of `quire`, see quire(1). */
enum qr_fsck_exit {
    QR_FSCK_SOUND = 0,
    QR_FSCK_FAILED = 1,
    QR_FSCK_USAGE = 2,
    QR_FSCK_IN_USE = 3,
    QR_FSCK_DAMAGE = 4
};

struct qr_fsck {
    struct qr_disk_check_config check;
    struct qr_disk_check_result result;
    bool json, quiet, all;
    bool terminal;   /* stderr is one: progress is drawn */
    FILE *out;       /* where results go */
    cJSON *findings; /* with json; owned */
    double started;  /* monotonic seconds */
    double drawn;
    bool bar; /* there is one to be erased */
};

/** One finding, as it comes: a line, or an element of `findings`. */
void qr_fsck_found(void *arg, const struct qr_disk_finding *finding);
void qr_fsck_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes);
/** What was checked and found, or why it could not be; gives the exit code. */
int qr_fsck_conclude(struct qr_fsck *fsck, quire_status status, const struct qr_error *e);
/** Whether bytes of the index are the model of this fingerprint, as the wire has it. */
bool qr_fsck_is_model(void *arg, const uint8_t fingerprint[QR_HASH_BYTES], const uint8_t *bytes,
                      size_t n);

#endif
