/* SPDX-License-Identifier: Apache-2.0
 *
 * quire inspect: the header of a page, and a small histogram of its codes and scales; of a
 * page file, or of the page that holds a token of a session.
 */
#include "args.h"
#include "commands.h"
#include "output.h"
#include "page_summary.h"

#include "proto/spec_text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define BAR_WIDTH 40
#define PAGE_FIRST (1u << 20)

struct job {
    const char *target, *save;
    struct quire_page_at at;
    bool file, session;
    uint8_t *page;
    size_t bytes;
};

static int parse(struct qr_cli *cli, struct job *job, int argc, char **argv)
{
    const struct qr_arg args[] = {
        {"layer", QR_ARG_U32, &job->at.layer, "N", "of a session: layer (0)", NULL},
        {"head", QR_ARG_U32, &job->at.head, "N", "of a session: KV head (0)", NULL},
        {"position", QR_ARG_U64, &job->at.position, "N",
         "of a session: the page that holds this token (0)", NULL},
        {"save", QR_ARG_TEXT, &job->save, "FILE", "also write the page's bytes to FILE", NULL},
        {"file", QR_ARG_FLAG, &job->file, NULL, "the operand is a file, whatever it looks like",
         NULL},
        {"session", QR_ARG_FLAG, &job->session, NULL, "the operand is a session", NULL},
    };
    const struct qr_synopsis synopsis = {
        .operands = "PAGE-FILE|SESSION",
        .about = "Show what a page holds. The operand is a page file when such a file exists, "
                 "else a\nsession.",
        .operands_min = 1,
        .operands_max = 1,
        .groups = {{NULL, args, sizeof(args) / sizeof(args[0])}},
    };
    char **operands;
    struct stat info;
    const int stop = qr_args_parse(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    if (job->file && job->session)
        return qr_cli_fail_usage(cli, "--file and --session exclude each other");
    job->target = operands[0];
    if (!job->session && stat(job->target, &info) == 0 && S_ISREG(info.st_mode))
        job->file = true;
    return QR_ARGS_GO;
}

static int load_file(struct qr_cli *cli, struct job *job)
{
    FILE *file = fopen(job->target, "re");
    if (file == NULL)
        return qr_cli_fail(cli, QUIRE_EIO, "%s: %s", job->target, strerror(errno));
    struct stat info;
    int stop = QR_EXIT_OK;
    if (fstat(fileno(file), &info) != 0 || info.st_size < 0 ||
        info.st_size > (off_t)QR_PAGE_BYTES_MAX)
        stop = qr_cli_fail(cli, QUIRE_ETOOBIG, "%s: larger than a page can be (%u bytes)",
                           job->target, QR_PAGE_BYTES_MAX);
    job->bytes = stop == QR_EXIT_OK ? (size_t)info.st_size : 0;
    job->page = malloc(job->bytes + 1);
    if (stop == QR_EXIT_OK &&
        (job->page == NULL || fread(job->page, 1, job->bytes, file) != job->bytes))
        stop = qr_cli_fail(cli, QUIRE_EIO, "%s: cannot be read", job->target);
    fclose(file);
    return stop;
}

static int load_session(struct qr_cli *cli, struct job *job)
{
    quire_session *session = NULL;
    const int stop = qr_cli_open(cli, job->target, NULL, &session);
    if (stop != QR_EXIT_OK)
        return stop;
    size_t capacity = PAGE_FIRST;
    quire_status status;
    do {
        free(job->page);
        job->page = malloc(capacity);
        job->bytes = 0;
        status = job->page == NULL
                     ? QUIRE_ENOMEM
                     : quire_session_page(session, &job->at, job->page, capacity, &job->bytes);
        if (status != QUIRE_ETOOBIG || job->bytes <= capacity)
            break;
        capacity = job->bytes;
    } while (capacity <= QR_PAGE_BYTES_MAX);
    quire_session_close(&session);
    return status == QUIRE_OK ? QR_EXIT_OK : qr_cli_fail_call(cli, status, job->target);
}

static int save_page(struct qr_cli *cli, const struct job *job)
{
    FILE *file = fopen(job->save, "we");
    if (file == NULL)
        return qr_cli_fail(cli, QUIRE_EIO, "%s: %s", job->save, strerror(errno));
    const bool written = fwrite(job->page, 1, job->bytes, file) == job->bytes;
    if (fclose(file) != 0 || !written)
        return qr_cli_fail(cli, QUIRE_EIO, "%s: %s", job->save, strerror(errno));
    return QR_EXIT_OK;
}

static void print_header(FILE *out, const struct qr_page_header *h)
{
    static const char *const stored[] = {"no RoPE", "before RoPE", "after RoPE"};
    char hex[65], text[QR_SPEC_TEXT_MAX];
    struct qr_table *t = qr_table_create("ll");
    qr_table_row(t, "version\t%u", h->version);
    qr_table_row(t, "bytes\t%u", h->page_bytes);
    qr_table_row(t, "checksum\t%016llx (good)", (unsigned long long)h->checksum);
    qr_table_row(t, "fingerprint\t%s", qr_text_hex(hex, h->fingerprint, 32));
    qr_table_row(t, "block id\t%s", qr_text_hex(hex, h->block_id, 32));
    qr_table_row(t, "layer\t%u", h->layer);
    qr_table_row(t, "KV heads\t%u to %u", h->first_head, h->first_head + h->heads - 1);
    qr_table_row(t, "channels\t%u key, %u value", h->key_dim, h->value_dim);
    qr_table_row(t, "keys stored\t%s%s", h->rope_stored <= 2 ? stored[h->rope_stored] : "?",
                 h->rope_layout == QR_ROPE_HALF          ? ", half layout"
                 : h->rope_layout == QR_ROPE_INTERLEAVED ? ", interleaved layout"
                                                         : "");
    qr_table_row(t, "positions\t%llu to %llu", (unsigned long long)h->first_position,
                 (unsigned long long)(h->first_position + h->tokens - 1));
    qr_spec_format(&h->key, text);
    qr_table_row(t, "keys\t%s", text);
    qr_spec_format(&h->value, text);
    qr_table_row(t, "values\t%s", text);
    qr_table_row(t, "raw rows\t%u", h->raw_rows);
    if (h->receipt.metric != 0)
        qr_table_row(t, "receipt\t%.4g (keys %.4g, values %.4g)", (double)h->receipt.error,
                     (double)h->receipt.key_error, (double)h->receipt.value_error);
    qr_table_print(t, out);
    qr_table_destroy(&t);
}

static const char *section_name(uint16_t type)
{
    static const char *const names[] = {"?",
                                        "key codes",
                                        "key scales",
                                        "value codes",
                                        "value scales",
                                        "key raw rows",
                                        "value raw rows",
                                        "row digests"};
    return type < sizeof(names) / sizeof(names[0]) ? names[type] : "?";
}

static void print_sections(FILE *out, const struct qr_page_header *h)
{
    struct qr_table *t = qr_table_create("lrr");
    qr_table_row(t, "section\toffset\tbytes");
    for (uint16_t i = 0; i < h->section_count; i++)
        qr_table_row(t, "%s\t%u\t%u", section_name(h->sections[i].type), h->sections[i].offset,
                     h->sections[i].bytes);
    fputc('\n', out);
    qr_table_print(t, out);
    qr_table_destroy(&t);
}

static void print_summary(FILE *out, const char *what, const struct qr_page_summary *s)
{
    uint64_t total = 0, most = 1;
    if (s->bins == 0)
        return;
    for (uint32_t i = 0; i < s->bins; i++) {
        total += s->count[i];
        most = s->count[i] > most ? s->count[i] : most;
    }
    fprintf(out,
            "\n%s: %llu codes; %llu groups, %llu flat; scales %.4g to %.4g, mean %.4g; minima "
            "%.4g to %.4g\n",
            what, (unsigned long long)total, (unsigned long long)s->groups,
            (unsigned long long)s->flat_groups, (double)s->scale_least, (double)s->scale_most,
            s->scale_mean, (double)s->minimum_least, (double)s->minimum_most);
    for (uint32_t i = 0; i < s->bins; i++) {
        fprintf(out, "  %4u %5.1f%% ", i * s->codes_a_bin,
                total > 0 ? 100.0 * (double)s->count[i] / (double)total : 0);
        for (uint64_t n = s->count[i] * BAR_WIDTH / most; n > 0; n--)
            fputc('#', out);
        fputc('\n', out);
    }
}

static cJSON *summary_json(const struct qr_codec_spec *spec, const struct qr_page_summary *s)
{
    cJSON *root = cJSON_CreateObject();
    static const char *const axes[] = {"none", "channel", "token", "head"};
    char text[QR_SPEC_TEXT_MAX];
    const char *name = qr_codec_name(spec->codec);
    cJSON_AddStringToObject(root, "codec", name ? name : "?");
    cJSON_AddNumberToObject(root, "bits", spec->bits);
    if (s->bins == 0)
        return root;
    qr_spec_format(spec, text);
    cJSON_AddStringToObject(root, "text", text);
    cJSON_AddStringToObject(root, "axis", spec->axis <= QR_AXIS_HEAD ? axes[spec->axis] : "?");
    cJSON_AddNumberToObject(root, "group", spec->group);
    cJSON_AddNumberToObject(root, "groups", (double)s->groups);
    cJSON_AddNumberToObject(root, "flat_groups", (double)s->flat_groups);
    cJSON_AddNumberToObject(root, "scale_least", (double)s->scale_least);
    cJSON_AddNumberToObject(root, "scale_most", (double)s->scale_most);
    cJSON_AddNumberToObject(root, "scale_mean", s->scale_mean);
    cJSON_AddNumberToObject(root, "minimum_least", (double)s->minimum_least);
    cJSON_AddNumberToObject(root, "minimum_most", (double)s->minimum_most);
    cJSON *codes = cJSON_AddArrayToObject(root, "codes");
    for (uint32_t i = 0; i < s->bins; i++)
        cJSON_AddItemToArray(codes, cJSON_CreateNumber((double)s->count[i]));
    return root;
}

static void add_header_rest(cJSON *root, const struct qr_page_header *h)
{
    static const char *const stored[] = {"none", "pre", "post"};
    cJSON_AddStringToObject(root, "rope", h->rope_stored <= 2 ? stored[h->rope_stored] : "?");
    cJSON_AddStringToObject(root, "layout",
                            h->rope_layout == QR_ROPE_HALF          ? "half"
                            : h->rope_layout == QR_ROPE_INTERLEAVED ? "interleaved"
                                                                    : "?");
    cJSON *rows = cJSON_AddArrayToObject(root, "raw_row_positions");
    for (uint32_t t = 0; t < h->tokens; t++)
        if (qr_page_is_raw(h->raw_bitmap, t))
            cJSON_AddItemToArray(rows, cJSON_CreateNumber((double)(h->first_position + t)));
    if (h->receipt.metric == 0) {
        cJSON_AddNullToObject(root, "receipt");
        return;
    }
    cJSON *receipt = cJSON_AddObjectToObject(root, "receipt");
    cJSON_AddNumberToObject(receipt, "metric", h->receipt.metric);
    cJSON_AddNumberToObject(receipt, "error", (double)h->receipt.error);
    cJSON_AddNumberToObject(receipt, "key_error", (double)h->receipt.key_error);
    cJSON_AddNumberToObject(receipt, "value_error", (double)h->receipt.value_error);
}

static int print_json(struct qr_cli *cli, const struct qr_page_header *h,
                      const struct qr_page_summary *key, const struct qr_page_summary *value)
{
    char hex[65];
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "version", h->version);
    cJSON_AddNumberToObject(root, "bytes", h->page_bytes);
    qr_cli_json_text(root, "checksum", "%016llx", (unsigned long long)h->checksum);
    cJSON_AddStringToObject(root, "fingerprint", qr_text_hex(hex, h->fingerprint, 32));
    cJSON_AddStringToObject(root, "block_id", qr_text_hex(hex, h->block_id, 32));
    cJSON_AddNumberToObject(root, "layer", h->layer);
    cJSON_AddNumberToObject(root, "first_head", h->first_head);
    cJSON_AddNumberToObject(root, "heads", h->heads);
    cJSON_AddNumberToObject(root, "key_dim", h->key_dim);
    cJSON_AddNumberToObject(root, "value_dim", h->value_dim);
    cJSON_AddNumberToObject(root, "first_position", (double)h->first_position);
    cJSON_AddNumberToObject(root, "tokens", h->tokens);
    cJSON_AddNumberToObject(root, "raw_rows", h->raw_rows);
    add_header_rest(root, h);
    cJSON *sections = cJSON_AddArrayToObject(root, "sections");
    for (uint16_t i = 0; i < h->section_count; i++) {
        cJSON *section = cJSON_CreateObject();
        cJSON_AddStringToObject(section, "name", section_name(h->sections[i].type));
        cJSON_AddNumberToObject(section, "offset", h->sections[i].offset);
        cJSON_AddNumberToObject(section, "bytes", h->sections[i].bytes);
        cJSON_AddItemToArray(sections, section);
    }
    cJSON_AddItemToObject(root, "keys", summary_json(&h->key, key));
    cJSON_AddItemToObject(root, "values", summary_json(&h->value, value));
    return qr_cli_print_json(cli, root);
}

static int show(struct qr_cli *cli, const struct job *job)
{
    struct qr_page_view view;
    struct qr_page_summary key, value;
    struct qr_error e = {0};
    const quire_status status = qr_page_open(job->page, job->bytes, &view, &e);
    if (status != QUIRE_OK)
        return qr_cli_fail(cli, status, "%s: %s", job->target, e.text);
    qr_page_summarize(&view, true, &key);
    qr_page_summarize(&view, false, &value);
    if (cli->json)
        return print_json(cli, view.header, &key, &value);
    print_header(cli->out, view.header);
    print_sections(cli->out, view.header);
    print_summary(cli->out, "keys", &key);
    print_summary(cli->out, "values", &value);
    return QR_EXIT_OK;
}

int qr_cmd_inspect(struct qr_cli *cli, int argc, char **argv)
{
    struct job job = {0};
    int result = parse(cli, &job, argc, argv);
    if (result == QR_ARGS_GO) {
        result = job.file ? load_file(cli, &job) : load_session(cli, &job);
        if (result == QR_EXIT_OK)
            result = show(cli, &job);
        if (result == QR_EXIT_OK && job.save != NULL)
            result = save_page(cli, &job);
    }
    free(job.page);
    return result;
}
