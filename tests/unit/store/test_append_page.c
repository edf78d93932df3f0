/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages that a client sealed are believed in nothing, kept as they are but for their block id,
 * and count like rows: repeats compare, holes are filled.
 */
#include "fixture.h"

struct sealed {
    uint8_t *bytes; /* 64-byte aligned */
    size_t n;
};

/* What a client makes of block `block` of a lane: block id zero. */
static struct sealed seal(const struct fixture *f, uint32_t layer, uint32_t block,
                          uint32_t salt)
{
    const struct qr_layer *l = &f->model.layers[layer];
    const struct qr_append a = {.position = (uint64_t)block * f->policy.page_tokens,
                                .tokens = f->policy.page_tokens,
                                .first_layer = layer,
                                .layers = 1};
    struct qr_page_identity id = {.layer = layer,
                                  .heads = l->kv_heads,
                                  .key_dim = l->key_dim,
                                  .value_dim = l->value_dim,
                                  .rope_stored = l->rope_stored,
                                  .rope_layout = QR_ROPE_HALF,
                                  .page_tokens = f->policy.page_tokens,
                                  .first_position = a.position,
                                  .key = f->policy.key,
                                  .value = f->policy.value};
    memcpy(id.fingerprint, f->model.fingerprint, QR_HASH_BYTES);
    uint16_t *rows;
    (void)fixture_rows(f, &a, salt, &rows);
    const size_t key_row = (size_t)l->kv_heads * l->key_dim;
    const struct qr_rows key = {
        .data = rows, .token_stride = key_row, .head_stride = l->key_dim};
    const struct qr_rows value = {.data = rows + key_row * a.tokens,
                                  .token_stride = (size_t)l->kv_heads * l->value_dim,
                                  .head_stride = l->value_dim};
    const size_t most = qr_page_bytes_max(&id, &f->policy);
    struct sealed out = {.bytes = aligned_alloc(64, (most + 63) / 64 * 64)};
    assert_ok(qr_page_encode(&id, &f->policy, &key, &value, out.bytes, most, &out.n, NULL));
    free(rows);
    return out;
}

static struct qr_append place(const struct fixture *f, const struct qr_session_info *s,
                              uint32_t layer, uint32_t block)
{
    return (struct qr_append){.session = s->session,
                              .epoch = s->epoch,
                              .position = (uint64_t)block * f->policy.page_tokens,
                              .tokens = f->policy.page_tokens,
                              .first_layer = layer,
                              .layers = 1};
}

static quire_status send(struct fixture *f, const struct qr_append *append, struct sealed page,
                         struct qr_append_result *out, struct qr_error *e)
{
    struct memory_source m = memory_source(page.bytes, page.n);
    return qr_append_page(f->store, f->ns, append, page.n, &m.source, out, e);
}

static quire_status send_block(struct fixture *f, const struct qr_session_info *s,
                               uint32_t layer, uint32_t block, uint32_t salt,
                               struct qr_append_result *out, struct qr_error *e)
{
    const struct qr_append append = place(f, s, layer, block);
    struct sealed page = seal(f, layer, block, salt);
    const quire_status status = send(f, &append, page, out, e);

    free(page.bytes);
    return status;
}

static void pages_and_rows_make_one_sequence(void **state)
{
    struct fixture f;
    struct qr_append_result result;
    struct qr_session_info info;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 64, 1, NULL)); /* block 0 sealed, block 1 in the tail */
    for (uint32_t block = 2; block < 6; block++) {
        for (uint32_t layer = 0; layer < 3; layer += 2)
            assert_ok(send_block(&f, &s, layer, block, 1, &result, NULL));
        assert_int_equal(result.committed, (block + 1) * 32);
    }
    assert_ok(qr_session_info(f.store, f.ns, "a", &info, NULL));
    assert_int_equal(info.sealed, 192);
    assert_int_equal(info.tail_bytes, 0);
    assert_ok(fixture_append(&f, &s, 192, 70, 1, NULL));
    struct fixture_seen seen = fixture_fetch_all(&f, &s, 0, 262, 1);
    assert_int_equal(seen.pages, 2 * 7);
    fixture_end(&f);
}

static void repeats_compare_with_pages_and_tails(void **state)
{
    struct fixture f;
    struct qr_append_result result;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 64, 1, NULL));
    for (uint32_t block = 0; block < 2; block++) { /* a page; a whole block of the tail */
        assert_ok(send_block(&f, &s, 0, block, 1, &result, NULL));
        assert_int_equal(result.repeated_tokens, 32);
        assert_int_equal(result.length, 64);
        assert_status(QUIRE_ECONFLICT, send_block(&f, &s, 0, block, 2, &result, &e));
        assert_int_equal(e.position, block * 32);
    }
    assert_ok(send_block(&f, &s, 0, 2, 1, &result, NULL));
    struct qr_append rows = fixture_all(&s, 64, 32); /* rows against a client's page */
    rows.layers = 1;
    assert_ok(fixture_append_as(&f, &rows, 1, &result, NULL));
    assert_status(QUIRE_ECONFLICT, fixture_append_as(&f, &rows, 2, &result, &e));
    fixture_end(&f);
}

static uint32_t other_from_row_7(uint32_t salt, uint32_t layer, uint64_t position)
{
    (void)layer;
    return salt == 2 && position % 32 < 7 ? 1 : salt;
}

