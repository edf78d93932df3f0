/* SPDX-License-Identifier: Apache-2.0
 *
 * Time from the vDSO clocks.
 */
#include "clock.h"

#include <time.h>

static uint64_t read_ns(clockid_t clock)
{
    struct timespec t = {0};

    (void)clock_gettime(clock, &t); /* cannot fail for these two clocks */
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t qr_clock_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

uint64_t qr_clock_ms(void)
{
    return qr_clock_ns() / 1000000u;
}

uint64_t qr_clock_wall_us(void)
{
    return read_ns(CLOCK_REALTIME) / 1000u;
}
