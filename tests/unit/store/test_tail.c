/* SPDX-License-Identifier: Apache-2.0
 *
 * The tail of a session that nobody writes may be evicted: what went is a hole, exactly, until
 * it is appended again. The tail of a session with a lease is not taken, nor are for a while
 * the pages that its writer repeated.
 */
#include "fixture.h"

#define PAGE 32u /* tokens, as the window: the tail is the last 32 to 63 of them */
#define LENGTH 80u
#define SEALED 32u

/* Everything that can be evicted is, for slots of both layers' chunks and one of another size.
 */
static void squeeze(struct fixture *f)
{
    static struct qr_slot slots[4096];
    static const size_t sizes[] = {PAGE * 4 * 64 * 2, PAGE * 2 * 96 * 2, 9000};
    size_t count = 0;

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        while (count < ARRAY_LEN(slots) &&
               qr_index_reserve(f->store->index, sizes[i], &slots[count], NULL) == QUIRE_OK)
            count++;
    assert_true(count > 0 && count < ARRAY_LEN(slots));
    while (count > 0)
        qr_index_release(f->store->index, &slots[--count]);
}

static void start(struct fixture *f)
{
    fixture_start(f, 4u << 20);
}

/* A session of LENGTH tokens whose lease was given back. */
static struct qr_session_info idle(struct fixture *f, const char *name, uint32_t salt)
{
    const struct qr_session_info s = fixture_open(f, name);

    assert_ok(fixture_append(f, &s, 0, LENGTH, salt, NULL));
    qr_session_close(f->store, f->ns, s.session, s.epoch);
    return s;
}

/* Missing tokens of [position, +tokens) in layer 0; the first range in *first. */
static uint64_t lost(struct fixture *f, const struct qr_session_info *s, uint64_t position,
                     uint64_t tokens, struct qr_token_range *first)
{
    const struct qr_token_range what = {.position = position, .tokens = tokens};
    struct qr_token_range ranges[8];
    uint64_t length, sum = 0;
    size_t count;
    bool more;

    assert_ok(qr_session_lookup(f->store, f->ns, s->session, &what, 1, ranges,
                                ARRAY_LEN(ranges), &count, &more, &length, NULL));
    assert_false(more);
    for (size_t i = 0; i < count; i++)
        sum += ranges[i].tokens;
    if (count > 0 && first)
        *first = ranges[0];
    return sum;
}

static quire_status attend(struct fixture *f, const struct qr_session_info *s, uint64_t first,
                           uint64_t last, struct qr_error *e)
{
    static float query[8 * 32], output[8 * 32], lse[8];
    const uint64_t position = LENGTH;
    const struct qr_attend request = {.session = s->session,
                                      .layers = 1,
                                      .queries = 1,
                                      .positions = &position,
                                      .query = query,
                                      .first_token = first,
                                      .last_token = last,
                                      .causal = true};
    return qr_store_attend(f->store, f->ns, &request, output, lse, NULL, NULL, e);
}

static void an_idle_tail_goes_and_is_an_exact_hole(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    struct qr_token_range range;
    struct qr_error e;
    (void)state;

    start(&f);
    const struct qr_session_info s = idle(&f, "a", 1);
    assert_int_equal(lost(&f, &s, 0, LENGTH, NULL), 0);
    squeeze(&f);
    /* All of it was in the way of slots of three sizes. */
    assert_int_equal(lost(&f, &s, 0, LENGTH, &range), LENGTH);
    assert_int_equal(range.position, 0);
    assert_int_equal(range.tokens, LENGTH);
    assert_int_equal(lost(&f, &s, 70, 5, &range), 5);
    assert_int_equal(range.position, 70);

    assert_ok(qr_session_info(f.store, f.ns, "a", &info, NULL));
    assert_int_equal(info.length, LENGTH);
    assert_int_equal(info.tail_bytes, 0);
    assert_true(fixture_metric(&f, "tails_evicted") > 0);
    const struct fixture_seen seen = fixture_fetch_all(&f, &s, 40, 40, 1);
    assert_int_equal(seen.missing_tokens, 2 * 40);
    assert_status(QUIRE_EMISSING, attend(&f, &s, 64, LENGTH, &e));
    assert_int_equal(e.position, 64);
    assert_int_equal(e.tokens, LENGTH - 64);
    fixture_end(&f);
}

