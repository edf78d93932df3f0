/* SPDX-License-Identifier: Apache-2.0
 *
 * A session moved from one store to another by its manifest, its pages and its rows is the same
 * bit for bit, block ids included, and shares pages again. Claimed ids are believed in nothing:
 * other sessions of the namespace read their own values whatever was claimed.
 */
#include "fixture.h"

#define TOKENS 200 /* 6 blocks of 32, of which 5 are sealed, and 8 tokens */

static uint32_t ids[TOKENS];

static void append_ids(struct fixture *f, const struct qr_session_info *s, uint32_t salt)
{
    struct qr_append append = fixture_all(s, 0, TOKENS);
    struct qr_append_result result;

    for (append.shard = 0; append.shard < f->head_shards; append.shard++) {
        append.token_ids = ids;
        assert_ok(fixture_append_as(f, &append, salt, &result, NULL));
    }
}

static void start(struct fixture *from, struct fixture *to, uint32_t head_shards)
{
    fixture_start(from, 16u << 20);
    fixture_start(to, 16u << 20);
    from->head_shards = to->head_shards = head_shards;
    for (uint32_t i = 0; i < TOKENS; i++)
        ids[i] = 1000 + i * 7;
}

static struct qr_manifest *manifest_of(struct fixture *f, const struct qr_session_info *s)
{
    struct qr_manifest *m = NULL;
    struct qr_error e = {0};

    if (qr_session_manifest(f->store, f->ns, s->session, 0, UINT32_MAX, &m, &e))
        fail_msg("%s", e.text);
    return m;
}

static quire_status claim(struct fixture *f, const struct qr_session_info *s,
                          const struct qr_manifest *m, struct qr_error *e)
{
    const struct qr_block_claim c = {.session = s->session,
                                     .epoch = s->epoch,
                                     .count = m->block_count,
                                     .chained = m->chained,
                                     .ids = (const uint8_t(*)[QR_HASH_BYTES])m->block_ids};
    uint32_t blocks;
    const quire_status status = qr_session_claim(f->store, f->ns, &c, &blocks, e);

    if (!status)
        assert_true(blocks >= m->block_count);
    return status;
}

static quire_status give_part(struct fixture *to, const struct qr_session_info *s,
                              const struct qr_part *part, const struct qr_manifest *m)
{
    struct qr_append append = {.session = s->session,
                               .epoch = s->epoch,
                               .position = part->position,
                               .tokens = part->tokens,
                               .first_layer = part->layer,
                               .layers = 1,
                               .shard = part->first_head / part->heads,
                               .dtype = QR_F16};
    const struct qr_layer *l = &part->model->layers[part->layer];
    struct qr_append_result result;

    if (part->page) {
        struct memory_source page = memory_source(part->page, part->page_bytes);
        return qr_append_page(to->store, to->ns, &append, part->page_bytes, &page.source,
                              &result, NULL);
    }
    const size_t key = (size_t)part->tokens * part->heads * l->key_dim * 2;
    const size_t value = (size_t)part->tokens * part->heads * l->value_dim * 2;
    uint8_t *rows = malloc(key + value);
    memcpy(rows, part->key_rows, key);
    memcpy(rows + key, part->value_rows, value);
    struct memory_source source = memory_source(rows, key + value);
    if (m->token_count > 0 && part->position >= m->token_position && m->known[0])
        append.token_ids = m->token_ids + (part->position - m->token_position);
    const quire_status status =
        qr_append_rows(to->store, to->ns, &append, &source.source, &result, NULL);
    free(rows);
    return status;
}

/* Everything of `s` into a new session of `to`. */
static struct qr_session_info move(struct fixture *from, const struct qr_session_info *s,
                                   struct fixture *to, const char *name)
{
    struct qr_manifest *m = manifest_of(from, s);
    const struct qr_session_info out = fixture_open(to, name);
    const struct qr_fetch fetch = {
        .session = s->session, .tokens = m->length, .layers = from->model.layer_count};
    struct qr_fetch_cursor *cursor;
    struct qr_part part;

    assert_ok(claim(to, &out, m, NULL));
    assert_ok(qr_fetch_open(from->store, from->ns, &fetch, &cursor, NULL));
    while (qr_fetch_next(cursor, &part)) {
        assert_ok(give_part(to, &out, &part, m));
        qr_part_release(from->store, part.pin);
    }
    qr_fetch_close(&cursor);
    qr_manifest_free(&m);
    return out;
}

