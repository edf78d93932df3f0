/* SPDX-License-Identifier: Apache-2.0
 *
 * Server reflection by hand: descriptors are only searched for names, never unpacked, and go
 * out as protoc wrote them. Must not know which services there are.
 */
#include "wire_reflection.h"

#include <string.h>

#include "utf8.h"
#include "wire_field.h"

/* Field numbers of ServerReflectionRequest; of them those of `message_request`: */
enum {
    ASK_HOST = 1,
    ASK_FILE = 3,
    ASK_SYMBOL = 4,
    ASK_EXTENSION = 5,
    ASK_EXTENSION_NUMBERS = 6,
    ASK_SERVICES = 7
};
/* Of ServerReflectionResponse. */
enum {
    ANSWER_HOST = 1,
    ANSWER_REQUEST = 2,
    ANSWER_FILES = 4,
    ANSWER_EXTENSION_NUMBERS = 5,
    ANSWER_SERVICES = 6,
    ANSWER_ERROR = 7
};
/* Of the descriptors. */
enum { SET_FILE = 1, NAME = 1 };
enum {
    FILE_PACKAGE = 2,
    FILE_MESSAGE = 4,
    FILE_ENUM = 5,
    FILE_SERVICE = 6,
    FILE_EXTENSION = 7
};
enum { MESSAGE_FIELD = 2, MESSAGE_NESTED = 3, MESSAGE_ENUM = 4, MESSAGE_EXTENSION = 6 };
enum { MESSAGE_ONEOF = 8, ENUM_VALUE = 2, SERVICE_METHOD = 2 };

enum { GRPC_INVALID_ARGUMENT = 3, GRPC_NOT_FOUND = 5 };

#define ANSWER_MIN_BYTES (QR_REFLECTION_REQUEST_MAX * 2 + 256) /* any but files */

/* A name, not ended by a NUL. */
struct text {
    const uint8_t *at;
    size_t n;
};

struct question {
    struct text host, what;
    uint32_t kind; /* 0: none was asked */
    uint8_t bytes[QR_REFLECTION_REQUEST_MAX];
    size_t n;
};

static struct text text_of(const char *s)
{
    return (struct text){(const uint8_t *)s, strlen(s)};
}

static bool same(struct text a, struct text b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.at, b.at, a.n) == 0);
}

/* A LEN field of bytes that lie in one fragment. */
static struct text text_in(const struct wire_field *field)
{
    struct qr_wire_cursor payload = field->payload;
    struct text out = {NULL, (size_t)payload.bytes};
    size_t n;

    out.at = qr_wire_cursor_peek(&payload, &n);
    return out;
}

static struct qr_wire_cursor cursor_of(const struct qr_wire_fragment *whole)
{
    return qr_wire_cursor_all(whole, 1);
}

/* Bytes of whole UTF-8 characters, at most `most`; fewer than there are when one is wrong. */
static size_t utf8_bytes(struct text t, size_t most)
{
    size_t n = 0;

    while (n < t.n) {
        const size_t next = utf8_length(t.at[n]);
        if (next > t.n - n || n + next > most || !utf8_valid(t.at + n, next))
            break;
        n += next;
    }
    return n;
}

/* ---- descriptors --------------------------------------------------------------------------
 */

/* The next LEN field; false at the end. The set is protoc's: nothing in it is malformed. */
static bool next_part(struct qr_wire_cursor *at, struct wire_field *field)
{
    const char *why;
    enum wire_next next;

    do {
        next = qr_wire_next_field(at, field, &why);
    } while (next == WIRE_FIELD && field->type != WIRE_LEN);
    return next == WIRE_FIELD;
}

static struct text field_text(struct qr_wire_cursor message, uint32_t number)
{
    struct wire_field field;

    while (next_part(&message, &field))
        if (field.number == number)
            return text_in(&field);
    return (struct text){NULL, 0};
}

/* Take "name" or "name." from the front of a symbol; *rest is what follows. */
static bool take_front(struct text symbol, struct text name, struct text *rest)
{
    if (name.n > symbol.n || memcmp(symbol.at, name.at, name.n) != 0)
        return false;
    const bool whole = name.n == symbol.n;
    if (!whole && (symbol.at[name.n] != '.' || symbol.n == name.n + 1))
        return false;
    *rest = (struct text){symbol.at + name.n + !whole, symbol.n - name.n - !whole};
    return true;
}

/* Whether one of the parts `number` of a descriptor has exactly this name. */
static bool has_part(struct qr_wire_cursor descriptor, uint32_t number, struct text name)
{
    struct wire_field field;

    while (next_part(&descriptor, &field))
        if (field.number == number && same(field_text(field.payload, NAME), name))
            return true;
    return false;
}

/* Values of an enum are named beside it, not in it. */
static bool enum_has(struct qr_wire_cursor descriptor, struct text symbol)
{
    return same(field_text(descriptor, NAME), symbol) ||
           has_part(descriptor, ENUM_VALUE, symbol);
}

