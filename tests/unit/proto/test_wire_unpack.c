/* SPDX-License-Identifier: Apache-2.0
 *
 * What strangers send is checked before protobuf-c sees it, and unpacking stays inside the
 * arena; a message packed by protobuf-c comes back equal in every cut.
 */
#include "wire_fixture.h"

#define SESSION_NAME                                                                           \
    "s\xc3\xa9"                                                                                \
    "ance"

static _Alignas(16) uint8_t memory[1 << 16];
static struct qr_wire_arena arena;

static int fresh_arena(void **state)
{
    (void)state;
    qr_wire_arena_init(&arena, memory, sizeof(memory));
    return 0;
}

static quire_status unpack(const ProtobufCMessageDescriptor *type, const void *bytes, size_t n,
                           ProtobufCMessage **out, struct qr_error *e)
{
    const struct qr_wire_fragment fragment = {.data = bytes, .bytes = n};
    return qr_wire_unpack(type, &fragment, 1, &arena, out, e);
}

static size_t pack_open(uint8_t *out, size_t capacity)
{
    Quire__V1__OpenSessionRequest m = QUIRE__V1__OPEN_SESSION_REQUEST__INIT;
    struct qr_policy policy;
    struct qr_wire_policy box;
    qr_policy_default(&policy);
    qr_wire_policy_to(&policy, &box);
    m.name = (char *)(uintptr_t)SESSION_NAME;
    m.policy = &box.message;
    m.write = 1;
    m.ttl_ms = 1ull << 40;
    return fixture_pack(&m.base, out, capacity);
}

static void every_cut_unpacks_the_same(void **state)
{
    static struct fixture_cut cut;
    uint8_t wire[256];
    (void)state;
    const size_t n = pack_open(wire, sizeof(wire));
    for (size_t i = 0; i <= n; i++)
        for (size_t j = i; j <= n; j++) {
            ProtobufCMessage *out;
            fixture_cut_at(&cut, wire, n, i, j);
            qr_wire_arena_reset(&arena);
            assert_ok(qr_wire_unpack(&quire__v1__open_session_request__descriptor,
                                     cut.fragments, cut.count, &arena, &out, NULL));
            fixture_free(&cut);
            const Quire__V1__OpenSessionRequest *m = (const void *)out;
            assert_string_equal(m->name, SESSION_NAME);
            assert_int_equal(m->policy->key->group, 32);
            assert_int_equal(m->ttl_ms, 1ull << 40);
        }
}

static void every_truncation_is_refused_or_a_shorter_message(void **state)
{
    uint8_t wire[256];
    (void)state;
    const size_t n = pack_open(wire, sizeof(wire));
    for (size_t cut = 0; cut < n; cut++) {
        ProtobufCMessage *out = NULL;
        qr_wire_arena_reset(&arena);
        const quire_status status =
            unpack(&quire__v1__open_session_request__descriptor, wire, cut, &out, NULL);
        assert_true(status == QUIRE_EINVAL || (status == QUIRE_OK && out));
    }
}

static void empty_message_is_all_defaults(void **state)
{
    ProtobufCMessage *out;
    (void)state;
    assert_ok(qr_wire_unpack(&quire__v1__open_session_request__descriptor, NULL, 0, &arena,
                             &out, NULL));
    const Quire__V1__OpenSessionRequest *m = (const void *)out;
    assert_string_equal(m->name, "");
    assert_null(m->policy);
}

