/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the sections of a page stand: one answer for the writer (page.c) and
 * the validator (page_open.c), which alone include this.
 */
#ifndef QR_LAYOUT_H
#define QR_LAYOUT_H

#include "page.h"

struct page_layout {
    uint32_t section_count, page_bytes;
    struct qr_page_section sections[QR_PAGE_SECTIONS_MAX]; /* ascending types */
};

/** Limits of the format. EINVAL or EUNSUPPORTED, naming the field and its value. */
quire_status qr_page_identity_check(const struct qr_page_identity *id, struct qr_error *e);
/** Sections of a page whose identity was checked; EINVAL: longer than QR_PAGE_BYTES_MAX. */
quire_status qr_page_layout(const struct qr_page_identity *id, uint32_t raw_rows,
                            struct page_layout *out, struct qr_error *e);
/** Set bits among the first `tokens`; -1 when a bit past them is set. */
int qr_page_count_raw(const uint8_t raw_bitmap[QR_PAGE_TOKENS_MAX / 8], uint32_t tokens);
/** Bytes from the end of section `index` to the next section or the page's end. */
size_t qr_page_padding(const struct page_layout *layout, uint32_t index);

#endif
