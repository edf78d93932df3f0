/* SPDX-License-Identifier: Apache-2.0
 *
 * What goes down to a client: answers, ends, and the messages of streams, whose pages are
 * copied from where they lie straight into the ring. See local_impl.h.
 */
#include "local_impl.h"

#include <assert.h>
#include <string.h>

/** A message being written where the client will read it. */
struct local_chunk {
    struct qr_chunk base;
    struct qr_local_conn *conn;
    struct qr_local_call *call;
    uint8_t *frame; /* reserved */
    size_t used, room;
    uint16_t parts;
};

/* ---- frames ----------------------------------------------------------------------------- */

void qr_local_tell(struct qr_local_conn *conn)
{
    if (conn->told == conn->down.head)
        return;
    conn->told = conn->down.head;
    if (qr_ring_reader_sleeps(&conn->down))
        qr_local_ring_bell(conn);
}

static void publish(struct qr_local_conn *conn, size_t frame_bytes)
{
    qr_ring_publish(&conn->down, frame_bytes);
    qr_counter_add(&conn->thread->local->bytes_out, frame_bytes);
    qr_local_tell(conn);
}

static void put_head(uint8_t *frame, const struct qr_ring_head *head)
{
    memcpy(frame, head, sizeof(*head));
}

/* One part or none. There is room. */
static void send_small(struct qr_local_conn *conn, struct qr_ring_head head, const void *bytes,
                       size_t n)
{
    const struct qr_frame_part part = {.head = bytes, .head_bytes = n};
    const size_t total = QR_RING_LINE + (n ? qr_frame_part_bytes(n, 0) : 0);

    assert(total <= QR_LOCAL_REPLY_BYTES);
    uint8_t *frame = qr_ring_reserve(&conn->down, total, NULL);
    if (!frame) { /* only when the client wrote nonsense into the ring's words */
        conn->ended = true;
        return;
    }
    head.bytes = (uint32_t)total;
    head.parts = n ? 1 : 0;
    put_head(frame, &head);
    if (n)
        (void)qr_frame_put_part(frame + QR_RING_LINE, &part);
    publish(conn, total);
}

void qr_local_reply(struct qr_local_conn *conn, uint32_t id, const void *bytes, size_t n,
                    bool last)
{
    send_small(conn,
               (struct qr_ring_head){
                   .type = QR_FRAME_MESSAGE, .call = id, .flags = last ? QR_FRAME_LAST : 0},
               bytes, n);
}

void qr_local_end_call(struct qr_local_conn *conn, uint32_t id, const struct qr_error *e)
{
    uint8_t packed[QR_WIRE_STATUS_BYTES_MAX];
    struct qr_ring_head head = {.type = QR_FRAME_END, .call = id};
    size_t n = 0;

    if (e) {
        qr_counter_add(&conn->thread->local->failed, 1);
        head.value = (uint32_t)qr_status_grpc(e->status);
        n = qr_wire_status_pack(e, packed);
    }
    send_small(conn, head, packed, n);
}

/* ---- a stream's message ----------------------------------------------------------------- */

static size_t left(const struct local_chunk *chunk)
{
    return chunk->room - chunk->used;
}

/* Room for a hole at least: what is larger is carried to the next message. */
static bool has_room(const struct qr_chunk *base)
{
    const struct local_chunk *chunk = (const struct local_chunk *)base;

    return !chunk->call->carry.pin && chunk->parts < QR_FRAME_PARTS_MAX &&
           chunk->used < QR_LOCAL_CHUNK_BYTES &&
           left(chunk) >= qr_frame_part_bytes(QR_WIRE_PART_HEAD_MAX, 0);
}

/* What is short is framing; rows that are written here are payload. */
static uint8_t *write_copied(struct qr_chunk *base, size_t n)
{
    struct local_chunk *chunk = (struct local_chunk *)base;
    const bool framing = n <= QR_WIRE_PART_HEAD_MAX;
    const size_t bytes = framing ? qr_frame_part_bytes(n, 0) : qr_frame_part_bytes(0, n);
    uint8_t *at = chunk->frame + chunk->used;

    if (bytes > left(chunk) || chunk->parts == QR_FRAME_PARTS_MAX)
        return NULL;
    chunk->used += bytes;
    chunk->parts++;
    base->bytes += n;
    if (!framing)
        return qr_frame_begin_part(at, NULL, 0, n);
    (void)qr_frame_begin_part(at, NULL, n, 0);
    return at + QR_FRAME_LENGTHS;
}

static size_t total(const struct qr_range *ranges, size_t count)
{
    size_t n = 0;

    for (size_t i = 0; i < count; i++)
        n += ranges[i].n;
    return n;
}

