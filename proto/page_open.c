/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading pages: every check that the bytes of a page allow, on any bytes of
 * any length. The section table must be exactly the one that the writer would
 * make, so nothing in it is trusted. Must not know what codes mean.
 */
#include "page.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "layout.h"
#include "spec_parts.h"
#include "values_codec.h"

static const char *section_name(uint16_t type)
{
    static const char *const names[QR_SECTION_TYPE_END] = {
        [QR_SECTION_KEY_CODES] = "key codes",     [QR_SECTION_KEY_SCALES] = "key scales",
        [QR_SECTION_VALUE_CODES] = "value codes", [QR_SECTION_VALUE_SCALES] = "value scales",
        [QR_SECTION_KEY_RAW] = "key raw rows",    [QR_SECTION_VALUE_RAW] = "value raw rows",
        [QR_SECTION_ROW_DIGESTS] = "row digests", [QR_SECTION_LEVEL_TABLE] = "level table",
        [QR_SECTION_OUTLIERS] = "outliers",       [QR_SECTION_CHANNEL_MEANS] = "channel means",
        [QR_SECTION_ROTATION] = "rotation",       [QR_SECTION_POSITION_IDS] = "position ids",
    };
    return type < QR_SECTION_TYPE_END && names[type] ? names[type] : "unknown";
}

static const char *payload_name(uint8_t payload)
{
    static const char *const names[] = {"unknown", "kv", "latent", "opaque"};
    return payload <= QR_PAYLOAD_OPAQUE ? names[payload] : names[0];
}

static bool all_zero(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i])
            return false;
    return true;
}

/* What must hold before anything else of the page means something. The version comes before
 * the checksum: another version may place it elsewhere. */
static quire_status check_envelope(const struct qr_page_header *header, size_t bytes,
                                   struct qr_error *e)
{
    if (bytes < sizeof(*header))
        return qr_error_set(e, QUIRE_ECORRUPT, "page has %zu bytes: a header of %zu expected",
                            bytes, sizeof(*header));
    if (memcmp(header->magic, QR_PAGE_MAGIC, sizeof(header->magic)) != 0)
        return qr_error_set(e, QUIRE_ECORRUPT, "page does not start with " QR_PAGE_MAGIC);
    if (header->version != QR_PAGE_VERSION)
        return qr_error_set(e, QUIRE_EUNSUPPORTED, "page version is %u: %d expected",
                            header->version, QR_PAGE_VERSION);
    if (header->page_bytes != bytes)
        return qr_error_set(e, QUIRE_ECORRUPT, "page has %zu bytes: its header says %u", bytes,
                            header->page_bytes);
    const uint64_t sum = qr_checksum((const uint8_t *)header + QR_PAGE_CHECKED_FROM,
                                     bytes - QR_PAGE_CHECKED_FROM);
    if (header->checksum != sum)
        return qr_error_set(e, QUIRE_ECORRUPT,
                            "page checksum is %016llx: its bytes give %016llx",
                            (unsigned long long)header->checksum, (unsigned long long)sum);
    return QUIRE_OK;
}

/* What another writer of this version may use and this reader does not know: by name. */
static quire_status check_supported(const struct qr_page_header *header, struct qr_error *e)
{
    if (header->flags)
        return qr_error_set(e, QUIRE_EUNSUPPORTED, "page flags are 0x%08x: no flag is known",
                            header->flags);
    if (header->payload != QR_PAYLOAD_KV)
        return qr_error_set(e, QUIRE_EUNSUPPORTED, "page payload %u (%s) is not supported",
                            header->payload, payload_name(header->payload));
    if (header->position_kind)
        return qr_error_set(
            e, QUIRE_EUNSUPPORTED, "page position_kind %u (%s) is not supported",
            header->position_kind, header->position_kind == 1 ? "ids per token" : "unknown");
    if (header->key_id)
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "page is encrypted with key %u: encryption is not supported",
                            header->key_id);
    if (header->receipt.metric > 1 || header->receipt.queries > 2)
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "receipt metric %u with queries %u is not known",
                            header->receipt.metric, header->receipt.queries);
    for (uint32_t i = 0; i < header->section_count && i < QR_PAGE_SECTIONS_MAX; i++) {
        const struct qr_page_section *section = &header->sections[i];
        if (section->type == 0 || section->type > QR_SECTION_ROW_DIGESTS || section->flags)
            return qr_error_set(e, QUIRE_EUNSUPPORTED,
                                "section %u (%s) with flags 0x%04x is not supported",
                                section->type, section_name(section->type), section->flags);
    }
    return QUIRE_OK;
}

static bool receipt_ok(const struct qr_receipt *receipt)
{
    const float errors[] = {receipt->error, receipt->key_error, receipt->value_error};
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (!isfinite(errors[i]) || errors[i] < 0)
            return false;
    return receipt->metric || all_zero((const uint8_t *)receipt, sizeof(*receipt));
}

static quire_status check_header(const struct qr_page_header *header, struct qr_error *e)
{
    if (header->header_bytes != sizeof(*header))
        return qr_error_set(e, QUIRE_ECORRUPT, "page header_bytes is %u: %zu expected",
                            header->header_bytes, sizeof(*header));
    if (header->tokens != header->page_tokens)
        return qr_error_set(e, QUIRE_ECORRUPT, "page holds %u tokens: page_tokens %u expected",
                            header->tokens, header->page_tokens);
    if (qr_page_count_raw(header->raw_bitmap, header->page_tokens) != header->raw_rows)
        return qr_error_set(e, QUIRE_ECORRUPT, "raw_rows is %u: the raw bitmap does not say so",
                            header->raw_rows);
    if (!receipt_ok(&header->receipt))
        return qr_error_set(e, QUIRE_ECORRUPT,
                            "receipt of metric %u has errors %g, %g, %g: finite numbers >= 0 "
                            "expected, all zero without a metric",
                            header->receipt.metric, (double)header->receipt.error,
                            (double)header->receipt.key_error,
                            (double)header->receipt.value_error);
    if (header->reserved0 || !all_zero(header->nonce, sizeof(header->nonce)) ||
        !all_zero(header->tag, sizeof(header->tag)) ||
        !all_zero(header->reserved1, sizeof(header->reserved1)) ||
        !all_zero(header->reserved2, sizeof(header->reserved2)))
        return qr_error_set(e, QUIRE_ECORRUPT,
                            "reserved bytes of the page header are not zero");
    return QUIRE_OK;
}

