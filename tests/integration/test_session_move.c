/* SPDX-License-Identifier: Apache-2.0
 *
 * A session exported from one server and imported into another is the same bit for bit, under
 * every codec policy, geometry and number of shards; it shares pages there as it did, and the
 * export is of one moment. What is missing is refused with its exact ranges.
 */
#include "move.h"

static struct two two;
static struct golden golden;
static struct move_source real;

static int start(void **state)
{
    (void)state;
    two_start(&two, NULL);
    move_real(&golden, &real);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    golden_close(&golden);
    two_stop(&two);
    return 0;
}

static void drop(quire_client *client, const char *name)
{
    MOVE_OK(quire_session_drop(client, name, true));
}

/* Export "a" of the first server, import it as "b" into the second, compare, drop both. */
static void round_trip(const struct move_source *s, uint64_t tokens)
{
    struct mem_file file = {0};
    struct quire_transfer out, in;

    MOVE_OK(move_export(two.from, "a", &file, false, &out));
    assert_int_equal(out.bytes, file.n);
    assert_int_equal(out.total_bytes, file.n);
    assert_int_equal(out.tokens, tokens);
    assert_int_equal(out.left_out_tokens, 0);
    MOVE_OK(move_import(two.to, "b", &file, &in));
    assert_string_equal(in.name, "a");
    assert_int_equal(in.bytes, file.n);
    assert_int_equal(in.pages, out.pages);
    assert_int_equal(in.resumed_bytes, 0);
    assert_true(file.told > 3);
    move_same(two.from, "a", two.to, "b", s, tokens);
    assert_int_equal(move_sessions(two.from, "."), 0);
    assert_int_equal(move_sessions(two.to, "."), 0);
    drop(two.from, "a");
    drop(two.to, "b");
    free(file.bytes);
}

static void every_codec_policy_moves_bit_for_bit(void **state)
{
    static const struct {
        const char *key, *value;
        uint32_t page_tokens, window;
    } cases[] = {
        {"chan:bits=4", "chan:bits=4", 128, 128},
        {"chan:bits=2,axis=token,group=16", "chan:bits=3,axis=channel,group=16", 64, 0},
        {"chan:bits=8,axis=channel", "chan:bits=2,axis=channel", 32, 200},
        {"chan:bits=3,axis=token,group=64", "chan:bits=8,axis=token,group=64", 256, 100},
        {"raw", "raw", 128, 128},
        {"raw", "chan:bits=4,group=64", 512, 17},
        {"fp8", "fp8:format=e5m2,axis=head", 64, 64},
    };
    struct move_source s = real;
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        quire_policy_default(&s.policy);
        s.policy.page_tokens = cases[i].page_tokens;
        s.policy.window = cases[i].window;
        MOVE_OK(quire_codec_parse(cases[i].key, true, &s.policy.key));
        MOVE_OK(quire_codec_parse(cases[i].value, false, &s.policy.value));
        if (i % 3 == 0) /* layers with codecs of their own */
            MOVE_OK(quire_policy_override(&s.policy, "0-1/kv=chan:bits=8;3/k=raw"));
        s.token_ids = i % 2 ? NULL : real.token_ids;
        const uint32_t tokens = 1000 - (uint32_t)i * 7;
        move_append(two.from, "a", &s, 0, tokens, 333);
        round_trip(&s, tokens);
    }
}

static void head_shards_move(void **state)
{
    struct move_source s = real, made;
    struct quire_layers layers = {
        .count = 2, .query_heads = 8, .kv_heads = 4, .key_dim = 32, .value_dim = 32};
    uint16_t *memory;
    (void)state;

    s.head_shards = 3;
    move_append(two.from, "a", &s, 0, 700, 100);
    round_trip(&s, 700);
    move_made(&made, &layers, 300, &memory);
    made.head_shards = 2;
    move_append(two.from, "a", &made, 0, 300, 64);
    round_trip(&made, 300);
    free(memory);
}

/* One KV head with a long key and a shorter value, as multi-head latent attention has. */
static void latent_dims_move(void **state)
{
    struct quire_layers layers = {
        .count = 2, .query_heads = 16, .kv_heads = 1, .key_dim = 576, .value_dim = 512};
    struct move_source s;
    uint16_t *memory;
    (void)state;

    move_made(&s, &layers, 400, &memory);
    move_append(two.from, "a", &s, 0, 400, 128);
    round_trip(&s, 400);
    free(memory);
}

