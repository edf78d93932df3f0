/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of an append: every check, the strides, the extent of the caller's
 * buffers. Pure functions; values are looked at elsewhere.
 */
#include <inttypes.h>

#include "client_append.h"

struct qr_origin qr_append_origin(const struct quire_session *session,
                                  const struct quire_append *args, uint32_t layer, int which)
{
    const struct qr_layer *l = &session->model.layers[layer];
    const uint32_t dim = which ? l->value_dim : l->key_dim;
    const size_t row = dim * qr_dtype_bytes((enum qr_dtype)args->dtype);
    const size_t token_stride = which ? args->value_token_stride : args->key_token_stride;
    const size_t head_stride = which ? args->value_head_stride : args->key_head_stride;
    const void *const *bases = which ? args->value : args->key;

    return (struct qr_origin){
        .base = bases[layer - args->first_layer],
        .token_stride = token_stride ? token_stride : row * qr_plan_heads(session, layer),
        .head_stride = head_stride ? head_stride : row,
        .dim = dim};
}

static quire_status check_tensor(const struct quire_session *session,
                                 const struct quire_append *args, uint32_t layer, int which,
                                 struct qr_error *e)
{
    const struct qr_origin from = qr_append_origin(session, args, layer, which);
    const char *name = which ? "value" : "key";
    const uint32_t index = layer - args->first_layer;
    const size_t element = qr_dtype_bytes((enum qr_dtype)args->dtype);
    const size_t row = from.dim * element, heads = qr_plan_heads(session, layer);
    size_t tokens_bytes, heads_bytes, bytes;

    if (!from.base)
        return qr_error_set(e, QUIRE_EINVAL, "%s[%u] is NULL; layer %u has a KV cache", name,
                            index, layer);
    if ((uintptr_t)from.base % element || from.token_stride % element ||
        from.head_stride % element)
        return qr_error_set(e, QUIRE_EINVAL,
                            "%s[%u]: address %p or strides %zu, %zu are no multiple of the "
                            "element's %zu bytes",
                            name, index, (const void *)from.base, from.token_stride,
                            from.head_stride, element);
    if ((args->tokens > 1 && from.token_stride < row) || (heads > 1 && from.head_stride < row))
        return qr_error_set(e, QUIRE_EINVAL,
                            "%s_token_stride is %zu and %s_head_stride %zu; a row of layer %u "
                            "takes %zu bytes",
                            name, from.token_stride, name, from.head_stride, layer, row);
    if (__builtin_mul_overflow(from.token_stride, (size_t)args->tokens - 1, &tokens_bytes) ||
        __builtin_mul_overflow(from.head_stride, heads - 1, &heads_bytes) ||
        __builtin_add_overflow(tokens_bytes, heads_bytes, &bytes) ||
        __builtin_add_overflow(bytes, row, &bytes) || bytes > PTRDIFF_MAX)
        return qr_error_set(e, QUIRE_EINVAL,
                            "%s strides %zu, %zu over %u tokens and %zu heads overflow the "
                            "address space",
                            name, from.token_stride, from.head_stride, args->tokens, heads);
    return QUIRE_OK;
}

static quire_status check_layers(const struct quire_session *session,
                                 const struct quire_append *args, struct qr_error *e)
{
    const uint64_t limit = session->client->message_bytes_max;
    bool any = false;

    for (uint32_t i = 0; i < args->layers; i++) {
        const uint32_t layer = args->first_layer + i;
        if (qr_plan_heads(session, layer) == 0)
            continue;
        any = true;
        if (qr_plan_row_bytes(session, layer) + 16384 > limit)
            return qr_error_set(e, QUIRE_ETOOBIG,
                                "one token of layer %u takes %zu bytes; the server takes "
                                "messages of %" PRIu64,
                                layer, qr_plan_row_bytes(session, layer), limit);
        if (check_tensor(session, args, layer, 0, e) ||
            check_tensor(session, args, layer, 1, e))
            return e->status;
    }
    if (!any)
        return qr_error_set(e, QUIRE_EINVAL, "layers [%u, +%u) have no KV cache",
                            args->first_layer, args->layers);
    return QUIRE_OK;
}

quire_status qr_append_check(const struct quire_session *session,
                             const struct quire_append *args, struct qr_error *e)
{
    const uint64_t end = (uint64_t)QR_POSITION_MAX + 1;

    if (!session->epoch)
        return qr_error_set(e, QUIRE_EINVAL,
                            "session %.200s was opened without QUIRE_OPEN_WRITE",
                            session->name);
    if (args->tokens == 0 || args->position >= end || args->tokens > end - args->position)
        return qr_error_set(e, args->tokens ? QUIRE_ETOOBIG : QUIRE_EINVAL,
                            "tokens [%" PRIu64 ", +%u); at least 1, and a session ends before "
                            "%" PRIu64,
                            args->position, args->tokens, end);
    if (args->layers == 0 || args->first_layer >= session->model.layer_count ||
        args->layers > session->model.layer_count - args->first_layer)
        return qr_error_set(e, QUIRE_EINVAL, "layers [%u, +%u); the model has %u",
                            args->first_layer, args->layers, session->model.layer_count);
    if (!qr_dtype_bytes((enum qr_dtype)args->dtype))
        return qr_error_set(e, QUIRE_EINVAL, "dtype is %d; 1 F16, 2 BF16, 3 F32",
                            (int)args->dtype);
    if (args->durability != QUIRE_MEMORY && args->durability != QUIRE_DISK)
        return qr_error_set(e, QUIRE_EINVAL, "durability is %d; 0 memory, 1 disk",
                            (int)args->durability);
    if (!args->key || !args->value)
        return qr_error_set(e, QUIRE_EINVAL, "%s is NULL; one pointer a layer",
                            args->key ? "value" : "key");
    return check_layers(session, args, e);
}
