/* SPDX-License-Identifier: Apache-2.0
 *
 * A store with a disk: what was durable is there after a process that ended without a word,
 * byte for byte; shared pages go with the last
 * session that names them; cuts, epochs, token ids and secrets outlive restarts.
 *
 * Each life of the store is a child process.
 */
#include "disk_life.h"

#include <assert.h>
#include <sys/mman.h>

/* ---- rows and pages ------------------------------------------------------------------------
 */

static void append_some(struct fixture *f)
{
    const struct qr_session_info a = fixture_open(f, "a"), b = fixture_open(f, "b");

    assert_ok(append_durably(f, &a, 0, 10, 1));
    assert_ok(append_durably(f, &a, 10, 300, 1));
    assert_ok(append_durably(f, &a, 310, 1, 1));
    assert_ok(fixture_append(f, &b, 0, 200, 2, NULL)); /* memory */
    assert_ok(append_durably(f, &b, 200, 100, 2));     /* and all before it */
}

static void find_some(struct fixture *f)
{
    assert_int_equal(fixture_metric(f, "sessions"), 2);
    check(f, "a", 311, 1);
    check(f, "b", 300, 2);
    const struct qr_session_info a = fixture_open(f, "a");
    assert_ok(append_durably(f, &a, 311, 500, 1));
}

static void find_more(struct fixture *f)
{
    check(f, "a", 811, 1);
    check(f, "b", 300, 2);
}

static void what_is_durable_outlives_the_process(void **state)
{
    (void)state;
    life(append_some);
    life(find_some);
    life(find_more);
}

/* ---- forks and drops ------------------------------------------------------------------------
 */

static uint64_t wait_for_slots(struct fixture *f, uint64_t wanted)
{
    struct qr_tier_stat stat = {0};

    for (int i = 0; i < 500; i++) {
        qr_disk_tier(f->store->disk)->ops->stat(qr_disk_tier(f->store->disk), &stat);
        if (stat.slots == wanted)
            break;
        usleep(10000);
    }
    return stat.slots;
}

static void make_forks(struct fixture *f)
{
    const struct qr_session_info s = fixture_open(f, "root");
    struct qr_session_info info;

    assert_ok(append_durably(f, &s, 0, 1000, 4));
    assert_ok(qr_session_fork(f->store, f->ns, "root", "half", 512, 0, &info, NULL));
    assert_ok(qr_session_fork(f->store, f->ns, "root", "whole", 0, 0, &info, NULL));
    assert_ok(qr_session_drop(f->store, f->ns, "root", true, NULL));
    /* 1000 tokens, window 32, pages of 32: 30 blocks of 2 lanes */
    assert_int_equal(wait_for_slots(f, 60), 60);
}

static void drop_a_fork(struct fixture *f)
{
    struct qr_session_info info;

    assert_status(QUIRE_ENOTFOUND, qr_session_info(f->store, f->ns, "root", &info, NULL));
    check(f, "half", 512, 4);
    check(f, "whole", 1000, 4);
    assert_ok(qr_session_drop(f->store, f->ns, "whole", true, NULL));
    assert_int_equal(wait_for_slots(f, 32), 32);
    check(f, "half", 512, 4);
}

static void drop_the_last(struct fixture *f)
{
    check(f, "half", 512, 4);
    assert_ok(qr_session_drop(f->store, f->ns, "half", true, NULL));
    assert_int_equal(wait_for_slots(f, 0), 0);
}

static void nothing_is_left(struct fixture *f)
{
    assert_int_equal(fixture_metric(f, "sessions"), 0);
    assert_int_equal(wait_for_slots(f, 0), 0);
}

static void shared_pages_go_with_their_last_session(void **state)
{
    (void)state;
    life(make_forks);
    life(drop_a_fork);
    life(drop_the_last);
    life(nothing_is_left);
}

/* ---- cuts -----------------------------------------------------------------------------------
 */

