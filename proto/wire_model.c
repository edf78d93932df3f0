/* SPDX-License-Identifier: Apache-2.0
 *
 * Model, Policy and CodecSpec between wire messages and plain structs. What a
 * value may be is said by qr_model_seal and qr_policy_check; here only what
 * does not fit the structs is refused.
 */
#include "wire.h"

#include <stdio.h>
#include <string.h>

static quire_status take_name(const char *from, const char *what, char to[QR_NAME_MAX + 1],
                              struct qr_error *e)
{
    const size_t length = strlen(from);
    if (length > QR_NAME_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "Model.%s has %zu bytes: at most %d expected",
                            what, length, QR_NAME_MAX);
    memcpy(to, from, length + 1);
    return QUIRE_OK;
}

static quire_status take_rope(const Quire__V1__Rope *from, size_t index, struct qr_rope *to,
                              struct qr_error *e)
{
    if (from->rotary_dim > QR_DIM_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "Model.ropes[%zu].rotary_dim is %u: at most %d",
                            index, from->rotary_dim, QR_DIM_MAX);
    if (from->n_inv_freq != from->rotary_dim / 2)
        return qr_error_set(e, QUIRE_EINVAL,
                            "Model.ropes[%zu].inv_freq has %zu entries: rotary_dim/2 = %u "
                            "expected",
                            index, from->n_inv_freq, from->rotary_dim / 2);
    to->layout = (enum qr_rope_layout)from->layout;
    to->rotary_dim = from->rotary_dim;
    to->attention_factor = from->attention_factor;
    if (from->n_inv_freq > 0)
        memcpy(to->inv_freq, from->inv_freq, from->n_inv_freq * sizeof(to->inv_freq[0]));
    return QUIRE_OK;
}

/* The struct's fields are narrower than the wire's. */
static quire_status check_widths(const Quire__V1__LayerGeometry *from, size_t index,
                                 struct qr_error *e)
{
    const struct {
        const char *name;
        uint32_t value, most;
    } fields[] = {
        {"query_heads", from->query_heads, UINT16_MAX},
        {"kv_heads", from->kv_heads, UINT16_MAX},
        {"key_dim", from->key_dim, UINT16_MAX},
        {"value_dim", from->value_dim, UINT16_MAX},
        {"rope", from->rope, UINT8_MAX},
        {"rope_stored", from->rope_stored, UINT8_MAX},
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (fields[i].value > fields[i].most)
            return qr_error_set(e, QUIRE_EINVAL, "Model.layers[%zu].%s is %u: at most %u",
                                index, fields[i].name, fields[i].value, fields[i].most);
    return QUIRE_OK;
}

static quire_status take_layers(const Quire__V1__LayerGeometry *from, size_t index,
                                struct qr_model *to, struct qr_error *e)
{
    const quire_status status = check_widths(from, index, e);
    if (status)
        return status;
    if (from->count == 0 || from->count > QR_LAYERS_MAX - to->layer_count)
        return qr_error_set(e, QUIRE_EINVAL,
                            "Model.layers[%zu].count is %u after %u layers: at least 1, and at "
                            "most %d layers in all, expected",
                            index, from->count, to->layer_count, QR_LAYERS_MAX);
    const struct qr_layer layer = {
        .query_heads = (uint16_t)from->query_heads,
        .kv_heads = (uint16_t)from->kv_heads,
        .key_dim = (uint16_t)from->key_dim,
        .value_dim = (uint16_t)from->value_dim,
        .rope = (uint8_t)from->rope,
        .rope_stored = (uint8_t)from->rope_stored,
        .sliding_window = from->sliding_window,
    };
    for (uint32_t i = 0; i < from->count; i++)
        to->layers[to->layer_count++] = layer;
    return QUIRE_OK;
}

quire_status qr_wire_model_from(const Quire__V1__Model *message, struct qr_model *out,
                                struct qr_error *e)
{
    if (!message)
        return qr_error_set(e, QUIRE_EINVAL, "Model is missing");
    if (message->n_ropes > QR_ROPES_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "Model.ropes has %zu entries: at most %d",
                            message->n_ropes, QR_ROPES_MAX);

