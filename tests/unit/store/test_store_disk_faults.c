/* SPDX-License-Identifier: Apache-2.0
 *
 * A store whose disk fails: the n-th call on its files fails, for n = 1, 2, ... until a life
 * needs no more calls; whatever was acknowledged is there in the next life, and nothing is
 * wrong. A full disk refuses with a hint, and reads go on; where it is allowed, the longest
 * unused session goes.
 */
#include <sys/mman.h>

#include "disk_life.h"
#include "storage/base/log.h"
#include "tests/unit/tier/disk_test.h"

static struct fault_io faults;

/* What a life was told; shared with its parent, which lives longer. */
struct told {
    volatile uint32_t first, second; /* tokens that are durable */
    volatile uint32_t cut_to;        /* asked for; 0: not */
    volatile bool forked, dropped, second_tried;
    volatile uint64_t calls;
};
static struct told *told;
static uint64_t failing_call;

static void start_with(struct fixture *f, uint64_t cap_bytes, bool drop_when_full)
{
    struct qr_store_disk_config disk = {.count = 1,
                                        .tail_log_bytes = 24u << 20,
                                        .tail_segment_bytes = 4u << 20,
                                        .no_uring = true,
                                        .drop_when_full = drop_when_full,
                                        .io = &faults};
    struct qr_store_config config = fixture_config(BUDGET);
    struct qr_error e = {0};

    disk.folders[0] = life_folder;
    disk.cap_bytes[0] = cap_bytes;
    config.disk = &disk;
    memset(f, 0, sizeof(*f));
    f->head_shards = 1;
    fixture_model(&f->model);
    fixture_policy(&f->policy);
    if (qr_store_create(&config, &f->store, &e) != QUIRE_OK)
        f->store = NULL;
}

