/* SPDX-License-Identifier: Apache-2.0
 *
 * Random operations against a model that remembers which values each lane was given: the store
 * never returns anything else, refuses what it should, and knows exactly what it lost.
 */
#include "fixture.h"

#define SESSIONS 6
#define LENGTH_MAX 8000
#define STEPS 2500

struct model_session {
    bool exists, idle; /* idle: its lease was given back */
    struct qr_session_info info;
    uint64_t length[2];                 /* layers 0 and 2 */
    uint32_t salts[2][LENGTH_MAX + 64]; /* by position */
};

static struct model_session model[SESSIONS];
static uint64_t random_state;
static uint32_t next_salt = 1;

static uint32_t roll(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 20) % n;
}

/* What a lane was given, or is about to be given. The salt of the checks is a session number.
 */
static uint32_t salt_at(uint32_t session, uint32_t layer, uint64_t position)
{
    return model[session].salts[layer / 2][position];
}

static const char *name_of(uint32_t i)
{
    static const char *const names[SESSIONS] = {"s0", "s1", "s2", "s3", "s4", "s5"};
    return names[i];
}

static void check_info(struct fixture *f, uint32_t i)
{
    struct qr_session_info info;

    assert_ok(qr_session_info(f->store, f->ns, name_of(i), &info, NULL));
    const uint64_t a = model[i].length[0], b = model[i].length[1];
    assert_int_equal(info.length, a < b ? a : b);
    assert_int_equal(info.longest, a > b ? a : b);
}

static void create(struct fixture *f, uint32_t i)
{
    model[i].info = fixture_open(f, name_of(i));
    model[i].exists = true;
    model[i].idle = false;
    model[i].length[0] = model[i].length[1] = 0;
}

static void drop(struct fixture *f, uint32_t i)
{
    assert_ok(qr_session_drop(f->store, f->ns, name_of(i), true, NULL));
    model[i].exists = false;
}

/* Tokens of [position, +tokens) that a lane lost. */
static uint64_t lost(struct fixture *f, uint32_t i, uint32_t layer, uint64_t position,
                     uint64_t tokens)
{
    const struct qr_token_range what = {.position = position, .tokens = tokens, .layer = layer};
    struct qr_token_range ranges[LENGTH_MAX / 16];
    uint64_t length, sum = 0;
    size_t count;
    bool more;

    assert_ok(qr_session_lookup(f->store, f->ns, model[i].info.session, &what, 1, ranges,
                                ARRAY_LEN(ranges), &count, &more, &length, NULL));
    assert_false(more);
    for (size_t r = 0; r < count; r++)
        sum += ranges[r].tokens;
    return sum;
}

static void fetch(struct fixture *f, uint32_t i)
{
    for (uint32_t layer = 0; layer < 3; layer += 2) {
        const uint64_t length = model[i].length[layer / 2];
        if (length == 0)
            continue;
        const uint32_t first = roll((uint32_t)length);
        const struct qr_fetch request = {.session = model[i].info.session,
                                         .position = first,
                                         .tokens = 1 + roll((uint32_t)length - first),
                                         .first_layer = layer,
                                         .layers = 1};
        const struct fixture_seen seen = fixture_fetch(f, &request, i);
        assert_int_equal(seen.corrupt, 0);
        assert_int_equal(seen.missing_tokens,
                         lost(f, i, layer, request.position, request.tokens));
    }
}

/* From now on its tail may go. */
static void rest(struct fixture *f, uint32_t i)
{
    qr_session_close(f->store, f->ns, model[i].info.session, model[i].info.epoch);
    model[i].idle = true;
}

static void wake(struct fixture *f, uint32_t i)
{
    const struct qr_session_open open = {.name = name_of(i), .write = true};

    if (model[i].idle)
        assert_ok(qr_session_open(f->store, f->ns, &open, &model[i].info, NULL));
    model[i].idle = false;
}

/* All of what an append said that a lane lost, but for pages that another value would not bring
 * back. */
