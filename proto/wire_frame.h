/* SPDX-License-Identifier: Apache-2.0
 *
 * The same-host path: how a client and a server agree on shared memory, and how the messages of
 * a call stand in its rings (ring.h). README.md describes the bytes. No I/O.
 */
#ifndef QR_WIRE_FRAME_H
#define QR_WIRE_FRAME_H

#include "ring.h"
#include "wire.h"

/* ---- agreeing --------------------------------------------------------------------------- */

#define QR_LOCAL_VERSION 1
#define QR_LOCAL_COOKIE_BYTES                                                                  \
    32                           /* half proves the client to the server, half the other way   \
                                  */
#define QR_LOCAL_CALLS_MAX 32    /* calls under way on one connection */
#define QR_LOCAL_SUFFIX ".local" /* beside a unix socket's path */
#define QR_LOCAL_PATH_MAX 107

/** What a client sends first; the server closes on anything else. */
struct qr_local_hello {
    char magic[8]; /* "QUIRELC" */
    uint32_t version, reserved;
    uint8_t cookie[QR_LOCAL_COOKIE_BYTES / 2];
};
/** The answer; with status 0 the descriptor of the memory comes with it (SCM_RIGHTS). The
 * memory: the ring to the server, then the one to the client. After it single bytes of any
 * value wake the other side. */
struct qr_local_welcome {
    char magic[8];
    uint32_t version, status; /* proto/status.def; EFULL: no room for one more client */
    uint8_t cookie[QR_LOCAL_COOKIE_BYTES / 2];
    uint64_t up_bytes, down_bytes; /* capacities of the two rings */
};
_Static_assert(sizeof(struct qr_local_hello) == 32 && sizeof(struct qr_local_welcome) == 48,
               "no padding");
#define QR_LOCAL_MAGIC "QUIRELC"

/** Bytes of the shared memory, and where the second ring starts: both whole pages. */
size_t qr_local_down_offset(uint64_t up_bytes);
size_t qr_local_memory_bytes(uint64_t up_bytes, uint64_t down_bytes);
/** Compares in a time that does not depend on what differs. */
bool qr_local_cookie_equal(const uint8_t *a, const uint8_t *b);

/* ---- frames ----------------------------------------------------------------------------- */

enum qr_frame_type {
    QR_FRAME_REQUEST = 1, /* up: starts `call`; value: enum qr_frame_method; a message with it,
                             but for APPEND_STREAM */
    QR_FRAME_MESSAGE = 2, /* one message of a call, either way */
    QR_FRAME_CLOSE = 3,   /* up: no more messages */
    QR_FRAME_CANCEL = 4,  /* up */
    QR_FRAME_END = 5      /* down: value: gRPC status; message: google.rpc.Status, or none */
};
/** On a MESSAGE down: the last one, and all went well: no END follows. */
#define QR_FRAME_LAST 1u

enum qr_frame_method {
    QR_FRAME_APPEND = 1,
    QR_FRAME_APPEND_STREAM = 2,
    QR_FRAME_FETCH = 3,
    QR_FRAME_METHODS
};

#define QR_FRAME_PARTS_MAX 256
#define QR_FRAME_HEADS_MAX (128u << 10) /* bytes of all heads of a frame */

/** A run of a message: framing, which the receiver copies before it looks, then payload, which
 * it copies to where it belongs. */
struct qr_frame_part {
    const void *head;
    size_t head_bytes;
    const void *bulk;
    size_t bulk_bytes;
};
/** Bytes that a part takes: whole lines. */
size_t qr_frame_part_bytes(size_t head_bytes, size_t bulk_bytes);
/** Write lengths and head (NULL: the caller writes it, QR_FRAME_LENGTHS behind `at`); returns
 * where exactly bulk_bytes of payload go, at a line. */
#define QR_FRAME_LENGTHS 8
uint8_t *qr_frame_begin_part(uint8_t *at, const void *head, size_t head_bytes,
                             size_t bulk_bytes);
/** Write a whole part; returns where the next one goes. */
uint8_t *qr_frame_put_part(uint8_t *at, const struct qr_frame_part *part);

/** Where a received message is put together. */
struct qr_frame_room {
    uint8_t *heads;                     /* QR_FRAME_HEADS_MAX */
    struct qr_wire_fragment *fragments; /* 2 * QR_FRAME_PARTS_MAX */
    size_t count;
    uint64_t bytes;
};
/** Heads are copied; payloads become foreign fragments. false: the frame is not one. */
bool qr_frame_gather(const struct qr_ring_frame *frame, struct qr_frame_room *room);

#endif
