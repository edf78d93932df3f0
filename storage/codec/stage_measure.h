/* SPDX-License-Identifier: Apache-2.0
 *
 * What a stage takes from the page itself: means and norms of channels, and
 * their order. Private to stage*.c.
 */
#ifndef QR_STAGE_MEASURE_H
#define QR_STAGE_MEASURE_H

#include "proto/spec_parts.h"
#include "stage.h"

const struct qr_stage_kernels *qr_stage_kernels(void);

/** Fill the parts of the scales section that the spec's options add; raw rows are left out of
 * what is measured. */
void qr_stage_measure(const struct qr_tensor *tensor, const struct qr_spec_parts *parts,
                      const struct qr_rows *in, const uint8_t *raw_bitmap, uint8_t *scales);

#endif
