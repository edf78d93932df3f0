/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of page_values.c that are one codec's own: whether its stored numbers
 * decode to finite FP16. Private to proto/.
 */
#ifndef QR_VALUES_CODEC_H
#define QR_VALUES_CODEC_H

#include "spec_parts.h"

/* All: EVALUE, with `tensor` ("key", "value"), where in the section, and the number. */
quire_status qr_values_check_fp8_codes(const struct qr_codec_spec *spec, const uint8_t *codes,
                                       size_t bytes, const char *tensor, struct qr_error *e);
quire_status qr_values_check_fp8_scales(const struct qr_codec_spec *spec, const uint8_t *scales,
                                        size_t bytes, const char *tensor, struct qr_error *e);

/** What a decoder of nuq relies on, ECORRUPT: a level table, and in each head no more outliers
 * than there is room for, their positions ascending, none of a raw row, zeros after them. */
quire_status qr_values_check_nuq_structure(const struct qr_page_header *header,
                                           const struct qr_codec_spec *spec,
                                           const struct qr_spec_parts *parts,
                                           const uint8_t *scales, const char *tensor,
                                           struct qr_error *e);
/** Scales, middles and outliers finite. */
quire_status qr_values_check_nuq(const struct qr_page_header *header,
                                 const struct qr_spec_parts *parts, const uint8_t *scales,
                                 const char *tensor, struct qr_error *e);

#endif
