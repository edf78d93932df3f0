/* SPDX-License-Identifier: Apache-2.0
 *
 * The `fp8` kernels for AVX2. Must not be entered on a CPU without it.
 */
#include "fp8_kernel.h"

const struct qr_fp8_kernels qr_fp8_avx2 = {peak, encode, decode};