static void short_and_empty_sessions_move(void **state)
{
    struct mem_file file = {0};
    struct quire_transfer t;
    quire_session *session;
    struct quire_session_info info;
    (void)state;

    move_append(two.from, "a", &real, 0, 5, 5); /* a tail alone */
    MOVE_OK(move_export(two.from, "a", &file, false, &t));
    MOVE_OK(move_import(two.to, NULL, &file, &t));
    size_t na, nb;
    void *a = move_fetch(two.from, "a", &real, 5, &na);
    void *b = move_fetch(two.to, "a", &real, 5, &nb);
    assert_memory_equal(a, b, na);
    free(a);
    free(b);
    drop(two.to, "a");
    drop(two.from, "a");

    session = move_open(two.from, "empty", &real, 0, 0);
    quire_session_close(&session);
    file.n = 0;
    MOVE_OK(move_export(two.from, "empty", &file, false, &t));
    MOVE_OK(move_import(two.to, NULL, &file, &t));
    MOVE_OK(quire_session_open(two.to, "empty", NULL, &session));
    MOVE_OK(quire_session_info(session, &info));
    assert_int_equal(info.length, 0);
    assert_int_equal(info.policy.page_tokens, real.policy.page_tokens);
    quire_session_close(&session);
    drop(two.to, "empty");
    drop(two.from, "empty");
    free(file.bytes);
}

/* The imported session goes on as the first one would have: token ids of its tail are known, so
 * the block that they are in has the id that another session gives it. */
static void prefixes_are_shared_where_it_went(void **state)
{
    struct mem_file file = {0};
    struct quire_transfer t;
    (void)state;

    move_append(two.from, "a", &real, 0, 700, 100);
    MOVE_OK(move_export(two.from, "a", &file, false, &t));
    MOVE_OK(move_import(two.to, "b", &file, &t));
    const double pages = move_metric(two.to, "pages_resident");
    const double shared = move_metric(two.to, "pages_shared");
    move_append(two.to, "c", &real, 0, 700, 70);
    assert_true(move_metric(two.to, "pages_resident") == pages);
    assert_true(move_metric(two.to, "pages_shared") == shared + 4 * 4);
    move_append(two.to, "b", &real, 700, 300, 100); /* it goes on, and seals 3 blocks more */
    move_append(two.to, "c", &real, 700, 300, 300);
    assert_true(move_metric(two.to, "pages_resident") == pages + 4 * 2);
    MOVE_OK(quire_session_fork(two.to, "b", "d", 640));
    drop(two.to, "b");
    move_append(two.from, "a", &real, 700, 300, 100);
    struct move_source s = real;
    assert_true(move_same_pages(two.from, "a", two.to, "d", &s, 640) == 4 * 5 ||
                move_same_pages(two.from, "a", two.to, "c", &s, 640) == 4 * 5);
    drop(two.to, "c");
    drop(two.to, "d");
    MOVE_OK(move_import(two.to, "b", &file, &t)); /* the same file once more, twice */
    MOVE_OK(move_import(two.to, "c", &file, &t));
    assert_true(move_metric(two.to, "pages_resident") == pages);
    drop(two.to, "b");
    drop(two.to, "c");
    drop(two.from, "a");
    free(file.bytes);
}

static void append_more(void)
{
    move_append(two.from, "a", &real, 600, 424, 200);
}

