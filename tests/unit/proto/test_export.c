/* SPDX-License-Identifier: Apache-2.0
 *
 * An export is read back as it was written, and any change of it is refused at the record that
 * was changed: each byte flipped, each record left out, repeated or moved, each number that
 * cannot be.
 */
#include "tests/test.h"

#include "tests/export_fixture.h"

/* Read all of a file in memory; what ended it, and where. */
static quire_status read_all(const uint8_t *bytes, size_t n, struct qr_export_walk *walk,
                             struct qr_error *e)
{
    struct qr_export_record r;
    quire_status status = qr_export_begin(walk, bytes, e);

    while (!status && !walk->done) {
        const uint8_t *mark = bytes + walk->offset;
        if (walk->offset + 64 > n)
            return QUIRE_ERANGE; /* cut: for whoever reads the file to find */
        status = qr_export_record(walk, mark, &r, e);
        if (!status && walk->offset + 64 + QR_EXPORT_PADDED(r.bytes) > n)
            return QUIRE_ERANGE;
        if (!status)
            status = qr_export_payload(walk, mark, mark + 64, e);
    }
    return status;
}

static struct export_file file;
static struct qr_export_walk walk;

static int make(void **state)
{
    (void)state;
    export_make(&file);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    free(file.bytes);
    return 0;
}

static void what_is_written_is_read(void **state)
{
    struct qr_error e = {0};
    struct qr_model model;
    (void)state;

    export_model(&model);
    if (read_all(file.bytes, file.n, &walk, &e))
        fail_msg("%s", e.text);
    assert_int_equal(walk.offset, file.n);
    assert_int_equal(walk.head.file_bytes, file.n);
    /* model, ids, tokens, 3 lanes of 2 pages and 1 rows, 1 lane of 1 and 2, end */
    assert_int_equal(walk.records, 3 + 4 * 3 + 1);
    assert_int_equal(walk.lane_count, 4);
    assert_string_equal(walk.head.name, "chat/1");
    assert_memory_equal(walk.model.fingerprint, model.fingerprint, QR_HASH_BYTES);
    assert_int_equal(walk.model.layers[2].kv_heads, 4);
    assert_int_equal(walk.policy.page_tokens, EXPORT_PAGE);
    assert_int_equal(walk.policy.override_count, 1);
    assert_int_equal(walk.policy.overrides[0].spec.bits, 8);
    struct qr_export_record r;
    assert_false(qr_export_next(&walk, &r));
    assert_status(QUIRE_ECORRUPT, qr_export_record(&walk, file.bytes, &r, &e));
    assert_non_null(strstr(e.text, "after the end"));
}

static void the_frame_is_what_pages_and_rows_are_not(void **state)
{
    size_t frame = QR_EXPORT_HEAD_BYTES;
    struct qr_export_head head;
    struct qr_model model;
    uint8_t packed[QR_MODEL_PACKED_MAX];
    (void)state;

    export_model(&model);
    for (size_t i = 0; i < file.records; i++) {
        struct qr_export_mark mark;
        memcpy(&mark, file.bytes + file.marks[i], sizeof(mark));
        if (mark.type != QR_EXPORT_PAGE && mark.type != QR_EXPORT_ROWS)
            frame += 64 + QR_EXPORT_PADDED(mark.bytes);
    }
    memcpy(&head, file.bytes, sizeof(head));
    const size_t model_bytes = qr_model_pack(&model, packed);
    assert_int_equal(qr_export_frame_bytes(&head, model_bytes), frame);
    head.block_count = 2 * QR_EXPORT_IDS_MAX + 1;
    assert_int_equal(qr_export_frame_bytes(&head, model_bytes),
                     frame - 128 + 2 * (64 + QR_EXPORT_IDS_MAX * 32) + 128);
}

