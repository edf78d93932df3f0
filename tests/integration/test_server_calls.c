/* SPDX-License-Identifier: Apache-2.0
 *
 * A real server and the real client: rows go in, come back, are attended to; a
 * client that dies holds nothing; a restart forgets, and says so.
 */
#include "client/quire.h"
#include "quired.h"

#define LAYERS 2
#define HEADS 2
#define DIM 64
#define TOKENS 700

/* Rows with a smooth pattern, so that quantization is good and a shifted row is seen. */
static float value_at(uint32_t layer, uint32_t which, uint32_t token, uint32_t channel)
{
    return sinf((float)token * 0.013f + (float)channel * 0.31f + (float)(layer * 2 + which));
}

struct tensors {
    float *key[LAYERS], *value[LAYERS];
};

static void make_tensors(struct tensors *t, bool fill)
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        t->key[l] = calloc((size_t)TOKENS * HEADS * DIM, sizeof(float));
        t->value[l] = calloc((size_t)TOKENS * HEADS * DIM, sizeof(float));
        assert_true(t->key[l] && t->value[l]);
        for (uint32_t i = 0; fill && i < TOKENS * HEADS * DIM; i++) {
            t->key[l][i] = value_at(l, 0, i / (HEADS * DIM), i % (HEADS * DIM));
            t->value[l][i] = value_at(l, 1, i / (HEADS * DIM), i % (HEADS * DIM));
        }
    }
}

static void free_tensors(struct tensors *t)
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        free(t->key[l]);
        free(t->value[l]);
    }
}

static quire_client *connect_to(const struct quired *q)
{
    quire_client *client = NULL;

    if (quire_client_open(q->target, NULL, &client))
        fail_msg("%s", quire_last_error()->text);
    return client;
}

static quire_session *open_session(quire_client *client, const char *name, uint32_t flags)
{
    static const struct quire_rope rope = {.type = QUIRE_ROPE_DEFAULT,
                                           .layout = QUIRE_ROPE_HALF,
                                           .rotary_dim = DIM,
                                           .theta = 10000};
    static const struct quire_layers layers = {.count = LAYERS,
                                               .query_heads = 2 * HEADS,
                                               .kv_heads = HEADS,
                                               .key_dim = DIM,
                                               .value_dim = DIM,
                                               .rope_stored = QUIRE_ROPE_PRE};
    static const struct quire_model model = {
        .name = "test", .layers = &layers, .layer_runs = 1, .ropes = &rope, .rope_count = 1};
    uint8_t fingerprint[32];
    struct quire_open_options options;
    quire_session *session = NULL;

    assert_ok(quire_model_register(client, &model, fingerprint));
    quire_open_options_init(&options);
    options.flags = flags;
    options.fingerprint = fingerprint;
    if (quire_session_open(client, name, &options, &session))
        fail_msg("%s", quire_last_error()->text);
    return session;
}

static void append_all(quire_session *session, const struct tensors *t)
{
    const struct quire_append append = {.tokens = TOKENS,
                                        .layers = LAYERS,
                                        .dtype = QUIRE_F32,
                                        .key = (const void *const *)t->key,
                                        .value = (const void *const *)t->value};
    uint64_t length = 0;

    if (quire_append(session, &append, &length))
        fail_msg("%s", quire_last_error()->text);
    assert_int_equal(length, TOKENS);
}

static double metric(quire_client *client, const char *name)
{
    struct quire_metric *metrics = calloc(256, sizeof(*metrics));
    size_t count = 0;
    double value = -1;

    assert_non_null(metrics);
    assert_ok(quire_stat(client, metrics, 256, &count));
    for (size_t i = 0; i < count; i++)
        if (!strcmp(metrics[i].name, name))
            value = metrics[i].value;
    free(metrics);
    assert_true(value >= 0);
    return value;
}

static void close_to(const struct tensors *got, const struct tensors *wanted)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t i = 0; i < TOKENS * HEADS * DIM; i++) {
            /* 4 bits over a range of at most 2: half a step is 1/15 */
            assert_true(fabsf(got->key[l][i] - wanted->key[l][i]) < 0.07f);
            assert_true(fabsf(got->value[l][i] - wanted->value[l][i]) < 0.07f);
        }
}

static void fetch_all(quire_session *session, struct tensors *t)
{
    const struct quire_fetch fetch = {.tokens = TOKENS,
                                      .layers = LAYERS,
                                      .dtype = QUIRE_F32,
                                      .key = (void *const *)t->key,
                                      .value = (void *const *)t->value};

    if (quire_fetch(session, &fetch))
        fail_msg("%s", quire_last_error()->text);
}

static void what_goes_in_comes_back(void **state)
{
    struct quired q;
    struct tensors in, out;
    (void)state;

    quired_folder(&q);
    quired_start(&q, NULL);
    quire_client *client = connect_to(&q);
    quire_session *session = open_session(client, "s", QUIRE_OPEN_CREATE | QUIRE_OPEN_WRITE);
    make_tensors(&in, true);
    make_tensors(&out, false);
    append_all(session, &in);
    append_all(session, &in); /* a repeat changes nothing */
    fetch_all(session, &out);
    close_to(&out, &in);

    quire_session_close(&session);
    quire_client_close(&client);
    quired_stop(&q);
    quired_clean(&q);
    free_tensors(&in);
    free_tensors(&out);
}

