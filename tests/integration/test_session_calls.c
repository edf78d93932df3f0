/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls about sessions through a real server: workers that share an epoch, list, fork,
 * lookup, truncate.
 */
#include <pthread.h>

#include "client/quire.h"
#include "quired.h"

#define LAYERS 2
#define HEADS 4
#define SHARDS 2
#define DIM 32
#define TOKENS 300

struct place {
    struct quired quired;
    quire_client *client;
    uint8_t fingerprint[32];
};

static quire_client *connect_to(const struct quired *q)
{
    quire_client *client = NULL;

    if (quire_client_open(q->target, NULL, &client))
        fail_msg("%s", quire_last_error()->text);
    return client;
}

static void start_with(struct place *p, const char *const *flags)
{
    static const struct quire_layers layers[] = {
        {.count = LAYERS,
         .query_heads = HEADS,
         .kv_heads = HEADS,
         .key_dim = DIM,
         .value_dim = DIM},
        {.count = 1, .query_heads = HEADS, .key_dim = DIM, .value_dim = DIM}, /* no KV cache */
    };
    static const struct quire_model model = {.name = "t", .layers = layers, .layer_runs = 2};

    quired_folder(&p->quired);
    quired_start(&p->quired, flags);
    p->client = connect_to(&p->quired);
    if (quire_model_register(p->client, &model, p->fingerprint))
        fail_msg("%s", quire_last_error()->text);
}

static void start(struct place *p)
{
    start_with(p, NULL);
}

static void stop(struct place *p)
{
    quire_client_close(&p->client);
    quired_stop(&p->quired);
    quired_clean(&p->quired);
}

static struct quire_open_options writer(const struct place *p, uint32_t shards)
{
    struct quire_open_options o;

    quire_open_options_init(&o);
    o.flags = QUIRE_OPEN_CREATE | QUIRE_OPEN_WRITE;
    o.fingerprint = p->fingerprint;
    o.head_shards = shards;
    return o;
}

static quire_session *open_as(quire_client *client, const char *name,
                              const struct quire_open_options *options)
{
    quire_session *session = NULL;

    if (quire_session_open(client, name, options, &session))
        fail_msg("%s", quire_last_error()->text);
    return session;
}

/* The value of a head's rows, in 4 bits without error: constant along a token. */
static float value_at(uint32_t layer, uint32_t which, uint32_t token, uint32_t head)
{
    return (float)(token % 16) + (float)(head * 16) + (float)(layer * 64) + (float)which * 128;
}

struct part {
    quire_session *session;
    uint32_t layer_count, first_head, heads;
    uint64_t position, tokens;
    quire_status status;
    struct quire_error error;
};

static float *fill(const struct part *part, uint32_t layer, uint32_t which)
{
    float *rows = malloc(part->tokens * part->heads * DIM * sizeof(float));
    float *at = rows;

    for (uint64_t t = 0; t < part->tokens; t++)
        for (uint32_t h = 0; h < part->heads; h++)
            for (uint32_t c = 0; c < DIM; c++)
                *at++ = value_at(layer, which, (uint32_t)(part->position + t),
                                 part->first_head + h);
    return rows;
}

/* A thread's body; cmocka's checks belong to the main thread. */
static void *append_part(void *arg)
{
    struct part *part = arg;
    float *key[LAYERS], *value[LAYERS];

    for (uint32_t l = 0; l < part->layer_count; l++) {
        key[l] = fill(part, l, 0);
        value[l] = fill(part, l, 1);
    }
    const struct quire_append append = {.position = part->position,
                                        .tokens = (uint32_t)part->tokens,
                                        .layers = part->layer_count,
                                        .dtype = QUIRE_F32,
                                        .key = (const void *const *)key,
                                        .value = (const void *const *)value};
    part->status = quire_append(part->session, &append, NULL);
    part->error = *quire_last_error();
    for (uint32_t l = 0; l < part->layer_count; l++) {
        free(key[l]);
        free(value[l]);
    }
    return NULL;
}

static void append(quire_session *session, uint32_t layer_count, uint64_t position,
                   uint64_t tokens)
{
    struct part part = {.session = session,
                        .layer_count = layer_count,
                        .heads = HEADS,
                        .position = position,
                        .tokens = tokens};

    append_part(&part);
    if (part.status)
        fail_msg("%s", part.error.text);
}