static void cut_and_go_on(struct fixture *f)
{
    const struct qr_session_info s = fixture_open(f, "cut");
    struct qr_session_info info;

    assert_ok(append_durably(f, &s, 0, 500, 5));
    assert_ok(qr_session_truncate(f->store, f->ns, s.session, s.epoch, 490, &info, NULL));
    assert_ok(append_durably(f, &s, 490, 3, 5));
    assert_ok(qr_session_truncate(f->store, f->ns, s.session, s.epoch, 320, &info, NULL));
}

static uint32_t salt_after_320(uint32_t salt, uint32_t layer, uint64_t position)
{
    (void)layer;
    return position < 320 ? salt : salt + 1000;
}

static void find_the_cut(struct fixture *f)
{
    check(f, "cut", 320, 5);
    const struct qr_session_info s = fixture_open(f, "cut");
    fixture_salt_of = salt_after_320;
    assert_ok(append_durably(f, &s, 320, 400, 5));
    check(f, "cut", 720, 5);
}

static void find_the_rest(struct fixture *f)
{
    fixture_salt_of = salt_after_320;
    check(f, "cut", 720, 5);
}

static void a_cut_session_goes_on_with_other_values(void **state)
{
    (void)state;
    life(cut_and_go_on);
    life(find_the_cut);
    life(find_the_rest);
}

/* ---- identity -------------------------------------------------------------------------------
 */

static uint32_t ids[2048];
static uint64_t *last_epoch; /* shared by the processes of all lives */

static void check_epoch(const struct qr_session_info *s)
{
    assert_true(s->epoch > *last_epoch); /* no later life uses one again */
    *last_epoch = s->epoch;
}

static quire_status append_with_ids(struct fixture *f, const struct qr_session_info *s,
                                    uint64_t position, uint32_t tokens)
{
    struct qr_append append = fixture_all(s, position, tokens);
    struct qr_append_result result;

    append.durable = true;
    append.token_ids = ids + position;
    return fixture_append_as(f, &append, 6, &result, NULL);
}

static void append_ids(struct fixture *f)
{
    const struct qr_session_info s = fixture_open(f, "first");

    assert_ok(append_with_ids(f, &s, 0, 500));
    check_epoch(&s);
}

static void share_by_ids(struct fixture *f)
{
    const struct qr_session_info again = fixture_open(f, "first");

    check_epoch(&again);
    assert_ok(append_with_ids(f, &again, 500, 524)); /* the chain goes on */
    const struct qr_session_info other = fixture_open(f, "second");
    assert_ok(append_with_ids(f, &other, 0, 1024));
    assert_int_equal(wait_for_slots(f, 62), 62); /* 31 blocks of 2 lanes, once */
}

static void drop_one_of_two(struct fixture *f)
{
    const struct qr_session_info again = fixture_open(f, "first");

    check_epoch(&again);
    assert_ok(qr_session_drop(f->store, f->ns, "first", true, NULL));
    usleep(200000);
    check(f, "second", 1024, 6);
    assert_int_equal(wait_for_slots(f, 62), 62);
}

static void equal_token_ids_share_pages_over_restarts(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(ids); i++)
        ids[i] = i * 7;
    life(append_ids);
    life(share_by_ids);
    life(drop_one_of_two);
}

/* The same ids with other values: each session reads its own, whoever came first. */
static void append_others(struct fixture *f)
{
    const struct qr_session_info s = fixture_open(f, "other");
    struct qr_append append = fixture_all(&s, 0, 500);
    struct qr_append_result result;

    append.durable = true;
    append.token_ids = ids;
    assert_ok(fixture_append_as(f, &append, 7, &result, NULL));
}

static void find_both(struct fixture *f)
{
    check(f, "other", 500, 7);
    check(f, "first", 500, 6);
}

static void equal_token_ids_of_other_values_are_not_mixed(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(ids); i++)
        ids[i] = i * 7;
    life(append_ids);
    life(append_others); /* "first" is not loaded in this life */
    life(find_both);
}

int main(void)
{
    last_epoch = mmap(NULL, sizeof(*last_epoch), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(last_epoch != MAP_FAILED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_durable_outlives_the_process, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(shared_pages_go_with_their_last_session, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_cut_session_goes_on_with_other_values, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(equal_token_ids_share_pages_over_restarts, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(equal_token_ids_of_other_values_are_not_mixed, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
