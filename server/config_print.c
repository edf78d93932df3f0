/* SPDX-License-Identifier: Apache-2.0
 *
 * Configuration for people: --print-config and --help. What it prints as YAML,
 * config_yaml.c reads back to the same values.
 */
#include "config.h"

#include <string.h>

static const char *type_text(enum qr_option_type type)
{
    static const char *const texts[] = {
        [QR_TYPE_SIZE] = "size",     [QR_TYPE_DURATION] = "duration",
        [QR_TYPE_COUNT] = "number",  [QR_TYPE_BOOL] = "true or false",
        [QR_TYPE_CHOICE] = "choice", [QR_TYPE_TEXT] = "text",
        [QR_TYPE_LIST] = "list"};

    return texts[type];
}

static void print_kind(const struct qr_option_row *row, FILE *out)
{
    char low[32], high[32];

    fputs(type_text(row->type), out);
    if (row->type <= QR_TYPE_COUNT) {
        qr_option_format(row->type, row->minimum, low, sizeof(low));
        qr_option_format(row->type, row->maximum, high, sizeof(high));
        fprintf(out, " %s .. %s", low, high);
    }
    fprintf(out, ", default %s", row->standard[0] ? row->standard : "none");
}

/* Single-quoted YAML: everything is literal, a quote is doubled. */
static void print_quoted(const char *text, FILE *out)
{
    fputc('\'', out);
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', out);
        fputc(*text, out);
    }
    fputc('\'', out);
}

static void print_list(const struct qr_config *config, enum qr_option option, FILE *out)
{
    char item[QR_OPTION_TEXT_MAX + 1];

    for (uint32_t i = 0; qr_config_item(config, option, i, item); i++) {
        fputs("  - ", out);
        print_quoted(item, out);
        fputc('\n', out);
    }
}

static void print_option(const struct qr_config *config, enum qr_option option, FILE *out)
{
    const struct qr_option_row *row = qr_option_row(option);
    const struct qr_option_value *value = &config->values[option];
    char text[32];

    fprintf(out, "# %s\n# ", row->prose);
    print_kind(row, out);
    fprintf(out, "\n%s: ", row->key);
    if (row->type <= QR_TYPE_BOOL) {
        qr_option_format(row->type, value->number, text, sizeof(text));
        fputs(text, out);
    } else if (row->type != QR_TYPE_LIST) {
        print_quoted(value->text, out);
    }
    fprintf(out, "  # %s\n", value->origin);
    if (row->type == QR_TYPE_LIST)
        print_list(config, option, out);
}

void qr_config_print(const struct qr_config *config, FILE *out)
{
    for (int i = 0; i < QR_OPTION_COUNT; i++) {
        print_option(config, (enum qr_option)i, out);
        if (i + 1 < QR_OPTION_COUNT)
            fputc('\n', out);
    }
}

void qr_config_help(FILE *out)
{
    fputs("usage: quired [--config FILE] [--KEY VALUE | --KEY=VALUE]...\n"
          "The server of Quire, a KV-cache store for LLM inference.\n\n"
          "  --config FILE    YAML file of the keys below (or QUIRE_CONFIG)\n"
          "  --check-config   check the configuration and exit\n"
          "  --print-config   print it with units, defaults and origins, and exit\n"
          "  --ready-fd N     write the chosen addresses to file descriptor N when serving\n"
          "  --version        print the version and exit\n"
          "  --help           print this and exit\n\n"
          "Keys, later wins: YAML file, environment QUIRE_<KEY>, flag --<key>\n",
          out);
    for (int i = 0; i < QR_OPTION_COUNT; i++) {
        const struct qr_option_row *row = qr_option_row((enum qr_option)i);
        fprintf(out, "  --%s: ", row->key);
        print_kind(row, out);
        fprintf(out, "\n      %s\n", row->prose);
    }
}
