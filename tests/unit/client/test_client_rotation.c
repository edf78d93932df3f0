/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache of rotation tables gives the right table for each key, also when keys
 * share a slot, and reuses one that is there.
 */
#include "client/client_rotation.h"
#include "storage/codec/codec.h"
#include "tests/test.h"

static const struct qr_rope rope = {
    .layout = QR_ROPE_HALF, .rotary_dim = 32, .attention_factor = 1, .inv_freq = {1, 0.5f}};

static void check(const struct qr_rotation *r, uint64_t position)
{
    _Alignas(64) float expected[16 * 32];

    qr_rotation_make(&rope, position, 16, expected);
    assert_memory_equal(r->table, expected, sizeof(expected));
}

static void each_key_has_its_own_table(void **state)
{
    struct qr_rotations *cache = qr_rotations_create();

    (void)state;
    for (int round = 0; round < 3; round++)
        for (uint64_t page = 0; page < 200; page++) {
            const struct qr_rotation_key key = {page % 3, page * 16 + page % 2, 0, 16};
            struct qr_rotation *r = qr_rotation_get(cache, &key, &rope);
            assert_non_null(r);
            check(r, key.position);
            qr_rotation_put(cache, r);
        }
    qr_rotations_destroy(&cache);
    assert_null(cache);
}

static void a_table_is_made_once(void **state)
{
    struct qr_rotations *cache = qr_rotations_create();
    const struct qr_rotation_key key = {1, 64, 0, 16}, other = {2, 64, 0, 16};

    (void)state;
    struct qr_rotation *a = qr_rotation_get(cache, &key, &rope);
    struct qr_rotation *b = qr_rotation_get(cache, &key, &rope);
    assert_ptr_equal(a, b);
    struct qr_rotation *c = qr_rotation_get(cache, &other, &rope);
    assert_ptr_not_equal(a, c); /* it took the slot; the first is alive while in use */
    check(a, 64);
    qr_rotation_put(cache, a);
    qr_rotation_put(cache, b);
    qr_rotation_put(cache, c);
    qr_rotations_destroy(&cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_key_has_its_own_table),
        cmocka_unit_test(a_table_is_made_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
