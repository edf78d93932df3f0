/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading an export's records: each record is checked alone (checksums, reserved fields),
 * against the one before it (number, chain), and against what the session must have next. Must
 * not know who reads, or where the bytes come from.
 */
#include "export.h"

#include <inttypes.h>
#include <string.h>

#include "export_parts.h"

#define DAMAGE(...) qr_export_damage(e, QUIRE_ECORRUPT, __VA_ARGS__)

static quire_status take_model(struct qr_export_walk *walk, const void *payload, size_t n,
                               struct qr_error *e)
{
    const uint32_t shards = walk->head.head_shards;
    uint32_t lanes = 0;
    struct qr_model model;
    struct qr_error cause;

    if (qr_model_unpack(payload, n, &model, &cause))
        return qr_export_wrap(e, walk->offset, &cause);
    if (memcmp(model.fingerprint, walk->head.fingerprint, QR_HASH_BYTES) != 0)
        return DAMAGE(walk->offset, "the model \"%.100s\" has not the fingerprint of the head",
                      model.name);
    for (uint32_t i = 0; i < model.layer_count; i++) {
        const uint32_t heads = model.layers[i].kv_heads;
        if (heads % shards)
            return DAMAGE(walk->offset,
                          "%u head shards do not divide the %u KV heads of layer %u", shards,
                          heads, i);
        lanes += heads ? shards : 0;
    }
    if (qr_policy_check_layers(&walk->policy, model.layer_count, &cause))
        return qr_export_wrap(e, walk->offset, &cause);
    walk->model = model;
    walk->lane_count = lanes;
    walk->has_model = true;
    return QUIRE_OK;
}

/* ---- what must come next ------------------------------------------------------------------
 */

static size_t token_ids_bytes(uint32_t count)
{
    return (size_t)count * 4 + (count + 7u) / 8u;
}

bool qr_export_next(const struct qr_export_walk *walk, struct qr_export_record *out)
{
    const struct qr_export_head *head = &walk->head;
    const uint32_t ids_left = head->block_count - walk->block_ids;

    *out = (struct qr_export_record){.offset = walk->offset};
    if (walk->done)
        return false;
    if (!walk->has_model) {
        out->type = QR_EXPORT_MODEL;
    } else if (ids_left > 0) {
        out->type = QR_EXPORT_BLOCK_IDS;
        out->count = ids_left < QR_EXPORT_IDS_MAX ? ids_left : QR_EXPORT_IDS_MAX;
        out->position = walk->block_ids;
        out->bytes = (size_t)out->count * QR_HASH_BYTES;
    } else if (head->token_count > 0 && !walk->has_tokens) {
        out->type = QR_EXPORT_TOKEN_IDS;
        out->count = head->token_count;
        out->position = (uint64_t)head->block_count * head->page_tokens;
        out->bytes = token_ids_bytes(out->count);
    } else if (head->length > 0 && qr_export_lane(walk, walk->lane, out)) {
        const uint64_t in_blocks = (uint64_t)head->block_count * head->page_tokens;
        const bool page = !walk->in_rows && walk->position + head->page_tokens <= in_blocks;
        out->type = page ? QR_EXPORT_PAGE : QR_EXPORT_ROWS;
        out->position = walk->position;
    } else {
        out->type = QR_EXPORT_END;
        out->bytes = sizeof(struct qr_export_end);
    }
    return true;
}

uint64_t qr_export_frame_bytes(const struct qr_export_head *head, size_t model_bytes)
{
    const uint64_t id_records =
        (head->block_count + (uint64_t)QR_EXPORT_IDS_MAX - 1) / QR_EXPORT_IDS_MAX;
    uint64_t bytes = sizeof(*head) + sizeof(struct qr_export_mark);

    bytes += QR_EXPORT_PADDED(model_bytes);
    bytes += id_records * sizeof(struct qr_export_mark);
    bytes +=
        (uint64_t)head->block_count / QR_EXPORT_IDS_MAX * QR_EXPORT_IDS_MAX * QR_HASH_BYTES;
    bytes += QR_EXPORT_PADDED((uint64_t)head->block_count % QR_EXPORT_IDS_MAX * QR_HASH_BYTES);
    if (head->token_count)
        bytes += sizeof(struct qr_export_mark) +
                 QR_EXPORT_PADDED(token_ids_bytes(head->token_count));
    return bytes + sizeof(struct qr_export_mark) + sizeof(struct qr_export_end);
}

/* ---- marks --------------------------------------------------------------------------------
 */

