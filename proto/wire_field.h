/* SPDX-License-Identifier: Apache-2.0
 *
 * The protobuf wire format: one field at a time from a cursor, varints and
 * headers into a buffer. Only wire*.c include this.
 */
#ifndef QR_WIRE_FIELD_H
#define QR_WIRE_FIELD_H

#include "wire.h"

enum wire_type { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_LEN = 2, WIRE_FIXED32 = 5 };

struct wire_field {
    uint32_t number;
    enum wire_type type;
    uint64_t value;                /* of VARINT, FIXED64, FIXED32 */
    struct qr_wire_cursor payload; /* of LEN */
};

enum wire_next { WIRE_END, WIRE_FIELD, WIRE_MALFORMED };

/** The next field of a message, stepping over it. MALFORMED: *why_out says what (static).
 * Groups count as malformed. */
enum wire_next qr_wire_next_field(struct qr_wire_cursor *cursor, struct wire_field *out,
                                  const char **why_out);
/** A varint of at most 64 bits; false when it is cut off or longer. */
bool qr_wire_read_varint(struct qr_wire_cursor *cursor, uint64_t *out);

/** Writers return where the next byte goes. */
uint8_t *qr_wire_put_varint(uint8_t *at, uint64_t v);
uint8_t *qr_wire_put_len(uint8_t *at, uint32_t number, uint64_t bytes);
/** Nothing for 0, as proto3 says. */
uint8_t *qr_wire_put_uint(uint8_t *at, uint32_t number, uint64_t v);
uint8_t *qr_wire_put_bytes(uint8_t *at, uint32_t number, const void *bytes, size_t n);

#endif
