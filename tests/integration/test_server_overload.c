/* SPDX-License-Identifier: Apache-2.0
 *
 * Four times as much as the budget holds, with fetches beside the appends: the server's peak
 * resident size stays within budget + 10 % + 64 MiB, and descriptors and pins return to what
 * they were. So do thousands of sessions too short to have a page, and none of them has to
 * wait. Knows the server by its process id and its metrics alone.
 */
#include <dirent.h>
#include <pthread.h>

#include "client/quire.h"
#include "quired.h"

#define BUDGET_MIB 64u
#define OVERLOAD 4u
#define WRITERS 2u
#define HEADS 8u
#define DIM 128u
#define CHUNK_TOKENS 1024u
#define TOKEN_BYTES (2 * HEADS * DIM * 2) /* K and V in FP16 */
/* A session is an eighth of the budget when its pages are stored raw, so old sessions leave. */
#define RAW_CHUNKS (BUDGET_MIB * 1048576u / 8 / TOKEN_BYTES / CHUNK_TOKENS)
#define CHUNKS_MAX (4 * RAW_CHUNKS) /* at 4 bits and their scales: about as many bytes */

struct worker {
    pthread_t thread;
    const char *target;
    uint32_t number;
    bool raw; /* pages as they come, else 4 bits */
    quire_status status;
    char what[300]; /* cmocka's asserts belong to the main thread */
};

static uint16_t rows[CHUNK_TOKENS * HEADS * DIM];

/* Finite FP16 of either sign, magnitudes around 1. */
static void fill_rows(void)
{
    uint32_t x = 12345;

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        x = x * 1664525u + 1013904223u;
        rows[i] = (uint16_t)(0x3800u | (x >> 16 & 0x83ffu));
    }
}

static quire_session *open_session(quire_client *client, const char *name, bool raw)
{
    static const struct quire_rope rope = {.type = QUIRE_ROPE_DEFAULT,
                                           .layout = QUIRE_ROPE_HALF,
                                           .rotary_dim = DIM,
                                           .theta = 10000};
    static const struct quire_layers layers = {.count = 1,
                                               .query_heads = HEADS,
                                               .kv_heads = HEADS,
                                               .key_dim = DIM,
                                               .value_dim = DIM,
                                               .rope_stored = QUIRE_ROPE_PRE};
    static const struct quire_model model = {
        .name = "m", .layers = &layers, .layer_runs = 1, .ropes = &rope, .rope_count = 1};
    uint8_t fingerprint[32];
    struct quire_open_options options;
    struct quire_policy policy;
    quire_session *session = NULL;

    quire_policy_default(&policy);
    if (raw)
        policy.key = policy.value = (struct quire_codec_spec){.codec = QUIRE_CODEC_RAW};
    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_CREATE | QUIRE_OPEN_WRITE;
    options.policy = &policy;
    options.fingerprint = fingerprint;
    if (quire_model_register(client, &model, fingerprint) ||
        quire_session_open(client, name, &options, &session))
        return NULL;
    return session;
}

/* EFULL while everything is pinned is an answer, too: try again. */
static quire_status append_chunk(quire_session *session, uint64_t position)
{
    const void *tensors[] = {rows};
    const struct quire_append append = {.position = position,
                                        .tokens = CHUNK_TOKENS,
                                        .layers = 1,
                                        .dtype = QUIRE_F16,
                                        .key = tensors,
                                        .value = tensors};
    quire_status status = QUIRE_EFULL;

    for (int i = 0; i < 500 && status == QUIRE_EFULL; i++) {
        status = quire_append(session, &append, NULL);
        if (status == QUIRE_EFULL)
            usleep(10000);
    }
    return status;
}

/* What was evicted is missing, and nothing else is wrong. */
static quire_status fetch_back(quire_session *session, uint64_t tokens, uint16_t *out)
{
    void *tensors[] = {out};
    const struct quire_fetch fetch = {
        .tokens = tokens, .layers = 1, .dtype = QUIRE_F16, .key = tensors};
    const quire_status status = quire_fetch(session, &fetch);

    return status == QUIRE_EMISSING ? QUIRE_OK : status;
}

