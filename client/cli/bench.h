/* SPDX-License-Identifier: Apache-2.0
 *
 * The long benchmark in steps. cmd_bench.c has the command line and the table, bench_run.c
 * the steps, bench_budget.c the memory that a session needs.
 */
#ifndef QR_BENCH_H
#define QR_BENCH_H

#include "cli.h"
#include "kv_file.h"
#include "kv_tile.h"
#include "policy_args.h"

struct qr_bench {
    /* asked for */
    const char *path, *session_name;
    uint64_t tokens, seed;
    uint32_t layers, query_heads, kv_heads, key_dim, value_dim;
    uint32_t block, fetch_block, repeats;
    bool keep, ignore_budget;
    struct qr_policy_args policy;
    struct qr_model_args model;
    /* run on */
    struct qr_kv_file kv;
    struct qr_kv_tile tile;
    quire_session *session;
    uint16_t *key, *value; /* [layers][max(block, fetch_block)][kv_heads][dim] */
    uint8_t *copy_from, *copy_to;
    float *query, *output, *lse; /* one query position of all layers */
    /* measured */
    struct quire_session_info info;
    uint64_t needed_bytes, budget_bytes, used_bytes; /* budget 0: the server does not tell */
    double bytes;                                    /* of the session in FP16 */
    double append_seconds, append_memcpy_seconds;
    double fetch_seconds, fetch_memcpy_seconds;
    double attend_seconds, open_seconds, ping_seconds, decode_seconds; /* medians */
    double key_error, value_error; /* relative Frobenius of three fetched blocks */
};

/** All steps. Gives an exit code; failures are reported. */
int qr_bench_run(struct qr_cli *cli, struct qr_bench *bench);
/** Bytes that the session will hold at most, pages and tails. 0: the geometry is refused,
 * *e says why. */
uint64_t qr_bench_needed(const struct qr_bench *bench, struct qr_error *e);
/** What the server allows and uses, into budget_bytes and used_bytes. */
quire_status qr_bench_budget(struct qr_cli *cli, struct qr_bench *bench);

#endif
