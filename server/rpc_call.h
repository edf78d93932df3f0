/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the call machine: threads, call contexts, events. Included by
 * server/rpc*.c alone.
 *
 * A call's life (all on its worker's thread, but for the handler of a DEFERRED one):
 *
 *   armed -> accepted -> [handler | stream step | message]* -> finishing -> ended
 *
 * 1. A context is ended when its close event and its last batch have both come: `closed`,
 *    `finishing`, `batch_out` say so. Only then is the gRPC call let go.
 * 2. It returns to the pool when it is ended and no slice of it is left in the transport:
 *    `refs` counts the machine (1) and each holder.
 * 3. At most one batch besides the close is out at a time.
 */
#ifndef QR_RPC_CALL_H
#define QR_RPC_CALL_H

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <stdatomic.h>

#include "rpc.h"
#include "storage/base/clock.h"
#include "storage/base/counter.h"
#include "storage/base/pool.h"

#define QR_ARMED_CALLS 16  /* contexts waiting for a call, for each method and thread */
#define QR_ARMED_GENERIC 4 /* the same for unknown methods */
#define QR_TICK_MS 100     /* stalls, watches and starved methods are looked at so often */
#define QR_PAUSE_MS 1      /* a stream that used up its pins looks again after so long */
#define QR_BUSY_MS 100     /* hint to callers over max_calls */
#define QR_RETRY_MS 1000   /* hint to callers that a draining server refuses */
#define QR_FRAGMENTS_MAX 4096
#define QR_COPY_BYTES_MAX 4096 /* ranges up to this size are cheaper to copy than to pin */

/** What a completion queue hands back. `handed` orders what came before the hand-over for
 * whoever takes it from the queue, also for tools that cannot look into gRPC's own ordering. */
struct qr_event {
    void (*run)(void *owner, bool ok);
    void *owner;
    atomic_uint handed; /* atomic: release when given to the queue, acquire when taken */
};

/** Make the event ready to be given to a queue as a tag. */
static inline void *qr_event_hand(struct qr_event *event, void (*run)(void *owner, bool ok),
                                  void *owner)
{
    event->run = run;
    event->owner = owner;
    atomic_fetch_add_explicit(&event->handed, 1, memory_order_release);
    return event;
}

static inline void qr_event_take(struct qr_event *event, bool ok)
{
    (void)atomic_load_explicit(&event->handed, memory_order_acquire);
    event->run(event->owner, ok);
}

struct qr_call;

/** One pinned part in the transport: its head and ranges are slices that point here. */
struct qr_holder {
    struct qr_call *call;
    void *pin;
    atomic_uint slices; /* atomic: slices not destroyed yet */
    uint8_t head[QR_WIRE_PART_HEAD_MAX];
};

#define QR_CHUNK_PIECES_MAX 768 /* slices of one message */

struct qr_rpc_chunk {
    struct qr_chunk base;
    struct qr_call *call;
    size_t count;
    grpc_slice slices[QR_CHUNK_PIECES_MAX];
};

struct qr_worker {
    struct qr_rpc *rpc; /* const */
    grpc_completion_queue *cq;
    pthread_t thread;
    bool started;
    struct qr_scratch scratch;
    struct qr_wire_fragment *fragments; /* [QR_FRAGMENTS_MAX] */
    uint8_t *flat;                      /* message_bytes_max: a message of too many slices */
    struct qr_rpc_chunk chunk;
    /* owner: the worker's thread */
    struct qr_call *live; /* doubly linked */
    uint32_t live_count;
    uint32_t paused_count;  /* live streams that wait for pins */
    uint32_t starved_count; /* sum of the array */
    uint32_t *starved; /* [method_count + 1]: contexts that could not be armed; last: generic */
    uint64_t tick_ms;  /* when the next tick is due */
};

struct qr_call {
    struct qr_worker *worker;
    const struct qr_method *method; /* NULL: generic */
    uint32_t method_index;          /* method_count: generic */
    grpc_call *call;
    gpr_timespec deadline;
    grpc_call_details details; /* generic only */
    grpc_metadata_array metadata;
    grpc_byte_buffer *payload;
    struct qr_event accepted, closed_event, batch;
    struct qr_call *next, *previous; /* of worker->live */
    atomic_uint refs;                /* atomic: the machine and each holder */
    atomic_uint pins;                /* atomic: holders of this call */
    atomic_bool canceled;            /* atomic: set by the worker, polled by handlers */
    int close_canceled;
    bool closed, finishing, stream_open, stream_done, paused;
    bool batch_out; /* true from handing the call to another thread until its batch is back */
    uint32_t ns;
    void *stream;
    uint64_t batch_since_ms;  /* when the outstanding write began; 0: none */
    uint64_t seen_generation; /* WATCH */
    uint8_t watch_reply[64];
    size_t watch_bytes;
    struct qr_call *deferred_next;
    struct qr_hold hold; /* CONVERSATION and UNARY */
    bool held;
    atomic_uint hold_parties; /* atomic: handler and release that have not ended */
    grpc_byte_buffer *held_reply;
    struct qr_error held_error;
    bool headers_sent; /* written by whoever owns the batch */
};

