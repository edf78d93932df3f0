/* SPDX-License-Identifier: Apache-2.0
 *
 * The row kernels for AVX-512. Must not be entered on a CPU without it.
 */
#include "vector_avx512.h"

#include "rows_simd.h"

const struct qr_row_kernels qr_rows_avx512 = {widen, emit, narrow, squares, vector_fence};
