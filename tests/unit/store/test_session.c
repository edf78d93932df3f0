/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions have one writer at a time, a time to live, and names of their own in each namespace;
 * forks share, truncation cuts.
 */
#include "fixture.h"

static quire_status open_named(struct fixture *f, const char *name, bool create, bool write,
                               bool force, struct qr_session_info *info, struct qr_error *e)
{
    const struct qr_session_open open = {.name = name,
                                         .fingerprint = create ? f->model.fingerprint : NULL,
                                         .policy = create ? &f->policy : NULL,
                                         .create = create,
                                         .write = write,
                                         .force = force};
    return qr_session_open(f->store, f->ns, &open, info, e);
}

static void a_second_writer_waits_or_forces(void **state)
{
    struct fixture f;
    struct qr_session_info other;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 8u << 20);
    const struct qr_session_info first = fixture_open(&f, "a");
    assert_true(first.created && first.leased);
    fixture_now_ms += 4000;
    assert_status(QUIRE_ELEASE, open_named(&f, "a", false, true, false, &other, &e));
    assert_int_equal(e.retry_after_ms, 6000);
    assert_int_equal(e.epoch, first.epoch);
    assert_ok(open_named(&f, "a", false, false, false, &other, &e)); /* readers may */

    fixture_now_ms += 5999;
    assert_status(QUIRE_ELEASE, open_named(&f, "a", false, true, false, &other, &e));
    fixture_now_ms += 1;
    assert_ok(fixture_append(&f, &first, 0, 1, 1, NULL)); /* run out, but not taken: goes on */
    assert_status(QUIRE_ELEASE, open_named(&f, "a", false, true, false, &other, &e));
    fixture_now_ms += 10000;
    assert_ok(open_named(&f, "a", false, true, false, &other, &e));
    assert_int_equal(other.epoch, first.epoch + 1);
    assert_status(QUIRE_EFENCED, fixture_append(&f, &first, 1, 1, 1, &e));
    assert_int_equal(e.epoch, other.epoch);
    assert_ok(fixture_append(&f, &other, 1, 1, 1, NULL));

    struct qr_session_info third;
    assert_ok(open_named(&f, "a", false, true, true, &third, &e));
    assert_status(QUIRE_EFENCED, fixture_append(&f, &other, 2, 1, 1, &e));
    qr_session_close(f.store, f.ns, third.session,
                     other.epoch); /* not its lease to give back */
    assert_ok(fixture_append(&f, &third, 2, 1, 1, NULL));
    qr_session_close(f.store, f.ns, third.session, third.epoch);
    assert_status(QUIRE_EFENCED, fixture_append(&f, &third, 3, 1, 1, &e));
    assert_ok(open_named(&f, "a", false, true, false, &other, &e));
    fixture_end(&f);
}

static void workers_share_an_epoch(void **state)
{
    struct fixture f;
    struct qr_session_info joined;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 8u << 20);
    const struct qr_session_info first = fixture_open(&f, "a");
    struct qr_session_open open = {.name = "a", .write = true, .join_epoch = first.epoch};
    fixture_now_ms += 8000;
    assert_ok(qr_session_open(f.store, f.ns, &open, &joined, &e));
    assert_int_equal(joined.epoch, first.epoch);
    assert_int_equal(joined.session, first.session);
    fixture_now_ms += 8000; /* joining renewed it */
    assert_status(QUIRE_ELEASE, open_named(&f, "a", false, true, false, &joined, &e));
    assert_ok(fixture_append(&f, &first, 0, 1, 1, NULL));

    open.join_epoch = first.epoch + 1;
    assert_status(QUIRE_EFENCED, qr_session_open(f.store, f.ns, &open, &joined, &e));
    assert_int_equal(e.epoch, first.epoch);
    qr_session_close(f.store, f.ns, first.session, first.epoch);
    open.join_epoch = first.epoch; /* nobody holds it now */
    assert_status(QUIRE_EFENCED, qr_session_open(f.store, f.ns, &open, &joined, &e));
    open.force = true;
    assert_status(QUIRE_EINVAL, qr_session_open(f.store, f.ns, &open, &joined, &e));
    open = (struct qr_session_open){.name = "gone",
                                    .fingerprint = f.model.fingerprint,
                                    .create = true,
                                    .write = true,
                                    .join_epoch = 1};
    assert_status(QUIRE_ENOTFOUND, qr_session_open(f.store, f.ns, &open, &joined, &e));
    fixture_end(&f);
}