static void check_all_heads(quire_session *session, uint64_t tokens)
{
    const size_t n = tokens * HEADS * DIM;
    float *out[2][LAYERS];

    for (uint32_t i = 0; i < 2 * LAYERS; i++)
        out[i / LAYERS][i % LAYERS] = calloc(n, sizeof(float));
    const struct quire_fetch fetch = {.tokens = tokens,
                                      .layers = LAYERS,
                                      .dtype = QUIRE_F32,
                                      .key = (void *const *)out[0],
                                      .value = (void *const *)out[1]};
    if (quire_fetch(session, &fetch))
        fail_msg("%s", quire_last_error()->text);
    for (uint32_t i = 0; i < 2 * LAYERS; i++) {
        for (size_t j = 0; j < n; j++) /* half a step of 15 over a range of 15 */
            assert_true(fabsf(out[i / LAYERS][i % LAYERS][j] -
                              value_at(i % LAYERS, i / LAYERS, (uint32_t)(j / HEADS / DIM),
                                       j / DIM % HEADS)) < 0.51f);
        free(out[i / LAYERS][i % LAYERS]);
    }
}

static void workers_append_their_shards(void **state)
{
    struct place p;
    struct quire_session_info info;
    struct part parts[SHARDS];
    pthread_t threads[SHARDS];
    quire_client *clients[SHARDS];
    quire_session *stranger;
    (void)state;

    start(&p);
    struct quire_open_options o = writer(&p, SHARDS);
    for (uint32_t rank = 0; rank < SHARDS; rank++) {
        clients[rank] = connect_to(&p.quired);
        o.shard = rank;
        parts[rank] = (struct part){.session = open_as(clients[rank], "s", &o),
                                    .layer_count = LAYERS,
                                    .first_head = rank * HEADS / SHARDS,
                                    .heads = HEADS / SHARDS,
                                    .tokens = TOKENS};
        if (rank == 0) {
            assert_ok(quire_session_info(parts[0].session, &info));
            o.epoch = info.epoch; /* what rank 0 hands to the others */
        }
    }
    for (uint32_t rank = 0; rank < SHARDS; rank++)
        assert_ok(pthread_create(&threads[rank], NULL, append_part, &parts[rank]));
    for (uint32_t rank = 0; rank < SHARDS; rank++) {
        assert_ok(pthread_join(threads[rank], NULL));
        if (parts[rank].status)
            fail_msg("rank %u: %s", rank, parts[rank].error.text);
    }
    quire_session_close(&parts[1].session); /* rank 0 holds the lease still */
    assert_ok(quire_session_info(parts[0].session, &info));
    assert_true(info.leased);
    assert_int_equal(info.length, TOKENS);
    check_all_heads(parts[0].session, TOKENS);

    o.epoch++;
    assert_status(QUIRE_EFENCED, quire_session_open(clients[1], "s", &o, &stranger));
    assert_int_equal(quire_last_error()->epoch, info.epoch);
    quire_session_close(&parts[0].session);
    for (uint32_t rank = 0; rank < SHARDS; rank++)
        quire_client_close(&clients[rank]);
    stop(&p);
}

static void joining_needs_write_alone(void **state)
{
    struct place p;
    quire_session *session;
    (void)state;

    start(&p);
    struct quire_open_options o = writer(&p, 1);
    o.epoch = 1;
    o.flags = 0;
    assert_status(QUIRE_EINVAL, quire_session_open(p.client, "s", &o, &session));
    o.flags = QUIRE_OPEN_WRITE | QUIRE_OPEN_FORCE;
    assert_status(QUIRE_EINVAL, quire_session_open(p.client, "s", &o, &session));
    stop(&p);
}

static void a_fork_is_cut_and_lives_alone(void **state)
{
    struct place p;
    struct quire_session_info info;
    (void)state;

    start(&p);
    struct quire_open_options o = writer(&p, 1);
    quire_session *from = open_as(p.client, "from", &o);
    append(from, LAYERS, 0, TOKENS);
    assert_ok(quire_session_fork(p.client, "from", "all", 0));
    assert_ok(quire_session_fork(p.client, "from", "part", 290));
    assert_status(QUIRE_EEXIST, quire_session_fork(p.client, "from", "part", 0));
    assert_status(QUIRE_ERANGE, quire_session_fork(p.client, "from", "more", TOKENS + 1));
    assert_int_equal(quire_last_error()->length, TOKENS);
    assert_status(QUIRE_ENOTFOUND, quire_session_fork(p.client, "nobody", "more", 0));
    quire_session_close(&from);
    assert_ok(quire_session_drop(p.client, "from", false));

    o.flags = QUIRE_OPEN_WRITE;
    quire_session *part = open_as(p.client, "part", &o);
    assert_ok(quire_session_info(part, &info));
    assert_int_equal(info.length, 290);
    append(part, LAYERS, 290, 5);
    check_all_heads(part, 295);
    quire_session_close(&part);
    stop(&p);
}