static void a_leased_tail_stays(void **state)
{
    struct fixture f;
    (void)state;

    start(&f);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, LENGTH, 1, NULL));
    squeeze(&f);
    assert_int_equal(lost(&f, &s, 0, LENGTH, NULL), SEALED); /* its page went */
    assert_int_equal(lost(&f, &s, SEALED, LENGTH - SEALED, NULL), 0);
    fixture_fetch_all(&f, &s, SEALED, LENGTH - SEALED, 1);
    assert_ok(fixture_append(&f, &s, LENGTH, 8, 1, NULL));
    fixture_end(&f);
}

/* The holder of a lease that ran out may go on; until then its tail is anybody's room. */
static void a_lease_that_ran_out_protects_nothing(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    (void)state;

    start(&f);
    const struct qr_session_info a = fixture_open(&f, "a"), b = fixture_open(&f, "b");
    assert_ok(fixture_append(&f, &a, 0, LENGTH, 1, NULL));
    assert_ok(fixture_append(&f, &b, 0, LENGTH, 2, NULL));
    fixture_now_ms += 10001;
    assert_int_equal(qr_store_tick(f.store), 0);
    assert_ok(qr_session_touch(f.store, f.ns, b.session, b.epoch, 0, 0, &info, NULL));
    squeeze(&f);
    assert_int_equal(lost(&f, &a, SEALED, LENGTH - SEALED, NULL), LENGTH - SEALED);
    assert_int_equal(lost(&f, &b, SEALED, LENGTH - SEALED, NULL), 0);
    assert_ok(fixture_append(&f, &a, SEALED, LENGTH - SEALED, 1, NULL));
    squeeze(&f);
    assert_int_equal(lost(&f, &a, SEALED, LENGTH - SEALED, NULL), 0); /* it writes again */
    fixture_end(&f);
}

static void a_repeat_of_all_of_it_restores_it(void **state)
{
    struct fixture f;
    struct qr_error e;
    (void)state;

    start(&f);
    (void)idle(&f, "a", 1);
    squeeze(&f);
    const struct qr_session_info s = fixture_open(&f, "a");
    /* New rows would stand behind a hole, and a part leaves one. */
    assert_status(QUIRE_EMISSING, fixture_append(&f, &s, LENGTH, 8, 1, &e));
    assert_int_equal(e.position, SEALED);
    assert_int_equal(e.tokens, PAGE);
    assert_status(QUIRE_EMISSING, fixture_append(&f, &s, 70, 30, 1, &e));
    assert_status(QUIRE_EMISSING, fixture_append(&f, &s, 64, 8, 1, &e));
    assert_int_equal(e.position, 64);
    assert_int_equal(e.tokens, LENGTH - 64);
    assert_non_null(strstr(e.text, "lost tokens [64, 80): append all of them in one call"));
    assert_int_equal(lost(&f, &s, 0, LENGTH, NULL), LENGTH);

    assert_ok(fixture_append(&f, &s, SEALED, PAGE, 1, &e)); /* block by block */
    assert_int_equal(lost(&f, &s, 0, LENGTH, NULL), LENGTH - PAGE);
    assert_ok(fixture_append(&f, &s, 64, LENGTH - 64, 1, &e));
    assert_ok(fixture_append(&f, &s, 0, PAGE, 1, &e)); /* the page, by its checksum */
    assert_int_equal(lost(&f, &s, 0, LENGTH, NULL), 0);
    assert_true(fixture_metric(&f, "tails_restored") == 4);
    assert_ok(fixture_append(&f, &s, LENGTH, 100, 1, &e));
    assert_int_equal(fixture_fetch_all(&f, &s, 0, LENGTH + 100, 1).missing, 0);
    fixture_end(&f);
}

/* One call may restore the tail and go on behind it, through the seal of what it restored. */
static void restoring_and_growing_in_one_call(void **state)
{
    struct fixture f;
    (void)state;

    start(&f);
    (void)idle(&f, "a", 1);
    squeeze(&f);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, LENGTH + 200, 1, NULL));
    assert_int_equal(fixture_fetch_all(&f, &s, 0, LENGTH + 200, 1).missing, 0);
    fixture_end(&f);
}

