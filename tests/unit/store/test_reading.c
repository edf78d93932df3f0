/* SPDX-License-Identifier: Apache-2.0
 *
 * A read beside a truncate or a drop: what was there when it began, or word that it is gone.
 */
#include "fixture.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#define CUT_QUERIES 64
#define CUT_TOKENS 4000u

struct cut_attend {
    struct fixture *f;
    uint64_t session;
    atomic_bool began, ended;
    quire_status status;
    struct qr_error e;
};

/* Long enough that a truncate falls into it. */
static void *attend_long(void *arg)
{
    static uint64_t positions[CUT_QUERIES];
    static float query[CUT_QUERIES * 8 * 32], output[CUT_QUERIES * 8 * 32],
        lse[CUT_QUERIES * 8];
    struct cut_attend *self = arg;
    const struct qr_attend a = {.session = self->session,
                                .layers = 1,
                                .queries = CUT_QUERIES,
                                .positions = positions,
                                .query = query,
                                .last_token = CUT_TOKENS};

    atomic_store(&self->began, true);
    self->status =
        qr_store_attend(self->f->store, self->f->ns, &a, output, lse, NULL, NULL, &self->e);
    atomic_store(&self->ended, true);
    return NULL;
}

/* Whichever comes first: all of what was there, or ERANGE. Never a hole, which would be for the
 * caller to fill, nor the rows that were appended after the cut. */
static void a_truncate_meanwhile_is_no_hole(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    uint32_t cut = 0;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    for (uint32_t i = 0; i < 1000 && cut < 3; i++) {
        struct cut_attend attend = {.f = &f, .session = s.session};
        pthread_t thread;
        assert_ok(qr_session_info(f.store, f.ns, "a", &info, NULL));
        assert_ok(
            fixture_append(&f, &s, info.length, (uint32_t)(CUT_TOKENS - info.length), 1, NULL));
        assert_ok(pthread_create(&thread, NULL, attend_long, &attend));
        while (!atomic_load(&attend.began))
            sched_yield();
        usleep(i % 20 * 100);
        assert_ok(qr_session_truncate(f.store, f.ns, s.session, s.epoch, 3200, &info, NULL));
        assert_ok(fixture_append(&f, &s, 3200, 400, 2, NULL));
        assert_ok(pthread_join(thread, NULL));
        if (attend.status == QUIRE_OK)
            continue;
        assert_status(QUIRE_ERANGE, attend.status);
        assert_true(attend.e.length == 3200 || attend.e.length == 3600);
        cut += strstr(attend.e.text, "was cut to 3200 tokens while") != NULL;
    }
    assert_true(cut > 0);
    fixture_end(&f);
}

static void a_drop_meanwhile_is_no_hole(void **state)
{
    struct fixture f;
    uint32_t gone = 0;
    (void)state;

    fixture_start(&f, 16u << 20);
    for (uint32_t i = 0; i < 1000 && gone < 3; i++) {
        const struct qr_session_info s = fixture_open(&f, "a");
        struct cut_attend attend = {.f = &f, .session = s.session};
        pthread_t thread;
        assert_ok(fixture_append(&f, &s, 0, CUT_TOKENS, 1, NULL));
        assert_ok(pthread_create(&thread, NULL, attend_long, &attend));
        while (!atomic_load(&attend.began))
            sched_yield();
        usleep(i % 20 * 100);
        gone += !atomic_load(&attend.ended);
        assert_ok(qr_session_drop(f.store, f.ns, "a", true, NULL));
        assert_ok(pthread_join(thread, NULL));
        assert_true(attend.status == QUIRE_OK || attend.status == QUIRE_ENOTFOUND);
    }
    assert_true(gone > 0);
    fixture_end(&f);
}

/* The parts that are left of a fetch are those of before the cut, or holes. */
static void a_fetch_does_not_see_what_came_after_a_cut(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    struct qr_fetch_cursor *cursor;
    struct qr_part part;
    uint32_t rows = 0, holes = 0;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 200, 1, NULL));
    const struct qr_fetch fetch = {.session = s.session, .tokens = 200, .layers = 3};
    assert_ok(qr_fetch_open(f.store, f.ns, &fetch, &cursor, NULL));
    assert_true(qr_fetch_next(cursor, &part)); /* pinned before the cut: stays what it was */
    assert_ok(qr_session_truncate(f.store, f.ns, s.session, s.epoch, 96, &info, NULL));
    assert_ok(fixture_append(&f, &s, 96, 104, 2, NULL));
    assert_ok(qr_session_truncate(f.store, f.ns, s.session, s.epoch, 160, &info, NULL));
    fixture_check_page(&f, &part, 1);
    qr_part_release(f.store, part.pin);
    while (qr_fetch_next(cursor, &part)) {
        assert_int_equal(part.status, part.position < 96 ? QR_PART_OK : QR_PART_MISSING);
        if (part.page)
            fixture_check_page(&f, &part, 1);
        assert_true(part.status == QR_PART_OK || !part.pin);
        rows += part.status == QR_PART_OK;
        holes += part.status != QR_PART_OK;
        qr_part_release(f.store, part.pin);
    }
    assert_int_equal(rows, 2 + 3);
    assert_int_equal(holes, 2 * 4);
    qr_fetch_close(&cursor);
    fixture_fetch_all(&f, &s, 96, 64, 2); /* one that begins now reads what is there now */
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fetch_does_not_see_what_came_after_a_cut),
        cmocka_unit_test(a_truncate_meanwhile_is_no_hole),
        cmocka_unit_test(a_drop_meanwhile_is_no_hole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
