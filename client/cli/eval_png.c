/* SPDX-License-Identifier: Apache-2.0
 *
 * The error report drawn by gnuplot: a heat map of the attention output error by layer and KV
 * head for each encoding. gnuplot is looked for when it is wanted, and is no dependency.
 */
#include "eval_report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAP_WIDTH 330
#define COLUMNS 4u

/** A string in gnuplot's single quotes. */
static void quote(const char *text, FILE *out)
{
    fputc('\'', out);
    for (; *text != 0; text++)
        fputs(*text == '\'' ? "''" : (char[2]){*text, 0}, out);
    fputc('\'', out);
}

static double output_error(const struct qr_eval_report *r, uint32_t variant, uint32_t layer,
                           uint32_t head)
{
    struct qr_eval_metrics m;
    qr_eval_report_mean(r, variant, layer, head, QR_EVAL_BOTH_OUTPUT, &m);
    return 100 * m.frobenius;
}

static void write_data(const struct qr_eval_report *r, uint32_t variant, FILE *out)
{
    fprintf(out, "$map%u << EOD\n", variant);
    for (uint32_t l = 0; l < r->layer_count; l++)
        for (uint32_t h = 0; h < r->layers[l].kv_heads; h++)
            fprintf(out, "%u %u %.6g\n", h, l, output_error(r, variant, l, h));
    fputs("EOD\n", out);
}

static void write_script(const struct qr_eval_report *r, const char *png, FILE *out)
{
    const uint32_t columns = r->variant_count < COLUMNS ? r->variant_count : COLUMNS;
    const uint32_t rows = (r->variant_count + columns - 1) / columns;
    uint32_t heads = 1;
    double most = 1e-6;
    for (uint32_t l = 0; l < r->layer_count; l++)
        heads = r->layers[l].kv_heads > heads ? r->layers[l].kv_heads : heads;
    for (uint32_t v = 0; v < r->variant_count; v++) {
        write_data(r, v, out);
        for (uint32_t l = 0; l < r->layer_count; l++)
            for (uint32_t h = 0; h < r->layers[l].kv_heads; h++)
                most = fmax(most, output_error(r, v, l, h));
    }
    fprintf(out, "set terminal pngcairo size %u,%u font ',9' noenhanced\nset output ",
            MAP_WIDTH * columns, (120 + 18 * r->layer_count) * rows);
    quote(png, out);
    fprintf(out,
            "\nset multiplot layout %u,%u title 'attention output error, percent'\n"
            "set palette defined (0 '#e8f0f8', 1 '#facc78', 2 '#e26242', 3 '#780e28')\n"
            "set cbrange [0:%.6g]\nset xlabel 'KV head'\nset ylabel 'layer'\n"
            "set xtics 1\nset xrange [-0.5:%u.5]\nset yrange [] reverse\nunset key\n"
            "set ytics (",
            rows, columns, most, heads - 1);
    for (uint32_t l = 0; l < r->layer_count; l++)
        fprintf(out, "%s'%u' %u", l ? ", " : "", r->layers[l].number, l);
    fputs(")\n", out);
    for (uint32_t v = 0; v < r->variant_count; v++) {
        fputs("set title ", out);
        quote(r->variants[v].name, out);
        fprintf(out, "\nplot $map%u using 1:2:3 with image pixels\n", v);
    }
    fputs("unset multiplot\n", out);
}

static bool on_path(const char *program)
{
    const char *path = getenv("PATH");
    char file[4096];
    while (path != NULL && *path != 0) {
        const size_t length = strcspn(path, ":");
        snprintf(file, sizeof(file), "%.*s/%s", (int)length, path, program);
        if (access(file, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

quire_status qr_eval_draw(const struct qr_eval_report *report, const char *png,
                          struct qr_error *e)
{
    if (!on_path("gnuplot"))
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "gnuplot is not installed (Debian: gnuplot-nox with pngcairo); "
                            "--html draws without it");
    FILE *pipe = popen("gnuplot", "we"); /* NOLINT(cert-env33-c): a fixed word */
    if (pipe == NULL)
        return qr_error_set(e, QUIRE_EIO, "gnuplot: %s", strerror(errno));
    write_script(report, png, pipe);
    const int result = pclose(pipe);
    if (result == -1 || !WIFEXITED(result) || WEXITSTATUS(result) != 0)
        return qr_error_set(e, QUIRE_EIO, "gnuplot failed to draw %s", png);
    return QUIRE_OK;
}
