/* SPDX-License-Identifier: Apache-2.0
 *
 * struct qr_error as google.rpc.Status bytes with an ErrorDetail inside, framed
 * by hand: Status {1 code, 2 message, 3 details: Any {1 type_url, 2 value}}.
 * Must not know how a trailer travels.
 */
#include "wire_field.h"

#include <string.h>

#include "utf8.h"

#define DETAIL_NAME "quire.v1.ErrorDetail"
#define DETAIL_URL "type.googleapis.com/" DETAIL_NAME
#define DETAIL_BYTES_MAX 128

/* Field numbers of quire.v1.ErrorDetail. */
enum {
    FIELD_CODE = 1,
    FIELD_NAME = 2,
    FIELD_LENGTH = 3,
    FIELD_POSITION = 4,
    FIELD_TOKENS = 5,
    FIELD_LAYER = 6,
    FIELD_HEAD = 7,
    FIELD_CHANNEL = 8,
    FIELD_RETRY = 9,
    FIELD_EPOCH = 10,
    FIELD_LIMIT = 11
};

static size_t put_detail(const struct qr_error *e, uint8_t out[DETAIL_BYTES_MAX])
{
    const char *name = qr_status_name(e->status) + strlen("QUIRE_");
    uint8_t *at = out;
    at = qr_wire_put_uint(at, FIELD_CODE, (uint32_t)e->status);
    at = qr_wire_put_bytes(at, FIELD_NAME, name, strlen(name));
    at = qr_wire_put_uint(at, FIELD_LENGTH, e->length);
    at = qr_wire_put_uint(at, FIELD_POSITION, e->position);
    at = qr_wire_put_uint(at, FIELD_TOKENS, e->tokens);
    at = qr_wire_put_uint(at, FIELD_LAYER, e->layer);
    at = qr_wire_put_uint(at, FIELD_HEAD, e->head);
    at = qr_wire_put_uint(at, FIELD_CHANNEL, e->channel);
    at = qr_wire_put_uint(at, FIELD_RETRY, e->retry_after_ms);
    at = qr_wire_put_uint(at, FIELD_EPOCH, e->epoch);
    at = qr_wire_put_uint(at, FIELD_LIMIT, e->limit);
    return (size_t)(at - out);
}

/* A text may quote a stranger's bytes, or be cut inside a character: what is not UTF-8 becomes
 * '?', since other languages refuse the whole message otherwise. */
static size_t clean_text(const char *text, uint8_t out[QR_ERROR_TEXT_MAX])
{
    const size_t length = strnlen(text, QR_ERROR_TEXT_MAX - 1);
    memcpy(out, text, length);
    for (size_t i = 0, n; i < length; i += n) {
        n = utf8_length(out[i]);
        if (n == 0 || n > length - i || !utf8_valid(out + i, n)) {
            out[i] = '?';
            n = 1;
        }
    }
    return length;
}

size_t qr_wire_status_pack(const struct qr_error *e, uint8_t out[QR_WIRE_STATUS_BYTES_MAX])
{
    uint8_t detail[DETAIL_BYTES_MAX], any[2 * DETAIL_BYTES_MAX], text[QR_ERROR_TEXT_MAX];
    const size_t detail_bytes = put_detail(e, detail);
    uint8_t *any_end = qr_wire_put_bytes(any, 1, DETAIL_URL, strlen(DETAIL_URL));
    any_end = qr_wire_put_bytes(any_end, 2, detail, detail_bytes);

    uint8_t *at = qr_wire_put_uint(out, 1, (uint32_t)qr_status_grpc(e->status));
    at = qr_wire_put_bytes(at, 2, text, clean_text(e->text, text));
    at = qr_wire_put_bytes(at, 3, any, (size_t)(any_end - any));
    return (size_t)(at - out);
}

static uint32_t *detail_u32(struct qr_error *e, uint32_t number)
{
    switch (number) {
    case FIELD_LAYER:
        return &e->layer;
    case FIELD_HEAD:
        return &e->head;
    case FIELD_CHANNEL:
        return &e->channel;
    case FIELD_RETRY:
        return &e->retry_after_ms;
    default:
        return NULL;
    }
}

static uint64_t *detail_u64(struct qr_error *e, uint32_t number)
{
    switch (number) {
    case FIELD_LENGTH:
        return &e->length;
    case FIELD_POSITION:
        return &e->position;
    case FIELD_TOKENS:
        return &e->tokens;
    case FIELD_EPOCH:
        return &e->epoch;
    case FIELD_LIMIT:
        return &e->limit;
    default:
        return NULL;
    }
}