static void malformed_messages_are_named(void **state)
{
    static const struct {
        const ProtobufCMessageDescriptor *type;
        const char *bytes;
        size_t n;
        const char *text;
    } cases[] = {
#define OPEN &quire__v1__open_session_request__descriptor
#define ROPE &quire__v1__rope__descriptor
        {OPEN, "\x1a\x00\x1a\x00", 4, "OpenSessionRequest.policy comes twice"},
        {OPEN, "\x1a\x04\x2a\x00\x2a\x00", 6, "Policy.key comes twice"},
        {OPEN, "\x0a\x01\xff", 3, "OpenSessionRequest.name is not UTF-8"},
        {OPEN, "\x0a\x02\xc3\x28", 4, "name is not UTF-8"},
        {OPEN, "\x0a\x01\xc3", 3, "name is not UTF-8"},
        {OPEN,
         "\x0a\x03"
         "a\0b",
         5, "name has a NUL byte"},
        {OPEN, "\x08\x01", 2, "name has another wire type"},
        {OPEN, "\x22\x00", 2, "head_shards has another wire type"},
        {OPEN, "\x20\x80\x80\x80\x80\x10", 6, "head_shards has a number past its width"},
        {OPEN, "\x20\x80", 2, "OpenSessionRequest: a number is cut off"},
        {OPEN,
         "\x0a\x05"
         "abc",
         5, "a length is past the end"},
        {OPEN, "\x1a\x01\x08", 3, "Policy: a number is cut off"},
        {OPEN, "\x0b\x0c", 2, "group"},
        {ROPE, "\x22\x03\x01\x02\x03", 5, "inv_freq is packed into bytes that are no multiple"},
        {ROPE, "\x20\x01", 2, "inv_freq has another wire type"},
        {ROPE, "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, "layout has a number past"},
#undef OPEN
#undef ROPE
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        ProtobufCMessage *out = NULL;
        struct qr_error e;
        assert_status(QUIRE_EINVAL,
                      unpack(cases[i].type, cases[i].bytes, cases[i].n, &out, &e));
        expect_text(&e, cases[i].text);
        assert_null(out);
    }
}

static void unknown_fields_are_skipped(void **state)
{
    static const char wire[] = "\xfa\x3f\x02hi\x0a\x01n\xf8\x3f\x07";
    ProtobufCMessage *out;
    (void)state;
    assert_ok(unpack(&quire__v1__get_session_request__descriptor, wire, sizeof(wire) - 1, &out,
                     NULL));
    assert_string_equal(((const Quire__V1__GetSessionRequest *)(const void *)out)->name, "n");
}

static void packed_and_single_numbers_mix(void **state)
{
    static const char wire[] = "\x32\x02\x01\x02\x30\x03";
    ProtobufCMessage *out;
    (void)state;
    assert_ok(
        unpack(&quire__v1__attend_request__descriptor, wire, sizeof(wire) - 1, &out, NULL));
    const Quire__V1__AttendRequest *m = (const void *)out;
    assert_int_equal(m->n_positions, 3);
    assert_int_equal(m->positions[2], 3);
}

/* A message that holds itself: no message of ours nests deep enough. */
struct nested {
    ProtobufCMessage base;
    struct nested *child;
};
static const ProtobufCMessageDescriptor nested_type;
static const ProtobufCFieldDescriptor nested_fields[] = {
    {.name = "child",
     .id = 1,
     .label = PROTOBUF_C_LABEL_NONE,
     .type = PROTOBUF_C_TYPE_MESSAGE,
     .offset = offsetof(struct nested, child),
     .descriptor = &nested_type},
};
static const unsigned nested_by_name[] = {0};
static const ProtobufCIntRange nested_ranges[] = {{1, 0}, {0, 1}};
static const ProtobufCMessageDescriptor nested_type = {
    .magic = PROTOBUF_C__MESSAGE_DESCRIPTOR_MAGIC,
    .name = "test.Nested",
    .short_name = "Nested",
    .c_name = "nested",
    .package_name = "test",
    .sizeof_message = sizeof(struct nested),
    .n_fields = 1,
    .fields = nested_fields,
    .fields_sorted_by_name = nested_by_name,
    .n_field_ranges = 1,
    .field_ranges = nested_ranges,
};

static uint8_t *nest(unsigned depth, size_t *n)
{
    /* Built from the inside out: each level is a header before the one within. */
    uint8_t *buffer = malloc(8u * depth + 8), *at = buffer + 8u * depth + 8;
    size_t bytes = 0;
    for (unsigned i = 0; i < depth; i++) {
        uint8_t head[8];
        size_t head_bytes = 0;
        head[head_bytes++] = 0x0a;
        for (size_t v = bytes;; v >>= 7) {
            head[head_bytes++] = (uint8_t)(v >= 0x80 ? v | 0x80 : v);
            if (v < 0x80)
                break;
        }
        at -= head_bytes;
        memcpy(at, head, head_bytes);
        bytes += head_bytes;
    }
    memmove(buffer, at, bytes);
    *n = bytes;
    return buffer;
}

static void nesting_is_bounded(void **state)
{
    static const unsigned depths[] = {31, 32, 33, 20000, 1000000};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(depths); i++) {
        struct qr_error e;
        ProtobufCMessage *out;
        size_t n;
        uint8_t *wire = nest(depths[i], &n);
        qr_wire_arena_reset(&arena);
        const quire_status status = unpack(&nested_type, wire, n, &out, &e);
        assert_int_equal(status, depths[i] < QR_WIRE_DEPTH_MAX ? QUIRE_OK : QUIRE_EINVAL);
        if (status)
            expect_text(&e, "Nested.child is nested more than 32 deep");
        free(wire);
    }
}