/* The first byte of the record that holds this byte; 0: the head. */
static size_t record_of(size_t byte)
{
    size_t at = 0;

    for (size_t i = 0; i < file.records; i++)
        if (file.marks[i] <= byte)
            at = file.marks[i];
    return at;
}

static void each_flipped_byte_is_refused_where_it_is(void **state)
{
    struct qr_error e;
    (void)state;

    for (size_t i = 0; i < file.n; i++) {
        file.bytes[i] ^= (uint8_t)(1u << (i % 8));
        memset(&e, 0, sizeof(e));
        const quire_status status = read_all(file.bytes, file.n, &walk, &e);
        file.bytes[i] ^= (uint8_t)(1u << (i % 8));
        if (status != QUIRE_ECORRUPT && status != QUIRE_EUNSUPPORTED)
            fail_msg("byte %zu flipped: status %d", i, status);
        if (e.position != record_of(i))
            fail_msg("byte %zu flipped: refused at %zu, not %zu: %s", i, (size_t)e.position,
                     record_of(i), e.text);
        assert_non_null(strstr(e.text, "byte "));
    }
}

/* A record and what follows it, moved: the file is as whole as before but for the order. */
static void records_left_out_repeated_or_swapped_are_refused(void **state)
{
    uint8_t *copy = aligned_alloc(64, 2u << 20);
    struct qr_error e;
    (void)state;

    for (size_t i = 0; i + 1 < file.records; i++) {
        const size_t at = file.marks[i], next = file.marks[i + 1];
        memcpy(copy, file.bytes, file.n);
        memmove(copy + at, copy + next, file.n - next);
        assert_status(QUIRE_ECORRUPT, read_all(copy, file.n - (next - at), &walk, &e));
        assert_int_equal(e.position, at);
        memcpy(copy, file.bytes, next);
        memcpy(copy + next, file.bytes + at, file.n - at);
        assert_status(QUIRE_ECORRUPT, read_all(copy, file.n + (next - at), &walk, &e));
        assert_int_equal(e.position, next);
    }
    free(copy);
}

static void cut_at_any_byte_it_is_not_done(void **state)
{
    struct qr_error e;
    (void)state;

    for (size_t n = QR_EXPORT_HEAD_BYTES; n < file.n; n += 13)
        assert_status(QUIRE_ERANGE, read_all(file.bytes, n, &walk, &e));
}

/* ---- what checksums do not catch ----------------------------------------------------------
 */

/* The head with one change, its checksum made right again. */
static quire_status with_head(void (*change)(struct qr_export_head *), struct qr_error *e)
{
    struct qr_export_head head;

    memcpy(&head, file.bytes, sizeof(head));
    change(&head);
    head.checksum = qr_checksum((const uint8_t *)&head + 16, sizeof(head) - 16);
    memset(e, 0, sizeof(*e));
    return qr_export_begin(&walk, &head, e);
}

#define HEAD_CHANGE(name, statement)                                                           \
    static void name(struct qr_export_head *h)                                                 \
    {                                                                                          \
        statement;                                                                             \
    }
HEAD_CHANGE(change_version, h->version = 2)
HEAD_CHANGE(change_flags, h->flags = 0x40)
HEAD_CHANGE(change_codec, h->key.codec = 77)
HEAD_CHANGE(change_header_bytes, h->header_bytes = 512)
HEAD_CHANGE(change_reserved, h->reserved1[93] = 1)
HEAD_CHANGE(change_reserved0, h->reserved0 = 1)
HEAD_CHANGE(change_reserved2, h->reserved2[127] = 1)
HEAD_CHANGE(change_overrides, h->override_count = 17)
HEAD_CHANGE(change_override, h->overrides[0].tensors = 4)
HEAD_CHANGE(change_unused, h->overrides[1].first_layer = 1)
HEAD_CHANGE(change_length, h->length = (1u << 24) + 1)
HEAD_CHANGE(change_shards, h->head_shards = 0)
HEAD_CHANGE(change_blocks, h->block_count = 3)
HEAD_CHANGE(change_tail, h->length += QR_EXPORT_TAIL_MAX)
HEAD_CHANGE(change_chained, h->chained = 3)
HEAD_CHANGE(change_tokens, h->token_count--)
HEAD_CHANGE(change_file_bytes, h->file_bytes++)
HEAD_CHANGE(change_page, h->page_tokens = 24)
HEAD_CHANGE(change_name, h->name[2] = '\n')
HEAD_CHANGE(change_name_end, h->name[255] = 'x')
HEAD_CHANGE(change_name_bytes, h->name_bytes = 0)