static void restore_tail(struct fixture *f, uint32_t i, const struct qr_error *hole)
{
    struct qr_append a = fixture_all(&model[i].info, hole->position, (uint32_t)hole->tokens);
    struct qr_append_result result;

    a.first_layer = hole->layer;
    a.layers = 1;
    assert_ok(fixture_append_as(f, &a, i, &result, NULL));
    assert_int_equal(result.repeated_tokens, hole->tokens);
    assert_int_equal(lost(f, i, hole->layer, hole->position, hole->tokens), 0);
}

/* New rows past the length, repeats below it; sometimes one repeated value is changed. */
static void append(struct fixture *f, uint32_t i)
{
    struct model_session *s = &model[i];
    const bool both = roll(3) > 0;
    const uint32_t lane = roll(2);
    const uint64_t low =
        both ? (s->length[0] < s->length[1] ? s->length[0] : s->length[1]) : s->length[lane];
    const uint32_t back = roll(4) ? 0 : roll((uint32_t)low + 1);
    struct qr_append a = fixture_all(&s->info, low - back, 1 + roll(roll(2) ? 40 : 900));
    uint32_t changed_lane = 2, kept_salt = 0;
    uint64_t changed = 0, changed_lost = 0;
    struct qr_append_result result;
    struct qr_error e = {0};

    if (!both) {
        a.first_layer = lane * 2;
        a.layers = 1;
    }
    if (a.position + a.tokens > LENGTH_MAX)
        return;
    for (uint32_t l = 0; l < 2; l++)
        for (uint64_t p = s->length[l]; p < a.position + a.tokens; p++)
            s->salts[l][p] = next_salt++;
    if (back > 0 && roll(3) == 0) {
        changed_lane = both ? roll(2) : lane;
        const uint64_t repeats = s->length[changed_lane] - a.position;
        changed = a.position + roll((uint32_t)(repeats < a.tokens ? repeats : a.tokens));
        kept_salt = s->salts[changed_lane][changed];
        s->salts[changed_lane][changed] = next_salt++;
        changed_lost = lost(f, i, changed_lane * 2, changed, 1);
    }
    const quire_status status = fixture_append_as(f, &a, i, &result, &e);
    if (changed_lane < 2 && status != QUIRE_OK) {
        s->salts[changed_lane][changed] = kept_salt;
        /* Also where the value stands in a block that was lost. */
        assert_true(status == QUIRE_ECONFLICT || status == QUIRE_EMISSING);
    } else if (status == QUIRE_EMISSING) {
        const uint64_t end = s->length[e.layer / 2];
        assert_true(a.position > e.position || a.position + a.tokens < e.position + e.tokens);
        assert_true(e.tokens == 32 || e.position + e.tokens == end);
        assert_int_equal(lost(f, i, e.layer, e.position, e.tokens), e.tokens);
        if (roll(2))
            restore_tail(f, i, &e);
    } else {
        /* Rows of a tail that are lost are not compared: others may take their place. */
        assert_true(changed_lane == 2 || changed_lost == 1);
        assert_ok(status);
        for (uint32_t l = 0; l < 2; l++) {
            const bool named = both || l == lane;
            if (named && s->length[l] < a.position + a.tokens)
                s->length[l] = a.position + a.tokens;
        }
    }
    if (model[i].exists)
        check_info(f, i);
}

/* Whole blocks given again bring back what was lost. */
static void restore(struct fixture *f, uint32_t i)
{
    struct model_session *s = &model[i];
    const uint32_t lane = roll(2);
    const uint64_t blocks = s->length[lane] / 32;
    struct qr_append_result result;

    if (blocks == 0)
        return;
    const uint64_t first = roll((uint32_t)blocks);
    struct qr_append a = fixture_all(&s->info, first * 32, 32);
    a.first_layer = lane * 2;
    a.layers = 1;
    assert_ok(fixture_append_as(f, &a, i, &result, NULL));
    assert_int_equal(result.repeated_tokens, 32);
    assert_int_equal(lost(f, i, lane * 2, first * 32, 32), 0);
}

