/* SPDX-License-Identifier: Apache-2.0
 *
 * The error report as one HTML page that needs nothing else: a table of all encodings, and
 * for each a heat map of layer x KV head for every quantity, as inline SVG. Light and dark
 * follow the reader's system. See eval_report.h.
 */
#include "eval_report.h"

#include <math.h>

#define CELL 22
#define LABEL 34

static const char style[] =
    "<style>\n"
    ":root{color-scheme:light dark;--back:#fff;--text:#1d2433;--soft:#667085;--line:#d9dde5}\n"
    "@media(prefers-color-scheme:dark){:root{--back:#14171f;--text:#e6e9f0;--soft:#98a2b3;"
    "--line:#333a48}}\n"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;"
    "background:var(--back);color:var(--text)}\n"
    "h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.5rem}p{color:var(--soft)}\n"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}\n"
    "th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid var(--line);"
    "white-space:nowrap}\n"
    "th:first-child,td:first-child{text-align:left}th{color:var(--soft);font-weight:600}\n"
    "figure{display:inline-block;margin:.5rem 1.5rem .5rem 0;vertical-align:top}\n"
    "figcaption{color:var(--soft);font-size:.85rem}svg text{font:11px system-ui,sans-serif;"
    "fill:var(--soft)}\n</style>\n";

static void escape(const char *text, FILE *out)
{
    for (; *text != 0; text++) {
        if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '>')
            fputs("&gt;", out);
        else if (*text == '&')
            fputs("&amp;", out);
        else if (*text == '"')
            fputs("&quot;", out);
        else
            fputc(*text, out);
    }
}

/** A colour for 0 (pale) to 1 (dark red); both read well on light and dark. */
static void colour(double x, char text[16])
{
    static const double stops[4][3] = {
        {232, 240, 248}, {250, 204, 120}, {226, 98, 66}, {120, 14, 40}};
    const double at = fmin(fmax(x, 0), 1) * 3;
    const int i = at >= 3 ? 2 : (int)at;
    const double part = at - i;
    int c[3];
    for (int k = 0; k < 3; k++)
        c[k] = (int)lround(stops[i][k] + (stops[i + 1][k] - stops[i][k]) * part) & 255;
    snprintf(text, 16, "#%02x%02x%02x", (unsigned)c[0], (unsigned)c[1], (unsigned)c[2]);
}

static double frobenius(const struct qr_eval_report *r, uint32_t variant, uint32_t layer,
                        uint32_t head, enum qr_eval_quantity quantity)
{
    struct qr_eval_metrics m;
    qr_eval_report_mean(r, variant, layer, head, quantity, &m);
    return m.frobenius;
}

/** The largest of one quantity over all encodings: one scale for all its maps. */
static double scale_of(const struct qr_eval_report *r, enum qr_eval_quantity quantity)
{
    double most = 0;
    for (uint32_t v = 0; v < r->variant_count; v++)
        for (uint32_t l = 0; l < r->layer_count; l++)
            for (uint32_t h = 0; h < r->layers[l].kv_heads; h++)
                most = fmax(most, frobenius(r, v, l, h, quantity));
    return most > 0 ? most : 1;
}

static void print_map(const struct qr_eval_report *r, uint32_t variant,
                      enum qr_eval_quantity quantity, double scale, FILE *out)
{
    uint32_t heads = 0;
    for (uint32_t l = 0; l < r->layer_count; l++)
        heads = r->layers[l].kv_heads > heads ? r->layers[l].kv_heads : heads;
    const uint32_t width = LABEL + heads * CELL + 1, height = 18 + r->layer_count * CELL + 1;
    fprintf(out,
            "<figure><svg width=\"%u\" height=\"%u\" role=\"img\" aria-label=\"%s by layer and "
            "KV head\">\n",
            width, height, qr_eval_quantity_title(quantity));
    for (uint32_t h = 0; h < heads; h++)
        fprintf(out, "<text x=\"%u\" y=\"12\" text-anchor=\"middle\">%u</text>\n",
                LABEL + h * CELL + CELL / 2, h);
    for (uint32_t l = 0; l < r->layer_count; l++) {
        fprintf(out, "<text x=\"%d\" y=\"%u\" text-anchor=\"end\">%u</text>\n", LABEL - 6,
                18 + l * CELL + 15, r->layers[l].number);
        for (uint32_t h = 0; h < r->layers[l].kv_heads; h++) {
            char fill[16];
            const double x = frobenius(r, variant, l, h, quantity);
            colour(x / scale, fill);
            fprintf(out,
                    "<rect x=\"%u\" y=\"%u\" width=\"%d\" height=\"%d\" rx=\"3\" "
                    "fill=\"%s\"><title>layer %u, head %u: %.3g %%</title></rect>\n",
                    LABEL + h * CELL, 18 + l * CELL, CELL - 2, CELL - 2, fill,
                    r->layers[l].number, h, 100 * x);
        }
    }
    fprintf(out, "</svg><figcaption>%s (darkest: %.3g %%)</figcaption></figure>\n",
            qr_eval_quantity_title(quantity), 100 * scale);
}

