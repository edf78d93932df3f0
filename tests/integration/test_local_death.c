/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients and servers that die while they share memory: everything is given back, calls end as
 * unavailable, the next server is found again, and what was acknowledged as durable is there.
 */
#include "local_path.h"

/* ---- deaths ------------------------------------------------------------------------------ */

/* A process of its own that fetches and appends until it is killed; it has done so once when
 * this returns. */
static pid_t start_worker(int number)
{
    int ready[2];
    char name[16], byte = 0;

    assert_ok(pipe2(ready, O_CLOEXEC));
    const pid_t pid = fork();
    if (pid) {
        close(ready[1]);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    quire_client *client = open_client(server.target, true);
    snprintf(name, sizeof(name), "w%d", number);
    quire_session *session = open_session(client, name);
    for (;;) {
        if (append(session, 0, TOKENS))
            _exit(1);
        fetch(session);
        if (ready[1] >= 0)
            assert_int_equal(write(ready[1], &byte, 1), 1);
        close(ready[1]);
        ready[1] = -1;
    }
}

static void a_killed_client_gives_everything_back(void **state)
{
    (void)state;
    quired_start(&server, NULL);
    for (int i = 0; i < 6; i++) {
        const pid_t pid = start_worker(i);
        assert_true(pid > 0);
        usleep(7000 * (unsigned)i); /* somewhere in the middle */
        assert_ok(kill(pid, SIGKILL));
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
    }
    quire_client *client = open_client(server.target, true);
    wait_for(client, "server.local_clients", 1); /* this one */
    wait_for(client, "server.local_calls_live", 0);
    wait_for(client, "server.pins", 0);
    assert_true(metric(client, "server.local_calls") >= 12);
    quire_session *session = open_session(client, "s");
    assert_ok(append(session, 0, TOKENS));
    fetch(session);
    quire_session_close(&session);
    quire_client_close(&client);
}

static void a_killed_server_is_unavailable_and_the_next_one_local(void **state)
{
    char path[128];
    quire_op *op = NULL;

    (void)state;
    quired_start(&server, NULL);
    quire_client *client = open_client(server.target, true);
    quire_session *session = open_session(client, "s");
    assert_ok(append(session, 0, TOKENS));
    assert_ok(kill(server.pid, SIGSTOP)); /* so that it surely dies in the middle */
    assert_ok(fetch_submit(session, 0, &op));
    assert_status(QUIRE_ETIMEOUT, quire_op_wait(op, 50));
    assert_ok(kill(server.pid, SIGKILL));
    assert_int_equal(quired_wait(&server), 1000 + SIGKILL);
    assert_status(QUIRE_EUNAVAILABLE, quire_op_wait(op, 10000));
    quire_op_free(&op);
    assert_path(client, false, "has ended");
    quire_session_close(&session);

    snprintf(path, sizeof(path), "%s/s", server.folder);
    (void)unlink(path);
    quired_start(&server, NULL);
    usleep(1100000);
    for (int i = 0; i < 50 && quire_client_ping(client); i++)
        usleep(100000);
    session = open_session(client, "s");
    assert_path(client, true, "");
    assert_ok(append(session, 0, TOKENS));
    fetch(session);
    quire_session_close(&session);
    quire_client_close(&client);
}

static void a_server_that_drains_ends_well(void **state)
{
    (void)state;
    quired_start(&server, NULL);
    quire_client *client = open_client(server.target, true);
    quire_session *session = open_session(client, "s");
    assert_ok(append(session, 0, TOKENS));
    quired_stop(&server);
    assert_status(QUIRE_EUNAVAILABLE, append(session, 0, 1));
    quire_session_close(&session);
    quire_client_close(&client);
}

/* Replies that wait for the disk, several at once, and a client that dies while they do. */
static void durable_appends_are_answered_once_they_are(void **state)
{
    char disk[96], clean[128];
    const char *const flags[] = {"--disk", disk, "--durability", "disk", NULL};

    (void)state;
    snprintf(disk, sizeof(disk), "%s/disk=64MiB", server.folder);
    quired_start(&server, flags);
    /* Before this process has threads of its own. */
    for (int i = 0; i < 3; i++) {
        const pid_t pid = start_worker(i);
        usleep(3000 * (unsigned)i);
        assert_ok(kill(pid, SIGKILL));
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
    }
    quire_client *client = open_client(server.target, true);
    quire_session *session = open_session(client, "s");
    assert_path(client, true, "");
    assert_ok(append(session, 0, TOKENS - 5)); /* a stream */
    for (uint32_t t = TOKENS - 5; t < TOKENS; t++)
        assert_ok(append(session, t, t + 1));
    wait_for(client, "server.local_clients", 1);
    wait_for(client, "server.local_calls_live", 0);
    assert_ok(kill(server.pid, SIGKILL));
    assert_int_equal(quired_wait(&server), 1000 + SIGKILL);
    quire_session_close(&session);
    quire_client_close(&client);

    quired_start(&server, flags); /* what was acknowledged is there */
    client = open_client(server.target, true);
    session = open_session(client, "s");
    fetch(session);
    assert_ok(append(session, 0, TOKENS)); /* and is a repeat */
    assert_true(metric(client, "server.local_calls") >= 2);
    quire_session_close(&session);
    quire_client_close(&client);
    quired_stop(&server);
    snprintf(clean, sizeof(clean), "rm -rf %s/disk", server.folder);
    assert_ok(system(clean));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_killed_client_gives_everything_back),
        TEST(a_killed_server_is_unavailable_and_the_next_one_local),
        TEST(a_server_that_drains_ends_well),
        TEST(durable_appends_are_answered_once_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
