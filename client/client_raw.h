/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages and rows as they are, without the codecs: what moving a session needs. Memory is the
 * caller's and borrowed until the operation is done; nothing is verified here but where parts
 * belong.
 */
#ifndef QR_CLIENT_RAW_H
#define QR_CLIENT_RAW_H

#include "proto/wire.h"
#include "quire.h"
#include "transport.h"

/** A range of one lane: whole pages, or rows of tokens that are in none. */
struct qr_raw_fetch {
    uint32_t layer, first_head, heads; /* the lane's */
    uint64_t position;
    uint32_t tokens;
    bool pages;     /* what is expected; anything else is ECORRUPT */
    uint8_t *place; /* rows: K [tokens][heads][key_dim], then V; pages: the first one's place */
    size_t stride;  /* pages: from one place to the next, and */
    size_t page_max;      /* most bytes of one */
    uint32_t *page_bytes; /* pages: [tokens / page_tokens], filled */
    /* The operation's: */
    uint64_t left;        /* guarded by op->lock: tokens to come */
    struct qr_error hole; /* guarded by op->lock */
};
/** Errors of the operation: EMISSING, ECORRUPT (the first range), and those of calls. ENOMEM.
 */
quire_status qr_raw_fetch_submit(quire_session *session, struct qr_raw_fetch *fetch,
                                 uint32_t timeout_ms, quire_op **out);

#define QR_RAW_PIECES_MAX (QR_PIECES_MAX - 1)

/** An append in one message: pages, or rows. */
struct qr_raw_append {
    uint64_t position;
    uint32_t tokens, layer, shard;
    const uint32_t *token_ids; /* NULL or [tokens]; copied */
    /**
     * Pages, in order: the QR_WIRE_FIELD_HEAD_MAX bytes before each are overwritten. Rows:
     * pieces that follow each other, rows_bytes together.
     */
    struct {
        uint8_t *data;
        size_t bytes;
    } pieces[QR_RAW_PIECES_MAX];
    size_t count;
    uint64_t rows_bytes; /* 0: pages */
    bool answered;       /* the operation's */
};
/** Errors of the operation: those of quire_append. ENOMEM. */
quire_status qr_raw_append_submit(quire_session *session, struct qr_raw_append *append,
                                  uint32_t timeout_ms, quire_op **out);
/** Wait, recycle; the status becomes the thread's last error. *op NULL: QUIRE_OK. */
quire_status qr_raw_join(quire_op **op);

#endif