/* Appends go on while a session is exported: the file is of the moment when it began. */
static void an_export_is_of_one_moment(void **state)
{
    struct mem_file file = {.meanwhile = append_more};
    struct quire_transfer t;
    struct quire_export args;
    (void)state;

    move_append(two.from, "a", &real, 0, 600, 100);
    MOVE_OK(quire_session_fork(two.from, "a", "then", 0));
    MOVE_OK(move_export(two.from, "a", &file, false, &t));
    assert_null(file.meanwhile);
    MOVE_OK(move_import(two.to, "b", &file, &t));
    move_same(two.from, "then", two.to, "b", &real, 600);
    drop(two.to, "b");

    /* A part of it: the length has to be one that a fork could have. */
    quire_export_init(&args);
    args.write = mem_write;
    args.context = &file;
    args.length = 256;
    file.n = 0;
    MOVE_OK(quire_session_export(two.from, "a", &args, &t));
    assert_int_equal(t.tokens, 256);
    assert_int_equal(t.left_out_tokens, 1024 - 256);
    MOVE_OK(move_import(two.to, "b", &file, NULL));
    drop(two.to, "b");
    args.length = 300;
    assert_status(QUIRE_EINVAL, quire_session_export(two.from, "a", &args, &t));
    assert_non_null(strstr(quire_last_error()->text, "256"));
    assert_int_equal(move_sessions(two.from, "."), 0);
    drop(two.from, "a");
    drop(two.from, "then");
    free(file.bytes);
}

static void names_and_arguments_are_checked(void **state)
{
    struct mem_file file = {0};
    struct quire_transfer t;
    struct quire_export args;
    struct quire_import import;
    (void)state;

    assert_status(QUIRE_ENOTFOUND, move_export(two.from, "nobody", &file, false, &t));
    assert_int_equal(file.n, 0);
    move_append(two.from, "a", &real, 0, 300, 100);
    MOVE_OK(move_export(two.from, "a", &file, false, &t));
    assert_status(QUIRE_EEXIST, move_import(two.from, NULL, &file, &t));
    assert_non_null(strstr(quire_last_error()->text, "\"a\""));
    assert_status(QUIRE_EINVAL, move_import(two.to, "x\ny", &file, &t));
    quire_export_init(&args);
    assert_status(QUIRE_EINVAL, quire_session_export(two.from, "a", &args, &t));
    args.write = mem_write;
    args.read = mem_read;
    assert_status(QUIRE_EINVAL, quire_session_export(two.from, "a", &args, &t));
    args.struct_bytes = 8;
    assert_status(QUIRE_EINVAL, quire_session_export(two.from, "a", &args, &t));
    quire_import_init(&import);
    assert_status(QUIRE_EINVAL, quire_session_import(two.to, NULL, &import, &t));
    assert_status(QUIRE_EINVAL, quire_session_import(NULL, NULL, &import, &t));
    import.read = mem_read;
    import.context = &file;
    import.durable = true; /* these servers have no disk */
    file.at = 0;
    assert_status(QUIRE_EUNSUPPORTED, quire_session_import(two.to, NULL, &import, &t));
    assert_int_equal(move_sessions(two.to, ""), 0);
    drop(two.from, "a");
    free(file.bytes);
}

/* ---- holes --------------------------------------------------------------------------------
 */

/* The first range that is missing is told; the first position that is, over all lanes,
 * returned. */
static uint64_t expect_missing(quire_client *client, const char *name)
{
    uint64_t first = UINT64_MAX;
    static struct quire_range ranges[4096];
    const struct quire_error e = *quire_last_error();
    quire_session *session = NULL;
    size_t count;

    assert_int_equal(e.status, QUIRE_EMISSING);
    MOVE_OK(quire_session_open(client, name, NULL, &session));
    assert_ok(quire_session_lookup(session, 0, 1024, 0, 4, ranges, ARRAY_LEN(ranges), &count));
    assert_true(count > 0);
    assert_int_equal(e.position, ranges[0].position);
    assert_int_equal(e.tokens, ranges[0].tokens);
    assert_int_equal(e.layer, ranges[0].layer);
    for (size_t i = 0; i < count; i++)
        first = ranges[i].position < first ? ranges[i].position : first;
    quire_session_close(&session);
    return first;
}

/* Sessions of FP16 pages in a server that cannot hold them all. */
static void fill_up(quire_client *client, const struct move_source *s)
{
    char name[16];

    for (int i = 0; i < 8; i++) { /* 3 MiB each */
        snprintf(name, 16, "s%d", i);
        move_append(client, name, s, 0, 1024, 512);
    }
}