static void expect_equal_parts(const struct qr_part *a, const struct qr_part *b)
{
    assert_int_equal(a->status, QR_PART_OK);
    assert_int_equal(b->status, QR_PART_OK);
    assert_int_equal(a->position, b->position);
    assert_int_equal(a->tokens, b->tokens);
    assert_int_equal(a->page_bytes, b->page_bytes);
    const struct qr_layer *l = &a->model->layers[a->layer];
    const size_t rows = (size_t)a->tokens * a->heads * 2;
    if (a->page) {
        assert_memory_equal(a->page, b->page, a->page_bytes);
        return;
    }
    assert_memory_equal(a->key_rows, b->key_rows, rows * l->key_dim);
    assert_memory_equal(a->value_rows, b->value_rows, rows * l->value_dim);
}

static void expect_equal(struct fixture *fa, const struct qr_session_info *a,
                         struct fixture *fb, const struct qr_session_info *b)
{
    struct qr_fetch fetch = {.tokens = TOKENS, .layers = fa->model.layer_count};
    struct qr_fetch_cursor *ca, *cb;
    struct qr_part pa, pb;

    fetch.session = a->session;
    assert_ok(qr_fetch_open(fa->store, fa->ns, &fetch, &ca, NULL));
    fetch.session = b->session;
    assert_ok(qr_fetch_open(fb->store, fb->ns, &fetch, &cb, NULL));
    while (qr_fetch_next(ca, &pa)) {
        assert_true(qr_fetch_next(cb, &pb));
        expect_equal_parts(&pa, &pb);
        qr_part_release(fa->store, pa.pin);
        qr_part_release(fb->store, pb.pin);
    }
    assert_false(qr_fetch_next(cb, &pb));
    qr_fetch_close(&ca);
    qr_fetch_close(&cb);
}

static void a_moved_session_is_the_same_bit_for_bit(void **state)
{
    struct fixture from, to;
    (void)state;

    for (uint32_t shards = 1; shards <= 2; shards++) {
        start(&from, &to, shards);
        const struct qr_session_info a = fixture_open(&from, "a");
        append_ids(&from, &a, 1);
        const struct qr_session_info b = move(&from, &a, &to, "b");
        expect_equal(&from, &a, &to, &b);
        struct qr_manifest *ma = manifest_of(&from, &a), *mb = manifest_of(&to, &b);
        assert_int_equal(ma->block_count, 5);
        assert_int_equal(ma->chained, 5);
        assert_int_equal(ma->lane_count, 2 * shards);
        assert_int_equal(ma->token_count, TOKENS - 5 * 32);
        assert_int_equal(ma->token_position, 5 * 32);
        assert_int_equal(mb->block_count, 5);
        assert_int_equal(mb->chained, 5);
        assert_memory_equal(ma->block_ids, mb->block_ids, (size_t)5 * QR_HASH_BYTES);
        assert_memory_equal(ma->sealed, mb->sealed, ma->lane_count * sizeof(uint32_t));
        assert_int_equal(mb->token_count, ma->token_count);
        assert_memory_equal(ma->token_ids, mb->token_ids, ma->token_count * sizeof(uint32_t));
        assert_memory_equal(ma->token_ids, ids + 160, ma->token_count * sizeof(uint32_t));
        qr_manifest_free(&ma);
        qr_manifest_free(&mb);
        assert_null(mb);
        fixture_end(&from);
        fixture_end(&to);
    }
}

static void it_shares_its_prefix_again(void **state)
{
    struct fixture from, to;
    (void)state;

    start(&from, &to, 1);
    const struct qr_session_info a = fixture_open(&from, "a");
    append_ids(&from, &a, 1);
    (void)move(&from, &a, &to, "b");
    const double pages = fixture_metric(&to, "pages_resident");
    const struct qr_session_info c = fixture_open(&to, "c");
    append_ids(&to, &c, 1);
    assert_true(fixture_metric(&to, "pages_resident") == pages);
    assert_true(fixture_metric(&to, "pages_shared") == pages);
    (void)move(&from, &a, &to, "d"); /* a second copy of the file costs its tail */
    assert_true(fixture_metric(&to, "pages_resident") == pages);
    fixture_end(&from);
    fixture_end(&to);
}

static void without_token_ids_unique_ids_move_too(void **state)
{
    struct fixture from, to;
    (void)state;

    start(&from, &to, 1);
    const struct qr_session_info a = fixture_open(&from, "a");
    assert_ok(fixture_append(&from, &a, 0, TOKENS, 1, NULL));
    const struct qr_session_info b = move(&from, &a, &to, "b");
    expect_equal(&from, &a, &to, &b);
    struct qr_manifest *m = manifest_of(&to, &b);
    assert_int_equal(m->chained, 0);
    assert_int_equal(m->token_count, 0);
    qr_manifest_free(&m);
    /* It grows under ids of its own: another growth of another copy is not the same. */
    assert_ok(fixture_append(&to, &b, TOKENS, 64, 1, NULL));
    fixture_fetch_all(&to, &b, 0, TOKENS + 64, 1);
    fixture_end(&from);
    fixture_end(&to);
}

