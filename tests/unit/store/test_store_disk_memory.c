/* SPDX-License-Identifier: Apache-2.0
 *
 * A store with a disk and less memory than data: pages are read back, those that only memory
 * has are written back, idle sessions leave with their tails, and one look at a long session
 * does not empty memory of the others.
 */
#include "disk_life.h"

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

/* A session that nobody has used yet takes a record, and nothing a page; one in use 128 bytes.
 */
static void check_metadata(struct fixture *f)
{
    struct qr_session_info info;
    size_t count;
    bool more;

    const double before = fixture_metric(f, "metadata_bytes");
    assert_ok(qr_session_list(f->store, f->ns, "", NULL, &info, 1, &count, &more));
    assert_int_equal(count, 1);
    assert_int_equal(info.length, LARGE);
    const double unused = fixture_metric(f, "metadata_bytes") / (double)info.pages;
    assert_ok(qr_session_info(f->store, f->ns, "large", &info, NULL));
    const double used = (fixture_metric(f, "metadata_bytes") - before) / (double)info.pages;
    print_message("metadata a page: %.2f bytes before the session is used, %.1f after\n",
                  unused, used);
    assert_true(unused <= 64 && used <= 128);
}

static void find_large(struct fixture *f)
{
    check_metadata(f);
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
    const double pages = 2.0 * (HOT / 32.0 - 1.0);
    print_message("%.0f pages scanned; %.0f of %.0f hot pages had to be read again\n", scanned,
                  again, pages);
    assert_true(scanned > LARGE / 32.0);
    assert_true(again <= 0.25 * pages);
}

static void one_long_look_leaves_the_rest_in_memory(void **state)
{
    (void)state;
    life(scan_past_a_hot_session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_session_larger_than_memory_is_read_from_disk, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(pages_of_memory_are_written_back_under_pressure, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(idle_sessions_leave_memory_with_their_tails, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(one_long_look_leaves_the_rest_in_memory, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
