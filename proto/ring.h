/* SPDX-License-Identifier: Apache-2.0
 *
 * One direction of the same-host path: a ring of bytes in memory that two processes share, one
 * writing, one reading. Frames of whole lines, never across the ring's end. Neither side
 * believes the other: both keep their own positions, and every number that comes from the
 * shared memory is read once and checked. No I/O: who sleeps and who wakes is the caller's
 * business. Must not know what a frame means (wire_frame.h).
 *
 * Threads: a writer belongs to one thread at a time, a reader to one; qr_ring_free may be
 * called by another one than qr_ring_take.
 */
#ifndef QR_RING_H
#define QR_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QR_RING_LINE 64 /* frames are whole lines, the first one is the head */
#define QR_RING_BYTES_MIN (64u << 10)
#define QR_RING_BYTES_MAX (64u << 20)

/** What the two sides tell each other, at the start of the shared memory of a ring. Positions
 * only grow; each is written by one side. All zero: an empty ring. */
struct qr_ring_shared {
    _Alignas(QR_RING_LINE) _Atomic uint64_t head;         /* writer: bytes published */
    _Alignas(QR_RING_LINE) _Atomic uint64_t tail;         /* reader: bytes given back */
    _Alignas(QR_RING_LINE) _Atomic uint32_t reader_waits; /* wake it when there is data */
    _Alignas(QR_RING_LINE) _Atomic uint32_t writer_waits; /* wake it when there is room */
};
/** Shared memory of one ring of `capacity` bytes: the words above, then the bytes. */
#define QR_RING_SHARED_BYTES(capacity) (sizeof(struct qr_ring_shared) + (size_t)(capacity))

/** First line of a frame. */
struct qr_ring_head {
    uint32_t bytes; /* of the frame with this line; a multiple of QR_RING_LINE */
    uint16_t type;  /* QR_RING_PAD, or the user's */
    uint16_t parts;
    uint32_t call;
    uint32_t value;
    uint32_t flags;
    uint8_t reserved[QR_RING_LINE - 20];
};
_Static_assert(sizeof(struct qr_ring_head) == QR_RING_LINE, "a frame's head is one line");
#define QR_RING_PAD 0 /* nothing: the bytes up to the ring's end */

struct qr_ring_writer {
    struct qr_ring_shared *shared;
    uint8_t *bytes;
    uint64_t capacity, head, tail;
    bool broken; /* the reader wrote what cannot be: the ring is of no more use */
};

/** capacity: a power of two in QR_RING_BYTES_MIN .. _MAX; memory: QR_RING_SHARED_BYTES, at a
 * line. */
bool qr_ring_capacity_valid(uint64_t capacity);
void qr_ring_writer_init(struct qr_ring_writer *writer, void *memory, uint64_t capacity);
/**
 * Contiguous room for a frame of `bytes` (a multiple of a line, at most the capacity), or NULL:
 * not now, or broken. *room_out (may be NULL): how much there is, at least `bytes`. May publish
 * a pad: the reader may have to be woken even when this returns NULL.
 */
uint8_t *qr_ring_reserve(struct qr_ring_writer *writer, size_t bytes, size_t *room_out);
/** Let the reader have `bytes` of what was reserved. */
void qr_ring_publish(struct qr_ring_writer *writer, size_t bytes);
/** The reader sleeps and has to be woken: true once for each of its sleeps. */
bool qr_ring_reader_sleeps(struct qr_ring_writer *writer);
/** Say that this side is about to sleep until there is room; look again afterwards. */
void qr_ring_writer_waits(struct qr_ring_writer *writer);

struct qr_ring_reader {
    struct qr_ring_shared *shared;
    const uint8_t *bytes;
    uint64_t capacity, next;
    bool broken;
};

/** A frame: its head as it was, and where the rest lies until qr_ring_free. The other side may
 * change those bytes at any time. */
struct qr_ring_frame {
    struct qr_ring_head head;
    const uint8_t *body;
    size_t body_bytes;
    uint64_t end; /* for qr_ring_free */
};

void qr_ring_reader_init(struct qr_ring_reader *reader, void *memory, uint64_t capacity);
/** The next frame, stepping over pads; false: none, or broken. */
bool qr_ring_take(struct qr_ring_reader *reader, struct qr_ring_frame *out);
/** Is there something to take? True when broken, too. */
bool qr_ring_has_data(struct qr_ring_reader *reader);
/** Give back everything before `end`, in the order in which it was taken. When qr_ring_take
 * found nothing and no frame is out, `end` is reader->next: a pad may stand before it. */
void qr_ring_free(struct qr_ring_reader *reader, uint64_t end);
bool qr_ring_writer_sleeps(struct qr_ring_reader *reader);
/** Say that this side is about to sleep until there is data; look again afterwards. */
void qr_ring_reader_waits(struct qr_ring_reader *reader);
/** This side is awake: no need to wake it. */
void qr_ring_reader_awake(struct qr_ring_reader *reader);

#endif
