/* SPDX-License-Identifier: Apache-2.0
 *
 * State of an export: its snapshot, and what is being fetched ahead. client_export.c begins and
 * ends it, client_export_lanes.c writes pages and rows.
 */
#ifndef QR_CLIENT_EXPORT_H
#define QR_CLIENT_EXPORT_H

#include "client_move.h"

#define QR_EXPORT_WINDOW_PAGES 512u

/** Pages or rows of one lane, fetched with one call. A mark's place is before each payload. */
struct qr_export_window {
    struct quire_op *op;           /* NULL: nothing is fetched */
    struct qr_raw_fetch fetch;     /* owner: the operation, then the exporter */
    struct qr_export_record first; /* the first page, or the rows */
    uint8_t *buffer;               /* 64-byte aligned */
    uint32_t page_bytes[QR_EXPORT_WINDOW_PAGES];
};

/** owner: the calling thread. */
struct qr_exporter {
    struct qr_move *move;
    const struct quire_export *args;
    char snapshot[64];
    struct quire_session *session; /* of the snapshot */
    uint32_t *sealed;              /* [lane_count]: blocks */
    uint32_t lane_count;
    uint32_t lane; /* what is to be fetched next */
    uint64_t position;
    size_t window_bytes;
    struct qr_export_window windows[2];
};

/** Seal a record in place and write it: 64 bytes for the mark, then the padded payload. */
quire_status qr_exporter_emit(struct qr_exporter *x, const struct qr_export_record *record,
                              uint8_t *mark_and_payload);
/** All pages and rows from the walk's place on. */
quire_status qr_exporter_lanes(struct qr_exporter *x);
/** Bytes of the records of all rows. The walk has model, policy and head. */
uint64_t qr_exporter_rows_bytes(const struct qr_export_walk *walk, const uint32_t *sealed,
                                uint32_t lane_count);

#endif
