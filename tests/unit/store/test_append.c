/* SPDX-License-Identifier: Apache-2.0
 *
 * Appended rows come back: as FP16 from the tail, as the page that encoding them gives once
 * they are sealed; repeats are compared, gaps refused, and what fails changes nothing.
 */
#include "fixture.h"

static void rows_come_back_from_tail_and_pages(void **state)
{
    struct fixture f;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 20, 7, NULL));
    struct fixture_seen seen = fixture_fetch_all(&f, &s, 0, 20, 7);
    assert_int_equal(seen.pages, 0);
    assert_int_equal(seen.rows, 2);
    assert_ok(fixture_append(&f, &s, 20, 180, 7, NULL)); /* 200: sealed (200 - 32) / 32 = 5 */
    seen = fixture_fetch_all(&f, &s, 0, 200, 7);
    assert_int_equal(seen.pages, 2 * 5);
    assert_int_equal(seen.rows, 2 * 2);
    seen = fixture_fetch_all(&f, &s, 33, 100, 7);
    assert_int_equal(seen.tokens, 200);
    fixture_end(&f);
}

static void tokens_one_by_one_seal_when_the_window_passed(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    for (uint32_t n = 0; n < 140; n++) {
        assert_ok(fixture_append(&f, &s, n, 1, 3, NULL));
        assert_ok(qr_session_info(f.store, f.ns, "a", &info, NULL));
        assert_int_equal(info.length, n + 1);
        assert_int_equal(info.sealed, n + 1 < 32 ? 0 : (n + 1 - 32) / 32 * 32);
    }
    fixture_fetch_all(&f, &s, 0, 140, 3);
    fixture_end(&f);
}

static void layers_may_be_appended_one_after_the_other(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    struct qr_append_result result;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    struct qr_append a = fixture_all(&s, 0, 100);
    a.layers = 1;
    assert_ok(fixture_append_as(&f, &a, 1, &result, NULL));
    assert_int_equal(result.length, 100);
    assert_int_equal(result.committed, 0);
    a.first_layer = 1; /* has no KV cache */
    assert_status(QUIRE_EINVAL, fixture_append_as(&f, &a, 1, &result, &e));
    a.first_layer = 2;
    assert_ok(fixture_append_as(&f, &a, 1, &result, NULL));
    assert_int_equal(result.committed, 100);
    assert_ok(qr_session_info(f.store, f.ns, "a", &info, NULL));
    assert_int_equal(info.pages, 4);
    assert_int_equal(info.missing_pages, 0);
    fixture_fetch_all(&f, &s, 0, 100, 1);
    fixture_end(&f);
}

static void head_shards_are_lanes_of_their_own(void **state)
{
    struct fixture f;
    struct qr_append_result result;
    (void)state;

    fixture_start(&f, 16u << 20);
    f.head_shards = 2;
    const struct qr_session_info s = fixture_open(&f, "a");
    struct qr_append a = fixture_all(&s, 0, 100);
    assert_ok(fixture_append_as(&f, &a, 1, &result, NULL));
    assert_int_equal(result.committed, 0);
    a.shard = 1;
    assert_ok(fixture_append_as(&f, &a, 1, &result, NULL));
    assert_int_equal(result.committed, 100);
    struct fixture_seen seen = fixture_fetch_all(&f, &s, 0, 100, 1);
    assert_int_equal(seen.tokens, 400);
    const struct qr_fetch some = {
        .session = s.session, .tokens = 100, .layers = 1, .first_head = 2, .heads = 2};
    seen = fixture_fetch(&f, &some, 1);
    assert_int_equal(seen.tokens, 100);
    fixture_end(&f);
}

static void repeats_are_compared(void **state)
{
    struct fixture f;
    struct qr_append_result result;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 150, 1, NULL));
    struct qr_append a = fixture_all(&s, 0, 150);
    assert_ok(fixture_append_as(&f, &a, 1, &result, NULL));
    assert_int_equal(result.repeated_tokens, 150);
    assert_int_equal(result.length, 150);
    a = fixture_all(&s, 10, 30); /* inside pages, across a block border */
    assert_ok(fixture_append_as(&f, &a, 1, &result, NULL));
    a = fixture_all(&s, 40, 170); /* sealed, tail, and new rows */
    assert_ok(fixture_append_as(&f, &a, 1, &result, NULL));
    assert_int_equal(result.repeated_tokens, 110);
    assert_int_equal(result.length, 210);
    fixture_fetch_all(&f, &s, 0, 210, 1);

    a = fixture_all(&s, 40, 170);
    assert_status(QUIRE_ECONFLICT, fixture_append_as(&f, &a, 2, &result, &e));
    assert_int_equal(e.position, 40);
    a = fixture_all(&s, 200, 20);
    assert_status(QUIRE_ECONFLICT, fixture_append_as(&f, &a, 2, &result, &e));
    assert_int_equal(e.position, 200);
    fixture_fetch_all(&f, &s, 0, 210, 1);
    fixture_end(&f);
}

static void a_gap_is_refused_with_the_length(void **state)
{
    struct fixture f;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 10, 1, NULL));
    assert_status(QUIRE_EGAP, fixture_append(&f, &s, 11, 5, 1, &e));
    assert_int_equal(e.length, 10);
    assert_non_null(strstr(e.text, "10"));
    fixture_end(&f);
}

