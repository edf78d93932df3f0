/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of a fetch: every check, the strides, the extent of the caller's
 * buffers. Pure functions; nothing is sent from here.
 */
#include <inttypes.h>

#include "client_fetch.h"

void qr_fetch_heads(const struct quire_fetch *args, const struct qr_layer *layer,
                    uint32_t *first_out, uint32_t *count_out)
{
    *first_out = args->first_head;
    *count_out = args->heads ? args->heads : layer->kv_heads - args->first_head;
    if (layer->kv_heads == 0)
        *first_out = *count_out = 0;
}

struct qr_place qr_fetch_place(const struct quire_fetch *args, const struct qr_layer *layer,
                               uint32_t index, int which)
{
    void *const *const bases = which ? args->value : args->key;
    const size_t token_stride = which ? args->value_token_stride : args->key_token_stride;
    const size_t head_stride = which ? args->value_head_stride : args->key_head_stride;
    const size_t row = (which ? layer->value_dim : layer->key_dim) *
                       qr_dtype_bytes((enum qr_dtype)args->dtype);
    const bool by_head = args->layout == QUIRE_HEAD_MAJOR;
    uint32_t first, heads;

    qr_fetch_heads(args, layer, &first, &heads);
    return (struct qr_place){.base = bases ? bases[index] : NULL,
                             .token_stride = token_stride ? token_stride
                                             : by_head    ? row
                                                          : row * heads,
                             .head_stride = head_stride ? head_stride
                                            : by_head   ? row * args->tokens
                                                        : row};
}

/* tokens x heads rows through the strides must not wrap around the address space. */
static quire_status check_extent(const struct quire_fetch *args, const struct qr_layer *layer,
                                 uint32_t index, int which, struct qr_error *e)
{
    const struct qr_place place = qr_fetch_place(args, layer, index, which);
    const size_t element = qr_dtype_bytes((enum qr_dtype)args->dtype);
    const size_t row = (which ? layer->value_dim : layer->key_dim) * element;
    const char *name = which ? "value" : "key";
    uint32_t first, heads;
    size_t tokens_bytes, heads_bytes, bytes;

    if (!place.base)
        return QUIRE_OK;
    qr_fetch_heads(args, layer, &first, &heads);
    if ((uintptr_t)place.base % element || place.token_stride % element ||
        place.head_stride % element)
        return qr_error_set(e, QUIRE_EINVAL,
                            "%s[%u]: address %p or strides %zu, %zu are no multiple of the "
                            "element's %zu bytes",
                            name, index, (void *)place.base, place.token_stride,
                            place.head_stride, element);
    if ((args->tokens > 1 && place.token_stride < row) ||
        (heads > 1 && place.head_stride < row))
        return qr_error_set(e, QUIRE_EINVAL,
                            "%s_token_stride is %zu and %s_head_stride %zu; a row of layer %u "
                            "takes %zu bytes",
                            name, place.token_stride, name, place.head_stride,
                            args->first_layer + index, row);
    if (__builtin_mul_overflow(place.token_stride, args->tokens - 1, &tokens_bytes) ||
        __builtin_mul_overflow(place.head_stride, (size_t)heads - 1, &heads_bytes) ||
        __builtin_add_overflow(tokens_bytes, heads_bytes, &bytes) ||
        __builtin_add_overflow(bytes, row, &bytes) || bytes > PTRDIFF_MAX)
        return qr_error_set(e, QUIRE_EINVAL,
                            "%s strides %zu, %zu over %" PRIu64
                            " tokens and %u heads overflow the address space",
                            name, place.token_stride, place.head_stride, args->tokens, heads);
    return QUIRE_OK;
}

static quire_status check_layer(const struct quire_session *session,
                                const struct quire_fetch *args, uint32_t index,
                                struct qr_error *e)
{
    const uint32_t number = args->first_layer + index;
    const struct qr_layer *layer = &session->model.layers[number];

    if (layer->kv_heads == 0)
        return QUIRE_OK;
    if (args->first_head >= layer->kv_heads ||
        args->heads > (uint32_t)layer->kv_heads - args->first_head)
        return qr_error_set(e, QUIRE_EINVAL, "heads [%u, +%u) of layer %u; it has %u KV heads",
                            args->first_head, args->heads, number, layer->kv_heads);
    if (args->rotate && args->position_shift && layer->rope_stored == QR_ROPE_POST)
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "position_shift is %" PRId64
                            ", but keys of layer %u are stored after RoPE",
                            args->position_shift, number);
    const quire_status status = check_extent(args, layer, index, 0, e);
    return status ? status : check_extent(args, layer, index, 1, e);
}

static quire_status check_range(const struct quire_session *session,
                                const struct quire_fetch *args, struct qr_error *e)
{
    const uint64_t end = (uint64_t)QR_POSITION_MAX + 1;

    if (args->tokens == 0 || args->position >= end || args->tokens > end - args->position)
        return qr_error_set(e, args->tokens ? QUIRE_ERANGE : QUIRE_EINVAL,
                            "tokens [%" PRIu64 ", +%" PRIu64
                            "); at least 1, and a session ends before %" PRIu64,
                            args->position, args->tokens, end);
    if (args->layers == 0 || args->first_layer >= session->model.layer_count ||
        args->layers > session->model.layer_count - args->first_layer)
        return qr_error_set(e, QUIRE_EINVAL, "layers [%u, +%u); the model has %u",
                            args->first_layer, args->layers, session->model.layer_count);
    const int64_t first = (int64_t)args->position;
    if (args->rotate && (args->position_shift < -first ||
                         args->position_shift > (int64_t)(end - args->position - args->tokens)))
        return qr_error_set(e, QUIRE_EINVAL,
                            "position_shift is %" PRId64 "; positions [%" PRIu64 ", +%" PRIu64
                            ") must stay in [0, %" PRIu64 ")",
                            args->position_shift, args->position, args->tokens, end);
    return QUIRE_OK;
}

quire_status qr_fetch_check(const struct quire_session *session, const struct quire_fetch *args,
                            struct qr_error *e)
{
    quire_status status = check_range(session, args, e);

    if (status)
        return status;
    if (!qr_dtype_bytes((enum qr_dtype)args->dtype))
        return qr_error_set(e, QUIRE_EINVAL, "dtype is %d; 1 F16, 2 BF16, 3 F32",
                            (int)args->dtype);
    if (args->layout != QUIRE_TOKEN_MAJOR && args->layout != QUIRE_HEAD_MAJOR)
        return qr_error_set(e, QUIRE_EINVAL, "layout is %d; 0 token-major, 1 head-major",
                            (int)args->layout);
    if (!args->key && !args->value)
        return qr_error_set(e, QUIRE_EINVAL, "key and value are NULL; one of them is needed");
    for (uint32_t i = 0; !status && i < args->layers; i++)
        status = check_layer(session, args, i, e);
    return status;
}

size_t quire_fetch_pages(const quire_session *session, const struct quire_fetch *fetch)
{
    const uint64_t page = session->policy.page_tokens;

    if (!fetch->tokens)
        return 0;
    const uint64_t first = fetch->position / page;
    const uint64_t last = (fetch->position + fetch->tokens - 1) / page;
    return (size_t)(last - first + 1) * fetch->layers;
}
