/* SPDX-License-Identifier: Apache-2.0
 *
 * The process quired: what it refuses before it starts, what it prints, and that
 * it ends well.
 */
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "quired.h"

static void mistakes_end_it_with_a_message(void **state)
{
    static const struct {
        const char *flags[5], *environment[2], *message;
    } cases[] = {
        {{"--memroy", "1GiB"}, {NULL}, "the nearest known key is \"memory\""},
        {{"--memory", "1"}, {NULL}, "flag --memory: memory is \"1\", must be a size"},
        {{"--memory"}, {NULL}, "flag --memory needs a value"},
        {{"run"}, {NULL}, "\"run\" is no flag"},
        {{NULL}, {"QUIRE_LISTN=x"}, "environment QUIRE_LISTN: unknown key"},
        {{NULL}, {"QUIRE_TTL=soon"}, "environment QUIRE_TTL: ttl is \"soon\""},
        {{"--config", "/nowhere.yaml"}, {NULL}, "configuration file /nowhere.yaml"},
        {{NULL}, {"QUIRE_CONFIG=/nowhere.yaml"}, "configuration file /nowhere.yaml"},
        {{"--listen", "0.0.0.0:7440"}, {NULL}, "needs TLS"},
        {{"--listen", "[::]:7440"}, {NULL}, "needs TLS"},
        {{"--listen", "unix:/nowhere/x", "--memory", "16MiB"}, {NULL}, "cannot be bound"},
        {{NULL}, {"QUIRE_ISA=avx1024"}, "\"avx1024\", must be scalar, avx2 or avx512"},
        {{"--listen", ",", "--check-config"}, {NULL}, "without empty items"},
        {{"--wire-memory=16MiB", "--max-message-bytes=16MiB"}, {NULL}, "2 x max_message_bytes"},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct quired q = {0};
        const int code = quired_run(&q, cases[i].flags, cases[i].environment);
        if (code == 0 || code >= 127 || !strstr(q.output, cases[i].message) ||
            strstr(q.output, ".cc:")) /* a line of gRPC's own, past our log */
            fail_msg("%s %s: exit %d, \"%s\"", cases[i].flags[0] ? cases[i].flags[0] : "",
                     cases[i].environment[0] ? cases[i].environment[0] : "", code, q.output);
    }
}

static void it_answers_questions_and_exits(void **state)
{
    static const struct {
        const char *flags[4], *message;
    } cases[] = {
        {{"--version"}, "quired 0."},
        {{"--help"}, "--listen"},
        {{"--check-config"}, "the configuration is good"},
        {{"--print-config", "--lease", "90s"}, "lease: 90s  # flag --lease"},
        {{"--print-config"}, "memory: 1GiB  # default"},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct quired q = {0};
        const int code = quired_run(&q, cases[i].flags, NULL);
        if (code != 0 || !strstr(q.output, cases[i].message))
            fail_msg("%s: exit %d, \"%s\"", cases[i].flags[0], code, q.output);
    }
}

static void a_second_server_does_not_take_the_socket(void **state)
{
    struct quired first, second = {0};
    (void)state;

    quired_folder(&first);
    quired_start(&first, NULL);
    const char *flags[] = {"--listen", first.target, "--memory", "16MiB", NULL};
    assert_int_equal(quired_run(&second, flags, NULL), 1);
    assert_non_null(strstr(second.output, "another process listens"));
    quired_stop(&first);
    quired_clean(&first); /* and the socket is gone: the folder is empty */
}

static int connect_to(const struct quired *q)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(to.sun_path, sizeof(to.sun_path), "%s", strchr(q->target, ':') + 1);
    assert_true(fd >= 0);
    assert_ok(connect(fd, (struct sockaddr *)(void *)&to, sizeof(to)));
    return fd;
}

/* A server greets every connection with its settings, also past the soft limit. */
static void connections_past_the_soft_limit_are_served(void **state)
{
    struct quired q;
    struct rlimit before;
    int fds[100];
    char settings[9];
    const struct timeval patience = {.tv_sec = 5};
    (void)state;

    assert_ok(getrlimit(RLIMIT_NOFILE, &before));
    const struct rlimit low = {.rlim_cur = 64, .rlim_max = before.rlim_max};
    quired_folder(&q);
    assert_ok(setrlimit(RLIMIT_NOFILE, &low));
    quired_start(&q, NULL);
    assert_ok(setrlimit(RLIMIT_NOFILE, &before));
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        fds[i] = connect_to(&q);
    const int last = fds[ARRAY_LEN(fds) - 1];
    assert_ok(setsockopt(last, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)));
    assert_int_equal(recv(last, settings, sizeof(settings), MSG_WAITALL), sizeof(settings));
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
    quired_stop(&q);
    quired_clean(&q);
}

static void a_free_port_is_chosen_and_told(void **state)
{
    struct quired q;
    char path[128];
    (void)state;

    quired_folder(&q);
    snprintf(path, sizeof(path), "%s/ready", q.folder);
    const char *flags[] = {"--listen", "127.0.0.1:0", "--ready-file", path, NULL};
    quired_start(&q, flags);
    const char *port = strstr(q.addresses, "127.0.0.1:");
    assert_non_null(port);
    assert_in_range(strtol(port + 10, NULL, 10), 1, 65535);

    char text[512] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof(text) - 1, file) > 0);
    fclose(file);
    assert_string_equal(text, q.addresses);
    quired_stop(&q);
    quired_clean(&q); /* the ready file is gone, too */
}

static void a_start_that_fails_at_the_end_ends_it(void **state)
{
    struct quired q;
    (void)state;

    quired_folder(&q);
    const char *const cases[][4] = {{"--ready-file", "/nonexistent/f", "--server-threads", "1"},
                                    {"--ready-file", "/nonexistent/f", "--server-threads", "3"},
                                    {"--ready-fd", "99", "--server-threads", "1"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *flags[] = {"--listen",  q.target,    "--memory",  "16MiB", cases[i][0],
                               cases[i][1], cases[i][2], cases[i][3], NULL};
        alarm(20); /* a hang fails here */
        const int code = quired_run(&q, flags, NULL);
        alarm(0);
        if (code != 1 || !strstr(q.output, "cannot be written") ||
            strstr(q.output, "server.ready"))
            fail_msg("%s %s: exit %d, \"%s\"", cases[i][0], cases[i][1], code, q.output);
    }
    quired_clean(&q); /* the socket is gone, too */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_end_it_with_a_message),
        cmocka_unit_test(it_answers_questions_and_exits),
        cmocka_unit_test(a_second_server_does_not_take_the_socket),
        cmocka_unit_test(connections_past_the_soft_limit_are_served),
        cmocka_unit_test(a_free_port_is_chosen_and_told),
        cmocka_unit_test(a_start_that_fails_at_the_end_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
