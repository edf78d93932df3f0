/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of page_values.c that are one codec's own: whether its stored numbers
 * decode to finite FP16. Private to proto/.
 */
#ifndef QR_VALUES_CODEC_H
#define QR_VALUES_CODEC_H

#include "page.h"

/* All: EVALUE, with `tensor` ("key", "value"), where in the section, and the number. */
quire_status qr_values_check_fp8_codes(const struct qr_codec_spec *spec, const uint8_t *codes,
                                       size_t bytes, const char *tensor, struct qr_error *e);
quire_status qr_values_check_fp8_scales(const struct qr_codec_spec *spec, const uint8_t *scales,
                                        size_t bytes, const char *tensor, struct qr_error *e);

#endif
