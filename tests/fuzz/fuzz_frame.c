/* SPDX-License-Identifier: Apache-2.0
 *
 * A ring whose other side is a stranger: the input is what stands in the shared memory. Frames
 * are taken until there are none or the ring is broken, and read as a server and a client
 * would; nothing leads out of the memory. The first two bytes say how much was published.
 */
#include "fuzz_wire.h"
#include "proto/wire_frame.h"

#define CAPACITY QR_RING_BYTES_MIN

/* Payloads are copied once, whatever they are. */
static void drain(struct qr_wire_cursor cursor)
{
    static uint8_t sink[CAPACITY];
    assert(cursor.bytes <= sizeof(sink));
    assert(qr_wire_cursor_read(&cursor, sink, (size_t)cursor.bytes));
}

static void read_append(const struct qr_frame_room *room)
{
    struct qr_wire_append_view view;
    struct qr_wire_cursor page;
    struct qr_error e = {0};
    if (qr_wire_append_parse(room->fragments, room->count, &view, &e))
        return;
    uint32_t *ids = malloc((view.token_id_count + 1) * sizeof(*ids));
    assert(ids);
    qr_wire_append_token_ids(&view, ids);
    free(ids);
    drain(view.rows);
    for (struct qr_wire_cursor at = view.all; qr_wire_append_next_page(&at, &page);)
        drain(page);
}

static void read_chunk(const struct qr_frame_room *room)
{
    struct qr_wire_cursor at = qr_wire_cursor_all(room->fragments, room->count), payload;
    struct qr_wire_part part;
    struct qr_error e = {0};
    bool more = true;
    while (!qr_wire_next_part(&at, &more, &part, &payload, &e) && more)
        drain(payload);
}

static void read_frames(struct qr_ring_reader *reader)
{
    static uint8_t heads[QR_FRAME_HEADS_MAX];
    static struct qr_wire_fragment fragments[2 * QR_FRAME_PARTS_MAX];
    struct qr_frame_room room = {.heads = heads, .fragments = fragments};
    struct qr_ring_frame frame;
    while (qr_ring_take(reader, &frame)) {
        assert(frame.body_bytes <= CAPACITY - QR_RING_LINE);
        if (!qr_frame_gather(&frame, &room))
            continue;
        assert(room.bytes <= frame.body_bytes);
        for (size_t i = 0; i < room.count; i++)
            assert(room.fragments[i].bytes > 0);
        read_append(&room);
        read_chunk(&room);
        (void)fuzz_unpack(&quire__v1__fetch_request__descriptor, room.fragments, room.count);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct qr_ring_reader reader;
    if (size < 2)
        return 0;
    const size_t n = size - 2 < CAPACITY ? size - 2 : CAPACITY;
    uint8_t *memory = aligned_alloc(QR_RING_LINE, QR_RING_SHARED_BYTES(CAPACITY));
    assert(memory);
    memset(memory, 0, QR_RING_SHARED_BYTES(CAPACITY));
    memcpy(memory + sizeof(struct qr_ring_shared), data + 2, n);
    atomic_store(&((struct qr_ring_shared *)(void *)memory)->head,
                 (uint64_t)(data[0] | data[1] << 8) * (QR_RING_LINE / 4));
    qr_ring_reader_init(&reader, memory, CAPACITY);
    read_frames(&reader);
    free(memory);
    return 0;
}