/* Two sessions of one server have equal token ids and other values: the second one's pages have
 * block ids of their own. Each moves with its own values, and the bytes stay what they are. */
static void pages_with_ids_of_their_own_keep_them(void **state)
{
    struct fixture from, to;
    (void)state;

    start(&from, &to, 1);
    const struct qr_session_info a = fixture_open(&from, "a"), b = fixture_open(&from, "b");
    append_ids(&from, &a, 1);
    append_ids(&from, &b, 2);
    const struct qr_session_info moved_b = move(&from, &b, &to, "b");
    const struct qr_session_info moved_a = move(&from, &a, &to, "a");
    expect_equal(&from, &a, &to, &moved_a);
    expect_equal(&from, &b, &to, &moved_b);
    fixture_fetch_all(&to, &moved_a, 0, TOKENS, 1);
    fixture_fetch_all(&to, &moved_b, 0, TOKENS, 2);
    fixture_end(&from);
    fixture_end(&to);
}

/* The part with the block id of another block in its page: such an id is a claim, too. */
static void give_forged(struct fixture *to, const struct qr_session_info *liar,
                        const struct qr_part *part, const uint8_t id[QR_HASH_BYTES])
{
    const struct qr_manifest none = {0};
    struct qr_part forged = *part;
    uint8_t *copy = part->page ? aligned_alloc(64, part->page_bytes) : NULL;

    if (copy) {
        memcpy(copy, part->page, part->page_bytes);
        memcpy(((struct qr_page_header *)(void *)copy)->block_id, id, QR_HASH_BYTES);
        qr_page_finish(copy);
        forged.page = copy;
    }
    assert_ok(give_part(to, liar, &forged, &none));
    free(copy);
}

/* All of `from`'s session under the ids of another one. */
static void lie(struct fixture *from, uint64_t session, struct fixture *to,
                const struct qr_session_info *liar, const struct qr_manifest *honest)
{
    const struct qr_fetch fetch = {
        .session = session, .tokens = TOKENS, .layers = from->model.layer_count};
    struct qr_fetch_cursor *cursor;
    struct qr_part part;

    assert_ok(claim(to, liar, honest, NULL));
    assert_ok(qr_fetch_open(from->store, from->ns, &fetch, &cursor, NULL));
    while (qr_fetch_next(cursor, &part)) {
        give_forged(to, liar, &part, honest->block_ids[part.position / 32 % 5]);
        qr_part_release(from->store, part.pin);
    }
    qr_fetch_close(&cursor);
}

/* Pages of other values are claimed under the ids of an honest prefix, after and before it. */
static void false_claims_poison_nobody(void **state)
{
    struct fixture from, to;
    (void)state;

    start(&from, &to, 1);
    const struct qr_session_info a = fixture_open(&from, "a"), b = fixture_open(&from, "b");
    append_ids(&from, &a, 1);
    assert_ok(fixture_append(&from, &b, 0, TOKENS, 666, NULL));
    struct qr_manifest *honest = manifest_of(&from, &a);
    for (int before = 0; before < 2; before++) {
        const struct qr_session_info victim = fixture_open(&to, before ? "v1" : "v0");
        const struct qr_session_info liar = fixture_open(&to, before ? "l1" : "l0");
        if (!before)
            append_ids(&to, &victim, 1);
        lie(&from, b.session, &to, &liar, honest);
        if (before)
            append_ids(&to, &victim, 1);
        fixture_fetch_all(&to, &victim, 0, TOKENS, 1);
        fixture_fetch_all(&to, &liar, 0, TOKENS, 666);
        assert_ok(qr_session_drop(to.store, to.ns, before ? "l1" : "l0", true, NULL));
        fixture_fetch_all(&to, &victim, 0, TOKENS, 1);
        assert_ok(qr_session_drop(to.store, to.ns, before ? "v1" : "v0", true, NULL));
    }
    qr_manifest_free(&honest);
    fixture_end(&from);
    fixture_end(&to);
}

