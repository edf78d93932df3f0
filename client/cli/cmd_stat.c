/* SPDX-License-Identifier: Apache-2.0
 *
 * quire stat: the server's counters and gauges, in groups.
 */
#include "args.h"
#include "commands.h"
#include "output.h"
#include "stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/** "server" of "server.calls"; names without a dot are the store's. */
static void group_of(char group[64], const char *name)
{
    const size_t dot = strcspn(name, ".");
    snprintf(group, 64, "%.*s", name[dot] == '.' ? (int)dot : 5,
             name[dot] == '.' ? name : "store");
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

/** One table a group, in the order in which groups first appear. */
static void print_groups(FILE *out, const struct quire_metric *metrics, size_t count)
{
    char group[64], other[64], text[QR_TEXT_MAX];
    struct qr_table *table = qr_table_create("lrll");
    for (size_t i = 0; i < count; i++) {
        bool first = true;
        group_of(group, metrics[i].name);
        for (size_t k = 0; k < i && first; k++) {
            group_of(other, metrics[k].name);
            first = strcmp(group, other) != 0;
        }
        if (!first)
            continue;
        qr_table_row(table, "%s", group);
        for (size_t k = i; k < count; k++) {
            group_of(other, metrics[k].name);
            if (strcmp(group, other) != 0)
                continue;
            value_text(text, &metrics[k]);
            text[strcspn(text, " ")] = '\t'; /* the unit has its own column */
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