static void arena_bounds_what_a_message_takes(void **state)
{
    uint8_t wire[4096];
    ProtobufCMessage *out = NULL;
    struct qr_error e;
    (void)state;
    for (size_t i = 0; i < sizeof(wire); i += 2) { /* 2048 empty parts */
        wire[i] = 0x0a;
        wire[i + 1] = 0;
    }
    assert_status(QUIRE_ETOOBIG,
                  unpack(&quire__v1__fetch_chunk__descriptor, wire, sizeof(wire), &out, &e));
    expect_text(&e, "FetchChunk of 4096 bytes needs more than the 65536 bytes of its arena");
    assert_null(out);
    qr_wire_arena_reset(&arena);
    assert_ok(unpack(&quire__v1__fetch_chunk__descriptor, wire, 64, &out, NULL));
}

static void every_arena_size_fails_cleanly_until_one_is_enough(void **state)
{
    uint8_t wire[256];
    const size_t n = pack_open(wire, sizeof(wire));
    bool enough = false;
    (void)state;
    for (size_t size = 0; size < 4096 && !enough; size += 16) {
        uint8_t *own = aligned_alloc(16, size ? size : 16);
        struct qr_wire_fragment fragments[] = {{.data = wire, .bytes = 3},
                                               {.data = wire + 3, .bytes = n - 3}};
        ProtobufCMessage *out;
        qr_wire_arena_init(&arena, own, size);
        const quire_status status = qr_wire_unpack(&quire__v1__open_session_request__descriptor,
                                                   fragments, 2, &arena, &out, NULL);
        assert_true(status == QUIRE_ETOOBIG || status == QUIRE_OK);
        enough = status == QUIRE_OK;
        free(own);
    }
    assert_true(enough);
}

static void pack_refuses_a_short_buffer(void **state)
{
    Quire__V1__GetSessionRequest m = QUIRE__V1__GET_SESSION_REQUEST__INIT;
    uint8_t out[8];
    size_t bytes = 77;
    struct qr_error e;
    (void)state;
    m.name = (char *)(uintptr_t) "seven b";
    assert_status(QUIRE_ETOOBIG, qr_wire_pack(&m.base, out, sizeof(out), &bytes, &e));
    assert_string_equal(e.text, "GetSessionRequest takes 9 bytes: the buffer has 8");
    assert_int_equal(bytes, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_cut_unpacks_the_same, fresh_arena),
        cmocka_unit_test_setup(every_truncation_is_refused_or_a_shorter_message, fresh_arena),
        cmocka_unit_test_setup(empty_message_is_all_defaults, fresh_arena),
        cmocka_unit_test_setup(malformed_messages_are_named, fresh_arena),
        cmocka_unit_test_setup(unknown_fields_are_skipped, fresh_arena),
        cmocka_unit_test_setup(packed_and_single_numbers_mix, fresh_arena),
        cmocka_unit_test_setup(nesting_is_bounded, fresh_arena),
        cmocka_unit_test_setup(arena_bounds_what_a_message_takes, fresh_arena),
        cmocka_unit_test(every_arena_size_fails_cleanly_until_one_is_enough),
        cmocka_unit_test(pack_refuses_a_short_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
