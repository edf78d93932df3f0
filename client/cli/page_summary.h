/* SPDX-License-Identifier: Apache-2.0
 *
 * What the codes and scales of one tensor of a page look like: histograms and ranges. Reads
 * validated pages through proto/; must not know where they come from.
 */
#ifndef QR_PAGE_SUMMARY_H
#define QR_PAGE_SUMMARY_H

#include "proto/page.h"

#define QR_SUMMARY_BINS 16

struct qr_page_summary {
    uint32_t bins;                   /* 0: raw FP16, no codes; else min(2^bits, 16) */
    uint32_t codes_a_bin;            /* 1, or 16 with 8 bits */
    uint64_t count[QR_SUMMARY_BINS]; /* codes in each bin; raw rows are left out */
    uint64_t groups, flat_groups;    /* flat: scale 0 */
    float scale_least, scale_most;   /* over groups that are not flat */
    double scale_mean;
    float minimum_least, minimum_most;
};

/** key: of the keys, else of the values. */
void qr_page_summarize(const struct qr_page_view *page, bool key, struct qr_page_summary *out);

#endif
