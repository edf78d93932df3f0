/* SPDX-License-Identifier: Apache-2.0
 *
 * The value checks of page_values.c with AVX-512.
 */
#include "values_kernel.h"

bool qr_values_finite_avx512(const uint16_t *values, size_t n)
{
    return values_finite(values, n);
}

bool qr_values_groups_avx512(const struct values_groups *groups)
{
    return values_groups(groups);
}
