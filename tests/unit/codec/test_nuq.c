/* SPDX-License-Identifier: Apache-2.0
 *
 * nuq: outliers come back exactly and are those that stretch groups, every other element goes
 * to the nearest level of its group, pages carry their table, and pages that a decoder could
 * not trust are refused by name.
 */
#include "proto/quant.h"
#include "proto/spec_parts.h"
#include "proto/spec_text.h"
#include "storage/codec/codec.h"
#include "tests/test.h"

#define TOKENS 64
#define HEADS 2
#define DIM 24
#define ROW (HEADS * DIM)

static uint16_t x[TOKENS * ROW], out[TOKENS * ROW], levels[16];
static _Alignas(64) uint8_t page[1 << 17];
static size_t page_bytes;
static struct qr_page_view view;
static struct qr_page_identity id;

static void make_levels(uint32_t bits)
{
    for (uint32_t i = 0; i < 1u << bits; i++) {
        const double z = 2.0 * i / ((1 << bits) - 1) - 1;
        levels[i] = qr_f16_from_f32((float)(z * (0.4 + 0.6 * z * z)));
    }
}

/** Small waves, and 1 in 50 elements ten to forty times as large. */
static void make_page(const char *text)
{
    struct qr_codec_spec spec;
    struct qr_error e;
    if (qr_spec_parse(text, true, &spec, &e))
        fail_msg("%s: %s", text, e.text);
    for (uint32_t i = 0; i < TOKENS * ROW; i++)
        x[i] = qr_f16_from_f32((float)(sin(i * 12.9898) * (i % 50 == 7 ? 10 + i % 31 : 1)));
    make_levels(spec.bits);
    id = (struct qr_page_identity){.heads = HEADS,
                                   .key_dim = DIM,
                                   .value_dim = DIM,
                                   .page_tokens = TOKENS,
                                   .key = spec,
                                   .value = spec,
                                   .key_levels = levels,
                                   .value_levels = levels};
    const struct qr_policy policy = {
        .page_tokens = TOKENS, .sink_rows = 3, .key = spec, .value = spec};
    const struct qr_rows rows = {x, ROW, DIM};
    assert_ok(qr_page_encode(&id, &policy, &rows, &rows, page, sizeof(page), &page_bytes, &e));
    assert_ok(qr_page_open(page, page_bytes, &view, &e));
    assert_ok(qr_page_check_values(&view, &e));
    const struct qr_expand to = {.token_count = TOKENS,
                                 .head_count = HEADS,
                                 .dtype = QR_F16,
                                 .dst = out,
                                 .token_stride = ROW * 2,
                                 .head_stride = DIM * 2};
    qr_page_expand(&view, QR_KEY, &to);
}

static uint16_t *outliers_of(uint32_t head, uint32_t *most)
{
    struct qr_spec_parts parts;
    assert_true(qr_spec_parts(&id.key, TOKENS, HEADS, DIM, &parts));
    *most = parts.outliers;
    return (uint16_t *)(void *)(page + (view.key_scales - page) + head * parts.head_bytes +
                                parts.head_outliers);
}

static void outliers_are_the_large_ones_and_exact(void **state)
{
    (void)state;
    for (int axis = 1; axis <= 2; axis++) {
        make_page(axis == 1 ? "nuq:outliers=0.03,group=16,bits=3"
                            : "nuq:axis=token,outliers=0.03,group=32,bits=3");
        for (uint32_t head = 0; head < HEADS; head++) {
            uint32_t most, large = 0, kept = 0;
            const uint16_t *at = outliers_of(head, &most);
            assert_int_equal(most, TOKENS * DIM * 3 / 100);
            assert_in_range(at[0], 1, most);
            for (uint32_t i = 0; i < at[0]; i++) {
                const uint32_t token = at[1 + i] / DIM, c = at[1 + i] % DIM;
                const uint32_t element = token * ROW + head * DIM + c;
                assert_int_equal(at[1 + most + i], x[element]);
                assert_int_equal(out[element], x[element]);
                kept += fabsf(qr_f16_to_f32(x[element])) > 1;
            }
            for (uint32_t t = 3; t < TOKENS; t++)
                for (uint32_t c = 0; c < DIM; c++)
                    large += fabsf(qr_f16_to_f32(x[t * ROW + head * DIM + c])) > 1;
            assert_true(large <= most);
            assert_int_equal(kept, large); /* there was room for all that are large */
        }
    }
}

/** The formula, element by element, in FP64: no level of the group is nearer than the one
 * taken, but for the roundings of scale and middle. */
