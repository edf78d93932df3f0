/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits of a model and its fingerprint: SHA-256 of the bytes that
 * model_pack.c makes of it. Must not know policies,
 * pages or sessions.
 */
#include "model.h"

#include <math.h>
#include <string.h>

#include "sha256.h"
#include "utf8.h"

size_t qr_dtype_bytes(enum qr_dtype dtype)
{
    switch (dtype) {
    case QR_F16:
    case QR_BF16:
        return 2;
    case QR_F32:
        return 4;
    }
    return 0;
}

quire_status qr_name_check(const char *name, const char *what, struct qr_error *e)
{
    const size_t length = strnlen(name, QR_NAME_MAX + 1);
    if (length > QR_NAME_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "%s is longer than %d bytes", what, QR_NAME_MAX);

    const unsigned char *s = (const unsigned char *)name;
    for (size_t i = 0, n; i < length; i += n) {
        n = utf8_length(s[i]);
        if (n > length - i || !utf8_valid(s + i, n))
            return qr_error_set(e, QUIRE_EINVAL, "%s is not UTF-8 at byte %zu (0x%02x)", what,
                                i, s[i]);
        if (s[i] < 0x20 || s[i] == 0x7f)
            return qr_error_set(e, QUIRE_EINVAL,
                                "%s has a control character at byte %zu (0x%02x)", what, i,
                                s[i]);
    }
    return QUIRE_OK;
}

static bool dim_ok(uint32_t dim)
{
    return dim >= QR_DIM_MIN && dim <= QR_DIM_MAX && dim % 8 == 0;
}

static quire_status check_rope(const struct qr_rope *rope, uint32_t index, struct qr_error *e)
{
    if (rope->layout != QR_ROPE_HALF && rope->layout != QR_ROPE_INTERLEAVED)
        return qr_error_set(e, QUIRE_EINVAL, "ropes[%u].layout is %d: 1 (half) or 2 expected",
                            index, (int)rope->layout);
    if (rope->rotary_dim < 2 || rope->rotary_dim > QR_DIM_MAX || rope->rotary_dim % 2)
        return qr_error_set(e, QUIRE_EINVAL,
                            "ropes[%u].rotary_dim is %u: an even number in 2..%d expected",
                            index, rope->rotary_dim, QR_DIM_MAX);
    if (!isfinite(rope->attention_factor) || rope->attention_factor <= 0)
        return qr_error_set(e, QUIRE_EINVAL,
                            "ropes[%u].attention_factor is %g: a finite number > 0 expected",
                            index, (double)rope->attention_factor);
    for (uint32_t i = 0; i < rope->rotary_dim / 2; i++)
        if (!isfinite(rope->inv_freq[i]) || rope->inv_freq[i] < 0)
            return qr_error_set(e, QUIRE_EINVAL,
                                "ropes[%u].inv_freq[%u] is %g: a finite number >= 0 expected",
                                index, i, (double)rope->inv_freq[i]);
    return QUIRE_OK;
}

static quire_status check_layer_rope(const struct qr_model *model, uint32_t index,
                                     struct qr_error *e)
{
    const struct qr_layer *layer = &model->layers[index];
    if (layer->rope_stored > QR_ROPE_POST)
        return qr_error_set(e, QUIRE_EINVAL,
                            "layers[%u].rope_stored is %u: 0 (none), 1 (pre) or 2 (post) "
                            "expected",
                            index, layer->rope_stored);
    if (layer->rope_stored == QR_ROPE_NONE)
        return QUIRE_OK;
    if (layer->rope >= model->rope_count)
        return qr_error_set(e, QUIRE_EINVAL, "layers[%u].rope is %u: the model has %u ropes",
                            index, layer->rope, model->rope_count);
    if (model->ropes[layer->rope].rotary_dim > layer->key_dim)
        return qr_error_set(e, QUIRE_EINVAL,
                            "layers[%u]: rotary_dim %u is larger than key_dim %u", index,
                            model->ropes[layer->rope].rotary_dim, layer->key_dim);
    return QUIRE_OK;
}

