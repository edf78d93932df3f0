/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory stays where it was promised: metadata of at most 128 bytes a page, resident size
 * within the budget + 10 % + 64 MiB under four times as much data, and no allocation once warm.
 */
#include "fixture.h"

#include <unistd.h>

#define BUDGET (64u << 20)

static uint64_t resident_bytes(void)
{
    unsigned long long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu %llu", &total, &resident), 2);
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void overload_stays_within_the_budget(void **state)
{
    struct fixture f;
    struct qr_session_info sessions[32];
    struct qr_tier_stat stat;
    uint64_t appended = 0;
    uint32_t length = 0;
    (void)state;

    const uint64_t before = resident_bytes();
    fixture_start(&f, BUDGET);
    for (uint32_t i = 0; i < ARRAY_LEN(sessions); i++) {
        char name[8];
        snprintf(name, sizeof(name), "s%u", i);
        sessions[i] = fixture_open(&f, name);
    }
    while (appended < 4ull * BUDGET) {
        for (uint32_t i = 0; i < ARRAY_LEN(sessions); i++)
            assert_ok(fixture_append(&f, &sessions[i], length, 1024, i, NULL));
        length += 1024;
        appended = 0;
        for (uint32_t i = 0; i < ARRAY_LEN(sessions); i++) {
            struct qr_session_info info;
            assert_ok(qr_session_info(f.store, f.ns, sessions[i].name, &info, NULL));
            appended += info.page_bytes / (info.pages - info.missing_pages + 1) * info.pages;
        }
    }
    f.store->tier->ops->stat(f.store->tier, &stat);
    assert_true(stat.reserved_bytes <= BUDGET);
    print_message("payload is %.3f of the reserved bytes\n",
                  (double)stat.payload_bytes / (double)stat.reserved_bytes);
    const uint64_t grown = resident_bytes() - before;
    print_message("resident %.2f of the budget\n", (double)grown / BUDGET);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* theirs counts too */
    assert_true(grown <= BUDGET + BUDGET / 10 + (64u << 20));
#endif
    fixture_end(&f);
}

/* The hard case is a session of one lane, whose block ids serve one page each. */
static void metadata_is_at_most_128_bytes_a_page(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    struct qr_append_result result;
    (void)state;

    fixture_start(&f, BUDGET);
    f.model.layer_count = 1;
    assert_ok(qr_model_seal(&f.model, NULL));
    assert_ok(qr_store_model_put(f.store, &f.model, NULL));
    const struct qr_session_info s = fixture_open(&f, "one");
    const double fixed = fixture_metric(&f, "metadata_bytes");
    for (uint64_t position = 0; position < 1u << 20; position += 4096) {
        const struct qr_append a = fixture_all(&s, position, 4096);
        assert_ok(fixture_append_as(&f, &a, 0, &result, NULL));
    }
    assert_ok(qr_session_info(f.store, f.ns, "one", &info, NULL));
    const double each = (fixture_metric(&f, "metadata_bytes") - fixed) / (double)info.pages;
    print_message("%llu pages, %.1f bytes of metadata each\n", (unsigned long long)info.pages,
                  each);
    assert_true(each <= 128);
    fixture_end(&f);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* Counts every allocation of the program: the names that glibc gives its own functions. */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t each);
void *__libc_realloc(void *at, size_t n);

static _Atomic uint64_t allocations;

void *malloc(size_t n)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t each)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_calloc(n, each);
}

void *realloc(void *at, size_t n)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_realloc(at, n);
}

static void append_and_fetch_allocate_nothing_once_warm(void **state)
{
    const uint32_t warm = 3201; /* just after a seal: the next one is 31 tokens away */
    struct fixture f;
    uint64_t before = 0;
    (void)state;

    fixture_start(&f, BUDGET);
    const struct qr_session_info s = fixture_open(&f, "a");
    const struct qr_append all = fixture_all(&s, 0, 1);
    uint16_t *rows;
    const size_t bytes = fixture_rows(&f, &all, 1, &rows);
    for (uint32_t n = 0; n < warm + 30; n++) {
        const struct qr_append a = fixture_all(&s, n, 1);
        const struct qr_fetch fetch = {
            .session = s.session, .position = n / 2, .tokens = n / 2 + 1, .layers = 3};
        struct memory_source m = memory_source(rows, bytes);
        struct qr_append_result result;
        struct qr_fetch_cursor *cursor;
        struct qr_part part;
        if (n == warm)
            before = atomic_load(&allocations);
        assert_int_equal(QUIRE_OK, qr_append_rows(f.store, f.ns, &a, &m.source, &result, NULL));
        assert_int_equal(QUIRE_OK, qr_fetch_open(f.store, f.ns, &fetch, &cursor, NULL));
        while (qr_fetch_next(cursor, &part))
            qr_part_release(f.store, part.pin);
        qr_fetch_close(&cursor);
    }
    assert_int_equal(atomic_load(&allocations), before);
    free(rows);
    fixture_end(&f);
}
#endif

static uint64_t lost_in(struct fixture *f, const struct qr_session_info *s, uint64_t position,
                        uint64_t tokens, uint64_t *first_out)
{
    const struct qr_token_range what = {.position = position, .tokens = tokens};
    static struct qr_token_range ranges[512];
    uint64_t length, sum = 0;
    size_t count;
    bool more;

    *first_out = UINT64_MAX;
    assert_ok(qr_session_lookup(f->store, f->ns, s->session, &what, 3, ranges,
                                ARRAY_LEN(ranges), &count, &more, &length, NULL));
    for (size_t i = 0; i < count; i++) {
        sum += ranges[i].tokens;
        *first_out = qr_min_u64(*first_out, ranges[i].position);
    }
    return sum;
}

/* A restore makes room by evicting; what it restored or compared must not be what goes. */
static void a_repeat_that_is_ok_is_there(void **state)
{
    struct fixture f;
    struct qr_error e;
    uint64_t first;
    uint32_t n = 0, restored = 0;
    (void)state;

    fixture_start(&f, 4u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    while (fixture_metric(&f, "pages_evicted") < 20) {
        assert_ok(fixture_append(&f, &s, n, 64, 1, NULL));
        n += 64;
    }
    assert_true(lost_in(&f, &s, 0, n, &first) > 0);
    for (uint32_t tokens = 32; tokens <= 1024; tokens *= 2) {
        const uint64_t start = qr_min_u64(first, n - 64 - tokens) / 32 * 32;
        const quire_status status = fixture_append(&f, &s, start, tokens, 1, &e);
        uint64_t there;
        if (status == QUIRE_OK)
            assert_int_equal(lost_in(&f, &s, start, tokens, &there), 0);
        else
            assert_status(QUIRE_EFULL, status);
        restored += status == QUIRE_OK;
        (void)lost_in(&f, &s, 0, n, &first);
    }
    assert_true(restored > 0);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_repeat_that_is_ok_is_there),
        cmocka_unit_test(overload_stays_within_the_budget),
        cmocka_unit_test(metadata_is_at_most_128_bytes_a_page),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(append_and_fetch_allocate_nothing_once_warm),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
