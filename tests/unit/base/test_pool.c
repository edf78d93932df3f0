/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool hands out distinct aligned objects up to its bound and keeps their contents.
 */
#include "tests/test.h"

#include "storage/base/pool.h"

static size_t ended;

static void count_end(void *object)
{
    (void)object;
    ended++;
}

static void hands_out_no_more_than_its_bound(void **state)
{
    struct qr_pool *pool;
    void *objects[5];
    (void)state;

    assert_ok(qr_pool_create(24, 5, &pool));
    for (size_t i = 0; i < 5; i++) {
        objects[i] = qr_pool_take(pool);
        assert_non_null(objects[i]);
        assert_int_equal((uintptr_t)objects[i] % 16, 0);
        memset(objects[i], (int)i + 1, 24);
    }
    assert_null(qr_pool_take(pool));
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(((unsigned char *)objects[i])[23], i + 1);
    qr_pool_give(pool, objects[3]);
    assert_int_equal(qr_pool_out(pool), 4);
    assert_ptr_equal(qr_pool_take(pool), objects[3]);
    for (size_t i = 0; i < 5; i++)
        qr_pool_give(pool, objects[i]);
    ended = 0;
    qr_pool_destroy(&pool, count_end);
    assert_null(pool);
    assert_int_equal(ended, 5);
}

static void makes_nothing_new_once_warm(void **state)
{
    struct qr_pool *pool;
    (void)state;

    assert_ok(qr_pool_create(100000, 8, &pool));
    qr_pool_give(pool, qr_pool_take(pool));
    for (int i = 0; i < 100; i++)
        qr_pool_give(pool, qr_pool_take(pool));
    assert_int_equal(qr_pool_made(pool), 1);
    qr_pool_destroy(&pool, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hands_out_no_more_than_its_bound),
        cmocka_unit_test(makes_nothing_new_once_warm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
