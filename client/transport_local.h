/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls through memory shared with a server on the same host: the other way of carrying the hot
 * methods. transport_local.c: the connection and its threads; transport_local_call.c: calls.
 * Included by client/transport*.c alone.
 *
 * Threads: one leads: it takes the next frame or sleeps until there is one, and hands the lead
 * on before it works on what it took. So frames are worked on side by side, and given back to
 * the ring in their order.
 */
#ifndef QR_TRANSPORT_LOCAL_H
#define QR_TRANSPORT_LOCAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "proto/wire_frame.h"
#include "transport_impl.h"

#define QR_LOCAL_TAKEN_MAX 32 /* frames being worked on; more than there are threads */
#define QR_LOCAL_REPLY_MAX 64 /* bytes of a reply of an ordered call */
#define QR_LOCAL_REPLIES_MAX 72
#define QR_LOCAL_COPY_MAX 256 /* pieces that are not lent, all of a message */
#define QR_LOCAL_TEXT_MAX 96

struct qr_local;

/* What of a call waits for room in the ring. */
enum { QR_WANT_MESSAGE = 1, QR_WANT_CLOSE = 2, QR_WANT_CANCEL = 4 };

struct qr_local_call {
    struct qr_call base; /* first member */
    struct qr_local *local;
    uint32_t id;
    enum qr_frame_method method;         /* const while refs > 0 */
    const struct qr_call_events *events; /* const while refs > 0 */
    void *context;                       /* const while refs > 0 */
    bool ordered;                        /* const while refs > 0 */
    uint64_t deadline_ns;                /* const while refs > 0 */
    /* guarded by local->lock: */
    unsigned refs;           /* handles, and the call until done */
    unsigned due;            /* events under way, and the call until concluded */
    bool started, requested; /* requested: the server knows of it */
    bool peer_ended, concluded, cancel_asked, given_up;
    bool draining; /* somebody fires the replies of an ordered call */
    unsigned reply_first, reply_count;
    uint8_t replies[QR_LOCAL_REPLIES_MAX][QR_LOCAL_REPLY_MAX];
    uint8_t reply_bytes[QR_LOCAL_REPLIES_MAX];
    int grpc_status;
    char text[QR_LOCAL_TEXT_MAX];
    uint8_t details[QR_WIRE_STATUS_BYTES_MAX];
    size_t details_bytes;
    /* guarded by local->send_lock: */
    unsigned wants;
    struct qr_piece pieces[QR_PIECES_MAX]; /* of the message that waits */
    size_t piece_count;
    uint8_t copied[QR_LOCAL_COPY_MAX];
};

struct qr_local {
    pthread_mutex_t send_lock; /* before lock */
    pthread_mutex_t lock;
    pthread_cond_t follow;                                     /* the lead is free; up; stop */
    pthread_cond_t idle;                                       /* a call or a lead ended */
    enum { QR_LOCAL_OFF, QR_LOCAL_UP, QR_LOCAL_BROKEN } state; /* guarded by both locks */
    bool stop, leading;                                        /* guarded by lock */
    uint64_t sleep_until_ns;                                   /* guarded by lock */
    unsigned used; /* guarded by lock: calls with refs */
    int poke;      /* const: wakes the leader */
    int socket;    /* const while up */
    void *memory;  /* const while up */
    size_t memory_bytes;
    uint64_t part_bytes_max;    /* const while up: what fits a frame either way */
    struct qr_ring_writer up;   /* guarded by send_lock */
    struct qr_ring_reader down; /* owner: the leader */
    atomic_uint waiting;        /* atomic: calls that want room; written under send_lock */
    atomic_bool attention;      /* atomic: cancels or starts to look at */
    struct {
        uint64_t end;
        bool done;
    } taken[QR_LOCAL_TAKEN_MAX]; /* guarded by lock: ring */
    unsigned taken_first, taken_count;
    struct qr_local_call calls[QR_LOCAL_CALLS_MAX];
    uint32_t thread_count;
    pthread_t threads[QR_TRANSPORT_THREADS_MAX];
};

/** Off, with its threads. NULL: out of memory. */
struct qr_local *qr_local_create(uint32_t threads);
/** Waits for all calls to be released. NULL allowed. */
void qr_local_destroy(struct qr_local **local);
quire_status qr_local_connect(struct qr_local *local, const struct qr_local_offer *offer,
                              struct qr_error *e);
bool qr_local_is_up(struct qr_local *local);

/** A call, or NULL: not of this path, too large for it, off, or all numbers are taken. */
struct qr_call *qr_local_call_new(struct qr_local *local, const struct qr_call_options *options,
                                  const struct qr_call_events *events, void *context);

/* transport_local_connect.c */
struct qr_local_link {
    int socket;
    void *memory;
    size_t memory_bytes;
    uint64_t up_bytes, down_bytes;
};
quire_status qr_local_dial(const struct qr_local_offer *offer, struct qr_local_link *out,
                           struct qr_error *e);

/* transport_local.c */
void qr_local_wake_server(struct qr_local *local);
void qr_local_wake_leader(struct qr_local *local);
/** The bytes of a frame are no longer needed. */
void qr_local_frame_done(struct qr_local *local, unsigned slot);

/* transport_local_call.c */
/** What a frame brings, in the order of the frames: found by the leader, done afterwards. */
struct qr_local_task {
    struct qr_local_call *call;
    bool message, drain;        /* an event to fire; replies of an ordered call */
    bool peer_ended, concluded; /* the server has ended it; the call's own `due` ends */
};
void qr_local_make_calls(struct qr_local *local);
/** false: the server sent what cannot be. room: filled with the frame's message. */
bool qr_local_sort(struct qr_local *local, const struct qr_ring_frame *frame,
                   struct qr_frame_room *room, struct qr_local_task *task);
void qr_local_run(struct qr_local *local, const struct qr_local_task *task,
                  const struct qr_frame_room *room, unsigned slot);
/** The connection is of no more use: all calls end. */
void qr_local_break(struct qr_local *local);
/** Deadlines, cancels, and what waits for room. */
void qr_local_attend_calls(struct qr_local *local);
void qr_local_ask_attention(struct qr_local *local);
/** Of what is under way; UINT64_MAX: none. Under lock. */
uint64_t qr_local_next_deadline(struct qr_local *local);
/** The message that the call keeps can never be sent: it will end with an error. */
void qr_local_give_up(struct qr_local_call *call);
/** `writable`, unless the call is over. */
void qr_local_fire_writable(struct qr_local_call *call);

/* transport_local_send.c */
enum qr_local_sent { QR_LOCAL_SENT, QR_LOCAL_SENT_LATER, QR_LOCAL_SENT_NEVER };
/** Send a message, or keep it until there is room; later: keep it in any case. Its pieces are
 * released, at once or then. */
enum qr_local_sent qr_local_send_or_keep(struct qr_local_call *call,
                                         const struct qr_piece *pieces, size_t count,
                                         bool later);
/** Send what the call wants, as far as there is room. */
void qr_local_flush(struct qr_local_call *call);
void qr_local_release_pieces(const struct qr_piece *pieces, size_t count);
/* Under send_lock: */
bool qr_local_is_open(struct qr_local_call *call);
void qr_local_want(struct qr_local_call *call, unsigned what);
void qr_local_satisfy(struct qr_local_call *call, unsigned what);
/** The message that waits, now the caller's to release; returns its pieces. */
size_t qr_local_take_kept(struct qr_local_call *call, struct qr_piece pieces[QR_PIECES_MAX]);

uint64_t qr_local_now_ns(void);

#endif
