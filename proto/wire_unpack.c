/* SPDX-License-Identifier: Apache-2.0
 *
 * Unpacking messages of strangers. protobuf-c alone has no depth limit, merges
 * repeated sub-messages in quadratic time, truncates numbers and strings
 * silently and allocates without bound; so messages are checked against their
 * descriptor first, and then unpacked into a fixed arena.
 */
#include "wire_field.h"

#include <assert.h>
#include <string.h>

#include "utf8.h"

#define ARENA_ALIGN 16u

void qr_wire_arena_init(struct qr_wire_arena *arena, void *memory, size_t capacity)
{
    assert((uintptr_t)memory % ARENA_ALIGN == 0);
    *arena = (struct qr_wire_arena){.memory = memory, .capacity = capacity};
}

void qr_wire_arena_reset(struct qr_wire_arena *arena)
{
    arena->used = 0;
    arena->full = false;
}

static void *arena_alloc(void *data, size_t bytes)
{
    struct qr_wire_arena *arena = data;
    if (bytes > arena->capacity - arena->used) {
        arena->full = true;
        return NULL;
    }
    void *out = arena->memory + arena->used;
    const size_t rounded = (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    const size_t left = arena->capacity - arena->used;
    arena->used += rounded < left ? rounded : left;
    return out;
}

static void arena_free(void *data, void *pointer)
{
    (void)data;
    (void)pointer;
}

/* ---- the check -------------------------------------------------------------------------- */

static quire_status bad_field(const ProtobufCMessageDescriptor *type,
                              const ProtobufCFieldDescriptor *field, const char *why,
                              struct qr_error *e)
{
    return qr_error_set(e, QUIRE_EINVAL, "%s.%s %s", type->short_name, field->name, why);
}

static enum wire_type scalar_wire_type(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return WIRE_FIXED32;
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return WIRE_FIXED64;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return WIRE_LEN;
    default:
        return WIRE_VARINT;
    }
}

static bool fits(ProtobufCType type, uint64_t value)
{
    if (type == PROTOBUF_C_TYPE_UINT32)
        return value <= UINT32_MAX;
    if (type == PROTOBUF_C_TYPE_ENUM)
        return value <= INT32_MAX;
    return true;
}

static const char *check_packed(ProtobufCType type, struct qr_wire_cursor payload)
{
    const enum wire_type wire = scalar_wire_type(type);
    uint64_t value;
    if (wire == WIRE_FIXED32 && payload.bytes % 4)
        return "is packed into bytes that are no multiple of 4";
    if (wire == WIRE_FIXED64 && payload.bytes % 8)
        return "is packed into bytes that are no multiple of 8";
    while (wire == WIRE_VARINT && payload.bytes > 0) {
        if (!qr_wire_read_varint(&payload, &value))
            return "has a packed number that is cut off or too long";
        if (!fits(type, value))
            return "has a packed number past its width";
    }
    return NULL;
}

static const char *check_string(struct qr_wire_cursor payload)
{
    uint8_t s[4];
    while (qr_wire_cursor_read(&payload, s, 1)) {
        const size_t n = utf8_length(s[0]);
        if (s[0] == 0)
            return "has a NUL byte";
        if (n == 0 || !qr_wire_cursor_read(&payload, s + 1, n - 1) || !utf8_valid(s, n))
            return "is not UTF-8";
    }
    return NULL;
}

static const char *check_value(const ProtobufCFieldDescriptor *known,
                               const struct wire_field *field)
{
    const enum wire_type want = scalar_wire_type(known->type);
    const bool repeated = known->label == PROTOBUF_C_LABEL_REPEATED;
    if (field->type == WIRE_LEN && want != WIRE_LEN && repeated)
        return check_packed(known->type, field->payload);
    if (field->type != want)
        return "has another wire type than its own";
    if (known->type == PROTOBUF_C_TYPE_STRING)
        return check_string(field->payload);
    if (want == WIRE_VARINT && !fits(known->type, field->value))
        return "has a number past its width";
    return NULL;
}

static quire_status check_message(const ProtobufCMessageDescriptor *type,
                                  struct qr_wire_cursor cursor, unsigned depth,
                                  struct qr_error *e);