static void bad_values_name_their_place_and_change_nothing(void **state)
{
    static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e00};
    struct fixture f;
    struct qr_error e;
    struct qr_append_result result;
    struct qr_session_info info;
    uint16_t *rows;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 50, 1, NULL));
    const struct qr_append a = fixture_all(&s, 50, 100);
    const size_t bytes = fixture_rows(&f, &a, 1, &rows);
    /* Layer 2 comes after 100 tokens of layer 0: V of token 17, head 1, channel 5. */
    const size_t at = 100 * 4 * 64 + 100 * 2 * 64 + 17 * 2 * 32 + 32 + 5;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        rows[at] = bad[i];
        struct memory_source m = memory_source(rows, bytes);
        assert_status(QUIRE_EVALUE, qr_append_rows(f.store, f.ns, &a, &m.source, &result, &e));
        assert_int_equal(e.layer, 2);
        assert_int_equal(e.position, 67);
        assert_int_equal(e.head, 1);
        assert_int_equal(e.channel, 5);
        assert_ok(qr_session_info(f.store, f.ns, "a", &info, NULL));
        assert_int_equal(info.length, 50);
        assert_int_equal(info.longest, 50);
    }
    free(rows);
    fixture_fetch_all(&f, &s, 0, 50, 1);
    assert_ok(fixture_append(&f, &s, 50, 100, 1, NULL));
    fixture_fetch_all(&f, &s, 0, 150, 1);
    fixture_end(&f);
}

static void other_dtypes_are_rounded_to_fp16(void **state)
{
    struct fixture f;
    struct qr_append_result result;
    struct qr_error e;
    uint16_t *rows;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    struct qr_append a = fixture_all(&s, 0, 100);
    const size_t n = fixture_rows(&f, &a, 1, &rows) / 2;
    float *wide = malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        _Float16 half;
        memcpy(&half, &rows[i], 2);
        wide[i] = (float)half;
    }
    a.dtype = QR_F32;
    struct memory_source m = memory_source(wide, n * sizeof(float));
    assert_ok(qr_append_rows(f.store, f.ns, &a, &m.source, &result, NULL));
    fixture_fetch_all(&f, &s, 0, 100, 1);
    a.position = 100;
    wide[3 * 4 * 32 + 32 + 1] = 65520.0f;
    m = memory_source(wide, n * sizeof(float));
    assert_status(QUIRE_EVALUE, qr_append_rows(f.store, f.ns, &a, &m.source, &result, &e));
    assert_int_equal(e.position, 103);
    assert_int_equal(e.head, 1);
    assert_int_equal(e.channel, 1);
    free(wide);
    free(rows);
    fixture_end(&f);
}

static void senseless_requests_are_refused(void **state)
{
    struct fixture f;
    struct qr_append_result result;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    const struct qr_append good = fixture_all(&s, 0, 4);
    struct {
        struct qr_append append;
        quire_status status;
    } cases[10];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cases[i].append = good;
        cases[i].status = QUIRE_EINVAL;
    }
    cases[0].append.tokens = 0;
    cases[1].append.layers = 0;
    cases[2].append.first_layer = 1; /* +3 passes the end */
    cases[3].append.layers = UINT32_MAX;
    cases[4].append.shard = 1;
    cases[5].append.dtype = (enum qr_dtype)9;
    cases[6].append.position = (uint64_t)1 << 24;
    cases[6].status = QUIRE_ETOOBIG;
    cases[7].append.durable = true;
    cases[7].status = QUIRE_EUNSUPPORTED;
    cases[8].append.session += 1;
    cases[8].status = QUIRE_ENOTFOUND;
    cases[9].append.epoch += 1;
    cases[9].status = QUIRE_EFENCED;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct memory_source m = memory_source("", 0);
        assert_status(cases[i].status,
                      qr_append_rows(f.store, f.ns, &cases[i].append, &m.source, &result, &e));
        assert_true(strlen(e.text) > 0);
    }
    struct memory_source m = memory_source("12", 2);
    assert_status(QUIRE_EINVAL, qr_append_rows(f.store, f.ns, &good, &m.source, &result, &e));
    assert_non_null(strstr(e.text, "2 bytes"));
    fixture_end(&f);
}

/* What a request claims takes no room before its rows are found to be there. */
static void rows_that_are_not_there_take_no_metadata(void **state)
{
    struct fixture f;
    struct qr_append_result result;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    const double before = fixture_metric(&f, "metadata_bytes");
    const struct qr_append claims = fixture_all(&s, 0, 1u << 20);
    struct memory_source m = memory_source("12", 2);
    assert_status(QUIRE_EINVAL, qr_append_rows(f.store, f.ns, &claims, &m.source, &result, &e));
    assert_int_equal((long)fixture_metric(&f, "metadata_bytes"), (long)before);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_back_from_tail_and_pages),
        cmocka_unit_test(tokens_one_by_one_seal_when_the_window_passed),
        cmocka_unit_test(layers_may_be_appended_one_after_the_other),
        cmocka_unit_test(head_shards_are_lanes_of_their_own),
        cmocka_unit_test(repeats_are_compared),
        cmocka_unit_test(a_gap_is_refused_with_the_length),
        cmocka_unit_test(bad_values_name_their_place_and_change_nothing),
        cmocka_unit_test(other_dtypes_are_rounded_to_fp16),
        cmocka_unit_test(senseless_requests_are_refused),
        cmocka_unit_test(rows_that_are_not_there_take_no_metadata),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
