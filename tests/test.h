/* SPDX-License-Identifier: Apache-2.0
 *
 * What every unit test includes: cmocka with its prerequisites and a few shorthands.
 */
#ifndef QR_TEST_H
#define QR_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define assert_ok(expr) assert_int_equal((expr), 0)
#define assert_status(status, expr) assert_int_equal((expr), (status))

/** Folder of the golden vectors: QUIRE_GOLDEN, else tests/golden of the source tree. */
static inline const char *test_golden_dir(char *buffer, size_t size)
{
    const char *dir = getenv("QUIRE_GOLDEN");
    const char *source = getenv("QUIRE_SOURCE");
    snprintf(buffer, size, dir ? "%s" : "%s/tests/golden", dir ? dir : source ? source : ".");
    return buffer;
}

/** Folder of the real K/V: QUIRE_DATA, else tests/data of the source tree. */
static inline const char *test_data_dir(char *buffer, size_t size)
{
    const char *dir = getenv("QUIRE_DATA");
    const char *source = getenv("QUIRE_SOURCE");
    snprintf(buffer, size, dir ? "%s" : "%s/tests/data", dir ? dir : source ? source : ".");
    return buffer;
}

#endif