static bool service_has(struct qr_wire_cursor descriptor, struct text symbol)
{
    struct text rest;

    return take_front(symbol, field_text(descriptor, NAME), &rest) &&
           (rest.n == 0 || has_part(descriptor, SERVICE_METHOD, rest));
}

/* NOLINTNEXTLINE(misc-no-recursion): each step takes a name from the symbol */
static bool message_has(struct qr_wire_cursor descriptor, struct text symbol)
{
    struct wire_field field;
    struct text rest;

    if (!take_front(symbol, field_text(descriptor, NAME), &rest))
        return false;
    if (rest.n == 0 || has_part(descriptor, MESSAGE_FIELD, rest) ||
        has_part(descriptor, MESSAGE_ONEOF, rest) ||
        has_part(descriptor, MESSAGE_EXTENSION, rest))
        return true;
    while (next_part(&descriptor, &field)) {
        if ((field.number == MESSAGE_NESTED && message_has(field.payload, rest)) ||
            (field.number == MESSAGE_ENUM && enum_has(field.payload, rest)))
            return true;
    }
    return false;
}

static bool file_has(struct qr_wire_cursor file, struct text symbol)
{
    const struct text package = field_text(file, FILE_PACKAGE);
    struct wire_field field;
    struct text rest = symbol;

    if (package.n > 0 && (!take_front(symbol, package, &rest) || rest.n == 0))
        return false;
    if (has_part(file, FILE_EXTENSION, rest))
        return true;
    while (next_part(&file, &field)) {
        if ((field.number == FILE_MESSAGE && message_has(field.payload, rest)) ||
            (field.number == FILE_ENUM && enum_has(field.payload, rest)) ||
            (field.number == FILE_SERVICE && service_has(field.payload, rest)))
            return true;
    }
    return false;
}

/* The file of this name, or with this symbol. */
static bool find_file(struct qr_wire_cursor set, uint32_t kind, struct text what,
                      struct text *out)
{
    struct wire_field field;

    while (next_part(&set, &field)) {
        if (field.number != SET_FILE)
            continue;
        const bool found = kind == ASK_FILE ? same(field_text(field.payload, NAME), what)
                                            : file_has(field.payload, what);
        if (found) {
            *out = text_in(&field);
            return true;
        }
    }
    return false;
}

/* ---- answers ------------------------------------------------------------------------------
 */

static size_t len_bytes(uint32_t number, size_t n)
{
    uint8_t head[QR_WIRE_FIELD_HEAD_MAX];

    return (size_t)(qr_wire_put_len(head, number, n) - head) + n;
}

static uint8_t *put_text(uint8_t *at, uint32_t number, struct text text)
{
    return text.n ? qr_wire_put_bytes(at, number, text.at, text.n) : at;
}

static uint8_t *put_error(uint8_t *at, uint32_t code, const char *what, struct text asked)
{
    const size_t shown = utf8_bytes(asked, 200);
    uint8_t body[512], *end = qr_wire_put_uint(body, 1, code);

    end = qr_wire_put_len(end, 2, strlen(what) + shown);
    memcpy(end, what, strlen(what));
    end += strlen(what);
    if (shown > 0)
        memcpy(end, asked.at, shown);
    end += shown;
    return qr_wire_put_bytes(at, ANSWER_ERROR, body, (size_t)(end - body));
}

/* FileDescriptorResponse { repeated bytes file_descriptor_proto = 1; } */
static uint8_t *put_file(uint8_t *at, struct text file)
{
    at = qr_wire_put_len(at, ANSWER_FILES, len_bytes(1, file.n));
    return put_text(at, 1, file);
}

/* The full name of a service as ServiceResponse { string name = 1; }; its length alone when at
 * is NULL. */
static size_t service_bytes(struct text package, struct text name, uint8_t *at)
{
    const size_t full = package.n + (package.n > 0) + name.n;
    uint8_t *end = at;

    if (!at)
        return len_bytes(1, full);
    end = qr_wire_put_len(end, 1, full);
    if (package.n > 0) {
        memcpy(end, package.at, package.n);
        end[package.n] = '.';
        end += package.n + 1;
    }
    memcpy(end, name.at, name.n);
    return (size_t)(end + name.n - at);
}

/* ListServiceResponse { repeated ServiceResponse service = 1; }; its length alone when at is
 * NULL. */
static size_t services_bytes(struct qr_wire_cursor set, uint8_t *at)
{
    struct wire_field file, part;
    size_t n = 0;

    while (next_part(&set, &file)) {
        struct qr_wire_cursor in = file.payload;
        const struct text package = field_text(in, FILE_PACKAGE);
        while (next_part(&in, &part)) {
            if (part.number != FILE_SERVICE)
                continue;
            const struct text name = field_text(part.payload, NAME);
            const size_t bytes = service_bytes(package, name, NULL);
            if (at) {
                uint8_t *to = qr_wire_put_len(at + n, 1, bytes);
                (void)service_bytes(package, name, to);
            }
            n += len_bytes(1, bytes);
        }
    }
    return n;
}

