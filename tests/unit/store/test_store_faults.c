/* SPDX-License-Identifier: Apache-2.0
 *
 * The n-th reservation fails, for n = 1, 2, ... until the call succeeds: before that nothing
 * changed. A budget full of pinned pages is an error with a hint, at once. Damaged memory is
 * found on the read.
 */
#include "fixture.h"

struct faulty_tier {
    struct qr_tier tier;
    struct qr_tier *inner;
    uint32_t good_left; /* reservations that still succeed; UINT32_MAX: all */
};

static struct faulty_tier *faulty_of(struct qr_tier *tier)
{
    return (struct faulty_tier *)(void *)tier;
}

static void faulty_destroy(struct qr_tier **tier)
{
    struct faulty_tier *t = faulty_of(*tier);

    t->inner->ops->destroy(&t->inner);
    free(t);
    *tier = NULL;
}

/* ETOOBIG, not EFULL: the store must not be able to help itself by evicting. */
static quire_status faulty_reserve(struct qr_tier *tier, size_t bytes, struct qr_slot *out)
{
    struct faulty_tier *t = faulty_of(tier);

    if (t->good_left == 0)
        return QUIRE_ETOOBIG;
    if (t->good_left != UINT32_MAX)
        t->good_left--;
    return t->inner->ops->reserve(t->inner, bytes, out);
}

static size_t faulty_rounded(struct qr_tier *tier, size_t bytes)
{
    return faulty_of(tier)->inner->ops->rounded(faulty_of(tier)->inner, bytes);
}

static void faulty_release(struct qr_tier *tier, struct qr_slot *slot)
{
    faulty_of(tier)->inner->ops->release(faulty_of(tier)->inner, slot);
}

static void *faulty_map(struct qr_tier *tier, const struct qr_slot *slot)
{
    return faulty_of(tier)->inner->ops->map(faulty_of(tier)->inner, slot);
}

static void faulty_stat(struct qr_tier *tier, struct qr_tier_stat *out)
{
    faulty_of(tier)->inner->ops->stat(faulty_of(tier)->inner, out);
}

static const struct qr_tier_ops faulty_ops = {.name = "faulty",
                                              .destroy = faulty_destroy,
                                              .reserve = faulty_reserve,
                                              .rounded = faulty_rounded,
                                              .release = faulty_release,
                                              .map = faulty_map,
                                              .stat = faulty_stat};

static struct faulty_tier *start_faulty(struct fixture *f)
{
    const struct qr_store_config config = fixture_config(16u << 20);
    const struct qr_tier_host_config host = {.budget_bytes = 16u << 20};
    struct faulty_tier *t = calloc(1, sizeof(*t));

    assert_ok(qr_tier_host_create(&host, &t->inner, NULL));
    t->tier.ops = &faulty_ops;
    t->tier.regions_max = t->inner->regions_max;
    t->good_left = UINT32_MAX;
    memset(f, 0, sizeof(*f));
    f->head_shards = 1;
    fixture_model(&f->model);
    fixture_policy(&f->policy);
    assert_ok(qr_store_create_on(&config, &t->tier, &f->store, NULL));
    assert_ok(qr_store_namespace(f->store, "tests", &f->ns, NULL));
    assert_ok(qr_store_model_put(f->store, &f->model, NULL));
    return t;
}

/* Append [position, +tokens) with the n-th reservation failing, for growing n. */
static void fail_at_every_reservation(struct fixture *f, struct faulty_tier *t,
                                      const struct qr_session_info *s, uint64_t position,
                                      uint32_t tokens)
{
    struct qr_session_info before, after;
    struct qr_error e;
    quire_status status = QUIRE_ETOOBIG;
    uint32_t n = 0;

    for (; status != QUIRE_OK; n++) {
        const double slots = fixture_metric(f, "host_slots");
        const double known = fixture_metric(f, "pages_known");
        assert_ok(qr_session_info(f->store, f->ns, s->name, &before, NULL));
        t->good_left = n;
        status = fixture_append(f, s, position, tokens, 1, &e);
        t->good_left = UINT32_MAX;
        if (status == QUIRE_OK)
            break;
        assert_int_equal(status, QUIRE_ETOOBIG);
        assert_ok(qr_session_info(f->store, f->ns, s->name, &after, NULL));
        assert_memory_equal(&before, &after, sizeof(before));
        assert_true(fixture_metric(f, "host_slots") == slots);
        assert_true(fixture_metric(f, "pages_known") == known);
        if (before.length > 0)
            fixture_fetch_all(f, s, 0, before.length, 1);
    }
    assert_true(n > 0);
    fixture_fetch_all(f, s, 0, position + tokens, 1);
}

