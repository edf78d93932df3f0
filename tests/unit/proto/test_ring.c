/* SPDX-License-Identifier: Apache-2.0
 *
 * A shared ring: frames come out as they went in wherever the ring's end falls, a full ring
 * says so, sleepers are woken, and whatever the other side writes into the shared words is
 * noticed and never followed out of the memory.
 */
#include <stdlib.h>

#include "proto/ring.h"
#include "tests/test.h"

#define CAPACITY QR_RING_BYTES_MIN
#define SEED 20260701u

struct ring {
    uint8_t *memory;
    struct qr_ring_writer writer;
    struct qr_ring_reader reader;
};

static int setup(void **state)
{
    struct ring *r = calloc(1, sizeof(*r));

    /* Exactly as large as it has to be: a sanitizer sees what goes past it. */
    r->memory = aligned_alloc(QR_RING_LINE, QR_RING_SHARED_BYTES(CAPACITY));
    memset(r->memory, 0, sizeof(struct qr_ring_shared));
    qr_ring_writer_init(&r->writer, r->memory, CAPACITY);
    qr_ring_reader_init(&r->reader, r->memory, CAPACITY);
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    struct ring *r = *state;

    free(r->memory);
    free(r);
    return 0;
}

/* A frame of `bytes` filled with `fill`; false: no room. */
static bool put(struct ring *r, size_t bytes, uint8_t fill)
{
    uint8_t *frame = qr_ring_reserve(&r->writer, bytes, NULL);
    const struct qr_ring_head head = {.bytes = (uint32_t)bytes, .type = 7, .value = fill};

    if (!frame)
        return false;
    memset(frame, fill, bytes);
    memcpy(frame, &head, sizeof(head));
    qr_ring_publish(&r->writer, bytes);
    return true;
}

static void check_frame(const struct qr_ring_frame *frame, size_t bytes, uint8_t fill)
{
    assert_int_equal(frame->head.type, 7);
    assert_int_equal(frame->head.bytes, bytes);
    assert_int_equal(frame->head.value, fill);
    assert_int_equal(frame->body_bytes, bytes - QR_RING_LINE);
    for (size_t i = 0; i < frame->body_bytes; i++)
        assert_int_equal(frame->body[i], fill);
}

static size_t random_bytes(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (1 + (*seed >> 8) % 500) * QR_RING_LINE;
}

static void frames_come_out_as_they_went_in(void **state)
{
    struct ring *r = *state;
    uint32_t in_seed = SEED, out_seed = SEED;
    uint32_t in = 0, out = 0;
    size_t waiting = random_bytes(&in_seed);

    while (out < 5000) {
        struct qr_ring_frame frame;
        while (in < 5000 && put(r, waiting, (uint8_t)in)) {
            in++;
            waiting = random_bytes(&in_seed);
        }
        const bool some = qr_ring_take(&r->reader, &frame);
        assert_false(r->reader.broken || r->writer.broken);
        if (some)
            check_frame(&frame, random_bytes(&out_seed), (uint8_t)out++);
        qr_ring_free(&r->reader, r->reader.next);
    }
    assert_int_equal(in, out);
}

static void a_full_ring_says_so(void **state)
{
    struct ring *r = *state;
    struct qr_ring_frame frame;
    unsigned count = 0;

    while (put(r, CAPACITY / 8, 1))
        count++;
    assert_int_equal(count, 8);
    assert_true(qr_ring_take(&r->reader, &frame));
    assert_false(put(r, CAPACITY / 8, 2)); /* taken is not given back */
    qr_ring_free(&r->reader, frame.end);
    assert_true(put(r, CAPACITY / 8, 2));
    assert_false(put(r, QR_RING_LINE, 3));
}

static void a_frame_may_be_as_large_as_the_ring(void **state)
{
    struct ring *r = *state;
    struct qr_ring_frame frame;

    assert_true(put(r, QR_RING_LINE, 1));
    assert_true(qr_ring_take(&r->reader, &frame));
    qr_ring_free(&r->reader, frame.end);
    assert_false(put(r, CAPACITY, 2)); /* a pad up to the end comes first */
    assert_false(qr_ring_take(&r->reader, &frame));
    qr_ring_free(&r->reader, r->reader.next);
    assert_true(put(r, CAPACITY, 2));
    assert_true(qr_ring_take(&r->reader, &frame));
    check_frame(&frame, CAPACITY, 2);
}

