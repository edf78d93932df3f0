/* SPDX-License-Identifier: Apache-2.0
 *
 * The rotation kernel, compiled for AVX2.
 */
#include "rotation_kernel.h"

void qr_rotation_row_avx2(const float *inv_freq, uint32_t pairs, float position, float factor,
                          float *cosines, float *sines)
{
    rotation_row(inv_freq, pairs, position, factor, cosines, sines);
}
