/* SPDX-License-Identifier: Apache-2.0
 *
 * Eviction takes the last page of a session first, keeps what is read again, never takes what
 * is pinned, and beats LRU where sessions are read from their start.
 */
#include "tests/test.h"

#include "storage/store/evict.h"

#define PAGES 4000

static struct qr_evict_node nodes[PAGES];

static struct qr_evict_node *node_at(void *arg, uint32_t page)
{
    (void)arg;
    return &nodes[page];
}

static struct qr_evict *start(void)
{
    memset(nodes, 0, sizeof(nodes));
    struct qr_evict *evict =
        qr_evict_create(&(struct qr_evict_config){.node = node_at, .groups_max = 1024});
    assert_non_null(evict);
    return evict;
}

static uint32_t take(struct qr_evict *evict)
{
    const uint32_t page = qr_evict_pick(evict);

    if (page != QR_EVICT_NONE)
        qr_evict_unlink(evict, page, 1);
    return page;
}

static void takes_the_last_page_of_the_oldest_group(void **state)
{
    struct qr_evict *evict = start();
    (void)state;

    const uint32_t a = qr_evict_group_open(evict), b = qr_evict_group_open(evict);
    for (uint32_t i = 0; i < 5; i++)
        qr_evict_link(evict, i, a, i, 1, QR_EVICT_NONE);
    for (uint32_t i = 0; i < 5; i++)
        qr_evict_link(evict, 10 + i, b, i, 1, QR_EVICT_NONE);
    for (uint32_t i = 5; i > 0; i--)
        assert_int_equal(take(evict), i - 1);
    for (uint32_t i = 5; i > 0; i--)
        assert_int_equal(take(evict), 10 + i - 1);
    assert_int_equal(take(evict), QR_EVICT_NONE);
    qr_evict_destroy(&evict);
}

static void orders_pages_whatever_order_lanes_come_in(void **state)
{
    struct qr_evict *evict = start();
    (void)state;

    /* Three lanes of 200 blocks each, one lane after the other; page = lane * 1000 + block. */
    const uint32_t g = qr_evict_group_open(evict);
    for (uint32_t lane = 0; lane < 3; lane++)
        for (uint32_t block = 0; block < 200; block++)
            qr_evict_link(evict, lane * 1000 + block, g, block, 1,
                          lane ? (lane - 1) * 1000 + block : QR_EVICT_NONE);
    for (uint32_t i = 600; i > 0; i--)
        assert_int_equal(take(evict) % 1000, (i - 1) / 3);
    qr_evict_destroy(&evict);
}

static void never_takes_a_pinned_page(void **state)
{
    struct qr_evict *evict = start();
    (void)state;

    const uint32_t g = qr_evict_group_open(evict);
    for (uint32_t i = 0; i < 4; i++)
        qr_evict_link(evict, i, g, i, 1, QR_EVICT_NONE);
    nodes[3].pins = 1;
    nodes[1].pins = 2;
    assert_int_equal(take(evict), 2);
    assert_int_equal(take(evict), 0);
    assert_int_equal(take(evict), QR_EVICT_NONE);
    nodes[3].pins = 0;
    assert_int_equal(take(evict), 3);
    qr_evict_destroy(&evict);
}

static void keeps_a_group_that_is_read_again(void **state)
{
    struct qr_evict *evict = start();
    (void)state;

    const uint32_t a = qr_evict_group_open(evict), b = qr_evict_group_open(evict);
    for (uint32_t i = 0; i < 5; i++)
        qr_evict_link(evict, i, a, i, 1, QR_EVICT_NONE);
    for (uint32_t i = 0; i < 5; i++)
        qr_evict_link(evict, 10 + i, b, i, 1, QR_EVICT_NONE);
    for (uint32_t i = 0; i < 5; i++) {
        qr_evict_read(&nodes[i]);
        qr_evict_read(&nodes[i]);
    }
    for (uint32_t i = 5; i > 0; i--)
        assert_int_equal(take(evict), 10 + i - 1);
    qr_evict_destroy(&evict);
}

static void a_page_that_comes_back_soon_is_worth_more(void **state)
{
    struct qr_evict *evict = start();
    (void)state;

    const uint32_t a = qr_evict_group_open(evict), b = qr_evict_group_open(evict);
    qr_evict_link(evict, 0, a, 0, 1, QR_EVICT_NONE);
    assert_int_equal(take(evict), 0);
    qr_evict_link(evict, 0, a, 0, 1, QR_EVICT_NONE); /* in main now */
    qr_evict_link(evict, 1, b, 0, 1, QR_EVICT_NONE);
    assert_int_equal(take(evict), 1);
    qr_evict_destroy(&evict);
}

