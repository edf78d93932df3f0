/* SPDX-License-Identifier: Apache-2.0
 *
 * What qr_page_begin and qr_page_finish write, qr_page_open accepts; anything else it refuses,
 * with the reason, however the page was damaged.
 */
#include "page_fixture.h"

#include "proto/cpu.h"

static uint8_t *page;
static size_t page_bytes;

static int make_page(void **state)
{
    (void)state;
    page = fixture_page(&page_bytes);
    return 0;
}

static int free_page(void **state)
{
    (void)state;
    free(page);
    return 0;
}

static struct qr_page_header *header(void)
{
    return (struct qr_page_header *)(void *)page;
}

static void written_page_opens_with_its_sections(void **state)
{
    struct qr_page_view view;
    const struct qr_page_identity id = fixture_identity();
    (void)state;
    assert_ok(qr_page_open(page, page_bytes, &view, NULL));
    assert_ptr_equal(view.header, page);
    assert_int_equal(view.header->raw_rows, 2);
    assert_int_equal(view.header->section_count, 7);
    assert_ptr_equal(view.key_codes, page + 512);
    const void *sections[] = {view.key_codes,    view.key_scales, view.value_codes,
                              view.value_scales, view.key_raw,    view.value_raw,
                              view.digests};
    for (size_t i = 0; i < ARRAY_LEN(sections); i++) {
        assert_int_equal(((const uint8_t *)sections[i] - page) % QR_PAGE_ALIGN, 0);
        assert_int_equal(*(const uint8_t *)sections[i], 17);
        if (i > 0)
            assert_true((const uint8_t *)sections[i] > (const uint8_t *)sections[i - 1]);
    }
    assert_ok(qr_page_match(view.header, &id, NULL));
}

static void absent_sections_are_null(void **state)
{
    struct qr_page_identity id = fixture_identity();
    const uint8_t none[QR_PAGE_TOKENS_MAX / 8] = {0};
    struct qr_page_sections sections;
    struct qr_page_view view;
    (void)state;
    id.key = (struct qr_codec_spec){.codec = QR_CODEC_RAW, .bits = 16};
    const size_t bytes = qr_page_bytes(&id, 0);
    uint8_t *raw = aligned_alloc(64, bytes);
    memset(raw, 0, bytes);
    assert_ok(qr_page_begin(raw, bytes, &id, none, &sections, NULL));
    qr_page_finish(raw);
    assert_ok(qr_page_open(raw, bytes, &view, NULL));
    assert_non_null(view.key_codes);
    assert_null(view.key_scales);
    assert_null(view.key_raw);
    assert_null(view.value_raw);
    assert_non_null(view.value_scales);
    assert_non_null(view.digests);
    assert_int_equal(view.header->section_count, 4);
    free(raw);
}

static void each_flipped_byte_is_detected(void **state)
{
    (void)state;
    for (size_t i = 0; i < page_bytes; i++)
        for (int bit = 0; bit <= 8; bit++) {
            const uint8_t mask = bit == 8 ? 0xff : (uint8_t)(1 << bit);
            struct qr_page_view view = {.digests = (const uint32_t *)(const void *)page};
            struct qr_error e;
            page[i] ^= mask;
            const quire_status status = qr_page_open(page, page_bytes, &view, &e);
            if (status != QUIRE_ECORRUPT && !(status == QUIRE_EUNSUPPORTED && i / 2 == 8))
                fail_msg("byte %zu mask %02x: status %d", i, mask, status);
            assert_int_equal(e.status, status);
            assert_ptr_equal(view.digests, page);
            page[i] ^= mask;
        }
}

static void each_truncation_is_detected(void **state)
{
    struct qr_page_view view;
    (void)state;
    for (size_t bytes = 0; bytes < page_bytes; bytes++) {
        /* An own allocation of that length: a read past it is seen by ASan. */
        uint8_t *cut = malloc(bytes ? bytes : 1);
        memcpy(cut, page, bytes);
        if (qr_page_open(cut, bytes, &view, NULL) != QUIRE_ECORRUPT)
            fail_msg("length %zu", bytes);
        free(cut);
    }
}

