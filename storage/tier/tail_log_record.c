/* SPDX-License-Identifier: Apache-2.0
 *
 * Records and segment headers of the tail log to bytes and back; the layout is
 * in proto/INDEX.md. Pure functions.
 */
#include <string.h>

#include "proto/page.h"
#include "tail_log_impl.h"

#define RECORD_MAGIC "QTR1"
#define SEGMENT_MAGIC "QUIRETLG"

enum {
    AT_BYTES = 4,
    AT_CHECKSUM = 8,
    AT_SEQUENCE = 16,
    AT_SEGMENT = 24,
    AT_SESSION = 32,
    AT_LANE = 48,
    AT_TOKENS = 52,
    AT_POSITION = 56,
    AT_EPOCH = 64,
    AT_PAYLOAD_BYTES = 72
};

uint32_t qr_tail_record_bytes(uint32_t payload_bytes)
{
    return (QR_TAIL_RECORD_HEAD + payload_bytes + QR_TAIL_ALIGN - 1) / QR_TAIL_ALIGN *
           QR_TAIL_ALIGN;
}

void qr_tail_record_encode(const struct qr_tail_record *record, uint8_t *out)
{
    const uint32_t bytes = qr_tail_record_bytes(record->payload_bytes);

    memset(out, 0, QR_TAIL_RECORD_HEAD);
    memset(out + bytes - QR_TAIL_ALIGN, 0, QR_TAIL_ALIGN);
    memcpy(out, RECORD_MAGIC, 4);
    memcpy(out + AT_BYTES, &bytes, 4);
    memcpy(out + AT_SEQUENCE, &record->sequence, 8);
    memcpy(out + AT_SESSION, record->session, QR_DISK_UUID_BYTES);
    memcpy(out + AT_LANE, &record->lane, 4);
    memcpy(out + AT_TOKENS, &record->tokens, 4);
    memcpy(out + AT_POSITION, &record->position, 8);
    memcpy(out + AT_EPOCH, &record->epoch, 8);
    memcpy(out + AT_PAYLOAD_BYTES, &record->payload_bytes, 4);
    memcpy(out + QR_TAIL_RECORD_HEAD, record->payload, record->payload_bytes);
}

uint32_t qr_tail_record_size(const uint8_t *record)
{
    uint32_t bytes;
    memcpy(&bytes, record + AT_BYTES, 4);
    return bytes;
}

void qr_tail_record_finish(uint8_t *record, uint64_t segment)
{
    memcpy(record + AT_SEGMENT, &segment, 8);
    const uint64_t checksum =
        qr_checksum(record + AT_SEQUENCE, qr_tail_record_size(record) - AT_SEQUENCE);
    memcpy(record + AT_CHECKSUM, &checksum, 8);
}

uint32_t qr_tail_record_decode(const uint8_t *at, size_t n, uint64_t segment,
                               struct qr_tail_record *out)
{
    uint64_t checksum, own_segment;

    if (n < QR_TAIL_RECORD_HEAD || memcmp(at, RECORD_MAGIC, 4) != 0)
        return 0;
    const uint32_t bytes = qr_tail_record_size(at);
    memcpy(&checksum, at + AT_CHECKSUM, 8);
    memcpy(&own_segment, at + AT_SEGMENT, 8);
    memcpy(&out->payload_bytes, at + AT_PAYLOAD_BYTES, 4);
    if (bytes > n || bytes < QR_TAIL_RECORD_HEAD || out->payload_bytes > bytes ||
        bytes != qr_tail_record_bytes(out->payload_bytes) || own_segment != segment ||
        checksum != qr_checksum(at + AT_SEQUENCE, bytes - AT_SEQUENCE))
        return 0;
    memcpy(&out->sequence, at + AT_SEQUENCE, 8);
    memcpy(out->session, at + AT_SESSION, QR_DISK_UUID_BYTES);
    memcpy(&out->lane, at + AT_LANE, 4);
    memcpy(&out->tokens, at + AT_TOKENS, 4);
    memcpy(&out->position, at + AT_POSITION, 8);
    memcpy(&out->epoch, at + AT_EPOCH, 8);
    out->payload = at + QR_TAIL_RECORD_HEAD;
    return bytes;
}

bool qr_tail_is_clean_end(const uint8_t *contents, size_t at, size_t bytes)
{
    const size_t end = at + QR_TAIL_RECORD_HEAD < bytes ? at + QR_TAIL_RECORD_HEAD : bytes;

    for (size_t i = at; i < end; i++) {
        if (contents[i] != 0)
            return false;
    }
    return true;
}

bool qr_tail_record_follows(const uint8_t *contents, size_t at, size_t bytes, uint64_t segment)
{
    struct qr_tail_record record;

    for (size_t i = at; i + QR_TAIL_RECORD_HEAD <= bytes; i += QR_TAIL_ALIGN) {
        if (qr_tail_record_decode(contents + i, bytes - i, segment, &record) > 0)
            return true;
    }
    return false;
}

uint32_t qr_tail_record_skip(const uint8_t *contents, size_t at, size_t bytes, uint64_t segment)
{
    struct qr_tail_record next;
    uint32_t payload_bytes;

    if (bytes - at < QR_TAIL_RECORD_HEAD)
        return 0;
    const uint32_t size = qr_tail_record_size(contents + at);
    memcpy(&payload_bytes, contents + at + AT_PAYLOAD_BYTES, 4);
    if (payload_bytes > bytes || size != qr_tail_record_bytes(payload_bytes) ||
        size >= bytes - at ||
        qr_tail_record_decode(contents + at + size, bytes - at - size, segment, &next) == 0)
        return 0;
    return size;
}

void qr_tail_segment_header(const struct qr_tail_log *log, uint64_t number,
                            uint64_t base_sequence, uint8_t out[QR_DISK_BLOCK])
{
    const uint32_t version = QR_DISK_VERSION;

    memset(out, 0, QR_DISK_BLOCK);
    memcpy(out, SEGMENT_MAGIC, 8);
    memcpy(out + 16, &version, 4);
    memcpy(out + 24, &number, 8);
    memcpy(out + 32, &base_sequence, 8);
    memcpy(out + 40, log->store, QR_DISK_UUID_BYTES);
    const uint64_t checksum = qr_checksum(out + 16, 40);
    memcpy(out + 8, &checksum, 8);
}

quire_status qr_tail_segment_check(const uint8_t store[QR_DISK_UUID_BYTES], uint64_t number,
                                   const uint8_t block[QR_DISK_BLOCK],
                                   uint64_t *base_sequence_out)
{
    uint64_t checksum, own_number;
    uint32_t version;

    memcpy(&checksum, block + 8, 8);
    memcpy(&version, block + 16, 4);
    memcpy(&own_number, block + 24, 8);
    if (memcmp(block, SEGMENT_MAGIC, 8) != 0 || checksum != qr_checksum(block + 16, 40))
        return QUIRE_ECORRUPT;
    if (version > QR_DISK_VERSION)
        return QUIRE_EUNSUPPORTED;
    if (own_number != number || memcmp(block + 40, store, QR_DISK_UUID_BYTES) != 0)
        return QUIRE_EMISMATCH;
    memcpy(base_sequence_out, block + 32, 8);
    return QUIRE_OK;
}
