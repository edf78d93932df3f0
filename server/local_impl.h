/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the same-host call machine: threads, connections, calls. Included by
 * server/local*.c alone.
 *
 * A connection belongs to the thread that accepted it, from its first byte to its end:
 *
 *   accepted -> (hello, cookie) agreed -> [frames] -> ended
 *
 * 1. What the client can change is read once, and copied before it is checked (proto/ring.h).
 * 2. Nothing here blocks: the sockets are used without waiting, a ring that is full is looked
 *    at again when the client says that it made room.
 * 3. A request is taken only while there is room for an answer of QR_LOCAL_REPLY_BYTES.
 * 4. At most one pin for each open stream is held while a client does not read.
 */
#ifndef QR_LOCAL_IMPL_H
#define QR_LOCAL_IMPL_H

#include <pthread.h>

#include "local.h"
#include "storage/base/clock.h"
#include "storage/base/counter.h"

#define QR_LOCAL_LISTENERS_MAX 9
#define QR_LOCAL_TICK_MS 100
#define QR_LOCAL_HANDSHAKES_MAX 16
#define QR_LOCAL_BUDGET 16 /* frames of one connection before the next one's turn */
#define QR_LOCAL_REPLY_BYTES 1024
#define QR_LOCAL_HOLDS_MAX 64   /* replies of one connection that are held back */
#define QR_LOCAL_HELD_BYTES 128 /* of one of them */
#define QR_LOCAL_PAUSE_MS 1     /* a stream that waits for the disk looks again after so long */
#define QR_LOCAL_ENDING_MS 5000 /* held replies may take so long after everything else */
#define QR_LOCAL_RETRY_MS 1000  /* hint to callers that a draining server refuses */
/** A stream's message begins when so much is free, and ends once it is so large: short messages
 * keep both sides busy, and what is written in the cache until it is read. */
#define QR_LOCAL_CHUNK_MIN (64u << 10)
#define QR_LOCAL_CHUNK_BYTES (192u << 10)

struct qr_local_conn;

/** A part that found no room: the first one of the next message. */
struct qr_local_carry {
    void *pin; /* NULL: none */
    size_t head_bytes, count, bytes;
    struct qr_range ranges[QR_CHUNK_RANGES_MAX];
    uint8_t head[QR_WIRE_PART_HEAD_MAX];
};

/** A reply that waits until what it says is durable. Replies of a connection go in the order of
 * their requests. Two parties: the handler, and whoever releases it, perhaps first. */
struct qr_local_hold {
    struct qr_hold hold; /* first member */
    struct qr_local_conn *conn;
    uint32_t id, serial; /* the call that it belongs to, while serial is that call's */
    atomic_uint parties; /* atomic: handler and release that have not ended */
    struct qr_error error;
    size_t reply_bytes;
    uint8_t reply[QR_LOCAL_HELD_BYTES];
};

struct qr_local_call {
    const struct qr_method *method; /* NULL: not under way */
    uint32_t serial;                /* counts calls of this number */
    uint32_t held;                  /* its replies that are held back */
    bool closing;                   /* ends when there are none */
    void *stream;                   /* STREAM: its state */
    bool more;                      /* STREAM: not at its end */
    struct qr_local_carry carry;
};

struct qr_local_source {
    enum { QR_LOCAL_LISTENER, QR_LOCAL_POKE, QR_LOCAL_CONN } kind;
    int fd;
};

struct qr_local_conn {
    struct qr_local_source source; /* first member */
    struct qr_local_thread *thread;
    struct qr_local_conn *next;
    bool agreed, ready, ended;
    bool later;                  /* a stream waits for the disk */
    uint64_t since_ms;           /* accepted; or blocked by a full ring, 0: not */
    struct qr_local_hello hello; /* being received */
    size_t hello_bytes;
    void *memory;
    size_t memory_bytes;
    struct qr_ring_reader up;
    struct qr_ring_writer down;
    uint64_t told;        /* of down.head: the client was woken for it, or was awake */
    uint32_t ns, streams; /* streams: open ones */
    uint32_t turn;        /* whose stream is next */
    struct qr_local_call calls[QR_LOCAL_CALLS_MAX];
    struct qr_local_hold holds[QR_LOCAL_HOLDS_MAX]; /* ring */
    uint32_t hold_first, hold_count;
};

struct qr_local_thread {
    struct qr_local *local;
    pthread_t thread;
    bool started;
    atomic_bool over; /* atomic: it has ended */
    int epoll;
    struct qr_local_source poke;
    struct qr_scratch scratch;
    struct qr_frame_room room;
    struct qr_local_conn *conns; /* owner: the thread */
};

struct qr_local {
    struct qr_local_config config; /* const */
    uint8_t cookie[QR_LOCAL_COOKIE_BYTES];
    const struct qr_method *methods[QR_FRAME_METHODS]; /* const */
    struct qr_local_source listeners[QR_LOCAL_LISTENERS_MAX];
    char paths[QR_LOCAL_LISTENERS_MAX][QR_LOCAL_PATH_MAX + 1];
    uint32_t listener_count;
    struct qr_local_thread *threads;
    atomic_bool refusing, closing;   /* atomic */
    atomic_uint clients, handshakes; /* atomic: connections agreed; those that are not */
    struct qr_counter clients_refused, clients_broken, calls, failed, canceled, stalled, live,
        bytes_in, bytes_out;
};

/* local_conn.c */
/** Take one connection from a listener, if there is one. */
void qr_local_accept(struct qr_local_thread *thread, int listener);
/** Bytes came, or the other side is gone. */
void qr_local_conn_readable(struct qr_local_conn *conn);
/** Free it; its calls are ended. */
void qr_local_conn_destroy(struct qr_local_conn *conn);
/** Wake the client. */
void qr_local_ring_bell(struct qr_local_conn *conn);

/* local_serve.c */
/** Do what can be done now. */
void qr_local_serve(struct qr_local_conn *conn);
/** End all calls. */
void qr_local_drop_calls(struct qr_local_conn *conn);
void qr_local_drop_call(struct qr_local_conn *conn, struct qr_local_call *call);

/* local_hold.c */
/** Is there one for the next request? */
bool qr_local_may_hold(const struct qr_local_conn *conn);
/** Run the handler of a method that may hold its reply back, and answer, now or later. */
void qr_local_answer_held(struct qr_local_conn *conn, uint32_t id, struct qr_request *request);
/** Send what was released; true: something was. Needs room for one answer each. */
bool qr_local_step_holds(struct qr_local_conn *conn);
/** No reply is waited for any more: the connection may be freed. */
bool qr_local_holds_gone(struct qr_local_conn *conn);

/* local_chunk.c */
enum qr_local_step { QR_LOCAL_DONE, QR_LOCAL_FULL, QR_LOCAL_LATER };
/** The next message of a stream; or there is no room for it, or no data yet. */
enum qr_local_step qr_local_stream_step(struct qr_local_conn *conn, uint32_t id);
/** Publish a frame of up to QR_LOCAL_REPLY_BYTES; there is room (invariant 3). */
void qr_local_end_call(struct qr_local_conn *conn, uint32_t id, const struct qr_error *e);
void qr_local_reply(struct qr_local_conn *conn, uint32_t id, const void *bytes, size_t n,
                    bool last);
/** Let the client see what was published, also pads. */
void qr_local_tell(struct qr_local_conn *conn);

/** Memory of a thread that runs handlers (rpc_call.c). */
quire_status qr_scratch_create(struct qr_scratch *scratch, uint64_t message_bytes_max);
void qr_scratch_destroy(struct qr_scratch *scratch);

#endif
