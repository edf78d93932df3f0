/* SPDX-License-Identifier: Apache-2.0
 *
 * State of an append under way: the plan, the message built next, and what is in
 * flight. Arguments: client_append_check.c; messages: client_gather.c.
 */
#ifndef QR_CLIENT_APPEND_H
#define QR_CLIENT_APPEND_H

#include "client_plan.h"
#include "client_pool.h"
#include "storage/codec/codec.h"

struct quire_op;

/** A message ready to be sent. */
struct qr_outgoing {
    struct qr_cell cell;
    struct qr_piece pieces[QR_PIECES_MAX];
    size_t count; /* 0: none is ready */
    uint64_t bytes;
};

#define QR_FLIGHTS_MAX 64 /* messages sent and not acknowledged */

struct qr_flight {
    uint32_t first_layer, layers;
    uint64_t bytes;
};

struct qr_append_state {
    struct quire_append args; /* const */
    bool driven;              /* const: the calling thread builds and sends */
    bool unary;               /* const: one message */
    struct qr_plan plan;      /* owner: whoever set `pumping` */
    struct qr_outgoing next;  /* owner: whoever set `pumping` */
    bool planned_all;         /* owner: whoever set `pumping`: plan is at its end */
    /* guarded by op->lock: */
    bool pumping, again;         /* somebody pumps; look once more */
    bool reset;                  /* the call was started again: from the first cell */
    bool writable, closed, over; /* the stream takes a message; no more follow; it ended */
    struct qr_flight flights[QR_FLIGHTS_MAX]; /* ring */
    uint32_t flight_first, flight_count;
    uint64_t flight_bytes;
    uint64_t length[QR_LAYERS_MAX]; /* acknowledged, per layer of the append */
};

/** One tensor of one layer in the caller's memory, strides resolved (bytes). */
struct qr_origin {
    const uint8_t *base;
    size_t token_stride, head_stride;
    uint32_t dim;
};
/** K (which 0) or V (1) of layer `layer` (absolute). */
struct qr_origin qr_append_origin(const struct quire_session *session,
                                  const struct quire_append *args, uint32_t layer, int which);
/** Tokens of one tensor of one layer. */
struct qr_append_span {
    uint32_t layer, token, tokens;
    int which;
};
/** FP16 rows of a span where the caller has them. */
struct qr_rows qr_append_rows(const struct quire_op *op, const struct qr_append_span *span);
/** Rows of a span as FP16, contiguous, to dst. EVALUE in the caller's terms. */
quire_status qr_append_convert(const struct quire_op *op, const struct qr_append_span *span,
                               uint16_t *dst, struct qr_error *e);
/** Survey of the block that starts at `token`; NULL when there is none. */
struct qr_token_survey *qr_append_survey(const struct quire_op *op, uint32_t layer,
                                         uint32_t token);
/** Check everything that can be checked without looking at values. */
quire_status qr_append_check(const struct quire_session *session,
                             const struct quire_append *args, struct qr_error *e);
/** Look at every value: EVALUE, as the error of the whole append. Blocks that will be sealed
 * are surveyed on the way. */
quire_status qr_append_scan(struct quire_op *op, struct qr_error *e);
/** Build the message of `cell`. */
quire_status qr_append_build(struct quire_op *op, const struct qr_cell *cell,
                             struct qr_outgoing *out, struct qr_error *e);
/** Release the pieces of a message that will not be sent. */
void qr_outgoing_drop(struct qr_outgoing *out);

#endif