/* It fits. */
static void put_ranges(struct local_chunk *chunk, const uint8_t *head, size_t head_bytes,
                       const struct qr_range *ranges, size_t count)
{
    const size_t n = total(ranges, count);
    uint8_t *to = qr_frame_begin_part(chunk->frame + chunk->used, head, head_bytes, n);

    for (size_t i = 0; i < count; i++) {
        memcpy(to, ranges[i].bytes, ranges[i].n);
        to += ranges[i].n;
    }
    chunk->used += qr_frame_part_bytes(head_bytes, n);
    chunk->parts++;
    chunk->base.bytes += head_bytes + n;
}

static bool pinned(struct qr_chunk *base, const uint8_t *head, size_t head_bytes,
                   const struct qr_range *ranges, size_t count, void *pin)
{
    struct local_chunk *chunk = (struct local_chunk *)base;
    const struct qr_local_config *config = &chunk->conn->thread->local->config;
    struct qr_local_carry *carry = &chunk->call->carry;
    const size_t bytes = qr_frame_part_bytes(head_bytes, total(ranges, count));

    assert(head_bytes <= QR_WIRE_PART_HEAD_MAX && count <= QR_CHUNK_RANGES_MAX);
    if (QR_RING_LINE + bytes > config->down_bytes)
        return false; /* no ring of this size ever could: clients do not ask for such */
    if (bytes <= left(chunk)) {
        put_ranges(chunk, head, head_bytes, ranges, count);
        config->release(config->service, pin);
        return true;
    }
    *carry = (struct qr_local_carry){
        .pin = pin, .head_bytes = head_bytes, .count = count, .bytes = bytes};
    memcpy(carry->head, head, head_bytes);
    memcpy(carry->ranges, ranges, count * sizeof(*ranges));
    return true;
}

static const struct qr_chunk_ops chunk_ops = {has_room, write_copied, pinned};

/* Room for what was carried, or for a message worth its while. */
static bool begin(struct local_chunk *chunk)
{
    const struct qr_local_config *config = &chunk->conn->thread->local->config;
    struct qr_local_carry *carry = &chunk->call->carry;
    const size_t least = QR_LOCAL_CHUNK_MIN < config->down_bytes / 4
                             ? QR_LOCAL_CHUNK_MIN
                             : (size_t)config->down_bytes / 4;
    const size_t wanted = QR_RING_LINE + carry->bytes;

    chunk->frame =
        qr_ring_reserve(&chunk->conn->down, wanted > least ? wanted : least, &chunk->room);
    if (!chunk->frame)
        return false;
    chunk->used = QR_RING_LINE;
    chunk->base = (struct qr_chunk){.ops = &chunk_ops};
    if (carry->pin) {
        put_ranges(chunk, carry->head, carry->head_bytes, carry->ranges, carry->count);
        config->release(config->service, carry->pin);
        *carry = (struct qr_local_carry){0};
    }
    /* Of rows that are expanded into it: all that fits but the heads of its parts. */
    chunk->base.most =
        QR_LOCAL_CHUNK_BYTES < chunk->room / 2 ? QR_LOCAL_CHUNK_BYTES : chunk->room / 2;
    return true;
}

enum qr_local_step qr_local_stream_step(struct qr_local_conn *conn, uint32_t id)
{
    struct qr_local *local = conn->thread->local;
    struct qr_local_call *call = &conn->calls[id];
    struct local_chunk chunk = {.conn = conn, .call = call};
    struct qr_error e = {0};
    quire_status status = QUIRE_OK;

    if (!begin(&chunk))
        return QR_LOCAL_FULL;
    if (call->more && has_room(&chunk.base))
        status = call->method->stream->next(local->config.service, call->stream, &chunk.base,
                                            &call->more, &e);
    if (status) { /* what is reserved is not published */
        qr_local_drop_call(conn, call);
        qr_local_end_call(conn, id, &e);
        return QR_LOCAL_DONE;
    }
    const bool last = !call->more && !call->carry.pin;
    if (last)
        qr_local_drop_call(conn, call);
    if (chunk.parts == 0) {
        if (last)
            qr_local_end_call(conn, id, NULL);
        return last ? QR_LOCAL_DONE : call->carry.pin ? QR_LOCAL_FULL : QR_LOCAL_LATER;
    }
    put_head(chunk.frame, &(struct qr_ring_head){.bytes = (uint32_t)chunk.used,
                                                 .type = QR_FRAME_MESSAGE,
                                                 .parts = chunk.parts,
                                                 .call = id,
                                                 .flags = last ? QR_FRAME_LAST : 0});
    publish(conn, chunk.used);
    return QR_LOCAL_DONE;
}
