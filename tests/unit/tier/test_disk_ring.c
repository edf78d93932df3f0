/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring moves exactly the bytes asked for, whatever the alignment, over short
 * counts and passing errors, on both engines; and a device that hangs holds up
 * neither deadlines nor other devices.
 */
#include "disk_test.h"

#include <pthread.h>

#include "storage/base/clock.h"
#include "storage/tier/disk_ring.h"

#define FILE_BYTES (8u << 20)

struct fixture {
    struct fault_io fault;
    char *folder;
    int files[2];
    struct qr_ring *ring;
};

static void setup(struct fixture *f, bool no_uring, uint32_t buffer_bytes)
{
    struct qr_ring_config config = {.file_count = 2,
                                    .no_uring = no_uring,
                                    .buffer_bytes = buffer_bytes,
                                    .queue_max = 64,
                                    .depth = 8};

    fault_init(&f->fault);
    f->folder = test_folder();
    config.io = &f->fault.io;
    for (int i = 0; i < 2; i++) {
        char path[256];
        snprintf(path, sizeof(path), "%s/%d", f->folder, i);
        f->files[i] = open(path, O_RDWR | O_CREAT | O_DIRECT, 0600);
        if (f->files[i] < 0)
            f->files[i] = open(path, O_RDWR | O_CREAT, 0600);
        assert_true(f->files[i] >= 0);
        assert_int_equal(posix_fallocate(f->files[i], 0, FILE_BYTES), 0);
        config.files[i] = f->files[i];
    }
    assert_ok(qr_ring_create(&config, &f->ring, NULL));
}

static void teardown(struct fixture *f)
{
    qr_ring_destroy(&f->ring);
    for (int i = 0; i < 2; i++)
        close(f->files[i]);
    test_folder_remove(f->folder);
}

static uint8_t *pattern(size_t n, uint8_t seed)
{
    uint8_t *bytes = malloc(n);

    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(i * 31u + i / 4096u + seed);
    return bytes;
}

static quire_status move(struct fixture *f, enum qr_disk_op kind, uint64_t offset, void *buffer,
                         size_t bytes)
{
    const struct qr_ring_op op = {
        .op = kind, .offset = offset, .buffer = buffer, .bytes = bytes, .capacity = bytes};
    return qr_ring_run(f->ring, &op, 1);
}

static void round_trip(struct fixture *f, size_t bytes)
{
    uint8_t *out = pattern(bytes, (uint8_t)bytes);
    uint8_t *back = calloc(1, bytes);

    assert_non_null(back);
    assert_ok(move(f, QR_DISK_WRITE, 4096, out, bytes));
    assert_ok(move(f, QR_DISK_READ, 4096, back, bytes));
    assert_memory_equal(out, back, bytes);
    free(out);
    free(back);
}

static void any_size_comes_back_as_written(void **state)
{
    static const size_t sizes[] = {1, 64, 4095, 4096, 4097, 65536, 100032, 393216, 1000000};
    (void)state;

    for (int engine = 0; engine < 2; engine++) {
        struct fixture f;
        setup(&f, engine == 1, 128u << 10);
        for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
            round_trip(&f, sizes[i]);
        const struct qr_ring_op sync = {.op = QR_DISK_SYNC};
        assert_ok(qr_ring_run(f.ring, &sync, 1));
        teardown(&f);
    }
}

static void aligned_buffers_are_used_in_place(void **state)
{
    struct fixture f;
    struct qr_ring_stat stat;
    uint8_t *buffer = aligned_alloc(4096, 128u << 10);
    uint8_t *same = pattern(128u << 10, 3);
    (void)state;

    setup(&f, false, 0);
    memcpy(buffer, same, 128u << 10);
    const struct qr_ring_op out = {
        .op = QR_DISK_WRITE, .buffer = buffer, .bytes = 100032, .capacity = 128u << 10};
    assert_ok(qr_ring_run(f.ring, &out, 1));
    memset(buffer, 0, 128u << 10);
    struct qr_ring_op in = out;
    in.op = QR_DISK_READ;
    assert_ok(qr_ring_run(f.ring, &in, 1));
    assert_memory_equal(buffer, same, 100032);
    qr_ring_stat(f.ring, &stat);
    assert_int_equal(stat.bounced, 0);
    free(buffer);
    free(same);
    teardown(&f);
}

