/* SPDX-License-Identifier: Apache-2.0
 *
 * Writers, readers, forks, drops and attends at once over a budget that is too small: whoever
 * gets data gets the right data, and everything comes back at the end. For the thread
 * sanitizer.
 */
#include "fixture.h"

#include <pthread.h>
#include <unistd.h>

#define WRITERS 3
#define READERS 2
#define ROUNDS 80

struct shared {
    struct fixture f;
    _Atomic bool stop;
    _Atomic uint32_t wrong; /* cmocka's asserts belong to the main thread */
    _Atomic uint64_t checked;
};

static const char *const names[WRITERS] = {"w0", "w1", "w2"};

struct thread {
    struct shared *shared;
    uint32_t number;
    pthread_t id;
};

static void expect(struct shared *shared, bool good)
{
    if (!good)
        atomic_fetch_add(&shared->wrong, 1);
}

static quire_status open_writer(struct fixture *f, const char *name,
                                struct qr_session_info *info)
{
    const struct qr_session_open open = {.name = name,
                                         .fingerprint = f->model.fingerprint,
                                         .policy = &f->policy,
                                         .create = true,
                                         .write = true,
                                         .force = true};
    return qr_session_open(f->store, f->ns, &open, info, NULL);
}

/* Salt = writer number, so that readers know what to expect by the session's name. */
static void *write_sessions(void *arg)
{
    struct thread *self = arg;
    struct fixture *f = &self->shared->f;
    const char *name = names[self->number];
    struct qr_session_info s;

    expect(self->shared, open_writer(f, name, &s) == QUIRE_OK);
    for (uint32_t round = 0, length = 0; round < ROUNDS; round++) {
        const uint32_t tokens = 100 + round * 37 % 500;
        expect(self->shared,
               fixture_append(f, &s, length, tokens, self->number, NULL) == QUIRE_OK);
        length += tokens;
        if (round % 4 == 3) { /* a pause in which the tail may go, then all of it again */
            qr_session_close(f->store, f->ns, s.session, s.epoch);
            usleep(1000);
            expect(self->shared, open_writer(f, name, &s) == QUIRE_OK);
            const uint32_t again = length < 96 ? 0 : (length - 64) / 32 * 32;
            expect(self->shared, fixture_append(f, &s, again, length - again, self->number,
                                                NULL) == QUIRE_OK);
        }
        if (round % 10 == 9) {
            struct qr_session_info info;
            expect(self->shared,
                   qr_session_truncate(f->store, f->ns, s.session, s.epoch, length / 64 * 32,
                                       &info, NULL) == QUIRE_OK);
            length = length / 64 * 32;
        }
        if (round % 40 == 39) {
            expect(self->shared,
                   qr_session_drop(f->store, f->ns, name, true, NULL) == QUIRE_OK);
            expect(self->shared, open_writer(f, name, &s) == QUIRE_OK);
            length = 0;
        }
    }
    return NULL;
}

static bool rows_are_right(const struct qr_part *part, uint32_t salt)
{
    const uint32_t dim = part->model->layers[part->layer].key_dim;

    for (uint32_t t = 0; t < part->tokens; t++)
        if (part->key_rows[(size_t)t * part->heads * dim] !=
            fixture_value(salt, part->layer, 0, part->position + t, part->first_head, 0))
            return false;
    return true;
}

/* The page's own digest of a row against the row that it should hold. */
static bool page_is_right(const struct qr_part *part, uint32_t salt)
{
    const struct qr_layer *l = &part->model->layers[part->layer];
    uint16_t key[4 * 64], value[4 * 64];
    uint32_t n = 0, m = 0;

    for (uint32_t h = 0; h < part->heads; h++) {
        for (uint32_t c = 0; c < l->key_dim; c++)
            key[n++] = fixture_value(salt, part->layer, 0, part->position, h, c);
        for (uint32_t c = 0; c < l->value_dim; c++)
            value[m++] = fixture_value(salt, part->layer, 1, part->position, h, c);
    }
    const uint64_t row = part->position - part->view.header->first_position;
    return part->view.digests[row] == qr_row_digest(key, n, value, m);
}

