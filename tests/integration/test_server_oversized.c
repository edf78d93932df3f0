/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages far over the limit, one after another and several at once, beside calls that go
 * on: the server's peak resident size stays within budget + 10 % + 64 MiB, what it took is
 * given back, and the refusal names both sizes where gRPC lets the server see the message.
 */
#include <pthread.h>
#include <sys/mman.h>

#include "client/quire.h"
#include "quired.h"
#include "tests/unit/server/raw_client.h"

#define BUDGET_MIB 64u
#define LIMIT_KIB (BUDGET_MIB * 1024ul * 11 / 10 + 64 * 1024ul)
#define MIB ((size_t)1 << 20)
#define SENDERS_MAX 16u

struct sender {
    pthread_t thread;
    const char *target;
    const uint8_t *bytes;
    size_t n;
    grpc_status_code status;
};

static struct quired server;
static uint8_t *big; /* zeros, never written: costs this process nothing but address space */

/* A line of /proc/<pid>/status in KiB. */
static unsigned long memory_kib(const char *key)
{
    char path[64], line[256];
    unsigned long kib = 0;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)server.pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        if (!strncmp(line, key, strlen(key)))
            kib = strtoul(line + strlen(key), NULL, 10);
    fclose(file);
    assert_true(kib > 0);
    return kib;
}

static void *send_one(void *arg)
{
    struct sender *self = arg;
    struct raw_client client;
    struct raw_call call;
    uint8_t out[16];

    raw_open(&client, self->target);
    (void)raw_unary(&client, &call, "/quire.v1.Quire/Append", self->bytes, self->n, out,
                    sizeof(out));
    self->status = call.status;
    raw_end(&call);
    raw_close(&client);
    return NULL;
}

/* One small call. While messages that do not fit are on their way, gRPC's memory quota takes
 * memory back by ending some stream, whichever stands first in its queue, or by asking a
 * connection without streams to go: this one may be it. It is told so by one of two statuses.
 */
static bool hello(struct raw_client *client)
{
    struct raw_call call;
    uint8_t out[256];
    const bool is_answered =
        raw_unary(client, &call, "/quire.v1.Quire/Hello", "", 0, out, sizeof(out)) > 0;

    if (!is_answered && call.status != GRPC_STATUS_RESOURCE_EXHAUSTED &&
        call.status != GRPC_STATUS_UNAVAILABLE)
        fail_msg("Hello ended with status %d, %s", (int)call.status, call.text);
    if (!is_answered)
        printf("Hello beside them: status %d, %s\n", (int)call.status, call.text);
    raw_end(&call);
    return is_answered;
}

/* Within two seconds one must succeed. */
static void serves_under_pressure(struct raw_client *client)
{
    for (int i = 0; i < 200; i++) {
        if (hello(client))
            return;
        usleep(10000);
    }
    fail_msg("no Hello was answered in two seconds");
}

/* The pressure is over: a new connection is served at once, and so is libquire, which notices
 * that its own was asked to go. The old connection of this client, which looks at its socket
 * only during a call, may find it closed once. */
static void serves_again(struct raw_client *old, quire_client *library)
{
    struct raw_client client;

    raw_open(&client, server.target);
    assert_true(hello(&client));
    raw_close(&client);
    if (quire_client_ping(library))
        fail_msg("%s: %s", quire_status_name(quire_last_error()->status),
                 quire_last_error()->text);
    if (!hello(old))
        assert_true(hello(old));
}

static void send_many(uint32_t senders, size_t n)
{
    struct sender all[SENDERS_MAX];
    struct raw_client client;
    quire_client *library = NULL;

    raw_open(&client, server.target);
    assert_ok(quire_client_open(server.target, NULL, &library));
    for (uint32_t i = 0; i < senders; i++) {
        all[i] = (struct sender){.target = server.target, .bytes = big, .n = n};
        assert_ok(pthread_create(&all[i].thread, NULL, send_one, &all[i]));
    }
    serves_under_pressure(&client);
    const quire_status status = quire_client_ping(library);
    if (status && status != QUIRE_EFULL && status != QUIRE_EUNAVAILABLE)
        fail_msg("%s: %s", quire_status_name(status), quire_last_error()->text);
    for (uint32_t i = 0; i < senders; i++) {
        assert_ok(pthread_join(all[i].thread, NULL));
        assert_int_not_equal(all[i].status, GRPC_STATUS_OK);
    }
    serves_again(&client, library);
    quire_client_close(&library);
    raw_close(&client);
}

static void peak_holds(const char *after)
{
    const char *sanitize = getenv("QUIRE_SANITIZE");
    const unsigned long peak = memory_kib("VmHWM:");

    printf("peak %lu KiB, limit %lu KiB, after %s\n", peak, LIMIT_KIB, after);
    if (!(sanitize && *sanitize) &&
        peak > LIMIT_KIB) /* a sanitizer's own memory comes on top */
        fail_msg("peak %lu KiB, limit %lu KiB, after %s", peak, LIMIT_KIB, after);
}

static int set_up(void **state)
{
    (void)state;
    big = mmap(NULL, 300 * MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(big != MAP_FAILED);
    quired_folder(&server);
    quired_start(&server, (const char *const[]){"--memory", "64MiB", NULL});
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    quired_stop(&server);
    quired_clean(&server);
    munmap(big, 300 * MIB);
    return 0;
}

static void messages_at_the_limit_at_once(void **state)
{
    (void)state;
    send_many(SENDERS_MAX, 4 * MIB);
    peak_holds("16 messages of 4 MiB");
}

static void four_large_messages_at_once(void **state)
{
    (void)state;
    send_many(4, 64 * MIB);
    peak_holds("4 messages of 64 MiB");
}

static void one_huge_message_beside_calls(void **state)
{
    (void)state;
    send_many(1, 300 * MIB);
    peak_holds("a message of 300 MiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_at_the_limit_at_once),
        cmocka_unit_test(four_large_messages_at_once),
        cmocka_unit_test(one_huge_message_beside_calls),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
