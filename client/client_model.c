/* SPDX-License-Identifier: Apache-2.0
 *
 * The caller's description of a model, checked and turned into a sealed one, and
 * registered. Must not know sessions.
 */
#include "client_model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client_op.h"

static quire_status copy_name(const char *field, const char *from, char to[QR_NAME_MAX + 1],
                              struct qr_error *e)
{
    const size_t bytes = from ? strnlen(from, QR_NAME_MAX + 1) : 0;

    if (bytes > QR_NAME_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "model.%s is longer than %d bytes", field,
                            QR_NAME_MAX);
    if (bytes)
        memcpy(to, from, bytes);
    to[bytes] = '\0';
    return QUIRE_OK;
}

static quire_status rope_table(const struct quire_rope *from, struct qr_rope *to,
                               struct qr_error *e)
{
    if (!from->inv_freq)
        return qr_error_set(e, QUIRE_EINVAL, "inv_freq is NULL; a TABLE has rotary_dim/2");
    to->layout = (enum qr_rope_layout)from->layout;
    to->rotary_dim = from->rotary_dim;
    to->attention_factor = from->attention_factor > 0 ? (float)from->attention_factor : 1.0f;
    memcpy(to->inv_freq, from->inv_freq, from->rotary_dim / 2 * sizeof(float));
    return QUIRE_OK;
}

static quire_status rope_variant(const struct quire_rope *from, struct qr_rope *to,
                                 struct qr_error *e)
{
    struct qr_rope_params *p = calloc(1, sizeof(*p));
    if (!p)
        return qr_error_set(e, QUIRE_ENOMEM, "out of memory");

    const size_t bytes = from->rotary_dim / 2 * sizeof(float);
    *p = (struct qr_rope_params){.type = (enum qr_rope_type)from->type,
                                 .layout = (enum qr_rope_layout)from->layout,
                                 .rotary_dim = from->rotary_dim,
                                 .theta = from->theta,
                                 .factor = from->factor,
                                 .attention_factor = from->attention_factor,
                                 .beta_fast = from->beta_fast,
                                 .beta_slow = from->beta_slow,
                                 .mscale = from->mscale,
                                 .mscale_all_dim = from->mscale_all_dim,
                                 .low_freq_factor = from->low_freq_factor,
                                 .high_freq_factor = from->high_freq_factor,
                                 .original_max_position = from->original_max_position,
                                 .max_position = from->max_position,
                                 .seq_len = from->seq_len,
                                 .truncate_off = from->truncate_off};
    quire_status status = QUIRE_OK;
    if (from->type == QUIRE_ROPE_LONGROPE) {
        if (from->short_factor && from->long_factor) {
            memcpy(p->short_factor, from->short_factor, bytes);
            memcpy(p->long_factor, from->long_factor, bytes);
        } else {
            status = qr_error_set(e, QUIRE_EINVAL, "%s is NULL; LongRoPE has rotary_dim/2",
                                  from->short_factor ? "long_factor" : "short_factor");
        }
    }
    if (!status)
        status = qr_rope_make(p, to, e);
    free(p);
    return status;
}

static quire_status rope_from(const struct quire_rope *from, struct qr_rope *to,
                              struct qr_error *e)
{
    if (from->rotary_dim < 2 || from->rotary_dim > QR_DIM_MAX || from->rotary_dim % 2)
        return qr_error_set(e, QUIRE_EINVAL, "rotary_dim is %u; even, 2 .. %d",
                            from->rotary_dim, QR_DIM_MAX);
    if (from->type == QUIRE_ROPE_TABLE)
        return rope_table(from, to, e);
    return rope_variant(from, to, e);
}

static quire_status layers_from(const struct quire_layers *from, uint32_t run,
                                struct qr_model *to, struct qr_error *e)
{
    const struct {
        const char *name;
        uint32_t value, max;
    } fields[] = {{"count", from->count, QR_LAYERS_MAX - to->layer_count},
                  {"query_heads", from->query_heads, QR_HEADS_MAX},
                  {"kv_heads", from->kv_heads, QR_HEADS_MAX},
                  {"key_dim", from->key_dim, QR_DIM_MAX},
                  {"value_dim", from->value_dim, QR_DIM_MAX},
                  {"rope", from->rope, QR_ROPES_MAX - 1},
                  {"rope_stored", from->rope_stored, QUIRE_ROPE_POST}};

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (fields[i].value > fields[i].max)
            return qr_error_set(e, QUIRE_EINVAL,
                                "model.layers[%u].%s is %u; at most %u (%d layers in all)", run,
                                fields[i].name, fields[i].value, fields[i].max, QR_LAYERS_MAX);
    const struct qr_layer layer = {.query_heads = (uint16_t)from->query_heads,
                                   .kv_heads = (uint16_t)from->kv_heads,
                                   .key_dim = (uint16_t)from->key_dim,
                                   .value_dim = (uint16_t)from->value_dim,
                                   .rope = (uint8_t)from->rope,
                                   .rope_stored = (uint8_t)from->rope_stored,
                                   .sliding_window = from->sliding_window};
    for (uint32_t i = 0; i < from->count; i++)
        to->layers[to->layer_count++] = layer;
    return QUIRE_OK;
}