struct qr_deferred; /* rpc_defer.c */

struct qr_rpc {
    struct qr_rpc_config config; /* const */
    grpc_server *server;
    void **registered; /* [method_count] */
    struct qr_worker *workers;
    struct qr_pool *calls, *holders;
    struct qr_deferred *deferred, *waiting; /* waiting: NULL without waiting_threads */
    atomic_bool draining, closing;          /* atomic */
    atomic_bool server_down;                /* atomic: the shutdown event has come */
    _Atomic uint64_t generation;            /* atomic: counts qr_rpc_notify */
    struct qr_event shutdown;
    struct qr_counter calls_count, failed, unknown, canceled_count, stalled, refused, bytes_in,
        bytes_out, live, watches, pins;
};

/* rpc_worker.c */
quire_status qr_worker_start(struct qr_worker *worker, struct qr_error *e);
/** Run the next event of the worker's queue, if one comes in time. False: the queue is shut. */
bool qr_worker_step(struct qr_worker *worker, gpr_timespec deadline);
void qr_worker_arm(struct qr_worker *worker, uint32_t method_index);
void qr_worker_add(struct qr_worker *worker, struct qr_call *call);
void qr_worker_remove(struct qr_worker *worker, struct qr_call *call);

/* rpc_call.c */
void qr_call_accepted(void *owner, bool ok);
void qr_call_unref(struct qr_call *call);
/** Start a batch; its end runs `run`. */
void qr_call_batch(struct qr_call *call, grpc_op *ops, size_t count,
                   void (*run)(void *owner, bool ok));
/** Add SEND_INITIAL_METADATA when it has not been sent. Returns the number of ops now. */
size_t qr_call_headers(struct qr_call *call, grpc_op *ops, size_t count);
/** End the call: with a last message (consumed; may be NULL) and status 0, or with an error. */
void qr_call_finish(struct qr_call *call, grpc_byte_buffer *message, const struct qr_error *e);
/** Run the method's handler on call->payload. *message_out: the reply. */
quire_status qr_call_handle(struct qr_call *call, struct qr_request *request,
                            grpc_byte_buffer **message_out, struct qr_error *e);
/** Slices of call->payload as fragments in the given arrays. EINVAL: no message. */
quire_status qr_call_request(struct qr_call *call, struct qr_scratch *scratch,
                             struct qr_wire_fragment *fragments, uint8_t *flat,
                             struct qr_request *out, struct qr_error *e);
bool qr_call_ended(struct qr_call *call);

/* rpc_stream.c */
void qr_stream_start(struct qr_call *call);
void qr_conversation_start(struct qr_call *call);
void qr_watch_start(struct qr_call *call);
/** Called by the worker's tick: after a notify; when pins may be free again. */
void qr_watch_refresh(struct qr_call *call);
void qr_stream_resume(struct qr_call *call);
void qr_stream_close(struct qr_call *call);

/* rpc_chunk.c */
void qr_rpc_chunk_reset(struct qr_rpc_chunk *chunk, struct qr_call *call);
/** May a message of this call hold another pin? */
bool qr_rpc_chunk_may_pin(const struct qr_call *call);
/** The message; the chunk is empty afterwards. */
grpc_byte_buffer *qr_rpc_chunk_take(struct qr_rpc_chunk *chunk);

/* rpc_hold.c */
/** Run the handler of a reply that may be held back; `send` gets it, or NULL and the error, on
 * this thread or another. */
void qr_call_handle_held(struct qr_call *call, struct qr_request *request);
/* rpc_stream.c: send a reply of a conversation, and wait for its next message. */
void qr_conversation_reply(struct qr_call *call, grpc_byte_buffer *reply,
                           const struct qr_error *e);

/* rpc_defer.c */
struct qr_deferred_config {
    struct qr_rpc *rpc;
    uint32_t threads, queue_max;
    const char *what, *option; /* for texts: "attend", "max_attends" */
};
quire_status qr_deferred_create(const struct qr_deferred_config *config,
                                struct qr_deferred **out, struct qr_error *e);
void qr_deferred_destroy(struct qr_deferred **deferred);
/** EFULL with a retry hint when queue_max calls wait. */
quire_status qr_deferred_put(struct qr_deferred *deferred, struct qr_call *call,
                             struct qr_error *e);

/** Memory of a thread that runs handlers. */
quire_status qr_scratch_create(struct qr_scratch *scratch, uint64_t message_bytes_max);
void qr_scratch_destroy(struct qr_scratch *scratch);

#endif
