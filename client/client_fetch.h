/* SPDX-License-Identifier: Apache-2.0
 *
 * State of a fetch under way, and its parts: checks (client_fetch.c), placing of
 * received parts into the caller's buffers (client_place.c).
 */
#ifndef QR_CLIENT_FETCH_H
#define QR_CLIENT_FETCH_H

#include "client_pool.h"
#include "handle.h"

struct quire_op;

/** One tensor of one layer in the caller's memory. */
struct qr_place {
    uint8_t *base;                    /* NULL: not wanted */
    size_t token_stride, head_stride; /* bytes */
};

/** A page asked for as it is (quire_session_page). */
struct qr_page_copy {
    void *page;
    size_t capacity, bytes;
    bool in_tail; /* rows came instead */
};

struct qr_fetch_state {
    struct quire_fetch args;             /* const */
    struct qr_page_copy *copy;           /* const; NULL: a fetch into buffers */
    bool stream;                         /* const: output is larger than the caches */
    uint64_t pages_per_layer;            /* const: pages touched */
    uint64_t left[QR_LAYERS_MAX];        /* guarded by op->lock: tokens x heads still to come */
    uint8_t layer_status[QR_LAYERS_MAX]; /* guarded by op->lock: worst part, 0 = all well */
    uint32_t layers_ready; /* guarded by op->lock: complete ones, counted from the first */
    struct qr_error hole;  /* guarded by op->lock: first range not delivered */
};

/** KV heads of layer `index` (0-based in the fetch) that are wanted: first and count. */
void qr_fetch_heads(const struct quire_fetch *args, const struct qr_layer *layer,
                    uint32_t *first_out, uint32_t *count_out);
/** Where K (which 0) or V (1) of layer `index` goes, strides resolved. */
struct qr_place qr_fetch_place(const struct quire_fetch *args, const struct qr_layer *layer,
                               uint32_t index, int which);
/** Check everything that can be checked without the server. */
quire_status qr_fetch_check(const struct quire_session *session, const struct quire_fetch *args,
                            struct qr_error *e);
/** Messages of a fetch (struct qr_op_kind.message). */
void qr_fetch_message(struct quire_op *op, const struct qr_wire_fragment *fragments,
                      size_t count);

#endif