static void in_a_child(void (*part)(void))
{
    int status;
    fflush(NULL);
    const pid_t child = fork();

    if (child == 0) {
        setenv("CMOCKA_TEST_ABORT", "1", 1);
        part();
        fflush(NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- the n-th call --------------------------------------------------------------------------
 */

static quire_status try_append(struct fixture *f, const char *name, uint32_t position,
                               uint32_t tokens, uint32_t salt)
{
    const struct qr_session_open open = {.name = name,
                                         .fingerprint = f->model.fingerprint,
                                         .policy = &f->policy,
                                         .create = true,
                                         .write = true,
                                         .force = true};
    struct qr_session_info info;
    struct qr_append_result result;
    quire_status status = qr_session_open(f->store, f->ns, &open, &info, NULL);

    if (status != QUIRE_OK)
        return status;
    struct qr_append append = fixture_all(&info, position, tokens);
    append.durable = true;
    return fixture_append_as(f, &append, salt, &result, NULL);
}

static void cut_first(struct fixture *f)
{
    const struct qr_session_open open = {.name = "first", .write = true, .force = true};
    struct qr_session_info info;

    if (qr_session_open(f->store, f->ns, &open, &info, NULL) != QUIRE_OK || info.length < 400)
        return;
    told->cut_to = 128;
    if (qr_session_truncate(f->store, f->ns, info.session, info.epoch, 128, &info, NULL) ==
        QUIRE_OK)
        told->first = 128;
}

/* Every kind of change, each of which may fail. */
static void change_things(void)
{
    struct fixture f;
    struct qr_session_info info;

    atomic_store(&faults.fail_count, 1);
    atomic_store(&faults.fail_from, failing_call);
    start_with(&f, CAP, false);
    if (f.store && qr_store_namespace(f.store, "tests", &f.ns, NULL) == QUIRE_OK &&
        (qr_store_model_put(f.store, &f.model, NULL), true)) {
        if (try_append(&f, "first", 0, 300, 1) == QUIRE_OK)
            told->first = 300;
        if (told->first == 300 && try_append(&f, "first", 300, 150, 1) == QUIRE_OK)
            told->first = 450;
        if (told->first > 0 &&
            qr_session_fork(f.store, f.ns, "first", "fork", 256, 0, &info, NULL) == QUIRE_OK)
            told->forked = true;
        cut_first(&f);
        told->second_tried = true;
        if (try_append(&f, "second", 0, 100, 2) == QUIRE_OK)
            told->second = 100;
        if (told->second && qr_session_drop(f.store, f.ns, "second", true, NULL) == QUIRE_OK)
            told->dropped = true;
    }
    told->calls = atomic_load(&faults.calls);
}

static void compare_with_told(struct fixture *f)
{
    struct qr_session_info info = {0};

    if (qr_session_info(f->store, f->ns, "first", &info, NULL) == QUIRE_OK) {
        assert_true(info.length >= told->first ||
                    (told->cut_to && info.length == told->cut_to));
        assert_int_equal(info.missing_pages, 0);
        if (info.length > 0)
            check(f, "first", info.length, 1);
    } else {
        assert_int_equal(told->first, 0);
    }
    if (qr_session_info(f->store, f->ns, "fork", &info, NULL) == QUIRE_OK)
        check(f, "fork", 256, 1);
    else
        assert_false(told->forked);
    if (qr_session_info(f->store, f->ns, "second", &info, NULL) == QUIRE_OK) {
        assert_true(told->second_tried && !told->dropped);
        check(f, "second", info.length, 2);
    } else {
        assert_true(!told->second || told->dropped || told->second_tried);
    }
}

static void the_nth_call_fails(void **state)
{
    uint64_t n = 1;
    (void)state;

    for (;; n += 1 + n / 16) { /* every one at first, then fewer: they are of the same kinds */
        memset(told, 0, sizeof(*told));
        failing_call = n;
        in_a_child(change_things);
        life(compare_with_told);
        if (told->calls < n)
            break;
        assert_ok(tear_down(NULL));
        assert_ok(set_up(NULL));
    }
    print_message("%llu calls\n", (unsigned long long)told->calls);
    assert_true(n > 30 && told->dropped && told->first == 128);
}

/* ---- a full disk ----------------------------------------------------------------------------
 */

#define SMALL_CAP ((16u << 20) + 4096u)

static uint32_t fill_disk(struct fixture *f, uint32_t *last_out)
{
    char name[16];
    uint32_t sessions = 0;
    quire_status status = QUIRE_OK;

    for (; sessions < 60 && status == QUIRE_OK; sessions++) {
        snprintf(name, sizeof(name), "s%u", sessions);
        fixture_now_ms += 20000; /* leases end */
        const struct qr_session_info s = fixture_open(f, name);
        for (uint32_t p = 0; p < 2048 && status == QUIRE_OK; p += 512) {
            struct qr_append append = fixture_all(&s, p, 512);
            struct qr_append_result result;
            struct qr_error e = {0};
            append.durable = true;
            status = fixture_append_as(f, &append, sessions, &result, &e);
            if (status == QUIRE_OK)
                *last_out = p + 512;
            else
                assert_true(status == QUIRE_EFULL && e.retry_after_ms > 0);
        }
    }
    return sessions;
}

static void fill_and_read(void)
{
    struct fixture f;
    uint32_t last = 0;

    start_with(&f, SMALL_CAP, false);
    assert_non_null(f.store);
    assert_ok(qr_store_namespace(f.store, "tests", &f.ns, NULL));
    assert_ok(qr_store_model_put(f.store, &f.model, NULL));
    const uint32_t sessions = fill_disk(&f, &last);
    assert_true(sessions > 2 && sessions < 60);
    for (uint32_t i = 0; i + 1 < sessions; i++) { /* reads go on */
        char name[16];
        snprintf(name, sizeof(name), "s%u", i);
        check(&f, name, 2048, i);
    }
    assert_ok(qr_session_drop(f.store, f.ns, "s0", true, NULL));
    assert_ok(qr_session_drop(f.store, f.ns, "s1", true, NULL));
    quire_status status = QUIRE_EFULL;
    for (int i = 0; i < 500 && status == QUIRE_EFULL; i++) { /* room comes in the background */
        usleep(10000);
        const struct qr_session_info s = fixture_open(&f, "after");
        status = append_durably(&f, &s, 0, 512, 99);
        fixture_now_ms += 20000;
    }
    assert_ok(status);
    check(&f, "after", 512, 99);
}

static void a_full_disk_refuses_and_reads_go_on(void **state)
{
    (void)state;
    in_a_child(fill_and_read);
}

static void fill_and_drop(void)
{
    struct fixture f;
    struct qr_session_info info;

    start_with(&f, SMALL_CAP, true);
    assert_non_null(f.store);
    assert_ok(qr_store_namespace(f.store, "tests", &f.ns, NULL));
    assert_ok(qr_store_model_put(f.store, &f.model, NULL));
    for (uint32_t i = 0; i < 60; i++) {
        char name[16];
        snprintf(name, sizeof(name), "s%u", i);
        fixture_now_ms += 1500; /* less than the time to live in all */
        quire_status status = QUIRE_EFULL;
        for (int k = 0; k < 500 && status == QUIRE_EFULL; k++) {
            const struct qr_session_info s = fixture_open(&f, name);
            status = append_durably(&f, &s, 0, 2048, i);
            (void)qr_store_tick(f.store);
            fixture_now_ms += 1;
            qr_session_close(f.store, f.ns, s.session, s.epoch);
            usleep(status == QUIRE_EFULL ? 10000 : 0);
        }
        assert_ok(status);
        check(&f, name, 2048, i);
    }
    assert_true(fixture_metric(&f, "disk_sessions_dropped") > 0);
    assert_status(QUIRE_ENOTFOUND, qr_session_info(f.store, f.ns, "s0", &info, NULL));
}

static void a_full_disk_drops_the_longest_unused(void **state)
{
    (void)state;
    in_a_child(fill_and_drop);
}

/* ---- a device that hangs
 * --------------------------------------------------------------------- */

static void make_one(struct fixture *f)
{
    const struct qr_session_info s = fixture_open(f, "one");

    assert_ok(append_durably(f, &s, 0, 1000, 1));
}

/* Its slab file answers no more, then again. */
static void hang_and_attend(void)
{
    static float query[4096], output[4096], lse[64];
    static const uint64_t position = 1000;
    struct fixture f;
    struct qr_session_info info;

    start_with(&f, CAP, false);
    assert_non_null(f.store);
    assert_ok(qr_store_namespace(f.store, "tests", &f.ns, NULL));
    assert_ok(qr_session_info(f.store, f.ns, "one", &info, NULL));
    const struct qr_attend attend = {.session = info.session,
                                     .layers = 1,
                                     .queries = 1,
                                     .positions = &position,
                                     .query = query,
                                     .causal = true};
    f.store->read_wait_ms = 100;
    for (int fd = 3; fd < 64; fd++) {
        char link[64], path[512];
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        const ssize_t n = readlink(link, path, sizeof(path) - 1);
        path[n > 0 ? n : 0] = 0;
        if (strstr(path, "/slabs"))
            atomic_store(&faults.hang_fd, fd);
    }
    assert_true(atomic_load(&faults.hang_fd) > 0);
    assert_status(QUIRE_EMISSING,
                  qr_store_attend(f.store, f.ns, &attend, output, lse, NULL, NULL, NULL));
    atomic_store(&faults.hang_fd, -1);
    quire_status status = QUIRE_EMISSING;
    for (int i = 0; i < 100 && status != QUIRE_OK; i++) {
        usleep(50000);
        status = qr_store_attend(f.store, f.ns, &attend, output, lse, NULL, NULL, NULL);
    }
    assert_ok(status);
    check(&f, "one", 1000, 1);
}

static void a_device_that_hangs_holds_nobody_for_ever(void **state)
{
    (void)state;
    life(make_one);
    in_a_child(hang_and_attend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_nth_call_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_device_that_hangs_holds_nobody_for_ever, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_full_disk_refuses_and_reads_go_on, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_full_disk_drops_the_longest_unused, set_up,
                                        tear_down),
    };

    told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fault_init(&faults);
    qr_log_configure(QR_LOG_ERROR, QR_LOG_TEXT, open("/dev/null", O_WRONLY | O_CLOEXEC));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
