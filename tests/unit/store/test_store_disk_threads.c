/* SPDX-License-Identifier: Apache-2.0
 *
 * Many threads on a store with a disk and little memory: some append, for memory or for the
 * disk, some fetch and compare, some fork, cut and drop, while sessions leave memory and come
 * back. What is read is right at every moment; what is there in the end is there after a
 * restart.
 */
#include <pthread.h>

#include "disk_life.h"

#define WRITERS 4u
#define ROUNDS 40u
#define TOKENS_MAX 2400u

static struct fixture *shared;
static uint32_t lengths[WRITERS];

static void keep_trying(const quire_status *status)
{
    if (*status == QUIRE_EFULL)
        usleep(3000);
}

static struct qr_session_info open_for_writing(const char *name)
{
    const struct qr_session_open open = {.name = name,
                                         .fingerprint = shared->model.fingerprint,
                                         .policy = &shared->policy,
                                         .create = true,
                                         .write = true,
                                         .force = true};
    struct qr_session_info info;
    quire_status status = QUIRE_EFULL;

    for (int i = 0; i < 3000 && status == QUIRE_EFULL; i++) {
        status = qr_session_open(shared->store, shared->ns, &open, &info, NULL);
        keep_trying(&status);
    }
    assert_ok(status);
    return info;
}

static void append_as(const struct qr_session_info *s, uint32_t position, uint32_t tokens,
                      uint32_t salt, bool durable)
{
    struct qr_append append = fixture_all(s, position, tokens);
    struct qr_append_result result;
    quire_status status = QUIRE_EFULL;
    uint32_t ids[128];

    for (uint32_t i = 0; i < tokens; i++)
        ids[i] = salt * 100000 + position + i;
    append.token_ids = salt % 2 ? ids : NULL;
    append.durable = durable;
    for (int i = 0; i < 3000 && status == QUIRE_EFULL; i++) {
        status = fixture_append_as(shared, &append, salt, &result, NULL);
        keep_trying(&status);
    }
    assert_ok(status);
}

static void *write_one(void *arg)
{
    const uint32_t number = (uint32_t)(uintptr_t)arg;
    struct qr_session_info info;
    char name[16], fork[16];
    uint32_t length = 0;

    snprintf(name, sizeof(name), "w%u", number);
    snprintf(fork, sizeof(fork), "f%u", number);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        const struct qr_session_info s = open_for_writing(name);
        const uint32_t tokens = 1 + (i * 37 + number * 11) % 120;
        assert_int_equal(s.length, length);
        if (length + tokens > TOKENS_MAX) { /* a page border */
            assert_ok(qr_session_truncate(shared->store, shared->ns, s.session, s.epoch, 320,
                                          &info, NULL));
            length = 320;
        }
        append_as(&s, length, tokens, number, i % 3 == 0);
        length += tokens;
        if (i % 5 == 0 && qr_session_fork(shared->store, shared->ns, name, fork, 0, 0, &info,
                                          NULL) == QUIRE_OK) {
            const struct fixture_seen seen =
                fixture_fetch_all(shared, &info, 0, info.length, number);
            assert_int_equal(seen.missing + seen.corrupt, 0);
            assert_ok(qr_session_drop(shared->store, shared->ns, fork, true, NULL));
        }
        qr_session_close(shared->store, shared->ns, s.session, s.epoch);
        fixture_now_ms += 700; /* others become idle, and may leave memory */
        usleep(2000);
    }
    lengths[number] = length;
    return NULL;
}

/* What a reader finds is the beginning of what its writer appends. */
static void *read_some(void *arg)
{
    const uint32_t first = (uint32_t)(uintptr_t)arg;
    struct qr_session_info info;
    char name[16];

    for (uint32_t i = 0; i < ROUNDS; i++) {
        const uint32_t number = (first + i) % WRITERS;
        snprintf(name, sizeof(name), "w%u", number);
        if (qr_session_info(shared->store, shared->ns, name, &info, NULL) != QUIRE_OK ||
            info.length < 64)
            continue;
        /* Below the shortest cut: it stays while it is read. */
        const uint64_t tokens = info.length < 320 ? info.length : 320;
        const struct fixture_seen seen = fixture_fetch_all(shared, &info, 0, tokens, number);
        assert_int_equal(seen.corrupt, 0);
        assert_int_equal(seen.missing, 0);
        usleep(3000);
    }
    return NULL;
}

static void lengths_path(char path[320])
{
    snprintf(path, 320, "%s.lengths", life_folder);
}

static void mix(struct fixture *f)
{
    pthread_t threads[WRITERS + 2];

    f->policy.window = 768; /* tails of 0.7 MB */
    shared = f;
    for (uint32_t i = 0; i < WRITERS; i++)
        assert_ok(pthread_create(&threads[i], NULL, write_one, (void *)(uintptr_t)i));
    for (uint32_t i = 0; i < 2; i++)
        assert_ok(pthread_create(&threads[WRITERS + i], NULL, read_some, (void *)(uintptr_t)i));
    for (uint32_t i = 0; i < WRITERS + 2; i++)
        assert_ok(pthread_join(threads[i], NULL));
    print_message("%.0f times a session left memory, %.0f times one came\n",
                  fixture_metric(f, "sessions_unloaded"), fixture_metric(f, "sessions_loaded"));
    assert_true(fixture_metric(f, "sessions_unloaded") > 0);
    assert_ok(qr_store_flush(f->store, f->ns, NULL));
    for (uint32_t i = 0; i < WRITERS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "w%u", i);
        check(f, name, lengths[i], i);
    }
    char path[320];
    lengths_path(path);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(lengths, sizeof(lengths), 1, file), 1);
    fclose(file);
}

static void find_all(struct fixture *f)
{
    char path[320];

    lengths_path(path);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_int_equal(fread(lengths, sizeof(lengths), 1, file), 1);
    fclose(file);
    unlink(path);
    for (uint32_t i = 0; i < WRITERS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "w%u", i);
        check(f, name, lengths[i], i);
    }
}

static void threads_share_a_store_with_a_disk(void **state)
{
    (void)state;
    life(mix);
    life(find_all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(threads_share_a_store_with_a_disk, set_up, tear_down),
    };

    life_budget_bytes = 4u << 20; /* less than the tails alone: sessions come and go */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
