/* SPDX-License-Identifier: Apache-2.0
 *
 * A store with a disk: what was durable is there after a process that ended without a word,
 * byte for byte; pages that memory has no room for are read back; shared pages go with the last
 * session that names them; cuts, epochs, token ids and secrets outlive restarts.
 *
 * Each life of the store is a child process that ends by _exit, as a kill would.
 */
#include "fixture.h"

#include <ftw.h>
#include <sys/wait.h>

#include "storage/store/durable.h"

#define BUDGET (16u << 20)
#define CAP (512u << 20)

static char folder[256];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void start(struct fixture *f)
{
    struct qr_store_disk_config disk = {.count = 1, .tail_log_bytes = 96u << 20};
    struct qr_store_config config = fixture_config(BUDGET);

    disk.folders[0] = folder;
    disk.cap_bytes[0] = CAP;
    disk.tail_segment_bytes = 4u << 20;
    config.disk = &disk;
    fixture_start_with(f, &config);
}

/* A life of the store that ends without warning. */
static void life(void (*part)(struct fixture *f))
{
    int status;
    fflush(NULL);
    const pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        struct fixture f;
        setenv("CMOCKA_TEST_ABORT", "1", 1);
        start(&f);
        part(&f);
        fflush(NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int set_up(void **state)
{
    const char *base = getenv("QUIRE_DISK_DIR");
    (void)state;

    snprintf(folder, sizeof(folder), "%s/quire_store_XXXXXX",
             base                     ? base
             : getenv("QUIRE_BINARY") ? getenv("QUIRE_BINARY")
                                      : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static quire_status append_durably(struct fixture *f, const struct qr_session_info *s,
                                   uint64_t position, uint32_t tokens, uint32_t salt)
{
    struct qr_append append = fixture_all(s, position, tokens);
    struct qr_append_result result;

    struct qr_error e = {0};

    append.durable = true;
    const quire_status status = fixture_append_as(f, &append, salt, &result, &e);
    if (status != QUIRE_OK)
        print_message("at %llu: %s\n", (unsigned long long)position, e.text);
    return status;
}

static struct fixture_seen fetch(struct fixture *f, const char *name, uint64_t tokens,
                                 uint32_t salt)
{
    struct qr_session_info info;

    assert_ok(qr_session_info(f->store, f->ns, name, &info, NULL));
    assert_int_equal(info.length, tokens);
    return fixture_fetch_all(f, &info, 0, tokens, salt);
}

static void check(struct fixture *f, const char *name, uint64_t tokens, uint32_t salt)
{
    const struct fixture_seen seen = fetch(f, name, tokens, salt);

    assert_int_equal(seen.missing + seen.corrupt, 0);
    assert_int_equal(seen.tokens, 2 * tokens); /* lanes */
}

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

/* ---- more than memory ----------------------------------------------------------------------
 */

#define LARGE 65536u /* tokens: about 4 times the budget */

static void append_large(struct fixture *f)
{
    const struct qr_session_info s = fixture_open(f, "large");

    for (uint32_t p = 0; p < LARGE; p += 1024)
        assert_ok(append_durably(f, &s, p, 1024, 3));
    check(f, "large", LARGE, 3);
    assert_true(fixture_metric(f, "disk_pages_read") > 0);
    assert_true(fixture_metric(f, "host_reserved_bytes") <= BUDGET);
}

static void find_large(struct fixture *f)
{
    check(f, "large", LARGE, 3);
    check(f, "large", LARGE, 3);
    assert_true(fixture_metric(f, "host_reserved_bytes") <= BUDGET);
}

static void a_session_larger_than_memory_is_read_from_disk(void **state)
{
    (void)state;
    life(append_large);
    life(find_large);
}

/* ---- pressure -------------------------------------------------------------------------------
 */

/* For memory only, but memory is full before the disk has written: then the hint says when. */
static void append_patiently(struct fixture *f, const struct qr_session_info *s,
                             uint64_t position, uint32_t tokens, uint32_t salt)
{
    struct qr_error e;
    quire_status status;

    for (int i = 0; i < 2000; i++) {
        status = fixture_append(f, s, position, tokens, salt, &e);
        if (status != QUIRE_EFULL)
            break;
        assert_true(e.retry_after_ms > 0);
        usleep(5000);
    }
    assert_ok(status);
}

static void append_for_memory(struct fixture *f)
{
    const struct qr_session_info s = fixture_open(f, "memory");

    for (uint32_t p = 0; p < LARGE; p += 1024)
        append_patiently(f, &s, p, 1024, 8);
    assert_true(fixture_metric(f, "disk_pages_written") > 0);
    check(f, "memory", LARGE, 8);
    assert_true(fixture_metric(f, "host_reserved_bytes") <= BUDGET);
}

static void pages_of_memory_are_written_back_under_pressure(void **state)
{
    (void)state;
    life(append_for_memory);
}

#define IDLE_SESSIONS 48u
#define IDLE_TOKENS 900u

static void append_idle_sessions(struct fixture *f)
{
    char name[16];

    f->policy.window = 1024; /* all of it is tail: 0.8 MB a session */
    for (uint32_t i = 0; i < IDLE_SESSIONS; i++) {
        snprintf(name, sizeof(name), "idle%u", i);
        const struct qr_session_info s = fixture_open(f, name);
        fixture_now_ms += 2000;
        for (uint32_t p = 0; p < IDLE_TOKENS; p += 100)
            append_patiently(f, &s, p, 100, i);
    }
    assert_true(fixture_metric(f, "sessions_unloaded") > 0);
}

/* Sessions of another life, or of this one, whose tails left memory. */
static void find_idle_sessions(struct fixture *f)
{
    struct qr_session_info info;
    struct qr_error e;
    char name[16];

    for (uint32_t i = 0; i < IDLE_SESSIONS; i++) {
        quire_status status = QUIRE_EFULL;
        snprintf(name, sizeof(name), "idle%u", i);
        fixture_now_ms += 2000;
        for (int tries = 0; tries < 1000 && status == QUIRE_EFULL; tries++) {
            status = qr_session_info(f->store, f->ns, name, &info, &e);
            usleep(status == QUIRE_EFULL ? 5000 : 0);
        }
        assert_ok(status);
        check(f, name, IDLE_TOKENS, i);
    }
}

static void keep_idle_sessions(struct fixture *f)
{
    append_idle_sessions(f);
    find_idle_sessions(f);
    assert_ok(qr_store_flush(f->store, f->ns, NULL));
}

static void idle_sessions_leave_memory_with_their_tails(void **state)
{
    (void)state;
    life(keep_idle_sessions);
    life(find_idle_sessions);
}

/* ---- one long look --------------------------------------------------------------------------
 */

#define HOT 8192u /* tokens: about half of the budget */

/* A session that is read again and again, then another, larger than memory, once: the first is
 * still there for most of its part. */
static void scan_past_a_hot_session(struct fixture *f)
{
    const struct qr_session_info hot = fixture_open(f, "hot"), cold = fixture_open(f, "cold");

    for (uint32_t p = 0; p < LARGE; p += 1024)
        assert_ok(append_durably(f, &cold, p, 1024, 9));
    for (uint32_t p = 0; p < HOT; p += 1024)
        assert_ok(append_durably(f, &hot, p, 1024, 10));
    for (int i = 0; i < 6; i++)
        check(f, "hot", HOT, 10);
    const double before = fixture_metric(f, "disk_pages_read");
    check(f, "cold", LARGE, 9);
    const double scanned = fixture_metric(f, "disk_pages_read") - before;
    check(f, "hot", HOT, 10);
    const double again = fixture_metric(f, "disk_pages_read") - before - scanned;
    const double pages = 2.0 * (HOT / 32 - 1);
    print_message("%.0f pages scanned; %.0f of %.0f hot pages had to be read again\n", scanned,
                  again, pages);
    assert_true(scanned > 2.0 * (LARGE / 32) * 0.5);
    assert_true(again <= 0.25 * pages);
}

static void one_long_look_leaves_the_rest_in_memory(void **state)
{
    (void)state;
    life(scan_past_a_hot_session);
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
    assert_int_equal(s.epoch, 1);
}

static void share_by_ids(struct fixture *f)
{
    const struct qr_session_info again = fixture_open(f, "first");

    assert_true(again.epoch > 1);
    assert_ok(append_with_ids(f, &again, 500, 524)); /* the chain goes on */
    const struct qr_session_info other = fixture_open(f, "second");
    assert_ok(append_with_ids(f, &other, 0, 1024));
    assert_int_equal(wait_for_slots(f, 62), 62); /* 31 blocks of 2 lanes, once */
}

static void drop_one_of_two(struct fixture *f)
{
    const struct qr_session_info again = fixture_open(f, "first");

    assert_true(again.epoch > 2);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_durable_outlives_the_process, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_session_larger_than_memory_is_read_from_disk, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(pages_of_memory_are_written_back_under_pressure, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(idle_sessions_leave_memory_with_their_tails, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(one_long_look_leaves_the_rest_in_memory, set_up,
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