static void trailing_bytes_are_detected(void **state)
{
    static const size_t extra[] = {1, 7, 64, 4096};
    struct qr_page_view view;
    struct qr_error e;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(extra); i++) {
        uint8_t *longer = calloc(1, page_bytes + extra[i]);
        memcpy(longer, page, page_bytes);
        assert_status(QUIRE_ECORRUPT, qr_page_open(longer, page_bytes + extra[i], &view, &e));
        assert_non_null(strstr(e.text, "its header says"));
        free(longer);
    }
}

/* Seal the page anew, so that only the change itself can be what is refused. */
static void expect_refused(quire_status status, const char *text)
{
    struct qr_page_view view;
    struct qr_error e = {0};
    qr_page_finish(page);
    const quire_status got = qr_page_open(page, page_bytes, &view, &e);
    if (got != status || e.status != status || !strstr(e.text, text))
        fail_msg("status %d '%s', expected %d '%s'", got, e.text, status, text);
    free(page);
    page = fixture_page(&page_bytes);
}

static void unknown_versions_and_flags_are_named(void **state)
{
    (void)state;
    header()->version = 2;
    expect_refused(QUIRE_EUNSUPPORTED, "page version is 2: 1 expected");
    header()->flags = 1u << 31;
    expect_refused(QUIRE_EUNSUPPORTED, "page flags are 0x80000000");
    header()->payload = QR_PAYLOAD_LATENT;
    expect_refused(QUIRE_EUNSUPPORTED, "payload 2 (latent)");
    header()->payload = QR_PAYLOAD_OPAQUE;
    expect_refused(QUIRE_EUNSUPPORTED, "payload 3 (opaque)");
    header()->payload = 200;
    expect_refused(QUIRE_EUNSUPPORTED, "payload 200 (unknown)");
    header()->position_kind = 1;
    expect_refused(QUIRE_EUNSUPPORTED, "position_kind 1 (ids per token)");
    header()->key_id = 3;
    expect_refused(QUIRE_EUNSUPPORTED, "encrypted with key 3");
    header()->receipt.metric = 2;
    expect_refused(QUIRE_EUNSUPPORTED, "receipt metric 2");
    header()->key.codec = 9;
    expect_refused(QUIRE_EUNSUPPORTED, "key: codec 9 is not known");
    header()->value.packing = 5;
    expect_refused(QUIRE_EUNSUPPORTED, "value: packing 5");
    header()->value.param[1] = 1;
    expect_refused(QUIRE_EUNSUPPORTED, "value: number of chan is 1");
}

