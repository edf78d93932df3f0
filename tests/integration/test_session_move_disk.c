/* SPDX-License-Identifier: Apache-2.0
 *
 * Exports and imports of servers with a disk, killed at any moment: a partial export goes on
 * from the same snapshot after a restart, an import goes on or begins anew, and copies of one
 * session share pages on disk without losing each other's.
 */
#include "move.h"

static struct golden golden;
static struct move_source real;

struct place {
    struct quired quired;
    quire_client *client;
    char disk[128];
};

static void serve(struct place *p)
{
    char folder[160];
    snprintf(folder, sizeof(folder), "%s=256MiB", p->disk);
    const char *const flags[] = {"--disk", folder, "--tail-log", "16MiB", NULL};

    quired_start(&p->quired, flags);
    p->client = move_connect(&p->quired);
}

static void start_place(struct place *p)
{
    quired_folder(&p->quired);
    snprintf(p->disk, sizeof(p->disk), "%s/disk", p->quired.folder);
    serve(p);
}

static void end_place(struct place *p)
{
    char command[256];

    quire_client_close(&p->client);
    quired_stop(&p->quired);
    snprintf(command, sizeof(command), "rm -rf '%s'", p->disk);
    assert_ok(system(command));
    quired_clean(&p->quired);
}

static void kill_and_serve(struct place *p)
{
    quire_client_close(&p->client);
    assert_ok(kill(p->quired.pid, SIGKILL));
    (void)quired_wait(&p->quired);
    serve(p);
}

static struct place here, there;

static int start(void **state)
{
    (void)state;
    move_real(&golden, &real);
    start_place(&here);
    start_place(&there);
    move_append(here.client, "a", &real, 0, 1000, 250);
    MOVE_OK(quire_flush(here.client));
    return 0;
}

static int stop(void **state)
{
    (void)state;
    end_place(&here);
    end_place(&there);
    golden_close(&golden);
    return 0;
}

static void drop(struct place *p, const char *name)
{
    MOVE_OK(quire_session_drop(p->client, name, true));
}

static void a_partial_export_goes_on_after_its_server_was_killed(void **state)
{
    struct mem_file file = {0};
    struct quire_transfer t;
    (void)state;

    for (uint32_t eighths = 1; eighths < 8; eighths += 3) {
        file.n = 0;
        file.cancel_at = 160000 * eighths;
        assert_status(QUIRE_ECANCELED, move_export(here.client, "a", &file, true, &t));
        kill_and_serve(&here);
        file.cancel_at = 0;
        MOVE_OK(move_export(here.client, "a", &file, true, &t));
        assert_true(t.resumed_bytes >= QR_EXPORT_HEAD_BYTES && t.resumed_bytes < file.n);
        assert_int_equal(move_sessions(here.client, "."), 0);
        MOVE_OK(move_import(there.client, "b", &file, &t));
        move_same(here.client, "a", there.client, "b", &real, 1000);
        drop(&there, "b");
    }
    free(file.bytes);
}

static void kill_there(void)
{
    assert_ok(kill(there.quired.pid, SIGKILL));
}

/* Wherever it is killed: under its name it is whole or not there. */
static void an_import_goes_on_after_its_server_was_killed(void **state)
{
    struct mem_file file = {0};
    struct quire_transfer t;
    (void)state;

    MOVE_OK(move_export(here.client, "a", &file, false, &t));
    for (int i = 0; i < 4; i++) {
        file.meanwhile = kill_there;
        const quire_status status = move_import(there.client, "b", &file, &t);
        assert_int_not_equal(status, QUIRE_OK);
        quire_client_close(&there.client);
        (void)quired_wait(&there.quired);
        serve(&there);
        assert_int_equal(move_sessions(there.client, "b"), 0);
        MOVE_OK(move_import(there.client, "b", &file, &t));
        move_same(here.client, "a", there.client, "b", &real, 1000);
        drop(&there, "b");
        assert_int_equal(move_sessions(there.client, ""), 0);
    }
    free(file.bytes);
}

static quire_status import_durable(struct mem_file *file, const char *name)
{
    struct quire_import args;

    quire_import_init(&args);
    args.read = mem_read;
    args.context = file;
    args.durable = true;
    file->at = 0;
    return quire_session_import(there.client, name, &args, NULL);
}

/* Copies of a session without token ids have the same ids too, and the same pages. One of them
 * is on disk alone when the next one comes; each may go at any time. */
static void durable_imports_outlive_kills_and_each_other(void **state)
{
    struct move_source s = real;
    struct mem_file file = {0};
    (void)state;

    s.token_ids = NULL;
    move_append(here.client, "u", &s, 0, 1000, 250);
    MOVE_OK(move_export(here.client, "u", &file, false, NULL));
    MOVE_OK(import_durable(&file, "b"));
    kill_and_serve(&there);
    assert_int_equal(move_sessions(there.client, ""), 1);
    MOVE_OK(import_durable(&file, "c"));
    kill_and_serve(&there);
    move_same(here.client, "u", there.client, "b", &s, 1000);
    drop(&there, "b");
    kill_and_serve(&there);
    MOVE_OK(import_durable(&file, "d"));
    drop(&there, "d");
    move_append(there.client, "other", &s, 0, 700, 100); /* takes the slots that are free */
    MOVE_OK(quire_flush(there.client));
    kill_and_serve(&there);
    move_same(here.client, "u", there.client, "c", &s, 1000);
    drop(&there, "c");
    drop(&there, "other");
    drop(&here, "u");
    free(file.bytes);
}

/* What stands on disk only is exported as well. */
static void a_session_that_is_on_disk_is_exported(void **state)
{
    struct mem_file file = {0};
    (void)state;

    kill_and_serve(&here); /* nothing of it is in memory now */
    MOVE_OK(move_export(here.client, "a", &file, false, NULL));
    MOVE_OK(move_import(there.client, "b", &file, NULL));
    move_same(here.client, "a", there.client, "b", &real, 1000);
    drop(&there, "b");
    free(file.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_that_is_on_disk_is_exported),
        cmocka_unit_test(a_partial_export_goes_on_after_its_server_was_killed),
        cmocka_unit_test(an_import_goes_on_after_its_server_was_killed),
        cmocka_unit_test(durable_imports_outlive_kills_and_each_other),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
