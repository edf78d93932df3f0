/* SPDX-License-Identifier: Apache-2.0
 *
 * The hybrid loops for AVX-512. Must not be entered on a CPU without it.
 */
#include "hybrid_kernel.h"

const struct qr_hybrid_kernels qr_hybrid_avx512 = {range, add_errors, encode};
