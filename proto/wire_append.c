/* SPDX-License-Identifier: Apache-2.0
 *
 * AppendRequest by hand: a head before a payload that is sent as it lies, and a
 * parse that says where the payload of a received one lies. Must not know
 * geometry: how long rows have to be is the store's business.
 */
#include "wire_field.h"

/* Field numbers of quire.v1.AppendRequest. */
enum {
    FIELD_SESSION = 1,
    FIELD_EPOCH = 2,
    FIELD_POSITION = 3,
    FIELD_TOKENS = 4,
    FIELD_FIRST_LAYER = 5,
    FIELD_LAYERS = 6,
    FIELD_SHARD = 7,
    FIELD_DTYPE = 8,
    FIELD_DURABILITY = 9,
    FIELD_TOKEN_IDS = 10,
    FIELD_PAGES = 11,
    FIELD_ROWS = 12
};

size_t qr_wire_append_head_max(size_t token_ids)
{
    /* 3 numbers of 64 bits, 6 of 32, two length headers, 5 bytes an id. */
    return 3 * 11 + 6 * 6 + 2 * QR_WIRE_FIELD_HEAD_MAX + 5 * token_ids;
}

static uint8_t *put_token_ids(uint8_t *at, const uint32_t *token_ids, size_t count)
{
    uint8_t scratch[5];
    size_t bytes = 0;
    if (count == 0)
        return at;
    for (size_t i = 0; i < count; i++)
        bytes += (size_t)(qr_wire_put_varint(scratch, token_ids[i]) - scratch);
    at = qr_wire_put_len(at, FIELD_TOKEN_IDS, bytes);
    for (size_t i = 0; i < count; i++)
        at = qr_wire_put_varint(at, token_ids[i]);
    return at;
}

size_t qr_wire_append_head(const struct qr_wire_append *append, const uint32_t *token_ids,
                           size_t token_id_count, uint64_t rows_bytes, uint8_t *out)
{
    uint8_t *at = out;
    at = qr_wire_put_uint(at, FIELD_SESSION, append->session);
    at = qr_wire_put_uint(at, FIELD_EPOCH, append->epoch);
    at = qr_wire_put_uint(at, FIELD_POSITION, append->position);
    at = qr_wire_put_uint(at, FIELD_TOKENS, append->tokens);
    at = qr_wire_put_uint(at, FIELD_FIRST_LAYER, append->first_layer);
    at = qr_wire_put_uint(at, FIELD_LAYERS, append->layers);
    at = qr_wire_put_uint(at, FIELD_SHARD, append->shard);
    at = qr_wire_put_uint(at, FIELD_DTYPE, append->dtype);
    at = qr_wire_put_uint(at, FIELD_DURABILITY, append->durability);
    at = put_token_ids(at, token_ids, token_id_count);
    if (rows_bytes > 0)
        at = qr_wire_put_len(at, FIELD_ROWS, rows_bytes);
    return (size_t)(at - out);
}

size_t qr_wire_page_head(uint64_t page_bytes, uint8_t out[QR_WIRE_FIELD_HEAD_MAX])
{
    return (size_t)(qr_wire_put_len(out, FIELD_PAGES, page_bytes) - out);
}

static quire_status bad_field(const struct wire_field *field, const char *why,
                              struct qr_error *e)
{
    return qr_error_set(e, QUIRE_EINVAL, "AppendRequest: field %u %s", field->number, why);
}

static uint64_t *field_u64(struct qr_wire_append *fields, uint32_t number)
{
    switch (number) {
    case FIELD_SESSION:
        return &fields->session;
    case FIELD_EPOCH:
        return &fields->epoch;
    case FIELD_POSITION:
        return &fields->position;
    default:
        return NULL;
    }
}

static uint32_t *field_u32(struct qr_wire_append *fields, uint32_t number)
{
    switch (number) {
    case FIELD_TOKENS:
        return &fields->tokens;
    case FIELD_FIRST_LAYER:
        return &fields->first_layer;
    case FIELD_LAYERS:
        return &fields->layers;
    case FIELD_SHARD:
        return &fields->shard;
    case FIELD_DTYPE:
        return &fields->dtype;
    case FIELD_DURABILITY:
        return &fields->durability;
    default:
        return NULL;
    }
}

