/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits of a page's identity and the places of its sections. What a codec
 * needs for codes and scales it asks qr_spec_*.
 */
#include "layout.h"

static quire_status check_shape(const struct qr_page_identity *id, struct qr_error *e)
{
    if (id->layer >= QR_LAYERS_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "layer is %u: below %d expected", id->layer,
                            QR_LAYERS_MAX);
    if (id->heads == 0 || id->heads + id->first_head > QR_HEADS_MAX)
        return qr_error_set(e, QUIRE_EINVAL,
                            "KV heads %u..+%u: at least one, and none past %d expected",
                            id->first_head, id->heads, QR_HEADS_MAX);
    if (id->key_dim < QR_DIM_MIN || id->key_dim > QR_DIM_MAX || id->key_dim % 8)
        return qr_error_set(e, QUIRE_EINVAL,
                            "key_dim is %u: a multiple of 8 in %d..%d expected", id->key_dim,
                            QR_DIM_MIN, QR_DIM_MAX);
    if (id->value_dim < QR_DIM_MIN || id->value_dim > QR_DIM_MAX || id->value_dim % 8)
        return qr_error_set(e, QUIRE_EINVAL,
                            "value_dim is %u: a multiple of 8 in %d..%d expected",
                            id->value_dim, QR_DIM_MIN, QR_DIM_MAX);
    return QUIRE_OK;
}

static quire_status check_rope(const struct qr_page_identity *id, struct qr_error *e)
{
    if (id->rope_stored > QR_ROPE_POST)
        return qr_error_set(e, QUIRE_EINVAL,
                            "rope_stored is %u: 0 (none), 1 (pre) or 2 (post) expected",
                            id->rope_stored);
    if (id->rope_stored == QR_ROPE_NONE && id->rope_layout != 0)
        return qr_error_set(e, QUIRE_EINVAL, "rope_layout is %u without RoPE: 0 expected",
                            id->rope_layout);
    if (id->rope_stored != QR_ROPE_NONE && id->rope_layout != QR_ROPE_HALF &&
        id->rope_layout != QR_ROPE_INTERLEAVED)
        return qr_error_set(e, QUIRE_EINVAL,
                            "rope_layout is %u: 1 (half) or 2 (interleaved) expected",
                            id->rope_layout);
    return QUIRE_OK;
}

quire_status qr_page_identity_check(const struct qr_page_identity *id, struct qr_error *e)
{
    quire_status status = qr_spec_check_tokens(&id->key, id->page_tokens, "key", e);
    if (!status)
        status = qr_spec_check_tokens(&id->value, id->page_tokens, "value", e);
    if (!status)
        status = check_shape(id, e);
    if (!status)
        status =
            qr_spec_check_tensor(&id->key, id->page_tokens, id->heads, id->key_dim, "key", e);
    if (!status)
        status = qr_spec_check_tensor(&id->value, id->page_tokens, id->heads, id->value_dim,
                                      "value", e);
    if (!status)
        status = check_rope(id, e);
    if (status)
        return status;
    if (id->first_position % id->page_tokens ||
        id->first_position > QR_POSITION_MAX + 1u - id->page_tokens)
        return qr_error_set(e, QUIRE_EINVAL,
                            "first_position is %llu: a multiple of page_tokens %u, and no "
                            "position past %u expected",
                            (unsigned long long)id->first_position, id->page_tokens,
                            QR_POSITION_MAX);
    return QUIRE_OK;
}

/* Every size below is at most 512 x 1024 x 1024 x 2, so sums of them fit size_t. */
static size_t section_bytes(const struct qr_page_identity *id, uint32_t raw_rows, uint16_t type)
{
    const size_t raw_heads = (size_t)raw_rows * id->heads * sizeof(uint16_t);
    switch (type) {
    case QR_SECTION_KEY_CODES:
        return qr_spec_codes_bytes(&id->key, id->page_tokens, id->heads, id->key_dim);
    case QR_SECTION_KEY_SCALES:
        return qr_spec_scales_bytes(&id->key, id->page_tokens, id->heads, id->key_dim);
    case QR_SECTION_VALUE_CODES:
        return qr_spec_codes_bytes(&id->value, id->page_tokens, id->heads, id->value_dim);
    case QR_SECTION_VALUE_SCALES:
        return qr_spec_scales_bytes(&id->value, id->page_tokens, id->heads, id->value_dim);
    case QR_SECTION_KEY_RAW:
        return raw_heads * id->key_dim;
    case QR_SECTION_VALUE_RAW:
        return raw_heads * id->value_dim;
    case QR_SECTION_ROW_DIGESTS:
        return id->page_tokens * sizeof(uint32_t);
    default:
        return 0;
    }
}

quire_status qr_page_layout(const struct qr_page_identity *id, uint32_t raw_rows,
                            struct page_layout *out, struct qr_error *e)
{
    size_t end = sizeof(struct qr_page_header);
    *out = (struct page_layout){0};
    for (unsigned type = QR_SECTION_KEY_CODES; type <= QR_SECTION_ROW_DIGESTS; type++) {
        const size_t bytes = section_bytes(id, raw_rows, (uint16_t)type);
        if (bytes == 0)
            continue;
        if (bytes > QR_PAGE_BYTES_MAX || end + bytes > QR_PAGE_BYTES_MAX)
            return qr_error_set(e, QUIRE_EINVAL,
                                "page of %u tokens, %u heads, dims %u and %u is longer than "
                                "%u bytes",
                                id->page_tokens, id->heads, id->key_dim, id->value_dim,
                                QR_PAGE_BYTES_MAX);
        out->sections[out->section_count++] = (struct qr_page_section){
            .type = (uint16_t)type, .offset = (uint32_t)end, .bytes = (uint32_t)bytes};
        end = (end + bytes + QR_PAGE_ALIGN - 1) / QR_PAGE_ALIGN * QR_PAGE_ALIGN;
    }
    out->page_bytes = (uint32_t)end;
    return QUIRE_OK;
}

int qr_page_count_raw(const uint8_t raw_bitmap[QR_PAGE_TOKENS_MAX / 8], uint32_t tokens)
{
    int rows = 0;
    for (uint32_t byte = 0; byte < QR_PAGE_TOKENS_MAX / 8; byte++) {
        if (byte * 8 >= tokens && raw_bitmap[byte])
            return -1;
        rows += __builtin_popcount(raw_bitmap[byte]);
    }
    return rows;
}

size_t qr_page_padding(const struct page_layout *layout, uint32_t index)
{
    const struct qr_page_section *section = &layout->sections[index];
    const uint32_t next = index + 1 < layout->section_count ? layout->sections[index + 1].offset
                                                            : layout->page_bytes;
    return next - section->offset - section->bytes;
}
