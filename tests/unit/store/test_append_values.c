/* SPDX-License-Identifier: Apache-2.0
 *
 * A page that a client sealed is taken when its values are finite; with a scale that decodes to
 * infinity it is refused like the rows it would have come from, and nothing changes.
 */
#include "fixture.h"

/* Layer 0, first block, as a client seals it. */
static void *sealed_page(const struct fixture *f, size_t *bytes)
{
    const struct qr_layer *l = &f->model.layers[0];
    const size_t row = (size_t)l->kv_heads * l->key_dim; /* dims of K and V are equal */
    struct qr_page_identity id = {.heads = l->kv_heads,
                                  .key_dim = l->key_dim,
                                  .value_dim = l->value_dim,
                                  .rope_stored = l->rope_stored,
                                  .rope_layout = (uint8_t)f->model.ropes[0].layout,
                                  .page_tokens = f->policy.page_tokens,
                                  .key = f->policy.key,
                                  .value = f->policy.value};
    memcpy(id.fingerprint, f->model.fingerprint, QR_HASH_BYTES);
    uint16_t *data = malloc(f->policy.page_tokens * row * 2);
    assert_non_null(data);
    for (size_t i = 0; i < f->policy.page_tokens * row; i++)
        data[i] = fixture_value(1, 0, 0, i / row, 0, (uint32_t)(i % row));
    const struct qr_rows rows = {.data = data, .token_stride = row, .head_stride = l->key_dim};
    const size_t most = qr_page_bytes_max(&id, &f->policy);
    void *page = aligned_alloc(QR_PAGE_ALIGN, (most + 63) / 64 * 64);
    assert_non_null(page);
    assert_ok(qr_page_encode(&id, &f->policy, &rows, &rows, page, most, bytes, NULL));
    free(data);
    return page;
}

static quire_status append_page(struct fixture *f, const struct qr_session_info *s,
                                const void *page, size_t bytes, struct qr_error *e)
{
    struct qr_append a = fixture_all(s, 0, f->policy.page_tokens);
    struct memory_source m = memory_source(page, bytes);
    struct qr_append_result result;
    a.layers = 1;
    return qr_append_page(f->store, f->ns, &a, bytes, &m.source, &result, e);
}

static void pages_with_infinite_values_are_refused(void **state)
{
    struct fixture f;
    struct qr_session_info info;
    struct qr_page_view view;
    struct qr_error e = {0};
    size_t bytes;
    (void)state;
    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "a");
    uint8_t *page = sealed_page(&f, &bytes);
    assert_ok(qr_page_open(page, bytes, &view, NULL));
    uint16_t *scale = (uint16_t *)(void *)(page + (view.value_scales - page));
    const uint16_t good = *scale;

    *scale = 0x7c00;
    qr_page_finish(page);
    assert_status(QUIRE_EVALUE, append_page(&f, &s, page, bytes, &e));
    assert_non_null(strstr(e.text, "value group 0: scale 0x7c00"));
    assert_ok(qr_session_info(f.store, f.ns, "a", &info, NULL));
    assert_int_equal(info.longest, 0);

    *scale = good;
    qr_page_finish(page);
    if (append_page(&f, &s, page, bytes, &e) != QUIRE_OK)
        fail_msg("%s", e.text);
    assert_ok(qr_session_info(f.store, f.ns, "a", &info, NULL));
    assert_int_equal(info.longest, f.policy.page_tokens);
    free(page);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_with_infinite_values_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
