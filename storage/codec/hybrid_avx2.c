/* SPDX-License-Identifier: Apache-2.0
 *
 * The hybrid loops for AVX2. Must not be entered on a CPU without it.
 */
#include "hybrid_kernel.h"

const struct qr_hybrid_kernels qr_hybrid_avx2 = {range, add_errors, encode};