static uint8_t *put_services(uint8_t *at, struct qr_wire_cursor set)
{
    const size_t n = services_bytes(set, NULL);

    at = qr_wire_put_len(at, ANSWER_SERVICES, n);
    return at + services_bytes(set, at);
}

/* ExtensionNumberResponse { string base_type_name = 1; }: nothing here has extensions. */
static uint8_t *put_no_extensions(uint8_t *at, struct text type)
{
    at = qr_wire_put_len(at, ANSWER_EXTENSION_NUMBERS, type.n ? len_bytes(1, type.n) : 0);
    return put_text(at, 1, type);
}

/* ---- the verb -----------------------------------------------------------------------------
 */

/* The request's bytes are kept: they come back, and texts of it then lie in one piece. */
static quire_status read_question(const struct qr_wire_fragment *fragments, size_t count,
                                  struct question *q, struct qr_error *e)
{
    struct qr_wire_cursor all = qr_wire_cursor_all(fragments, count);
    struct wire_field field;
    const char *why = "";
    enum wire_next next;

    if (all.bytes > sizeof(q->bytes))
        return qr_error_set(e, QUIRE_EINVAL,
                            "ServerReflectionRequest of %llu bytes: at most %zu",
                            (unsigned long long)all.bytes, sizeof(q->bytes));
    q->n = (size_t)all.bytes;
    (void)qr_wire_cursor_read(&all, q->bytes, q->n);
    const struct qr_wire_fragment whole = {.data = q->bytes, .bytes = q->n};
    struct qr_wire_cursor at = cursor_of(&whole);
    while ((next = qr_wire_next_field(&at, &field, &why)) == WIRE_FIELD) {
        if (field.type != WIRE_LEN)
            continue;
        if (field.number == ASK_HOST)
            q->host = text_in(&field);
        if (field.number < ASK_FILE || field.number > ASK_SERVICES)
            continue;
        q->kind = field.number; /* of a oneof the last one counts */
        q->what = text_in(&field);
    }
    if (next == WIRE_MALFORMED)
        return qr_error_set(e, QUIRE_EINVAL, "ServerReflectionRequest: %s", why);
    if (utf8_bytes(q->host, q->host.n) < q->host.n ||
        (q->kind != ASK_EXTENSION && utf8_bytes(q->what, q->what.n) < q->what.n))
        return qr_error_set(e, QUIRE_EINVAL, "ServerReflectionRequest: a name is not UTF-8");
    return QUIRE_OK;
}

static uint8_t *put_answer(uint8_t *at, const struct question *q, struct qr_wire_cursor set,
                           struct text file)
{
    switch (q->kind) {
    case ASK_FILE:
    case ASK_SYMBOL:
        return file.at ? put_file(at, file)
                       : put_error(at, GRPC_NOT_FOUND,
                                   q->kind == ASK_FILE ? "no file " : "no symbol ", q->what);
    case ASK_EXTENSION:
        return put_error(at, GRPC_NOT_FOUND, "no type here has extensions", text_of(""));
    case ASK_EXTENSION_NUMBERS:
        return file.at ? put_no_extensions(at, q->what)
                       : put_error(at, GRPC_NOT_FOUND, "no type ", q->what);
    case ASK_SERVICES:
        return put_services(at, set);
    default:
        return put_error(at, GRPC_INVALID_ARGUMENT, "nothing that is known was asked",
                         text_of(""));
    }
}

quire_status qr_wire_reflect(const void *set, size_t set_bytes,
                             const struct qr_wire_fragment *fragments, size_t count,
                             uint8_t *out, size_t capacity, size_t *bytes_out,
                             struct qr_error *e)
{
    const struct qr_wire_fragment whole = {.data = set, .bytes = set_bytes};
    const struct qr_wire_cursor files = cursor_of(&whole);
    struct question q = {.kind = 0};
    struct text file = {NULL, 0};
    const quire_status status = read_question(fragments, count, &q, e);

    if (status)
        return status;
    if (q.kind == ASK_FILE || q.kind == ASK_SYMBOL || q.kind == ASK_EXTENSION_NUMBERS)
        (void)find_file(files, q.kind, q.what, &file);
    const size_t needed = ANSWER_MIN_BYTES + file.n + services_bytes(files, NULL);
    if (needed > capacity)
        return qr_error_set(e, QUIRE_ETOOBIG,
                            "a ServerReflectionResponse may take %zu bytes: there are %zu",
                            needed, capacity);
    uint8_t *at = put_text(out, ANSWER_HOST, q.host);
    at = qr_wire_put_bytes(at, ANSWER_REQUEST, q.bytes, q.n);
    at = put_answer(at, &q, files, file);
    *bytes_out = (size_t)(at - out);
    return QUIRE_OK;
}
