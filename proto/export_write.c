/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing an export: heads and marks made whole. What is written goes through the reader's
 * checks, so that no file is made that would be refused.
 */
#include <string.h>

#include "export_parts.h"

void qr_export_head_finish(struct qr_export_head *head, const char *name,
                           const struct qr_policy *policy)
{
    memcpy(head->magic, QR_EXPORT_MAGIC, sizeof(head->magic));
    head->version = QR_EXPORT_VERSION;
    head->header_bytes = sizeof(*head);
    head->flags = 0;
    head->page_tokens = policy->page_tokens;
    head->window = policy->window;
    head->sink_rows = policy->sink_rows;
    head->outlier_rows = policy->outlier_rows;
    head->key = policy->key;
    head->value = policy->value;
    head->override_count = policy->override_count;
    head->reserved0 = 0;
    memcpy(head->overrides, policy->overrides, sizeof(head->overrides));
    memset(head->name, 0, sizeof(head->name));
    head->name_bytes = (uint16_t)strnlen(name, QR_NAME_MAX);
    memcpy(head->name, name, head->name_bytes);
    memset(head->reserved1, 0, sizeof(head->reserved1));
    memset(head->reserved2, 0, sizeof(head->reserved2));
    head->checksum = qr_checksum((const uint8_t *)head + 16, sizeof(*head) - 16);
}

quire_status qr_export_seal(struct qr_export_walk *walk, const struct qr_export_record *record,
                            const void *payload, struct qr_export_mark *mark_out,
                            struct qr_error *e)
{
    struct qr_export_mark mark = {.magic = QR_EXPORT_RECORD_MAGIC,
                                  .type = (uint16_t)record->type,
                                  .number = walk->records,
                                  .lane = record->lane,
                                  .count = record->count,
                                  .position = record->position,
                                  .bytes = record->bytes,
                                  .previous = walk->previous};

    mark.payload_checksum = qr_checksum(payload, QR_EXPORT_PADDED(record->bytes));
    mark.checksum = qr_checksum(&mark, offsetof(struct qr_export_mark, checksum));
    const quire_status status = qr_export_take(walk, &mark, payload, false, e);
    if (!status)
        *mark_out = mark;
    return status;
}
