/* SPDX-License-Identifier: Apache-2.0
 *
 * The index keeps a page while somebody refers to it or reads it, shows nothing before it is
 * complete, and makes room for any size as long as something can go.
 */
#include "tests/test.h"

#include "storage/store/index.h"

#define BUDGET (4u << 20)
#define PAGE_BYTES 5000

struct rig {
    struct qr_tier *tier;
    struct qr_meta meta;
    struct qr_counters counters;
    struct qr_index *index;
    uint32_t group;
};

/* Bytes 8 .. 15 are the tag, as in a page header. */
static uint64_t tag_of(const void *bytes)
{
    uint64_t tag;

    memcpy(&tag, (const uint8_t *)bytes + 8, sizeof(tag));
    return tag;
}

static void start(struct rig *rig, uint64_t meta_limit)
{
    const struct qr_tier_host_config host = {.budget_bytes = BUDGET};

    memset(rig, 0, sizeof(*rig));
    assert_ok(qr_tier_host_create(&host, &rig->tier, NULL));
    rig->meta.limit_bytes = meta_limit;
    const struct qr_index_config config = {.tier = rig->tier,
                                           .meta = &rig->meta,
                                           .counters = &rig->counters,
                                           .entries_max = 4096,
                                           .tag = tag_of,
                                           .groups_max = 8};
    assert_ok(qr_index_create(&config, &rig->index, NULL));
    rig->group = qr_index_group_open(rig->index);
}

static void end(struct rig *rig)
{
    struct qr_tier_stat stat;

    qr_index_group_close(rig->index, rig->group);
    qr_index_destroy(&rig->index);
    rig->tier->ops->stat(rig->tier, &stat);
    assert_int_equal(stat.slots, 0);
    rig->tier->ops->destroy(&rig->tier);
}

static uint32_t find(struct rig *rig, uint32_t number, enum qr_page_state *state)
{
    uint8_t id[QR_HASH_BYTES] = {0};
    struct qr_pinned pinned;
    uint32_t entry;

    memcpy(id, &(uint32_t){number * 2654435761u}, 4);
    memcpy(id + 4, &number, 4);
    assert_ok(qr_index_find(rig->index, id, &entry, state, &pinned, NULL));
    return entry;
}

static enum qr_publish fill(struct rig *rig, uint32_t entry, uint64_t tag, size_t bytes,
                            uint32_t order)
{
    const struct qr_place place = {.group = rig->group, .order = order, .hint = QR_ENTRY_NONE};
    struct qr_slot slot;

    assert_ok(qr_index_reserve(rig->index, bytes, &slot, NULL));
    memset(qr_index_map(rig->index, &slot), (int)tag, bytes);
    memcpy((uint8_t *)qr_index_map(rig->index, &slot) + 8, &tag, sizeof(tag));
    const enum qr_publish result = qr_index_publish(rig->index, entry, &slot, &place);
    if (result != QR_PUBLISH_DONE)
        qr_index_release(rig->index, &slot);
    return result;
}

static void a_page_lives_as_long_as_its_last_user(void **state)
{
    struct rig rig;
    struct qr_pinned pinned;
    enum qr_page_state found;
    struct qr_index_stat stat;
    (void)state;

    start(&rig, 1u << 20);
    uint32_t entry = find(&rig, 1, &found);
    assert_int_equal(found, QR_PAGE_EVICTED);
    assert_int_equal(qr_index_pin(rig.index, entry, &pinned), QR_PAGE_EVICTED);
    assert_int_equal(fill(&rig, entry, 7, PAGE_BYTES, 0), QR_PUBLISH_DONE);
    assert_int_equal(fill(&rig, entry, 7, PAGE_BYTES, 0), QR_PUBLISH_TAKEN);

    assert_int_equal(find(&rig, 1, &found), entry); /* a second reference, pinned */
    assert_int_equal(found, QR_PAGE_RESIDENT);
    qr_index_unref(rig.index, &entry, 1);
    qr_index_unref(rig.index, &entry, 1);
    assert_int_equal(qr_index_bytes(rig.index, entry), PAGE_BYTES); /* the pin holds it */
    qr_index_unpin(rig.index, entry);
    qr_index_stat(rig.index, &stat);
    assert_int_equal(stat.entries, 0);
    assert_int_equal(stat.resident, 0);
    end(&rig);
}

