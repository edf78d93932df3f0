/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages in the frames of a shared ring. Every length is copied out of the shared memory
 * before it is checked. Must not know what a message means.
 */
#include "wire_frame.h"

#include <string.h>

#define PAGE_BYTES 4096u

struct lengths {
    uint32_t head, bulk;
};
_Static_assert(sizeof(struct lengths) == QR_FRAME_LENGTHS, "two numbers");

static size_t lines(size_t bytes)
{
    return (bytes + QR_RING_LINE - 1) & ~(size_t)(QR_RING_LINE - 1);
}

static size_t pages(size_t bytes)
{
    return (bytes + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1);
}

size_t qr_local_down_offset(uint64_t up_bytes)
{
    return pages(QR_RING_SHARED_BYTES(up_bytes));
}

size_t qr_local_memory_bytes(uint64_t up_bytes, uint64_t down_bytes)
{
    return qr_local_down_offset(up_bytes) + pages(QR_RING_SHARED_BYTES(down_bytes));
}

bool qr_local_cookie_equal(const uint8_t *a, const uint8_t *b)
{
    uint8_t differ = 0;

    for (size_t i = 0; i < QR_LOCAL_COOKIE_BYTES / 2; i++)
        differ |= (uint8_t)(a[i] ^ b[i]);
    return differ == 0;
}

size_t qr_frame_part_bytes(size_t head_bytes, size_t bulk_bytes)
{
    return lines(sizeof(struct lengths) + head_bytes) + lines(bulk_bytes);
}

uint8_t *qr_frame_begin_part(uint8_t *at, const void *head, size_t head_bytes,
                             size_t bulk_bytes)
{
    const struct lengths lengths = {(uint32_t)head_bytes, (uint32_t)bulk_bytes};

    memcpy(at, &lengths, sizeof(lengths));
    if (head)
        memcpy(at + sizeof(lengths), head, head_bytes);
    return at + lines(sizeof(lengths) + head_bytes);
}

uint8_t *qr_frame_put_part(uint8_t *at, const struct qr_frame_part *part)
{
    uint8_t *bulk = qr_frame_begin_part(at, part->head, part->head_bytes, part->bulk_bytes);

    if (part->bulk_bytes)
        memcpy(bulk, part->bulk, part->bulk_bytes);
    return bulk + lines(part->bulk_bytes);
}

static void add(struct qr_frame_room *room, const uint8_t *data, size_t bytes, bool foreign)
{
    if (bytes == 0)
        return;
    room->fragments[room->count++] =
        (struct qr_wire_fragment){.data = data, .bytes = bytes, .foreign = foreign};
    room->bytes += bytes;
}

bool qr_frame_gather(const struct qr_ring_frame *frame, struct qr_frame_room *room)
{
    const uint8_t *at = frame->body;
    size_t left = frame->body_bytes, heads = 0;
    struct lengths lengths;

    room->count = 0;
    room->bytes = 0;
    if (frame->head.parts > QR_FRAME_PARTS_MAX)
        return false;
    for (unsigned i = 0; i < frame->head.parts; i++) {
        if (left < sizeof(lengths))
            return false;
        memcpy(&lengths, at, sizeof(lengths));
        if (lengths.head > QR_FRAME_HEADS_MAX - heads || lengths.bulk > left ||
            qr_frame_part_bytes(lengths.head, lengths.bulk) > left)
            return false;
        memcpy(room->heads + heads, at + sizeof(lengths), lengths.head);
        add(room, room->heads + heads, lengths.head, false);
        heads += lengths.head;
        const uint8_t *bulk = at + lines(sizeof(lengths) + lengths.head);
        add(room, bulk, lengths.bulk, true);
        left -= qr_frame_part_bytes(lengths.head, lengths.bulk);
        at = bulk + lines(lengths.bulk);
    }
    return true;
}