/* What is left to compare with: token ids, and rows that are there. Lost rows are not. */
static void what_is_left_is_compared(void **state)
{
    struct fixture f;
    uint32_t ids[LENGTH];
    struct qr_append_result result;
    (void)state;

    start(&f);
    for (uint32_t i = 0; i < LENGTH; i++)
        ids[i] = i;
    struct qr_session_info s = fixture_open(&f, "a");
    struct qr_append all = fixture_all(&s, 0, LENGTH);
    all.token_ids = ids;
    assert_ok(fixture_append_as(&f, &all, 1, &result, NULL));
    qr_session_close(f.store, f.ns, s.session, s.epoch);
    squeeze(&f);
    s = fixture_open(&f, "a");
    struct qr_append tail = fixture_all(&s, SEALED, LENGTH - SEALED);
    tail.token_ids = ids; /* not the ones of these positions */
    assert_status(QUIRE_ECONFLICT, fixture_append_as(&f, &tail, 1, &result, NULL));
    tail.token_ids = ids + SEALED;
    assert_ok(
        fixture_append_as(&f, &tail, 2, &result, NULL)); /* an engine that computes anew */
    assert_status(QUIRE_ECONFLICT, fixture_append_as(&f, &tail, 1, &result, NULL));
    fixture_fetch_all(&f, &s, SEALED, LENGTH - SEALED, 2);
    fixture_end(&f);
}

static void forks_lose_and_restore_their_own(void **state)
{
    struct fixture f;
    struct qr_session_info b;
    (void)state;

    start(&f);
    (void)idle(&f, "a", 1);
    assert_ok(qr_session_fork(f.store, f.ns, "a", "b", LENGTH - 5, 0, &b, NULL));
    (void)fixture_open(&f, "a"); /* its lease protects what both have */
    squeeze(&f);
    assert_int_equal(fixture_fetch_all(&f, &b, SEALED, LENGTH - 5 - SEALED, 1).missing, 0);
    assert_ok(qr_session_drop(f.store, f.ns, "a", true, NULL)); /* now nobody holds it */
    assert_int_equal(fixture_fetch_all(&f, &b, SEALED, LENGTH - 5 - SEALED, 1).missing, 0);
    squeeze(&f);
    assert_int_equal(lost(&f, &b, SEALED, LENGTH - 5 - SEALED, NULL), LENGTH - 5 - SEALED);

    struct qr_session_info c;
    assert_ok(qr_session_fork(f.store, f.ns, "b", "c", 0, 0, &c, NULL));
    b = fixture_open(&f, "b");
    assert_ok(fixture_append(&f, &b, SEALED, LENGTH - SEALED, 1, NULL));
    assert_int_equal(lost(&f, &b, SEALED, LENGTH - SEALED, NULL), 0);
    assert_int_equal(lost(&f, &c, SEALED, LENGTH - 5 - SEALED, NULL), LENGTH - 5 - SEALED);
    fixture_end(&f);
}

static void rows_that_are_read_stay(void **state)
{
    struct fixture f;
    struct qr_fetch_cursor *cursor;
    struct qr_part part;
    (void)state;

    start(&f);
    const struct qr_session_info s = idle(&f, "a", 1);
    const struct qr_fetch fetch = {
        .session = s.session, .position = 64, .tokens = LENGTH - 64, .layers = 1};
    assert_ok(qr_fetch_open(f.store, f.ns, &fetch, &cursor, NULL));
    assert_true(qr_fetch_next(cursor, &part));
    squeeze(&f);
    fixture_check_rows(&part, 1);
    assert_int_equal(lost(&f, &s, 64, LENGTH - 64, NULL), 0);
    qr_part_release(f.store, part.pin);
    squeeze(&f);
    assert_int_equal(lost(&f, &s, 64, LENGTH - 64, NULL), LENGTH - 64);
    qr_fetch_close(&cursor);
    fixture_end(&f);
}

/* Prefixes are worth more: within a session, the end of the tail is the first to go. */
static void the_end_of_the_tail_goes_first(void **state)
{
    struct fixture f;
    struct qr_token_range range;
    static struct qr_slot slots[4096];
    size_t count = 0;
    uint64_t gone;
    (void)state;

    start(&f);
    const struct qr_session_info s = idle(&f, "a", 1);
    do {
        assert_ok(
            qr_index_reserve(f.store->index, (size_t)PAGE * 4 * 64 * 2, &slots[count], NULL));
        assert_true(++count < ARRAY_LEN(slots));
        gone = lost(&f, &s, 0, LENGTH, &range);
        assert_true(gone == 0 || range.position + gone == LENGTH);
    } while (gone < LENGTH - SEALED);
    assert_int_equal(gone, LENGTH - SEALED); /* the page went after both blocks of the tail */
    while (count > 0)
        qr_index_release(f.store->index, &slots[--count]);
    fixture_end(&f);
}

