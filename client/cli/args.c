/* SPDX-License-Identifier: Apache-2.0
 *
 * getopt_long driven by the tables of args.h.
 */
#include "args.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MAX_MS 86400000u

/** The tables of one command, in one row: option i of getopt is entry i here. */
struct flat {
    const struct qr_arg *args[QR_ARG_OPTIONS_MAX];
    struct option options[QR_ARG_OPTIONS_MAX + 1];
    int count;
};

static void flatten(struct flat *flat, const struct qr_arg *args, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (flat->count == QR_ARG_OPTIONS_MAX)
            abort(); /* a command's table is too long: programmer error */
        flat->options[flat->count] = (struct option){
            args[i].name, args[i].kind == QR_ARG_FLAG ? no_argument : required_argument, NULL,
            256 + flat->count};
        flat->args[flat->count++] = &args[i];
    }
}

static bool read_suffix(const char *text, uint64_t *factor)
{
    static const char *const names[] = {"", "Ki", "Mi", "Gi"};
    for (unsigned i = 0; i < 4; i++) {
        if (strcmp(text, names[i]) == 0) {
            *factor = (uint64_t)1 << (10 * i);
            return true;
        }
    }
    return false;
}

static bool read_u64(const char *text, uint64_t most, uint64_t *out)
{
    char *end;
    uint64_t factor, value;
    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno != 0 || !read_suffix(end, &factor) ||
        __builtin_mul_overflow(value, factor, &value) || value > most)
        return false;
    *out = value;
    return true;
}

static bool read_i64(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != 0)
        return false;
    *out = value;
    return true;
}

static bool read_real(const char *text, double *out)
{
    char *end;
    errno = 0;
    const double value = strtod(text, &end);
    if (errno != 0 || end == text || *end != 0 || !isfinite(value))
        return false;
    *out = value;
    return true;
}

static bool read_choice(const struct qr_choice *choices, const char *text, int *out)
{
    for (; choices->name != NULL; choices++) {
        if (strcmp(choices->name, text) == 0) {
            *out = choices->value;
            return true;
        }
    }
    return false;
}

static bool append_text(struct qr_arg_list *list, const char *text)
{
    if (list->count == QR_ARG_LIST_MAX)
        return false;
    list->items[list->count++] = text;
    return true;
}

/** Set the variable; NULL, or what would have been right. */
static const char *assign(const struct qr_arg *arg, const char *text)
{
    uint64_t whole;
    switch (arg->kind) {
    case QR_ARG_FLAG:
        *(bool *)arg->out = true;
        return NULL;
    case QR_ARG_TEXT:
        *(const char **)arg->out = text;
        return NULL;
    case QR_ARG_U32:
        if (!read_u64(text, UINT32_MAX, &whole))
            return "a whole number below 2^32";
        *(uint32_t *)arg->out = (uint32_t)whole;
        return NULL;
    case QR_ARG_U64:
        return read_u64(text, UINT64_MAX, arg->out)
                   ? NULL
                   : "a whole number below 2^64, which may end in Ki, Mi or Gi";
    case QR_ARG_I64:
        return read_i64(text, arg->out) ? NULL : "a whole number, which may be negative";
    case QR_ARG_REAL:
        return read_real(text, arg->out) ? NULL : "a finite number";
    case QR_ARG_CHOICE:
        return read_choice(arg->choices, text, arg->out) ? NULL : arg->value;
    case QR_ARG_LIST:
        return append_text(arg->out, text) ? NULL : "given at most 64 times";
    }
    return "another kind of value";
}

static void print_option(FILE *out, const struct qr_arg *arg)
{
    char left[64];
    snprintf(left, sizeof(left), "--%s%s%s", arg->name, arg->value ? " " : "",
             arg->value ? arg->value : "");
    fprintf(out, "  %-26s %s%s\n", left,
            strlen(left) > 26 ? "\n                             " : "", arg->help);
}

