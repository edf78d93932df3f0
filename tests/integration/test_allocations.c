/* SPDX-License-Identifier: Apache-2.0
 *
 * Append and fetch allocate nothing once warm but what gRPC does itself: neither libquire in
 * this process nor the server in its own, for single tokens and for blocks.
 */
#include <sys/mman.h>

#include "alloc_watch.h"
#include "client/quire.h"
#include "quired.h"

#define LAYERS 4
#define HEADS 2
#define DIM 64
#define BLOCK 128 /* tokens of a page */
#define WARM_BLOCKS 24
#define WARM                                                                                   \
    (WARM_BLOCKS * BLOCK + 1) /* just after a seal: the next one is 127 tokens away            \
                               */
#define ROUNDS 100
#define WINDOWS 6
#define LONG 6 /* blocks of an append whose first ones the library seals */

static struct quired server;
static quire_client *client;
static quire_session *session;
static struct alloc_watch *at_server, *here;
static uint16_t rows[LONG * BLOCK * HEADS * DIM]; /* every token is the same */
static uint16_t back[LAYERS][BLOCK * HEADS * DIM];

static void prepare_watches(void)
{
    static struct alloc_watch own;
    char path[128], preload[512];

    snprintf(path, sizeof(path), "%s/watch", server.folder);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_ok(ftruncate(fd, sizeof(struct alloc_watch)));
    at_server = mmap(NULL, sizeof(*at_server), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(at_server != MAP_FAILED);
    close(fd);
    snprintf(preload, sizeof(preload), "%s/tests/integration/liballoc_watch.so",
             getenv("QUIRE_BINARY"));
    assert_ok(setenv(ALLOC_WATCH_VARIABLE, path, 1));
    assert_ok(setenv("LD_PRELOAD", preload, 1));
    here = &own;
    alloc_watch_start(here);
}

static int set_up(void **state)
{
    static const struct quire_rope rope = {.type = QUIRE_ROPE_DEFAULT,
                                           .layout = QUIRE_ROPE_HALF,
                                           .rotary_dim = DIM,
                                           .theta = 10000};
    static const struct quire_layers layers = {.count = LAYERS,
                                               .query_heads = HEADS,
                                               .kv_heads = HEADS,
                                               .key_dim = DIM,
                                               .value_dim = DIM,
                                               .rope_stored = QUIRE_ROPE_PRE};
    static const struct quire_model model = {
        .name = "m", .layers = &layers, .layer_runs = 1, .ropes = &rope, .rope_count = 1};
    struct quire_open_options options;
    uint8_t fingerprint[32];
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        rows[i] = (uint16_t)(0x3400u + i % (HEADS * DIM) * 37 % 1024);
    quired_folder(&server);
    prepare_watches();
    quired_start(&server, NULL);
    unsetenv("LD_PRELOAD");
    unsetenv(ALLOC_WATCH_VARIABLE);
    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_CREATE | QUIRE_OPEN_WRITE;
    options.fingerprint = fingerprint;
    if (quire_client_open(server.target, NULL, &client) ||
        quire_model_register(client, &model, fingerprint) ||
        quire_session_open(client, "s", &options, &session))
        fail_msg("%s", quire_last_error()->text);
    return 0;
}

static int tear_down(void **state)
{
    char path[128];
    (void)state;

    quire_session_close(&session);
    quire_client_close(&client);
    quired_stop(&server);
    snprintf(path, sizeof(path), "%s/watch", server.folder);
    assert_ok(unlink(path));
    quired_clean(&server);
    return 0;
}

static void append(uint64_t position, uint32_t tokens)
{
    const void *tensors[LAYERS] = {rows, rows, rows, rows};
    const struct quire_append args = {.position = position,
                                      .tokens = tokens,
                                      .layers = LAYERS,
                                      .dtype = QUIRE_F16,
                                      .key = tensors,
                                      .value = tensors};

    if (quire_append(session, &args, NULL))
        fail_msg("%s", quire_last_error()->text);
}

static void fetch(uint64_t position, uint32_t tokens)
{
    void *tensors[LAYERS] = {back[0], back[1], back[2], back[3]};
    const struct quire_fetch args = {.position = position,
                                     .tokens = tokens,
                                     .layers = LAYERS,
                                     .dtype = QUIRE_F16,
                                     .key = tensors,
                                     .value = tensors,
                                     .rotate = true};

    if (quire_fetch(session, &args))
        fail_msg("%s", quire_last_error()->text);
}

static void watch(bool on)
{
    usleep(50000); /* what comes after an answer belongs to its call */
    atomic_store(&here->counts, on);
    atomic_store(&at_server->counts, on);
}

static uint64_t report(const char *who, struct alloc_watch *w)
{
    const uint64_t ours = atomic_exchange(&w->ours, 0), others = atomic_exchange(&w->others, 0);

    printf("%s: %llu allocations of its own, %llu of libraries\n", who,
           (unsigned long long)ours, (unsigned long long)others);
    for (uint64_t i = 0; i < ours && i < ALLOC_SAMPLES; i++)
        for (int f = 0; f < ALLOC_FRAMES && w->samples[i][f][0]; f++)
            printf("    %s%s\n", f ? "  " : "", w->samples[i][f]);
    return ours;
}

/* One try of WINDOWS without any is enough: a pool may still grow when more threads than ever
 * happen to hold a piece of it at once, but what is allocated for each request is in every try.
 */
static bool nothing_was_allocated(void)
{
    const uint64_t ours = report("libquire", here), servers = report("quired", at_server);
    return ours + servers == 0;
}

static void the_watch_sees_its_own(void **state)
{
    void *volatile kept;
    char *volatile text;
    (void)state;

    atomic_store(&here->counts, true);
    kept = malloc(10);
    text = strdup("by way of the C library");
    atomic_store(&here->counts, false);
    free(kept);
    free(text);
    assert_int_equal(atomic_exchange(&here->ours, 0), 2);

    atomic_store(&at_server->counts, true);
    if (quire_session_fork(client, "s", "fork", 0)) /* makes a session */
        fail_msg("%s", quire_last_error()->text);
    atomic_store(&at_server->counts, false);
    assert_true(atomic_exchange(&at_server->ours, 0) > 0);
    memset(here->samples, 0, sizeof(here->samples));
    memset(at_server->samples, 0, sizeof(at_server->samples));
}

static void single_tokens(void **state)
{
    bool none = false;
    uint32_t n = 0;
    (void)state;

    for (uint32_t window = 0; window < WINDOWS && !none; window++) {
        for (; n < WARM + window * BLOCK; n++) { /* to just after a seal */
            append(n, 1);
            if (n % 16 == 0 && n >= BLOCK)
                fetch(n - BLOCK, BLOCK);
        }
        watch(true);
        for (uint32_t i = 0; i < ROUNDS; i++, n++) {
            append(n, 1);
            fetch(n - BLOCK, BLOCK);
        }
        watch(false);
        none = nothing_was_allocated();
    }
    assert_true(none);
}

/* A repeat of whole blocks goes the way of a prefill, but grows no manifest: pages sealed by
 * the library and rows, taken in, compared. */
static void whole_blocks(void **state)
{
    bool none = false;
    (void)state;

    for (uint32_t window = 0; window < WINDOWS && !none; window++) {
        watch(window > 0);
        for (uint32_t b = 0; b + LONG < WARM_BLOCKS; b++) {
            append(b * BLOCK, LONG * BLOCK);
            fetch(b * BLOCK, BLOCK);
            fetch(b * BLOCK + 60, BLOCK);
        }
        watch(false);
        none = window > 0 && nothing_was_allocated();
    }
    assert_true(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_watch_sees_its_own),
        cmocka_unit_test(single_tokens),
        cmocka_unit_test(whole_blocks),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
