/* SPDX-License-Identifier: Apache-2.0
 *
 * An operation under way: what all kinds (control calls, append, fetch, attend)
 * share. It holds the call, the waiters, the first error, and completes exactly
 * once. What a kind does with messages is its own file's affair.
 *
 *   take -> start (a call) -> [restart once] -> finish -> (holds reach 0) done -> free
 */
#ifndef QR_CLIENT_OP_H
#define QR_CLIENT_OP_H

#include "client_append.h"
#include "client_error.h"
#include "client_fetch.h"
#include "client_pool.h"
#include "client_raw.h"
#include "handle.h"

/** What a kind of operation does. Called on transport threads, unless it says otherwise. */
struct qr_op_kind {
    /** A reply; may overlap with itself for fetch. */
    void (*message)(struct quire_op *op, const struct qr_wire_fragment *fragments,
                    size_t count);
    /** Streams: the next message may be sent. NULL: not a stream. */
    void (*writable)(struct quire_op *op);
    /** The call ended, and op->error says how; may still fail the operation. NULL: nothing. */
    void (*finish)(struct quire_op *op);
    /** Start the same call again after EUNAVAILABLE; NULL: never safe. */
    void (*restart)(struct quire_op *op);
};

struct quire_op {
    struct quire_client *client;   /* const while taken */
    struct quire_session *session; /* const while taken; NULL: none */
    const struct qr_op_kind *kind; /* const while taken */
    enum qr_method method;         /* const while a call runs */
    uint64_t deadline_ns;          /* const while taken */
    uint32_t timeout_ms;           /* const while taken */
    pthread_mutex_t lock;
    pthread_cond_t changed;     /* done, layers, or work for a helping waiter */
    struct qr_error error;      /* guarded by lock until done */
    bool done, canceled;        /* guarded by lock */
    bool wait_for_ready;        /* const while taken */
    bool restarted;             /* guarded by lock */
    atomic_bool touched;        /* atomic: results were written, or parts acknowledged */
    int event_fd;               /* guarded by lock; -1: none asked for */
    unsigned holds;             /* guarded by lock: the call, lent buffers, the submitter */
    struct qr_call *call;       /* guarded by lock */
    struct quire_op *next_free; /* guarded by client->lock */
    struct qr_buffer *request, *reply; /* owner: the kind; put back by free */
    ProtobufCMessage *reply_message;   /* control calls: unpacked into `reply` */
    const ProtobufCMessageDescriptor *reply_type;
    union {
        struct qr_append_state append;
        struct qr_fetch_state fetch;
        struct {
            struct quire_attend args;
        } attend;
        struct {
            struct qr_raw_fetch *fetch;
            struct qr_raw_append *append;
        } raw;
    } u;
};

/** An operation with one hold, the submitter's; NULL: out of memory. timeout_ms 0: client's. */
struct quire_op *qr_op_take(struct quire_client *client, struct quire_session *session,
                            const struct qr_op_kind *kind, uint32_t timeout_ms);
/** Back to the pool; must be done, or never started with only the submitter's hold. */
void qr_op_recycle(struct quire_op *op);

void qr_op_hold(struct quire_op *op);
/** The last drop completes the operation. A qr_piece's release function too. */
void qr_op_drop(void *op);
/** Record an error; only the first one stays. */
void qr_op_fail(struct quire_op *op, const struct qr_error *e);
/** Record an error and cancel the call. */
void qr_op_abort(struct quire_op *op, const struct qr_error *e);
bool qr_op_failed(struct quire_op *op);

enum qr_op_shape { QR_OP_UNARY, QR_OP_READER, QR_OP_WRITER };
/** Start a call of `method`; the operation holds it. pieces: of the one request; a writer has
 * none. */
void qr_op_start(struct quire_op *op, enum qr_method method, enum qr_op_shape shape,
                 const struct qr_piece *pieces, size_t count);
/** Wait for completion, then status as the thread's last error; recycles the operation. */
quire_status qr_op_join(struct quire_op *op);
/** Drop the submitter's hold. */
void qr_op_submitted(struct quire_op *op);
/** The end of every quire_..._submit: the operation is the user's. OK. */
quire_status qr_op_hand_over(struct quire_op *op, struct quire_op **out);
/** EINVAL of a submit whose `out` is NULL. */
quire_status qr_op_no_out(void);

/**
 * A control call, synchronous: pack `request`, wait, unpack a reply of `type`. *op_out: holds
 * the reply (op->reply_message) until qr_op_recycle; NULL on failure. idempotent: may be
 * repeated once when the connection broke. Failure becomes the thread's last error.
 */
quire_status qr_control(struct quire_client *client, enum qr_method method,
                        const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                        bool idempotent, struct quire_op **op_out);

/** Hello, waiting for a connection up to connect_ms. */
quire_status qr_control_connect(struct quire_client *client, const ProtobufCMessage *request,
                                const ProtobufCMessageDescriptor *type,
                                struct quire_op **op_out);
/** The same when nothing of the reply matters. */
quire_status qr_control_plain(struct quire_client *client, enum qr_method method,
                              const ProtobufCMessage *request,
                              const ProtobufCMessageDescriptor *type, bool idempotent);

/** Free the memory of pooled operations; all must have been recycled. */
void qr_op_pool_drain(struct quire_client *client);

/** CLOCK_MONOTONIC. */
uint64_t qr_now_ns(void);
/** When a wait of timeout_ms from now ends, on the clock of op->changed. */
struct timespec qr_op_until(uint32_t timeout_ms);

#endif
