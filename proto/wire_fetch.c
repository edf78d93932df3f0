/* SPDX-License-Identifier: Apache-2.0
 *
 * FetchChunk by hand: a head before each payload, which is sent as it lies (a
 * pinned page), and a walk over the parts of a received one that copies
 * nothing. Must not know what a page is.
 */
#include "wire_field.h"

#include <string.h>

/* Field numbers of quire.v1.FetchChunk and FetchPart; payload fields are enum qr_wire_payload.
 */
enum {
    FIELD_PARTS = 1,
    FIELD_LAYER = 1,
    FIELD_FIRST_HEAD = 2,
    FIELD_HEADS = 3,
    FIELD_POSITION = 4,
    FIELD_TOKENS = 5,
    FIELD_STATUS = 6
};

size_t qr_wire_part_head(const struct qr_wire_part *part, uint8_t out[QR_WIRE_PART_HEAD_MAX])
{
    uint8_t fields[QR_WIRE_PART_HEAD_MAX];
    uint8_t *end = fields;
    end = qr_wire_put_uint(end, FIELD_LAYER, part->layer);
    end = qr_wire_put_uint(end, FIELD_FIRST_HEAD, part->first_head);
    end = qr_wire_put_uint(end, FIELD_HEADS, part->heads);
    end = qr_wire_put_uint(end, FIELD_POSITION, part->position);
    end = qr_wire_put_uint(end, FIELD_TOKENS, part->tokens);
    end = qr_wire_put_uint(end, FIELD_STATUS, part->status);
    uint64_t payload_bytes = 0;
    if (part->payload != QR_WIRE_NO_PAYLOAD) {
        payload_bytes = part->payload_bytes;
        end = qr_wire_put_len(end, (uint32_t)part->payload, payload_bytes);
    }

    const size_t field_bytes = (size_t)(end - fields);
    uint8_t *at = qr_wire_put_len(out, FIELD_PARTS, field_bytes + payload_bytes);
    memcpy(at, fields, field_bytes);
    return (size_t)(at - out) + field_bytes;
}

static quire_status bad_field(const struct wire_field *field, const char *why,
                              struct qr_error *e)
{
    return qr_error_set(e, QUIRE_ECORRUPT, "FetchPart: field %u %s", field->number, why);
}

static quire_status take_number(const struct wire_field *field, struct qr_wire_part *part,
                                struct qr_error *e)
{
    uint32_t *const narrow[] = {
        [FIELD_LAYER] = &part->layer,   [FIELD_FIRST_HEAD] = &part->first_head,
        [FIELD_HEADS] = &part->heads,   [FIELD_POSITION] = NULL,
        [FIELD_TOKENS] = &part->tokens, [FIELD_STATUS] = &part->status};
    if (field->type != WIRE_VARINT)
        return bad_field(field, "is not a number", e);
    if (field->number == FIELD_POSITION)
        part->position = field->value;
    else if (field->value > UINT32_MAX)
        return bad_field(field, "is past 32 bits", e);
    else
        *narrow[field->number] = (uint32_t)field->value;
    return QUIRE_OK;
}

static quire_status parse_part(struct qr_wire_cursor cursor, struct qr_wire_part *part,
                               struct qr_wire_cursor *payload, struct qr_error *e)
{
    struct wire_field field;
    enum wire_next next;
    const char *why;
    *part = (struct qr_wire_part){0};
    *payload = (struct qr_wire_cursor){0};
    while ((next = qr_wire_next_field(&cursor, &field, &why)) == WIRE_FIELD) {
        quire_status status = QUIRE_OK;
        if (field.number <= FIELD_STATUS) {
            status = take_number(&field, part, e);
        } else if (field.number == QR_WIRE_PAGE || field.number == QR_WIRE_ROWS) {
            if (field.type != WIRE_LEN)
                return bad_field(&field, "is not bytes", e);
            if (part->payload != QR_WIRE_NO_PAYLOAD)
                return bad_field(&field, "is a second payload", e);
            part->payload = (enum qr_wire_payload)field.number;
            part->payload_bytes = field.payload.bytes;
            *payload = field.payload;
        }
        if (status)
            return status;
    }
    if (next == WIRE_MALFORMED)
        return qr_error_set(e, QUIRE_ECORRUPT, "FetchPart: %s, %llu bytes before its end", why,
                            (unsigned long long)cursor.bytes);
    return QUIRE_OK;
}

quire_status qr_wire_next_part(struct qr_wire_cursor *at, bool *more_out,
                               struct qr_wire_part *part_out,
                               struct qr_wire_cursor *payload_out, struct qr_error *e)
{
    struct qr_wire_cursor cursor = *at, payload;
    struct qr_wire_part part;
    struct wire_field field;
    enum wire_next next;
    const char *why;
    do {
        next = qr_wire_next_field(&cursor, &field, &why);
    } while (next == WIRE_FIELD && field.number != FIELD_PARTS);
    if (next == WIRE_MALFORMED)
        return qr_error_set(e, QUIRE_ECORRUPT, "FetchChunk: %s, %llu bytes before its end", why,
                            (unsigned long long)cursor.bytes);
    if (next == WIRE_FIELD) {
        if (field.type != WIRE_LEN)
            return qr_error_set(e, QUIRE_ECORRUPT, "FetchChunk: parts are not messages");
        const quire_status status = parse_part(field.payload, &part, &payload, e);
        if (status)
            return status;
        *part_out = part;
        *payload_out = payload;
    }
    *more_out = next == WIRE_FIELD;
    *at = cursor;
    return QUIRE_OK;
}
