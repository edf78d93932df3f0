/* SPDX-License-Identifier: Apache-2.0
 *
 * What exports and imports share: the walk along the file, the deadline, progress, and the
 * calls that only they make. Failures become the calling thread's last error.
 */
#ifndef QR_CLIENT_MOVE_H
#define QR_CLIENT_MOVE_H

#include "client_op.h"
#include "proto/export.h"

#define QR_MOVE_BATCH_BYTES (8u << 20) /* pages in one message, or fetched at once */
#define QR_MOVE_ROWS_BYTES (1u << 20)  /* rows in one record, unless a token has more */

/** owner: the calling thread. */
struct qr_move {
    struct quire_client *client; /* const */
    uint64_t deadline_ns;        /* const; 0: none */
    quire_progress_fn progress;  /* const; may be NULL */
    void *context;               /* const */
    struct quire_transfer transfer;
    struct qr_export_walk walk;
};

/** A move with its deadline; NULL: out of memory. To be freed with free(). */
struct qr_move *qr_move_make(struct quire_client *client, uint32_t timeout_ms,
                             quire_progress_fn progress, void *context);
/** Take the walk's place into the transfer and tell it: ECANCELED, ETIMEOUT. */
quire_status qr_move_tell(struct qr_move *move);
/** Deadline of the next operation, for qr_op_take. */
uint32_t qr_move_timeout_ms(const struct qr_move *move);
/** Name, fingerprint and totals of the walk's head. */
void qr_move_describe(struct qr_move *move);
/** EIO for an errno value of a callback. */
quire_status qr_move_io(const char *what, int error);

/** A session of the server by name; ENOTFOUND. */
quire_status qr_move_info(struct quire_client *client, const char *name,
                          struct quire_session_info *out);
/** Fork with a time to live (0: as `from` has it). */
quire_status qr_move_fork(struct quire_client *client, const char *from, const char *to,
                          uint64_t length, uint64_t ttl_ms, struct quire_session_info *out);
/** Drop whoever holds it; leaves the thread's last error as it was. */
void qr_move_drop(struct quire_client *client, const char *name);
/** Manifest with ids of [first_block, +blocks), or fewer; *reply_out is in the operation, which
 * the caller recycles. */
quire_status qr_move_manifest(struct quire_session *session, uint32_t first_block,
                              uint32_t blocks, const Quire__V1__Manifest **reply_out,
                              struct quire_op **op_out);
quire_status qr_move_claim(struct quire_session *session, uint32_t first_block,
                           const uint8_t *ids, uint32_t count, uint32_t chained);

/* client_export_resume.c */

/**
 * Read and verify what there is of a partial file. *found: move->walk has begun and stands
 * after its last whole record; else there is not even a head. Errors: EIO, ENOMEM,
 * EUNSUPPORTED, and those of qr_move_tell.
 */
quire_status qr_export_verify_part(struct qr_move *move, const struct quire_export *args,
                                   bool *found);

#endif