static void sleepers_are_woken_once(void **state)
{
    struct ring *r = *state;
    struct qr_ring_frame frame;

    assert_false(qr_ring_reader_sleeps(&r->writer));
    qr_ring_reader_waits(&r->reader);
    assert_false(qr_ring_has_data(&r->reader));
    assert_true(put(r, QR_RING_LINE, 1));
    assert_true(qr_ring_reader_sleeps(&r->writer));
    assert_false(qr_ring_reader_sleeps(&r->writer));
    qr_ring_reader_waits(&r->reader);
    qr_ring_reader_awake(&r->reader);
    assert_false(qr_ring_reader_sleeps(&r->writer));
    assert_true(qr_ring_has_data(&r->reader));
    qr_ring_writer_waits(&r->writer);
    assert_true(qr_ring_take(&r->reader, &frame));
    qr_ring_free(&r->reader, frame.end);
    assert_true(qr_ring_writer_sleeps(&r->reader));
    assert_false(qr_ring_writer_sleeps(&r->reader));
}

static void a_reader_follows_no_position_that_cannot_be(void **state)
{
    static const uint64_t heads[] = {1,         63, CAPACITY + 64, UINT64_MAX, UINT64_MAX - 63,
                                     1ull << 63};
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        void *fresh;
        struct qr_ring_frame frame;
        assert_int_equal(setup(&fresh), 0);
        struct ring *r = fresh;
        atomic_store(&r->writer.shared->head, heads[i]);
        assert_false(qr_ring_take(&r->reader, &frame));
        assert_true(r->reader.broken);
        assert_true(qr_ring_has_data(&r->reader)); /* so that whoever waits looks */
        teardown(&fresh);
    }
}

static void a_reader_follows_no_length_that_cannot_be(void **state)
{
    static const uint32_t lengths[] = {0, 1, 32, 63, 65, 192, CAPACITY, UINT32_MAX, 1u << 31};
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        void *fresh;
        struct qr_ring_frame frame;
        assert_int_equal(setup(&fresh), 0);
        struct ring *r = fresh;
        const struct qr_ring_head head = {.bytes = lengths[i], .type = (uint16_t)(i % 2)};
        memcpy(r->writer.bytes, &head, sizeof(head));
        qr_ring_publish(&r->writer, 128);
        assert_false(qr_ring_take(&r->reader, &frame));
        assert_true(r->reader.broken);
        teardown(&fresh);
    }
}

static void a_writer_follows_no_position_that_cannot_be(void **state)
{
    static const uint64_t tails[] = {0, 65, 64 + 63, 320, UINT64_MAX, 1ull << 63};
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(tails); i++) {
        void *fresh;
        struct qr_ring_frame frame;
        assert_int_equal(setup(&fresh), 0);
        struct ring *r = fresh;
        assert_true(put(r, 64, 1) && put(r, 192, 2));
        assert_true(qr_ring_take(&r->reader, &frame));
        qr_ring_free(&r->reader, frame.end);
        assert_true(put(r, 64, 3)); /* has seen 64 */
        atomic_store(&r->reader.shared->tail, tails[i]);
        const bool may_be = tails[i] == 320; /* all that was published */
        assert_int_equal(put(r, 64, 4), may_be);
        assert_int_equal(r->writer.broken, !may_be);
        teardown(&fresh);
    }
}

static void capacities_are_powers_of_two_within_limits(void **state)
{
    (void)state;
    assert_true(qr_ring_capacity_valid(QR_RING_BYTES_MIN));
    assert_true(qr_ring_capacity_valid(QR_RING_BYTES_MAX));
    assert_false(qr_ring_capacity_valid(0));
    assert_false(qr_ring_capacity_valid(QR_RING_BYTES_MIN / 2));
    assert_false(qr_ring_capacity_valid(2ull * QR_RING_BYTES_MAX));
    assert_false(qr_ring_capacity_valid(QR_RING_BYTES_MIN * 3));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(frames_come_out_as_they_went_in),
        TEST(a_full_ring_says_so),
        TEST(a_frame_may_be_as_large_as_the_ring),
        TEST(sleepers_are_woken_once),
        cmocka_unit_test(a_reader_follows_no_position_that_cannot_be),
        cmocka_unit_test(a_reader_follows_no_length_that_cannot_be),
        cmocka_unit_test(a_writer_follows_no_position_that_cannot_be),
        cmocka_unit_test(capacities_are_powers_of_two_within_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
