/* SPDX-License-Identifier: Apache-2.0
 *
 * Class c stands for (16 + c % 16) << (c / 16 + 6) bytes: 1024, 1088, ... 2048, 2176, ...
 */
#include "size_class.h"

#include <assert.h>

#define STEPS 16u
#define MIN_STEP_BITS 6u /* 64 bytes, the step just above the smallest class */

_Static_assert(QR_SIZE_CLASS_MIN_BYTES == STEPS << MIN_STEP_BITS, "class 0");

uint32_t qr_size_class(size_t bytes)
{
    assert(bytes > 0 && bytes <= QR_SIZE_CLASS_MAX_BYTES);
    if (bytes <= QR_SIZE_CLASS_MIN_BYTES)
        return 0;
    /* (bytes - 1) has its leading one at `top`: steps there are 2^(top - 4) bytes wide. */
    const uint32_t top = 63u - (uint32_t)__builtin_clzll((unsigned long long)(bytes - 1));
    const uint32_t step_bits = top - 4u;
    const uint32_t steps = (uint32_t)((bytes - 1) >> step_bits) + 1u; /* 17 .. 32 */
    return (step_bits - MIN_STEP_BITS) * STEPS + steps - STEPS;
}

size_t qr_size_class_bytes(uint32_t size_class)
{
    assert(size_class < QR_SIZE_CLASSES);
    return (size_t)(STEPS + size_class % STEPS) << (size_class / STEPS + MIN_STEP_BITS);
}
