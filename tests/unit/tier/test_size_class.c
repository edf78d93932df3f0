/* SPDX-License-Identifier: Apache-2.0
 *
 * Size classes hold what they are asked for and lose less than 1/17 of a slot.
 */
#include "tests/test.h"

#include "storage/tier/size_class.h"

static void every_size_fits_its_class_and_no_smaller_one(void **state)
{
    (void)state;
    for (size_t bytes = 1; bytes <= QR_SIZE_CLASS_MAX_BYTES; bytes += 1 + bytes / 97) {
        const uint32_t c = qr_size_class(bytes);
        assert_true(c < QR_SIZE_CLASSES);
        assert_true(qr_size_class_bytes(c) >= bytes);
        assert_true(c == 0 || qr_size_class_bytes(c - 1) < bytes);
    }
}

static void class_sizes_are_aligned_fixed_points_with_little_loss(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < QR_SIZE_CLASSES; c++) {
        const size_t bytes = qr_size_class_bytes(c);
        assert_int_equal(bytes % 64, 0);
        assert_int_equal(qr_size_class(bytes), c);
        if (c > 0)
            assert_true((bytes - qr_size_class_bytes(c - 1) - 1) * 17 < bytes);
    }
    assert_int_equal(qr_size_class_bytes(QR_SIZE_CLASSES - 1), QR_SIZE_CLASS_MAX_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_fits_its_class_and_no_smaller_one),
        cmocka_unit_test(class_sizes_are_aligned_fixed_points_with_little_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