static void heads_that_cannot_be_are_refused_by_name(void **state)
{
    static const struct {
        void (*change)(struct qr_export_head *);
        quire_status status;
        const char *text;
    } cases[] = {
        {change_version, QUIRE_EUNSUPPORTED, "version 2"},
        {change_flags, QUIRE_EUNSUPPORTED, "flags are 0x00000040"},
        {change_codec, QUIRE_EUNSUPPORTED, "77"},
        {change_header_bytes, QUIRE_ECORRUPT, "header_bytes"},
        {change_reserved, QUIRE_ECORRUPT, "reserved"},
        {change_reserved0, QUIRE_ECORRUPT, "reserved"},
        {change_reserved2, QUIRE_ECORRUPT, "reserved"},
        {change_overrides, QUIRE_ECORRUPT, "17 overrides"},
        {change_override, QUIRE_ECORRUPT, "tensors 4"},
        {change_unused, QUIRE_ECORRUPT, "after the 1 overrides"},
        {change_length, QUIRE_ECORRUPT, "length"},
        {change_shards, QUIRE_ECORRUPT, "0 head shards"},
        {change_blocks, QUIRE_ECORRUPT, "3 blocks"},
        {change_tail, QUIRE_ECORRUPT, "at most 8192"},
        {change_chained, QUIRE_ECORRUPT, "3 chained"},
        {change_tokens, QUIRE_ECORRUPT, "4 token ids"},
        {change_file_bytes, QUIRE_ECORRUPT, "file_bytes"},
        {change_page, QUIRE_ECORRUPT, "24"},
        {change_name, QUIRE_ECORRUPT, "control character 0x0a"},
        {change_name_end, QUIRE_ECORRUPT, "after the session name"},
        {change_name_bytes, QUIRE_ECORRUPT, "name of 0 bytes"},
    };
    struct qr_error e;
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_status(cases[i].status, with_head(cases[i].change, &e));
        if (!strstr(e.text, cases[i].text))
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, e.text, cases[i].text);
    }
}

/* The mark of record `number` with one change, its checksum made right again. */
static quire_status with_mark(size_t number, void (*change)(struct qr_export_mark *),
                              struct qr_error *e)
{
    struct qr_export_mark mark;
    struct qr_export_record r;

    assert_ok(qr_export_begin(&walk, file.bytes, e));
    for (size_t i = 0; i < number; i++)
        assert_ok(qr_export_payload(&walk, file.bytes + file.marks[i],
                                    file.bytes + file.marks[i] + 64, e));
    memcpy(&mark, file.bytes + file.marks[number], sizeof(mark));
    change(&mark);
    mark.checksum = qr_checksum(&mark, 56);
    return qr_export_record(&walk, &mark, &r, e);
}

#define MARK_CHANGE(name, statement)                                                           \
    static void name(struct qr_export_mark *m)                                                 \
    {                                                                                          \
        statement;                                                                             \
    }
