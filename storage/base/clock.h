/* SPDX-License-Identifier: Apache-2.0
 *
 * Time: monotonic for deadlines and leases, wall clock for log lines and for numbers that no
 * other start of a process uses.
 */
#ifndef QR_CLOCK_H
#define QR_CLOCK_H

#include <stdint.h>

/** Nanoseconds of the monotonic clock; any thread. */
uint64_t qr_clock_ns(void);
/** Milliseconds of the monotonic clock; any thread. */
uint64_t qr_clock_ms(void);
/** Microseconds since 1970 UTC; jumps when the clock is set, so never for deadlines. */
uint64_t qr_clock_wall_us(void);

#endif