static quire_status fill_session(quire_client *client, struct worker *self, uint32_t number,
                                 uint16_t *out)
{
    char name[32];
    quire_status status = QUIRE_OK;

    snprintf(name, sizeof(name), "w%u-%u", self->number, number);
    const uint32_t chunks = self->raw ? RAW_CHUNKS : CHUNKS_MAX;
    quire_session *session = open_session(client, name, self->raw);
    if (!session)
        return quire_last_error()->status;
    for (uint32_t i = 0; i < chunks && !status; i++)
        status = append_chunk(session, (uint64_t)i * CHUNK_TOKENS);
    if (!status)
        status = fetch_back(session, (uint64_t)chunks * CHUNK_TOKENS, out);
    if (status)
        snprintf(self->what, sizeof(self->what), "%s: %s", name, quire_last_error()->text);
    quire_session_close(&session);
    return status;
}

static void *overload(void *arg)
{
    struct worker *self = arg;
    quire_client *client = NULL;
    uint16_t *out = calloc((size_t)CHUNKS_MAX * CHUNK_TOKENS * HEADS * DIM, sizeof(*out));
    const uint32_t sessions = 8 * OVERLOAD / WRITERS;

    self->status = out ? quire_client_open(self->target, NULL, &client) : QUIRE_ENOMEM;
    for (uint32_t i = 0; i < sessions && !self->status; i++)
        self->status = fill_session(client, self, i, out);
    quire_client_close(&client);
    free(out);
    return NULL;
}

static void run_writers(const struct quired *q, bool raw)
{
    struct worker workers[WRITERS] = {0};

    for (uint32_t i = 0; i < WRITERS; i++) {
        workers[i] = (struct worker){.target = q->target, .number = 2 * i + raw, .raw = raw};
        assert_ok(pthread_create(&workers[i].thread, NULL, overload, &workers[i]));
    }
    for (uint32_t i = 0; i < WRITERS; i++)
        assert_ok(pthread_join(workers[i].thread, NULL));
    for (uint32_t i = 0; i < WRITERS; i++)
        if (workers[i].status)
            fail_msg("%s: %s", quire_status_name(workers[i].status), workers[i].what);
}