static quire_status names_from(const struct quire_model *from, struct qr_model *to,
                               struct qr_error *e)
{
    quire_status status = copy_name("name", from->name, to->name, e);

    if (!status)
        status = copy_name("revision", from->revision, to->revision, e);
    if (!status)
        status = copy_name("adapter", from->adapter, to->adapter, e);
    return status;
}

quire_status qr_client_model_from(const struct quire_model *from, struct qr_model *to,
                                  struct qr_error *e)
{
    memset(to, 0, sizeof(*to));
    if ((from->layer_runs && !from->layers) || (from->rope_count && !from->ropes))
        return qr_error_set(e, QUIRE_EINVAL, "model.%s is NULL with a count of %u",
                            from->layers ? "ropes" : "layers",
                            from->layers ? from->rope_count : from->layer_runs);
    if (from->rope_count > QR_ROPES_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "model.rope_count is %u; at most %d",
                            from->rope_count, QR_ROPES_MAX);
    quire_status status = names_from(from, to, e);
    for (uint32_t i = 0; !status && i < from->layer_runs; i++)
        status = layers_from(&from->layers[i], i, to, e);
    for (uint32_t i = 0; !status && i < from->rope_count; i++) {
        struct qr_error why;
        status = rope_from(&from->ropes[i], &to->ropes[i], &why);
        if (status)
            qr_error_set(e, status, "model.ropes[%u]: %.200s", i, why.text);
        to->rope_count++;
    }
    if (!status && from->calibration_bytes > 0)
        status = from->calibration
                     ? qr_calibration_read(from->calibration, from->calibration_bytes,
                                           &to->calibration, e)
                     : qr_error_set(e, QUIRE_EINVAL, "model.calibration is NULL with %zu bytes",
                                    from->calibration_bytes);
    return status ? status : qr_model_seal(to, e);
}

static quire_status send_model(quire_client *client, const struct qr_model *model,
                               struct qr_wire_model *wire)
{
    struct quire_op *op;
    struct qr_error e;
    Quire__V1__RegisterModelRequest request = QUIRE__V1__REGISTER_MODEL_REQUEST__INIT;

    qr_wire_model_to(model, wire);
    request.model = &wire->message;
    quire_status status = qr_control(client, QR_METHOD_REGISTER_MODEL, &request.base,
                                     &quire__v1__register_model_reply__descriptor, true, &op);
    if (status)
        return status;
    const Quire__V1__RegisterModelReply *reply = (const void *)op->reply_message;
    uint8_t theirs[QR_HASH_BYTES];
    status = qr_wire_fingerprint(&reply->fingerprint, "fingerprint", theirs, &e);
    qr_op_recycle(op);
    if (status)
        return qr_client_fail(&e);
    if (memcmp(theirs, model->fingerprint, sizeof(theirs)))
        return qr_client_fail_text(QUIRE_EMISMATCH,
                                   "server and library compute different fingerprints of model "
                                   "%.100s: their versions differ",
                                   model->name);
    return QUIRE_OK;
}

quire_status qr_client_model_send(quire_client *client, const struct qr_model *model)
{
    struct qr_wire_model *wire = malloc(sizeof(*wire));

    if (!wire)
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for a model");
    const quire_status status = send_model(client, model, wire);
    free(wire);
    return status;
}

quire_status quire_model_register(quire_client *client, const struct quire_model *model,
                                  uint8_t fingerprint[32])
{
    struct qr_error e;

    if (!client || !model || !fingerprint)
        return qr_client_fail_text(QUIRE_EINVAL, "%s is NULL",
                                   !client  ? "client"
                                   : !model ? "model"
                                            : "fingerprint");
    struct qr_model *sealed = malloc(sizeof(*sealed));
    if (!sealed)
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for a model");
    quire_status status = qr_client_model_from(model, sealed, &e);
    if (status)
        qr_client_fail(&e);
    else
        status = qr_client_model_send(client, sealed);
    if (!status)
        memcpy(fingerprint, sealed->fingerprint, sizeof(sealed->fingerprint));
    free(sealed);
    return status;
}
