/* SPDX-License-Identifier: Apache-2.0
 *
 * Exports and imports that break go on where they broke, whoever it was that ended; files that
 * were cut or altered are refused with the byte, and leave nothing behind.
 */
#include <pthread.h>
#include <sys/mman.h>

#include "move.h"

static struct two two;
static struct golden golden;
static struct move_source real;
static struct mem_file whole; /* an export of "a", made once */
static size_t marks[256], mark_count;

/* Where the records of a file are. */
static void find_marks(const struct mem_file *file)
{
    static struct qr_export_walk walk;
    struct qr_export_record r;

    assert_ok(qr_export_begin(&walk, file->bytes, NULL));
    for (mark_count = 0; !walk.done; mark_count++) {
        uint8_t *payload;
        assert_true(mark_count < ARRAY_LEN(marks));
        marks[mark_count] = (size_t)walk.offset;
        assert_ok(qr_export_record(&walk, file->bytes + walk.offset, &r, NULL));
        payload = aligned_alloc(64, QR_EXPORT_PADDED(r.bytes));
        memcpy(payload, file->bytes + walk.offset + 64, QR_EXPORT_PADDED(r.bytes));
        assert_ok(qr_export_payload(&walk, file->bytes + walk.offset, payload, NULL));
        free(payload);
    }
}

static int start(void **state)
{
    (void)state;
    two_start(&two, NULL);
    move_real(&golden, &real);
    move_append(two.from, "a", &real, 0, 1000, 250);
    MOVE_OK(move_export(two.from, "a", &whole, false, NULL));
    find_marks(&whole);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    free(whole.bytes);
    golden_close(&golden);
    two_stop(&two);
    return 0;
}

static void drop(quire_client *client, const char *name)
{
    MOVE_OK(quire_session_drop(client, name, true));
}

static struct mem_file copy_of(const struct mem_file *file, size_t n)
{
    struct mem_file out = {.bytes = malloc(file->n), .n = n, .capacity = file->n};

    memcpy(out.bytes, file->bytes, n);
    return out;
}

/* It imports, and is what "a" is. */
static void expect_good(struct mem_file *file)
{
    MOVE_OK(move_import(two.to, "good", file, NULL));
    move_same(two.from, "a", two.to, "good", &real, 1000);
    drop(two.to, "good");
}

/* ---- damage -------------------------------------------------------------------------------
 */

static void expect_refused(struct mem_file *file, uint64_t byte)
{
    struct quire_transfer t;

    memset(&t, 0x55, sizeof(t));
    assert_status(QUIRE_ECORRUPT, move_import(two.to, "bad", file, &t));
    if (quire_last_error()->position != byte)
        fail_msg("refused at %llu instead of %llu: %s",
                 (unsigned long long)quire_last_error()->position, (unsigned long long)byte,
                 quire_last_error()->text);
    assert_int_equal(t.bytes, 0x5555555555555555u);
}

static void files_cut_at_and_in_each_record_are_refused(void **state)
{
    (void)state;

    for (size_t i = 0; i < mark_count; i++) {
        const size_t next = i + 1 < mark_count ? marks[i + 1] : whole.n;
        const size_t cuts[] = {marks[i], marks[i] + 1, marks[i] + 64, (marks[i] + next) / 2,
                               next - 1};
        for (size_t c = 0; c < ARRAY_LEN(cuts); c++) {
            struct mem_file file = copy_of(&whole, cuts[c]);
            expect_refused(&file, cuts[c]);
            free(file.bytes);
        }
    }
    struct mem_file file = copy_of(&whole, QR_EXPORT_HEAD_BYTES - 1);
    expect_refused(&file, QR_EXPORT_HEAD_BYTES - 1);
    file.n = 0;
    expect_refused(&file, 0);
    free(file.bytes);
    assert_int_equal(move_sessions(two.to, ""), 0);
}

static void bytes_after_the_end_are_refused(void **state)
{
    struct mem_file file = copy_of(&whole, whole.n);
    (void)state;

    mem_write(&file, "x", 1);
    expect_refused(&file, whole.n);
    assert_int_equal(move_sessions(two.to, ""), 0);
    free(file.bytes);
}

