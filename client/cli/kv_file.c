/* SPDX-License-Identifier: Apache-2.0
 *
 * See kv_file.h. Every tensor is checked against the others before anybody reads rows.
 */
#include "kv_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void qr_kv_name(char name[24], char kind, uint32_t number)
{
    snprintf(name, 24, "%c_layer%02u", kind, number);
}

size_t qr_kv_token_bytes(const struct qr_safetensor *tensor)
{
    return (size_t)(tensor->shape[0] > 0 ? tensor->bytes / tensor->shape[0] : 0);
}

uint32_t qr_kv_model_layer(const struct qr_kv_file *kv, uint32_t index, uint32_t model_layers)
{
    return kv->count == model_layers ? index : kv->layers[index].number;
}

/** "k_layer07" gives 'k' and 7; anything else is not ours. */
static bool parse_name(const char *name, char *kind, uint32_t *number)
{
    if (strchr("kvq", name[0]) == NULL || strncmp(name + 1, "_layer", 6) != 0)
        return false;
    const char *digits = name + 7;
    const size_t length = strlen(digits);
    if (length == 0 || length > 4 || strspn(digits, "0123456789") != length)
        return false;
    *kind = name[0];
    *number = (uint32_t)strtoul(digits, NULL, 10);
    return *number < QR_KV_LAYERS_MAX;
}

static bool read_dtype(enum qr_element element, enum quire_dtype *out)
{
    switch ((int)element) {
    case QR_ELEMENT_F16:
        *out = QUIRE_F16;
        return true;
    case QR_ELEMENT_BF16:
        *out = QUIRE_BF16;
        return true;
    case QR_ELEMENT_F32:
        *out = QUIRE_F32;
        return true;
    default:
        return false;
    }
}

static quire_status check_tensor(struct qr_kv_file *kv, const struct qr_safetensor *t,
                                 struct qr_error *e)
{
    enum quire_dtype dtype;
    if (t->rank != 3 || t->shape[0] == 0 || t->shape[1] == 0 || t->shape[2] == 0)
        return qr_error_set(e, QUIRE_EINVAL,
                            "tensor '%s' has rank %u or an empty dimension, must be [tokens, "
                            "heads, channels]",
                            t->name, t->rank);
    if (!read_dtype(t->element, &dtype))
        return qr_error_set(e, QUIRE_EINVAL, "tensor '%s' is %s, must be F16, BF16 or F32",
                            t->name, qr_element_name(t->element));
    if ((uintptr_t)t->data % qr_element_bytes(t->element) != 0)
        return qr_error_set(e, QUIRE_EINVAL, "tensor '%s' is not aligned to its elements",
                            t->name);
    if (kv->tokens != 0 && t->shape[0] != kv->tokens)
        return qr_error_set(e, QUIRE_EINVAL, "tensor '%s' has %llu tokens, others %llu",
                            t->name, (unsigned long long)t->shape[0],
                            (unsigned long long)kv->tokens);
    if (kv->dtype != 0 && dtype != kv->dtype)
        return qr_error_set(e, QUIRE_EINVAL, "tensor '%s' is %s, others are not", t->name,
                            qr_element_name(t->element));
    kv->tokens = t->shape[0];
    kv->dtype = dtype;
    return QUIRE_OK;
}

static quire_status take_tensors(struct qr_kv_file *kv, unsigned need, struct qr_error *e)
{
    struct qr_kv_layer *found = calloc(QR_KV_LAYERS_MAX, sizeof(*found));
    quire_status status = QUIRE_OK;
    if (found == NULL)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for %d layers", QR_KV_LAYERS_MAX);
    for (size_t i = 0; i < kv->file.count && status == QUIRE_OK; i++) {
        const struct qr_safetensor *t = &kv->file.tensors[i];
        char kind;
        uint32_t number;
        if (!parse_name(t->name, &kind, &number))
            continue;
        const bool wanted = kind == 'q' ? need & QR_KV_NEED_QUERY : need & QR_KV_NEED_KV;
        struct qr_kv_layer *layer = &found[number];
        const struct qr_safetensor **slot = kind == 'k'   ? &layer->key
                                            : kind == 'v' ? &layer->value
                                                          : &layer->query;
        if (*slot != NULL)
            status = qr_error_set(e, QUIRE_EINVAL, "'%s' and '%s' name one tensor", t->name,
                                  (*slot)->name);
        else if (wanted)
            status = check_tensor(kv, t, e);
        *slot = t;
    }
    for (uint32_t n = 0; n < QR_KV_LAYERS_MAX; n++) {
        if (found[n].key == NULL && found[n].value == NULL && found[n].query == NULL)
            continue;
        kv->layers[kv->count] = found[n];
        kv->layers[kv->count++].number = n;
    }
    free(found);
    return status;
}

