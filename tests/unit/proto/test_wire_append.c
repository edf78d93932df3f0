/* SPDX-License-Identifier: Apache-2.0
 *
 * AppendRequest framed by hand and by protobuf-c are the same message in both directions,
 * however it is cut into fragments; malformed ones are refused by name.
 */
#include "wire_fixture.h"

static const struct qr_wire_append sample = {.session = 1ull << 60,
                                             .epoch = 7,
                                             .position = 300,
                                             .tokens = 3,
                                             .first_layer = 1,
                                             .layers = 2,
                                             .shard = 5,
                                             .dtype = QR_BF16,
                                             .durability = 1};
static const uint32_t ids[] = {0, 127, UINT32_MAX};
static const uint8_t rows[] = "twenty-four bytes of K+V";

static void expect_fields(const struct qr_wire_append *a)
{
    assert_int_equal(a->session, sample.session);
    assert_int_equal(a->epoch, sample.epoch);
    assert_int_equal(a->position, sample.position);
    assert_int_equal(a->tokens, sample.tokens);
    assert_int_equal(a->first_layer, sample.first_layer);
    assert_int_equal(a->layers, sample.layers);
    assert_int_equal(a->shard, sample.shard);
    assert_int_equal(a->dtype, sample.dtype);
    assert_int_equal(a->durability, sample.durability);
}

static size_t write_rows(uint8_t *out)
{
    const size_t head = qr_wire_append_head(&sample, ids, 3, sizeof(rows), out);
    assert_true(head <= qr_wire_append_head_max(3));
    memcpy(out + head, rows, sizeof(rows));
    return head + sizeof(rows);
}

static void hand_written_is_read_by_protobuf(void **state)
{
    uint8_t wire[256];
    (void)state;
    const size_t n = write_rows(wire);
    Quire__V1__AppendRequest *m = quire__v1__append_request__unpack(NULL, n, wire);
    assert_non_null(m);
    assert_int_equal(m->session, sample.session);
    assert_int_equal(m->position, 300);
    assert_int_equal(m->dtype, QUIRE__V1__DTYPE__BF16);
    assert_int_equal(m->durability, QUIRE__V1__DURABILITY__DISK);
    assert_int_equal(m->n_token_ids, 3);
    assert_memory_equal(m->token_ids, ids, sizeof(ids));
    assert_int_equal(m->rows.len, sizeof(rows));
    assert_memory_equal(m->rows.data, rows, sizeof(rows));
    assert_int_equal(m->n_pages, 0);
    quire__v1__append_request__free_unpacked(m, NULL);
}

static void hand_written_pages_are_read_by_protobuf(void **state)
{
    uint8_t wire[256];
    (void)state;
    size_t n = qr_wire_append_head(&sample, NULL, 0, 0, wire);
    for (uint8_t page = 1; page <= 3; page++) {
        n += qr_wire_page_head(page, wire + n);
        memset(wire + n, page, page);
        n += page;
    }
    Quire__V1__AppendRequest *m = quire__v1__append_request__unpack(NULL, n, wire);
    assert_non_null(m);
    assert_int_equal(m->n_token_ids, 0);
    assert_int_equal(m->n_pages, 3);
    assert_int_equal(m->pages[2].len, 3);
    assert_int_equal(m->pages[2].data[2], 3);
    quire__v1__append_request__free_unpacked(m, NULL);
}

static size_t protobuf_rows(uint8_t *out, size_t capacity)
{
    Quire__V1__AppendRequest m = QUIRE__V1__APPEND_REQUEST__INIT;
    m.session = sample.session;
    m.epoch = sample.epoch;
    m.position = sample.position;
    m.tokens = sample.tokens;
    m.first_layer = sample.first_layer;
    m.layers = sample.layers;
    m.shard = sample.shard;
    m.dtype = QUIRE__V1__DTYPE__BF16;
    m.durability = QUIRE__V1__DURABILITY__DISK;
    m.token_ids = (uint32_t *)(uintptr_t)ids;
    m.n_token_ids = 3;
    m.rows = (ProtobufCBinaryData){sizeof(rows), (uint8_t *)(uintptr_t)rows};
    return fixture_pack(&m.base, out, capacity);
}