/* A worker of a session that was dropped must not join, or write to, what has its name now. */
static void an_epoch_is_never_used_again(void **state)
{
    struct fixture f;
    struct qr_session_info joined;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 8u << 20);
    const struct qr_session_info old = fixture_open(&f, "a");
    assert_ok(qr_session_drop(f.store, f.ns, "a", true, NULL));
    struct qr_session_info other = fixture_open(&f, "b"), again = fixture_open(&f, "a");
    assert_true(old.epoch < other.epoch && other.epoch < again.epoch);
    const struct qr_session_open open = {.name = "a", .write = true, .join_epoch = old.epoch};
    assert_status(QUIRE_EFENCED, qr_session_open(f.store, f.ns, &open, &joined, &e));
    assert_int_equal(e.epoch, again.epoch);
    struct qr_session_info stale = again;
    stale.epoch = old.epoch;
    assert_status(QUIRE_EFENCED, fixture_append(&f, &stale, 0, 1, 1, &e));
    stale = old; /* its handle is not taken for the new one's, either */
    assert_status(QUIRE_ENOTFOUND, fixture_append(&f, &stale, 0, 1, 1, &e));
    assert_ok(fixture_append(&f, &again, 0, 1, 1, &e));
    fixture_end(&f);

    fixture_start(&f, 8u << 20); /* the next start of a server */
    again = fixture_open(&f, "a");
    assert_true(again.epoch > other.epoch);
    fixture_end(&f);
}

static void a_handle_does_not_follow_its_name(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    (void)state;

    fixture_start(&f, 8u << 20);
    const struct qr_session_info first = fixture_open(&f, "a");
    assert_ok(qr_session_info_of(f.store, f.ns, first.session, &info, NULL));
    assert_string_equal(info.name, "a");
    assert_ok(qr_session_drop(f.store, f.ns, "a", true, NULL));
    const struct qr_session_info second = fixture_open(&f, "a");
    assert_status(QUIRE_ENOTFOUND,
                  qr_session_info_of(f.store, f.ns, first.session, &info, NULL));
    assert_ok(qr_session_info_of(f.store, f.ns, second.session, &info, NULL));
    fixture_end(&f);
}

/* A layer is ahead of the others and has sealed the page that holds the committed end. */
static void a_fork_of_uneven_lanes_names_what_works(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    struct qr_error e;
    struct qr_append_result result;
    (void)state;

    fixture_start(&f, 8u << 20); /* pages and window of 32 */
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 100, 1, NULL));
    struct qr_append ahead = fixture_all(&s, 100, 90);
    ahead.layers = 1;
    assert_ok(fixture_append_as(&f, &ahead, 1, &result, NULL)); /* 190: sealed up to 128 */

    assert_status(QUIRE_EINVAL, qr_session_fork(f.store, f.ns, "a", "b", 100, 0, &info, &e));
    assert_non_null(strstr(e.text, "96"));
    assert_null(strstr(e.text, "128")); /* past the end */
    assert_ok(qr_session_fork(f.store, f.ns, "a", "b", 96, 0, &info, &e));
    assert_ok(qr_session_fork(f.store, f.ns, "a", "c", 0, 0, &info, &e));
    assert_int_equal(info.length, 96);
    assert_status(QUIRE_EINVAL, qr_session_fork(f.store, f.ns, "a", "d", 40, 0, &info, &e));
    assert_non_null(strstr(e.text, "use 32 or 64"));
    (void)fixture_fetch_all(&f, &info, 0, 96, 1);
    fixture_end(&f);
}

static void what_was_never_there_is_not_missing(void **state)
{
    struct fixture f;
    struct qr_token_range missing[4], what = {.tokens = 51};
    struct qr_error e;
    uint64_t length;
    size_t count;
    bool more;
    (void)state;

    fixture_start(&f, 8u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 50, 1, NULL));
    assert_status(QUIRE_ERANGE, qr_session_lookup(f.store, f.ns, s.session, &what, 3, missing,
                                                  4, &count, &more, &length, &e));
    assert_int_equal(e.length, 50);
    what.tokens = 50;
    assert_ok(qr_session_lookup(f.store, f.ns, s.session, &what, 3, missing, 4, &count, &more,
                                &length, &e));
    assert_int_equal(count, 0);
    fixture_end(&f);
}

