/* SPDX-License-Identifier: Apache-2.0
 *
 * What figures are made of: buffers that are really there, memcpy as the yardstick, medians,
 * and the median of an empty round trip.
 */
#ifndef QR_MEASURE_H
#define QR_MEASURE_H

#include "client/quire.h"

/** Page-aligned zeroed memory, every page touched; free() it. NULL: no memory. */
void *qr_measure_buffer(size_t bytes);
/** Seconds that one thread's memcpy of `bytes` takes. */
double qr_measure_memcpy(void *to, const void *from, size_t bytes);
/** Median; sorts in place. 0 of nothing. */
double qr_measure_median(double *values, size_t count);

/** GB/s; 0 when nothing was measured. */
double qr_measure_rate(double bytes, double seconds);

#endif
