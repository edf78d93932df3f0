/* SPDX-License-Identifier: Apache-2.0
 *
 * quire tune: the encodings of keys and values that cost least attention output error on a
 * file under a budget of bits, as a policy file. Needs no server.
 */
#include "commands.h"
#include "eval_threads.h"
#include "output.h"
#include "policy_file.h"
#include "proto/spec_text.h"
#include "tune.h"

#include <math.h>
#include <stdlib.h>

static int check(struct qr_cli *cli, const struct qr_tune *job)
{
    if (!(job->bits >= 1 && job->bits <= 16))
        return qr_cli_fail_usage(cli, "--bits %g: must be 1 to 16", job->bits);
    if (job->threads > QR_EVAL_THREADS_MAX)
        return qr_cli_fail_usage(cli, "--threads %u: at most %u", job->threads,
                                 QR_EVAL_THREADS_MAX);
    if (job->page > QR_PAGE_TOKENS_MAX || job->window > QR_WINDOW_MAX ||
        job->sinks > QR_PAGE_TOKENS_MAX || job->outliers > QR_OUTLIERS_MAX)
        return qr_cli_fail_usage(cli,
                                 "--page-tokens, --window, --sinks or --outliers is too large");
    return QR_ARGS_GO;
}

static int parse(struct qr_cli *cli, struct qr_tune *job, int argc, char **argv)
{
    const struct qr_arg args[] = {
        {"bits", QR_ARG_REAL, &job->bits, "X",
         "most bits an element of keys and values together, scales and outliers with it (4)",
         NULL},
        {"out", QR_ARG_TEXT, &job->out, "FILE", "write the policy (quire append --policy)",
         NULL},
        {"key-codec", QR_ARG_LIST, &job->side[0].given, "CODEC",
         "try this one for keys; may be repeated (a list of all codecs)", NULL},
        {"value-codec", QR_ARG_LIST, &job->side[1].given, "CODEC", "the same for values", NULL},
        {"uniform", QR_ARG_FLAG, &job->uniform, NULL, "write one encoding for all layers",
         NULL},
        {"queries", QR_ARG_U32, &job->queries, "N",
         "attend with the queries of the last N tokens; 0: all (256)", NULL},
        {"served", QR_ARG_FLAG, &job->served, NULL,
         "a query sees in pages what a session had sealed, the rest in FP16 (all encoded)",
         NULL},
        {"threads", QR_ARG_U32, &job->threads, "N", "threads (processors)", NULL},
    };
    const struct qr_arg pages[] = {
        {"page-tokens", QR_ARG_U32, &job->page, "N", "power of two, 16 to 512 (128)", NULL},
        {"window", QR_ARG_U32, &job->window, "N", "newest tokens in FP16 (128)", NULL},
        {"sinks", QR_ARG_U32, &job->sinks, "N",
         "first tokens kept in FP16 (4); not counted in the budget: a long session does not "
         "see them",
         NULL},
        {"outliers", QR_ARG_U32, &job->outliers, "N",
         "most outlier tokens a page kept in FP16, 0 to 4 (0)", NULL},
    };
    const struct qr_synopsis synopsis = {
        .operands = "FILE",
        .about = "Find the encodings of keys and values that cost least attention output error "
                 "on FILE\n(k_layerNN, v_layerNN, q_layerNN) under a budget of bits.",
        .operands_min = 1,
        .operands_max = 1,
        .groups = {{NULL, args, sizeof(args) / sizeof(args[0])},
                   {"Pages", pages, sizeof(pages) / sizeof(pages[0])},
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

/** Candidates of a side, the least error first. */
static void print_side(const struct qr_tune *t, const struct qr_tune_side *side, FILE *out)
{
    bool shown[QR_TUNE_CANDIDATES_MAX] = {false};
    struct qr_table *table = qr_table_create("lrr");
    qr_table_row(table, "%s\tbits\toutput error, percent", side->key ? "keys" : "values");
    qr_table_rule(table);
    for (uint32_t n = 0; n < side->count; n++) {
        uint32_t least = side->count;
        for (uint32_t c = 0; c < side->count; c++)
            if (!shown[c] && (least == side->count || side->total[c] < side->total[least]))
                least = c;
        shown[least] = true;
        qr_table_row(table, "%s\t%.2f\t%.2f", t->variants[side->first + least].name,
                     side->bits[least], 100 * sqrt(side->total[least]));
    }
    qr_table_print(table, out);
    qr_table_destroy(&table);
    fputc('\n', out);
}

static const char *pick_name(const struct qr_tune *t, int side, uint32_t choice)
{
    return t->variants[t->side[side].first + choice].name;
}

/** The best pair at other budgets, too: what a bit more or less would bring. */
static void print_budgets(const struct qr_tune *t, FILE *out)
{
    static const double budgets[] = {2.25, 2.5, 2.75, 3, 3.25, 3.5, 4, 4.5, 5, 6, 8};
    struct qr_table *table = qr_table_create("rrrll");
    double before = -1;
    qr_table_row(table, "budget\tbits\terror, percent\tkeys\tvalues");
    qr_table_rule(table);
    for (size_t i = 0; i < sizeof(budgets) / sizeof(budgets[0]); i++) {
        uint32_t best[2];
        double error;
        if (!qr_tune_pair(t, budgets[i], best, &error) || error == before)
            continue;
        before = error;
        qr_table_row(table, "%.2f\t%.2f\t%.2f\t%s\t%s", budgets[i],
                     qr_tune_bits(t, best[0], best[1]), 100 * sqrt(error),
                     pick_name(t, 0, best[0]), pick_name(t, 1, best[1]));
    }
    qr_table_print(table, out);
    qr_table_destroy(&table);
}

static void print_text(const struct qr_tune *t, FILE *out)
{
    fprintf(out,
            "%u tokens, %u layers, queries of the last %u positions; root mean square over "
            "layers and heads of the relative\noutput error; bits without the %u sink "
            "rows\n\n",
            t->report.tokens, t->report.layer_count, t->report.queries, t->policy.sink_rows);
    for (int s = 0; s < 2; s++)
        print_side(t, &t->side[s], out);
    print_budgets(t, out);
    fprintf(out,
            "\nbest for all layers under %g bits: %.2f bits, error %.2f %%\n  keys   %s\n  "
            "values %s\n",
            t->bits, qr_tune_bits(t, t->best[0], t->best[1]), 100 * sqrt(t->best_error),
            pick_name(t, 0, t->best[0]), pick_name(t, 1, t->best[1]));
    fprintf(
        out,
        "with overrides for layers: %.2f bits, error %.2f %%; without a limit of %d of them: "
        "%.2f bits, %.2f %%\n",
        t->mixed_bits, 100 * sqrt(t->mixed_error), QR_OVERRIDES_MAX, t->layers_bits,
        100 * sqrt(t->layers_error));
    for (uint32_t l = 0; l < t->report.layer_count; l++)
        fprintf(out, "  layer %-3u %-40s %s\n", t->report.layers[l].number,
                pick_name(t, 0, t->side[0].picks[l]), pick_name(t, 1, t->side[1].picks[l]));
}

/** The file: the policy, and under "tuned" what it was chosen by. */
static cJSON *policy_json(const struct qr_tune *t)
{
    struct qr_policy policy;
    qr_tune_policy(t, &policy);
    cJSON *root = qr_policy_file_json(&policy);
    cJSON *tuned = cJSON_AddObjectToObject(root, "tuned");
    cJSON_AddStringToObject(tuned, "file", t->path);
    cJSON_AddNumberToObject(tuned, "budget", t->bits);
    const bool mixed = policy.override_count > 0;
    cJSON_AddNumberToObject(tuned, "bits",
                            mixed ? t->mixed_bits : qr_tune_bits(t, t->best[0], t->best[1]));
    cJSON_AddNumberToObject(tuned, "output_error",
                            sqrt(mixed ? t->mixed_error : t->best_error));
    cJSON_AddNumberToObject(tuned, "uniform_output_error", sqrt(t->best_error));
    return root;
}

static int show(struct qr_cli *cli, const struct qr_tune *t)
{
    struct qr_error e = {0};
    cJSON *root = policy_json(t);
    if (t->out != NULL) {
        const quire_status status = qr_policy_file_write(t->out, root, &e);
        if (status != QUIRE_OK) {
            cJSON_Delete(root);
            return qr_cli_fail(cli, status, "%s", e.text);
        }
    }
    if (cli->json)
        return qr_cli_print_json(cli, root);
    cJSON_Delete(root);
    print_text(t, cli->out);
    if (t->out != NULL)
        qr_cli_remark(cli, "written: %s", t->out);
    return QR_EXIT_OK;
}

static int run(struct qr_cli *cli, struct qr_tune *t)
{
    struct qr_error e = {0};
    qr_policy_default(&t->policy);
    t->policy.page_tokens = (uint16_t)t->page;
    t->policy.window = (uint16_t)t->window;
    t->policy.sink_rows = (uint16_t)t->sinks;
    t->policy.outlier_rows = (uint16_t)t->outliers;
    quire_status status = qr_policy_check(&t->policy, &e);
    if (status != QUIRE_OK)
        return qr_cli_fail_usage(cli, "%s", e.text);
    status = qr_kv_file_open(t->path, QR_KV_NEED_KV | QR_KV_NEED_QUERY, &t->kv, &e);
    if (status != QUIRE_OK)
        return qr_cli_fail(cli, status, "%s: %s", t->path, e.text);
    const int result = qr_tune_run(cli, t);
    return result == QR_EXIT_OK ? show(cli, t) : result;
}

int qr_cmd_tune(struct qr_cli *cli, int argc, char **argv)
{
    struct qr_tune *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return qr_cli_fail(cli, QUIRE_ENOMEM, "no memory");
    t->bits = 4;
    t->queries = 256;
    t->page = 128;
    t->window = 128;
    t->sinks = 4;
    t->side[0].key = true;
    qr_model_args_init(&t->model);
    int result = parse(cli, t, argc, argv);
    if (result == QR_ARGS_GO)
        result = run(cli, t);
    qr_tune_free(t);
    qr_kv_file_close(&t->kv);
    free(t);
    return result;
}
