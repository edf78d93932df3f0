/* SPDX-License-Identifier: Apache-2.0
 *
 * The same-host call machine and a client that keeps the rules: calls, streams, ends, and where
 * it listens.
 */
#include "local_peer.h"

/* ---- good ones --------------------------------------------------------------------------- */

static void calls_are_answered(void **state)
{
    struct peer p;
    struct qr_error e;
    struct qr_ring_head head;
    char text[1024];

    (void)state;
    peer_open(&p);
    peer_send(&p, QR_FRAME_REQUEST, 4, QR_FRAME_APPEND, "hello");
    expect(&p, QR_FRAME_MESSAGE, 4, "hello", QR_FRAME_LAST);
    peer_send(&p, QR_FRAME_REQUEST, 4, QR_FRAME_APPEND, "fail"); /* the number is free again */
    assert_true(peer_receive(&p, &head, text, sizeof(text)));
    assert_int_equal(head.type, QR_FRAME_END);
    assert_true(qr_wire_status_parse((uint8_t *)text, 100, &e) || head.value != 0);
    assert_int_equal(head.value, qr_status_grpc(QUIRE_EGAP));
    peer_send(&p, QR_FRAME_REQUEST, 0, QR_FRAME_APPEND_STREAM, NULL);
    peer_send(&p, QR_FRAME_REQUEST, 31, QR_FRAME_APPEND, "between");
    peer_send(&p, QR_FRAME_MESSAGE, 0, 0, "one");
    peer_send(&p, QR_FRAME_MESSAGE, 0, 0, "two");
    peer_send(&p, QR_FRAME_CLOSE, 0, 0, NULL);
    expect(&p, QR_FRAME_MESSAGE, 31, "between", QR_FRAME_LAST);
    expect(&p, QR_FRAME_MESSAGE, 0, "one", 0);
    expect(&p, QR_FRAME_MESSAGE, 0, "two", 0);
    expect(&p, QR_FRAME_END, 0, "", 0);
    peer_close(&p);
    wait_for_clients(0);
}

static void a_stream_comes_whole(void **state)
{
    struct peer p;
    struct qr_ring_head head = {0};
    char text[8];
    int parts = 0;

    (void)state;
    memset(page, 'x', sizeof(page));
    peer_open(&p);
    peer_send(&p, QR_FRAME_REQUEST, 1, QR_FRAME_FETCH, "\x2a"); /* 42 pages: ten rings full */
    while (!(head.flags & QR_FRAME_LAST)) {
        assert_true(peer_receive(&p, &head, text, sizeof(text)));
        assert_int_equal(head.type, QR_FRAME_MESSAGE);
        assert_string_equal(text, "headxxx");
        parts += head.parts;
    }
    assert_int_equal(parts, 42);
    peer_send(&p, QR_FRAME_REQUEST, 1, QR_FRAME_FETCH, NULL);
    expect(&p, QR_FRAME_END, 1, NULL, 0); /* refused: it has no count */
    peer_close(&p);
}

static void a_message_over_the_limit_is_refused_by_itself(void **state)
{
    struct peer p;
    const size_t bulk = 600u << 10;
    const size_t bytes = QR_RING_LINE + qr_frame_part_bytes(0, bulk);
    struct qr_ring_head head = {.bytes = (uint32_t)bytes,
                                .type = QR_FRAME_REQUEST,
                                .parts = 1,
                                .call = 2,
                                .value = QR_FRAME_APPEND};
    char text[1024];

    (void)state;
    peer_open(&p);
    uint8_t *frame = qr_ring_reserve(&p.up, bytes, NULL);
    assert_non_null(frame);
    memcpy(frame, &head, sizeof(head));
    (void)qr_frame_begin_part(frame + QR_RING_LINE, NULL, 0, bulk);
    qr_ring_publish(&p.up, bytes);
    ring_bell(&p);
    assert_true(peer_receive(&p, &head, text, sizeof(text)));
    assert_int_equal(head.type, QR_FRAME_END);
    assert_int_equal(head.value, qr_status_grpc(QUIRE_ETOOBIG));
    peer_send(&p, QR_FRAME_REQUEST, 2, QR_FRAME_APPEND, "small");
    expect(&p, QR_FRAME_MESSAGE, 2, "small", QR_FRAME_LAST);
    peer_close(&p);
}

static void a_call_may_be_cancelled(void **state)
{
    struct peer p;
    struct qr_ring_head head = {0};
    char text[8];

    (void)state;
    peer_open(&p);
    peer_send(&p, QR_FRAME_REQUEST, 1, QR_FRAME_FETCH, "\x7f");
    peer_send(&p, QR_FRAME_CANCEL, 1, 0, NULL);
    peer_send(&p, QR_FRAME_CANCEL, 9, 0, NULL); /* of no call: it ended meanwhile, perhaps */
    while (head.type != QR_FRAME_END)
        assert_true(peer_receive(&p, &head, text, sizeof(text)));
    assert_int_equal(head.value, qr_status_grpc(QUIRE_ECANCELED));
    assert_int_equal(atomic_load(&streams_open), 0);
    assert_int_equal(atomic_load(&pins_out), 0);
    peer_close(&p);
}

static void a_refusing_server_says_when_to_come_again(void **state)
{
    struct peer p;
    struct qr_ring_head head;
    char text[1024];

    (void)state;
    peer_open(&p);
    peer_send(&p, QR_FRAME_REQUEST, 0, QR_FRAME_APPEND_STREAM, NULL);
    peer_send(&p, QR_FRAME_MESSAGE, 0, 0, "one");
    expect(&p, QR_FRAME_MESSAGE, 0, "one", 0);
    qr_local_refuse(local);
    peer_send(&p, QR_FRAME_REQUEST, 1, QR_FRAME_APPEND, "new");
    assert_true(peer_receive(&p, &head, text, sizeof(text)));
    assert_int_equal(head.type, QR_FRAME_END);
    assert_int_equal(head.value, qr_status_grpc(QUIRE_EUNAVAILABLE));
    peer_send(&p, QR_FRAME_MESSAGE, 0, 0, "two"); /* what is under way goes on */
    expect(&p, QR_FRAME_MESSAGE, 0, "two", 0);
    qr_local_stop(local, qr_clock_ms() + 50); /* but not for ever */
    expect_hang_up(&p);
    peer_close(&p);
}

/* ---- listening --------------------------------------------------------------------------- */

static void paths_are_claimed_and_checked(void **state)
{
    const struct qr_local_config config = config_of();
    struct qr_local *other = NULL;
    struct qr_error e = {0};
    char text[256];

    (void)state;
    assert_ok(qr_local_create(&config, &other, &e));
    assert_status(QUIRE_EEXIST, qr_local_listen(other, path, &e)); /* somebody listens there */
    memset(text, 'x', sizeof(text));
    text[0] = '/';
    text[200] = 0;
    assert_status(QUIRE_ETOOBIG, qr_local_listen(other, text, &e));
    assert_status(QUIRE_EUNAVAILABLE, qr_local_listen(other, "/nowhere/at/all", &e));
    assert_ok(qr_local_listen(other, "@quire-test-abstract-name", &e));
    qr_local_destroy(&other);
    struct qr_local_config odd = config;
    odd.up_bytes = 3u << 20;
    assert_status(QUIRE_EINVAL, qr_local_create(&odd, &other, &e));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(calls_are_answered),
        TEST(a_stream_comes_whole),
        TEST(a_message_over_the_limit_is_refused_by_itself),
        TEST(a_call_may_be_cancelled),
        TEST(a_refusing_server_says_when_to_come_again),
        TEST(paths_are_claimed_and_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