/* Sessions without end, each too short to have a page, in a budget for a few of them. */
static void new_short_sessions_go_on(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    (void)state;

    const struct qr_store_config base = fixture_config(4u << 20);
    struct qr_store_config config = base;
    config.sessions_max = 4096;
    start(&f);
    qr_store_destroy(&f.store);
    assert_ok(qr_store_create(&config, &f.store, NULL));
    assert_ok(qr_store_namespace(f.store, "tests", &f.ns, NULL));
    assert_ok(qr_store_model_put(f.store, &f.model, NULL));
    for (uint32_t i = 0; i < 2000; i++) {
        char name[16];
        snprintf(name, sizeof(name), "s%u", i);
        const struct qr_session_info s = fixture_open(&f, name);
        assert_ok(fixture_append(&f, &s, 0, 20, i, NULL));
        assert_int_equal(fixture_fetch_all(&f, &s, 0, 20, i).missing, 0);
        qr_session_close(f.store, f.ns, s.session, s.epoch);
    }
    assert_ok(qr_session_info(f.store, f.ns, "s1999", &info, NULL));
    assert_int_equal(fixture_fetch_all(&f, &info, 0, 20, 1999).missing, 0);
    assert_ok(qr_session_info(f.store, f.ns, "s0", &info, NULL));
    assert_int_equal(info.length, 20);
    assert_int_equal(fixture_fetch_all(&f, &info, 0, 20, 0).missing_tokens, 2 * 20);
    assert_true(fixture_metric(&f, "reserve_full") == 0);
    fixture_end(&f);
}

/* Each append of a long repeat makes room by evicting: not what the ones before it restored. */
static void a_repeat_of_several_appends_is_there(void **state)
{
    const uint32_t sealed = 60 * PAGE, length = sealed + 40;
    struct fixture f;
    struct qr_session_info info;
    (void)state;

    start(&f);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, length, 1, NULL));
    squeeze(&f);
    assert_int_equal(lost(&f, &s, 0, length, NULL), sealed);
    for (uint32_t n = 0; n < sealed; n += PAGE) {
        assert_ok(fixture_append(&f, &s, n, PAGE, 1, NULL));
        squeeze(&f);
    }
    assert_int_equal(fixture_fetch_all(&f, &s, 0, length, 1).missing, 0);
    assert_true(fixture_metric(&f, "kept_bytes") > 0);

    fixture_now_ms += 10001; /* renewing the lease is no reason to keep pages */
    assert_ok(qr_session_touch(f.store, f.ns, s.session, s.epoch, 0, 0, &info, NULL));
    (void)qr_store_tick(f.store);
    assert_true(fixture_metric(&f, "kept_bytes") == 0);
    squeeze(&f);
    assert_int_equal(lost(&f, &s, 0, length, NULL), sealed);
    fixture_end(&f);
}

/* However much is repeated, most of the budget serves others; closing gives back the rest. */
static void what_repeats_keep_is_bounded(void **state)
{
    const uint32_t tokens = 6400;
    struct fixture f;
    (void)state;

    start(&f);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, tokens, 1, NULL));
    for (uint32_t n = 0; n + 64 < tokens; n += PAGE) {
        assert_ok(fixture_append(&f, &s, n, PAGE, 1, NULL));
        assert_true(fixture_metric(&f, "kept_bytes") <= 1u << 20);
    }
    const double kept = fixture_metric(&f, "kept_bytes");
    assert_true(kept > 3u << 18);
    for (int i = 0; i < 3; i++) /* again and again is kept once */
        assert_ok(fixture_append(&f, &s, 0, PAGE, 1, NULL));
    assert_true(fixture_metric(&f, "kept_bytes") == kept);
    qr_session_close(f.store, f.ns, s.session, s.epoch);
    assert_true(fixture_metric(&f, "kept_bytes") == 0);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_tail_goes_and_is_an_exact_hole),
        cmocka_unit_test(a_leased_tail_stays),
        cmocka_unit_test(a_lease_that_ran_out_protects_nothing),
        cmocka_unit_test(a_repeat_of_all_of_it_restores_it),
        cmocka_unit_test(restoring_and_growing_in_one_call),
        cmocka_unit_test(what_is_left_is_compared),
        cmocka_unit_test(forks_lose_and_restore_their_own),
        cmocka_unit_test(rows_that_are_read_stay),
        cmocka_unit_test(the_end_of_the_tail_goes_first),
        cmocka_unit_test(new_short_sessions_go_on),
        cmocka_unit_test(a_repeat_of_several_appends_is_there),
        cmocka_unit_test(what_repeats_keep_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
