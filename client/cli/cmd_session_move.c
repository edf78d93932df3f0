/* SPDX-License-Identifier: Apache-2.0
 *
 * quire session export|import: files, pipes and progress around libquire's verbs.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "args.h"
#include "cmd_session.h"
#include "output.h"

#define PATH_BYTES 4096
#define RANGES_MAX 4096
#define RANGES_SHOWN 20

/* One file, and the bar that says how far it is. */
struct moving {
    struct qr_cli *cli;
    int fd;
    bool own; /* fd is ours to close */
    struct qr_progress bar;
    bool drawn;
    char part[PATH_BYTES]; /* where an export is until it is whole; "": it goes straight out */
};

/* ---- what libquire calls ------------------------------------------------------------------
 */

static int write_all(void *context, const void *bytes, size_t n)
{
    const struct moving *m = context;

    for (size_t done = 0; done < n;) {
        const ssize_t got = write(m->fd, (const uint8_t *)bytes + done, n - done);
        if (got < 0 && errno != EINTR)
            return errno;
        done += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

static int read_some(void *context, void *bytes, size_t capacity, size_t *bytes_out)
{
    const struct moving *m = context;
    ssize_t got;

    do {
        got = read(m->fd, bytes, capacity);
    } while (got < 0 && errno == EINTR);
    *bytes_out = got > 0 ? (size_t)got : 0;
    return got < 0 ? errno : 0;
}

static int cut(void *context, uint64_t length)
{
    const struct moving *m = context;

    if (ftruncate(m->fd, (off_t)length) || lseek(m->fd, (off_t)length, SEEK_SET) < 0)
        return errno;
    if (length > 0)
        qr_cli_remark(m->cli, "continuing %s at byte %" PRIu64, m->part, length);
    return 0;
}

static bool progress(void *context, const struct quire_transfer *transfer)
{
    struct moving *m = context;
    const bool show = m->cli->terminal && !m->cli->quiet && !m->cli->json;

    if (!m->drawn)
        qr_progress_begin(&m->bar, show ? m->cli->err : NULL, m->cli->command,
                          (double)transfer->total_bytes);
    m->drawn = true;
    qr_progress_update(&m->bar, (double)transfer->bytes);
    return true;
}

/* ---- results ------------------------------------------------------------------------------
 */

static int say_moved(struct qr_cli *cli, const char *verb, const char *session,
                     const struct quire_transfer *t)
{
    char bytes[QR_TEXT_MAX], hex[65];

    if (cli->json) {
        cJSON *root = cJSON_CreateObject();
        cJSON_AddStringToObject(root, verb, session);
        cJSON_AddStringToObject(root, "name_in_file", t->name);
        cJSON_AddStringToObject(root, "fingerprint", qr_text_hex(hex, t->fingerprint, 32));
        cJSON_AddNumberToObject(root, "tokens", (double)t->tokens);
        cJSON_AddNumberToObject(root, "pages", (double)t->pages);
        cJSON_AddNumberToObject(root, "bytes", (double)t->bytes);
        cJSON_AddNumberToObject(root, "resumed_bytes", (double)t->resumed_bytes);
        cJSON_AddNumberToObject(root, "left_out_tokens", (double)t->left_out_tokens);
        return qr_cli_print_json(cli, root);
    }
    qr_cli_remark(cli, "%s %s: %" PRIu64 " tokens, %" PRIu64 " pages, %s", verb, session,
                  t->tokens, t->pages, qr_text_bytes(bytes, (double)t->bytes));
    if (t->left_out_tokens)
        qr_cli_remark(cli, "left out: %" PRIu64 " committed tokens after them",
                      t->left_out_tokens);
    return QR_EXIT_OK;
}

/* A failure with one thing more in its JSON. */
static void report(struct qr_cli *cli, const char *what, const char *key, cJSON *more)
{
    const struct quire_error *e = quire_last_error();

    fprintf(cli->err, "quire %s: %s: %s\n", cli->command, what, e->text);
    if (!cli->json) {
        cJSON_Delete(more);
        return;
    }
    cJSON *root = cJSON_CreateObject();
    cJSON *error = cJSON_AddObjectToObject(root, "error");
    cJSON_AddStringToObject(error, "status", quire_status_name(e->status));
    cJSON_AddStringToObject(error, "text", e->text);
    cJSON_AddItemToObject(error, key, more);
    qr_cli_print_json(cli, root);
}

static cJSON *range_json(const struct quire_range *range)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddNumberToObject(object, "layer", range->layer);
    cJSON_AddNumberToObject(object, "shard", range->shard);
    cJSON_AddNumberToObject(object, "position", (double)range->position);
    cJSON_AddNumberToObject(object, "tokens", (double)range->tokens);
    return object;
}

/* Exactly what is missing; 0 ranges when the session cannot be asked any more. */
static size_t find_missing(struct qr_cli *cli, const char *name, struct quire_range *ranges)
{
    quire_session *session = NULL;
    struct quire_session_info info;
    size_t count = 0;

    if (quire_session_open(cli->client, name, NULL, &session))
        return 0;
    if (!quire_session_info(session, &info) && info.length > 0)
        (void)quire_session_lookup(session, 0, info.length, 0, info.layer_count, ranges,
                                   RANGES_MAX, &count);
    quire_session_close(&session);
    return count < RANGES_MAX ? count : RANGES_MAX;
}

static int fail_missing(struct qr_cli *cli, const char *name)
{
    struct quire_range *ranges = calloc(RANGES_MAX, sizeof(*ranges));
    cJSON *list = cJSON_CreateArray();
    const struct quire_error kept = *quire_last_error();
    const size_t count = ranges ? find_missing(cli, name, ranges) : 0;

    fprintf(cli->err, "quire %s: %s: %s\n", cli->command, name, kept.text);
    for (size_t i = 0; i < count; i++) {
        cJSON_AddItemToArray(list, range_json(&ranges[i]));
        if (i < RANGES_SHOWN)
            fprintf(cli->err, "  layer %u, shard %u: tokens [%" PRIu64 ", +%" PRIu64 ")\n",
                    ranges[i].layer, ranges[i].shard, ranges[i].position, ranges[i].tokens);
    }
    if (count > RANGES_SHOWN)
        fprintf(cli->err, "  and %zu ranges more\n", count - RANGES_SHOWN);
    fprintf(cli->err, "--allow-missing exports what stands before the first of them\n");
    free(ranges);
    if (!cli->json) {
        cJSON_Delete(list);
        return QR_EXIT_INCOMPLETE;
    }
    cJSON *root = cJSON_CreateObject();
    cJSON *error = cJSON_AddObjectToObject(root, "error");
    cJSON_AddStringToObject(error, "status", quire_status_name(kept.status));
    cJSON_AddStringToObject(error, "text", kept.text);
    cJSON_AddItemToObject(error, "missing", list);
    qr_cli_print_json(cli, root);
    return QR_EXIT_INCOMPLETE;
}

static void end_moving(struct moving *m)
{
    if (m->drawn)
        qr_progress_end(&m->bar);
    /* Nothing was written: nothing to go on with. */
    if (m->own && m->part[0] && lseek(m->fd, 0, SEEK_END) == 0)
        (void)unlink(m->part);
    if (m->own)
        (void)close(m->fd);
    m->own = false;
}

/* ---- export -------------------------------------------------------------------------------
 */

struct export_options {
    uint64_t length;
    bool allow_missing, restart, force;
    uint32_t deadline_ms;
};

static int open_stdout(struct moving *m)
{
    if (m->cli->json)
        return qr_cli_fail_usage(m->cli, "--json and an export to - both want the output");
    fflush(m->cli->out);
    m->fd = fileno(m->cli->out);
    if (isatty(m->fd))
        return qr_cli_fail_usage(m->cli, "an export is not for a terminal: give a file");
    return QR_EXIT_OK;
}

static int open_part(struct moving *m, const char *path, const struct export_options *o)
{
    if (snprintf(m->part, sizeof(m->part), "%s.part", path) >= (int)sizeof(m->part))
        return qr_cli_fail(m->cli, QUIRE_EINVAL, "%.60s...: path too long", path);
    m->fd = open(m->part, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (m->fd < 0)
        return qr_cli_fail(m->cli, QUIRE_EIO, "%s: %s", m->part, strerror(errno));
    m->own = true;
    if (flock(m->fd, LOCK_EX | LOCK_NB))
        return qr_cli_fail(m->cli, QUIRE_EIO, "%s: another export is writing it", m->part);
    if (o->restart && ftruncate(m->fd, 0))
        return qr_cli_fail(m->cli, QUIRE_EIO, "%s: %s", m->part, strerror(errno));
    return QR_EXIT_OK;
}

/* Pipes and devices are written as they are; files appear under their names when whole. */
static int open_output(struct moving *m, const char *path, const struct export_options *o)
{
    struct stat found;

    if (strcmp(path, "-") == 0)
        return open_stdout(m);
    if (stat(path, &found) != 0)
        return open_part(m, path, o);
    if (S_ISREG(found.st_mode))
        return o->force ? open_part(m, path, o)
                        : qr_cli_fail(m->cli, QUIRE_EEXIST, "%s exists: --force overwrites it",
                                      path);
    m->fd = open(path, O_WRONLY | O_CLOEXEC);
    m->own = m->fd >= 0;
    return m->own ? QR_EXIT_OK
                  : qr_cli_fail(m->cli, QUIRE_EIO, "%s: %s", path, strerror(errno));
}

static int sync_folder(const char *path)
{
    char folder[PATH_BYTES];

    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = 0;
    const int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    const int result = fsync(fd);
    close(fd);
    return result;
}

static int finish_output(struct moving *m, const char *path)
{
    if (m->part[0] == 0)
        return QR_EXIT_OK;
    if (fsync(m->fd) || rename(m->part, path) || sync_folder(path))
        return qr_cli_fail(m->cli, QUIRE_EIO, "%s: %s", path, strerror(errno));
    m->part[0] = 0;
    return QR_EXIT_OK;
}

static int export_to(struct moving *m, const char *name, const char *path,
                     const struct export_options *o)
{
    struct quire_export args;
    struct quire_transfer transfer;

    quire_export_init(&args);
    args.write = write_all;
    args.read = m->part[0] ? read_some : NULL;
    args.cut = cut;
    args.progress = progress;
    args.context = m;
    args.length = o->length;
    args.allow_missing = o->allow_missing;
    args.timeout_ms = o->deadline_ms;
    const quire_status status = quire_session_export(m->cli->client, name, &args, &transfer);
    if (m->drawn)
        qr_progress_end(&m->bar);
    m->drawn = false;
    if (status == QUIRE_EMISSING)
        return fail_missing(m->cli, name);
    if (status)
        return qr_cli_fail_call(m->cli, status, name);
    const int stop = finish_output(m, path);
    return stop == QR_EXIT_OK ? say_moved(m->cli, "exported", name, &transfer) : stop;
}

int qr_session_export(struct qr_cli *cli, int argc, char **argv)
{
    struct export_options o = {0};
    const struct qr_arg args[] = {
        {"length", QR_ARG_U64, &o.length, "N", "tokens to export (all committed ones)", NULL},
        {"allow-missing", QR_ARG_FLAG, &o.allow_missing, NULL,
         "end before the first missing page", NULL},
        {"restart", QR_ARG_FLAG, &o.restart, NULL,
         "begin anew instead of going on in FILE.part", NULL},
        {"force", QR_ARG_FLAG, &o.force, NULL, "overwrite FILE", NULL},
        {"deadline", QR_ARG_U32, &o.deadline_ms, "MS", "of the whole export (none)", NULL}};
    const struct qr_synopsis synopsis = {
        .operands = "SESSION FILE",
        .about = "Write a session as one file, to be imported elsewhere; - is standard output. "
                 "FILE.part is written first, and continued when it is there.",
        .operands_min = 2,
        .operands_max = 2,
        .groups = {{NULL, args, sizeof(args) / sizeof(args[0])}},
    };
    struct moving m = {.cli = cli, .fd = -1};
    char **operands;
    int stop = qr_args_parse(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    stop = open_output(&m, operands[1], &o);
    if (stop == QR_EXIT_OK)
        stop = qr_cli_connect(cli);
    if (stop == QR_EXIT_OK)
        stop = export_to(&m, operands[0], operands[1], &o);
    end_moving(&m);
    return stop;
}

/* ---- import -------------------------------------------------------------------------------
 */

static int open_input(struct moving *m, const char *path)
{
    if (strcmp(path, "-") == 0) {
        m->fd = STDIN_FILENO;
        return QR_EXIT_OK;
    }
    m->fd = open(path, O_RDONLY | O_CLOEXEC);
    m->own = m->fd >= 0;
    if (!m->own)
        return qr_cli_fail(m->cli, QUIRE_EIO, "%s: %s", path, strerror(errno));
    (void)posix_fadvise(m->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return QR_EXIT_OK;
}

/* A damaged file is one that said no: nothing of it was delivered. */
static int fail_import(struct qr_cli *cli, quire_status status, const char *path)
{
    const struct quire_error *e = quire_last_error();

    if (status != QUIRE_ECORRUPT && status != QUIRE_EUNSUPPORTED)
        return qr_cli_fail_call(cli, status, path);
    report(cli, path, "byte", cJSON_CreateNumber((double)e->position));
    return QR_EXIT_FAILED;
}

int qr_session_import(struct qr_cli *cli, int argc, char **argv)
{
    struct quire_import import;
    struct quire_transfer transfer;
    const char *as = NULL;
    quire_import_init(&import);
    const struct qr_arg args[] = {
        {"as", QR_ARG_TEXT, &as, "NAME", "name of the session (its name in the file)", NULL},
        {"ttl", QR_ARG_U64, &import.ttl_ms, "MS", "time to live (the file's)", NULL},
        {"compare-all", QR_ARG_FLAG, &import.compare_all, NULL,
         "compare also what a broken import left on the server", NULL},
        {"durable", QR_ARG_FLAG, &import.durable, NULL, "wait until it is on disk", NULL},
        {"deadline", QR_ARG_U32, &import.timeout_ms, "MS", "of the whole import (none)", NULL}};
    const struct qr_synopsis synopsis = {
        .operands = "FILE",
        .about = "Make the session of an exported file; - is standard input. It appears under "
                 "its name when all of the file has been verified.",
        .operands_min = 1,
        .operands_max = 1,
        .groups = {{NULL, args, sizeof(args) / sizeof(args[0])}},
    };
    struct moving m = {.cli = cli, .fd = -1};
    char **operands;
    int stop = qr_args_parse(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    stop = open_input(&m, operands[0]);
    if (stop == QR_EXIT_OK)
        stop = qr_cli_connect(cli);
    if (stop == QR_EXIT_OK) {
        import.read = read_some;
        import.progress = progress;
        import.context = &m;
        const quire_status status = quire_session_import(cli->client, as, &import, &transfer);
        if (m.drawn)
            qr_progress_end(&m.bar);
        m.drawn = false;
        stop = status ? fail_import(cli, status, operands[0])
                      : say_moved(cli, "imported", as ? as : transfer.name, &transfer);
    }
    end_moving(&m);
    return stop;
}
