/* SPDX-License-Identifier: Apache-2.0
 *
 * Positions and frames of a shared ring. See ring.h for who may be believed.
 *
 * A side that sleeps sets its flag and looks once more; a side that publishes reads the flag
 * afterwards. All of it sequentially consistent, so that one of the two sees the other.
 */
#include "ring.h"

#include <string.h>

bool qr_ring_capacity_valid(uint64_t capacity)
{
    return capacity >= QR_RING_BYTES_MIN && capacity <= QR_RING_BYTES_MAX &&
           (capacity & (capacity - 1)) == 0;
}

/* Was it set? It no longer is. */
static bool take_flag(_Atomic uint32_t *flag)
{
    return atomic_load(flag) && atomic_exchange(flag, 0);
}

/* ---- writing ---------------------------------------------------------------------------- */

void qr_ring_writer_init(struct qr_ring_writer *writer, void *memory, uint64_t capacity)
{
    *writer = (struct qr_ring_writer){.shared = memory,
                                      .bytes = (uint8_t *)memory + sizeof(*writer->shared),
                                      .capacity = capacity};
}

/* Bytes that may be written; 0 when the reader's position cannot be. */
static uint64_t room(struct qr_ring_writer *writer)
{
    const uint64_t tail = atomic_load(&writer->shared->tail);

    /* Forward from what it was, and not past what was published. */
    if (tail - writer->tail > writer->head - writer->tail || tail % QR_RING_LINE) {
        writer->broken = true;
        return 0;
    }
    writer->tail = tail;
    return writer->capacity - (writer->head - tail);
}

uint8_t *qr_ring_reserve(struct qr_ring_writer *writer, size_t bytes, size_t *room_out)
{
    uint64_t free_bytes = writer->broken ? 0 : room(writer);
    uint64_t at = writer->head & (writer->capacity - 1);
    uint64_t to_end = writer->capacity - at;

    if (writer->broken)
        return NULL;
    if (to_end < bytes && free_bytes >= to_end) {
        const struct qr_ring_head pad = {.bytes = (uint32_t)to_end, .type = QR_RING_PAD};
        memcpy(writer->bytes + at, &pad, sizeof(pad));
        qr_ring_publish(writer, (size_t)to_end);
        free_bytes -= to_end;
        to_end = writer->capacity;
        at = 0;
    }
    const uint64_t contiguous = free_bytes < to_end ? free_bytes : to_end;
    if (contiguous < bytes)
        return NULL;
    if (room_out)
        *room_out = (size_t)contiguous;
    return writer->bytes + at;
}

void qr_ring_publish(struct qr_ring_writer *writer, size_t bytes)
{
    writer->head += bytes;
    atomic_store(&writer->shared->head, writer->head);
}

bool qr_ring_reader_sleeps(struct qr_ring_writer *writer)
{
    return take_flag(&writer->shared->reader_waits);
}

void qr_ring_writer_waits(struct qr_ring_writer *writer)
{
    atomic_store(&writer->shared->writer_waits, 1);
}

/* ---- reading ---------------------------------------------------------------------------- */

void qr_ring_reader_init(struct qr_ring_reader *reader, void *memory, uint64_t capacity)
{
    *reader = (struct qr_ring_reader){.shared = memory,
                                      .bytes = (uint8_t *)memory + sizeof(*reader->shared),
                                      .capacity = capacity};
}

/* Published and not taken; 0 when the writer's position cannot be. */
static uint64_t available(struct qr_ring_reader *reader)
{
    const uint64_t head = atomic_load(&reader->shared->head);

    if (head - reader->next > reader->capacity || head % QR_RING_LINE)
        reader->broken = true;
    return reader->broken ? 0 : head - reader->next;
}

static bool take_any(struct qr_ring_reader *reader, struct qr_ring_frame *out)
{
    const uint64_t at = reader->next & (reader->capacity - 1);
    const uint64_t bytes = available(reader);

    if (bytes == 0)
        return false;
    memcpy(&out->head, reader->bytes + at, sizeof(out->head)); /* once: it may change */
    const uint32_t n = out->head.bytes;
    if (n < QR_RING_LINE || n % QR_RING_LINE || n > bytes || n > reader->capacity - at) {
        reader->broken = true;
        return false;
    }
    reader->next += n;
    out->body = reader->bytes + at + QR_RING_LINE;
    out->body_bytes = n - QR_RING_LINE;
    out->end = reader->next;
    return true;
}

bool qr_ring_take(struct qr_ring_reader *reader, struct qr_ring_frame *out)
{
    while (!reader->broken && take_any(reader, out))
        if (out->head.type != QR_RING_PAD)
            return true;
    return false;
}

bool qr_ring_has_data(struct qr_ring_reader *reader)
{
    return reader->broken || available(reader) > 0 || reader->broken;
}

void qr_ring_free(struct qr_ring_reader *reader, uint64_t end)
{
    atomic_store(&reader->shared->tail, end);
}

bool qr_ring_writer_sleeps(struct qr_ring_reader *reader)
{
    return take_flag(&reader->shared->writer_waits);
}

void qr_ring_reader_waits(struct qr_ring_reader *reader)
{
    atomic_store(&reader->shared->reader_waits, 1);
}

void qr_ring_reader_awake(struct qr_ring_reader *reader)
{
    atomic_store_explicit(&reader->shared->reader_waits, 0, memory_order_relaxed);
}