static bool take_detail(const struct wire_field *field, struct qr_error *e)
{
    uint32_t *narrow = detail_u32(e, field->number);
    uint64_t *wide = detail_u64(e, field->number);
    if (field->number != FIELD_CODE && !narrow && !wide)
        return true;
    if (field->type != WIRE_VARINT || (narrow && field->value > UINT32_MAX))
        return false;
    if (narrow)
        *narrow = (uint32_t)field->value;
    else if (wide)
        *wide = field->value;
    else
        e->status = field->value > 0 && field->value < QUIRE_STATUS_COUNT
                        ? (quire_status)field->value
                        : QUIRE_EINTERNAL;
    return true;
}

static bool parse_detail(struct qr_wire_cursor cursor, struct qr_error *e)
{
    struct wire_field field;
    enum wire_next next;
    const char *why;
    while ((next = qr_wire_next_field(&cursor, &field, &why)) == WIRE_FIELD)
        if (!take_detail(&field, e))
            return false;
    return next == WIRE_END && e->status != QUIRE_OK;
}

/* The type is what follows the last slash, whatever the host before it. */
static bool is_detail(struct qr_wire_cursor url)
{
    const size_t n = strlen("/" DETAIL_NAME);
    char tail[sizeof("/" DETAIL_NAME)] = {0};
    return url.bytes >= n && qr_wire_cursor_skip(&url, url.bytes - n) &&
           qr_wire_cursor_read(&url, tail, n) && strcmp(tail, "/" DETAIL_NAME) == 0;
}

static bool parse_any(struct qr_wire_cursor cursor, bool *found, struct qr_error *e)
{
    struct qr_wire_cursor url = {0}, value = {0};
    struct wire_field field;
    enum wire_next next;
    const char *why;
    while ((next = qr_wire_next_field(&cursor, &field, &why)) == WIRE_FIELD) {
        if (field.number == 1 && field.type == WIRE_LEN)
            url = field.payload;
        if (field.number == 2 && field.type == WIRE_LEN)
            value = field.payload;
    }
    if (next == WIRE_MALFORMED)
        return false;
    if (!is_detail(url))
        return true;
    *found = true;
    return parse_detail(value, e);
}

static void take_text(struct qr_wire_cursor text, struct qr_error *e)
{
    const size_t n =
        text.bytes < QR_ERROR_TEXT_MAX ? (size_t)text.bytes : QR_ERROR_TEXT_MAX - 1;
    qr_wire_cursor_read(&text, e->text, n);
    e->text[n] = 0;
}

bool qr_wire_status_parse(const uint8_t *bytes, size_t n, struct qr_error *out)
{
    const struct qr_wire_fragment fragment = {.data = bytes, .bytes = n};
    struct qr_wire_cursor cursor = qr_wire_cursor_all(&fragment, 1);
    struct qr_error e = {0};
    struct wire_field field;
    enum wire_next next;
    const char *why;
    bool found = false;
    while ((next = qr_wire_next_field(&cursor, &field, &why)) == WIRE_FIELD) {
        if (field.number == 2 && field.type == WIRE_LEN)
            take_text(field.payload, &e);
        if (field.number == 3 && field.type == WIRE_LEN && !found &&
            !parse_any(field.payload, &found, &e))
            return false;
    }
    if (next == WIRE_MALFORMED || !found)
        return false;
    *out = e;
    return true;
}

quire_status qr_wire_status_of_grpc(int grpc_code)
{
    static const quire_status of[] = {
        [0] = QUIRE_OK,
        [1] = QUIRE_ECANCELED,
        [2] = QUIRE_EINTERNAL,
        [3] = QUIRE_EINVAL,
        [4] = QUIRE_ETIMEOUT,
        [5] = QUIRE_ENOTFOUND,
        [6] = QUIRE_EEXIST,
        [7] = QUIRE_EPERM,
        [8] = QUIRE_ETOOBIG,
        [9] = QUIRE_EMISMATCH,
        [10] = QUIRE_EUNAVAILABLE,
        [11] = QUIRE_ERANGE,
        [12] = QUIRE_EUNSUPPORTED,
        [13] = QUIRE_EINTERNAL,
        [14] = QUIRE_EUNAVAILABLE,
        [15] = QUIRE_ECORRUPT,
        [16] = QUIRE_EPERM,
    };
    if (grpc_code < 0 || grpc_code >= (int)(sizeof(of) / sizeof(of[0])))
        return QUIRE_EINTERNAL;
    return of[grpc_code];
}
