/* SPDX-License-Identifier: Apache-2.0
 *
 * The `fp8` kernels for AVX-512. Must not be entered on a CPU without it.
 */
#include "fp8_kernel.h"

const struct qr_fp8_kernels qr_fp8_avx512 = {peak, encode, decode};
