/* SPDX-License-Identifier: Apache-2.0
 *
 * quire stat: the server's counters and gauges, grouped by the first word of their names.
 */
#include "args.h"
#include "commands.h"
#include "output.h"
#include "stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t group_length(const char *name)
{
    const size_t dot = strcspn(name, ".");
    return name[dot] == '.' ? dot : strcspn(name, "_");
}

static bool same_group(const char *a, const char *b)
{
    const size_t length = group_length(a);
    return length == group_length(b) && strncmp(a, b, length) == 0;
}

static void value_text(char text[QR_TEXT_MAX], const struct quire_metric *m)
{
    if (strcmp(m->unit, "bytes") == 0)
        qr_text_bytes(text, m->value);
    else if (m->value == floor(m->value) && fabs(m->value) < 1e15)
        snprintf(text, QR_TEXT_MAX, "%.0f %s", m->value, m->unit);
    else
        snprintf(text, QR_TEXT_MAX, "%.6g %s", m->value, m->unit);
}

static void print_groups(FILE *out, const struct quire_metric *metrics, size_t count)
{
    char text[QR_TEXT_MAX];
    struct qr_table *table = qr_table_create("lrl");
    for (size_t i = 0; i < count; i++) {
        bool first = true;
        for (size_t k = 0; k < i; k++)
            first = first && !same_group(metrics[k].name, metrics[i].name);
        if (!first)
            continue;
        qr_table_row(table, "%s%.*s", i > 0 ? "\n" : "", (int)group_length(metrics[i].name),
                     metrics[i].name);
        for (size_t k = i; k < count; k++) {
            if (!same_group(metrics[k].name, metrics[i].name))
                continue;
            value_text(text, &metrics[k]);
            qr_table_row(table, "  %s\t%s\t%s", metrics[k].name, text, metrics[k].help);
        }
    }
    qr_table_print(table, out);
    qr_table_destroy(&table);
}

static cJSON *metrics_json(const struct quire_metric *metrics, size_t count)
{
    cJSON *root = cJSON_CreateObject();
    for (size_t i = 0; i < count; i++) {
        cJSON *metric = cJSON_AddObjectToObject(root, metrics[i].name);
        cJSON_AddNumberToObject(metric, "value", metrics[i].value);
        cJSON_AddStringToObject(metric, "unit", metrics[i].unit);
        cJSON_AddStringToObject(metric, "help", metrics[i].help);
    }
    return root;
}

int qr_cmd_stat(struct qr_cli *cli, int argc, char **argv)
{
    static const struct qr_synopsis synopsis = {
        .operands = "", .about = "Show the server's counters and gauges."};
    struct quire_metric *metrics;
    size_t count;
    char **operands;
    int stop = qr_args_parse(cli, &synopsis, argc, argv, &operands);
    if (stop != QR_ARGS_GO)
        return stop;
    stop = qr_cli_connect(cli);
    if (stop != QR_EXIT_OK)
        return stop;
    const quire_status status = qr_stats_get(cli->client, &metrics, &count);
    if (status != QUIRE_OK)
        return qr_cli_fail_call(cli, status, "stat");
    if (cli->json)
        stop = qr_cli_print_json(cli, metrics_json(metrics, count));
    else
        print_groups(cli->out, metrics, count);
    free(metrics);
    return stop;
}