/* A session of one layer and head, so that its file is small. */
static void each_flipped_byte_of_a_small_file_is_refused(void **state)
{
    struct quire_layers layers = {
        .count = 1, .query_heads = 1, .kv_heads = 1, .key_dim = 16, .value_dim = 16};
    struct move_source s;
    struct mem_file file = {0};
    uint16_t *memory;
    (void)state;

    move_made(&s, &layers, 40, &memory);
    s.policy.page_tokens = 16;
    s.policy.window = 0;
    s.policy.key.group = s.policy.value.group = 16;
    move_append(two.from, "small", &s, 0, 40, 40);
    MOVE_OK(move_export(two.from, "small", &file, false, NULL));
    assert_true(file.n < 8192);
    for (size_t i = 0; i < file.n; i++) {
        file.bytes[i] ^= (uint8_t)(1u << (i % 8));
        const quire_status status = move_import(two.to, NULL, &file, NULL);
        if (status != QUIRE_ECORRUPT && status != QUIRE_EUNSUPPORTED)
            fail_msg("byte %zu flipped: %d, %s", i, status, quire_last_error()->text);
        assert_true(quire_last_error()->position <= i);
        file.bytes[i] ^= (uint8_t)(1u << (i % 8));
    }
    assert_int_equal(move_sessions(two.to, ""), 0);
    MOVE_OK(move_import(two.to, NULL, &file, NULL));
    drop(two.to, "small");
    drop(two.from, "small");
    free(memory);
    free(file.bytes);
}

/* ---- imports that break -------------------------------------------------------------------
 */

/* NOLINTNEXTLINE(readability-function-size): one import, broken at each of its steps */
static void imports_that_break_go_on(void **state)
{
    struct quire_transfer t;
    (void)state;

    for (int way = 0; way < 3; way++) {
        struct mem_file file = copy_of(&whole, whole.n);
        if (way == 0)
            file.fail_at = whole.n * 2 / 3;
        else
            file.cancel_at = whole.n * 2 / 3;
        assert_status(way == 0 ? QUIRE_EIO : QUIRE_ECANCELED,
                      move_import(two.to, "b", &file, &t));
        assert_int_equal(move_sessions(two.to, "b"), 0); /* nothing under its name */
        assert_int_equal(move_sessions(two.to, ".import."), 1);
        file.fail_at = file.cancel_at = 0;
        if (way == 2) { /* under another name it is another import */
            MOVE_OK(move_import(two.to, "c", &file, &t));
            assert_int_equal(t.resumed_bytes, 0);
            drop(two.to, "c");
        }
        MOVE_OK(move_import(two.to, "b", &file, &t));
        assert_true(t.resumed_bytes > whole.n / 10);
        move_same(two.from, "a", two.to, "b", &real, 1000);
        drop(two.to, "b");
        assert_int_equal(move_sessions(two.to, ""), 0);
        free(file.bytes);
    }
}

/* What is there of a try before is not believed to be right because it is there. */
static void what_a_try_left_is_compared(void **state)
{
    struct mem_file file = copy_of(&whole, whole.n);
    struct quire_transfer t;
    struct quire_import args;
    static struct quire_session_info info;
    quire_session *session = NULL;
    struct quire_open_options options;
    size_t count;
    bool more;
    (void)state;

    file.cancel_at = whole.n * 2 / 3;
    assert_status(QUIRE_ECANCELED, move_import(two.to, "b", &file, &t));
    assert_ok(quire_session_list(two.to, ".import.", NULL, &info, 1, &count, &more));
    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_WRITE;
    MOVE_OK(quire_session_open(two.to, info.name, &options, &session));
    MOVE_OK(quire_session_truncate(session, 256));
    struct move_source other = real; /* layer 0 with the values of layer 1 */
    other.layers = 1; /* files are lane by lane: the last layer has nothing yet */
    other.key[0] = real.key[1];
    other.value[0] = real.value[1];
    move_append_shard(session, &other, 0, 256, 400);
    quire_session_close(&session);
    file.cancel_at = 0;
    assert_status(QUIRE_ECONFLICT, move_import(two.to, "b", &file, &t));
    assert_int_equal(move_sessions(two.to, ""), 0);

    file.cancel_at = whole.n * 2 / 3;
    assert_status(QUIRE_ECANCELED, move_import(two.to, "b", &file, &t));
    file.cancel_at = 0;
    quire_import_init(&args);
    args.read = mem_read;
    args.context = &file;
    args.compare_all = true;
    args.ttl_ms = 7654321;
    file.at = 0;
    MOVE_OK(quire_session_import(two.to, "b", &args, &t));
    assert_int_equal(t.resumed_bytes, 0);
    move_same(two.from, "a", two.to, "b", &real, 1000);
    drop(two.to, "b");
    free(file.bytes);
}