static void expect_rows(const struct fixture_cut *cut)
{
    struct qr_wire_append_view view;
    uint32_t got_ids[3];
    uint8_t got[sizeof(rows)];
    assert_ok(qr_wire_append_parse(cut->fragments, cut->count, &view, NULL));
    expect_fields(&view.fields);
    assert_int_equal(view.token_id_count, 3);
    assert_int_equal(view.page_count, 0);
    qr_wire_append_token_ids(&view, got_ids);
    assert_memory_equal(got_ids, ids, sizeof(ids));
    assert_int_equal(view.rows.bytes, sizeof(rows));
    assert_true(qr_wire_cursor_read(&view.rows, got, 5));
    assert_true(qr_wire_cursor_read(&view.rows, got + 5, sizeof(rows) - 5));
    assert_memory_equal(got, rows, sizeof(rows));
    assert_false(qr_wire_cursor_read(&view.rows, got, 1));
}

static void protobuf_is_read_by_hand_in_every_cut(void **state)
{
    static struct fixture_cut cut;
    uint8_t wire[256], by_hand[256];
    (void)state;
    const size_t n = protobuf_rows(wire, sizeof(wire));
    assert_int_equal(write_rows(by_hand), n);
    assert_memory_equal(by_hand, wire, n);
    for (size_t i = 0; i <= n; i++)
        for (size_t j = i; j <= n; j++) {
            fixture_cut_at(&cut, wire, n, i, j);
            expect_rows(&cut);
            fixture_free(&cut);
        }
    fixture_cut_bytes(&cut, wire, n);
    expect_rows(&cut);
    fixture_free(&cut);
}

static void pages_are_found_in_every_cut(void **state)
{
    static struct fixture_cut cut;
    uint8_t wire[256], first[40], second[5], got[40];
    Quire__V1__AppendRequest m = QUIRE__V1__APPEND_REQUEST__INIT;
    ProtobufCBinaryData pages[] = {{sizeof(first), first}, {0, NULL}, {sizeof(second), second}};
    (void)state;
    memset(first, 0xa1, sizeof(first));
    memset(second, 0xb2, sizeof(second));
    m.pages = pages;
    m.n_pages = 3;
    const size_t n = fixture_pack(&m.base, wire, sizeof(wire));
    for (size_t i = 0; i <= n; i++)
        for (size_t j = i; j <= n; j++) {
            struct qr_wire_append_view view;
            struct qr_wire_cursor page;
            fixture_cut_at(&cut, wire, n, i, j);
            assert_ok(qr_wire_append_parse(cut.fragments, cut.count, &view, NULL));
            assert_int_equal(view.page_count, 3);
            assert_int_equal(view.rows.bytes, 0);
            struct qr_wire_cursor at = view.all;
            for (size_t p = 0; p < 3; p++) {
                assert_true(qr_wire_append_next_page(&at, &page));
                assert_int_equal(page.bytes, pages[p].len);
                assert_true(qr_wire_cursor_read(&page, got, pages[p].len));
                assert_memory_equal(got, pages[p].data, pages[p].len);
            }
            assert_false(qr_wire_append_next_page(&at, &page));
            fixture_free(&cut);
        }
}

static quire_status parse(const uint8_t *wire, size_t n, struct qr_wire_append_view *view,
                          struct qr_error *e)
{
    /* Kept until the next call: views borrow it. */
    static struct qr_wire_fragment fragment;
    fragment = (struct qr_wire_fragment){.data = wire, .bytes = n};
    return qr_wire_append_parse(&fragment, 1, view, e);
}

