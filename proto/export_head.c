/* SPDX-License-Identifier: Apache-2.0
 *
 * The head of an export, the geometry that its records have, and how damage is told. Must not
 * know records.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "export_parts.h"

const char *qr_export_type_name(unsigned type)
{
    static const char *const names[] = {"nothing", "the model", "block ids", "token ids",
                                        "a page",  "rows",      "the end"};

    return type < sizeof(names) / sizeof(names[0]) ? names[type] : "an unknown record";
}

quire_status qr_export_damage(struct qr_error *e, quire_status status, uint64_t offset,
                              const char *format, ...)
{
    char text[QR_ERROR_TEXT_MAX];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    qr_error_set(e, status, "byte %" PRIu64 ": %s", offset, text);
    if (e)
        e->position = offset;
    return status;
}

#define DAMAGE(...) qr_export_damage(e, QUIRE_ECORRUPT, __VA_ARGS__)

quire_status qr_export_wrap(struct qr_error *e, uint64_t offset, const struct qr_error *cause)
{
    const bool newer = cause->status == QUIRE_EUNSUPPORTED;

    return qr_export_damage(e, newer ? QUIRE_EUNSUPPORTED : QUIRE_ECORRUPT, offset, "%s",
                            cause->text);
}

bool qr_export_zero(const void *bytes, size_t n)
{
    const uint8_t *at = bytes;

    for (size_t i = 0; i < n; i++)
        if (at[i])
            return false;
    return true;
}

/* ---- the head -----------------------------------------------------------------------------
 */

static quire_status check_envelope(const struct qr_export_head *head, struct qr_error *e)
{
    if (memcmp(head->magic, QR_EXPORT_MAGIC, sizeof(head->magic)) != 0)
        return DAMAGE(0, "not an export of a session: it does not begin with \"%s\"",
                      QR_EXPORT_MAGIC);
    if (head->version != QR_EXPORT_VERSION)
        return qr_export_damage(e, QUIRE_EUNSUPPORTED, 0,
                                "export of version %u: version %d is known", head->version,
                                QR_EXPORT_VERSION);
    const uint64_t sum = qr_checksum((const uint8_t *)head + 16, sizeof(*head) - 16);
    if (head->checksum != sum)
        return DAMAGE(0, "checksum of the head is %016" PRIx64 ": its bytes give %016" PRIx64,
                      head->checksum, sum);
    if (head->flags)
        return qr_export_damage(e, QUIRE_EUNSUPPORTED, 0,
                                "export flags are 0x%08x: no flag is known", head->flags);
    if (head->header_bytes != sizeof(*head))
        return DAMAGE(0, "header_bytes is %u: %zu expected", head->header_bytes, sizeof(*head));
    if (head->reserved0 || !qr_export_zero(head->reserved1, sizeof(head->reserved1)) ||
        !qr_export_zero(head->reserved2, sizeof(head->reserved2)))
        return DAMAGE(0, "reserved bytes of the head are not zero");
    return QUIRE_OK;
}

static quire_status check_name(const struct qr_export_head *head, struct qr_error *e)
{
    if (head->name_bytes < 1 || head->name_bytes > QR_NAME_MAX)
        return DAMAGE(0, "session name of %u bytes: 1 to %d expected", head->name_bytes,
                      QR_NAME_MAX);
    for (uint32_t i = 0; i < head->name_bytes; i++)
        if ((unsigned char)head->name[i] < 0x20 || head->name[i] == 0x7f)
            return DAMAGE(0, "session name has control character 0x%02x at byte %u",
                          (unsigned)(unsigned char)head->name[i], i);
    if (!qr_export_zero(head->name + head->name_bytes, sizeof(head->name) - head->name_bytes))
        return DAMAGE(0, "bytes after the session name are not zero");
    return QUIRE_OK;
}

static quire_status check_numbers(const struct qr_export_head *head, struct qr_error *e)
{
    const uint64_t in_blocks = (uint64_t)head->block_count * head->page_tokens;

    if (head->length > QR_POSITION_MAX + 1u)
        return DAMAGE(0, "length is %" PRIu64 ": at most %u tokens", head->length,
                      QR_POSITION_MAX + 1u);
    if (head->head_shards < 1 || head->head_shards > QR_HEADS_MAX)
        return DAMAGE(0, "%u head shards: 1 to %d expected", head->head_shards, QR_HEADS_MAX);
    if (in_blocks > head->length || head->length - in_blocks > QR_EXPORT_TAIL_MAX)
        return DAMAGE(0, "%u blocks of %u tokens in %" PRIu64 ": at most %u may follow them",
                      head->block_count, head->page_tokens, head->length, QR_EXPORT_TAIL_MAX);
    if (head->chained > head->block_count)
        return DAMAGE(0, "%u chained blocks of %u", head->chained, head->block_count);
    if (head->token_count && head->token_count != head->length - in_blocks)
        return DAMAGE(0, "%u token ids: 0 or %" PRIu64 " expected", head->token_count,
                      head->length - in_blocks);
    if (head->file_bytes % 64 || head->file_bytes < sizeof(*head))
        return DAMAGE(0, "file_bytes is %" PRIu64 ": a multiple of 64 expected",
                      head->file_bytes);
    return QUIRE_OK;
}