static quire_status check_layer(const struct qr_model *model, uint32_t index,
                                struct qr_error *e)
{
    const struct qr_layer *layer = &model->layers[index];
    if (layer->kv_heads == 0)
        return QUIRE_OK;
    if (layer->kv_heads > QR_HEADS_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "layers[%u].kv_heads is %u: at most %d", index,
                            layer->kv_heads, QR_HEADS_MAX);
    if (layer->query_heads == 0 || layer->query_heads > QR_HEADS_MAX ||
        layer->query_heads % layer->kv_heads)
        return qr_error_set(e, QUIRE_EINVAL,
                            "layers[%u].query_heads is %u: a multiple of kv_heads %u in 1..%d "
                            "expected",
                            index, layer->query_heads, layer->kv_heads, QR_HEADS_MAX);
    if (!dim_ok(layer->key_dim) || !dim_ok(layer->value_dim))
        return qr_error_set(e, QUIRE_EINVAL,
                            "layers[%u]: key_dim %u, value_dim %u: multiples of 8 in %d..%d "
                            "expected",
                            index, layer->key_dim, layer->value_dim, QR_DIM_MIN, QR_DIM_MAX);
    return check_layer_rope(model, index, e);
}

static quire_status check_names(const struct qr_model *model, struct qr_error *e)
{
    if (!model->name[0])
        return qr_error_set(e, QUIRE_EINVAL, "model name is empty");

    quire_status status = qr_name_check(model->name, "model name", e);
    if (!status)
        status = qr_name_check(model->revision, "model revision", e);
    if (!status)
        status = qr_name_check(model->adapter, "model adapter", e);
    return status;
}

static quire_status check_model(const struct qr_model *model, struct qr_error *e)
{
    quire_status status = check_names(model, e);
    if (status)
        return status;
    if (model->layer_count == 0 || model->layer_count > QR_LAYERS_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "model has %u layers: 1..%d expected",
                            model->layer_count, QR_LAYERS_MAX);
    if (model->rope_count > QR_ROPES_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "model has %u ropes: at most %d",
                            model->rope_count, QR_ROPES_MAX);
    for (uint32_t i = 0; i < model->rope_count && !status; i++)
        status = check_rope(&model->ropes[i], i, e);

    uint32_t lanes = 0;
    for (uint32_t i = 0; i < model->layer_count && !status; i++) {
        status = check_layer(model, i, e);
        lanes += model->layers[i].kv_heads > 0;
    }
    if (!status && lanes == 0)
        return qr_error_set(e, QUIRE_EINVAL, "no layer of the model has KV heads");
    return status;
}

/* The fingerprint so far is that of the model without its calibration. */
static quire_status check_calibration(const struct qr_model *model, struct qr_error *e)
{
    const struct qr_calibration *c = &model->calibration;
    if (c->layers != model->layer_count)
        return qr_error_set(e, QUIRE_EMISMATCH, "calibration has %u layers: the model has %u",
                            c->layers, model->layer_count);
    if (memcmp(c->model, model->fingerprint, QR_HASH_BYTES) != 0)
        return qr_error_set(e, QUIRE_EMISMATCH,
                            "calibration is of model %02x%02x%02x%02x...: this one is "
                            "%02x%02x%02x%02x...",
                            c->model[0], c->model[1], c->model[2], c->model[3],
                            model->fingerprint[0], model->fingerprint[1], model->fingerprint[2],
                            model->fingerprint[3]);
    return QUIRE_OK;
}

quire_status qr_model_seal(struct qr_model *model, struct qr_error *e)
{
    const quire_status status = check_model(model, e);
    if (status)
        return status;

    uint8_t packed[QR_MODEL_PACKED_MAX];
    struct qr_sha256 sha;
    qr_sha256_init(&sha);
    const size_t own = qr_model_pack_plain(model, packed);
    qr_sha256_bytes(&sha, packed, own);
    qr_sha256_finish(&sha, model->fingerprint);
    if (!model->calibration.layers)
        return QUIRE_OK;
    const quire_status fits = check_calibration(model, e);
    if (fits)
        return fits;
    qr_sha256_init(&sha);
    qr_sha256_bytes(&sha, packed, qr_model_pack(model, packed));
    qr_sha256_finish(&sha, model->fingerprint);
    return QUIRE_OK;
}