/* What is left of a session before its first hole, exported, imported, compared. */
static void move_the_rest(quire_client *client, const char *name, const struct move_source *s,
                          uint64_t first)
{
    struct mem_file file = {0};
    struct quire_transfer t;
    struct quire_export args;
    size_t na, nb;

    quire_export_init(&args);
    args.write = mem_write;
    args.context = &file;
    args.allow_missing = true;
    const quire_status status = quire_session_export(client, name, &args, &t);
    if (first == 0) {
        assert_status(QUIRE_EMISSING, status);
        assert_int_equal(file.n, 0);
        return;
    }
    MOVE_OK(status);
    assert_int_equal(t.tokens, first);
    assert_int_equal(t.left_out_tokens, 1024 - first);
    MOVE_OK(move_import(two.to, "b", &file, &t));
    void *a = move_fetch(client, name, s, t.tokens, &na);
    void *b = move_fetch(two.to, "b", s, t.tokens, &nb);
    assert_int_equal(na, nb);
    assert_memory_equal(a, b, na);
    free(a);
    free(b);
    drop(two.to, "b");
    free(file.bytes);
}

static void what_is_missing_is_refused_or_left_out(void **state)
{
    static const char *const little[] = {"--memory", "16MiB", NULL};
    static struct quire_session_info infos[16];
    struct move_source s = real;
    struct quired q;
    struct mem_file file = {0};
    size_t count, holed = 0, moved = 0;
    bool more;
    (void)state;

    quired_folder(&q);
    quired_start(&q, little);
    quire_client *client = move_connect(&q);
    s.policy.key = s.policy.value =
        (struct quire_codec_spec){.codec = QUIRE_CODEC_RAW, .bits = 16};
    s.policy.sink_rows = s.policy.outlier_rows = 0; /* pages of one size */
    s.token_ids = NULL;
    fill_up(client, &s);
    assert_ok(quire_session_list(client, "s", NULL, infos, 16, &count, &more));
    for (size_t i = 0; i < count; i++) {
        if (infos[i].missing_pages == 0)
            continue;
        holed++;
        assert_status(QUIRE_EMISSING, move_export(client, infos[i].name, &file, false, NULL));
        const uint64_t first = expect_missing(client, infos[i].name);
        assert_int_equal(file.n, 0);
        assert_int_equal(move_sessions(client, "."), 0);
        move_the_rest(client, infos[i].name, &s, first);
        moved += first > 0;
    }
    assert_true(holed > 1 && moved > 0);
    quire_client_close(&client);
    quired_stop(&q);
    quired_clean(&q);
}

/* A server that is too small takes nothing halfway. */
static void a_session_that_does_not_fit_is_refused_whole(void **state)
{
    static const char *const little[] = {"--memory", "16MiB", NULL};
    struct quire_layers layers = {
        .count = 4, .query_heads = 8, .kv_heads = 8, .key_dim = 128, .value_dim = 128};
    struct move_source s;
    struct quired q;
    struct mem_file file = {0};
    struct quire_transfer t;
    uint16_t *memory;
    (void)state;

    move_made(&s, &layers, 2048, &memory); /* 32 MiB in FP16 */
    s.policy.key = s.policy.value =
        (struct quire_codec_spec){.codec = QUIRE_CODEC_RAW, .bits = 16};
    move_append(two.from, "a", &s, 0, 2048, 512);
    MOVE_OK(move_export(two.from, "a", &file, false, &t));
    quired_folder(&q);
    quired_start(&q, little);
    quire_client *client = move_connect(&q);
    assert_status(QUIRE_EFULL, move_import(client, "a", &file, &t));
    assert_int_equal(move_sessions(client, ""), 0);
    quire_client_close(&client);
    quired_stop(&q);
    quired_clean(&q);
    drop(two.from, "a");
    free(memory);
    free(file.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_codec_policy_moves_bit_for_bit),
        cmocka_unit_test(head_shards_move),
        cmocka_unit_test(latent_dims_move),
        cmocka_unit_test(short_and_empty_sessions_move),
        cmocka_unit_test(prefixes_are_shared_where_it_went),
        cmocka_unit_test(an_export_is_of_one_moment),
        cmocka_unit_test(names_and_arguments_are_checked),
        cmocka_unit_test(what_is_missing_is_refused_or_left_out),
        cmocka_unit_test(a_session_that_does_not_fit_is_refused_whole),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