static void short_counts_are_carried_on(void **state)
{
    static const uint64_t most[] = {512, 4096, 12288, 65536 + 512};
    (void)state;

    for (int engine = 0; engine < 2; engine++) {
        for (size_t i = 0; i < ARRAY_LEN(most); i++) {
            struct fixture f;
            struct qr_ring_stat stat;
            setup(&f, engine == 1, 0);
            atomic_store(&f.fault.short_bytes, most[i]);
            if (most[i] < 4096) { /* never a whole block: an error, not a loop without end */
                uint8_t *out = pattern(100000, 1);
                assert_status(QUIRE_EIO, move(&f, QR_DISK_WRITE, 0, out, 100000));
                free(out);
            } else {
                round_trip(&f, 300000);
                qr_ring_stat(f.ring, &stat);
                assert_true(stat.shortened > 0);
            }
            teardown(&f);
        }
    }
}

static void passing_errors_are_retried_and_others_reported(void **state)
{
    static const struct {
        int error;
        quire_status status;
    } cases[] = {
        {EAGAIN, QUIRE_OK}, {EINTR, QUIRE_OK}, {EIO, QUIRE_EIO}, {ENOSPC, QUIRE_EFULL}};
    (void)state;

    for (int engine = 0; engine < 2; engine++) {
        for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
            struct fixture f;
            uint8_t *out = pattern(8192, 7);
            setup(&f, engine == 1, 0);
            fault_arm(&f.fault, 1, 1, cases[i].error);
            assert_status(cases[i].status, move(&f, QR_DISK_WRITE, 0, out, 8192));
            round_trip(&f, 8192); /* healed */
            free(out);
            teardown(&f);
        }
    }
}

static void reading_past_the_end_is_an_error(void **state)
{
    struct fixture f;
    uint8_t bytes[4096];
    (void)state;

    setup(&f, false, 0);
    assert_status(QUIRE_EIO, move(&f, QR_DISK_READ, FILE_BYTES, bytes, sizeof(bytes)));
    teardown(&f);
}

struct outcome {
    _Atomic int fired, landed, status;
};

static void on_done(void *arg, quire_status status)
{
    struct outcome *o = arg;

    atomic_store(&o->status, status);
    atomic_fetch_add(&o->fired, 1);
}

static void on_landed(void *arg)
{
    atomic_fetch_add(&((struct outcome *)arg)->landed, 1);
}

static void wait_for(_Atomic int *what, int value)
{
    for (int i = 0; i < 5000 && atomic_load(what) < value; i++)
        usleep(1000);
    assert_int_equal(atomic_load(what), value);
}

static void a_hanging_device_holds_up_no_deadline_and_no_other_device(void **state)
{
    (void)state;
    for (int engine = 0; engine < 2; engine++) {
        struct fixture f;
        struct outcome late[40] = {{0}};
        uint32_t accepted = 0;
        uint8_t bytes[8192];

        setup(&f, engine == 1, 0);
        atomic_store(&f.fault.hang_fd, f.files[1]);
        for (size_t i = 0; i < ARRAY_LEN(late); i++) {
            const struct qr_ring_op op = {.op = QR_DISK_READ,
                                          .file = 1,
                                          .buffer = bytes,
                                          .bytes = sizeof(bytes),
                                          .capacity = sizeof(bytes),
                                          .deadline_ns = qr_clock_ns() + 30000000u,
                                          .done = on_done,
                                          .landed = on_landed,
                                          .arg = &late[i]};
            accepted += qr_ring_submit(f.ring, &op, NULL) == QUIRE_OK;
        }
        assert_int_equal(accepted, 32); /* half of the queue is the other device's */
        round_trip(&f, 300000);
        for (uint32_t i = 0; i < accepted; i++) {
            wait_for(&late[i].fired, 1);
            assert_int_equal(late[i].status, QUIRE_ETIMEOUT);
        }
        atomic_store(&f.fault.hang_fd, -1);
        wait_for(&late[0].landed, 1);
        teardown(&f);
        for (uint32_t i = 0; i < accepted; i++)
            assert_int_equal(late[i].fired, 1);
    }
}

