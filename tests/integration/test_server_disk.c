/* SPDX-License-Identifier: Apache-2.0
 *
 * A real server with a disk: sessions that were flushed, or appended for the disk, are there
 * after SIGKILL; all are after SIGTERM. Repeats of pages that are only on disk are compared,
 * attends over them give what they gave, and Stat shows the disk.
 */
#include <ftw.h>

#include "client/quire.h"
#include "quired.h"

#define LAYERS 2
#define HEADS 2
#define DIM 64
#define TOKENS 700

struct place {
    struct quired quired;
    char disk[128], option[160];
    quire_client *client;
    uint8_t fingerprint[32];
};

static void start(struct place *p)
{
    static const struct quire_layers layers[] = {{.count = LAYERS,
                                                  .query_heads = HEADS,
                                                  .kv_heads = HEADS,
                                                  .key_dim = DIM,
                                                  .value_dim = DIM}};
    static const struct quire_model model = {.name = "d", .layers = layers, .layer_runs = 1};
    const char *flags[] = {"--disk", p->option, "--tail-log", "48MiB", NULL};

    quired_start(&p->quired, flags);
    if (quire_client_open(p->quired.target, NULL, &p->client))
        fail_msg("%s", quire_last_error()->text);
    assert_ok(quire_model_register(p->client, &model, p->fingerprint));
}

static void make(struct place *p)
{
    memset(p, 0, sizeof(*p));
    quired_folder(&p->quired);
    snprintf(p->disk, sizeof(p->disk), "%s/disk", p->quired.folder);
    snprintf(p->option, sizeof(p->option), "%s=256MiB", p->disk);
    start(p);
}

