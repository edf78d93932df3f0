/* SPDX-License-Identifier: Apache-2.0
 *
 * See policy_args.h.
 */
#include "policy_args.h"

#include <string.h>

static const struct qr_choice axes[] = {
    {"channel", QUIRE_AXIS_CHANNEL}, {"token", QUIRE_AXIS_TOKEN}, {NULL, 0}};
static const struct qr_choice stored_names[] = {
    {"none", QUIRE_ROPE_NONE}, {"pre", QUIRE_ROPE_PRE}, {"post", QUIRE_ROPE_POST}, {NULL, 0}};
static const struct qr_choice layouts[] = {
    {"half", QUIRE_ROPE_HALF}, {"interleaved", QUIRE_ROPE_INTERLEAVED}, {NULL, 0}};

void qr_policy_args_init(struct qr_policy_args *p)
{
    struct quire_policy *policy = &p->policy;
    quire_policy_default(policy);
    p->key_bits = policy->key.bits;
    p->value_bits = policy->value.bits;
    p->key_group = policy->key.group;
    p->value_group = policy->value.group;
    p->key_axis = policy->key.axis;
    p->value_axis = policy->value.axis;
    const struct qr_arg args[QR_POLICY_ARGS] = {
        {"key-codec", QR_ARG_TEXT, &p->key_codec, "CODEC",
         "such as fp8:format=e5m2,axis=head (see quire(1)); takes the place of --key-bits, "
         "--key-group and --key-axis",
         NULL},
        {"value-codec", QR_ARG_TEXT, &p->value_codec, "CODEC", "the same for values", NULL},
        {"key-bits", QR_ARG_U32, &p->key_bits, "N", "2, 3, 4, 8, or 16 for FP16 (4)", NULL},
        {"value-bits", QR_ARG_U32, &p->value_bits, "N", "the same for values (4)", NULL},
        {"key-group", QR_ARG_U32, &p->key_group, "N", "16, 32, 64 or 128 (32)", NULL},
        {"value-group", QR_ARG_U32, &p->value_group, "N", "the same for values (32)", NULL},
        {"key-axis", QR_ARG_CHOICE, &p->key_axis, "channel|token",
         "what a group of keys lies in (channel)", axes},
        {"value-axis", QR_ARG_CHOICE, &p->value_axis, "channel|token",
         "the same for values (token)", axes},
        {"override", QR_ARG_TEXT, &p->overrides, "TEXT",
         "other codecs for some layers, such as \"0-1/kv=chan:bits=8;29/k=raw\"", NULL},
        {"page-tokens", QR_ARG_U32, &policy->page_tokens, "N", "power of two, 16 to 512 (128)",
         NULL},
        {"window", QR_ARG_U32, &policy->window, "N", "newest tokens kept in FP16 (128)", NULL},
        {"sinks", QR_ARG_U32, &policy->sink_rows, "N", "first tokens kept in FP16 (4)", NULL},
        {"outliers", QR_ARG_U32, &policy->outlier_rows, "N",
         "most outlier tokens a page kept in FP16, 0 to 4 (4)", NULL},
    };
    memcpy(p->args, args, sizeof(args));
}

static struct quire_codec_spec make_spec(uint32_t bits, int axis, uint32_t group)
{
    if (bits == 16)
        return (struct quire_codec_spec){.codec = QUIRE_CODEC_RAW, .bits = 16};
    return (struct quire_codec_spec){
        .codec = QUIRE_CODEC_CHAN, .bits = bits, .axis = (enum quire_axis)axis, .group = group};
}

/** EINVAL or EUNSUPPORTED, beginning with the option. */
static quire_status parse_spec(const char *option, const char *text,
                               struct quire_codec_spec *out, struct qr_error *e)
{
    const bool key = strcmp(option, "--key-codec") == 0;
    const quire_status status = quire_codec_parse(text, key, out);
    if (status)
        return qr_error_set(e, status, "%s: %s", option, quire_last_error()->text);
    return QUIRE_OK;
}