static void cancel_answers_what_has_not_started(void **state)
{
    struct fixture f;
    struct outcome o[12] = {{0}};
    uint64_t tickets[12];
    uint8_t bytes[4096] = {0};
    (void)state;

    setup(&f, false, 0);
    atomic_store(&f.fault.hang_fd, f.files[0]);
    for (size_t i = 0; i < ARRAY_LEN(o); i++) {
        const struct qr_ring_op op = {.op = QR_DISK_READ,
                                      .buffer = bytes,
                                      .bytes = sizeof(bytes),
                                      .capacity = sizeof(bytes),
                                      .done = on_done,
                                      .arg = &o[i]};
        assert_ok(qr_ring_submit(f.ring, &op, &tickets[i]));
    }
    assert_true(qr_ring_cancel(f.ring, tickets[11]));
    assert_int_equal(o[11].status, QUIRE_ECANCELED);
    assert_int_equal(o[11].fired, 1);
    assert_false(qr_ring_cancel(f.ring, tickets[11]));
    atomic_store(&f.fault.hang_fd, -1);
    teardown(&f);
    for (size_t i = 0; i < ARRAY_LEN(o); i++)
        assert_int_equal(o[i].fired, 1);
}

static void *hammer(void *arg)
{
    struct fixture *f = arg;
    static _Atomic uint64_t lanes;
    const uint64_t base = (atomic_fetch_add(&lanes, 1) % 4) * (1u << 20);

    for (int i = 0; i < 50; i++) {
        uint8_t *out = pattern(70000, (uint8_t)i);
        uint8_t *back = calloc(1, 70000);
        assert_int_equal(move(f, QR_DISK_WRITE, base, out, 70000), 0);
        assert_int_equal(move(f, QR_DISK_READ, base, back, 70000), 0);
        assert_int_equal(memcmp(out, back, 70000), 0);
        free(out);
        free(back);
    }
    return NULL;
}

static void many_threads_share_a_ring(void **state)
{
    (void)state;
    for (int engine = 0; engine < 2; engine++) {
        struct fixture f;
        pthread_t threads[4];
        setup(&f, engine == 1, 32u << 10);
        for (size_t i = 0; i < ARRAY_LEN(threads); i++)
            assert_int_equal(pthread_create(&threads[i], NULL, hammer, &f), 0);
        for (size_t i = 0; i < ARRAY_LEN(threads); i++)
            pthread_join(threads[i], NULL);
        teardown(&f);
    }
}

static void limits_out_of_range_are_named(void **state)
{
    struct qr_ring *ring = NULL;
    struct qr_error e;
    struct qr_ring_config config = {.io = qr_disk_io_system(), .file_count = 0};
    (void)state;

    assert_status(QUIRE_EINVAL, qr_ring_create(&config, &ring, &e));
    assert_non_null(strstr(e.text, "0 files"));
    config.file_count = 1;
    config.depth = 1000;
    assert_status(QUIRE_EINVAL, qr_ring_create(&config, &ring, &e));
    assert_non_null(strstr(e.text, "1000"));
    config.depth = 4;
    config.buffer_bytes = 1000;
    assert_status(QUIRE_EINVAL, qr_ring_create(&config, &ring, &e));
    assert_null(ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_size_comes_back_as_written),
        cmocka_unit_test(aligned_buffers_are_used_in_place),
        cmocka_unit_test(short_counts_are_carried_on),
        cmocka_unit_test(passing_errors_are_retried_and_others_reported),
        cmocka_unit_test(reading_past_the_end_is_an_error),
        cmocka_unit_test(a_hanging_device_holds_up_no_deadline_and_no_other_device),
        cmocka_unit_test(cancel_answers_what_has_not_started),
        cmocka_unit_test(many_threads_share_a_ring),
        cmocka_unit_test(limits_out_of_range_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
