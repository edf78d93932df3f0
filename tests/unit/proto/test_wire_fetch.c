/* SPDX-License-Identifier: Apache-2.0
 *
 * FetchChunk framed by hand and by protobuf-c are the same message in both directions, however
 * it is cut into fragments; malformed ones are refused by name.
 */
#include "wire_fixture.h"

static const uint8_t page_bytes[] = "a page of bytes";
static const uint8_t row_bytes[] = "rows: K then V";

static const struct qr_wire_part parts[] = {
    {.layer = 3,
     .first_head = 2,
     .heads = 4,
     .position = 1ull << 40,
     .tokens = 100,
     .payload = QR_WIRE_PAGE,
     .payload_bytes = sizeof(page_bytes)},
    {.layer = 3, .heads = 4, .position = 128, .tokens = 128, .status = 1},
    {.heads = 1, .tokens = 2, .payload = QR_WIRE_ROWS, .payload_bytes = sizeof(row_bytes)},
};

static const uint8_t *payload_of(size_t part)
{
    return part == 0 ? page_bytes : row_bytes;
}

static size_t write_chunk(uint8_t *out)
{
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        n += qr_wire_part_head(&parts[i], out + n);
        if (parts[i].payload_bytes > 0)
            memcpy(out + n, payload_of(i), parts[i].payload_bytes);
        n += parts[i].payload_bytes;
    }
    return n;
}

static size_t protobuf_chunk(uint8_t *out, size_t capacity)
{
    Quire__V1__FetchPart m[ARRAY_LEN(parts)], *pointers[ARRAY_LEN(parts)];
    Quire__V1__FetchChunk chunk = QUIRE__V1__FETCH_CHUNK__INIT;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        const ProtobufCBinaryData payload = {parts[i].payload_bytes,
                                             (uint8_t *)(uintptr_t)payload_of(i)};
        quire__v1__fetch_part__init(&m[i]);
        m[i].layer = parts[i].layer;
        m[i].first_head = parts[i].first_head;
        m[i].heads = parts[i].heads;
        m[i].position = parts[i].position;
        m[i].tokens = parts[i].tokens;
        m[i].status = (Quire__V1__PartStatus)parts[i].status;
        if (parts[i].payload == QR_WIRE_PAGE)
            m[i].page = payload;
        if (parts[i].payload == QR_WIRE_ROWS)
            m[i].rows = payload;
        pointers[i] = &m[i];
    }
    chunk.parts = pointers;
    chunk.n_parts = ARRAY_LEN(parts);
    return fixture_pack(&chunk.base, out, capacity);
}

static void hand_written_is_what_protobuf_writes(void **state)
{
    uint8_t by_hand[512], wire[512];
    (void)state;
    const size_t n = protobuf_chunk(wire, sizeof(wire));
    assert_int_equal(write_chunk(by_hand), n);
    assert_memory_equal(by_hand, wire, n);
    Quire__V1__FetchChunk *m = quire__v1__fetch_chunk__unpack(NULL, n, by_hand);
    assert_non_null(m);
    assert_int_equal(m->n_parts, 3);
    assert_int_equal(m->parts[1]->status, QUIRE__V1__PART_STATUS__PART_MISSING);
    assert_memory_equal(m->parts[2]->rows.data, row_bytes, sizeof(row_bytes));
    quire__v1__fetch_chunk__free_unpacked(m, NULL);
}

static void expect_chunk(const struct fixture_cut *cut)
{
    struct qr_wire_cursor at = qr_wire_cursor_all(cut->fragments, cut->count), payload;
    struct qr_wire_part part;
    uint8_t got[64];
    bool more;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        assert_ok(qr_wire_next_part(&at, &more, &part, &payload, NULL));
        assert_true(more);
        assert_int_equal(part.layer, parts[i].layer);
        assert_int_equal(part.first_head, parts[i].first_head);
        assert_int_equal(part.heads, parts[i].heads);
        assert_int_equal(part.position, parts[i].position);
        assert_int_equal(part.tokens, parts[i].tokens);
        assert_int_equal(part.status, parts[i].status);
        assert_int_equal(part.payload, parts[i].payload);
        assert_int_equal(part.payload_bytes, parts[i].payload_bytes);
        assert_int_equal(payload.bytes, parts[i].payload_bytes);
        if (part.payload_bytes > 0) {
            assert_true(qr_wire_cursor_read(&payload, got, part.payload_bytes));
            assert_memory_equal(got, payload_of(i), part.payload_bytes);
        }
    }
    assert_ok(qr_wire_next_part(&at, &more, &part, &payload, NULL));
    assert_false(more);
}