    memset(out, 0, sizeof(*out));
    quire_status status = take_name(message->name, "name", out->name, e);
    if (!status)
        status = take_name(message->revision, "revision", out->revision, e);
    if (!status)
        status = take_name(message->adapter, "adapter", out->adapter, e);
    for (size_t i = 0; i < message->n_ropes && !status; i++)
        status = take_rope(message->ropes[i], i, &out->ropes[i], e);
    out->rope_count = (uint32_t)message->n_ropes;
    if (message->calibration.len > 0 && !status)
        status = qr_calibration_read(message->calibration.data, message->calibration.len,
                                     &out->calibration, e);
    for (size_t i = 0; i < message->n_layers && !status; i++)
        status = take_layers(message->layers[i], i, out, e);
    return status ? status : qr_model_seal(out, e);
}

static bool same_layer(const struct qr_layer *a, const struct qr_layer *b)
{
    return a->query_heads == b->query_heads && a->kv_heads == b->kv_heads &&
           a->key_dim == b->key_dim && a->value_dim == b->value_dim && a->rope == b->rope &&
           a->rope_stored == b->rope_stored && a->sliding_window == b->sliding_window;
}

static void put_layer(const struct qr_layer *layer, Quire__V1__LayerGeometry *out)
{
    quire__v1__layer_geometry__init(out);
    out->count = 1;
    out->query_heads = layer->query_heads;
    out->kv_heads = layer->kv_heads;
    out->key_dim = layer->key_dim;
    out->value_dim = layer->value_dim;
    out->rope = layer->rope;
    out->rope_stored = (Quire__V1__RopeStored)layer->rope_stored;
    out->sliding_window = layer->sliding_window;
}

/* protobuf-c has no const; packing only reads. */
#define BORROWED(type, pointer) ((type *)(uintptr_t)(pointer))

static void put_rope(const struct qr_rope *rope, Quire__V1__Rope *out)
{
    quire__v1__rope__init(out);
    out->layout = (Quire__V1__RopeLayout)rope->layout;
    out->rotary_dim = rope->rotary_dim;
    out->attention_factor = rope->attention_factor;
    out->n_inv_freq = rope->rotary_dim / 2;
    out->inv_freq = BORROWED(float, rope->inv_freq);
}

void qr_wire_model_to(const struct qr_model *model, struct qr_wire_model *out)
{
    Quire__V1__Model *message = &out->message;
    quire__v1__model__init(message);
    message->name = BORROWED(char, model->name);
    message->revision = BORROWED(char, model->revision);
    message->adapter = BORROWED(char, model->adapter);
    message->layers = out->layer_pointers;
    for (uint32_t i = 0; i < model->layer_count; i++) {
        if (i > 0 && same_layer(&model->layers[i], &model->layers[i - 1])) {
            out->layers[message->n_layers - 1].count++;
            continue;
        }
        out->layer_pointers[message->n_layers] = &out->layers[message->n_layers];
        put_layer(&model->layers[i], &out->layers[message->n_layers++]);
    }
    message->ropes = out->rope_pointers;
    message->n_ropes = model->rope_count;
    for (uint32_t i = 0; i < model->rope_count; i++) {
        out->rope_pointers[i] = &out->ropes[i];
        put_rope(&model->ropes[i], &out->ropes[i]);
    }
    if (model->calibration.layers) {
        message->calibration.data = out->calibration;
        message->calibration.len = qr_calibration_write(&model->calibration, out->calibration);
    }
}

static quire_status narrow(uint32_t value, const char *field, uint32_t most, uint16_t *out,
                           struct qr_error *e)
{
    if (value > most)
        return qr_error_set(e, QUIRE_EINVAL, "Policy.%s is %u: at most %u", field, value, most);
    *out = (uint16_t)value;
    return QUIRE_OK;
}

static quire_status take_spec(const Quire__V1__CodecSpec *from, const char *tensor,
                              struct qr_codec_spec *to, struct qr_error *e)
{
    if (!from)
        return qr_error_set(e, QUIRE_EINVAL, "Policy.%s is missing", tensor);
    if ((uint32_t)from->codec > UINT16_MAX || from->bits > UINT8_MAX ||
        (uint32_t)from->axis > UINT8_MAX || from->group > UINT16_MAX ||
        from->packing > UINT16_MAX)
        return qr_error_set(
            e, QUIRE_EINVAL,
            "Policy.%s: codec %u, bits %u, axis %u, group %u, packing %u: one of "
            "them is far out of range",
            tensor, (uint32_t)from->codec, from->bits, (uint32_t)from->axis, from->group,
            from->packing);
    *to = (struct qr_codec_spec){
        .codec = (uint16_t)from->codec,
        .bits = (uint8_t)from->bits,
        .axis = (uint8_t)from->axis,
        .group = (uint16_t)from->group,
        .packing = (uint16_t)from->packing,
        .param = {[QR_PARAM_FLAGS] = from->flags, [QR_PARAM_NUMBER] = from->number},
    };
    return QUIRE_OK;
}

static quire_status take_override(const Quire__V1__Override *from, size_t index,
                                  struct qr_override *to, struct qr_error *e)
{
    char name[32];
    snprintf(name, sizeof(name), "overrides[%zu]", index);
    quire_status status =
        narrow(from->first_layer, "overrides.first_layer", UINT16_MAX, &to->first_layer, e);
    if (!status)
        status =
            narrow(from->last_layer, "overrides.last_layer", UINT16_MAX, &to->last_layer, e);
    if (!status)
        status = narrow(from->tensors, "overrides.tensors", UINT16_MAX, &to->tensors, e);
    return status ? status : take_spec(from->spec, name, &to->spec, e);
}

static quire_status take_overrides(const Quire__V1__Policy *message, struct qr_policy *policy,
                                   struct qr_error *e)
{
    quire_status status = QUIRE_OK;
    if (message->n_overrides > QR_OVERRIDES_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "Policy.overrides has %zu entries: at most %d",
                            message->n_overrides, QR_OVERRIDES_MAX);
    for (size_t i = 0; i < message->n_overrides && !status; i++)
        status = take_override(message->overrides[i], i, &policy->overrides[i], e);
    policy->override_count = (uint32_t)message->n_overrides;
    return status;
}

quire_status qr_wire_policy_from(const Quire__V1__Policy *message, struct qr_policy *out,
                                 struct qr_error *e)
{
    if (!message) {
        qr_policy_default(out);
        return QUIRE_OK;
    }
    struct qr_policy policy = {0};
    quire_status status =
        narrow(message->page_tokens, "page_tokens", QR_PAGE_TOKENS_MAX, &policy.page_tokens, e);
    if (!status)
        status = narrow(message->window, "window", QR_WINDOW_MAX, &policy.window, e);
    if (!status)
        status =
            narrow(message->sink_rows, "sink_rows", QR_PAGE_TOKENS_MAX, &policy.sink_rows, e);
    if (!status)
        status = narrow(message->outlier_rows, "outlier_rows", QR_OUTLIERS_MAX,
                        &policy.outlier_rows, e);
    if (!status)
        status = take_spec(message->key, "key", &policy.key, e);
    if (!status)
        status = take_spec(message->value, "value", &policy.value, e);
    if (!status)
        status = take_overrides(message, &policy, e);
    if (!status)
        status = qr_policy_check(&policy, e);
    if (!status)
        *out = policy;
    return status;
}

static void put_spec(const struct qr_codec_spec *spec, Quire__V1__CodecSpec *out)
{
    quire__v1__codec_spec__init(out);
    out->codec = (Quire__V1__Codec)spec->codec;
    out->bits = spec->bits;
    out->axis = (Quire__V1__Axis)spec->axis;
    out->group = spec->group;
    out->packing = spec->packing;
    out->flags = spec->param[QR_PARAM_FLAGS];
    out->number = spec->param[QR_PARAM_NUMBER];
}

void qr_wire_policy_to(const struct qr_policy *policy, struct qr_wire_policy *out)
{
    quire__v1__policy__init(&out->message);
    out->message.page_tokens = policy->page_tokens;
    out->message.window = policy->window;
    out->message.sink_rows = policy->sink_rows;
    out->message.outlier_rows = policy->outlier_rows;
    put_spec(&policy->key, &out->key);
    put_spec(&policy->value, &out->value);
    for (uint32_t i = 0; i < policy->override_count; i++) {
        const struct qr_override *o = &policy->overrides[i];
        quire__v1__override__init(&out->overrides[i]);
        out->overrides[i].first_layer = o->first_layer;
        out->overrides[i].last_layer = o->last_layer;
        out->overrides[i].tensors = o->tensors;
        put_spec(&o->spec, &out->specs[i]);
        out->overrides[i].spec = &out->specs[i];
        out->pointers[i] = &out->overrides[i];
    }
    out->message.n_overrides = policy->override_count;
    out->message.overrides = out->pointers;
    out->message.key = &out->key;
    out->message.value = &out->value;
}

quire_status qr_wire_fingerprint(const ProtobufCBinaryData *bytes, const char *field,
                                 uint8_t out[QR_HASH_BYTES], struct qr_error *e)
{
    if (bytes->len != QR_HASH_BYTES)
        return qr_error_set(e, QUIRE_EINVAL, "%s has %zu bytes: %d expected", field, bytes->len,
                            QR_HASH_BYTES);
    memcpy(out, bytes->data, QR_HASH_BYTES);
    return QUIRE_OK;
}
