/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing pages: sizes, header and section table, checksum; and comparing a
 * page with what a reader asked for. Must not know what codes mean.
 */
#include "page.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "layout.h"
#include "spec_parts.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "pages are little-endian and used in place"
#endif

#define AT(field, at)                                                                          \
    _Static_assert(offsetof(struct qr_page_header, field) == (at), #field " stands at " #at)
AT(magic, 0);
AT(checksum, 8);
AT(version, 16);
AT(header_bytes, 18);
AT(flags, 20);
AT(page_bytes, 24);
AT(page_tokens, 28);
AT(tokens, 30);
AT(fingerprint, 32);
AT(block_id, 64);
AT(layer, 96);
AT(first_head, 100);
AT(heads, 102);
AT(key_dim, 104);
AT(value_dim, 106);
AT(rope_stored, 108);
AT(rope_layout, 109);
AT(payload, 110);
AT(position_kind, 111);
AT(first_position, 112);
AT(raw_rows, 120);
AT(section_count, 122);
AT(reserved0, 124);
AT(key, 128);
AT(value, 144);
AT(receipt, 160);
AT(key_id, 176);
AT(nonce, 180);
AT(tag, 192);
AT(reserved1, 208);
AT(raw_bitmap, 256);
AT(sections, 320);
AT(reserved2, 496);
_Static_assert(offsetof(struct qr_codec_spec, bits) == 2, "wire format");
_Static_assert(offsetof(struct qr_codec_spec, axis) == 3, "wire format");
_Static_assert(offsetof(struct qr_codec_spec, group) == 4, "wire format");
_Static_assert(offsetof(struct qr_codec_spec, packing) == 6, "wire format");
_Static_assert(offsetof(struct qr_codec_spec, param) == 8, "wire format");
_Static_assert(offsetof(struct qr_receipt, error) == 4, "wire format");
_Static_assert(offsetof(struct qr_receipt, value_error) == 12, "wire format");
_Static_assert(offsetof(struct qr_page_section, offset) == 4, "wire format");
_Static_assert(offsetof(struct qr_page_section, bytes) == 8, "wire format");

size_t qr_page_bytes(const struct qr_page_identity *id, uint32_t raw_rows)
{
    struct page_layout layout;
    if (qr_page_identity_check(id, NULL) || raw_rows > id->page_tokens ||
        qr_page_layout(id, raw_rows, &layout, NULL))
        return 0;
    return layout.page_bytes;
}

static void write_header(struct qr_page_header *header, const struct qr_page_identity *id,
                         const uint8_t raw_bitmap[QR_PAGE_TOKENS_MAX / 8], uint16_t raw_rows,
                         const struct page_layout *layout)
{
    memset(header, 0, sizeof(*header));
    memcpy(header->magic, QR_PAGE_MAGIC, sizeof(header->magic));
    header->version = QR_PAGE_VERSION;
    header->header_bytes = sizeof(*header);
    header->page_bytes = layout->page_bytes;
    header->page_tokens = id->page_tokens;
    header->tokens = id->page_tokens;
    memcpy(header->fingerprint, id->fingerprint, QR_HASH_BYTES);
    memcpy(header->block_id, id->block_id, QR_HASH_BYTES);
    header->layer = id->layer;
    header->first_head = id->first_head;
    header->heads = id->heads;
    header->key_dim = id->key_dim;
    header->value_dim = id->value_dim;
    header->rope_stored = id->rope_stored;
    header->rope_layout = id->rope_layout;
    header->payload = QR_PAYLOAD_KV;
    header->first_position = id->first_position;
    header->raw_rows = raw_rows;
    header->section_count = (uint16_t)layout->section_count;
    header->key = id->key;
    header->value = id->value;
    memcpy(header->raw_bitmap, raw_bitmap, sizeof(header->raw_bitmap));
    memcpy(header->sections, layout->sections, sizeof(header->sections));
}

static void point_section(struct qr_page_sections *sections, uint16_t type, uint8_t *at)
{
    switch (type) {
    case QR_SECTION_KEY_CODES:
        sections->key_codes = at;
        break;
    case QR_SECTION_KEY_SCALES:
        sections->key_scales = at;
        break;
    case QR_SECTION_VALUE_CODES:
        sections->value_codes = at;
        break;
    case QR_SECTION_VALUE_SCALES:
        sections->value_scales = at;
        break;
    case QR_SECTION_KEY_RAW:
        sections->key_raw = (uint16_t *)(void *)at;
        break;
    case QR_SECTION_VALUE_RAW:
        sections->value_raw = (uint16_t *)(void *)at;
        break;
    default:
        sections->digests = (uint32_t *)(void *)at;
        break;
    }
}

quire_status qr_page_begin(void *page, size_t bytes, const struct qr_page_identity *id,
                           const uint8_t raw_bitmap[QR_PAGE_TOKENS_MAX / 8],
                           struct qr_page_sections *sections_out, struct qr_error *e)
{
    assert((uintptr_t)page % QR_PAGE_ALIGN == 0);
    quire_status status = qr_page_identity_check(id, e);
    if (status)
        return status;
    const int raw_rows = qr_page_count_raw(raw_bitmap, id->page_tokens);
    if (raw_rows < 0)
        return qr_error_set(e, QUIRE_EINVAL, "raw bitmap has a bit past page_tokens %u",
                            id->page_tokens);
    struct page_layout layout;
    status = qr_page_layout(id, (uint32_t)raw_rows, &layout, e);
    if (status)
        return status;
    if (bytes != layout.page_bytes)
        return qr_error_set(e, QUIRE_EINVAL, "page buffer has %zu bytes: %u expected", bytes,
                            layout.page_bytes);

    write_header(page, id, raw_bitmap, (uint16_t)raw_rows, &layout);
    struct qr_page_sections sections = {0};
    for (uint32_t i = 0; i < layout.section_count; i++) {
        uint8_t *at = (uint8_t *)page + layout.sections[i].offset;
        memset(at + layout.sections[i].bytes, 0, qr_page_padding(&layout, i));
        point_section(&sections, layout.sections[i].type, at);
    }
    *sections_out = sections;
    return QUIRE_OK;
}

void qr_page_finish(void *page)
{
    struct qr_page_header *header = page;
    header->checksum = qr_checksum((const uint8_t *)page + QR_PAGE_CHECKED_FROM,
                                   header->page_bytes - QR_PAGE_CHECKED_FROM);
}

void qr_page_identity_of(const struct qr_page_header *header, struct qr_page_identity *out)
{
    *out = (struct qr_page_identity){
        .layer = header->layer,
        .first_head = header->first_head,
        .heads = header->heads,
        .key_dim = header->key_dim,
        .value_dim = header->value_dim,
        .rope_stored = header->rope_stored,
        .rope_layout = header->rope_layout,
        .page_tokens = header->page_tokens,
        .first_position = header->first_position,
        .key = header->key,
        .value = header->value,
    };
    memcpy(out->fingerprint, header->fingerprint, QR_HASH_BYTES);
    memcpy(out->block_id, header->block_id, QR_HASH_BYTES);
}

void qr_page_identity_levels(struct qr_page_identity *id, const struct qr_model *model)
{
    const struct qr_calibration *c = &model->calibration;
    id->key_levels = id->value_levels = NULL;
    if (id->key.codec == QR_CODEC_NUQ)
        id->key_levels = qr_calibration_levels(c, id->layer, 0, id->key.bits);
    if (id->value.codec == QR_CODEC_NUQ)
        id->value_levels = qr_calibration_levels(c, id->layer, 1, id->value.bits);
}

static quire_status match_levels(const struct qr_page_header *header, bool key,
                                 const uint16_t *want, struct qr_error *e)
{
    const struct qr_codec_spec *spec = key ? &header->key : &header->value;
    const uint16_t type = key ? QR_SECTION_KEY_SCALES : QR_SECTION_VALUE_SCALES;
    struct qr_spec_parts parts;
    if (!want || !qr_spec_parts(spec, header->tokens, header->heads,
                                key ? header->key_dim : header->value_dim, &parts))
        return QUIRE_OK;
    for (uint32_t i = 0; i < header->section_count; i++) {
        const struct qr_page_section *section = &header->sections[i];
        const uint8_t *have = (const uint8_t *)header + section->offset + parts.levels;
        if (section->type == type && memcmp(have, want, sizeof(*want) << spec->bits) != 0)
            return qr_error_set(e, QUIRE_EMISMATCH,
                                "level table of the page's %s is not that of the model's "
                                "calibration",
                                key ? "keys" : "values");
    }
    return QUIRE_OK;
}

static quire_status match_hash(const char *name, const uint8_t *have, const uint8_t *want,
                               struct qr_error *e)
{
    if (memcmp(have, want, QR_HASH_BYTES) == 0)
        return QUIRE_OK;
    char hex[2][2 * QR_HASH_BYTES + 1];
    for (size_t i = 0; i < QR_HASH_BYTES; i++) {
        snprintf(hex[0] + 2 * i, 3, "%02x", have[i]);
        snprintf(hex[1] + 2 * i, 3, "%02x", want[i]);
    }
    return qr_error_set(e, QUIRE_EMISMATCH, "%s of the page is %s: %s expected", name, hex[0],
                        hex[1]);
}

static quire_status match_spec(const char *tensor, const struct qr_codec_spec *have,
                               const struct qr_codec_spec *want, struct qr_error *e)
{
    if (memcmp(have, want, sizeof(*have)) == 0)
        return QUIRE_OK;
    return qr_error_set(e, QUIRE_EMISMATCH,
                        "%s codec/bits/axis/group/packing of the page is %u/%u/%u/%u/%u: "
                        "%u/%u/%u/%u/%u expected",
                        tensor, have->codec, have->bits, have->axis, have->group, have->packing,
                        want->codec, want->bits, want->axis, want->group, want->packing);
}

static quire_status match_numbers(const struct qr_page_header *header,
                                  const struct qr_page_identity *id, struct qr_error *e)
{
    const struct {
        const char *name;
        uint64_t have, want;
    } numbers[] = {
        {"layer", header->layer, id->layer},
        {"first_head", header->first_head, id->first_head},
        {"heads", header->heads, id->heads},
        {"key_dim", header->key_dim, id->key_dim},
        {"value_dim", header->value_dim, id->value_dim},
        {"rope_stored", header->rope_stored, id->rope_stored},
        {"rope_layout", header->rope_layout, id->rope_layout},
        {"page_tokens", header->page_tokens, id->page_tokens},
        {"first_position", header->first_position, id->first_position},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (numbers[i].have != numbers[i].want)
            return qr_error_set(e, QUIRE_EMISMATCH, "%s of the page is %llu: %llu expected",
                                numbers[i].name, (unsigned long long)numbers[i].have,
                                (unsigned long long)numbers[i].want);
    return QUIRE_OK;
}

quire_status qr_page_match(const struct qr_page_header *header,
                           const struct qr_page_identity *id, struct qr_error *e)
{
    quire_status status = match_hash("fingerprint", header->fingerprint, id->fingerprint, e);
    if (!status)
        status = match_hash("block_id", header->block_id, id->block_id, e);
    if (!status)
        status = match_numbers(header, id, e);
    if (!status)
        status = match_spec("key", &header->key, &id->key, e);
    if (!status)
        status = match_spec("value", &header->value, &id->value, e);
    if (!status)
        status = match_levels(header, true, id->key_levels, e);
    return status ? status : match_levels(header, false, id->value_levels, e);
}