static void print_help(struct qr_cli *cli, const struct qr_synopsis *s,
                       const struct qr_arg *common, size_t common_count)
{
    fprintf(cli->out, "usage: quire %s [OPTION...]%s%s\n\n%s\n", cli->command,
            s->operands[0] ? " " : "", s->operands, s->about);
    for (size_t g = 0; g < QR_ARG_GROUPS_MAX; g++) {
        if (s->groups[g].count == 0)
            continue;
        fprintf(cli->out, "\n%s:\n", s->groups[g].title ? s->groups[g].title : "Options");
        for (size_t i = 0; i < s->groups[g].count; i++)
            print_option(cli->out, &s->groups[g].args[i]);
    }
    fprintf(cli->out, "\nOptions of every command:\n");
    for (size_t i = 0; i < common_count; i++)
        print_option(cli->out, &common[i]);
}

/** Consume the options; *stop gets the exit code on a mistake. */
static bool take_options(struct qr_cli *cli, struct flat *flat, int argc, char **argv,
                         int *stop)
{
    int picked;
    optind = 0; /* glibc: start over, also after another command line */
    opterr = 0;
    while ((picked = getopt_long(argc, argv, ":", flat->options, NULL)) != -1) {
        if (picked == ':') {
            *stop = qr_cli_fail_usage(cli, "option '%s' needs a value", argv[optind - 1]);
            return false;
        }
        if (picked == '?') {
            *stop =
                qr_cli_fail_usage(cli, "unknown or ambiguous option '%s'", argv[optind - 1]);
            return false;
        }
        const struct qr_arg *arg = flat->args[picked - 256];
        const char *right = assign(arg, optarg);
        if (right != NULL) {
            *stop = qr_cli_fail_usage(cli, "--%s '%s': must be %s", arg->name, optarg, right);
            return false;
        }
    }
    return true;
}

int qr_args_count(char **operands)
{
    int count = 0;
    while (operands[count] != NULL)
        count++;
    return count;
}

int qr_args_parse(struct qr_cli *cli, const struct qr_synopsis *synopsis, int argc, char **argv,
                  char ***operands_out)
{
    bool help = false;
    int stop = QR_ARGS_GO;
    const struct qr_arg common[] = {
        {"server", QR_ARG_TEXT, &cli->server, "TARGET",
         "unix:/path or host:port (default: $QUIRE_SERVER, see quire(1))", NULL},
        {"timeout", QR_ARG_U32, &cli->timeout_ms, "MS", "deadline of each call (30000)", NULL},
        {"json", QR_ARG_FLAG, &cli->json, NULL, "print one JSON object", NULL},
        {"quiet", QR_ARG_FLAG, &cli->quiet, NULL, "no progress and no remarks", NULL},
        {"help", QR_ARG_FLAG, &help, NULL, "print this", NULL},
    };
    struct flat flat = {0};
    for (size_t g = 0; g < QR_ARG_GROUPS_MAX; g++)
        flatten(&flat, synopsis->groups[g].args, synopsis->groups[g].count);
    flatten(&flat, common, sizeof(common) / sizeof(common[0]));

    if (!take_options(cli, &flat, argc, argv, &stop))
        return stop;
    if (help) {
        print_help(cli, synopsis, common, sizeof(common) / sizeof(common[0]));
        return QR_EXIT_OK;
    }
    const int count = argc - optind;
    if (count < synopsis->operands_min || count > synopsis->operands_max)
        return qr_cli_fail_usage(cli, "%d operands given, wanted: %s", count,
                                 synopsis->operands[0] ? synopsis->operands : "none");
    if (cli->timeout_ms == 0 || cli->timeout_ms > TIMEOUT_MAX_MS)
        return qr_cli_fail_usage(cli, "--timeout %u: must be 1 to %u ms", cli->timeout_ms,
                                 TIMEOUT_MAX_MS);
    *operands_out = argv + optind;
    return QR_ARGS_GO;
}