static void an_evicted_page_takes_back_only_the_same_bytes(void **state)
{
    static uint32_t entries[2000];
    struct rig rig;
    enum qr_page_state found;
    struct qr_pinned pinned;
    uint32_t n = 0;
    (void)state;

    start(&rig, 1u << 20);
    while (qr_counter_read(&rig.counters.pages_evicted) == 0) {
        entries[n] = find(&rig, n, &found);
        assert_int_equal(fill(&rig, entries[n], 100 + n, PAGE_BYTES, n), QR_PUBLISH_DONE);
        n++;
    }
    uint32_t gone = 0;
    while (qr_index_bytes(rig.index, entries[gone]) > 0)
        gone++;
    assert_int_equal(qr_index_pin(rig.index, entries[gone], &pinned), QR_PAGE_EVICTED);
    assert_int_equal(fill(&rig, entries[gone], 1, PAGE_BYTES, gone), QR_PUBLISH_DIFFERS);
    assert_int_equal(fill(&rig, entries[gone], 100 + gone, PAGE_BYTES, gone), QR_PUBLISH_DONE);
    assert_int_equal(qr_index_pin(rig.index, entries[gone], &pinned), QR_PAGE_RESIDENT);
    assert_int_equal(pinned.n, PAGE_BYTES);

    qr_index_quarantine(rig.index, entries[gone]);
    assert_int_equal(qr_index_pin(rig.index, entries[gone], &pinned), QR_PAGE_DAMAGED);
    assert_int_equal(fill(&rig, entries[gone], 100 + gone, PAGE_BYTES, gone), QR_PUBLISH_TAKEN);
    qr_index_unpin(rig.index, entries[gone]);
    assert_int_equal(fill(&rig, entries[gone], 100 + gone, PAGE_BYTES, gone),
                     QR_PUBLISH_DIFFERS);
    qr_index_unref(rig.index, entries, n);
    end(&rig);
}

static void another_size_empties_regions(void **state)
{
    static uint32_t entries[2000];
    struct rig rig;
    enum qr_page_state found;
    struct qr_slot big;
    uint32_t n = 0;
    (void)state;

    start(&rig, 1u << 20);
    while (qr_counter_read(&rig.counters.pages_evicted) == 0) {
        entries[n] = find(&rig, n, &found);
        assert_int_equal(fill(&rig, entries[n], n, PAGE_BYTES, n), QR_PUBLISH_DONE);
        n++;
    }
    assert_ok(qr_index_reserve(rig.index, 60000, &big, NULL));
    assert_true(qr_counter_read(&rig.counters.regions_evicted) > 0);
    qr_index_release(rig.index, &big);
    qr_index_unref(rig.index, entries, n);
    end(&rig);
}

static void says_when_it_can_know_no_more_pages(void **state)
{
    static uint32_t entries[5000];
    uint8_t id[QR_HASH_BYTES] = {0xff, 0xff, 0xff, 0xff, 0xff};
    struct rig rig;
    enum qr_page_state found;
    struct qr_pinned pinned;
    struct qr_error e;
    uint32_t entry;
    (void)state;

    start(&rig, 4096 * (uint64_t)qr_index_entry_bytes());
    for (uint32_t i = 0; i < 4096; i++)
        entries[i] = find(&rig, i, &found);
    assert_status(QUIRE_EFULL, qr_index_find(rig.index, id, &entry, &found, &pinned, &e));
    assert_non_null(strstr(e.text, "4096"));
    assert_true(e.retry_after_ms > 0);
    qr_index_unref(rig.index, entries, 4096);
    assert_ok(qr_index_find(rig.index, id, &entry, &found, &pinned, &e));
    qr_index_unref(rig.index, &entry, 1);
    end(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_lives_as_long_as_its_last_user),
        cmocka_unit_test(an_evicted_page_takes_back_only_the_same_bytes),
        cmocka_unit_test(another_size_empties_regions),
        cmocka_unit_test(says_when_it_can_know_no_more_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
