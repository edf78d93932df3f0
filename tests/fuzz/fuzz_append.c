/* SPDX-License-Identifier: Apache-2.0
 *
 * AppendRequests of strangers: parsed or refused, and where protobuf-c reads the message too,
 * both read the same. The first byte says where the rest is cut into fragments.
 */
#include "fuzz_wire.h"

static void compare(const struct qr_wire_append_view *view,
                    const Quire__V1__AppendRequest *want)
{
    const struct qr_wire_append *got = &view->fields;
    assert(got->session == want->session && got->epoch == want->epoch);
    assert(got->position == want->position && got->tokens == want->tokens);
    assert(got->first_layer == want->first_layer && got->layers == want->layers);
    assert(got->shard == want->shard);
    assert(got->dtype == (uint32_t)want->dtype);
    assert(got->durability == (uint32_t)want->durability);
    assert(view->token_id_count == want->n_token_ids && view->page_count == want->n_pages);
    fuzz_same_bytes(view->rows, &want->rows);

    uint32_t *ids = malloc((view->token_id_count + 1) * sizeof(*ids));
    assert(ids);
    qr_wire_append_token_ids(view, ids);
    for (size_t i = 0; i < view->token_id_count; i++)
        assert(ids[i] == want->token_ids[i]);
    free(ids);

    struct qr_wire_cursor at = view->all, page;
    for (size_t i = 0; i < view->page_count; i++) {
        assert(qr_wire_append_next_page(&at, &page));
        fuzz_same_bytes(page, &want->pages[i]);
    }
    assert(!qr_wire_append_next_page(&at, &page));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct qr_wire_fragment fragments[2];
    struct qr_wire_append_view view;
    struct qr_error e = {0};
    if (size == 0)
        return 0;
    const size_t at = data[0] < size ? data[0] : size - 1;
    fuzz_cut(data + 1, size - 1, at, fragments);
    const quire_status status = qr_wire_append_parse(fragments, 2, &view, &e);
    assert(status == QUIRE_OK || (status == QUIRE_EINVAL && e.text[0]));
    const void *want = fuzz_unpack(&quire__v1__append_request__descriptor, fragments, 2);
    if (status == QUIRE_OK && want)
        compare(&view, want);
    fuzz_uncut(fragments);
    return 0;
}