static void attention_is_computed(void **state)
{
    struct quired q;
    struct tensors in;
    float query[2 * HEADS * DIM], output[2 * HEADS * DIM], lse[2 * HEADS];
    const uint64_t position = 0;
    (void)state;

    quired_folder(&q);
    quired_start(&q, NULL);
    quire_client *client = connect_to(&q);
    quire_session *session = open_session(client, "s", QUIRE_OPEN_CREATE | QUIRE_OPEN_WRITE);
    make_tensors(&in, true);
    append_all(session, &in);
    for (size_t i = 0; i < ARRAY_LEN(query); i++)
        query[i] = (float)(i % 7) * 0.1f;
    const struct quire_attend attend = {.first_layer = 1,
                                        .layers = 1,
                                        .queries = 1,
                                        .positions = &position,
                                        .dtype = QUIRE_F32,
                                        .query = query,
                                        .output = output,
                                        .lse = lse};
    if (quire_attend(session, &attend))
        fail_msg("%s", quire_last_error()->text);
    /* A query at position 0 sees token 0 alone, which is a raw row: its value is the output. */
    for (uint32_t h = 0; h < 2 * HEADS; h++)
        for (uint32_t c = 0; c < DIM; c++)
            assert_true(fabsf(output[h * DIM + c] - in.value[1][h / 2 * DIM + c]) < 2e-3f);
    quire_session_close(&session);
    quire_client_close(&client);
    quired_stop(&q);
    quired_clean(&q);
    free_tensors(&in);
}

/* Fetch again and again until killed. */
static void fetch_for_ever(const struct quired *q, int ready)
{
    struct tensors out;
    quire_client *client = connect_to(q);
    quire_session *session = open_session(client, "s", 0);

    make_tensors(&out, false);
    for (;;) {
        fetch_all(session, &out);
        (void)!write(ready, "x", 1);
    }
}

static void a_killed_client_holds_nothing(void **state)
{
    struct quired q;
    struct tensors in;
    (void)state;

    quired_folder(&q);
    quired_start(&q, NULL);
    const pid_t pids[2] = {fork(), 0};
    int pipes[2];
    if (pids[0] == 0) { /* gRPC does not survive a fork: fill the session in a child, too */
        quire_client *client = connect_to(&q);
        quire_session *session =
            open_session(client, "s", QUIRE_OPEN_CREATE | QUIRE_OPEN_WRITE);
        make_tensors(&in, true);
        append_all(session, &in);
        quire_session_close(&session);
        quire_client_close(&client);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pids[0], &status, 0), pids[0]);
    assert_int_equal(status, 0);

    for (int i = 0; i < 5; i++) {
        char byte;
        assert_ok(pipe(pipes));
        const pid_t pid = fork();
        if (pid == 0)
            fetch_for_ever(&q, pipes[1]);
        close(pipes[1]);
        assert_int_equal(read(pipes[0], &byte, 1), 1);
        usleep((useconds_t)(i * 700)); /* somewhere in the middle of a fetch */
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        close(pipes[0]);
    }

    quire_client *client = connect_to(&q);
    for (int i = 0; i < 200 && (metric(client, "server.pins") > 0 ||
                                metric(client, "server.calls_live") > 1);
         i++)
        usleep(10000);
    assert_true(metric(client, "server.pins") == 0);
    assert_true(metric(client, "server.calls_live") == 1); /* Stat itself */
    quire_client_close(&client);
    quired_stop(&q);
    quired_clean(&q);
}

static void a_restart_forgets_and_says_so(void **state)
{
    struct quired q;
    struct tensors in;
    (void)state;

    quired_folder(&q);
    quired_start(&q, NULL);
    quire_client *client = connect_to(&q);
    quire_session *session = open_session(client, "s", QUIRE_OPEN_CREATE | QUIRE_OPEN_WRITE);
    make_tensors(&in, true);
    append_all(session, &in);
    assert_ok(kill(q.pid, SIGKILL));
    quired_wait(&q);
    quired_start(&q, NULL); /* replaces the stale socket */

    struct quire_session_info info;
    quire_status got = QUIRE_OK;
    for (int i = 0; i < 100; i++) { /* the client connects anew in its own time */
        got = quire_session_info(session, &info);
        if (got == QUIRE_ENOTFOUND)
            break;
        usleep(50000);
    }
    assert_status(QUIRE_ENOTFOUND, got);
    assert_non_null(strstr(quire_last_error()->text, "RAM tier end with the server"));
    quire_session_close(&session);
    quire_client_close(&client);
    quired_stop(&q);
    quired_clean(&q);
    free_tensors(&in);
}

static void statistics_need_room(void **state)
{
    struct quired q;
    struct quire_metric *metrics;
    size_t needed = 0, count = 0;
    (void)state;

    quired_folder(&q);
    quired_start(&q, NULL);
    quire_client *client = connect_to(&q);
    assert_status(QUIRE_ETOOBIG, quire_stat(client, NULL, 0, &needed));
    metrics = calloc(needed, sizeof(*metrics));
    assert_non_null(metrics);
    assert_ok(quire_stat(client, metrics, needed, &count));
    assert_int_equal(count, needed);
    for (size_t i = 0; i < count; i++)
        assert_true(metrics[i].name[0] && metrics[i].help[0]);
    free(metrics);
    quire_client_close(&client);
    quired_stop(&q);
    quired_clean(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_client_holds_nothing), /* first: gRPC does not survive fork */
        cmocka_unit_test(what_goes_in_comes_back),
        cmocka_unit_test(attention_is_computed),
        cmocka_unit_test(statistics_need_room),
        cmocka_unit_test(a_restart_forgets_and_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