static void claims_are_checked(void **state)
{
    struct fixture f;
    struct qr_error e = {0};
    uint8_t some[4][QR_HASH_BYTES] = {{1}, {2}, {3}, {4}};
    uint32_t blocks;
    (void)state;

    fixture_start(&f, 16u << 20);
    const struct qr_session_info s = fixture_open(&f, "s");
    struct qr_block_claim c = {.session = s.session,
                               .epoch = s.epoch,
                               .count = 2,
                               .chained = 2,
                               .ids = (const uint8_t(*)[QR_HASH_BYTES])some};
    assert_ok(qr_session_claim(f.store, f.ns, &c, &blocks, &e));
    assert_int_equal(blocks, 2);
    assert_ok(qr_session_claim(f.store, f.ns, &c, &blocks, &e)); /* a repeat */
    c.first = 3;
    assert_status(QUIRE_EGAP, qr_session_claim(f.store, f.ns, &c, &blocks, &e));
    assert_int_equal(e.length, 2);
    c.first = 1;
    assert_status(QUIRE_ECONFLICT, qr_session_claim(f.store, f.ns, &c, &blocks, &e));
    assert_int_equal(e.position, 32);
    c.first = 2;
    c.count = (QR_POSITION_MAX + 1) / 32 - 1;
    assert_status(QUIRE_ETOOBIG, qr_session_claim(f.store, f.ns, &c, &blocks, &e));
    c.count = 0;
    assert_status(QUIRE_EINVAL, qr_session_claim(f.store, f.ns, &c, &blocks, &e));
    c.count = 1;
    memset(some[0], 0, QR_HASH_BYTES);
    assert_status(QUIRE_EINVAL, qr_session_claim(f.store, f.ns, &c, &blocks, &e));
    some[0][0] = 9;
    c.epoch++;
    assert_status(QUIRE_EFENCED, qr_session_claim(f.store, f.ns, &c, &blocks, &e));

    /* Rows get claimed ids as well; cutting sealed blocks forgets what was claimed past them.
     */
    assert_ok(fixture_append(&f, &s, 0, TOKENS, 1, NULL));
    struct qr_manifest *m = manifest_of(&f, &s);
    assert_int_equal(m->chained, 2);
    assert_int_equal(m->block_ids[1][0], 2);
    qr_manifest_free(&m);
    struct qr_session_info info;
    assert_ok(qr_session_truncate(f.store, f.ns, s.session, s.epoch, 32, &info, NULL));
    assert_ok(fixture_append(&f, &s, 32, TOKENS, 3, NULL));
    m = manifest_of(&f, &s);
    assert_int_equal(m->chained, 1);
    assert_int_not_equal(m->block_ids[1][0] + m->block_ids[1][1] + m->block_ids[1][2], 2);
    qr_manifest_free(&m);
    fixture_end(&f);
}

static void manifests_come_in_pieces_and_of_sessions_that_are(void **state)
{
    struct fixture f, unused;
    struct qr_manifest *m = NULL, *all;
    struct qr_error e = {0};
    (void)state;

    start(&f, &unused, 1);
    const struct qr_session_info s = fixture_open(&f, "s");
    append_ids(&f, &s, 1);
    all = manifest_of(&f, &s);
    assert_int_equal(all->ttl_ms, 100000);
    fixture_now_ms += 5000; /* what is left is less, what was set is the same */
    assert_ok(qr_session_manifest(f.store, f.ns, s.session, 3, 1, &m, &e));
    assert_int_equal(m->first_block, 3);
    assert_int_equal(m->id_count, 1);
    assert_int_equal(m->block_count, 5);
    assert_int_equal(m->ttl_ms, 100000);
    assert_memory_equal(m->block_ids[0], all->block_ids[3], QR_HASH_BYTES);
    qr_manifest_free(&m);
    assert_ok(qr_session_manifest(f.store, f.ns, s.session, 77, 5, &m, &e));
    assert_int_equal(m->id_count, 0);
    qr_manifest_free(&m);
    qr_manifest_free(&all);
    assert_ok(qr_session_drop(f.store, f.ns, "s", true, NULL));
    assert_status(QUIRE_ENOTFOUND, qr_session_manifest(f.store, f.ns, s.session, 0, 1, &m, &e));
    fixture_end(&f);
    fixture_end(&unused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_moved_session_is_the_same_bit_for_bit),
        cmocka_unit_test(it_shares_its_prefix_again),
        cmocka_unit_test(without_token_ids_unique_ids_move_too),
        cmocka_unit_test(pages_with_ids_of_their_own_keep_them),
        cmocka_unit_test(false_claims_poison_nobody),
        cmocka_unit_test(claims_are_checked),
        cmocka_unit_test(manifests_come_in_pieces_and_of_sessions_that_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
