/* SPDX-License-Identifier: Apache-2.0
 *
 * The same-host call machine and clients that are not good: who may not come in, and that one
 * that breaks the rules, reads nothing or goes away in the middle loses its connection while
 * everybody else is served.
 */
#include "local_peer.h"

/* ---- strangers --------------------------------------------------------------------------- */

static void who_does_not_know_the_cookie_gets_nothing(void **state)
{
    struct qr_local_hello hellos[4];
    struct qr_local_welcome w;
    int memory_fd;

    (void)state;
    for (int i = 0; i < 4; i++)
        hellos[i] = good_hello();
    hellos[0].cookie[15] ^= 1;
    hellos[1].magic[0] = 'X';
    hellos[2].version++;
    for (int i = 0; i < 4; i++) {
        const int fd = dial();
        const size_t n = i == 3 ? 10 : sizeof(hellos[i]); /* the last one says half of it */
        assert_int_equal(send(fd, &hellos[i], n, 0), n);
        assert_false(welcome(fd, &w, &memory_fd));
        close(fd);
    }
    assert_int_equal(clients(), 0);
    struct peer p; /* and the next good one is let in */
    peer_open(&p);
    peer_close(&p);
}

static void no_more_than_there_is_memory_for(void **state)
{
    struct peer peers[3];
    struct qr_local_welcome w;
    int memory_fd;

    (void)state;
    for (int i = 0; i < 3; i++)
        peer_open(&peers[i]);
    const int fd = dial();
    const struct qr_local_hello hello = good_hello();
    assert_int_equal(send(fd, &hello, sizeof(hello), 0), sizeof(hello));
    assert_true(welcome(fd, &w, &memory_fd));
    assert_int_equal(w.status, QUIRE_EFULL);
    assert_int_equal(memory_fd, -1);
    close(fd);
    peer_close(&peers[0]);
    wait_for_clients(2);
    peer_open(&peers[0]);
    for (int i = 0; i < 3; i++)
        peer_close(&peers[i]);
    wait_for_clients(0);
}

enum crime {
    BAD_HEAD,
    BAD_TAIL,
    BAD_LENGTH,
    BAD_PARTS,
    BAD_CALL,
    BAD_METHOD,
    BAD_TYPE,
    CALL_TWICE,
    CRIMES
};

static void commit(struct peer *p, enum crime crime)
{
    const struct qr_ring_head wrong = {.bytes = 100, .type = QR_FRAME_REQUEST};
    const struct qr_ring_head many = {
        .bytes = QR_RING_LINE, .type = QR_FRAME_REQUEST, .parts = 7, .value = QR_FRAME_APPEND};

    switch (crime) {
    case BAD_HEAD:
        atomic_store(&p->up.shared->head, UP_BYTES + 64);
        break;
    case BAD_TAIL:
        atomic_store(&p->down.shared->tail, 1u << 30);
        break;
    case BAD_LENGTH:
    case BAD_PARTS:
        memcpy(qr_ring_reserve(&p->up, QR_RING_LINE, NULL),
               crime == BAD_LENGTH ? &wrong : &many, sizeof(wrong));
        qr_ring_publish(&p->up, QR_RING_LINE);
        break;
    case BAD_CALL:
        peer_send(p, QR_FRAME_REQUEST, QR_LOCAL_CALLS_MAX, QR_FRAME_APPEND, "x");
        break;
    case BAD_METHOD:
        peer_send(p, QR_FRAME_REQUEST, 0, QR_FRAME_METHODS, "x");
        break;
    case BAD_TYPE:
        peer_send(p, QR_FRAME_END, 0, 0, "x");
        break;
    default:
        peer_send(p, QR_FRAME_REQUEST, 0, QR_FRAME_APPEND_STREAM, NULL);
        peer_send(p, QR_FRAME_REQUEST, 0, QR_FRAME_FETCH, "\x01");
    }
    ring_bell(p);
}

static void who_breaks_the_rules_is_let_go(void **state)
{
    struct peer good;
    struct qr_local_stat stat;

    (void)state;
    peer_open(&good);
    for (int crime = 0; crime < CRIMES; crime++) {
        struct peer bad;
        peer_open(&bad);
        commit(&bad, (enum crime)crime);
        expect_hang_up(&bad);
        peer_close(&bad);
        peer_send(&good, QR_FRAME_REQUEST, 0, QR_FRAME_APPEND, "still here");
        expect(&good, QR_FRAME_MESSAGE, 0, "still here", QR_FRAME_LAST);
    }
    qr_local_stat(local, &stat);
    assert_int_equal(stat.clients_broken, CRIMES);
    peer_close(&good);
    wait_for_clients(0);
}

/* Ten streams of a client that reads nothing: one pin each at most, and then it is let go. */
static void a_slow_reader_holds_little_and_not_for_long(void **state)
{
    struct peer slow, good;
    struct qr_local_stat stat;

    (void)state;
    peer_open(&slow);
    peer_open(&good);
    for (uint32_t i = 0; i < 10; i++)
        peer_send(&slow, QR_FRAME_REQUEST, i, QR_FRAME_FETCH, "\x64");
    usleep(100000);
    assert_true(atomic_load(&pins_out) <= 10);
    peer_send(&good, QR_FRAME_REQUEST, 0, QR_FRAME_APPEND, "quick");
    expect(&good, QR_FRAME_MESSAGE, 0, "quick", QR_FRAME_LAST);
    expect_hang_up(&slow);
    peer_close(&slow);
    wait_for_clients(1);
    qr_local_stat(local, &stat);
    assert_int_equal(stat.stalled, 1);
    assert_int_equal(stat.live, 0);
    assert_int_equal(atomic_load(&pins_out), 0);
    peer_close(&good);
}

static void who_goes_away_leaves_nothing_behind(void **state)
{
    struct qr_local_stat stat;

    (void)state;
    for (int i = 0; i < 20; i++) {
        struct peer p;
        peer_open(&p);
        peer_send(&p, QR_FRAME_REQUEST, 0, QR_FRAME_FETCH, "\x64");
        peer_send(&p, QR_FRAME_REQUEST, 1, QR_FRAME_APPEND_STREAM, NULL);
        usleep(500 * (unsigned)i);
        peer_close(&p);
        wait_for_clients(0);
    }
    qr_local_stat(local, &stat);
    assert_int_equal(stat.live, 0);
    assert_int_equal(stat.memory_bytes, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(who_does_not_know_the_cookie_gets_nothing),
        TEST(no_more_than_there_is_memory_for),
        TEST(who_breaks_the_rules_is_let_go),
        TEST(a_slow_reader_holds_little_and_not_for_long),
        TEST(who_goes_away_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
