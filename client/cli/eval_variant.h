/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodings to be judged, as people write them, and the fixed lists of them. Must not know how
 * they are judged.
 */
#ifndef QR_EVAL_VARIANT_H
#define QR_EVAL_VARIANT_H

#include "eval_layer.h"

#define QR_EVAL_VARIANTS_MAX 64
#define QR_EVAL_SWEEP_MAX 10 /* of one encoding */

/**
 * Read CODEC[/CODEC][@SETTING[,SETTING...]]: the codec of keys and that of values (one: both),
 * each as storage/codec/README.md has it ("chan:bits=2,group=32,axis=token"), then settings
 * that differ from *base: sinks=N, outliers=N, window=N, page=N, post (keys are encoded after
 * RoPE), served. The text is the name. Errors: EINVAL, EUNSUPPORTED, with the word.
 */
quire_status qr_eval_variant_parse(const char *text, const struct qr_eval_variant *base,
                                   struct qr_eval_variant *out, struct qr_error *e);

/** The ablation of KIVI (arXiv 2402.02750, table 2): keys and values, each alone, per channel
 * and per token, with and without raw sinks, keys before and after RoPE. base: page_tokens;
 * bits and group: of chan. Returns how many of out[QR_EVAL_VARIANTS_MAX] were filled. */
uint32_t qr_eval_variants_axes(const struct qr_eval_variant *base, uint32_t bits,
                               uint32_t group, bool before_rope, struct qr_eval_variant *out);

/** One setting of `base` changed at a time: how much a query sees in FP16 (nothing; as served
 * with a window of 0, 32, 128), sink rows 0, 1, 4, outlier rows 0, 1, 4. The same return. */
uint32_t qr_eval_variants_sweep(const struct qr_eval_variant *base,
                                struct qr_eval_variant *out);

#endif