static void a_truncated_session_goes_on(void **state)
{
    struct place p;
    struct quire_session_info info;
    (void)state;

    start(&p);
    const struct quire_open_options o = writer(&p, 1);
    quire_session *session = open_as(p.client, "s", &o);
    append(session, LAYERS, 0, TOKENS);
    assert_status(QUIRE_ERANGE, quire_session_truncate(session, TOKENS + 1));
    assert_status(QUIRE_EINVAL, quire_session_truncate(session, 100)); /* inside page 0 */
    assert_ok(quire_session_truncate(session, 128));
    assert_ok(quire_session_info(session, &info));
    assert_int_equal(info.length, 128);
    append(session, LAYERS, 128, 100);
    check_all_heads(session, 228);
    quire_session_close(&session);
    stop(&p);
}

static void a_list_tells_what_an_info_does(void **state)
{
    struct place p;
    struct quire_session_info infos[2], info;
    size_t count = 0;
    bool more = false;
    (void)state;

    start(&p);
    const struct quire_open_options o = writer(&p, 1);
    quire_session *b = open_as(p.client, "b", &o), *a = open_as(p.client, "a", &o);
    quire_session *other = open_as(p.client, "x", &o);
    append(a, LAYERS, 0, 10);
    assert_ok(quire_session_list(p.client, "", NULL, infos, 2, &count, &more));
    assert_int_equal(count, 2);
    assert_true(more);
    assert_string_equal(infos[0].name, "a");
    assert_string_equal(infos[1].name, "b");
    assert_int_equal(infos[0].layer_count, LAYERS + 1);
    assert_ok(quire_session_info(a, &info));
    assert_int_equal(infos[0].length, info.length);
    assert_int_equal(infos[0].layer_count, info.layer_count);
    assert_ok(quire_session_list(p.client, "", "b", infos, 2, &count, &more));
    assert_int_equal(count, 1);
    assert_false(more);

    assert_ok(quire_session_drop(p.client, "b", true));
    quire_session *again = open_as(p.client, "b", &o);
    assert_status(QUIRE_ENOTFOUND, quire_session_info(b, &info)); /* another one's name now */
    assert_ok(quire_session_info(again, &info));
    quire_session_close(&a);
    quire_session_close(&b);
    quire_session_close(&again);
    quire_session_close(&other);
    stop(&p);
}

static void attention_skips_layers_without_a_cache(void **state)
{
    struct place p;
    float query[LAYERS * HEADS * DIM] = {0}, output[LAYERS * HEADS * DIM], lse[LAYERS * HEADS];
    const uint64_t position = 0;
    (void)state;

    start(&p);
    const struct quire_open_options o = writer(&p, 1);
    quire_session *session = open_as(p.client, "s", &o);
    append(session, LAYERS, 0, 10);
    struct quire_attend attend = {.layers = LAYERS + 1,
                                  .queries = 1,
                                  .positions = &position,
                                  .dtype = QUIRE_F32,
                                  .query = query,
                                  .output = output,
                                  .lse = lse};
    if (quire_attend(session, &attend))
        fail_msg("%s", quire_last_error()->text);
    for (uint32_t i = 0; i < ARRAY_LEN(output); i++) /* token 0 alone is seen */
        assert_true(output[i] == value_at(i / HEADS / DIM, 1, 0, i / DIM % HEADS));

    query[(HEADS + 2) * DIM + 3] = INFINITY; /* layer 1, head 2 */
    assert_status(QUIRE_EVALUE, quire_attend(session, &attend));
    assert_int_equal(quire_last_error()->layer, 1);
    assert_int_equal(quire_last_error()->head, 2);
    assert_int_equal(quire_last_error()->channel, 3);
    attend.first_layer = LAYERS;
    attend.layers = 1;
    assert_status(QUIRE_EINVAL, quire_attend(session, &attend));
    quire_session_close(&session);
    stop(&p);
}

/* FP16 pages until the server's memory holds no more of them. */
static quire_session *overfill(struct place *p, uint64_t *length_out)
{
    struct quire_open_options o = writer(p, 1);
    struct quire_policy policy;
    struct quire_session_info info = {0};
    uint64_t length = 0;

    quire_policy_default(&policy);
    policy.key = policy.value = (struct quire_codec_spec){.codec = QUIRE_CODEC_RAW};
    o.policy = &policy;
    quire_session *session = open_as(p->client, "s", &o);
    for (int i = 0; i < 100 && info.missing_pages < 4; i++, length += 4096) {
        append(session, LAYERS, length, 4096);
        assert_ok(quire_session_info(session, &info));
    }
    assert_true(info.missing_pages >= 4);
    *length_out = length;
    return session;
}

