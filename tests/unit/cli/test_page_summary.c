/* SPDX-License-Identifier: Apache-2.0
 *
 * Histograms of a page whose codes are known: every code is counted once, raw rows are not,
 * scales and minima have the ranges they were given.
 */
#include "client/cli/page_summary.h"
#include "proto/quant.h"
#include "storage/codec/codec.h"
#include "tests/test.h"

#define TOKENS 32
#define HEADS 2
#define DIM 16

static _Alignas(64) uint8_t page[1 << 16];

/** Keys climb with the token, values with the channel, so that codes spread evenly. */
static void make_page(uint8_t bits, uint16_t sinks, struct qr_page_view *view)
{
    static uint16_t key[TOKENS][HEADS][DIM], value[TOKENS][HEADS][DIM];
    const struct qr_codec_spec key_spec = {QR_CODEC_CHAN, bits, QR_AXIS_CHANNEL, 16, 0, {0}};
    const struct qr_codec_spec value_spec = {QR_CODEC_CHAN, bits, QR_AXIS_TOKEN, 16, 0, {0}};
    struct qr_page_identity id = {.heads = HEADS,
                                  .key_dim = DIM,
                                  .value_dim = DIM,
                                  .page_tokens = TOKENS,
                                  .key = key_spec,
                                  .value = value_spec};
    const struct qr_policy policy = {
        .page_tokens = TOKENS, .sink_rows = sinks, .key = key_spec, .value = value_spec};
    size_t bytes;
    struct qr_error e = {0};
    for (int t = 0; t < TOKENS; t++) {
        for (int h = 0; h < HEADS; h++) {
            for (int d = 0; d < DIM; d++) {
                key[t][h][d] = qr_f16_from_f32((float)(t % 16));
                value[t][h][d] = qr_f16_from_f32((float)d * 2 - 8);
            }
        }
    }
    const struct qr_rows k = {&key[0][0][0], HEADS * DIM, DIM};
    const struct qr_rows v = {&value[0][0][0], HEADS * DIM, DIM};
    assert_ok(qr_page_encode(&id, &policy, &k, &v, page, sizeof(page), &bytes, &e));
    assert_ok(qr_page_open(page, bytes, view, &e));
}

static void every_code_is_counted(void **state)
{
    struct qr_page_view view;
    struct qr_page_summary s;
    (void)state;
    make_page(4, 0, &view);
    qr_page_summarize(&view, true, &s);
    assert_int_equal(s.bins, 16);
    for (int i = 0; i < 16; i++)
        assert_int_equal(s.count[i], TOKENS * HEADS * DIM / 16);
    assert_int_equal(s.groups, TOKENS / 16 * HEADS * DIM);
    assert_int_equal(s.flat_groups, 0);
    assert_true(s.scale_least == 1.0f && s.scale_most == 1.0f && s.scale_mean == 1.0);
    assert_true(s.minimum_least == 0 && s.minimum_most == 0);
}

static void values_are_told_from_keys(void **state)
{
    struct qr_page_view view;
    struct qr_page_summary s;
    (void)state;
    make_page(8, 0, &view);
    qr_page_summarize(&view, false, &s);
    assert_int_equal(s.bins, 16);
    assert_int_equal(s.codes_a_bin, 16);
    for (int i = 0; i < 16; i++)
        assert_int_equal(s.count[i], TOKENS * HEADS);
    assert_int_equal(s.groups, TOKENS * HEADS);
    assert_true(s.minimum_least == -8 && s.minimum_most == -8);
}

static void raw_rows_are_left_out(void **state)
{
    struct qr_page_view view;
    struct qr_page_summary s;
    uint64_t total = 0;
    (void)state;
    make_page(2, 4, &view);
    assert_int_equal(view.header->raw_rows, 4);
    qr_page_summarize(&view, true, &s);
    assert_int_equal(s.bins, 4);
    for (uint32_t i = 0; i < s.bins; i++)
        total += s.count[i];
    assert_int_equal(total, (TOKENS - 4) * HEADS * DIM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_is_counted),
        cmocka_unit_test(values_are_told_from_keys),
        cmocka_unit_test(raw_rows_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
