/* SPDX-License-Identifier: Apache-2.0
 *
 * A page is taken for what its record says, or for damaged; marking a damaged
 * one is durable, and leaves alone what was dropped or replaced meanwhile. And
 * commits: the queue is bounded, one with `prepare` sees what those before wrote.
 */
#include "disk_sessions.h"

#include "storage/tier/disk_verify.h"

#define CAP ((64u << 20) + 4096u)

static const struct test_session one = {
    .ns = 1, .number = 1, .lanes = 2, .blocks = 3, .dim = 64};

struct fixture {
    struct fault_io fault;
    char *base;
    struct qr_disk_config config;
    struct qr_disk *disk;
};

static void setup(struct fixture *f)
{
    fault_init(&f->fault);
    f->base = test_folder();
    f->config = (struct qr_disk_config){.io = &f->fault.io,
                                        .folders = {f->base},
                                        .cap_bytes = {CAP},
                                        .count = 1,
                                        .create = true};
    assert_ok(qr_disk_open(&f->config, NULL, NULL, &f->disk, NULL));
    test_put_session(f->disk, &one);
}

static void teardown(struct fixture *f)
{
    qr_disk_close(&f->disk);
    test_folder_remove(f->base);
}

static void a_page_is_what_its_record_says_or_refused(void **state)
{
    struct fixture f;
    struct qr_error e;
    (void)state;

    setup(&f);
    const struct qr_disk_page good = test_session_record(f.disk, &one, 1, 2);
    uint8_t *bytes = aligned_alloc(64, (good.place.bytes + 63u) / 64 * 64);
    assert_ok(test_read(f.disk, &good.place, bytes, 0));
    assert_ok(qr_disk_page_verify(&good, bytes, NULL, NULL));
    struct qr_disk_page wrong[5];
    for (int i = 0; i < 5; i++)
        wrong[i] = good;
    wrong[0].layer ^= 1;
    wrong[1].first_head = 1;
    wrong[2].heads = 1;
    wrong[3].first_position = 0;
    wrong[4].checksum ^= 1;
    for (int i = 0; i < 5; i++) {
        assert_status(QUIRE_EMISMATCH, qr_disk_page_verify(&wrong[i], bytes, NULL, &e));
        assert_non_null(strstr(e.text, "another page"));
    }
    bytes[good.place.bytes / 2] ^= 1;
    assert_status(QUIRE_ECORRUPT, qr_disk_page_verify(&good, bytes, NULL, NULL));
    free(bytes);
    teardown(&f);
}

static void a_mark_is_durable_and_the_slot_stays_taken(void **state)
{
    struct fixture f;
    struct qr_disk_quarantine q = {0};
    struct qr_disk_stat stat;
    (void)state;

    setup(&f);
    q.place = test_session_record(f.disk, &one, 0, 1).place;
    test_session_page_id(&one, 0, 1, q.page_id);
    assert_ok(qr_disk_quarantine_wait(f.disk, &q));
    assert_true(q.marked);
    assert_ok(qr_disk_quarantine_wait(f.disk, &q)); /* again: nothing to do */
    assert_true(q.marked);
    qr_disk_stat(f.disk, &stat);
    assert_int_equal(stat.quarantined, 1);
    qr_disk_close(&f.disk);
    assert_ok(qr_disk_open(&f.config, NULL, NULL, &f.disk, NULL));
    assert_int_equal(test_session_record(f.disk, &one, 0, 1).flags, QR_DISK_QUARANTINED);
    assert_int_equal(test_session_record(f.disk, &one, 0, 2).flags, 0);
    qr_disk_stat(f.disk, &stat);
    assert_int_equal(stat.device[0].slots, 6);
    teardown(&f);
}

