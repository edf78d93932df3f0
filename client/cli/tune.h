/* SPDX-License-Identifier: Apache-2.0
 *
 * The search of `quire tune`: what was asked, what was tried, what was found. cmd_tune.c has
 * the command line and the tables, tune_run.c the steps. Must not know servers.
 */
#ifndef QR_TUNE_H
#define QR_TUNE_H

#include "args.h"
#include "eval_report.h"
#include "policy_args.h"

#define QR_TUNE_CANDIDATES_MAX 64
#define QR_TUNE_USEFUL_MAX 12 /* of them, for policies with overrides */

/** Encodings of one of keys and values; variants [first, first + count) judge them alone. */
struct qr_tune_side {
    bool key;
    struct qr_arg_list given;
    uint32_t first, count;
    struct qr_codec_spec specs[QR_TUNE_CANDIDATES_MAX];
    double bits[QR_TUNE_CANDIDATES_MAX];
    double *errors; /* [layers][count]: mean over heads of the squared relative error */
    double total[QR_TUNE_CANDIDATES_MAX]; /* mean over layers */
    double elements;                      /* of the file, all layers */
    uint32_t *picks;                      /* [layers]: of the policy with overrides */
    uint32_t base;                        /* the choice of layers that no override names */
};

struct qr_tune {
    const char *path, *out;
    double bits;
    bool served, uniform;
    uint32_t queries, threads, page, window, sinks, outliers;
    struct qr_model_args model;
    struct qr_kv_file kv;
    struct qr_policy policy;
    struct qr_tune_side side[2]; /* keys, values */
    struct qr_eval_variant variants[2 * QR_TUNE_CANDIDATES_MAX];
    struct qr_eval_report report;
    uint32_t best[2];
    double best_error, layers_error, layers_bits;
    double mixed_error, mixed_bits; /* of the policy with overrides */
};

/** List the candidates, judge each alone on the open file, search. Gives an exit code; failures
 * are reported. A budget that nothing meets is a failure. */
int qr_tune_run(struct qr_cli *cli, struct qr_tune *tune);
/** Bits an element of a pair of candidates, sinks not counted. */
double qr_tune_bits(const struct qr_tune *tune, uint32_t key, uint32_t value);
/** The best pair for all layers under a budget: error of both, squared, the mean of layers.
 * False: none is cheap enough. */
bool qr_tune_pair(const struct qr_tune *tune, double budget, uint32_t best[2], double *error);
/** The best policy with at most QR_OVERRIDES_MAX overrides: two encodings for keys and two for
 * values, each layer with one of them; into side[].picks, side[].base, mixed_*. False: no
 * memory. A run of layers that the file skips goes with its neighbours. */
bool qr_tune_mix(struct qr_tune *tune);
/** What was found as a policy: with overrides where they err less, unless `uniform`. */
void qr_tune_policy(const struct qr_tune *tune, struct qr_policy *out);
/** Release what qr_tune_run made. */
void qr_tune_free(struct qr_tune *tune);

#endif