static void opening_compares_what_is_there(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 8u << 20);
    assert_status(QUIRE_ENOTFOUND, open_named(&f, "a", false, false, false, &info, &e));
    assert_non_null(strstr(e.text, "\"a\""));
    (void)fixture_open(&f, "a");
    struct qr_policy policy = f.policy;
    policy.window = 64;
    uint8_t fingerprint[QR_HASH_BYTES] = {1};
    struct qr_session_open open = {.name = "a", .policy = &policy};
    assert_status(QUIRE_EEXIST, qr_session_open(f.store, f.ns, &open, &info, &e));
    open = (struct qr_session_open){.name = "a", .fingerprint = fingerprint};
    assert_status(QUIRE_EMISMATCH, qr_session_open(f.store, f.ns, &open, &info, &e));
    open = (struct qr_session_open){.name = "a", .head_shards = 2};
    assert_status(QUIRE_EEXIST, qr_session_open(f.store, f.ns, &open, &info, &e));
    open = (struct qr_session_open){.name = "a", .create = true, .must_create = true};
    assert_status(QUIRE_EEXIST, qr_session_open(f.store, f.ns, &open, &info, &e));

    open = (struct qr_session_open){
        .name = "b", .fingerprint = f.model.fingerprint, .head_shards = 3, .create = true};
    assert_status(QUIRE_EINVAL, qr_session_open(f.store, f.ns, &open, &info, &e));
    open.head_shards = 0;
    open.name = "a\nb";
    assert_status(QUIRE_EINVAL, qr_session_open(f.store, f.ns, &open, &info, &e));
    open.name = "";
    assert_status(QUIRE_EINVAL, qr_session_open(f.store, f.ns, &open, &info, &e));
    open.name = "c";
    open.fingerprint = fingerprint;
    assert_status(QUIRE_ENOTFOUND, qr_session_open(f.store, f.ns, &open, &info, &e));
    open.fingerprint = NULL;
    assert_status(QUIRE_EINVAL, qr_session_open(f.store, f.ns, &open, &info, &e));
    fixture_end(&f);
}

static void namespaces_do_not_see_each_other(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    struct qr_fetch_cursor *cursor;
    uint32_t other;
    size_t count;
    bool more;
    (void)state;

    fixture_start(&f, 8u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 5, 1, NULL));
    assert_ok(qr_store_namespace(f.store, "others", &other, NULL));
    assert_int_not_equal(other, f.ns);
    assert_status(QUIRE_ENOTFOUND, qr_session_info(f.store, other, "a", &info, NULL));
    const struct qr_fetch fetch = {.session = s.session, .tokens = 1, .layers = 1};
    assert_status(QUIRE_ENOTFOUND, qr_fetch_open(f.store, other, &fetch, &cursor, NULL));
    assert_status(QUIRE_ENOTFOUND, qr_session_drop(f.store, other, "a", true, NULL));
    assert_ok(qr_session_list(f.store, other, "", "", &info, 1, &count, &more));
    assert_int_equal(count, 0);
    assert_ok(qr_store_namespace(f.store, "tests", &other, NULL));
    assert_int_equal(other, f.ns);
    fixture_end(&f);
}

static void lists_names_in_order_page_by_page(void **state)
{
    static const char *const names[] = {"b2", "a", "b1", "c", "b"};
    struct fixture f;
    struct qr_session_info infos[2];
    size_t count;
    bool more;
    (void)state;

    fixture_start(&f, 8u << 20);
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        (void)fixture_open(&f, names[i]);
    assert_ok(qr_session_list(f.store, f.ns, "b", NULL, infos, 2, &count, &more));
    assert_int_equal(count, 2);
    assert_true(more);
    assert_string_equal(infos[0].name, "b");
    assert_string_equal(infos[1].name, "b1");
    assert_ok(qr_session_list(f.store, f.ns, "b", "b1", infos, 2, &count, &more));
    assert_int_equal(count, 1);
    assert_false(more);
    assert_string_equal(infos[0].name, "b2");
    fixture_end(&f);
}

static void unused_sessions_expire_and_handles_are_not_reused(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 8u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 100, 1, NULL));
    fixture_now_ms += 99999;
    assert_int_equal(qr_store_tick(f.store), 0);
    assert_ok(qr_session_touch(f.store, f.ns, s.session, 0, 50000, 0, &info, NULL));
    assert_int_equal(info.ttl_ms, 50000);
    fixture_now_ms += 49999;
    assert_int_equal(qr_store_tick(f.store), 0);
    fixture_now_ms += 1;
    assert_int_equal(qr_store_tick(f.store), 1);
    assert_status(QUIRE_ENOTFOUND, fixture_append(&f, &s, 0, 1, 1, &e));
    assert_int_equal((long)fixture_metric(&f, "host_slots"), 0);
    assert_int_equal((long)fixture_metric(&f, "pages_known"), 0);
    const struct qr_session_info again = fixture_open(&f, "a");
    assert_true(again.created);
    assert_int_not_equal(again.session, s.session);
    fixture_end(&f);
}