static quire_status check_mark(const struct qr_export_walk *walk,
                               const struct qr_export_mark *mark, struct qr_error *e)
{
    const uint64_t sum = qr_checksum(mark, offsetof(struct qr_export_mark, checksum));

    if (mark->magic != QR_EXPORT_RECORD_MAGIC)
        return DAMAGE(walk->offset, "no record begins here (0x%08x)", mark->magic);
    if (mark->checksum != sum)
        return DAMAGE(walk->offset,
                      "checksum of the record's mark is %016" PRIx64
                      ": its bytes give %016" PRIx64,
                      mark->checksum, sum);
    if (mark->number != walk->records || mark->previous != walk->previous)
        return DAMAGE(walk->offset,
                      "record %" PRIu64 " of another place or file: record %" PRIu64
                      " of this one must follow",
                      mark->number, walk->records);
    if (mark->flags)
        return qr_export_damage(e, QUIRE_EUNSUPPORTED, walk->offset,
                                "record flags are 0x%04x: no flag is known", mark->flags);
    if (mark->type < QR_EXPORT_MODEL || mark->type > QR_EXPORT_END)
        return qr_export_damage(e, QUIRE_EUNSUPPORTED, walk->offset,
                                "record type %u is not known", mark->type);
    return QUIRE_OK;
}

/* Count and bytes where the session leaves a choice. */
static bool sizes_fit(const struct qr_export_walk *walk, const struct qr_export_mark *mark,
                      const struct qr_export_record *next)
{
    const uint32_t page_tokens = walk->head.page_tokens;
    const uint64_t left = walk->head.length - next->position;
    const uint64_t in_block = page_tokens - next->position % page_tokens;

    switch (mark->type) {
    case QR_EXPORT_MODEL:
        return mark->count == 0 && mark->bytes > 0 && mark->bytes <= QR_MODEL_PACKED_MAX;
    case QR_EXPORT_PAGE:
        return mark->count == page_tokens && mark->bytes >= sizeof(struct qr_page_header) &&
               mark->bytes % QR_PAGE_ALIGN == 0 &&
               mark->bytes <= qr_export_page_max(walk, next);
    case QR_EXPORT_ROWS:
        return mark->count >= 1 && mark->count <= left && mark->count <= in_block &&
               mark->bytes == mark->count * qr_export_row_bytes(walk, next) &&
               mark->bytes <= QR_EXPORT_ROWS_MAX;
    default:
        return mark->count == next->count && mark->bytes == next->bytes;
    }
}

quire_status qr_export_record(const struct qr_export_walk *walk, const void *bytes,
                              struct qr_export_record *out, struct qr_error *e)
{
    struct qr_export_mark mark;
    struct qr_export_record next;

    memcpy(&mark, bytes, sizeof(mark));
    if (!qr_export_next(walk, &next))
        return DAMAGE(walk->offset, "bytes after the end of the export");
    quire_status status = check_mark(walk, &mark, e);
    if (status)
        return status;
    const bool instead = mark.type == QR_EXPORT_ROWS && next.type == QR_EXPORT_PAGE;
    if ((mark.type != next.type && !instead) || mark.lane != next.lane ||
        mark.position != next.position)
        return DAMAGE(walk->offset,
                      "%s (lane %u, position %" PRIu64 ") where %s (lane %u, position %" PRIu64
                      ") must come",
                      qr_export_type_name(mark.type), mark.lane, mark.position,
                      qr_export_type_name(next.type), next.lane, next.position);
    if (!sizes_fit(walk, &mark, &next))
        return DAMAGE(walk->offset, "%s of %u in %" PRIu64 " bytes cannot be",
                      qr_export_type_name(mark.type), mark.count, mark.bytes);
    if (walk->offset + sizeof(mark) + QR_EXPORT_PADDED(mark.bytes) > walk->head.file_bytes)
        return DAMAGE(walk->offset, "record of %" PRIu64 " bytes passes the file's %" PRIu64,
                      mark.bytes, walk->head.file_bytes);
    next.type = (enum qr_export_type)mark.type;
    next.count = mark.count;
    next.bytes = (size_t)mark.bytes;
    *out = next;
    return QUIRE_OK;
}

/* ---- payloads -----------------------------------------------------------------------------
 */

static quire_status check_page(const struct qr_export_walk *walk,
                               const struct qr_export_record *record, const void *payload,
                               struct qr_error *e)
{
    struct qr_page_identity id;
    struct qr_page_view view;
    struct qr_error cause;

    if (qr_page_open(payload, record->bytes, &view, &cause))
        return qr_export_wrap(e, walk->offset, &cause);
    qr_export_identity(walk, record, &id);
    memcpy(id.block_id, view.header->block_id, QR_HASH_BYTES);
    return qr_page_match(view.header, &id, &cause) ? qr_export_wrap(e, walk->offset, &cause)
                                                   : QUIRE_OK;
}

static quire_status check_block_ids(const struct qr_export_walk *walk,
                                    const struct qr_export_record *record,
                                    const uint8_t *payload, struct qr_error *e)
{
    for (uint32_t i = 0; i < record->count; i++)
        if (qr_export_zero(payload + (size_t)i * QR_HASH_BYTES, QR_HASH_BYTES))
            return DAMAGE(walk->offset, "the id of block %" PRIu64 " is zero",
                          record->position + i);
    return QUIRE_OK;
}

