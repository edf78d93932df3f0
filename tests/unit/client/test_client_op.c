/* SPDX-License-Identifier: Apache-2.0
 *
 * An operation completes exactly once, whatever happens: answered, refused,
 * canceled, timed out, connection broken; waiters, the event descriptor and the
 * error agree. Meant to be run under the thread sanitizer too.
 */
#include <poll.h>

#include "fake_store.h"

static struct fake_kv kv;
static struct quire_append append_args;
static struct quire_fetch fetch_args;

static int setup(void **state)
{
    if (fake_setup(state))
        return -1;
    kv = fake_kv_make(0, 200);
    append_args = fake_append_args(&kv, 0, 200);
    fetch_args = fake_fetch_args(&kv, 0, 200);
    return 0;
}

static int teardown(void **state)
{
    fake_kv_free(&kv);
    return fake_teardown(state);
}

static bool readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, 0) == 1;
}

static void says_running_then_done(void **state)
{
    quire_op *op;

    (void)state;
    fake.mute = 1;
    assert_ok(quire_fetch_submit(session, &fetch_args, &op));
    assert_status(QUIRE_EAGAIN, quire_op_poll(op));
    const int fd = quire_op_eventfd(op);
    assert_true(fd >= 0);
    assert_false(readable(fd));
    assert_status(QUIRE_ETIMEOUT, quire_op_wait(op, 5));
    assert_status(QUIRE_ETIMEOUT, quire_op_wait_layer(op, 0, 5));
    quire_op_cancel(op);
    assert_status(QUIRE_ECANCELED, quire_op_wait(op, UINT32_MAX));
    assert_true(readable(fd));
    assert_status(QUIRE_ECANCELED, quire_op_poll(op));
    assert_status(QUIRE_ECANCELED, quire_op_wait_layer(op, 1, 0));
    assert_int_equal(quire_op_error(op)->status, QUIRE_ECANCELED);
    quire_op_free(&op);
    assert_null(op);
}

static void an_event_descriptor_made_late_is_readable(void **state)
{
    quire_op *op;

    (void)state;
    assert_ok(quire_append_submit(session, &append_args, &op));
    assert_ok(quire_op_wait(op, UINT32_MAX));
    assert_true(readable(quire_op_eventfd(op)));
    assert_ok(quire_op_poll(op));
    quire_op_free(&op);
}

static void many_asynchronous_operations_all_complete(void **state)
{
    enum { N = 40 };
    quire_op *ops[N];
    struct fake_kv outs[N];

    (void)state;
    assert_ok(quire_append(session, &append_args, NULL));
    for (int i = 0; i < N; i++) {
        outs[i] = fake_kv_make(0, 200);
        const struct quire_fetch args = fake_fetch_args(&outs[i], 0, 200);
        assert_ok(quire_fetch_submit(session, &args, &ops[i]));
        if (i % 5 == 4)
            quire_op_cancel(ops[i]);
    }
    for (int i = 0; i < N; i++) {
        const quire_status status = quire_op_wait(ops[i], UINT32_MAX);
        assert_true(status == QUIRE_OK || (i % 5 == 4 && status == QUIRE_ECANCELED));
        quire_op_free(&ops[i]);
        fake_kv_free(&outs[i]);
    }
}

static void cancel_while_an_append_streams_completes_it(void **state)
{
    quire_op *op;

    (void)state;
    for (int i = 0; i < 20; i++) {
        append_args.position = 0;
        assert_ok(quire_append_submit(session, &append_args, &op));
        quire_op_cancel(op);
        const quire_status status = quire_op_wait(op, UINT32_MAX);
        assert_true(status == QUIRE_OK || status == QUIRE_ECANCELED);
        quire_op_free(&op);
    }
}

static void an_append_is_tried_once_more(void **state)
{
    uint64_t length = 0;

    (void)state;
    fake.fail_first = 1;
    assert_ok(quire_append(session, &append_args, &length));
    assert_int_equal(length, 200);
    fake.fail_first = 2;
    assert_status(QUIRE_EUNAVAILABLE, quire_append(session, &append_args, NULL));
}

static void free_waits_for_the_end(void **state)
{
    quire_op *op;

    (void)state;
    assert_ok(quire_append_submit(session, &append_args, &op));
    quire_op_free(&op);
    assert_true(fake.messages > 0);
    quire_op_free(&op);
    quire_op_free(NULL);
}

static void an_error_of_the_server_arrives_whole(void **state)
{
    (void)state;
    qr_error_set(&fake.refuse, QUIRE_EGAP, "layer 1 has 64 tokens");
    fake.refuse.length = 64;
    fake.refuse.layer = 1;
    assert_status(QUIRE_EGAP, quire_append(session, &append_args, NULL));
    const struct quire_error *e = quire_last_error();
    assert_int_equal(e->length, 64);
    assert_int_equal(e->layer, 1);
    assert_string_equal(e->text, "layer 1 has 64 tokens");
}

struct reader {
    pthread_t thread;
    quire_status status;
};

static void *fetch_many(void *argument)
{
    struct reader *r = argument;

    for (int i = 0; i < 10 && r->status == QUIRE_OK; i++) {
        struct fake_kv out = fake_kv_make(0, 200);
        const struct quire_fetch args = fake_fetch_args(&out, 0, 200);
        r->status = quire_fetch(session, &args);
        fake_kv_free(&out);
    }
    return NULL;
}

static void threads_share_a_session(void **state)
{
    struct reader readers[4] = {0};

    (void)state;
    assert_ok(quire_append(session, &append_args, NULL));
    for (size_t i = 0; i < ARRAY_LEN(readers); i++)
        assert_ok(pthread_create(&readers[i].thread, NULL, fetch_many, &readers[i]));
    for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
        pthread_join(readers[i].thread, NULL);
        assert_ok(readers[i].status);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(says_running_then_done),
        TEST(an_event_descriptor_made_late_is_readable),
        TEST(many_asynchronous_operations_all_complete),
        TEST(cancel_while_an_append_streams_completes_it),
        TEST(an_append_is_tried_once_more),
        TEST(free_waits_for_the_end),
        TEST(an_error_of_the_server_arrives_whole),
        TEST(threads_share_a_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
