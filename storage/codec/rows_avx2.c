/* SPDX-License-Identifier: Apache-2.0
 *
 * The row kernels for AVX2. Must not be entered on a CPU without it.
 */
#include "vector_avx2.h"

#include "rows_simd.h"

const struct qr_row_kernels qr_rows_avx2 = {widen, emit, narrow, squares, vector_fence};