/* A reader on another thread reads the clock after the tick did. */
static void a_session_used_during_the_tick_stays(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    (void)state;

    fixture_start(&f, 8u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    qr_session_close(f.store, f.ns, s.session, s.epoch);
    fixture_now_ms += 1;
    assert_ok(qr_session_touch(f.store, f.ns, s.session, 0, 0, 0, &info, NULL));
    fixture_now_ms -= 1;
    assert_int_equal(qr_store_tick(f.store), 0);
    assert_ok(qr_session_info(f.store, f.ns, "a", &info, NULL));
    fixture_end(&f);
}

static void dropping_needs_the_lease_to_be_over_or_force(void **state)
{
    struct fixture f;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 8u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 200, 1, NULL));
    assert_status(QUIRE_ELEASE, qr_session_drop(f.store, f.ns, "a", false, &e));
    assert_ok(qr_session_drop(f.store, f.ns, "a", true, &e));
    assert_status(QUIRE_ENOTFOUND, qr_session_drop(f.store, f.ns, "a", true, &e));
    assert_int_equal((long)fixture_metric(&f, "host_slots"), 0);
    fixture_end(&f);
}

static void a_fetch_outlives_the_drop_of_its_session(void **state)
{
    struct fixture f;
    struct qr_fetch_cursor *cursor;
    struct qr_part page, rest;
    (void)state;

    fixture_start(&f, 8u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 200, 1, NULL));
    const struct qr_fetch fetch = {.session = s.session, .tokens = 200, .layers = 1};
    assert_ok(qr_fetch_open(f.store, f.ns, &fetch, &cursor, NULL));
    assert_true(qr_fetch_next(cursor, &page));
    assert_ok(qr_session_drop(f.store, f.ns, "a", true, NULL));
    fixture_check_page(&f, &page, 1);
    while (qr_fetch_next(cursor, &rest)) {
        assert_int_equal(rest.status, QR_PART_MISSING);
        assert_null(rest.pin);
    }
    qr_fetch_close(&cursor);
    fixture_check_page(&f, &page, 1);
    assert_int_equal((long)fixture_metric(&f, "host_slots"), 1);
    qr_part_release(f.store, page.pin);
    assert_int_equal((long)fixture_metric(&f, "host_slots"), 0);
    fixture_end(&f);
}

static void forks_share_until_they_differ(void **state)
{
    struct fixture f;
    struct qr_session_info fork, child;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 150, 1, NULL));
    const double slots = fixture_metric(&f, "host_slots");
    assert_ok(qr_session_fork(f.store, f.ns, "a", "b", 0, 0, &fork, NULL));
    assert_true(fixture_metric(&f, "host_slots") == slots);
    assert_int_equal(fork.length, 150);
    assert_ok(open_named(&f, "b", false, true, false, &child, NULL));
    assert_ok(fixture_append(&f, &child, 150, 100, 1, NULL));
    assert_ok(fixture_append(&f, &s, 150, 3, 1, NULL));
    fixture_fetch_all(&f, &child, 0, 250, 1);
    fixture_fetch_all(&f, &s, 0, 153, 1);
    assert_ok(qr_session_drop(f.store, f.ns, "a", true, NULL));
    fixture_fetch_all(&f, &child, 0, 250, 1);

    assert_status(QUIRE_EEXIST, qr_session_fork(f.store, f.ns, "b", "b", 0, 0, &fork, &e));
    assert_status(QUIRE_ERANGE, qr_session_fork(f.store, f.ns, "b", "c", 251, 0, &fork, &e));
    assert_int_equal(e.length, 250);
    assert_status(QUIRE_EINVAL, qr_session_fork(f.store, f.ns, "b", "c", 33, 0, &fork, &e));
    assert_ok(qr_session_fork(f.store, f.ns, "b", "c", 64, 0, &fork, &e));
    assert_ok(open_named(&f, "c", false, true, false, &fork, NULL));
    assert_ok(fixture_append(&f, &fork, 64, 100, 1, NULL));
    fixture_fetch_all(&f, &fork, 0, 164, 1);
    fixture_end(&f);
}

