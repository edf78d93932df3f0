/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages in frames: what was put in comes out, payload is marked as foreign and never read
 * as framing, and no length of a stranger leads out of the frame.
 */
#include <stdlib.h>

#include "proto/wire_frame.h"
#include "tests/test.h"

struct fixture {
    uint8_t *body;
    struct qr_ring_frame frame;
    struct qr_frame_room room;
};

static void make(struct fixture *f, const struct qr_frame_part *parts, uint16_t count)
{
    size_t bytes = 0;

    for (uint16_t i = 0; i < count; i++)
        bytes += qr_frame_part_bytes(parts[i].head_bytes, parts[i].bulk_bytes);
    f->body = aligned_alloc(QR_RING_LINE, bytes ? bytes : QR_RING_LINE);
    uint8_t *at = f->body;
    for (uint16_t i = 0; i < count; i++)
        at = qr_frame_put_part(at, &parts[i]);
    assert_int_equal(at - f->body, bytes);
    f->frame =
        (struct qr_ring_frame){.head = {.parts = count}, .body = f->body, .body_bytes = bytes};
    f->room.heads = malloc(QR_FRAME_HEADS_MAX);
    f->room.fragments = calloc(2 * QR_FRAME_PARTS_MAX, sizeof(*f->room.fragments));
}

static void drop(struct fixture *f)
{
    free(f->body);
    free(f->room.heads);
    free(f->room.fragments);
}

static void what_went_in_comes_out(void **state)
{
    static const uint8_t page[200] = {9, 8, 7};
    const struct qr_frame_part parts[] = {{"abc", 3, page, sizeof(page)},
                                          {"", 0, page, 64},
                                          {"defgh", 5, NULL, 0},
                                          {"", 0, NULL, 0}};
    struct fixture f;
    uint8_t bytes[400];
    (void)state;

    make(&f, parts, ARRAY_LEN(parts));
    assert_true(qr_frame_gather(&f.frame, &f.room));
    assert_int_equal(f.room.count, 4);
    assert_int_equal(f.room.bytes, 3 + 200 + 64 + 5);
    struct qr_wire_cursor all = qr_wire_cursor_all(f.room.fragments, f.room.count);
    assert_true(qr_wire_cursor_read(&all, bytes, f.room.bytes));
    assert_memory_equal(bytes, "abc", 3);
    assert_memory_equal(bytes + 3, page, 200);
    assert_memory_equal(bytes + 203, page, 64);
    assert_memory_equal(bytes + 267, "defgh", 5);
    assert_false(f.room.fragments[0].foreign); /* a copy: the sender can no longer change it */
    assert_true(f.room.fragments[0].data == f.room.heads);
    assert_true(f.room.fragments[1].foreign);
    assert_int_equal((uintptr_t)f.room.fragments[1].data % QR_RING_LINE, 0);
    drop(&f);
}

/* Lengths of one part in a body of 256 bytes: each of them leads out of it, or has too large a
 * head. */
static void lengths_of_strangers_stay_inside(void **state)
{
    static const struct {
        uint32_t head, bulk;
        uint16_t parts;
    } cases[] = {{0, 193, 1},
                 {249, 0, 1},
                 {UINT32_MAX, 0, 1},
                 {0, UINT32_MAX, 1},
                 {56, 193, 1},
                 {UINT32_MAX - 7, UINT32_MAX - 63, 1},
                 {0, 0, 5},
                 {0, 0, QR_FRAME_PARTS_MAX + 1},
                 {0, 128, UINT16_MAX},
                 {QR_FRAME_HEADS_MAX + 1, 0, 1}};
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fixture f;
        make(&f, &(struct qr_frame_part){"", 0, NULL, 0}, 1);
        free(f.body);
        f.body = aligned_alloc(QR_RING_LINE, 256);
        memset(f.body, 0, 256);
        memcpy(f.body, &cases[i].head, 4);
        memcpy(f.body + 4, &cases[i].bulk, 4);
        f.frame = (struct qr_ring_frame){
            .head = {.parts = cases[i].parts}, .body = f.body, .body_bytes = 256};
        assert_false(qr_frame_gather(&f.frame, &f.room));
        drop(&f);
    }
}

/* The same bytes, framing once as a head and once as payload. */
static void payload_is_never_read_as_framing(void **state)
{
    const struct qr_wire_append fields = {.session = 5, .tokens = 2, .layers = 1, .dtype = 1};
    const uint32_t ids[] = {1, 300};
    uint8_t head[128];
    const uint8_t rows[32] = {0};
    const size_t n = qr_wire_append_head(&fields, ids, 2, sizeof(rows), head);
    const struct qr_frame_part good = {head, n, rows, sizeof(rows)};
    const struct qr_frame_part bad[] = {{head, n - 1, head + n - 1, 1}, {"", 0, rows, 32}};
    const struct qr_frame_part worse = {NULL, 0, head, n};
    struct qr_wire_append_view view;
    struct qr_error e;
    struct fixture f;
    (void)state;

    make(&f, &good, 1);
    assert_true(qr_frame_gather(&f.frame, &f.room));
    assert_ok(qr_wire_append_parse(f.room.fragments, f.room.count, &view, &e));
    assert_int_equal(view.rows.bytes, 32);
    assert_int_equal(view.token_id_count, 2);
    drop(&f);
    make(&f, bad, 2);
    assert_true(qr_frame_gather(&f.frame, &f.room));
    assert_status(QUIRE_EINVAL,
                  qr_wire_append_parse(f.room.fragments, f.room.count, &view, &e));
    drop(&f);
    make(&f, &worse, 1);
    assert_true(qr_frame_gather(&f.frame, &f.room));
    assert_status(QUIRE_EINVAL,
                  qr_wire_append_parse(f.room.fragments, f.room.count, &view, &e));
    drop(&f);
}

static void payload_is_never_unpacked(void **state)
{
    static const uint8_t request[] = {0x08, 0x05}; /* FetchRequest.session = 5 */
    _Alignas(16) uint8_t memory[512];
    struct qr_wire_arena arena;
    ProtobufCMessage *message;
    struct qr_error e;
    struct qr_wire_fragment fragment = {.data = request, .bytes = sizeof(request)};
    (void)state;

    qr_wire_arena_init(&arena, memory, sizeof(memory));
    assert_ok(qr_wire_unpack(&quire__v1__fetch_request__descriptor, &fragment, 1, &arena,
                             &message, &e));
    fragment.foreign = true;
    assert_status(QUIRE_EINVAL, qr_wire_unpack(&quire__v1__fetch_request__descriptor, &fragment,
                                               1, &arena, &message, &e));
}

static void cookies_differ_in_any_byte(void **state)
{
    uint8_t a[QR_LOCAL_COOKIE_BYTES / 2] = {1, 2, 3}, b[QR_LOCAL_COOKIE_BYTES / 2];
    (void)state;

    memcpy(b, a, sizeof(a));
    assert_true(qr_local_cookie_equal(a, b));
    for (size_t i = 0; i < sizeof(a); i++) {
        b[i] ^= 0x80;
        assert_false(qr_local_cookie_equal(a, b));
        b[i] ^= 0x80;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_went_in_comes_out),
        cmocka_unit_test(lengths_of_strangers_stay_inside),
        cmocka_unit_test(payload_is_never_read_as_framing),
        cmocka_unit_test(payload_is_never_unpacked),
        cmocka_unit_test(cookies_differ_in_any_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