static void truncate_somewhere(struct fixture *f, uint32_t i)
{
    struct model_session *s = &model[i];
    const uint64_t longest = s->length[0] > s->length[1] ? s->length[0] : s->length[1];
    const uint64_t length = roll((uint32_t)longest + 1);
    struct qr_session_info info;
    struct qr_error e;

    const quire_status status =
        qr_session_truncate(f->store, f->ns, s->info.session, s->info.epoch, length, &info, &e);
    if (status == QUIRE_EINVAL) {
        assert_int_not_equal(length % 32, 0);
    } else {
        assert_ok(status);
        for (int l = 0; l < 2; l++)
            s->length[l] = s->length[l] < length ? s->length[l] : length;
    }
    check_info(f, i);
}

static void fork_into(struct fixture *f, uint32_t from, uint32_t to)
{
    const uint64_t a = model[from].length[0], b = model[from].length[1];
    const uint64_t length = roll(2) ? 0 : roll((uint32_t)(a < b ? a : b) + 1);
    struct qr_session_info info;
    struct qr_error e;

    if (model[to].exists)
        drop(f, to);
    const quire_status status =
        qr_session_fork(f->store, f->ns, name_of(from), name_of(to), length, 0, &info, &e);
    if (status == QUIRE_EINVAL) {
        assert_int_not_equal(length % 32, 0);
        return;
    }
    assert_ok(status);
    const struct qr_session_open open = {.name = name_of(to), .write = true};
    assert_ok(qr_session_open(f->store, f->ns, &open, &model[to].info, NULL));
    model[to].exists = true;
    model[to].idle = false;
    model[to].length[0] = model[to].length[1] = info.length;
    memcpy(model[to].salts, model[from].salts, sizeof(model[to].salts));
    check_info(f, to);
}

static void step(struct fixture *f)
{
    const uint32_t i = roll(SESSIONS), what = roll(100);

    if (!model[i].exists)
        create(f, i);
    else if (what < 60)
        wake(f, i);
    if (what < 52)
        append(f, i);
    else if (what < 58)
        restore(f, i);
    else if (what < 60)
        truncate_somewhere(f, i);
    else if (what < 82)
        fetch(f, i);
    else if (what < 87)
        fork_into(f, i, (i + 1 + roll(SESSIONS - 1)) % SESSIONS);
    else if (what < 88)
        drop(f, i);
    else
        rest(f, i);
}

static void never_returns_what_was_not_appended(void **state)
{
    const char *given = getenv("QUIRE_TEST_SEED");
    struct fixture f;
    (void)state;

    random_state = given ? strtoull(given, NULL, 10) : 88172645463325252u;
    print_message("QUIRE_TEST_SEED=%llu\n", (unsigned long long)random_state);
    fixture_salt_of = salt_at;
    fixture_start(&f, 4u << 20);
    for (uint32_t n = 0; n < STEPS; n++)
        step(&f);
    print_message("%.0f pages evicted, %.0f restored, %.0f shared; of tails %.0f, %.0f\n",
                  fixture_metric(&f, "pages_evicted"), fixture_metric(&f, "pages_restored"),
                  fixture_metric(&f, "pages_shared"), fixture_metric(&f, "tails_evicted"),
                  fixture_metric(&f, "tails_restored"));
    assert_true(fixture_metric(&f, "pages_evicted") > 100);
    assert_true(fixture_metric(&f, "pages_restored") > 10);
    assert_true(fixture_metric(&f, "tails_evicted") > 5);
    assert_true(fixture_metric(&f, "tails_restored") > 1);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        if (model[i].exists)
            drop(&f, i);
    }
    assert_true(fixture_metric(&f, "host_slots") == 0);
    assert_true(fixture_metric(&f, "pages_known") == 0);
    assert_true(fixture_metric(&f, "tail_chunks") == 0);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_returns_what_was_not_appended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
