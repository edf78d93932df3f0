/* SPDX-License-Identifier: Apache-2.0
 *
 * quire eval: what encodings do to the keys and values of a file, where attention consumes
 * them. Needs no server.
 */
#include "args.h"
#include "commands.h"
#include "eval_report.h"
#include "eval_threads.h"
#include "eval_variant.h"
#include "policy_args.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct job {
    const char *path, *html, *png;
    struct qr_arg_list codecs;
    bool axes, sweep, heads, served;
    uint32_t bits, group, queries, threads, page, window, sinks, outliers;
    struct qr_model_args model;
    struct qr_kv_file kv;
    struct qr_eval_variant variants[QR_EVAL_VARIANTS_MAX];
    uint32_t count;
    struct qr_eval_report report;
};

static int check(struct qr_cli *cli, const struct job *job)
{
    if (job->axes && (job->sweep || job->codecs.count > 0))
        return qr_cli_fail_usage(cli, "--axes has its own encodings: no --codec, no --sweep");
    if (job->threads > QR_EVAL_THREADS_MAX)
        return qr_cli_fail_usage(cli, "--threads %u: at most %u", job->threads,
                                 QR_EVAL_THREADS_MAX);
    if (job->bits > 255 || job->group > 65535 || job->page > QR_PAGE_TOKENS_MAX ||
        job->window > QR_WINDOW_MAX || job->sinks > QR_PAGE_TOKENS_MAX ||
        job->outliers > QR_OUTLIERS_MAX)
        return qr_cli_fail_usage(cli, "--bits, --group, --page-tokens, --window, --sinks or "
                                      "--outliers is too large");
    return QR_ARGS_GO;
}

static int parse(struct qr_cli *cli, struct job *job, int argc, char **argv)
{
    const struct qr_arg args[] = {
        {"codec", QR_ARG_LIST, &job->codecs, "CODEC[/CODEC][@SETTING,...]",
         "an encoding, of keys / values, such as chan:bits=2/chan:bits=3@sinks=0; may be "
         "repeated (chan)",
         NULL},
        {"axes", QR_ARG_FLAG, &job->axes, NULL,
         "keys and values each per channel and per token, sinks raw and not, before and after "
         "RoPE",
         NULL},
        {"bits", QR_ARG_U32, &job->bits, "N", "of --axes (2)", NULL},
        {"group", QR_ARG_U32, &job->group, "N", "of --axes (32)", NULL},
        {"sweep", QR_ARG_FLAG, &job->sweep, NULL,
         "each encoding with other windows, sink rows and outlier rows", NULL},
        {"queries", QR_ARG_U32, &job->queries, "N",
         "attend with the queries of the last N tokens; 0: all (256)", NULL},
        {"heads", QR_ARG_FLAG, &job->heads, NULL, "print KV heads, too", NULL},
        {"html", QR_ARG_TEXT, &job->html, "FILE", "write a page with tables and heat maps",
         NULL},
        {"png", QR_ARG_TEXT, &job->png, "FILE", "have gnuplot draw the output errors", NULL},
        {"threads", QR_ARG_U32, &job->threads, "N", "threads (processors)", NULL},
    };
    const struct qr_arg pages[] = {
        {"served", QR_ARG_FLAG, &job->served, NULL,
         "a query sees in pages what a session had sealed, the rest in FP16 (all encoded)",
         NULL},
        {"page-tokens", QR_ARG_U32, &job->page, "N", "power of two, 16 to 512 (128)", NULL},
        {"window", QR_ARG_U32, &job->window, "N", "with --served: newest tokens in FP16 (128)",
         NULL},
        {"sinks", QR_ARG_U32, &job->sinks, "N", "first tokens kept in FP16 (4)", NULL},
        {"outliers", QR_ARG_U32, &job->outliers, "N",
         "most outlier tokens a page kept in FP16, 0 to 4 (4)", NULL},
    };
    const struct qr_synopsis synopsis = {
        .operands = "FILE",
        .about =
            "Encode the keys and values of FILE (k_layerNN, v_layerNN), expand them again, "
            "attend\nwith its queries (q_layerNN), and print the errors against the "
            "originals, stored and consumed.",
        .operands_min = 1,
        .operands_max = 1,
        .groups = {{NULL, args, sizeof(args) / sizeof(args[0])},
                   {"Pages, unless an encoding says otherwise", pages,
                    sizeof(pages) / sizeof(pages[0])},
                   {"Model", job->model.args, QR_MODEL_ARGS}},
    };
    char **operands;
    const int stop = qr_args_parse(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    job->path = operands[0];
    const int wrong = check(cli, job);
    return wrong == QR_ARGS_GO ? qr_model_args_need(cli, &job->model) : wrong;
}

static struct qr_eval_variant base_variant(const struct job *job)
{
    struct qr_eval_variant base = {.served = job->served};
    qr_policy_default(&base.policy);
    base.policy.page_tokens = (uint16_t)job->page;
    base.policy.window = (uint16_t)job->window;
    base.policy.sink_rows = (uint16_t)job->sinks;
    base.policy.outlier_rows = (uint16_t)job->outliers;
    return base;
}

/** Of --codec and --sweep; --axes has to know the model first. */
static int make_variants(struct qr_cli *cli, struct job *job)
{
    const struct qr_eval_variant base = base_variant(job);
    struct qr_error e = {0};
    if (job->axes)
        return QR_EXIT_OK;
    static const char *const standard[] = {"chan"};
    const char *const *texts = job->codecs.count ? job->codecs.items : standard;
    const size_t count = job->codecs.count ? job->codecs.count : 1;
    for (size_t i = 0; i < count; i++) {
        struct qr_eval_variant v;
        const quire_status status = qr_eval_variant_parse(texts[i], &base, &v, &e);
        if (status != QUIRE_OK)
            return qr_cli_fail_usage(cli, "--codec %s: %s", texts[i], e.text);
        if (job->count + QR_EVAL_SWEEP_MAX > QR_EVAL_VARIANTS_MAX)
            return qr_cli_fail_usage(cli, "more than %d encodings", QR_EVAL_VARIANTS_MAX);
        if (job->sweep)
            job->count += qr_eval_variants_sweep(&v, job->variants + job->count);
        else
            job->variants[job->count++] = v;
    }
    return QR_EXIT_OK;
}

static int write_html(struct qr_cli *cli, const struct job *job)
{
    FILE *file = fopen(job->html, "we");
    if (file == NULL)
        return qr_cli_fail(cli, QUIRE_EIO, "%s: %s", job->html, strerror(errno));
    qr_eval_print_html(&job->report, file);
    const bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed)
        return qr_cli_fail(cli, QUIRE_EIO, "%s: cannot be written", job->html);
    return QR_EXIT_OK;
}

