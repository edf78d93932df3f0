/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the export format share. Only export*.c include this.
 */
#ifndef QR_EXPORT_PARTS_H
#define QR_EXPORT_PARTS_H

#include "export.h"

/** "a page" and the like, for texts. */
const char *qr_export_type_name(unsigned type);
/** Set an error whose text begins with the byte, and its position. */
quire_status qr_export_damage(struct qr_error *e, quire_status status, uint64_t offset,
                              const char *format, ...) __attribute__((format(printf, 4, 5)));
/** Another check's refusal, as damage: but what a later version may mean is EUNSUPPORTED. */
quire_status qr_export_wrap(struct qr_error *e, uint64_t offset, const struct qr_error *cause);
/** What a page at the record's place must be, but for its block id. */
void qr_export_identity(const struct qr_export_walk *walk,
                        const struct qr_export_record *record, struct qr_page_identity *out);
bool qr_export_zero(const void *bytes, size_t n);
/** qr_export_payload; verify false: the checksum was just made of these bytes. */
quire_status qr_export_take(struct qr_export_walk *walk, const struct qr_export_mark *mark,
                            const void *payload, bool verify, struct qr_error *e);

#endif
