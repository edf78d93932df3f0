/* SPDX-License-Identifier: Apache-2.0
 *
 * A model as the bytes that its fingerprint is the SHA-256 of (README.md lists
 * them), and back. Must not know what the numbers mean.
 */
#include <string.h>

#include "model.h"
#include "sha256.h"

#define MAGIC "quire.model.v1"
#define MAGIC_BYTES 14u

/* ---- writing ------------------------------------------------------------------------------
 */

static uint8_t *put(uint8_t *at, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        *at++ = (uint8_t)(v >> (8 * i));
    return at;
}

static uint8_t *put_f32(uint8_t *at, float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof(bits));
    return put(at, bits, 4);
}

static uint8_t *put_name(uint8_t *at, const char *name)
{
    const size_t length = strlen(name);

    at = put(at, length, 2);
    memcpy(at, name, length);
    return at + length;
}

/* What a layer does not use is zero, so that equal caches have equal fingerprints. */
static uint8_t *put_layer(uint8_t *at, const struct qr_layer *layer)
{
    static const struct qr_layer no_cache;

    if (layer->kv_heads == 0)
        layer = &no_cache;
    at = put(at, layer->query_heads, 2);
    at = put(at, layer->kv_heads, 2);
    at = put(at, layer->key_dim, 2);
    at = put(at, layer->value_dim, 2);
    at = put(at, layer->rope_stored == QR_ROPE_NONE ? 0 : layer->rope, 1);
    at = put(at, layer->rope_stored, 1);
    return put(at, layer->sliding_window, 4);
}

static uint8_t *put_rope(uint8_t *at, const struct qr_rope *rope)
{
    at = put(at, (uint8_t)rope->layout, 1);
    at = put(at, rope->rotary_dim, 4);
    at = put_f32(at, rope->attention_factor);
    for (uint32_t i = 0; i < rope->rotary_dim / 2; i++)
        at = put_f32(at, rope->inv_freq[i]);
    return at;
}

size_t qr_model_pack_plain(const struct qr_model *model, uint8_t out[QR_MODEL_PACKED_MAX])
{
    uint8_t *at = out;

    memcpy(at, MAGIC, MAGIC_BYTES);
    at = put_name(at + MAGIC_BYTES, model->name);
    at = put_name(at, model->revision);
    at = put_name(at, model->adapter);
    at = put(at, model->layer_count, 4);
    at = put(at, model->rope_count, 4);
    for (uint32_t i = 0; i < model->layer_count; i++)
        at = put_layer(at, &model->layers[i]);
    for (uint32_t i = 0; i < model->rope_count; i++)
        at = put_rope(at, &model->ropes[i]);
    return (size_t)(at - out);
}

size_t qr_model_pack(const struct qr_model *model, uint8_t out[QR_MODEL_PACKED_MAX])
{
    const size_t plain = qr_model_pack_plain(model, out);

    return model->calibration.layers
               ? plain + qr_calibration_write(&model->calibration, out + plain)
               : plain;
}

/* ---- reading ------------------------------------------------------------------------------
 */

/* Bytes left; past their end everything reads as zero and `cut` is set. */
struct input {
    const uint8_t *at;
    size_t left;
    bool cut;
};

static uint64_t get(struct input *in, size_t n)
{
    uint64_t v = 0;

    if (n > in->left) {
        in->cut = true;
        return 0;
    }
    for (size_t i = 0; i < n; i++)
        v |= (uint64_t)in->at[i] << (8 * i);
    in->at += n;
    in->left -= n;
    return v;
}

static float get_f32(struct input *in)
{
    const uint32_t bits = (uint32_t)get(in, 4);
    float v;

    memcpy(&v, &bits, sizeof(v));
    return v;
}

/* A NUL inside would end it early, and it would not pack to the same bytes again. */
static void get_name(struct input *in, char out[QR_NAME_MAX + 1])
{
    const size_t length = (size_t)get(in, 2);

    if (length > QR_NAME_MAX || length > in->left || memchr(in->at, 0, length)) {
        in->cut = true;
        return;
    }
    memcpy(out, in->at, length);
    in->at += length;
    in->left -= length;
}

static void get_layer(struct input *in, struct qr_layer *out)
{
    out->query_heads = (uint16_t)get(in, 2);
    out->kv_heads = (uint16_t)get(in, 2);
    out->key_dim = (uint16_t)get(in, 2);
    out->value_dim = (uint16_t)get(in, 2);
    out->rope = (uint8_t)get(in, 1);
    out->rope_stored = (uint8_t)get(in, 1);
    out->sliding_window = (uint32_t)get(in, 4);
}

static void get_rope(struct input *in, struct qr_rope *out)
{
    out->layout = (enum qr_rope_layout)get(in, 1);
    out->rotary_dim = (uint32_t)get(in, 4);
    out->attention_factor = get_f32(in);
    if (out->rotary_dim > QR_DIM_MAX) {
        in->cut = true;
        return;
    }
    for (uint32_t i = 0; i < out->rotary_dim / 2; i++)
        out->inv_freq[i] = get_f32(in);
}

quire_status qr_model_unpack(const void *bytes, size_t n, struct qr_model *out,
                             struct qr_error *e)
{
    struct input in = {.at = bytes, .left = n};

    memset(out, 0, sizeof(*out));
    if (n < MAGIC_BYTES || memcmp(bytes, MAGIC, MAGIC_BYTES) != 0)
        return qr_error_set(e, QUIRE_ECORRUPT, "the model does not begin with \"%s\"", MAGIC);
    in.at += MAGIC_BYTES;
    in.left -= MAGIC_BYTES;
    get_name(&in, out->name);
    get_name(&in, out->revision);
    get_name(&in, out->adapter);
    out->layer_count = (uint32_t)get(&in, 4);
    out->rope_count = (uint32_t)get(&in, 4);
    if (out->layer_count > QR_LAYERS_MAX || out->rope_count > QR_ROPES_MAX)
        return qr_error_set(e, QUIRE_ECORRUPT,
                            "the model has %u layers and %u RoPE tables: at most %d and %d",
                            out->layer_count, out->rope_count, QR_LAYERS_MAX, QR_ROPES_MAX);
    for (uint32_t i = 0; i < out->layer_count; i++)
        get_layer(&in, &out->layers[i]);
    for (uint32_t i = 0; i < out->rope_count; i++)
        get_rope(&in, &out->ropes[i]);
    if (in.cut)
        return qr_error_set(e, QUIRE_ECORRUPT, "the model's %zu bytes end before it does", n);
    if (in.left > 0) { /* what follows is its calibration */
        const quire_status status = qr_calibration_read(in.at, in.left, &out->calibration, e);
        if (status)
            return status;
    }
    return qr_model_seal(out, e);
}