static quire_status take_policy(const struct qr_export_head *head, struct qr_policy *out,
                                struct qr_error *e)
{
    const uint32_t n = head->override_count;
    struct qr_error cause;

    *out = (struct qr_policy){.page_tokens = head->page_tokens,
                              .window = head->window,
                              .sink_rows = head->sink_rows,
                              .outlier_rows = head->outlier_rows,
                              .key = head->key,
                              .value = head->value,
                              .override_count = n};
    memcpy(out->overrides, head->overrides, sizeof(out->overrides));
    if (qr_policy_check(out, &cause))
        return qr_export_wrap(e, 0, &cause);
    if (!qr_export_zero(head->overrides + n, (QR_OVERRIDES_MAX - n) * sizeof(*head->overrides)))
        return DAMAGE(0, "bytes after the %u overrides are not zero", n);
    return QUIRE_OK;
}

quire_status qr_export_begin(struct qr_export_walk *walk, const void *head, struct qr_error *e)
{
    memset(walk, 0, sizeof(*walk));
    memcpy(&walk->head, head, sizeof(walk->head));
    quire_status status = check_envelope(&walk->head, e);
    if (!status)
        status = check_name(&walk->head, e);
    if (!status)
        status = take_policy(&walk->head, &walk->policy, e);
    if (!status)
        status = check_numbers(&walk->head, e);
    if (status)
        return status;
    qr_sha256_init(&walk->sha);
    qr_sha256_bytes(&walk->sha, &walk->head, sizeof(walk->head));
    walk->offset = sizeof(walk->head);
    walk->previous = walk->head.checksum;
    return QUIRE_OK;
}

/* ---- geometry -----------------------------------------------------------------------------
 */

bool qr_export_lane(const struct qr_export_walk *walk, uint32_t lane,
                    struct qr_export_record *out)
{
    const uint32_t shards = walk->head.head_shards;
    uint32_t row = lane / shards;

    for (uint32_t i = 0; i < walk->model.layer_count; i++) {
        if (walk->model.layers[i].kv_heads == 0 || row-- > 0)
            continue;
        out->lane = lane;
        out->layer = i;
        out->heads = walk->model.layers[i].kv_heads / shards;
        out->first_head = lane % shards * out->heads;
        return true;
    }
    return false;
}

size_t qr_export_row_bytes(const struct qr_export_walk *walk,
                           const struct qr_export_record *record)
{
    const struct qr_layer *layer = &walk->model.layers[record->layer];

    return (size_t)record->heads * ((size_t)layer->key_dim + layer->value_dim) * 2;
}

void qr_export_identity(const struct qr_export_walk *walk,
                        const struct qr_export_record *record, struct qr_page_identity *out)
{
    const struct qr_layer *layer = &walk->model.layers[record->layer];
    const bool rotated = layer->rope_stored != QR_ROPE_NONE;

    *out = (struct qr_page_identity){
        .layer = record->layer,
        .first_head = (uint16_t)record->first_head,
        .heads = (uint16_t)record->heads,
        .key_dim = layer->key_dim,
        .value_dim = layer->value_dim,
        .rope_stored = layer->rope_stored,
        .rope_layout = rotated ? (uint8_t)walk->model.ropes[layer->rope].layout : 0,
        .page_tokens = walk->policy.page_tokens,
        .first_position = record->position};
    qr_policy_specs(&walk->policy, record->layer, &out->key, &out->value);
    memcpy(out->fingerprint, walk->head.fingerprint, QR_HASH_BYTES);
    qr_page_identity_levels(out, &walk->model);
}

size_t qr_export_page_max(const struct qr_export_walk *walk,
                          const struct qr_export_record *record)
{
    struct qr_page_identity id;

    qr_export_identity(walk, record, &id);
    id.first_position = 0;
    const size_t most = qr_page_bytes(&id, walk->policy.page_tokens);
    return most < QR_PAGE_BYTES_MAX ? most : QR_PAGE_BYTES_MAX;
}