static void end(struct place *p, int signal)
{
    quire_client_close(&p->client);
    assert_ok(kill(p->quired.pid, signal));
    assert_int_equal(quired_wait(&p->quired), signal == SIGTERM ? 0 : 1000 + signal);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void clean(struct place *p)
{
    end(p, SIGTERM);
    assert_ok(nftw(p->disk, remove_one, 16, FTW_DEPTH | FTW_PHYS));
    quired_clean(&p->quired);
}

static quire_session *open_writer(struct place *p, const char *name)
{
    struct quire_open_options o;
    quire_session *session = NULL;

    quire_open_options_init(&o);
    o.flags = QUIRE_OPEN_CREATE | QUIRE_OPEN_WRITE | QUIRE_OPEN_FORCE;
    o.fingerprint = p->fingerprint;
    if (quire_session_open(p->client, name, &o, &session))
        fail_msg("%s", quire_last_error()->text);
    return session;
}

/* FP16 of a few small numbers: a function of the place. */
static void fill(uint16_t *out, uint32_t layer, uint32_t which, uint32_t position, uint32_t n)
{
    for (uint32_t i = 0; i < n * HEADS * DIM; i++) {
        const uint32_t x =
            (layer * 7u + which * 3u + (position * HEADS * DIM + i)) * 2654435761u;
        out[i] = (uint16_t)((x >> 16 & 0x83ffu) | (12 + (x >> 28 & 1)) << 10);
    }
}

static quire_status append(quire_session *session, uint32_t position, uint32_t n,
                           enum quire_durability durability)
{
    static uint16_t rows[2][LAYERS][TOKENS * HEADS * DIM];
    const void *key[LAYERS], *value[LAYERS];

    for (uint32_t l = 0; l < LAYERS; l++) {
        fill(rows[0][l], l, 0, position, n);
        fill(rows[1][l], l, 1, position, n);
        key[l] = rows[0][l];
        value[l] = rows[1][l];
    }
    const struct quire_append a = {.position = position,
                                   .tokens = n,
                                   .layers = LAYERS,
                                   .dtype = QUIRE_F16,
                                   .key = key,
                                   .value = value,
                                   .durability = durability};
    return quire_append(session, &a, NULL);
}

static uint64_t length_of(struct place *p, const char *name)
{
    quire_session *session = NULL;
    struct quire_session_info info;

    if (quire_session_open(p->client, name, NULL, &session) == QUIRE_ENOTFOUND)
        return 0;
    assert_ok(quire_session_info(session, &info));
    quire_session_close(&session);
    return info.length;
}

static void what_was_flushed_or_durable_is_there_after_a_kill(void **state)
{
    struct place p;
    (void)state;

    make(&p);
    quire_session *durable = open_writer(&p, "durable"), *flushed = open_writer(&p, "flushed");
    assert_ok(append(durable, 0, TOKENS, QUIRE_DISK));
    assert_ok(append(flushed, 0, 300, QUIRE_MEMORY));
    assert_ok(quire_session_flush(flushed));
    quire_session_close(&durable);
    quire_session_close(&flushed);
    end(&p, SIGKILL);
    start(&p);
    assert_int_equal(length_of(&p, "durable"), TOKENS);
    assert_int_equal(length_of(&p, "flushed"), 300);
    quire_session *later = open_writer(&p, "later");
    assert_ok(append(later, 0, 200, QUIRE_MEMORY));
    quire_session_close(&later);
    end(&p, SIGTERM); /* an orderly end leaves all */
    start(&p);
    assert_int_equal(length_of(&p, "later"), 200);
    assert_ok(quire_flush(p.client));
    clean(&p);
}

static void attend(quire_session *session, float *output)
{
    static float query[LAYERS * HEADS * DIM];
    static const uint64_t position = TOKENS;

    for (size_t i = 0; i < LAYERS * HEADS * DIM; i++)
        query[i] = (float)(i % 7) - 3.0f;
    const struct quire_attend a = {.layers = LAYERS,
                                   .queries = 1,
                                   .positions = &position,
                                   .dtype = QUIRE_F32,
                                   .query = query,
                                   .output = output};
    if (quire_attend(session, &a))
        fail_msg("%s", quire_last_error()->text);
}

static void stored_pages_are_compared_and_attended(void **state)
{
    static float before[LAYERS * HEADS * DIM], after[LAYERS * HEADS * DIM];
    struct place p;
    (void)state;

    make(&p);
    quire_session *session = open_writer(&p, "s");
    assert_ok(append(session, 0, TOKENS, QUIRE_DISK));
    attend(session, before);
    quire_session_close(&session);
    end(&p, SIGKILL);
    start(&p);
    session = open_writer(&p, "s");
    assert_ok(append(session, 200, 30, QUIRE_DISK)); /* a part of a page that is on disk only */
    static uint16_t other[TOKENS * HEADS * DIM];
    const void *same[LAYERS] = {other, other};
    fill(other, 1, 1, 5, 128);
    const struct quire_append conflict = {.position = 256,
                                          .tokens = 128,
                                          .layers = LAYERS,
                                          .dtype = QUIRE_F16,
                                          .key = same,
                                          .value = same};
    assert_status(QUIRE_ECONFLICT, quire_append(session, &conflict, NULL));
    attend(session, after);
    assert_memory_equal(before, after, sizeof(before));
    quire_session_close(&session);
    clean(&p);
}

static void a_server_without_a_disk_says_so(void **state)
{
    struct place p;
    (void)state;

    memset(&p, 0, sizeof(p));
    quired_folder(&p.quired);
    quired_start(&p.quired, NULL);
    assert_ok(quire_client_open(p.quired.target, NULL, &p.client));
    static const struct quire_layers layers[] = {
        {.count = LAYERS, .query_heads = 2, .kv_heads = 2, .key_dim = DIM, .value_dim = DIM}};
    static const struct quire_model model = {.name = "d", .layers = layers, .layer_runs = 1};
    assert_ok(quire_model_register(p.client, &model, p.fingerprint));
    quire_session *session = open_writer(&p, "s");
    assert_status(QUIRE_EUNSUPPORTED, append(session, 0, 10, QUIRE_DISK));
    assert_status(QUIRE_EUNSUPPORTED, quire_session_flush(session));
    quire_session_close(&session);
    quire_client_close(&p.client);
    quired_stop(&p.quired);
    quired_clean(&p.quired);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_flushed_or_durable_is_there_after_a_kill),
        cmocka_unit_test(stored_pages_are_compared_and_attended),
        cmocka_unit_test(a_server_without_a_disk_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