const struct quire_policy *qr_policy_args_take(struct qr_policy_args *p, struct qr_error *e)
{
    p->policy.key = make_spec(p->key_bits, p->key_axis, p->key_group);
    p->policy.value = make_spec(p->value_bits, p->value_axis, p->value_group);
    if (p->key_codec && parse_spec("--key-codec", p->key_codec, &p->policy.key, e))
        return NULL;
    if (p->value_codec && parse_spec("--value-codec", p->value_codec, &p->policy.value, e))
        return NULL;
    p->policy.override_count = 0;
    if (p->overrides) {
        const quire_status status = quire_policy_override(&p->policy, p->overrides);
        if (status) {
            qr_error_set(e, status, "--override: %s", quire_last_error()->text);
            return NULL;
        }
    }
    return &p->policy;
}

void qr_model_args_init(struct qr_model_args *m)
{
    *m = (struct qr_model_args){.name = "unnamed", .stored = -1, .layout = QUIRE_ROPE_HALF};
    m->theta = 10000;
    const struct qr_arg args[QR_MODEL_ARGS] = {
        {"model", QR_ARG_TEXT, &m->path, "FILE",
         "the model, as JSON (see quire(1)); makes the others needless", NULL},
        {"rope", QR_ARG_CHOICE, &m->stored, "none|pre|post",
         "keys have no RoPE, are before it, are after it", stored_names},
        {"rope-layout", QR_ARG_CHOICE, &m->layout, "half|interleaved", "pairs (half)", layouts},
        {"rope-theta", QR_ARG_REAL, &m->theta, "X", "base of the frequencies (10000)", NULL},
        {"rotary-dim", QR_ARG_U32, &m->rotary_dim, "N", "channels rotated (all)", NULL},
        {"query-heads", QR_ARG_U32, &m->query_heads, "N",
         "query heads a layer (those of the file, else the KV heads)", NULL},
        {"calibration", QR_ARG_TEXT, &m->calibration, "FILE",
         "level tables of nuq, from quire calibrate; enter the fingerprint", NULL},
        {"model-name", QR_ARG_TEXT, &m->name, "TEXT", "enters the fingerprint (unnamed)", NULL},
    };
    memcpy(m->args, args, sizeof(args));
}

bool qr_model_args_given(const struct qr_model_args *model)
{
    return model->path != NULL || model->stored >= 0;
}

int qr_model_args_need(struct qr_cli *cli, const struct qr_model_args *model)
{
    if (qr_model_args_given(model))
        return QR_ARGS_GO;
    return qr_cli_fail_usage(cli, "the model is missing: --model FILE or --rope none|pre|post");
}

static quire_status infer_model(const struct qr_model_args *m, const struct qr_kv_file *kv,
                                struct qr_model_file *out, struct qr_error *e)
{
    *out = (struct qr_model_file){0};
    if (strlen(m->name) > QR_NAME_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "--model-name: %zu bytes, at most %d",
                            strlen(m->name), QR_NAME_MAX);
    snprintf(out->name, sizeof(out->name), "%s", m->name);
    for (uint32_t i = 0; i < kv->count; i++) {
        const struct qr_kv_layer *layer = &kv->layers[i];
        const uint32_t heads = (uint32_t)layer->key->shape[1];
        const uint32_t queries = layer->query ? (uint32_t)layer->query->shape[1] : heads;
        out->layers[i] = (struct quire_layers){
            .count = 1,
            .query_heads = m->query_heads ? m->query_heads : queries,
            .kv_heads = heads,
            .key_dim = (uint32_t)layer->key->shape[2],
            .value_dim = (uint32_t)layer->value->shape[2],
            .rope_stored = (enum quire_rope_stored)m->stored,
        };
    }
    out->ropes[0] = (struct quire_rope){
        .type = QUIRE_ROPE_DEFAULT,
        .layout = (enum quire_rope_layout)m->layout,
        .rotary_dim = m->rotary_dim ? m->rotary_dim : out->layers[0].key_dim,
        .theta = m->theta,
    };
    qr_model_file_link(out, kv->count, m->stored == QUIRE_ROPE_NONE ? 0 : 1);
    return QUIRE_OK;
}

quire_status qr_model_args_take(const struct qr_model_args *model, const struct qr_kv_file *kv,
                                struct qr_model_file *out, struct qr_error *e)
{
    const quire_status status = model->path != NULL ? qr_model_file_read(model->path, out, e)
                                                    : infer_model(model, kv, out, e);
    return status == QUIRE_OK && model->calibration
               ? qr_model_file_calibrate(model->calibration, out, e)
               : status;
}
