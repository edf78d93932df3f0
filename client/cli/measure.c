/* SPDX-License-Identifier: Apache-2.0
 *
 * See measure.h.
 */
#include "measure.h"

#include "output.h"

#include <stdlib.h>
#include <string.h>

void *qr_measure_buffer(size_t bytes)
{
    void *buffer = NULL;
    if (posix_memalign(&buffer, 4096, bytes > 0 ? bytes : 1) != 0)
        return NULL;
    memset(buffer, 0, bytes);
    return buffer;
}

double qr_measure_memcpy(void *to, const void *from, size_t bytes)
{
    const double start = qr_seconds();
    memcpy(to, from, bytes);
    /* The copy must happen although nobody reads it. */
    __asm__ volatile("" : : "r"(to) : "memory");
    return qr_seconds() - start;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double qr_measure_median(double *values, size_t count)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof(*values), by_value);
    return values[count / 2];
}

double qr_measure_rate(double bytes, double seconds)
{
    return seconds > 0 ? bytes / seconds * 1e-9 : 0;
}
