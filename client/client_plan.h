/* SPDX-License-Identifier: Apache-2.0
 *
 * How an append is cut into messages. Pure: geometry in, cells out, in an order
 * that keeps each lane's tokens ascending. Must not know the data.
 */
#ifndef QR_CLIENT_PLAN_H
#define QR_CLIENT_PLAN_H

#include "handle.h"
#include "proto/page.h"

/** Payload that a message aims at; a single token or page may be more. */
#define QR_CELL_BYTES (1u << 20)

/** What one message carries: rows of some layers, or whole pages of one layer. */
struct qr_cell {
    uint32_t first_layer, layers; /* absolute */
    uint32_t first_token, tokens; /* relative to the append */
    bool pages;
};

struct qr_plan {
    const struct quire_session *session;
    uint32_t first_layer, layers, tokens;
    uint32_t page_tokens;
    uint64_t position;
    uint64_t cell_bytes;
    uint32_t page_first, page_end; /* tokens [first, end) can be sealed: whole pages */
    /* cursor */
    uint32_t phase, layer, token;
};

/** FP16 bytes of one token of a layer for one head shard: K and V. 0: no KV cache. */
size_t qr_plan_row_bytes(const struct quire_session *session, uint32_t layer);
/** Heads of a lane of this layer. */
uint32_t qr_plan_heads(const struct quire_session *session, uint32_t layer);
/** Pages of this layer are fewer bytes than its rows, and one fits a message. */
bool qr_plan_seals(const struct quire_session *session, uint32_t layer);
/** What pages of this layer must be, but first_position; block id zero. */
void qr_plan_identity(const struct quire_session *session, uint32_t layer,
                      struct qr_page_identity *out);
/** Start; seal: pages may be made here. */
void qr_plan_start(struct qr_plan *plan, const struct quire_session *session,
                   const struct quire_append *append, bool seal);
/** Back to the first cell. */
void qr_plan_rewind(struct qr_plan *plan);
/** The next cell; false at the end. */
bool qr_plan_next(struct qr_plan *plan, struct qr_cell *out);

#endif
