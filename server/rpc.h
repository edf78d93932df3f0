/* SPDX-License-Identifier: Apache-2.0
 *
 * The call machine as the rest of the server sees it: a table of methods, plain
 * handlers, and chunks whose pages go out without a copy. Only server/rpc*.[ch]
 * know gRPC; this header names none of its types. Must not know what a message
 * means.
 */
#ifndef QR_RPC_H
#define QR_RPC_H

#include <stdatomic.h>

#include "proto/wire.h"

/** Memory of one thread that runs handlers. Nothing in it survives the handler's return. */
struct qr_scratch {
    struct qr_wire_arena arena; /* for unpacked requests; empty when a handler starts */
    uint8_t *reply;             /* where a handler packs its reply */
    size_t reply_capacity;
};

/** A reply that is held back until what it says is true. */
struct qr_hold {
    /** Send the reply, or with `e` an error in its place. Once; any thread; must not be called
     * with a lock that a handler takes. */
    void (*release)(struct qr_hold *hold, const struct qr_error *e);
};

/** One received message and who sent it. */
struct qr_request {
    uint32_t ns;                              /* namespace of the caller */
    const struct qr_wire_fragment *fragments; /* borrowed until the handler returns */
    size_t count;
    uint64_t bytes;
    struct qr_scratch *scratch;
    const atomic_bool *canceled; /* becomes true when nobody waits for the reply */
    struct qr_hold *hold;        /* NULL: replies of this method cannot be held back */
    bool may_wait; /* else a handler that would wait for the disk may answer EAGAIN,
                      and is called again on a thread that may */
    bool *held; /* set by a handler that returns OK, and then releases `hold`, perhaps before it
                   returns */
};

/** Answer one message: pack the reply into scratch->reply and set *reply_bytes. Any status but
 * 0 ends the call with `e`. */
typedef quire_status qr_handler(void *service, const struct qr_request *request,
                                size_t *reply_bytes, struct qr_error *e);

/* ---- chunks: messages of a stream ------------------------------------------------------- */

struct qr_range {
    const void *bytes;
    size_t n;
};

/** A message being put together, for gRPC or for a shared ring; owner: the thread that runs the
 * stream. */
struct qr_chunk {
    const struct qr_chunk_ops *ops;
    size_t bytes; /* so far */
    size_t most;  /* aim at no more, whatever the handler would like */
};
struct qr_chunk_ops {
    bool (*has_room)(const struct qr_chunk *chunk);
    uint8_t *(*write)(struct qr_chunk *chunk, size_t n);
    bool (*pinned)(struct qr_chunk *chunk, const uint8_t *head, size_t head_bytes,
                   const struct qr_range *ranges, size_t count, void *pin);
};

#define QR_CHUNK_RANGES_MAX 2

/** More parts can be put in: neither the space nor the caller's pins are used up. */
static inline bool qr_chunk_has_room(const struct qr_chunk *chunk)
{
    return chunk->ops->has_room(chunk);
}
/** n bytes at the end of the message, to be written before the stream's next() returns. NULL:
 * no memory. */
static inline uint8_t *qr_chunk_write(struct qr_chunk *chunk, size_t n)
{
    return chunk->ops->write(chunk, n);
}
/**
 * Add a copied head and up to QR_CHUNK_RANGES_MAX ranges that are not copied, or only into
 * memory that the caller shares; `pin` is given to the release function of the configuration
 * when the last of them is no longer needed. head_bytes <= QR_WIRE_PART_HEAD_MAX. false: no
 * memory; nothing was taken, the pin stays the caller's.
 */
static inline bool qr_chunk_pinned(struct qr_chunk *chunk, const uint8_t *head,
                                   size_t head_bytes, const struct qr_range *ranges,
                                   size_t count, void *pin)
{
    return chunk->ops->pinned(chunk, head, head_bytes, ranges, count, pin);
}

/** A stream of chunks as an answer to one message. */
struct qr_stream_ops {
    quire_status (*open)(void *service, const struct qr_request *request, void **state_out,
                         struct qr_error *e);
    /** Fill the next chunk; *more_out false: it was the last (empty last chunks are not sent).
     */
    quire_status (*next)(void *service, void *state, struct qr_chunk *chunk, bool *more_out,
                         struct qr_error *e);
    void (*close)(void *service, void *state);
};

/* ---- methods ---------------------------------------------------------------------------- */

enum qr_method_kind {
    QR_METHOD_UNARY,        /* answered on the message thread: short */
    QR_METHOD_DEFERRED,     /* answered on another thread: may compute for long */
    QR_METHOD_WAITING,      /* the same on threads of their own: may wait for the disk */
    QR_METHOD_STREAM,       /* one message in, chunks out */
    QR_METHOD_CONVERSATION, /* many in, one out for each, in order */
    QR_METHOD_WATCH         /* one in; answered at once and again after each qr_rpc_notify that
                               changes the answer */
};

struct qr_method {
    const char *path; /* "/quire.v1.Quire/Hello" */
    enum qr_method_kind kind;
    bool always;                        /* answered while draining, too */
    bool holds;                         /* UNARY, CONVERSATION: replies may be held back */
    qr_handler *handle;                 /* all but STREAM */
    const struct qr_stream_ops *stream; /* STREAM */
};

/** What the machine counts; any thread may read. */
struct qr_rpc_stat {
    uint64_t calls, failed, unknown, canceled, stalled, refused;
    uint64_t bytes_in, bytes_out;
    uint64_t live, pins;
};

struct qr_rpc_config {
    const struct qr_method *methods; /* borrowed for the machine's life */
    size_t method_count;
    void *service; /* first argument of every handler */
    /** Namespace of a peer ("unix:...", "ipv4:127.0.0.1:1234"); an error ends the call. */
    quire_status (*identify)(void *service, const char *peer, uint32_t *ns_out,
                             struct qr_error *e);
    void (*release)(void *service, void *pin); /* any thread */
    uint32_t threads, calls_max, pins_max, deferred_threads, deferred_max;
    uint32_t waiting_threads; /* 0: WAITING methods are UNARY ones */
    uint64_t message_bytes_max, wire_memory_bytes;
    uint32_t stall_ms, handshake_ms;
};

struct qr_rpc;

quire_status qr_rpc_create(const struct qr_rpc_config *config, struct qr_rpc **out,
                           struct qr_error *e);
/** Bind an address ("unix:/path", "host:port") before qr_rpc_start; *port_out: the port chosen,
 * 0 for unix. EUNAVAILABLE when it cannot be bound. */
quire_status qr_rpc_bind(struct qr_rpc *rpc, const char *address, uint16_t *port_out,
                         struct qr_error *e);
/** Start serving. */
quire_status qr_rpc_start(struct qr_rpc *rpc, struct qr_error *e);
/** Ask the handlers of open watches again. Any thread. */
void qr_rpc_notify(struct qr_rpc *rpc);
/**
 * Refuse new calls for at least notice_ms and until those under way have ended, then close the
 * addresses; what still runs after timeout_ms is cancelled. Returns false when even cancelled
 * calls had not ended after five more seconds: then only leaving the process is safe.
 */
bool qr_rpc_drain(struct qr_rpc *rpc, uint32_t notice_ms, uint32_t timeout_ms);
/** Threads end, memory is freed. After qr_rpc_drain returned true, or when never started. */
void qr_rpc_destroy(struct qr_rpc **rpc);
void qr_rpc_stat(struct qr_rpc *rpc, struct qr_rpc_stat *out);

#endif