static void every_cut_reads_the_same(void **state)
{
    static struct fixture_cut cut;
    uint8_t wire[512];
    (void)state;
    const size_t n = write_chunk(wire);
    for (size_t i = 0; i <= n; i++)
        for (size_t j = i; j <= n; j++) {
            fixture_cut_at(&cut, wire, n, i, j);
            expect_chunk(&cut);
            fixture_free(&cut);
        }
    fixture_cut_bytes(&cut, wire, n);
    expect_chunk(&cut);
    fixture_free(&cut);
}

static void heads_fit_their_bound(void **state)
{
    const struct qr_wire_part widest = {UINT32_MAX, UINT32_MAX, UINT32_MAX,   UINT64_MAX,
                                        UINT32_MAX, UINT32_MAX, QR_WIRE_ROWS, UINT64_MAX / 2};
    uint8_t head[QR_WIRE_PART_HEAD_MAX];
    (void)state;
    assert_true(qr_wire_part_head(&widest, head) <= sizeof(head));
}

static void payload_first_and_unknown_fields_are_read(void **state)
{
    static const uint8_t wire[] = {0x12, 1,    'u', 0x0a, 9, 0x3a, 1,
                                   'p',  0x48, 1,   0x08, 5, 0x18, 1};
    const struct qr_wire_fragment fragment = {.data = wire, .bytes = sizeof(wire)};
    struct qr_wire_cursor at = qr_wire_cursor_all(&fragment, 1), payload;
    struct qr_wire_part part;
    bool more;
    (void)state;
    assert_ok(qr_wire_next_part(&at, &more, &part, &payload, NULL));
    assert_true(more);
    assert_int_equal(part.layer, 5);
    assert_int_equal(part.heads, 1);
    assert_int_equal(part.payload, QR_WIRE_PAGE);
    assert_int_equal(part.payload_bytes, 1);
}

static void malformed_parts_are_named(void **state)
{
    static const struct {
        uint8_t bytes[16];
        size_t n;
        const char *text;
    } cases[] = {
        {{0x0a, 6, 0x3a, 1, 'a', 0x42, 1, 'b'}, 8, "field 8 is a second payload"},
        {{0x0a, 6, 0x3a, 1, 'a', 0x3a, 1, 'b'}, 8, "field 7 is a second payload"},
        {{0x0a, 6, 0x08, 0x80, 0x80, 0x80, 0x80, 0x10}, 8, "field 1 is past 32 bits"},
        {{0x0a, 2, 0x0a, 0}, 4, "field 1 is not a number"},
        {{0x0a, 2, 0x38, 0}, 4, "field 7 is not bytes"},
        {{0x0a, 2, 0x3a, 1}, 4, "FetchPart: a length is past the end"},
        {{0x0a, 3, 0x3a, 1}, 4, "FetchChunk: a length is past the end"},
        {{0x08, 3}, 2, "parts are not messages"},
        {{0x0b}, 1, "group"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct qr_wire_fragment fragment = {.data = cases[i].bytes, .bytes = cases[i].n};
        struct qr_wire_cursor at = qr_wire_cursor_all(&fragment, 1), payload;
        struct qr_wire_part part = {.layer = 77};
        struct qr_error e;
        bool more;
        assert_status(QUIRE_ECORRUPT, qr_wire_next_part(&at, &more, &part, &payload, &e));
        expect_text(&e, cases[i].text);
        assert_int_equal(part.layer, 77);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hand_written_is_what_protobuf_writes),
        cmocka_unit_test(every_cut_reads_the_same),
        cmocka_unit_test(heads_fit_their_bound),
        cmocka_unit_test(payload_first_and_unknown_fields_are_read),
        cmocka_unit_test(malformed_parts_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