static void read_once(struct shared *shared, uint32_t salt)
{
    struct fixture *f = &shared->f;
    struct qr_session_info info;
    struct qr_fetch_cursor *cursor;
    struct qr_part part;

    if (qr_session_info(f->store, f->ns, names[salt], &info, NULL) != QUIRE_OK ||
        info.length == 0)
        return;
    const struct qr_fetch fetch = {.session = info.session, .tokens = info.length, .layers = 3};
    if (qr_fetch_open(f->store, f->ns, &fetch, &cursor, NULL) != QUIRE_OK)
        return;
    while (qr_fetch_next(cursor, &part)) {
        expect(shared, part.status != QR_PART_CORRUPT);
        if (part.status != QR_PART_OK)
            continue;
        expect(shared, part.page ? page_is_right(&part, salt) : rows_are_right(&part, salt));
        atomic_fetch_add(&shared->checked, 1);
        qr_part_release(f->store, part.pin);
    }
    qr_fetch_close(&cursor);
}

static void *read_sessions(void *arg)
{
    struct thread *self = arg;

    for (uint32_t i = self->number; !atomic_load(&self->shared->stop); i++)
        read_once(self->shared, i % WRITERS);
    return NULL;
}

static void *fork_and_attend(void *arg)
{
    static const uint64_t position = 100000;
    static float query[8 * 32 + 4 * 64], output[8 * 32 + 4 * 32], lse[12];
    struct thread *self = arg;
    struct fixture *f = &self->shared->f;
    struct qr_session_info info;

    for (uint32_t i = 0; !atomic_load(&self->shared->stop); i++) {
        if (qr_session_fork(f->store, f->ns, names[i % WRITERS], "fork", 0, 0, &info, NULL) !=
            QUIRE_OK)
            continue;
        const struct qr_attend attend = {.session = info.session,
                                         .layers = 3,
                                         .queries = 1,
                                         .positions = &position,
                                         .query = query,
                                         .allow_missing = true};
        const quire_status status =
            qr_store_attend(f->store, f->ns, &attend, output, lse, NULL, NULL, NULL);
        expect(self->shared, status == QUIRE_OK);
        expect(self->shared, qr_session_drop(f->store, f->ns, "fork", false, NULL) == QUIRE_OK);
        (void)qr_store_tick(f->store);
    }
    return NULL;
}

static void everybody_gets_right_data_or_none(void **state)
{
    static struct shared shared;
    struct thread writers[WRITERS], readers[READERS], forker = {.shared = &shared};
    (void)state;

    fixture_start(&shared.f, 4u << 20);
    for (uint32_t i = 0; i < WRITERS; i++) {
        writers[i] = (struct thread){.shared = &shared, .number = i};
        pthread_create(&writers[i].id, NULL, write_sessions, &writers[i]);
    }
    for (uint32_t i = 0; i < READERS; i++) {
        readers[i] = (struct thread){.shared = &shared, .number = i};
        pthread_create(&readers[i].id, NULL, read_sessions, &readers[i]);
    }
    pthread_create(&forker.id, NULL, fork_and_attend, &forker);
    for (uint32_t i = 0; i < WRITERS; i++)
        pthread_join(writers[i].id, NULL);
    atomic_store(&shared.stop, true);
    for (uint32_t i = 0; i < READERS; i++)
        pthread_join(readers[i].id, NULL);
    pthread_join(forker.id, NULL);

    assert_int_equal(atomic_load(&shared.wrong), 0);
    print_message("%llu parts checked, %.0f pages evicted\n",
                  (unsigned long long)atomic_load(&shared.checked),
                  fixture_metric(&shared.f, "pages_evicted"));
    assert_true(atomic_load(&shared.checked) > 0);
    assert_true(fixture_metric(&shared.f, "pages_evicted") > 0);
    for (uint32_t i = 0; i < WRITERS; i++)
        (void)qr_session_drop(shared.f.store, shared.f.ns, names[i], true, NULL);
    assert_true(fixture_metric(&shared.f, "host_slots") == 0);
    assert_true(fixture_metric(&shared.f, "pages_known") == 0);
    fixture_end(&shared.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everybody_gets_right_data_or_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