/* An agent's history: each step forks, adds a page, and drops where it came from. */
static void long_chains_of_forks_use_up_nothing(void **state)
{
    struct fixture f;
    char from[16] = "g0", to[16];
    (void)state;

    fixture_start(&f, 16u << 20);
    struct qr_session_info s = fixture_open(&f, from);
    for (uint32_t n = 1; n < 500; n++) {
        assert_ok(fixture_append(&f, &s, (n - 1) * 32, 32, 1, NULL));
        snprintf(to, sizeof(to), "g%u", n);
        assert_ok(qr_session_fork(f.store, f.ns, from, to, 0, 0, &s, NULL));
        assert_ok(qr_session_drop(f.store, f.ns, from, true, NULL));
        assert_ok(open_named(&f, to, false, true, false, &s, NULL));
        memcpy(from, to, sizeof(to));
    }
    assert_int_equal(fixture_fetch_all(&f, &s, 0, 499 * 32, 1).missing, 0);
    fixture_end(&f);
}

static void truncated_tokens_may_be_appended_anew(void **state)
{
    struct fixture f;
    struct qr_session_info info, fork;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 150, 1, NULL));
    assert_ok(qr_session_fork(f.store, f.ns, "a", "b", 0, 0, &fork, NULL));
    assert_status(QUIRE_ERANGE,
                  qr_session_truncate(f.store, f.ns, s.session, s.epoch, 151, &info, &e));
    assert_status(QUIRE_EINVAL,
                  qr_session_truncate(f.store, f.ns, s.session, s.epoch, 40, &info, &e));
    assert_non_null(strstr(e.text, "64"));
    assert_ok(qr_session_truncate(f.store, f.ns, s.session, s.epoch, 140, &info, &e));
    assert_int_equal(info.length, 140);
    fixture_fetch_all(&f, &s, 0, 140, 1);
    assert_ok(qr_session_truncate(f.store, f.ns, s.session, s.epoch, 0, &info, &e));
    assert_ok(fixture_append(&f, &s, 0, 150, 2, NULL)); /* other values than the fork has */
    fixture_fetch_all(&f, &s, 0, 150, 2);
    fixture_fetch_all(&f, &fork, 0, 150, 1);
    fixture_end(&f);
}

/* A reader that has rows pinned keeps them although the writer cuts and writes them anew. */
static void pinned_rows_survive_truncation(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    struct qr_fetch_cursor *cursor;
    struct qr_part part;
    (void)state;

    fixture_start(&f, 8u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 30, 1, NULL));
    const struct qr_fetch fetch = {.session = s.session, .tokens = 30, .layers = 1};
    assert_ok(qr_fetch_open(f.store, f.ns, &fetch, &cursor, NULL));
    assert_true(qr_fetch_next(cursor, &part));
    assert_ok(qr_session_truncate(f.store, f.ns, s.session, s.epoch, 10, &info, NULL));
    assert_ok(fixture_append(&f, &s, 10, 20, 2, NULL));
    fixture_check_rows(&part, 1);
    qr_part_release(f.store, part.pin);
    qr_fetch_close(&cursor);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_writer_waits_or_forces),
        cmocka_unit_test(workers_share_an_epoch),
        cmocka_unit_test(an_epoch_is_never_used_again),
        cmocka_unit_test(a_handle_does_not_follow_its_name),
        cmocka_unit_test(a_fork_of_uneven_lanes_names_what_works),
        cmocka_unit_test(what_was_never_there_is_not_missing),
        cmocka_unit_test(opening_compares_what_is_there),
        cmocka_unit_test(namespaces_do_not_see_each_other),
        cmocka_unit_test(lists_names_in_order_page_by_page),
        cmocka_unit_test(unused_sessions_expire_and_handles_are_not_reused),
        cmocka_unit_test(a_session_used_during_the_tick_stays),
        cmocka_unit_test(dropping_needs_the_lease_to_be_over_or_force),
        cmocka_unit_test(a_fetch_outlives_the_drop_of_its_session),
        cmocka_unit_test(forks_share_until_they_differ),
        cmocka_unit_test(long_chains_of_forks_use_up_nothing),
        cmocka_unit_test(truncated_tokens_may_be_appended_anew),
        cmocka_unit_test(pinned_rows_survive_truncation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