static quire_status check_submessage(const ProtobufCMessageDescriptor *type,
                                     const ProtobufCFieldDescriptor *known,
                                     const struct wire_field *field, uint64_t *seen,
                                     unsigned depth, struct qr_error *e)
{
    const uint64_t bit = 1ull << (known - type->fields);
    if (known->label != PROTOBUF_C_LABEL_REPEATED && (*seen & bit))
        return bad_field(type, known, "comes twice", e);
    *seen |= bit;
    if (depth == QR_WIRE_DEPTH_MAX)
        return bad_field(type, known, "is nested more than 32 deep", e);
    return check_message(known->descriptor, field->payload, depth + 1, e);
}

static quire_status check_message(const ProtobufCMessageDescriptor *type,
                                  struct qr_wire_cursor cursor, unsigned depth,
                                  struct qr_error *e)
{
    assert(type->n_fields <= 64);
    struct wire_field field;
    enum wire_next next;
    const char *why;
    uint64_t seen = 0;
    while ((next = qr_wire_next_field(&cursor, &field, &why)) == WIRE_FIELD) {
        const ProtobufCFieldDescriptor *known =
            protobuf_c_message_descriptor_get_field(type, field.number);
        if (!known)
            continue;
        why = check_value(known, &field);
        if (why)
            return bad_field(type, known, why, e);
        if (known->type != PROTOBUF_C_TYPE_MESSAGE)
            continue;
        const quire_status status = check_submessage(type, known, &field, &seen, depth, e);
        if (status)
            return status;
    }
    if (next == WIRE_MALFORMED)
        return qr_error_set(e, QUIRE_EINVAL, "%s: %s, %llu bytes before its end",
                            type->short_name, why, (unsigned long long)cursor.bytes);
    return QUIRE_OK;
}

/* ---- unpack and pack -------------------------------------------------------------------- */

static quire_status arena_too_small(const struct qr_wire_arena *arena,
                                    const ProtobufCMessageDescriptor *type, uint64_t bytes,
                                    struct qr_error *e)
{
    return qr_error_set(e, QUIRE_ETOOBIG,
                        "%s of %llu bytes needs more than the %zu bytes of its arena",
                        type->short_name, (unsigned long long)bytes, arena->capacity);
}

quire_status qr_wire_unpack(const ProtobufCMessageDescriptor *type,
                            const struct qr_wire_fragment *fragments, size_t count,
                            struct qr_wire_arena *arena, ProtobufCMessage **out,
                            struct qr_error *e)
{
    struct qr_wire_cursor all = qr_wire_cursor_all(fragments, count);
    const uint64_t bytes = all.bytes;
    arena->full = false;
    for (size_t i = 0; i < count; i++)
        if (fragments[i].foreign) /* checked as one thing, unpacked as another */
            return qr_error_set(e, QUIRE_EINVAL,
                                "%s: %zu bytes came as payload, not as framing",
                                type->short_name, fragments[i].bytes);
    const quire_status status = check_message(type, all, 1, e);
    if (status)
        return status;

    size_t run;
    const uint8_t *flat = qr_wire_cursor_peek(&all, &run);
    if (run < bytes) { /* protobuf-c wants one piece */
        uint8_t *copy = bytes > SIZE_MAX ? NULL : arena_alloc(arena, (size_t)bytes);
        if (!copy)
            return arena_too_small(arena, type, bytes, e);
        qr_wire_cursor_read(&all, copy, (size_t)bytes);
        flat = copy;
    }
    ProtobufCAllocator allocator = {arena_alloc, arena_free, arena};
    ProtobufCMessage *message = protobuf_c_message_unpack(type, &allocator, (size_t)bytes,
                                                          flat ? flat : (const uint8_t *)"");
    if (!message && arena->full)
        return arena_too_small(arena, type, bytes, e);
    if (!message)
        return qr_error_set(e, QUIRE_EINVAL, "%s of %llu bytes is malformed", type->short_name,
                            (unsigned long long)bytes);
    *out = message;
    return QUIRE_OK;
}

quire_status qr_wire_pack(const ProtobufCMessage *message, uint8_t *buffer, size_t capacity,
                          size_t *bytes_out, struct qr_error *e)
{
    const size_t bytes = protobuf_c_message_get_packed_size(message);
    if (bytes > capacity)
        return qr_error_set(e, QUIRE_ETOOBIG, "%s takes %zu bytes: the buffer has %zu",
                            message->descriptor->short_name, bytes, capacity);
    *bytes_out = protobuf_c_message_pack(message, buffer);
    return QUIRE_OK;
}
