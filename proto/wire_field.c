/* SPDX-License-Identifier: Apache-2.0
 *
 * Cursors over fragments, and the protobuf wire format on top of them. Must not
 * know any message.
 */
#include "wire_field.h"

#include <string.h>

#define FIELD_NUMBER_MAX ((1u << 29) - 1)

struct qr_wire_cursor qr_wire_cursor_all(const struct qr_wire_fragment *fragments, size_t count)
{
    struct qr_wire_cursor cursor = {.fragments = fragments, .count = count};
    for (size_t i = 0; i < count; i++)
        cursor.bytes += fragments[i].bytes;
    return cursor;
}

const uint8_t *qr_wire_cursor_peek(struct qr_wire_cursor *cursor, size_t *n_out)
{
    *n_out = 0;
    if (cursor->bytes == 0)
        return NULL;
    while (cursor->offset == cursor->fragments[cursor->index].bytes) {
        cursor->index++;
        cursor->offset = 0;
    }
    const struct qr_wire_fragment *fragment = &cursor->fragments[cursor->index];
    const size_t run = fragment->bytes - cursor->offset;
    *n_out = run < cursor->bytes ? run : (size_t)cursor->bytes;
    return fragment->data + cursor->offset;
}

bool qr_wire_cursor_skip(struct qr_wire_cursor *cursor, uint64_t n)
{
    if (n > cursor->bytes)
        return false;
    while (n > 0) {
        size_t run;
        qr_wire_cursor_peek(cursor, &run);
        const size_t step = run < n ? run : (size_t)n;
        cursor->offset += step;
        cursor->bytes -= step;
        n -= step;
    }
    return true;
}

bool qr_wire_cursor_read(struct qr_wire_cursor *cursor, void *dst, size_t n)
{
    uint8_t *to = dst;
    if (n > cursor->bytes)
        return false;
    while (n > 0) {
        size_t run;
        const uint8_t *from = qr_wire_cursor_peek(cursor, &run);
        const size_t step = run < n ? run : n;
        memcpy(to, from, step);
        cursor->offset += step;
        cursor->bytes -= step;
        to += step;
        n -= step;
    }
    return true;
}

/* Bytes that decide how others are read: never foreign ones, which could be read as one thing
 * now and as another later. */
static bool read_framing(struct qr_wire_cursor *cursor, uint8_t *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t run;
        const uint8_t *from = qr_wire_cursor_peek(cursor, &run);
        if (run == 0 || cursor->fragments[cursor->index].foreign)
            return false;
        dst[i] = *from;
        cursor->offset++;
        cursor->bytes--;
    }
    return true;
}

bool qr_wire_read_varint(struct qr_wire_cursor *cursor, uint64_t *out)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t byte;
        if (!read_framing(cursor, &byte, 1))
            return false;
        if (shift == 63 && byte > 1)
            return false;
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = v;
            return true;
        }
    }
    return false;
}

static bool read_fixed(struct qr_wire_cursor *cursor, size_t n, uint64_t *out)
{
    uint8_t le[8] = {0};
    if (!read_framing(cursor, le, n))
        return false;
    *out = 0;
    for (size_t i = n; i-- > 0;)
        *out = *out << 8 | le[i];
    return true;
}

static bool read_payload(struct qr_wire_cursor *cursor, struct wire_field *out)
{
    uint64_t bytes;
    if (!qr_wire_read_varint(cursor, &bytes) || bytes > cursor->bytes)
        return false;
    out->payload = *cursor;
    out->payload.bytes = bytes;
    return qr_wire_cursor_skip(cursor, bytes);
}

enum wire_next qr_wire_next_field(struct qr_wire_cursor *cursor, struct wire_field *out,
                                  const char **why_out)
{
    uint64_t tag;
    if (cursor->bytes == 0)
        return WIRE_END;
    if (!qr_wire_read_varint(cursor, &tag) || tag >> 3 == 0 || tag >> 3 > FIELD_NUMBER_MAX) {
        *why_out = "a tag is no field number in 1..536870911";
        return WIRE_MALFORMED;
    }
    out->number = (uint32_t)(tag >> 3);
    out->type = (enum wire_type)(tag & 7);
    bool ok;
    switch (out->type) {
    case WIRE_VARINT:
        *why_out = "a number is cut off or longer than 64 bits";
        ok = qr_wire_read_varint(cursor, &out->value);
        break;
    case WIRE_FIXED64:
        *why_out = "a 64-bit value is cut off";
        ok = read_fixed(cursor, 8, &out->value);
        break;
    case WIRE_FIXED32:
        *why_out = "a 32-bit value is cut off";
        ok = read_fixed(cursor, 4, &out->value);
        break;
    case WIRE_LEN:
        *why_out = "a length is past the end";
        ok = read_payload(cursor, out);
        break;
    default:
        *why_out = "a field is a group or has an unknown wire type";
        ok = false;
        break;
    }
    return ok ? WIRE_FIELD : WIRE_MALFORMED;
}

uint8_t *qr_wire_put_varint(uint8_t *at, uint64_t v)
{
    while (v >= 0x80) {
        *at++ = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    *at++ = (uint8_t)v;
    return at;
}

uint8_t *qr_wire_put_len(uint8_t *at, uint32_t number, uint64_t bytes)
{
    at = qr_wire_put_varint(at, (uint64_t)number << 3 | WIRE_LEN);
    return qr_wire_put_varint(at, bytes);
}

uint8_t *qr_wire_put_uint(uint8_t *at, uint32_t number, uint64_t v)
{
    if (v == 0)
        return at;
    at = qr_wire_put_varint(at, (uint64_t)number << 3 | WIRE_VARINT);
    return qr_wire_put_varint(at, v);
}

uint8_t *qr_wire_put_bytes(uint8_t *at, uint32_t number, const void *bytes, size_t n)
{
    at = qr_wire_put_len(at, number, n);
    memcpy(at, bytes, n);
    return at + n;
}