static void holes_are_listed_as_far_as_there_is_room(void **state)
{
    struct place p;
    struct quire_range all[64], one[1], left_out[1];
    float query[LAYERS * HEADS * DIM] = {0}, output[LAYERS * HEADS * DIM];
    uint64_t length;
    size_t count = 0, count_one = 0, count_left_out = 0;
    (void)state;

    start(&p);
    quire_session *session = overfill(&p, &length);
    assert_ok(quire_session_lookup(session, 0, length, 0, LAYERS, all, 64, &count));
    assert_true(count > 1);
    assert_status(QUIRE_ETOOBIG,
                  quire_session_lookup(session, 0, length, 0, LAYERS, one, 1, &count_one));
    assert_int_equal(count_one, count);
    assert_memory_equal(one, all, sizeof(one));
    assert_status(QUIRE_ERANGE,
                  quire_session_lookup(session, 0, length + 1, 0, 1, all, 64, &count_one));
    assert_int_equal(quire_last_error()->length, length);

    struct quire_attend attend = {.layers = LAYERS,
                                  .queries = 1,
                                  .positions = &length,
                                  .dtype = QUIRE_F32,
                                  .query = query,
                                  .output = output};
    assert_status(QUIRE_EMISSING, quire_attend(session, &attend));
    assert_int_equal(quire_last_error()->layer, all[0].layer);
    assert_int_equal(quire_last_error()->position, all[0].position);
    assert_int_equal(quire_last_error()->tokens, all[0].tokens);
    attend.allow_missing = true;
    attend.missing = left_out;
    attend.missing_capacity = 1;
    assert_status(QUIRE_EINVAL, quire_attend(session, &attend)); /* no place for the count */
    attend.missing_count = &count_left_out;
    if (quire_attend(session, &attend))
        fail_msg("%s", quire_last_error()->text);
    assert_int_equal(count_left_out, count);
    assert_memory_equal(left_out, all, sizeof(left_out));

    float *key = calloc(length, HEADS * DIM * sizeof(float));
    void *const keys[] = {key};
    const struct quire_fetch fetch = {.first_layer = all[0].layer,
                                      .layers = 1,
                                      .tokens = length,
                                      .dtype = QUIRE_F32,
                                      .key = keys};
    assert_status(QUIRE_EMISSING, quire_fetch(session, &fetch));
    assert_int_equal(quire_last_error()->position, all[0].position);
    assert_int_equal(quire_last_error()->tokens, all[0].tokens);
    free(key);
    quire_session_close(&session);
    stop(&p);
}

/* The results leave no room, or little, for the list: they come all the same. */
static void the_list_takes_what_the_results_leave(void **state)
{
    enum { QUERIES = 124 }; /* x 4 heads x (32 + 1) floats = 64 KiB less 64 bytes */
    static uint16_t query[QUERIES * HEADS * DIM];
    static float output[QUERIES * HEADS * DIM], lse[QUERIES * HEADS];
    uint64_t positions[QUERIES], length;
    struct quire_range missing[64];
    size_t count = 77;
    struct place p;
    (void)state;

    start_with(&p, (const char *const[]){"--max-message-bytes", "64KiB", NULL});
    quire_session *session = overfill(&p, &length);
    for (size_t i = 0; i < QUERIES; i++)
        positions[i] = length;
    struct quire_attend attend = {.layers = 1,
                                  .queries = QUERIES,
                                  .positions = positions,
                                  .dtype = QUIRE_F16,
                                  .query = query,
                                  .output = output,
                                  .lse = lse,
                                  .allow_missing = true,
                                  .missing = missing,
                                  .missing_capacity = ARRAY_LEN(missing),
                                  .missing_count = &count};
    if (quire_attend(session, &attend))
        fail_msg("%s", quire_last_error()->text);
    assert_int_equal(count, 1); /* more than none */
    attend.queries = QUERIES - 1;
    if (quire_attend(session, &attend))
        fail_msg("%s", quire_last_error()->text);
    assert_true(count >= 1 && missing[0].tokens > 0);
    attend.queries = QUERIES;
    attend.layers = 2;
    assert_status(QUIRE_ETOOBIG, quire_attend(session, &attend));
    quire_session_close(&session);
    stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_append_their_shards),
        cmocka_unit_test(joining_needs_write_alone),
        cmocka_unit_test(a_fork_is_cut_and_lives_alone),
        cmocka_unit_test(a_truncated_session_goes_on),
        cmocka_unit_test(a_list_tells_what_an_info_does),
        cmocka_unit_test(attention_skips_layers_without_a_cache),
        cmocka_unit_test(holes_are_listed_as_far_as_there_is_room),
        cmocka_unit_test(the_list_takes_what_the_results_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
