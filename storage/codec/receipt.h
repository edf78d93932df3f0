/* SPDX-License-Identifier: Apache-2.0
 *
 * Receipts: what encoding a page did to attention over it, measured by whoever sealed it while
 * the FP16 rows were at hand. README.md says what is measured and how well it foretells the
 * error that a model sees. Must not know sessions.
 */
#ifndef QR_RECEIPT_H
#define QR_RECEIPT_H

#include "codec.h"

/** Whether sampling one page in `every` takes this one: 0 none, 1 all; else pages of a lane in
 * turn, lanes of different layers at different ones. */
bool qr_receipt_due(const struct qr_page_identity *id, uint32_t every);

/** Bytes that qr_receipt_measure needs. */
size_t qr_receipt_scratch_bytes(const struct qr_page_identity *id);

/**
 * Measure a page that qr_page_encode has just made of these rows, write the receipt into its
 * header and finish it anew. scratch: qr_receipt_scratch_bytes, 64-byte aligned. The figures
 * may differ in the last bits from one instruction set to another: pages are compared without
 * their receipts (qr_receipt_copy). Pure; any thread. Errors: those of qr_page_open, the page
 * as it was.
 */
quire_status qr_receipt_measure(void *page, size_t bytes, const struct qr_rows *key,
                                const struct qr_rows *value, void *scratch, struct qr_error *e);

/** Give the page `to` the receipt of page `from` and finish it anew, unless they have the same:
 * what is left to compare are the pages themselves. */
void qr_receipt_copy(void *to, const void *from);

/** What several receipts say together. All zero: none. */
struct qr_receipt_sum {
    uint64_t count;
    double squares; /* of the errors */
    float largest;
};
/** Add a receipt; one that was not measured adds nothing. */
void qr_receipt_add(struct qr_receipt_sum *sum, const struct qr_receipt *receipt);

#endif