static quire_status check_sections(const struct qr_page_header *header,
                                   const struct page_layout *layout, struct qr_error *e)
{
    if (header->section_count != layout->section_count ||
        header->page_bytes != layout->page_bytes)
        return qr_error_set(e, QUIRE_ECORRUPT,
                            "page has %u sections in %u bytes: its codecs make %u in %u",
                            header->section_count, header->page_bytes, layout->section_count,
                            layout->page_bytes);
    for (uint32_t i = 0; i < QR_PAGE_SECTIONS_MAX; i++) {
        const struct qr_page_section *have = &header->sections[i];
        const struct qr_page_section *want = &layout->sections[i];
        if (memcmp(have, want, sizeof(*have)) != 0)
            return qr_error_set(e, QUIRE_ECORRUPT,
                                "section entry %u is type %u at %u, %u bytes: type %u at %u, "
                                "%u bytes expected",
                                i, have->type, have->offset, have->bytes, want->type,
                                want->offset, want->bytes);
    }
    for (uint32_t i = 0; i < layout->section_count; i++) {
        const struct qr_page_section *section = &layout->sections[i];
        if (!all_zero((const uint8_t *)header + section->offset + section->bytes,
                      qr_page_padding(layout, i)))
            return qr_error_set(e, QUIRE_ECORRUPT, "padding after %s is not zero",
                                section_name(section->type));
    }
    return QUIRE_OK;
}

static void point_view(struct qr_page_view *view, uint16_t type, const uint8_t *at)
{
    switch (type) {
    case QR_SECTION_KEY_CODES:
        view->key_codes = at;
        break;
    case QR_SECTION_KEY_SCALES:
        view->key_scales = at;
        break;
    case QR_SECTION_VALUE_CODES:
        view->value_codes = at;
        break;
    case QR_SECTION_VALUE_SCALES:
        view->value_scales = at;
        break;
    case QR_SECTION_KEY_RAW:
        view->key_raw = (const uint16_t *)(const void *)at;
        break;
    case QR_SECTION_VALUE_RAW:
        view->value_raw = (const uint16_t *)(const void *)at;
        break;
    default:
        view->digests = (const uint32_t *)(const void *)at;
        break;
    }
}

/* A limit broken inside a page is damage, not a caller's argument. */
static quire_status check_identity(const struct qr_page_header *header,
                                   struct page_layout *layout, struct qr_error *e)
{
    struct qr_page_identity id;
    qr_page_identity_of(header, &id);
    quire_status status = qr_page_identity_check(&id, e);
    if (!status)
        status = check_header(header, e);
    if (!status)
        status = qr_page_layout(&id, header->raw_rows, layout, e);
    if (status != QUIRE_EINVAL)
        return status;
    if (e)
        e->status = QUIRE_ECORRUPT;
    return QUIRE_ECORRUPT;
}

/* What a decoder indexes memory with: the order of channels names each of them once. */
static quire_status check_structure(const struct qr_codec_spec *spec,
                                    const struct qr_page_header *header, uint32_t dim,
                                    const uint8_t *scales, const char *tensor,
                                    struct qr_error *e)
{
    struct qr_spec_parts parts = {0};
    uint64_t seen[QR_SPEC_ORDER_MAX / 64] = {0};
    const uint32_t channels = header->heads * dim;
    (void)qr_spec_parts(spec, header->tokens, header->heads, dim, &parts);
    if (spec->codec == QR_CODEC_NUQ)
        return qr_values_check_nuq_structure(header, spec, &parts, scales, tensor, e);
    if (!parts.order)
        return QUIRE_OK;
    const uint16_t *order = (const uint16_t *)(const void *)(scales + parts.order);
    for (uint32_t i = 0; i < channels; i++) {
        const uint32_t c = order[i];
        if (c >= channels || seen[c / 64] >> c % 64 & 1u)
            return qr_error_set(
                e, QUIRE_ECORRUPT,
                "%s order: place %u has channel %u: each of 0..%u once expected", tensor, i, c,
                channels - 1);
        seen[c / 64] |= 1ull << c % 64;
    }
    return QUIRE_OK;
}

quire_status qr_page_open(const void *page, size_t bytes, struct qr_page_view *out,
                          struct qr_error *e)
{
    assert((uintptr_t)page % 8 == 0);
    const struct qr_page_header *header = page;
    struct page_layout layout;
    quire_status status = check_envelope(header, bytes, e);
    if (!status)
        status = check_supported(header, e);
    if (!status)
        status = check_identity(header, &layout, e);
    if (!status)
        status = check_sections(header, &layout, e);
    if (status)
        return status;

    *out = (struct qr_page_view){.header = header};
    for (uint32_t i = 0; i < layout.section_count; i++)
        point_view(out, layout.sections[i].type,
                   (const uint8_t *)page + layout.sections[i].offset);
    const struct qr_page_view *view = out;
    status = check_structure(&header->key, header, header->key_dim, view->key_scales, "key", e);
    return status ? status
                  : check_structure(&header->value, header, header->value_dim,
                                    view->value_scales, "value", e);
}
