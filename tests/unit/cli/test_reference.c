/* SPDX-License-Identifier: Apache-2.0
 *
 * The FP64 reference itself: attention over few tokens worked out by hand, causality, grouped
 * heads, RoPE as a rotation, and the error metrics.
 */
#include "client/cli/reference.h"
#include "tests/test.h"

#define DIM 16

static void rotation_keeps_norms_and_turns_by_the_position(void **state)
{
    static struct qr_rope rope = {QR_ROPE_HALF, 4, 1.0f, {0.5f, 0.25f}};
    float row[6] = {1, 0, 0, 2, 7, 8};
    (void)state;
    qr_reference_rotate(&rope, 2, 1, 6, row);
    assert_true(fabs(row[0] - cos(1.0)) < 1e-6);
    assert_true(fabs(row[2] - sin(1.0)) < 1e-6);
    assert_true(fabs(row[1] + 2 * sin(0.5)) < 1e-6);
    assert_true(fabs(row[3] - 2 * cos(0.5)) < 1e-6);
    assert_true(row[4] == 7 && row[5] == 8);

    float pair[4] = {1, 0, 0, 1};
    rope.layout = QR_ROPE_INTERLEAVED;
    qr_reference_rotate(&rope, 2, 1, 4, pair);
    assert_true(fabs(pair[1] - sin(1.0)) < 1e-6);
}

static void attention_is_causal_and_grouped(void **state)
{
    /* Two tokens, two KV heads, four query heads; values are 1 and 3 (head 0), 5 and 9. */
    static float key[2][2][DIM], value[2][2][DIM], query[4][DIM];
    double output[4][DIM], lse[4];
    struct qr_reference *reference;
    (void)state;
    key[1][0][0] = 4; /* z = 4 / sqrt(16) = 1 for queries of 1 */
    for (int d = 0; d < DIM; d++) {
        value[0][0][d] = 1;
        value[1][0][d] = 3;
        value[0][1][d] = 5;
        value[1][1][d] = 9;
    }
    for (int h = 0; h < 4; h++)
        query[h][0] = 1;
    const struct qr_reference_layer layer = {key, value, query, QUIRE_F32, 4,
                                             2,   DIM,   DIM,   NULL};
    assert_ok(qr_reference_create(&layer, 2, &reference, NULL));

    qr_reference_attend(reference, query[0], 0, output[0], lse);
    assert_true(output[1][3] == 1 && output[2][3] == 5);
    assert_true(lse[0] == 0);

    qr_reference_attend(reference, query[0], 1, output[0], lse);
    const double p = exp(1.0) / (1 + exp(1.0));
    assert_true(fabs(output[1][3] - (1 * (1 - p) + 3 * p)) < 1e-12);
    assert_true(fabs(output[3][0] - 7) < 1e-12);
    assert_true(fabs(lse[0] - log(1 + exp(1.0))) < 1e-12);
    assert_true(fabs(lse[3] - log(2.0)) < 1e-12);
    qr_reference_destroy(&reference);
    assert_null(reference);
}

static void deviation_is_relative_frobenius(void **state)
{
    struct qr_deviation sum = {0};
    (void)state;
    assert_true(qr_deviation_frobenius(&sum) == 0);
    qr_deviation_add(&sum, 3.3, 3.0);
    qr_deviation_add(&sum, -4.4, -4.0);
    assert_true(fabs(qr_deviation_frobenius(&sum) - 0.1) < 1e-12);
    assert_true(fabs(sum.largest - 0.4) < 1e-12);
}

static void elements_of_every_dtype_are_exact(void **state)
{
    const uint16_t half[] = {0x3c00, 0xc000}, brain[] = {0x3f80, 0xc000};
    const float single[] = {1.0f, -2.0f};
    (void)state;
    assert_true(qr_reference_element(half, QUIRE_F16, 1) == -2.0f);
    assert_true(qr_reference_element(brain, QUIRE_BF16, 0) == 1.0f);
    assert_true(qr_reference_element(single, QUIRE_F32, 1) == -2.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotation_keeps_norms_and_turns_by_the_position),
        cmocka_unit_test(attention_is_causal_and_grouped),
        cmocka_unit_test(deviation_is_relative_frobenius),
        cmocka_unit_test(elements_of_every_dtype_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