static uint32_t count_descriptors(pid_t pid)
{
    char path[64];
    uint32_t count = 0;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* Once what a new client sets up has settled: the same for a while. */
static uint32_t settled_descriptors(pid_t pid)
{
    uint32_t count = count_descriptors(pid);

    for (int same = 0, i = 0; same < 25; i++) {
        assert_true(i < 1000);
        usleep(10000);
        const uint32_t now = count_descriptors(pid);
        same = now == count ? same + 1 : 0;
        count = now;
    }
    return count;
}

static unsigned long peak_kib(pid_t pid)
{
    char path[64], line[256];
    unsigned long kib = 0;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        if (!strncmp(line, "VmHWM:", 6))
            kib = strtoul(line + 6, NULL, 10);
    fclose(file);
    assert_true(kib > 0);
    return kib;
}

static double metric(quire_client *client, const char *name)
{
    struct quire_metric metrics[256];
    size_t count = 0;

    assert_ok(quire_stat(client, metrics, ARRAY_LEN(metrics), &count));
    for (size_t i = 0; i < count; i++)
        if (!strcmp(metrics[i].name, name))
            return metrics[i].value;
    fail_msg("no metric %s", name);
    return -1;
}

static bool is_instrumented(void)
{
    return getenv("QUIRE_SANITIZE") && *getenv("QUIRE_SANITIZE");
}

static void start_server(struct quired *q)
{
    char memory[32];

    snprintf(memory, sizeof(memory), "%uMiB", BUDGET_MIB);
    quired_folder(q);
    quired_start(q, (const char *const[]){"--memory", memory, NULL});
    fill_rows();
}

static void check_peak(const struct quired *q)
{
    const unsigned long limit_kib = BUDGET_MIB * 1024ul * 11 / 10 + 64 * 1024ul;

    printf("peak %lu KiB, limit %lu KiB%s\n", peak_kib(q->pid), limit_kib,
           is_instrumented() ? ", which does not hold for an instrumented program" : "");
    if (!is_instrumented())
        assert_true(peak_kib(q->pid) <= limit_kib);
}

static void overload_leaves_nothing_behind(void **state)
{
    struct quired q;
    quire_client *client = NULL;
    (void)state;

    start_server(&q);
    assert_ok(quire_client_open(q.target, NULL, &client));
    assert_ok(quire_client_ping(client));
    const uint32_t descriptors = settled_descriptors(q.pid);
    run_writers(&q, true);
    if (!is_instrumented())
        run_writers(&q, false);

    assert_true(metric(client, "pages_evicted") > 0);
    for (int i = 0; i < 500 && count_descriptors(q.pid) > descriptors; i++)
        usleep(10000); /* connections close in their own time */
    assert_int_equal(settled_descriptors(q.pid), descriptors);
    assert_true(metric(client, "server.pins") == 0);
    assert_true(metric(client, "server.calls_live") == 1); /* Stat itself */
    check_peak(&q);
    quire_client_close(&client);
    quired_stop(&q);
    quired_clean(&q);
}

/* One token is enough for a whole block of FP16 to be held. */
static quire_status append_short(quire_session *session, uint32_t tokens)
{
    const void *tensors[] = {rows};
    const struct quire_append append = {
        .tokens = tokens, .layers = 1, .dtype = QUIRE_F16, .key = tensors, .value = tensors};
    return quire_append(session, &append, NULL);
}

static uint64_t missing_tokens(quire_client *client, const char *name, uint64_t tokens)
{
    struct quire_range ranges[4];
    struct quire_open_options options;
    quire_session *session = NULL;
    uint64_t sum = 0;
    size_t count = 0;

    quire_open_options_init(&options);
    options.flags = 0;
    assert_ok(quire_session_open(client, name, &options, &session));
    assert_ok(
        quire_session_lookup(session, 0, tokens, 0, 1, ranges, ARRAY_LEN(ranges), &count));
    assert_true(count <= ARRAY_LEN(ranges));
    for (size_t i = 0; i < count; i++)
        sum += ranges[i].tokens;
    quire_session_close(&session);
    return sum;
}

/* None has a page, so that nothing but tails could go. The first append of each is the only
 * one: there is no pressure that a writer has to wait for. */
static void short_sessions_without_end(void **state)
{
    const uint32_t sessions = is_instrumented() ? 600 : 3000; /* the budget holds 128 */
    uint16_t *out = malloc(sizeof(rows));
    quire_client *client = NULL;
    struct quired q;
    char name[32];
    (void)state;

    start_server(&q);
    assert_non_null(out);
    assert_ok(quire_client_open(q.target, NULL, &client));
    for (uint32_t i = 0; i < sessions; i++) {
        snprintf(name, sizeof(name), "short-%u", i);
        quire_session *session = open_session(client, name, false);
        assert_non_null(session);
        if (append_short(session, 1 + i % 50) || fetch_back(session, 1 + i % 50, out))
            fail_msg("%s: %s", name, quire_last_error()->text);
        assert_memory_equal(out, rows, (1 + i % 50) * HEADS * DIM * 2);
        quire_session_close(&session);
    }
    assert_int_equal(missing_tokens(client, name, 1 + (sessions - 1) % 50), 0);
    assert_int_equal(missing_tokens(client, "short-1", 2), 2);
    assert_true(metric(client, "tails_evicted") >= sessions - 128);
    assert_true(metric(client, "reserve_full") == 0);
    assert_true(metric(client, "server.pins") == 0);
    check_peak(&q);
    free(out);
    quire_client_close(&client);
    quired_stop(&q);
    quired_clean(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overload_leaves_nothing_behind),
        cmocka_unit_test(short_sessions_without_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
