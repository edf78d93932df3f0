/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls over the wire as the rest of the library sees them: bytes out, bytes in,
 * one last event. The only door to gRPC on the client's side: no gRPC type
 * appears here, and no file but transport*.c includes gRPC. Must not know what
 * the bytes of a message mean.
 */
#ifndef QR_TRANSPORT_H
#define QR_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

struct qr_transport;
struct qr_call;

enum qr_method {
    QR_METHOD_HELLO,
    QR_METHOD_REGISTER_MODEL,
    QR_METHOD_OPEN_SESSION,
    QR_METHOD_CLOSE_SESSION,
    QR_METHOD_DROP_SESSION,
    QR_METHOD_GET_SESSION,
    QR_METHOD_LIST_SESSIONS,
    QR_METHOD_FORK_SESSION,
    QR_METHOD_TOUCH_SESSION,
    QR_METHOD_TRUNCATE_SESSION,
    QR_METHOD_FLUSH,
    QR_METHOD_LOOKUP,
    QR_METHOD_GET_MANIFEST,
    QR_METHOD_CLAIM_BLOCKS,
    QR_METHOD_APPEND,
    QR_METHOD_APPEND_STREAM,
    QR_METHOD_FETCH,
    QR_METHOD_ATTEND,
    QR_METHOD_STAT,
    QR_METHOD_COUNT
};

#define QR_TRANSPORT_THREADS_MAX 16
/** Most bytes of one message in either direction: a largest page and its frame fit. */
#define QR_MESSAGE_BYTES_MAX (80u << 20)

/**
 * Make a channel (no connection is waited for) with `threads` receiving threads.
 * target: "unix:PATH" or "HOST:PORT". Errors: EINVAL, ENOMEM.
 */
quire_status qr_transport_open(const char *target, uint32_t threads, struct qr_transport **out,
                               struct qr_error *e);
/** Cancels what is still running, waits for it, joins the threads. NULL allowed. */
void qr_transport_close(struct qr_transport **transport);
/** What a server says about its same-host path. */
struct qr_local_offer {
    const char *path;      /* of a socket: "/path" or "@name" */
    const uint8_t *cookie; /* QR_LOCAL_COOKIE_BYTES */
};
/**
 * Take the offer: from now on the hot methods go through shared memory, when they fit and it
 * has room. Replaces one that broke. OK when there is one already. Blocks for at most about a
 * second. EUNAVAILABLE (nobody there, or not that server), EFULL, ENOMEM: gRPC it remains.
 */
quire_status qr_transport_use_local(struct qr_transport *transport,
                                    const struct qr_local_offer *offer, struct qr_error *e);
bool qr_transport_is_local(struct qr_transport *transport);
/** Name of a method as errors print it ("Fetch"). */
const char *qr_method_name(enum qr_method method);

#define QR_PIECES_MAX 64 /* pieces of one message */

/**
 * A run of bytes to send. release NULL: copied before the send returns. Else borrowed until
 * release(owner) fires, exactly once, on any thread, possibly after the call is done: it must
 * not block and not call the transport.
 */
struct qr_piece {
    const void *data;
    size_t bytes;
    size_t payload_bytes; /* so many at its end are rows or a page; what precedes is framing */
    void (*release)(void *owner);
    void *owner;
};

/** How a call ended. status: gRPC's number, 0 = ok. Borrowed during the event. */
struct qr_call_result {
    int grpc_status;
    const char *text;
    const void *details; /* trailer grpc-status-details-bin; NULL when absent */
    size_t details_bytes;
};

/** Events of a call, on the transport's threads. */
struct qr_call_events {
    /** A message; its bytes are borrowed during the event. Events of one call may overlap
     * unless the call is ordered; all end before `done`. */
    void (*message)(void *context, const struct qr_wire_fragment *fragments, size_t count);
    /** Streams: the last qr_call_send was taken, the next may follow. */
    void (*writable)(void *context);
    /** The end: exactly once, after everything else. */
    void (*done)(void *context, const struct qr_call_result *result);
};

struct qr_call_options {
    enum qr_method method;
    uint64_t deadline_ns; /* CLOCK_MONOTONIC */
    bool wait_for_ready;  /* wait for a connection instead of failing at once */
    bool ordered;         /* one message event at a time, in order */
    uint64_t part_bytes;  /* largest message out, or part of one coming in; 0: not known, which
                             keeps the call off the same-host path */
};

/**
 * A call, not started; NULL: out of memory. The handle stays valid until qr_call_release, also
 * after `done`. events, context: borrowed until `done`.
 */
struct qr_call *qr_call_new(struct qr_transport *transport,
                            const struct qr_call_options *options,
                            const struct qr_call_events *events, void *context);
/** Start a call of one request and one reply. */
void qr_call_start_unary(struct qr_call *call, const struct qr_piece *pieces, size_t count);
/** Start a call of one request and a stream of replies. */
void qr_call_start_reader(struct qr_call *call, const struct qr_piece *pieces, size_t count);
/** Start a call of a stream each way; `writable` fires when the first message may be sent. */
void qr_call_start_writer(struct qr_call *call);
/**
 * Send one message of a stream: one at a time, the next after `writable`. false: the call is
 * over; the pieces have been released all the same.
 */
bool qr_call_send(struct qr_call *call, const struct qr_piece *pieces, size_t count);
/** No more messages will follow. */
void qr_call_close_send(struct qr_call *call);
/** Any thread, any time; `done` follows soon, with status 1. */
void qr_call_cancel(struct qr_call *call);
/** One more handle of the call, to be released too. */
struct qr_call *qr_call_hold(struct qr_call *call);
void qr_call_release(struct qr_call *call);

#endif