static void a_failed_append_changes_nothing(void **state)
{
    struct fixture f;
    struct faulty_tier *t = start_faulty(&f);
    struct qr_session_info fork;
    (void)state;

    const struct qr_session_info s = fixture_open(&f, "a");
    fail_at_every_reservation(&f, t, &s, 0, 20);   /* first chunks */
    fail_at_every_reservation(&f, t, &s, 20, 150); /* chunks and pages */
    fail_at_every_reservation(&f, t, &s, 50, 170); /* repeats, chunks, pages */
    fail_at_every_reservation(&f, t, &s, 220, 5);  /* one chunk */
    assert_ok(qr_session_fork(f.store, f.ns, "a", "b", 0, 0, &fork, NULL));
    fail_at_every_reservation(&f, t, &s, 225, 3); /* copies of shared chunks */
    fixture_fetch_all(&f, &fork, 0, 225, 1);
    fixture_end(&f);
}

static void pinned_pages_cannot_be_evicted(void **state)
{
    static struct qr_part parts[4096];
    struct qr_fetch_cursor *cursor;
    struct fixture f;
    struct qr_error e = {0};
    size_t n = 0;
    uint32_t length = 0;
    (void)state;

    fixture_start(&f, 4u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    while (fixture_metric(&f, "pages_evicted") == 0) {
        assert_ok(fixture_append(&f, &s, length, 32, 1, NULL));
        length += 32;
    }
    const struct qr_fetch fetch = {.session = s.session, .tokens = length, .layers = 3};
    assert_ok(qr_fetch_open(f.store, f.ns, &fetch, &cursor, NULL));
    while (qr_fetch_next(cursor, &parts[n]))
        n++;
    qr_fetch_close(&cursor);

    quire_status status = QUIRE_OK;
    for (int i = 0; i < 1000 && status == QUIRE_OK; i++) {
        status = fixture_append(&f, &s, length, 32, 1, &e);
        length += status == QUIRE_OK ? 32 : 0;
    }
    assert_int_equal(status, QUIRE_EFULL);
    assert_true(e.retry_after_ms > 0);
    for (size_t i = 0; i < n; i++) {
        if (parts[i].page)
            fixture_check_page(&f, &parts[i], 1);
        qr_part_release(f.store, parts[i].pin);
    }
    assert_ok(fixture_append(&f, &s, length, 32, 1, &e));
    fixture_end(&f);
}

static void damaged_pages_are_dropped_and_can_be_restored(void **state)
{
    struct fixture f;
    struct qr_fetch_cursor *cursor;
    struct qr_part part;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 200, 1, NULL));
    const struct qr_fetch fetch = {.session = s.session, .tokens = 32, .layers = 1};
    assert_ok(qr_fetch_open(f.store, f.ns, &fetch, &cursor, NULL));
    assert_true(qr_fetch_next(cursor, &part));
    ((uint8_t *)(uintptr_t)part.page)[part.page_bytes / 2] ^= 1;
    qr_part_release(f.store, part.pin);
    qr_fetch_close(&cursor);

    for (int i = 0; i < 2; i++) { /* found once, remembered afterwards */
        const struct fixture_seen seen = fixture_fetch_all(&f, &s, 0, 200, 1);
        assert_int_equal(seen.corrupt, 1);
        assert_int_equal(seen.missing_tokens, 32);
        assert_true(fixture_metric(&f, "pages_corrupt") == 1);
    }
    struct qr_append a = fixture_all(&s, 0, 32);
    struct qr_append_result result;
    assert_ok(fixture_append_as(&f, &a, 1, &result, NULL));
    assert_int_equal(fixture_fetch_all(&f, &s, 0, 200, 1).corrupt, 0);
    fixture_end(&f);
}

static void metadata_has_a_limit_too(void **state)
{
    struct fixture f;
    struct qr_error e = {0};
    quire_status status = QUIRE_OK;
    uint64_t length = 0;
    (void)state;

    fixture_start(&f, 4u << 20);
    atomic_store(&f.store->meta.used_bytes, f.store->meta.limit_bytes - 150000);
    const struct qr_session_info s = fixture_open(&f, "a");
    for (int i = 0; i < 20000 && status == QUIRE_OK; i++) {
        status = fixture_append(&f, &s, length, 320, 1, &e);
        length += status == QUIRE_OK ? 320 : 0;
    }
    assert_int_equal(status, QUIRE_EFULL);
    assert_non_null(strstr(e.text, "drop sessions"));
    assert_true(fixture_metric(&f, "metadata_bytes") <=
                fixture_metric(&f, "metadata_limit_bytes"));
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_append_changes_nothing),
        cmocka_unit_test(pinned_pages_cannot_be_evicted),
        cmocka_unit_test(damaged_pages_are_dropped_and_can_be_restored),
        cmocka_unit_test(metadata_has_a_limit_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
