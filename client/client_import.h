/* SPDX-License-Identifier: Apache-2.0
 *
 * State of an import: the input, the session in the making, and what is on its way.
 * client_import.c reads, client_import_send.c sends.
 */
#ifndef QR_CLIENT_IMPORT_H
#define QR_CLIENT_IMPORT_H

#include "client_move.h"

/** Records of one message. Each payload has a mark's room before it. */
struct qr_import_batch {
    struct quire_op *op; /* NULL: nothing is on its way */
    struct qr_raw_append append;
    uint8_t *buffer; /* 64-byte aligned, capacity of the importer */
    size_t used;
};

/** owner: the calling thread. */
struct qr_importer {
    struct qr_move *move;
    const struct quire_import *args;
    const char *name;              /* the final one */
    char staging[96];              /* its name until then */
    struct quire_session *session; /* of staging */
    uint64_t input_bytes;          /* read so far */
    size_t capacity;               /* of a batch */
    struct qr_import_batch batches[2];
    int turn;         /* the batch that is being filled */
    uint32_t *sealed; /* [lane_count]: blocks that a try before left there; NULL: none */
    uint32_t *tokens; /* [head.token_count] ids, then their bits */
};

/* client_import_send.c */

/** Room in the batch being filled for a payload of this record (after sending what does not go
 * with it); *payload_out is where it goes. */
quire_status qr_importer_place(struct qr_importer *x, const struct qr_export_record *record,
                               uint8_t **payload_out);
/** The payload there was verified: send it with its batch. */
quire_status qr_importer_take(struct qr_importer *x, const struct qr_export_record *record);
/** Send what is in the batch, and wait for everything that is on its way. */
quire_status qr_importer_settle(struct qr_importer *x);
/** Cancel what is on its way and wait until nobody uses the batches. */
void qr_importer_drop(struct qr_importer *x);

#endif