static void elements_go_to_the_nearest_level(void **state)
{
    static const char *const texts[] = {"nuq:bits=2,group=16", "nuq:bits=4,group=32,outliers=0",
                                        "nuq:bits=3,axis=token,group=16"};
    (void)state;
    for (size_t n = 0; n < ARRAY_LEN(texts); n++) {
        make_page(texts[n]);
        struct qr_spec_parts parts;
        assert_true(qr_spec_parts(&id.key, TOKENS, HEADS, DIM, &parts));
        for (uint32_t i = 3 * ROW; i < TOKENS * ROW; i++) {
            const uint32_t t = i / ROW, head = i / DIM % HEADS, c = i % DIM;
            const uint16_t *s =
                (const uint16_t *)(const void *)(view.key_scales + head * parts.head_bytes);
            const uint32_t group = id.key.group;
            const uint16_t *scale = id.key.axis == QR_AXIS_CHANNEL
                                        ? s + t / group * 2 * DIM + c
                                        : s + (t * ((DIM + group - 1) / group) + c / group) * 2;
            const uint16_t middle = scale[id.key.axis == QR_AXIS_CHANNEL ? DIM : 1];
            const double want = (double)qr_f16_to_f32(x[i]),
                         got = (double)qr_f16_to_f32(out[i]);
            double least = INFINITY;
            for (uint32_t q = 0; q < 1u << id.key.bits; q++)
                least = fmin(least, fabs((double)qr_f16_to_f32(levels[q]) *
                                             (double)qr_f16_to_f32(*scale) +
                                         (double)qr_f16_to_f32(middle) - want));
            if (fabs(got - want) > least + 2e-3 * (double)qr_f16_to_f32(*scale) + 1e-3)
                fail_msg("%s: %g came back as %g, a level is %g away", texts[n], want, got,
                         least);
        }
    }
}

static void tables_are_needed_and_matched(void **state)
{
    struct qr_error e;
    (void)state;
    make_page("nuq:bits=3");
    assert_ok(qr_page_match(view.header, &id, &e));
    uint16_t others[16];
    memcpy(others, levels, sizeof(others));
    others[2]++;
    id.value_levels = others;
    assert_status(QUIRE_EMISMATCH, qr_page_match(view.header, &id, &e));
    assert_non_null(strstr(e.text, "level table of the page's values"));
    id.value_levels = NULL;
    assert_ok(qr_codec_check(&id, &e));
    assert_status(QUIRE_EINVAL, qr_codec_check_encode(&id, &e));
    assert_non_null(strstr(e.text, "values of layer 0: nuq of 3 bits needs level tables"));
}

static void refuse(uint16_t *at, uint16_t value, const char *text)
{
    struct qr_error e = {0};
    const uint16_t before = *at;
    *at = value;
    qr_page_finish(page);
    assert_status(QUIRE_ECORRUPT, qr_page_open(page, page_bytes, &view, &e));
    if (!strstr(e.text, text))
        fail_msg("'%s' does not contain '%s'", e.text, text);
    *at = before;
    qr_page_finish(page);
    assert_ok(qr_page_open(page, page_bytes, &view, &e));
}

static void bad_pages_are_named(void **state)
{
    struct qr_spec_parts parts;
    uint32_t most;
    (void)state;
    make_page("nuq:bits=2,outliers=0.1");
    assert_true(qr_spec_parts(&id.key, TOKENS, HEADS, DIM, &parts));
    uint16_t *table = (uint16_t *)(void *)(page + (view.key_scales - page) + parts.levels);
    refuse(&table[1], 0x7e00, "key level table of 2 bits: level 1 is 0x7e00");
    refuse(&table[2], table[1], "key level table of 2 bits: level 2 is");
    uint16_t *outliers = outliers_of(1, &most);
    refuse(&outliers[0], (uint16_t)(most + 1), "outliers in a head: at most 153");
    refuse(&outliers[2], outliers[1], "key: outlier 1 is at");
    refuse(&outliers[1], 2 * DIM, "none of a raw row expected");
    refuse(&outliers[outliers[0]], 0xffff, "ascending places below 1536");
    refuse(&outliers[0], (uint16_t)(outliers[0] - 1), "outliers is not zero");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outliers_are_the_large_ones_and_exact),
        cmocka_unit_test(elements_go_to_the_nearest_level),
        cmocka_unit_test(tables_are_needed_and_matched),
        cmocka_unit_test(bad_pages_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