static void a_conflict_names_the_first_row(void **state)
{
    struct fixture f;
    struct qr_append_result result;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 16u << 20);
    fixture_salt_of = other_from_row_7;
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 64, 1, NULL));
    for (uint32_t block = 0; block < 2; block++) { /* a page; a whole block of the tail */
        assert_status(QUIRE_ECONFLICT, send_block(&f, &s, 0, block, 2, &result, &e));
        assert_int_equal(e.position, block * 32 + 7);
    }
    assert_ok(send_block(&f, &s, 0, 2, 1, &result, NULL));
    struct qr_append rows = fixture_all(&s, 64, 32);
    rows.layers = 1;
    assert_status(QUIRE_ECONFLICT, fixture_append_as(&f, &rows, 2, &result, &e));
    assert_int_equal(e.position, 64 + 7);
    fixture_salt_of = fixture_same_salt;
    fixture_end(&f);
}

/* Right row digests over wrong codes: nobody else may get them for the rows they stand for. */
static void pages_that_lie_are_not_shared(void **state)
{
    struct fixture f;
    struct qr_append_result result;
    struct qr_error e;
    struct qr_page_view view;
    uint32_t ids[32];
    (void)state;

    fixture_start(&f, 16u << 20);
    f.policy.window = 0;
    for (uint32_t i = 0; i < ARRAY_LEN(ids); i++)
        ids[i] = 7 + i;
    const struct qr_session_info liar = fixture_open(&f, "liar"),
                                 honest = fixture_open(&f, "b");
    const struct sealed page = seal(&f, 0, 0, 1);
    assert_ok(qr_page_open(page.bytes, page.n, &view, NULL));
    memset(page.bytes + (view.key_codes - page.bytes), 0, 512); /* K of head 0 */
    qr_page_finish((struct qr_page_header *)(void *)page.bytes);
    struct qr_append append = place(&f, &liar, 0, 0);
    append.token_ids = ids;
    assert_ok(send(&f, &append, page, &result, &e));
    append = fixture_all(&honest, 0, f.policy.page_tokens);
    append.token_ids = ids;
    assert_ok(fixture_append_as(&f, &append, 1, &result, &e));
    (void)fixture_fetch_all(&f, &honest, 0, f.policy.page_tokens, 1);
    free(page.bytes);
    fixture_end(&f);
}

static void places_that_are_not_blocks_are_refused(void **state)
{
    struct fixture f;
    struct qr_append_result result;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    assert_ok(fixture_append(&f, &s, 0, 70, 1, NULL));
    assert_status(QUIRE_EINVAL, send_block(&f, &s, 0, 2, 1, &result, &e)); /* partly there */
    assert_non_null(strstr(e.text, "96"));
    assert_status(QUIRE_EGAP, send_block(&f, &s, 0, 3, 1, &result, &e));
    struct sealed page = seal(&f, 0, 0, 1);
    struct qr_append bad = place(&f, &s, 0, 0);
    bad.position = 1;
    assert_status(QUIRE_EINVAL, send(&f, &bad, page, &result, &e));
    bad = place(&f, &s, 0, 0);
    bad.tokens = 31;
    assert_status(QUIRE_EINVAL, send(&f, &bad, page, &result, &e));
    bad = place(&f, &s, 0, 0);
    bad.layers = 3;
    assert_status(QUIRE_EINVAL, send(&f, &bad, page, &result, &e));
    bad = place(&f, &s, 1, 0);
    assert_status(QUIRE_EINVAL, send(&f, &bad, page, &result, &e));
    free(page.bytes);
    fixture_end(&f);
}

static void a_page_of_something_else_is_refused(void **state)
{
    struct fixture f;
    struct qr_append_result result;
    struct qr_error e;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    struct sealed page = seal(&f, 0, 1, 1); /* right page, wrong place */
    struct qr_append append = place(&f, &s, 0, 0);
    assert_status(QUIRE_EMISMATCH, send(&f, &append, page, &result, &e));
    free(page.bytes);
    page = seal(&f, 2, 0, 1); /* another layer */
    assert_int_not_equal(QUIRE_OK, send(&f, &append, page, &result, &e));
    free(page.bytes);

    page = seal(&f, 0, 0, 1);
    struct sealed cut = {.bytes = page.bytes, .n = page.n - 64};
    assert_int_not_equal(QUIRE_OK, send(&f, &append, cut, &result, &e));
    struct memory_source m = memory_source(page.bytes, page.n);
    assert_status(QUIRE_ECORRUPT,
                  qr_append_page(f.store, f.ns, &append, page.n - 64, &m.source, &result, &e));
    for (size_t i = 0; i < page.n; i += 1 + i / 50) {
        page.bytes[i] ^= 0x10;
        assert_int_not_equal(QUIRE_OK, send(&f, &append, page, &result, &e));
        page.bytes[i] ^= 0x10;
    }
    assert_int_equal((long)fixture_metric(&f, "host_slots"), 0);
    assert_ok(send(&f, &append, page, &result, NULL));
    free(page.bytes);
    const struct qr_fetch fetch = {.session = s.session, .tokens = 32, .layers = 1};
    fixture_fetch(&f, &fetch, 1);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_and_rows_make_one_sequence),
        cmocka_unit_test(a_conflict_names_the_first_row),
        cmocka_unit_test(repeats_compare_with_pages_and_tails),
        cmocka_unit_test(pages_that_lie_are_not_shared),
        cmocka_unit_test(places_that_are_not_blocks_are_refused),
        cmocka_unit_test(a_page_of_something_else_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