MARK_CHANGE(mark_flags, m->flags = 3)
MARK_CHANGE(mark_type, m->type = 7)
MARK_CHANGE(mark_bytes_max, m->bytes = UINT64_MAX)
MARK_CHANGE(mark_bytes_less, m->bytes -= 64)
MARK_CHANGE(mark_count, m->count++)
MARK_CHANGE(mark_lane, m->lane++)
MARK_CHANGE(mark_position, m->position += EXPORT_PAGE)
MARK_CHANGE(mark_as_rows, m->type = QR_EXPORT_ROWS)
MARK_CHANGE(mark_as_page, m->type = QR_EXPORT_PAGE)
MARK_CHANGE(mark_as_end, m->type = QR_EXPORT_END)
MARK_CHANGE(mark_number, m->number++)
MARK_CHANGE(mark_previous, m->previous++)

static void marks_that_cannot_be_are_refused(void **state)
{
    static const struct {
        size_t number;
        void (*change)(struct qr_export_mark *);
        quire_status status;
        const char *text;
    } cases[] = {
        {0, mark_bytes_max, QUIRE_ECORRUPT, "the model of 0"},
        {1, mark_bytes_less, QUIRE_ECORRUPT, "block ids of 2"},
        {1, mark_count, QUIRE_ECORRUPT, "block ids of 3"},
        {2, mark_count, QUIRE_ECORRUPT, "token ids of 6"},
        {3, mark_flags, QUIRE_EUNSUPPORTED, "flags are 0x0003"},
        {3, mark_type, QUIRE_EUNSUPPORTED, "type 7"},
        {3, mark_bytes_max, QUIRE_ECORRUPT, "a page of 16"},
        {3, mark_count, QUIRE_ECORRUPT, "a page of 17"},
        {3, mark_lane, QUIRE_ECORRUPT, "lane 1"},
        {3, mark_position, QUIRE_ECORRUPT, "position 16"},
        {9, mark_as_rows, QUIRE_ECORRUPT, "rows of 16"},
        {3, mark_as_end, QUIRE_ECORRUPT, "the end"},
        {3, mark_number, QUIRE_ECORRUPT, "record 4 of another place"},
        {3, mark_previous, QUIRE_ECORRUPT, "another place or file"},
        {5, mark_as_page, QUIRE_ECORRUPT, "a page (lane 0, position 32) where rows"},
        {5, mark_count, QUIRE_ECORRUPT, "rows of 6"},
        {14, mark_as_page, QUIRE_ECORRUPT, "where rows"}, /* after rows of its lane */
        {15, mark_bytes_less, QUIRE_ECORRUPT, "the end of 0"},
    };
    struct qr_error e;
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (with_mark(cases[i].number, cases[i].change, &e) != cases[i].status)
            fail_msg("case %zu: not refused: %s", i, e.text);
        if (!strstr(e.text, cases[i].text))
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, e.text, cases[i].text);
        assert_int_equal(e.position, file.marks[cases[i].number]);
    }
}

/* Payloads whose checksums are right and whose contents are not: the writer refuses them. */
static void payloads_that_cannot_be_are_refused(void **state)
{
    _Alignas(64) uint8_t payload[32768];
    struct qr_export_mark mark;
    struct qr_error e;
    (void)state;

    for (size_t number = 0; number < file.records; number++) {
        struct qr_export_record r;
        assert_ok(qr_export_begin(&walk, file.bytes, &e));
        for (size_t i = 0; i < number; i++)
            assert_ok(qr_export_payload(&walk, file.bytes + file.marks[i],
                                        file.bytes + file.marks[i] + 64, &e));
        assert_ok(qr_export_record(&walk, file.bytes + file.marks[number], &r, &e));
        const size_t padded = QR_EXPORT_PADDED(r.bytes);
        memcpy(payload, file.bytes + file.marks[number] + 64, padded);
        if (r.type == QR_EXPORT_ROWS) { /* any values: but padding is zero */
            if (padded == r.bytes)
                continue;
            payload[padded - 1] = 1;
        } else if (r.type == QR_EXPORT_BLOCK_IDS) {
            memset(payload + 32, 0, 32);
        } else if (r.type == QR_EXPORT_TOKEN_IDS) {
            payload[2 * 4] = 1; /* the one that is not known */
        } else {
            payload[20]++;
        }
        assert_status(QUIRE_ECORRUPT, qr_export_seal(&walk, &r, payload, &mark, &e));
        assert_int_equal(e.position, file.marks[number]);
    }
}