struct shared_input {
    struct mem_file file;
    _Atomic uint64_t told;
    uint64_t slow_from;
};

/* In the child: it slows down after a while, and waits to be killed. */
static bool slow_progress(void *context, const struct quire_transfer *t)
{
    struct shared_input *in = context;

    in->told = t->bytes;
    while (t->bytes >= in->slow_from)
        usleep(10000);
    return true;
}

static int shared_read(void *context, void *bytes, size_t capacity, size_t *bytes_out)
{
    return mem_read(&((struct shared_input *)context)->file, bytes, capacity, bytes_out);
}

static struct shared_input *share(void)
{
    struct shared_input *in =
        mmap(NULL, sizeof(*in), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(in != MAP_FAILED);
    memset(in, 0, sizeof(*in));
    return in;
}

static pid_t run_in_child(void (*body)(void *), void *arg)
{
    const pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body(arg);
    _exit(0);
}

static void import_in_child(void *arg)
{
    struct shared_input *in = arg;
    struct quire_import args;
    quire_client *client = NULL;

    if (quire_client_open(two.to_server.target, NULL, &client))
        return;
    quire_import_init(&args);
    args.read = shared_read;
    args.progress = slow_progress;
    args.context = in;
    (void)quire_session_import(client, "b", &args, NULL);
}

static void wait_told(struct shared_input *in, uint64_t bytes)
{
    for (int i = 0; in->told < bytes; i++) {
        assert_true(i < 3000);
        usleep(10000);
    }
}

/* gRPC does not outlive a fork: this process has no client while it has children. */
static void a_killed_importer_is_followed_by_another(void **state)
{
    struct shared_input *in = share();
    struct quire_transfer t;
    (void)state;

    in->file = copy_of(&whole, whole.n);
    in->slow_from = whole.n * 2 / 3;
    quire_client_close(&two.from);
    quire_client_close(&two.to);
    const pid_t pid = run_in_child(import_in_child, in);
    wait_told(in, in->slow_from);
    assert_ok(kill(pid, SIGKILL));
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    two.from = move_connect(&two.from_server);
    two.to = move_connect(&two.to_server);
    in->file.at = 0;
    MOVE_OK(move_import(two.to, "b", &in->file, &t)); /* at once: it takes the lease over */
    assert_true(t.resumed_bytes > 0);
    move_same(two.from, "a", two.to, "b", &real, 1000);
    drop(two.to, "b");
    assert_int_equal(move_sessions(two.to, ""), 0);
    free(in->file.bytes);
    munmap(in, sizeof(*in));
}

static void kill_to_server(void)
{
    assert_ok(kill(two.to_server.pid, SIGKILL));
    (void)quired_wait(&two.to_server);
}

/* The server's memory goes with it: the same file is imported again from its start. */
static void an_import_survives_its_server(void **state)
{
    struct mem_file file = copy_of(&whole, whole.n);
    struct quire_transfer t;
    (void)state;

    file.meanwhile = kill_to_server;
    const quire_status status = move_import(two.to, "b", &file, &t);
    assert_null(file.meanwhile);
    assert_status(QUIRE_EUNAVAILABLE, status);
    quired_start(&two.to_server, NULL);
    quire_client_close(&two.to);
    two.to = move_connect(&two.to_server);
    MOVE_OK(move_import(two.to, "b", &file, &t));
    assert_int_equal(t.resumed_bytes, 0);
    move_same(two.from, "a", two.to, "b", &real, 1000);
    drop(two.to, "b");
    free(file.bytes);
}

/* ---- exports that break -------------------------------------------------------------------
 */

static void exports_that_break_go_on(void **state)
{
    struct quire_transfer t;
    (void)state;

    for (size_t i = 0; i < 40; i++) {
        struct mem_file file = {.bytes = malloc(whole.n), .capacity = whole.n};
        file.fail_at = 1100 + (whole.n - 1200) * i / 40;
        assert_status(QUIRE_EIO, move_export(two.from, "a", &file, true, &t));
        assert_non_null(strstr(quire_last_error()->text, "No space"));
        assert_int_equal(file.n, file.fail_at);
        assert_int_equal(move_sessions(two.from, ".export."), 1);
        if (i % 3 == 1) /* what a crash leaves: zeros where data should be */
            memset(file.bytes + file.n - 70, 0, 70);
        if (i % 3 == 2) /* one bit, long before the end */
            file.bytes[QR_EXPORT_HEAD_BYTES + (file.n - QR_EXPORT_HEAD_BYTES) / 2] ^= 0x10;
        file.fail_at = 0;
        MOVE_OK(move_export(two.from, "a", &file, true, &t));
        assert_int_equal(file.n, whole.n);
        assert_int_equal(t.bytes, whole.n);
        assert_true(t.resumed_bytes >= QR_EXPORT_HEAD_BYTES && t.resumed_bytes < whole.n);
        assert_int_equal(move_sessions(two.from, "."), 0);
        expect_good(&file);
        free(file.bytes);
    }
}

static void append_to_a(void)
{
    move_append(two.from, "a2", &real, 1000, 24, 24);
}

/* The session goes on between the tries: the file is of the first one's moment. */
static void a_continued_export_is_of_its_first_moment(void **state)
{
    struct mem_file file = {0};
    struct quire_transfer t;
    (void)state;

    MOVE_OK(quire_session_fork(two.from, "a", "a2", 0));
    file.cancel_at = whole.n / 2;
    assert_status(QUIRE_ECANCELED, move_export(two.from, "a2", &file, true, &t));
    append_to_a();
    drop(two.from, "a2");
    file.cancel_at = 0;
    MOVE_OK(move_export(two.from, "a2", &file, true, &t)); /* the snapshot is enough */
    assert_true(t.resumed_bytes > whole.n / 4);
    expect_good(&file);
    /* A file that is whole already is only verified. */
    MOVE_OK(move_export(two.from, "a2", &file, true, &t));
    assert_int_equal(t.resumed_bytes, file.n);
    free(file.bytes);
}

static void partial_files_of_something_else_are_refused(void **state)
{
    struct mem_file file = {0}, junk = {0};
    struct quire_transfer t;
    static struct quire_session_info info;
    size_t count;
    bool more;
    (void)state;

    file.cancel_at = whole.n / 2;
    assert_status(QUIRE_ECANCELED, move_export(two.from, "a", &file, true, &t));
    file.cancel_at = 0;
    const size_t n = file.n;
    assert_status(QUIRE_EMISMATCH, move_export(two.from, "other", &file, true, &t));
    assert_int_equal(file.n, n); /* untouched */
    assert_ok(quire_session_list(two.from, ".export.", NULL, &info, 1, &count, &more));
    drop(two.from, info.name);
    assert_status(QUIRE_ENOTFOUND, move_export(two.from, "a", &file, true, &t));
    assert_non_null(strstr(quire_last_error()->text, "begin anew"));
    assert_int_equal(file.n, n);
    for (int i = 0; i < 1000; i++)
        mem_write(&junk, "junk", 4);
    assert_status(QUIRE_ECORRUPT, move_export(two.from, "a", &junk, true, &t));
    assert_int_equal(junk.n, 4000);
    free(junk.bytes);
    free(file.bytes);
}

static void deadlines_hold(void **state)
{
    struct mem_file file = {0};
    struct quire_export out;
    struct quire_import in;
    (void)state;

    quire_export_init(&out);
    out.write = mem_write;
    out.progress = slow_progress; /* never slow here: told is all that it does */
    struct shared_input told = {.slow_from = UINT64_MAX, .file = copy_of(&whole, whole.n)};
    out.context = &file;
    out.progress = NULL;
    out.timeout_ms = 1;
    assert_status(QUIRE_ETIMEOUT, quire_session_export(two.from, "a", &out, NULL));
    assert_int_equal(move_sessions(two.from, "."), 0);
    quire_import_init(&in);
    in.read = shared_read;
    in.context = &told;
    in.timeout_ms = 1;
    assert_status(QUIRE_ETIMEOUT, quire_session_import(two.to, "b", &in, NULL));
    told.file.at = 0;
    in.timeout_ms = 0;
    MOVE_OK(quire_session_import(two.to, "b", &in, NULL));
    drop(two.to, "b");
    free(told.file.bytes);
    free(file.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_cut_at_and_in_each_record_are_refused),
        cmocka_unit_test(bytes_after_the_end_are_refused),
        cmocka_unit_test(each_flipped_byte_of_a_small_file_is_refused),
        cmocka_unit_test(imports_that_break_go_on),
        cmocka_unit_test(what_a_try_left_is_compared),
        cmocka_unit_test(exports_that_break_go_on),
        cmocka_unit_test(a_continued_export_is_of_its_first_moment),
        cmocka_unit_test(partial_files_of_something_else_are_refused),
        cmocka_unit_test(deadlines_hold),
        cmocka_unit_test(a_killed_importer_is_followed_by_another),
        cmocka_unit_test(an_import_survives_its_server),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