static int show(struct qr_cli *cli, const struct job *job)
{
    const struct qr_eval_report *r = &job->report;
    struct qr_error e = {0};
    int result = QR_EXIT_OK;
    if (r->tokens < r->file_tokens)
        qr_cli_remark(cli, "the last %llu tokens do not fill a page and are left out",
                      (unsigned long long)(r->file_tokens - r->tokens));
    if (job->html != NULL)
        result = write_html(cli, job);
    if (result == QR_EXIT_OK && job->png != NULL) {
        const quire_status status = qr_eval_draw(r, job->png, &e);
        if (status != QUIRE_OK)
            result = qr_cli_fail(cli, status, "--png: %s", e.text);
    }
    if (result != QR_EXIT_OK)
        return result;
    if (cli->json)
        return qr_cli_print_json(cli, qr_eval_json(r));
    if (job->axes)
        qr_eval_print_axes(r, cli->out);
    else
        qr_eval_print_text(r, job->heads, cli->out);
    return QR_EXIT_OK;
}

static int run(struct qr_cli *cli, struct job *job)
{
    struct qr_error e = {0};
    const struct qr_eval_options options = {job->queries, job->threads};
    struct qr_model_file *model = malloc(sizeof(*model));
    if (model == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory");
    quire_status status =
        qr_kv_file_open(job->path, QR_KV_NEED_KV | QR_KV_NEED_QUERY, &job->kv, &e);
    if (status == QUIRE_OK)
        status = qr_model_args_take(&job->model, &job->kv, model, &e);
    if (status == QUIRE_OK && job->axes) {
        const struct qr_eval_variant base = base_variant(job);
        job->count = qr_eval_variants_axes(&base, job->bits, job->group,
                                           model->layers[0].rope_stored == QUIRE_ROPE_PRE,
                                           job->variants);
    }
    if (status == QUIRE_OK)
        status = qr_eval_run(&job->kv, model, &options, job->variants, job->count,
                             cli->terminal && !cli->quiet && !cli->json ? cli->err : NULL,
                             &job->report, &e);
    job->report.path = job->path;
    const int result = status == QUIRE_OK
                           ? show(cli, job)
                           : qr_cli_fail(cli, status, "%s: %s", job->path, e.text);
    qr_eval_report_free(&job->report);
    free(model);
    return result;
}

int qr_cmd_eval(struct qr_cli *cli, int argc, char **argv)
{
    struct job *job = calloc(1, sizeof(*job));
    if (job == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory");
    job->bits = 2;
    job->group = 32;
    job->queries = 256;
    job->page = 128;
    job->window = 128;
    job->sinks = 4;
    job->outliers = 4;
    qr_model_args_init(&job->model);
    int result = parse(cli, job, argc, argv);
    if (result == QR_ARGS_GO) {
        result = make_variants(cli, job);
        if (result == QR_EXIT_OK)
            result = run(cli, job);
    }
    qr_kv_file_close(&job->kv);
    free(job);
    return result;
}