static void a_model_packs_to_what_it_was(void **state)
{
    uint8_t packed[QR_MODEL_PACKED_MAX], again[QR_MODEL_PACKED_MAX];
    struct qr_model model, back;
    struct qr_error e;
    (void)state;

    export_model(&model);
    const size_t n = qr_model_pack(&model, packed);
    if (qr_model_unpack(packed, n, &back, &e))
        fail_msg("%s", e.text);
    assert_int_equal(qr_model_pack(&back, again), n);
    assert_memory_equal(packed, again, n);
    assert_memory_equal(&back.ropes, &model.ropes, sizeof(model.ropes));
    assert_memory_equal(&back.layers[2], &model.layers[2], sizeof(model.layers[2]));
    assert_memory_equal(back.fingerprint, model.fingerprint, QR_HASH_BYTES);
    for (size_t cut = 0; cut < n; cut++)
        assert_int_not_equal(qr_model_unpack(packed, cut, &back, &e), QUIRE_OK);
    packed[n] = 0;
    assert_status(QUIRE_ECORRUPT, qr_model_unpack(packed, n + 1, &back, &e));
    packed[14] = 0xff; /* length of the name */
    packed[15] = 0xff;
    assert_status(QUIRE_ECORRUPT, qr_model_unpack(packed, n, &back, &e));
}

/* The largest model there is fits. */
static void the_largest_model_packs(void **state)
{
    static uint8_t packed[QR_MODEL_PACKED_MAX];
    static struct qr_model model, back;
    (void)state;

    memset(model.name, 'n', QR_NAME_MAX);
    memset(model.revision, 'r', QR_NAME_MAX);
    memset(model.adapter, 'a', QR_NAME_MAX);
    model.layer_count = QR_LAYERS_MAX;
    model.rope_count = QR_ROPES_MAX;
    for (int i = 0; i < QR_ROPES_MAX; i++) {
        model.ropes[i] = (struct qr_rope){
            .layout = QR_ROPE_HALF, .rotary_dim = QR_DIM_MAX, .attention_factor = 1.0f};
        for (int c = 0; c < QR_DIM_MAX / 2; c++)
            model.ropes[i].inv_freq[c] = 1.0f / (float)(c + i + 1);
    }
    for (int i = 0; i < QR_LAYERS_MAX; i++)
        model.layers[i] = (struct qr_layer){.query_heads = 1024,
                                            .kv_heads = 1024,
                                            .key_dim = QR_DIM_MAX,
                                            .value_dim = QR_DIM_MAX,
                                            .rope = (uint8_t)(i % QR_ROPES_MAX),
                                            .rope_stored = QR_ROPE_PRE};
    assert_ok(qr_model_seal(&model, NULL));
    const size_t n = qr_model_pack(&model, packed);
    assert_true(n <= sizeof(packed));
    assert_ok(qr_model_unpack(packed, n, &back, NULL));
    assert_memory_equal(back.fingerprint, model.fingerprint, QR_HASH_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(the_frame_is_what_pages_and_rows_are_not),
        cmocka_unit_test(each_flipped_byte_is_refused_where_it_is),
        cmocka_unit_test(records_left_out_repeated_or_swapped_are_refused),
        cmocka_unit_test(cut_at_any_byte_it_is_not_done),
        cmocka_unit_test(heads_that_cannot_be_are_refused_by_name),
        cmocka_unit_test(marks_that_cannot_be_are_refused),
        cmocka_unit_test(payloads_that_cannot_be_are_refused),
        cmocka_unit_test(a_model_packs_to_what_it_was),
        cmocka_unit_test(the_largest_model_packs),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
