/* SPDX-License-Identifier: Apache-2.0
 *
 * A whole file judged: run it, ask the result for figures, print it. Must not know command
 * lines.
 */
#ifndef QR_EVAL_REPORT_H
#define QR_EVAL_REPORT_H

#include "cli.h"
#include "eval_layer.h"
#include "kv_file.h"
#include "model_file.h"

/** What the layers of a file are judged with. */
struct qr_eval_options {
    uint32_t queries; /* last tokens whose queries attend; 0: all */
    uint32_t threads; /* 0: as many as there are processors */
};

struct qr_eval_layer_result {
    uint32_t number, kv_heads;
    uint32_t model_layer;        /* what policies call it */
    struct qr_eval_cell *cells;  /* [variants][kv_heads] */
    struct qr_eval_bytes *bytes; /* [variants] */
};

struct qr_eval_report {
    const char *path;
    uint32_t tokens,
        queries; /* judged; of the file's tokens the last part of a page is left out */
    uint64_t file_tokens;
    uint32_t layer_count, variant_count;
    const struct qr_eval_variant *variants; /* borrowed */
    struct qr_eval_layer_result *layers;    /* [layer_count] */
    double seconds;
};

/**
 * Judge every layer of a file that has keys, values and queries. progress: NULL, or where a bar
 * is drawn. *out: release with qr_eval_report_free, also after a failure. Errors: those of
 * qr_eval_layer; EINVAL (fewer tokens than a page, heads that do not divide, keys of another
 * dim than queries); EVALUE (NaN or infinity: layer, token, head, channel).
 */
quire_status qr_eval_run(const struct qr_kv_file *kv, const struct qr_model_file *model,
                         const struct qr_eval_options *options,
                         const struct qr_eval_variant *variants, uint32_t count, FILE *progress,
                         struct qr_eval_report *out, struct qr_error *e);
void qr_eval_report_free(struct qr_eval_report *report);

#define QR_EVAL_ALL UINT32_MAX

/** The figures of one quantity: of one layer (its index in the file) and KV head, or of
 * QR_EVAL_ALL layers or heads: the mean of theirs, each head counting once (of `largest`: the
 * largest). */
void qr_eval_report_mean(const struct qr_eval_report *report, uint32_t variant, uint32_t layer,
                         uint32_t head, enum qr_eval_quantity quantity,
                         struct qr_eval_metrics *out);
/** The same over all entries of all layers and heads as if they were one tensor. */
void qr_eval_report_pooled(const struct qr_eval_report *report, uint32_t variant,
                           enum qr_eval_quantity quantity, struct qr_eval_metrics *out);

/** Bits an element of a variant. */
struct qr_eval_bits {
    double key, value, both; /* codes, scales and raw rows */
    double page;             /* of both: whole pages, with headers and digests */
};
void qr_eval_report_bits(const struct qr_eval_report *report, uint32_t variant,
                         struct qr_eval_bits *out);

/** Short names: "stored K", and "key_stored" for JSON. */
const char *qr_eval_quantity_title(enum qr_eval_quantity quantity);
const char *qr_eval_quantity_key(enum qr_eval_quantity quantity);
/** Whether a variant changes what the quantity is of. */
bool qr_eval_applies(const struct qr_eval_variant *variant, enum qr_eval_quantity quantity);

/** Tables: all metrics in total, then by layer, with `heads` by KV head, too. */
void qr_eval_print_text(const struct qr_eval_report *report, bool heads, FILE *out);
/** One table with the rows of `quire eval --axes`. */
void qr_eval_print_axes(const struct qr_eval_report *report, FILE *out);
/** Everything. NULL: no memory. */
cJSON *qr_eval_json(const struct qr_eval_report *report);
/** A page that needs nothing else: tables, and heat maps of layer x KV head. */
void qr_eval_print_html(const struct qr_eval_report *report, FILE *out);
/** Have gnuplot draw the file `png`. Errors: EUNSUPPORTED (gnuplot is not there), EIO. */
quire_status qr_eval_draw(const struct qr_eval_report *report, const char *png,
                          struct qr_error *e);

#endif
