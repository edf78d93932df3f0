/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions with the same token ids share pages when their values are the same, and never read
 * each other's values when they are not.
 */
#include "fixture.h"

#define TOKENS 200

static uint32_t ids[TOKENS];

static quire_status append_ids(struct fixture *f, const struct qr_session_info *s,
                               uint64_t position, uint32_t tokens, uint32_t salt,
                               struct qr_error *e)
{
    struct qr_append append = fixture_all(s, position, tokens);
    struct qr_append_result result;

    append.token_ids = ids + position;
    return fixture_append_as(f, &append, salt, &result, e);
}

static void start(struct fixture *f)
{
    fixture_start(f, 16u << 20);
    for (uint32_t i = 0; i < TOKENS; i++)
        ids[i] = 1000 + i * 7;
}

static void equal_prefixes_are_stored_once(void **state)
{
    struct fixture f;
    (void)state;

    start(&f);
    const struct qr_session_info a = fixture_open(&f, "a"), b = fixture_open(&f, "b");
    assert_ok(append_ids(&f, &a, 0, TOKENS, 1, NULL));
    const double pages = fixture_metric(&f, "pages_resident");
    for (uint32_t n = 0; n < TOKENS; n += 20)
        assert_ok(append_ids(&f, &b, n, 20, 1, NULL));
    assert_true(fixture_metric(&f, "pages_resident") == pages);
    assert_true(fixture_metric(&f, "pages_shared") == pages);
    assert_ok(qr_session_drop(f.store, f.ns, "a", true, NULL));
    fixture_fetch_all(&f, &b, 0, TOKENS, 1);
    fixture_end(&f);
}

static void other_values_under_equal_ids_are_kept_apart(void **state)
{
    struct fixture f;
    (void)state;

    start(&f);
    const struct qr_session_info a = fixture_open(&f, "a"), b = fixture_open(&f, "b");
    assert_ok(append_ids(&f, &a, 0, TOKENS, 1, NULL));
    assert_ok(append_ids(&f, &b, 0, TOKENS, 2, NULL));
    assert_true(fixture_metric(&f, "pages_unshared") > 0);
    fixture_fetch_all(&f, &a, 0, TOKENS, 1);
    fixture_fetch_all(&f, &b, 0, TOKENS, 2);
    assert_ok(append_ids(&f, &b, 0, TOKENS, 2, NULL)); /* its own repeat */
    struct qr_session_info fork;
    assert_ok(qr_session_fork(f.store, f.ns, "b", "c", 0, 0, &fork, NULL));
    fixture_fetch_all(&f, &fork, 0, TOKENS, 2);
    fixture_end(&f);
}

static void without_ids_nothing_is_shared(void **state)
{
    struct fixture f;
    (void)state;

    start(&f);
    const struct qr_session_info a = fixture_open(&f, "a"), b = fixture_open(&f, "b");
    assert_ok(fixture_append(&f, &a, 0, TOKENS, 1, NULL));
    assert_ok(append_ids(&f, &b, 0, TOKENS, 1, NULL));
    assert_true(fixture_metric(&f, "pages_shared") == 0);
    fixture_end(&f);
}

static void one_other_token_ends_the_common_prefix(void **state)
{
    struct fixture f;
    (void)state;

    start(&f);
    const struct qr_session_info a = fixture_open(&f, "a"), b = fixture_open(&f, "b");
    assert_ok(append_ids(&f, &a, 0, TOKENS, 1, NULL)); /* 5 blocks */
    ids[70] ^= 1;                                      /* in block 2 */
    assert_ok(append_ids(&f, &b, 0, TOKENS, 1, NULL));
    assert_true(fixture_metric(&f, "pages_shared") == 2 * 2);
    fixture_end(&f);
}

static void ids_that_contradict_are_refused_and_failed_ones_forgotten(void **state)
{
    struct fixture f;
    struct qr_error e;
    (void)state;

    start(&f);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(append_ids(&f, &s, 0, 100, 1, NULL));
    ids[95] ^= 1; /* not sealed */
    assert_status(QUIRE_ECONFLICT, append_ids(&f, &s, 90, 20, 1, &e));
    assert_int_equal(e.position, 95);
    ids[95] ^= 1;
    ids[10] ^= 1; /* in a sealed block that is given whole */
    assert_status(QUIRE_ECONFLICT, append_ids(&f, &s, 0, 40, 1, &e));
    assert_int_equal(e.position, 0); /* its hash alone is kept: the text names the block */
    assert_int_equal(e.tokens, 32);
    assert_non_null(strstr(e.text, "[0, +32)"));
    ids[10] ^= 1;

    /* An append that fails leaves none of its ids behind. */
    ids[110] ^= 1;
    struct qr_append bad = fixture_all(&s, 100, 20);
    struct qr_append_result result;
    bad.token_ids = ids + 100;
    uint16_t *rows;
    const size_t bytes = fixture_rows(&f, &bad, 1, &rows);
    rows[bytes / 2 - 1] = 0x7c00;
    struct memory_source m = memory_source(rows, bytes);
    assert_status(QUIRE_EVALUE, qr_append_rows(f.store, f.ns, &bad, &m.source, &result, &e));
    free(rows);
    ids[110] ^= 1;
    assert_ok(append_ids(&f, &s, 100, 100, 1, NULL));
    const struct qr_session_info t = fixture_open(&f, "t");
    assert_ok(append_ids(&f, &t, 0, TOKENS, 1, NULL));
    assert_true(fixture_metric(&f, "pages_shared") == 2 * 5);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_prefixes_are_stored_once),
        cmocka_unit_test(other_values_under_equal_ids_are_kept_apart),
        cmocka_unit_test(without_ids_nothing_is_shared),
        cmocka_unit_test(one_other_token_ends_the_common_prefix),
        cmocka_unit_test(ids_that_contradict_are_refused_and_failed_ones_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
