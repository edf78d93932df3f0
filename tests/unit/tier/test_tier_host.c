/* SPDX-License-Identifier: Apache-2.0
 *
 * The host tier never hands out overlapping bytes, never passes its budget, and
 * gets regions back whole, so that sizes can change.
 */
#include "tests/test.h"

#include "storage/tier/tier.h"

#define BUDGET (8u << 20)
#define SLOTS 4096

static struct qr_tier *tier_of(uint64_t budget_bytes)
{
    const struct qr_tier_host_config config = {.budget_bytes = budget_bytes, .huge_pages = 1};
    struct qr_tier *tier = NULL;

    assert_ok(qr_tier_host_create(&config, &tier, NULL));
    return tier;
}

static size_t fill(struct qr_tier *tier, size_t bytes, struct qr_slot *slots)
{
    size_t n = 0;

    while (n < SLOTS && tier->ops->reserve(tier, bytes, &slots[n]) == QUIRE_OK)
        n++;
    return n;
}

static void release_all(struct qr_tier *tier, struct qr_slot *slots, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tier->ops->release(tier, &slots[i]);
}

static void random_slots_keep_their_bytes(void **state)
{
    static struct qr_slot slots[256];
    static unsigned char marks[256];
    struct qr_tier *tier = tier_of(BUDGET);
    const unsigned seed = 20240607;
    (void)state;

    srand(seed);
    print_message("seed %u\n", seed);
    for (int step = 0; step < 20000; step++) {
        const int i = rand() % 256;
        if (slots[i].bytes) {
            const unsigned char *at = tier->ops->map(tier, &slots[i]);
            assert_int_equal((uintptr_t)at % 64, 0);
            assert_int_equal(at[0], marks[i]);
            assert_int_equal(at[slots[i].bytes - 1], marks[i]);
            tier->ops->release(tier, &slots[i]);
            assert_int_equal(slots[i].bytes, 0);
            continue;
        }
        const size_t bytes = (size_t)(1 + rand() % (rand() % 8 ? 20000 : 300000));
        if (tier->ops->reserve(tier, bytes, &slots[i]) != QUIRE_OK)
            continue;
        assert_true(slots[i].region < tier->regions_max);
        marks[i] = (unsigned char)rand();
        memset(tier->ops->map(tier, &slots[i]), marks[i], bytes);
    }
    for (int i = 0; i < 256; i++) {
        if (slots[i].bytes)
            tier->ops->release(tier, &slots[i]);
    }
    struct qr_tier_stat stat;
    tier->ops->stat(tier, &stat);
    assert_int_equal(stat.slots, 0);
    assert_int_equal(stat.reserved_bytes, 0);
    assert_int_equal(stat.payload_bytes, 0);
    tier->ops->destroy(&tier);
    assert_null(tier);
}

static void a_full_arena_serves_another_size_once_regions_are_empty(void **state)
{
    static struct qr_slot slots[SLOTS];
    static const size_t sizes[] = {1024, 5000, 70000, 150000, 524288, 3000000};
    struct qr_tier *tier = tier_of(BUDGET);
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(sizes) * 2; i++) {
        const size_t bytes = sizes[i % ARRAY_LEN(sizes)];
        const size_t n = fill(tier, bytes, slots);
        struct qr_tier_stat stat;
        tier->ops->stat(tier, &stat);
        assert_true(n > 0);
        assert_true(stat.reserved_bytes <= stat.budget_bytes);
        assert_int_equal(stat.reserved_bytes, n * tier->ops->rounded(tier, bytes));
        if (n < SLOTS) /* sizes that are large for the arena lose up to one slot a region */
            assert_true(n * bytes >= BUDGET / 100 * 85 || bytes > BUDGET / 16);
        release_all(tier, slots, n);
    }
    tier->ops->destroy(&tier);
}

static void one_slot_of_another_size_blocks_only_its_region(void **state)
{
    static struct qr_slot slots[SLOTS];
    struct qr_tier *tier = tier_of(BUDGET);
    struct qr_slot big;
    (void)state;

    const size_t n = fill(tier, 4096, slots);
    assert_status(QUIRE_EFULL, tier->ops->reserve(tier, 65536, &big));
    const uint32_t region = slots[0].region;
    size_t held = 0;
    for (size_t i = 0; i < n; i++) {
        if (slots[i].region == region)
            held++;
    }
    for (size_t i = 0; i < n; i++) {
        if (slots[i].region != region)
            continue;
        assert_status(QUIRE_EFULL, tier->ops->reserve(tier, 65536, &big));
        tier->ops->release(tier, &slots[i]);
        if (--held == 0)
            break;
    }
    assert_ok(tier->ops->reserve(tier, 65536, &big));
    tier->ops->release(tier, &big);
    for (size_t i = 0; i < n; i++) {
        if (slots[i].bytes)
            tier->ops->release(tier, &slots[i]);
    }
    tier->ops->destroy(&tier);
}

static void refuses_what_can_never_fit(void **state)
{
    const struct qr_tier_host_config small = {.budget_bytes = 4095};
    struct qr_tier *tier = NULL;
    struct qr_slot slot;
    struct qr_error e;
    (void)state;

    assert_status(QUIRE_EINVAL, qr_tier_host_create(&small, &tier, &e));
    assert_non_null(strstr(e.text, "4095"));
    tier = tier_of(BUDGET);
    assert_status(QUIRE_ETOOBIG, tier->ops->reserve(tier, BUDGET + 1, &slot));
    assert_status(QUIRE_ETOOBIG, tier->ops->reserve(tier, (size_t)1 << 40, &slot));
    assert_status(QUIRE_ETOOBIG, tier->ops->reserve(tier, 0, &slot));
    tier->ops->destroy(&tier);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_slots_keep_their_bytes),
        cmocka_unit_test(a_full_arena_serves_another_size_once_regions_are_empty),
        cmocka_unit_test(one_slot_of_another_size_blocks_only_its_region),
        cmocka_unit_test(refuses_what_can_never_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