static quire_status check_layers(const struct qr_kv_file *kv, unsigned need, struct qr_error *e)
{
    if (kv->count == 0)
        return qr_error_set(e, QUIRE_EINVAL, "no tensor named %s_layerNN",
                            need & QR_KV_NEED_KV ? "k" : "q");
    for (uint32_t i = 0; i < kv->count; i++) {
        const struct qr_kv_layer *layer = &kv->layers[i];
        if (need & QR_KV_NEED_KV) {
            if (layer->key == NULL || layer->value == NULL)
                return qr_error_set(e, QUIRE_EINVAL, "layer %u has no %s_layer%02u",
                                    layer->number, layer->key ? "v" : "k", layer->number);
            if (layer->key->shape[1] != layer->value->shape[1])
                return qr_error_set(e, QUIRE_EINVAL,
                                    "layer %u has %llu key heads and %llu value heads",
                                    layer->number, (unsigned long long)layer->key->shape[1],
                                    (unsigned long long)layer->value->shape[1]);
        }
        if (need & QR_KV_NEED_QUERY && layer->query == NULL)
            return qr_error_set(e, QUIRE_EINVAL, "layer %u has no q_layer%02u", layer->number,
                                layer->number);
    }
    return QUIRE_OK;
}

static quire_status take_token_ids(struct qr_kv_file *kv, struct qr_error *e)
{
    const struct qr_safetensor *t = qr_safetensors_find(&kv->file, "token_ids");
    if (t == NULL)
        return QUIRE_OK;
    const bool wide = t->element == QR_ELEMENT_I64 || t->element == QR_ELEMENT_U64;
    const bool known = wide || t->element == QR_ELEMENT_I32 || t->element == QR_ELEMENT_U32;
    if (!known || t->rank != 1 || t->shape[0] != kv->tokens)
        return qr_error_set(e, QUIRE_EINVAL,
                            "token_ids must be [%llu] whole numbers of 32 or 64 bits",
                            (unsigned long long)kv->tokens);
    if (!wide && (uintptr_t)t->data % sizeof(uint32_t) == 0) {
        kv->token_ids = (const uint32_t *)(const void *)t->data;
        return QUIRE_OK;
    }
    kv->token_ids_owned = calloc(kv->tokens, sizeof(uint32_t));
    if (kv->token_ids_owned == NULL)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the token ids");
    for (uint64_t i = 0; i < kv->tokens; i++) {
        uint64_t id = 0;
        memcpy(&id, t->data + i * (wide ? 8 : 4), wide ? 8 : 4);
        if (id > UINT32_MAX)
            return qr_error_set(e, QUIRE_EINVAL, "token id %llu of token %llu is past 2^32 - 1",
                                (unsigned long long)id, (unsigned long long)i);
        kv->token_ids_owned[i] = (uint32_t)id;
    }
    kv->token_ids = kv->token_ids_owned;
    return QUIRE_OK;
}

quire_status qr_kv_file_open(const char *path, unsigned need, struct qr_kv_file *out,
                             struct qr_error *e)
{
    struct qr_error why = {0};
    *out = (struct qr_kv_file){0};
    quire_status status = qr_safetensors_open(path, &out->file, e);
    if (status != QUIRE_OK)
        return status;
    status = take_tensors(out, need, &why);
    if (status == QUIRE_OK)
        status = check_layers(out, need, &why);
    if (status == QUIRE_OK)
        status = take_token_ids(out, &why);
    if (status != QUIRE_OK) {
        qr_kv_file_close(out);
        return qr_error_set(e, status, "%.96s: %.150s", path, why.text);
    }
    return QUIRE_OK;
}

void qr_kv_file_close(struct qr_kv_file *kv)
{
    free(kv->token_ids_owned);
    qr_safetensors_close(&kv->file);
    *kv = (struct qr_kv_file){0};
}