static void order_repeats_and_unknown_fields_do_not_matter(void **state)
{
    /* rows first, ids unpacked and packed, unknown 13 (all wire types), tokens twice */
    static const uint8_t wire[] = {0x62, 2, 'h', 'i',  0x50, 9,    0x68, 1, 0x6a, 1,    'x',
                                   0x6d, 1, 2,   3,    4,    0x69, 1,    2, 3,    4,    5,
                                   6,    7, 8,   0x20, 1,    0x52, 2,    7, 8,    0x20, 2};
    struct qr_wire_append_view view;
    uint32_t got[3];
    (void)state;
    assert_ok(parse(wire, sizeof(wire), &view, NULL));
    assert_int_equal(view.fields.tokens, 2);
    assert_int_equal(view.rows.bytes, 2);
    assert_int_equal(view.token_id_count, 3);
    qr_wire_append_token_ids(&view, got);
    assert_int_equal(got[0], 9);
    assert_int_equal(got[1], 7);
    assert_int_equal(got[2], 8);
}

static void empty_message_has_no_payload(void **state)
{
    struct qr_wire_append_view view;
    (void)state;
    assert_ok(qr_wire_append_parse(NULL, 0, &view, NULL));
    assert_int_equal(view.rows.bytes, 0);
    assert_int_equal(view.page_count, 0);
    assert_int_equal(view.fields.tokens, 0);
}

static void malformed_messages_are_named(void **state)
{
    static const struct {
        uint8_t bytes[16];
        size_t n;
        const char *text;
    } cases[] = {
        {{0x62, 1, 'a', 0x62, 0}, 5, "field 12 (rows) comes twice"},
        {{0x62, 1, 'a', 0x5a, 0}, 5, "rows (1 bytes) and 1 pages"},
        {{0x20, 0x80, 0x80, 0x80, 0x80, 0x10}, 6, "field 4 is past 32 bits"},
        {{0x50, 0x80, 0x80, 0x80, 0x80, 0x10}, 6, "field 10 has an id past 32 bits"},
        {{0x52, 5, 0x80, 0x80, 0x80, 0x80, 0x10}, 7, "field 10 has an id past 32 bits"},
        {{0x52, 1, 0x80}, 3, "field 10 has an id that is cut off"},
        {{0x55, 1, 2, 3, 4}, 5, "field 10 is not a list"},
        {{0x0a, 0}, 2, "field 1 is not a number"},
        {{0x60, 0}, 2, "field 12 is not bytes"},
        {{0x62, 3, 'a', 'b'}, 4, "a length is past the end"},
        {{0x62, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, 11, "length is past"},
        {{0x08}, 1, "cut off"},
        {{0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2}, 11, "longer than 64"},
        {{0x6b}, 1, "group"},
        {{0x6f, 0}, 2, "unknown wire type"},
        {{0x00, 1}, 2, "no field number"},
        {{0x69, 1, 2}, 3, "64-bit value is cut off"},
        {{0x6d, 1, 2}, 3, "32-bit value is cut off"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct qr_wire_append_view view = {.page_count = 99};
        struct qr_error e;
        assert_status(QUIRE_EINVAL, parse(cases[i].bytes, cases[i].n, &view, &e));
        expect_text(&e, cases[i].text);
        assert_int_equal(view.page_count, 99);
    }
}

static void every_truncation_of_the_head_is_refused_or_shorter(void **state)
{
    uint8_t wire[256];
    struct qr_wire_append_view view;
    (void)state;
    const size_t n = write_rows(wire);
    for (size_t cut = n - sizeof(rows) - 1; cut < n; cut++)
        assert_status(QUIRE_EINVAL, parse(wire, cut, &view, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hand_written_is_read_by_protobuf),
        cmocka_unit_test(hand_written_pages_are_read_by_protobuf),
        cmocka_unit_test(protobuf_is_read_by_hand_in_every_cut),
        cmocka_unit_test(pages_are_found_in_every_cut),
        cmocka_unit_test(order_repeats_and_unknown_fields_do_not_matter),
        cmocka_unit_test(empty_message_has_no_payload),
        cmocka_unit_test(malformed_messages_are_named),
        cmocka_unit_test(every_truncation_of_the_head_is_refused_or_shorter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
