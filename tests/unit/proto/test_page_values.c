/* SPDX-License-Identifier: Apache-2.0
 *
 * A page whose scales, minima or raw rows would decode to infinity or NaN is refused by every
 * instruction set, naming the number; every page that a codec can write is not.
 */
#include "page_fixture.h"

#include "proto/cpu.h"
#include "proto/quant.h"

static uint8_t *page;
static size_t page_bytes;
static struct qr_page_view view;

static int make_page(void **state)
{
    (void)state;
    page = fixture_page(&page_bytes);
    assert_ok(qr_page_open(page, page_bytes, &view, NULL));
    /* The fixture's bytes are arbitrary: make every FP16 number of it 1. */
    for (uint32_t i = 0; i < view.header->section_count; i++) {
        const struct qr_page_section *section = &view.header->sections[i];
        uint16_t *at = (uint16_t *)(void *)(page + section->offset);
        for (uint32_t n = 0; n < section->bytes / 2; n++)
            at[n] = 0x3c00;
    }
    return 0;
}

static int free_page(void **state)
{
    (void)state;
    free(page);
    return 0;
}

static uint16_t *writable(const void *at, size_t element)
{
    return (uint16_t *)(void *)(page + ((const uint8_t *)at - page)) + element;
}

static void for_each_isa(void (*check)(void))
{
    const enum qr_isa first = qr_isa();
    for (int isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512; isa++)
        if (qr_isa_force((enum qr_isa)isa))
            check();
    qr_isa_force(first);
}

static void expect_fine(void)
{
    assert_ok(qr_page_check_values(&view, NULL));
}

static const char *expected;
static void expect_named(void)
{
    struct qr_error e;
    assert_status(QUIRE_EVALUE, qr_page_check_values(&view, &e));
    if (!strstr(e.text, expected))
        fail_msg("'%s' does not contain '%s'", e.text, expected);
}

static void refuse(const void *section, size_t element, uint16_t value, const char *text)
{
    uint16_t *at = writable(section, element);
    const uint16_t before = *at;
    *at = value;
    expected = text;
    for_each_isa(expect_named);
    *at = before;
    for_each_isa(expect_fine);
}

/* Keys: K3, per channel, dim 40, one group of tokens a head: [head][scales 40, minima 40]. */
static void bad_key_groups_are_named(void **state)
{
    (void)state;
    refuse(view.key_scales, 3, 0x7c00, "key group 3: scale 0x7c00");
    refuse(view.key_scales, 39, 0xfe00, "key group 39: scale 0xfe00");
    refuse(view.key_scales, 80 + 5, 0x8001, "key group 45: scale 0x8001");
    refuse(view.key_scales, 40 + 7, 0xfc00, "key group 7: scale 0x3c00 and minimum 0xfc00");
    refuse(view.key_scales, 160 + 40 + 39, 0x7e01, "key group 119");
}

/* Values: V4, per token, dim 24, one group a token: {scale, minimum} pairs. */
static void bad_value_groups_are_named(void **state)
{
    (void)state;
    refuse(view.value_scales, 0, 0x7c01, "value group 0: scale 0x7c01");
    refuse(view.value_scales, 2 * 47 + 1, 0x7c00, "value group 47");
    refuse(view.value_scales, 2 * 20, 0x7bff, "value group 20: scale 0x7bff");
}

static void bad_raw_rows_are_named(void **state)
{
    (void)state;
    refuse(view.key_raw, 239, 0x7e00, "key raw rows: number 239 is 0x7e00");
    refuse(view.value_raw, 0, 0xfc00, "value raw rows: number 0 is 0xfc00");
}

/* Every scale with a minimum of 0 and of -65504, against the formula. */
static void the_limit_is_the_formulas(void **state)
{
    static const uint16_t minima[] = {0x0000, 0x8000, 0xfbff, 0x7bff, 0x0001};
    (void)state;
    for (uint32_t scale = 0; scale < 0x7c00; scale++)
        for (size_t m = 0; m < ARRAY_LEN(minima); m++) {
            const float largest =
                qr_quant_value(15, qr_f16_to_f32((uint16_t)scale), qr_f16_to_f32(minima[m]));
            *writable(view.value_scales, 0) = (uint16_t)scale;
            *writable(view.value_scales, 1) = minima[m];
            const quire_status want =
                qr_f16_from_f32(largest) == QR_F16_INF_BITS ? QUIRE_EVALUE : QUIRE_OK;
            assert_status(want, qr_page_check_values(&view, NULL));
        }
}

static void raw_codec_is_checked(void **state)
{
    struct qr_page_identity id = fixture_identity();
    const uint8_t none[QR_PAGE_TOKENS_MAX / 8] = {0};
    struct qr_page_sections sections;
    struct qr_page_view raw_view;
    struct qr_error e;
    (void)state;
    id.key = id.value = (struct qr_codec_spec){.codec = QR_CODEC_RAW, .bits = 16};
    const size_t bytes = qr_page_bytes(&id, 0);
    uint8_t *raw = aligned_alloc(QR_PAGE_ALIGN, bytes);
    memset(raw, 0, bytes);
    assert_ok(qr_page_begin(raw, bytes, &id, none, &sections, NULL));
    ((uint16_t *)(void *)sections.value_codes)[16 * 3 * 24 - 1] = 0x7c00;
    qr_page_finish(raw);
    assert_ok(qr_page_open(raw, bytes, &raw_view, NULL));
    assert_status(QUIRE_EVALUE, qr_page_check_values(&raw_view, &e));
    assert_non_null(strstr(e.text, "values: number 1151 is 0x7c00"));
    free(raw);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bad_key_groups_are_named, make_page, free_page),
        cmocka_unit_test_setup_teardown(bad_value_groups_are_named, make_page, free_page),
        cmocka_unit_test_setup_teardown(bad_raw_rows_are_named, make_page, free_page),
        cmocka_unit_test_setup_teardown(the_limit_is_the_formulas, make_page, free_page),
        cmocka_unit_test(raw_codec_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