static quire_status take_number(const struct wire_field *field, struct qr_wire_append *fields,
                                struct qr_error *e)
{
    uint64_t *wide = field_u64(fields, field->number);
    uint32_t *narrow = field_u32(fields, field->number);
    if (field->type != WIRE_VARINT)
        return bad_field(field, "is not a number", e);
    if (wide)
        *wide = field->value;
    else if (field->value > UINT32_MAX)
        return bad_field(field, "is past 32 bits", e);
    else
        *narrow = (uint32_t)field->value;
    return QUIRE_OK;
}

static quire_status take_token_ids(const struct wire_field *field, size_t *count,
                                   struct qr_error *e)
{
    struct qr_wire_cursor ids = field->payload;
    uint64_t id = field->value;
    if (field->type == WIRE_VARINT) {
        ++*count;
        return id <= UINT32_MAX ? QUIRE_OK : bad_field(field, "has an id past 32 bits", e);
    }
    if (field->type != WIRE_LEN)
        return bad_field(field, "is not a list of numbers", e);
    while (ids.bytes > 0) {
        if (!qr_wire_read_varint(&ids, &id))
            return bad_field(field, "has an id that is cut off or too long", e);
        if (id > UINT32_MAX)
            return bad_field(field, "has an id past 32 bits", e);
        ++*count;
    }
    return QUIRE_OK;
}

static quire_status take_payload(const struct wire_field *field,
                                 struct qr_wire_append_view *view, struct qr_error *e)
{
    if (field->type != WIRE_LEN)
        return bad_field(field, "is not bytes", e);
    if (field->number == FIELD_PAGES) {
        view->page_count++;
        return QUIRE_OK;
    }
    if (view->rows.fragments)
        return bad_field(field, "(rows) comes twice", e);
    view->rows = field->payload;
    return QUIRE_OK;
}

static quire_status take_field(const struct wire_field *field, struct qr_wire_append_view *view,
                               struct qr_error *e)
{
    if (field->number <= FIELD_DURABILITY)
        return take_number(field, &view->fields, e);
    if (field->number == FIELD_TOKEN_IDS)
        return take_token_ids(field, &view->token_id_count, e);
    if (field->number <= FIELD_ROWS)
        return take_payload(field, view, e);
    return QUIRE_OK;
}

quire_status qr_wire_append_parse(const struct qr_wire_fragment *fragments, size_t count,
                                  struct qr_wire_append_view *out, struct qr_error *e)
{
    struct qr_wire_append_view view = {.all = qr_wire_cursor_all(fragments, count)};
    struct qr_wire_cursor cursor = view.all;
    struct wire_field field;
    enum wire_next next;
    const char *why;
    while ((next = qr_wire_next_field(&cursor, &field, &why)) == WIRE_FIELD) {
        const quire_status status = take_field(&field, &view, e);
        if (status)
            return status;
    }
    if (next == WIRE_MALFORMED)
        return qr_error_set(e, QUIRE_EINVAL, "AppendRequest: %s, before byte %llu", why,
                            (unsigned long long)(view.all.bytes - cursor.bytes));
    if (view.rows.bytes > 0 && view.page_count > 0)
        return qr_error_set(e, QUIRE_EINVAL,
                            "AppendRequest: rows (%llu bytes) and %zu pages: one of the two "
                            "expected",
                            (unsigned long long)view.rows.bytes, view.page_count);
    *out = view;
    return QUIRE_OK;
}

void qr_wire_append_token_ids(const struct qr_wire_append_view *view, uint32_t *out)
{
    struct qr_wire_cursor cursor = view->all;
    struct wire_field field;
    const char *why;
    uint64_t id;
    while (qr_wire_next_field(&cursor, &field, &why) == WIRE_FIELD) {
        if (field.number != FIELD_TOKEN_IDS)
            continue;
        if (field.type == WIRE_VARINT)
            *out++ = (uint32_t)field.value;
        while (field.type == WIRE_LEN && qr_wire_read_varint(&field.payload, &id))
            *out++ = (uint32_t)id;
    }
}

bool qr_wire_append_next_page(struct qr_wire_cursor *at, struct qr_wire_cursor *page_out)
{
    struct wire_field field;
    const char *why;
    while (qr_wire_next_field(at, &field, &why) == WIRE_FIELD)
        if (field.number == FIELD_PAGES) {
            *page_out = field.payload;
            return true;
        }
    return false;
}
