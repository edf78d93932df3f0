/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys, values and queries of one token sequence in a safetensors file: tensors k_layerNN,
 * v_layerNN and q_layerNN of [tokens, heads, channels], and token_ids of [tokens]. Must not
 * know sessions or servers.
 */
#ifndef QR_KV_FILE_H
#define QR_KV_FILE_H

#include "client/quire.h"
#include "safetensors.h"

#define QR_KV_LAYERS_MAX 512

/** One layer of the file; key and value are both there or neither; query may be. */
struct qr_kv_layer {
    uint32_t number; /* NN of the names */
    const struct qr_safetensor *key, *value, *query;
};

struct qr_kv_file {
    struct qr_safetensors file;
    struct qr_kv_layer layers[QR_KV_LAYERS_MAX]; /* [count], ascending numbers */
    uint32_t count;
    uint64_t tokens;        /* of every tensor */
    enum quire_dtype dtype; /* of every key and value, or of every query when there are none */
    const uint32_t *token_ids; /* [tokens], NULL when the file has none */
    uint32_t *token_ids_owned; /* copy of misaligned or 64-bit ids */
};

enum qr_kv_need {
    QR_KV_NEED_KV = 1,   /* every layer must have keys and values */
    QR_KV_NEED_QUERY = 2 /* every layer must have queries */
};

/**
 * Open and check: names, equal token counts, one dtype of F16, BF16 and F32. need: bits of
 * qr_kv_need; layers without what is needed are an error when they have anything else.
 * Errors: those of qr_safetensors_open, EINVAL with the tensor that does not fit.
 */
quire_status qr_kv_file_open(const char *path, unsigned need, struct qr_kv_file *out,
                             struct qr_error *e);
void qr_kv_file_close(struct qr_kv_file *kv);

/** Bytes of a token of a tensor. */
size_t qr_kv_token_bytes(const struct qr_safetensor *tensor);
/** "k_layer07" into name[24]. */
void qr_kv_name(char name[24], char kind, uint32_t number);

/**
 * Which layer of a model a layer of the file is: a file of as many layers as the model has
 * KV layers gives them in ascending order, any other names them by number.
 */
uint32_t qr_kv_model_layer(const struct qr_kv_file *kv, uint32_t index, uint32_t model_layers);

#endif