static void reserved_sections_are_named(void **state)
{
    static const struct {
        uint16_t type;
        const char *name;
    } cases[] = {
        {QR_SECTION_LEVEL_TABLE, "section 8 (level table)"},
        {QR_SECTION_OUTLIERS, "section 9 (outliers)"},
        {QR_SECTION_CHANNEL_MEANS, "section 10 (channel means)"},
        {QR_SECTION_ROTATION, "section 11 (rotation)"},
        {QR_SECTION_POSITION_IDS, "section 12 (position ids)"},
        {13, "section 13 (unknown)"},
        {0, "section 0 (unknown)"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        header()->sections[6].type = cases[i].type;
        expect_refused(QUIRE_EUNSUPPORTED, cases[i].name);
    }
    header()->sections[0].flags = 2;
    expect_refused(QUIRE_EUNSUPPORTED, "section 1 (key codes) with flags 0x0002");
}

static void broken_headers_are_named(void **state)
{
    (void)state;
    header()->header_bytes = 256;
    expect_refused(QUIRE_ECORRUPT, "header_bytes is 256");
    header()->tokens = 15;
    expect_refused(QUIRE_ECORRUPT, "page holds 15 tokens");
    header()->raw_rows = 3;
    expect_refused(QUIRE_ECORRUPT, "raw_rows is 3");
    header()->raw_bitmap[2] = 1;
    expect_refused(QUIRE_ECORRUPT, "the raw bitmap does not say so");
    header()->receipt.error = 0.5f;
    expect_refused(QUIRE_ECORRUPT, "receipt of metric 0");
    header()->receipt = (struct qr_receipt){.metric = 1, .error = NAN};
    expect_refused(QUIRE_ECORRUPT, "receipt of metric 1 has errors nan");
    header()->reserved0 = 1;
    expect_refused(QUIRE_ECORRUPT, "reserved bytes");
    header()->nonce[11] = 1;
    expect_refused(QUIRE_ECORRUPT, "reserved bytes");
    header()->tag[0] = 1;
    expect_refused(QUIRE_ECORRUPT, "reserved bytes");
    header()->reserved1[47] = 1;
    expect_refused(QUIRE_ECORRUPT, "reserved bytes");
    header()->reserved2[0] = 1;
    expect_refused(QUIRE_ECORRUPT, "reserved bytes");
    header()->key.bits = 5;
    expect_refused(QUIRE_ECORRUPT, "key: chan with 5 bits");
    header()->heads = 0;
    expect_refused(QUIRE_ECORRUPT, "KV heads 2..+0");
    header()->rope_stored = 3;
    expect_refused(QUIRE_ECORRUPT, "rope_stored is 3");
    header()->first_position = 33;
    expect_refused(QUIRE_ECORRUPT, "first_position is 33");
    header()->first_position = QR_POSITION_MAX + 1;
    expect_refused(QUIRE_ECORRUPT, "first_position is 16777216");
}

static void broken_section_tables_are_refused(void **state)
{
    (void)state;
    header()->section_count = 6;
    expect_refused(QUIRE_ECORRUPT, "page has 6 sections");
    header()->section_count = 65535;
    expect_refused(QUIRE_EUNSUPPORTED, "section 0 (unknown)");
    header()->sections[1].offset += 64;
    expect_refused(QUIRE_ECORRUPT, "section entry 1 is type 2");
    header()->sections[6].bytes = UINT32_MAX;
    expect_refused(QUIRE_ECORRUPT, "section entry 6 is type 7");
    header()->sections[10].reserved = 1;
    expect_refused(QUIRE_ECORRUPT, "section entry 10");
    header()->heads = 4;
    expect_refused(QUIRE_ECORRUPT, "its codecs make");
    header()->sections[0] = header()->sections[1];
    expect_refused(QUIRE_ECORRUPT, "section entry 0 is type 2");
    const struct qr_page_section *raw = &header()->sections[5];
    page[raw->offset + raw->bytes] = 1;
    expect_refused(QUIRE_ECORRUPT, "padding after value raw rows");
}

static void identity_limits_are_named(void **state)
{
    struct qr_page_identity id = fixture_identity();
    (void)state;
    assert_int_not_equal(qr_page_bytes(&id, 16), 0);
    assert_int_equal(qr_page_bytes(&id, 17), 0);
    id.page_tokens = 24;
    assert_int_equal(qr_page_bytes(&id, 0), 0);
    id = fixture_identity();
    id.layer = QR_LAYERS_MAX;
    assert_int_equal(qr_page_bytes(&id, 0), 0);
    id = fixture_identity();
    id.heads = 1023;
    assert_int_equal(qr_page_bytes(&id, 0), 0);
    id = fixture_identity();
    id.key.group = 32; /* runs along tokens: 16 of them are no whole group */
    assert_int_equal(qr_page_bytes(&id, 0), 0);
    id = fixture_identity();
    id.rope_layout = 0;
    assert_int_equal(qr_page_bytes(&id, 0), 0);
}

static void pages_past_the_limit_have_no_size(void **state)
{
    struct qr_page_identity id = fixture_identity();
    (void)state;
    id.first_head = 0;
    id.heads = 1024;
    id.key_dim = id.value_dim = 1024;
    id.page_tokens = 512;
    id.first_position = 0;
    assert_int_equal(qr_page_bytes(&id, 512), 0);
    id.heads = 64;
    id.key_dim = id.value_dim = 128;
    assert_int_not_equal(qr_page_bytes(&id, 512), 0);
}

static void mismatch_names_the_field(void **state)
{
    struct qr_page_identity id = fixture_identity();
    struct qr_error e;
    (void)state;
    id.fingerprint[0] = 0xab;
    assert_status(QUIRE_EMISMATCH, qr_page_match(header(), &id, &e));
    assert_non_null(strstr(e.text, "fingerprint of the page is 0102"));
    assert_non_null(strstr(e.text, ": ab02"));
    id = fixture_identity();
    id.first_position = 48;
    assert_status(QUIRE_EMISMATCH, qr_page_match(header(), &id, &e));
    assert_string_equal(e.text, "first_position of the page is 32: 48 expected");
    id = fixture_identity();
    id.value.bits = 2;
    assert_status(QUIRE_EMISMATCH, qr_page_match(header(), &id, &e));
    assert_non_null(strstr(e.text, "value codec/bits/axis/group/packing of the page is 2/4/2"));
}

static void begin_refuses_wrong_buffers(void **state)
{
    const struct qr_page_identity id = fixture_identity();
    uint8_t bitmap[QR_PAGE_TOKENS_MAX / 8] = {0x01, 0x02};
    struct qr_page_sections sections;
    struct qr_error e;
    (void)state;
    assert_status(QUIRE_EINVAL,
                  qr_page_begin(page, page_bytes + 64, &id, bitmap, &sections, &e));
    assert_non_null(strstr(e.text, "expected"));
    bitmap[2] = 1;
    assert_status(QUIRE_EINVAL, qr_page_begin(page, page_bytes, &id, bitmap, &sections, &e));
    assert_non_null(strstr(e.text, "past page_tokens 16"));
}

/* Reference value from the XXH3 specification's own sanity check of an empty input. */
static void checksum_is_the_same_on_every_isa(void **state)
{
    uint8_t bytes[2048];
    (void)state;
    const enum qr_isa first = qr_isa();
    fixture_fill(bytes, sizeof(bytes));
    assert_int_equal(qr_checksum(bytes, 0), 0x2d06800538d394c2u);
    for (size_t n = 0; n < sizeof(bytes); n++) {
        assert_true(qr_isa_force(QR_ISA_SCALAR));
        const uint64_t scalar = qr_checksum(bytes + n % 3, n - n % 3);
        for (int isa = QR_ISA_AVX2; isa <= QR_ISA_AVX512; isa++)
            if (qr_isa_force((enum qr_isa)isa))
                assert_int_equal(qr_checksum(bytes + n % 3, n - n % 3), scalar);
    }
    qr_isa_force(first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_page_opens_with_its_sections),
        cmocka_unit_test(absent_sections_are_null),
        cmocka_unit_test(each_flipped_byte_is_detected),
        cmocka_unit_test(each_truncation_is_detected),
        cmocka_unit_test(trailing_bytes_are_detected),
        cmocka_unit_test(unknown_versions_and_flags_are_named),
        cmocka_unit_test(reserved_sections_are_named),
        cmocka_unit_test(broken_headers_are_named),
        cmocka_unit_test(broken_section_tables_are_refused),
        cmocka_unit_test(identity_limits_are_named),
        cmocka_unit_test(pages_past_the_limit_have_no_size),
        cmocka_unit_test(mismatch_names_the_field),
        cmocka_unit_test(begin_refuses_wrong_buffers),
        cmocka_unit_test(checksum_is_the_same_on_every_isa),
    };
    return cmocka_run_group_tests(tests, make_page, free_page);
}