/* An id that is not known is zero, and so are the bits after the last one. */
static quire_status check_token_ids(const struct qr_export_walk *walk,
                                    const struct qr_export_record *record,
                                    const uint8_t *payload, struct qr_error *e)
{
    const uint8_t *known = payload + (size_t)record->count * 4;

    for (uint32_t i = 0; i < record->count; i++)
        if (!(known[i / 8] >> (i % 8) & 1) && !qr_export_zero(payload + (size_t)i * 4, 4))
            return DAMAGE(walk->offset, "token id %u is not known, and not zero", i);
    if (record->count % 8 && known[record->count / 8] >> (record->count % 8))
        return DAMAGE(walk->offset, "bits after the last token id are not zero");
    return QUIRE_OK;
}

void qr_export_end_fill(const struct qr_export_walk *walk, struct qr_export_end *out)
{
    struct qr_sha256 sha = walk->sha;

    memset(out, 0, sizeof(*out));
    out->records = walk->records;
    out->file_bytes = walk->offset + sizeof(struct qr_export_mark) + sizeof(*out);
    qr_sha256_finish(&sha, out->digest);
}

static quire_status check_end(const struct qr_export_walk *walk, const void *payload,
                              struct qr_error *e)
{
    struct qr_export_end end;

    qr_export_end_fill(walk, &end);
    if (memcmp(&end, payload, sizeof(end)) != 0)
        return DAMAGE(walk->offset, "the end's digest or totals are not those of this file");
    if (end.file_bytes != walk->head.file_bytes)
        return DAMAGE(walk->offset, "the file ends at %" PRIu64 " bytes, not at %" PRIu64,
                      end.file_bytes, walk->head.file_bytes);
    return QUIRE_OK;
}

static quire_status take_contents(struct qr_export_walk *walk,
                                  const struct qr_export_record *record, const void *payload,
                                  struct qr_error *e)
{
    switch (record->type) {
    case QR_EXPORT_MODEL:
        return take_model(walk, payload, record->bytes, e);
    case QR_EXPORT_BLOCK_IDS:
        return check_block_ids(walk, record, payload, e);
    case QR_EXPORT_TOKEN_IDS:
        return check_token_ids(walk, record, payload, e);
    case QR_EXPORT_PAGE:
        return check_page(walk, record, payload, e);
    case QR_EXPORT_ROWS:
        return QUIRE_OK;
    case QR_EXPORT_END:
        return check_end(walk, payload, e);
    }
    return QUIRE_EINTERNAL;
}

static void step(struct qr_export_walk *walk, const struct qr_export_record *record,
                 const struct qr_export_mark *mark)
{
    qr_sha256_bytes(&walk->sha, mark, sizeof(*mark));
    walk->offset += sizeof(*mark) + QR_EXPORT_PADDED(record->bytes);
    walk->records++;
    walk->previous = mark->checksum;
    walk->has_tokens |= record->type == QR_EXPORT_TOKEN_IDS;
    walk->done = record->type == QR_EXPORT_END;
    if (record->type == QR_EXPORT_BLOCK_IDS)
        walk->block_ids += record->count;
    if (record->type != QR_EXPORT_PAGE && record->type != QR_EXPORT_ROWS)
        return;
    walk->position += record->count;
    walk->in_rows = record->type == QR_EXPORT_ROWS;
    if (walk->position == walk->head.length) {
        walk->lane++;
        walk->position = 0;
        walk->in_rows = false;
    }
}

quire_status qr_export_take(struct qr_export_walk *walk, const struct qr_export_mark *mark,
                            const void *payload, bool verify, struct qr_error *e)
{
    struct qr_export_record record = {0};
    quire_status status = qr_export_record(walk, mark, &record, e);

    if (status)
        return status;
    const size_t padded = QR_EXPORT_PADDED(record.bytes);
    const uint64_t sum = verify ? qr_checksum(payload, padded) : mark->payload_checksum;
    if (sum != mark->payload_checksum)
        return DAMAGE(walk->offset,
                      "%s: checksum is %016" PRIx64 ", its %zu bytes give %016" PRIx64,
                      qr_export_type_name(record.type), mark->payload_checksum, padded, sum);
    if (!qr_export_zero((const uint8_t *)payload + record.bytes, padded - record.bytes))
        return DAMAGE(walk->offset, "padding of %s is not zero",
                      qr_export_type_name(record.type));
    status = take_contents(walk, &record, payload, e);
    if (!status)
        step(walk, &record, mark);
    return status;
}

quire_status qr_export_payload(struct qr_export_walk *walk, const void *bytes,
                               const void *payload, struct qr_error *e)
{
    struct qr_export_mark mark;

    memcpy(&mark, bytes, sizeof(mark));
    return qr_export_take(walk, &mark, payload, true, e);
}