static void numbers_of_closed_groups_are_reused_when_empty(void **state)
{
    struct qr_evict *evict = start();
    (void)state;

    const uint32_t a = qr_evict_group_open(evict);
    qr_evict_link(evict, 0, a, 0, 1, QR_EVICT_NONE);
    qr_evict_group_close(evict, a);
    const uint32_t b = qr_evict_group_open(evict);
    assert_int_not_equal(a, b);
    assert_int_equal(take(evict), 0);
    assert_int_equal(qr_evict_group_open(evict), a);
    qr_evict_destroy(&evict);
}

/* ---- against LRU ------------------------------------------------------------------------- */

#define SESSIONS 100
#define SESSION_PAGES 20
#define ROOM 400 /* pages: a fifth of all */
#define READS 4000

static uint64_t sim_state;

static double sim_random(void)
{
    sim_state = sim_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(sim_state >> 11) / 9007199254740992.0;
}

/* Four of five reads go to sessions by Zipf's law, the fifth to one that is never read again.
 */
static uint32_t sim_session(uint32_t *once)
{
    if (sim_random() < 0.2)
        return SESSIONS / 2 + (*once)++ % (SESSIONS / 2);
    const uint32_t n = (uint32_t)pow(SESSIONS / 2.0, sim_random()) - 1;
    return n < SESSIONS / 2 ? n : SESSIONS / 2 - 1;
}

struct sim {
    struct qr_evict *evict; /* NULL: LRU */
    uint32_t groups[SESSIONS];
    uint64_t used[SESSIONS * SESSION_PAGES], clock;
    bool there[SESSIONS * SESSION_PAGES];
    uint32_t held;
};

static uint32_t sim_victim(struct sim *sim)
{
    uint32_t oldest = 0;

    if (sim->evict)
        return take(sim->evict);
    for (uint32_t i = 1; i < SESSIONS * SESSION_PAGES; i++) {
        if (sim->there[i] && (!sim->there[oldest] || sim->used[i] < sim->used[oldest]))
            oldest = i;
    }
    return oldest;
}

/* Reads from the start are worth something up to the first hole; the rest is made anew. */
static uint32_t sim_read(struct sim *sim, uint32_t session)
{
    uint32_t good = 0;

    while (good < SESSION_PAGES && sim->there[session * SESSION_PAGES + good])
        good++;
    for (uint32_t i = 0; i < SESSION_PAGES; i++) {
        const uint32_t page = session * SESSION_PAGES + i;
        sim->used[page] = ++sim->clock;
        if (sim->there[page]) {
            qr_evict_read(&nodes[page]);
            continue;
        }
        if (sim->held == ROOM) {
            sim->there[sim_victim(sim)] = false;
            sim->held--;
        }
        if (sim->evict)
            qr_evict_link(sim->evict, page, sim->groups[session], i, 1,
                          i > 0 ? page - 1 : QR_EVICT_NONE);
        sim->there[page] = true;
        sim->held++;
    }
    return good;
}

static double sim_run(struct qr_evict *evict)
{
    static struct sim sim;
    uint64_t good = 0;
    uint32_t once = 0;

    memset(&sim, 0, sizeof(sim));
    sim.evict = evict;
    sim_state = 42;
    for (uint32_t s = 0; evict && s < SESSIONS; s++)
        sim.groups[s] = qr_evict_group_open(evict);
    for (uint32_t i = 0; i < READS; i++)
        good += sim_read(&sim, sim_session(&once));
    return (double)good / ((double)READS * SESSION_PAGES);
}

static void beats_lru_on_sessions_read_from_their_start(void **state)
{
    struct qr_evict *evict = start();
    (void)state;

    const double lru = sim_run(NULL);
    memset(nodes, 0, sizeof(nodes));
    const double ours = sim_run(evict);
    print_message("pages read before the first hole: LRU %.3f, ours %.3f (%.2fx)\n", lru, ours,
                  ours / lru);
    assert_true(ours > lru);
    qr_evict_destroy(&evict);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_the_last_page_of_the_oldest_group),
        cmocka_unit_test(orders_pages_whatever_order_lanes_come_in),
        cmocka_unit_test(never_takes_a_pinned_page),
        cmocka_unit_test(keeps_a_group_that_is_read_again),
        cmocka_unit_test(a_page_that_comes_back_soon_is_worth_more),
        cmocka_unit_test(numbers_of_closed_groups_are_reused_when_empty),
        cmocka_unit_test(beats_lru_on_sessions_read_from_their_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