static void print_row(const struct qr_eval_report *r, uint32_t variant, uint32_t layer,
                      FILE *out)
{
    for (int q = 0; q < QR_EVAL_QUANTITIES; q++) {
        struct qr_eval_metrics m;
        if (!qr_eval_applies(&r->variants[variant], (enum qr_eval_quantity)q)) {
            fputs("<td>-</td>", out);
            continue;
        }
        qr_eval_report_mean(r, variant, layer, QR_EVAL_ALL, (enum qr_eval_quantity)q, &m);
        fprintf(out,
                "<td title=\"mean |e/x| %.3g %%, cosine %.6f, largest |e| %.3g\">%.3g</td>",
                100 * m.mean_ratio, m.cosine, m.largest, 100 * m.frobenius);
    }
}

static void print_titles(const char *first, FILE *out)
{
    fprintf(out, "<div class=\"wide\"><table><tr><th>%s</th>", first);
    for (int q = 0; q < QR_EVAL_QUANTITIES; q++)
        fprintf(out, "<th>%s</th>", qr_eval_quantity_title((enum qr_eval_quantity)q));
    fputs("</tr>\n", out);
}

static void print_summary(const struct qr_eval_report *r, FILE *out)
{
    print_titles("encoding</th><th>bits K</th><th>bits V", out);
    for (uint32_t v = 0; v < r->variant_count; v++) {
        struct qr_eval_bits bits;
        qr_eval_report_bits(r, v, &bits);
        fputs("<tr><td>", out);
        escape(r->variants[v].name, out);
        fprintf(out, "</td><td>%.2f</td><td>%.2f</td>", bits.key, bits.value);
        print_row(r, v, QR_EVAL_ALL, out);
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n", out);
}

static void print_variant(const struct qr_eval_report *r, uint32_t variant,
                          const double scales[QR_EVAL_QUANTITIES], FILE *out)
{
    fputs("<h2>", out);
    escape(r->variants[variant].name, out);
    fputs("</h2>\n", out);
    for (int q = 0; q < QR_EVAL_QUANTITIES; q++)
        if (qr_eval_applies(&r->variants[variant], (enum qr_eval_quantity)q))
            print_map(r, variant, (enum qr_eval_quantity)q, scales[q], out);
    print_titles("layer", out);
    for (uint32_t l = 0; l < r->layer_count; l++) {
        fprintf(out, "<tr><td>%u</td>", r->layers[l].number);
        print_row(r, variant, l, out);
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n", out);
}

void qr_eval_print_html(const struct qr_eval_report *r, FILE *out)
{
    double scales[QR_EVAL_QUANTITIES];
    for (int q = 0; q < QR_EVAL_QUANTITIES; q++)
        scales[q] = scale_of(r, (enum qr_eval_quantity)q);
    fputs("<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width\">\n<title>quire eval: ",
          out);
    escape(r->path, out);
    fprintf(out, "</title>\n%s<h1>What encodings do to attention</h1>\n<p>", style);
    escape(r->path, out);
    fprintf(
        out,
        ": %u tokens, %u layers, queries of the last %u positions, causal entries. Relative "
        "Frobenius error in percent, mean over layers and KV heads; other metrics under the "
        "pointer.</p>\n",
        r->tokens, r->layer_count, r->queries);
    print_summary(r, out);
    for (uint32_t v = 0; v < r->variant_count; v++)
        print_variant(r, v, scales, out);
    fputs("</html>\n", out);
}