static void what_was_dropped_or_moved_meanwhile_is_left_alone(void **state)
{
    struct fixture f;
    struct qr_disk_quarantine q = {0};
    struct qr_disk_batch batch = {0};
    uint8_t value[64];
    size_t n;
    (void)state;

    setup(&f);
    q.place = test_session_record(f.disk, &one, 0, 1).place;
    test_session_page_id(&one, 0, 1, q.page_id);
    q.place.slot++;
    assert_ok(qr_disk_quarantine_wait(f.disk, &q));
    assert_false(q.marked);
    assert_int_equal(test_session_record(f.disk, &one, 0, 1).flags, 0);
    q.place.slot--;
    const struct qr_disk_key key = qr_disk_key_page(q.page_id);
    qr_disk_batch_delete(&batch, &key);
    struct qr_disk_commit commit = {.batch = &batch, .freed = &q.place, .freed_count = 1};
    assert_ok(qr_disk_commit_wait(f.disk, &commit));
    assert_ok(qr_disk_quarantine_wait(f.disk, &q));
    assert_false(q.marked);
    assert_status(QUIRE_ENOTFOUND,
                  qr_disk_index_get(qr_disk_index_of(f.disk), &key, value, sizeof(value), &n));
    qr_disk_batch_free(&batch);
    teardown(&f);
}

/* ---- commits ---------------------------------------------------------------------------- */

struct step {
    struct qr_disk_commit commit;
    struct qr_disk_batch batch;
    struct fixture *f;
    struct test_read_wait *wait;
    bool saw_first;
};

static void step_done(void *arg, quire_status status)
{
    struct step *s = arg;
    test_read_done(s->wait, status);
}

/* The device's syncs are slow from here on: what is queued behind gathers. */
static int slow_sync(struct qr_disk_io *io, int fd)
{
    (void)io;
    usleep(100000);
    return qr_disk_io_system()->sync(io, fd);
}

static void look_for_first(struct qr_disk_commit *commit)
{
    struct step *s = (struct step *)(void *)commit; /* its first member */
    const struct qr_disk_key key = qr_disk_key_model((const uint8_t[QR_HASH_BYTES]){9});
    uint8_t value[8];
    size_t n;

    s->saw_first = qr_disk_index_get(qr_disk_index_of(s->f->disk), &key, value, sizeof(value),
                                     &n) == QUIRE_OK;
}

static void a_bounded_queue_in_order(void **state)
{
    struct fixture f;
    struct step steps[5] = {0};
    struct test_read_wait w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
    struct qr_disk_stat stat;
    int queued = 0;
    (void)state;

    setup(&f);
    qr_disk_close(&f.disk);
    f.config.commit_queue_max = 2;
    assert_ok(qr_disk_open(&f.config, NULL, NULL, &f.disk, NULL));
    f.fault.io.sync = slow_sync;
    for (int i = 0; i < 5; i++) {
        steps[i].f = &f;
        steps[i].wait = &w;
        steps[i].commit = (struct qr_disk_commit){
            .devices = 1, .batch = &steps[i].batch, .done = step_done, .arg = &steps[i]};
        if (i == 1)
            steps[i].commit.prepare = look_for_first;
        const struct qr_disk_key key =
            qr_disk_key_model((const uint8_t[QR_HASH_BYTES]){(uint8_t)(9 + i)});
        qr_disk_batch_put(&steps[i].batch, &key, "x", 1);
        const quire_status status = qr_disk_commit(f.disk, &steps[i].commit);
        assert_true(status == QUIRE_OK || status == QUIRE_EAGAIN);
        queued += status == QUIRE_OK;
        if (i == 0)
            usleep(20000); /* it has begun */
    }
    assert_int_equal(queued, 3); /* one under way, two queued */
    struct qr_disk_commit waits = {.devices = 1};
    assert_ok(qr_disk_commit_wait(f.disk, &waits)); /* waits for room */
    assert_int_equal(w.fired, 3);
    assert_true(steps[1].saw_first);
    qr_disk_stat(f.disk, &stat);
    assert_int_equal(stat.commits_refused, 2);
    assert_int_equal(stat.commits_queued, 0);
    for (int i = 0; i < 5; i++)
        qr_disk_batch_free(&steps[i].batch);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_is_what_its_record_says_or_refused),
        cmocka_unit_test(a_mark_is_durable_and_the_slot_stays_taken),
        cmocka_unit_test(what_was_dropped_or_moved_meanwhile_is_left_alone),
        cmocka_unit_test(a_bounded_queue_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
