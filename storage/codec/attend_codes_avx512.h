/* SPDX-License-Identifier: Apache-2.0
 *
 * The AVX-512 kernels on codes, for the table in attend_avx512.c. Contracts:
 * key_codes and value_codes in attend_kernels.h.
 */
#ifndef QR_ATTEND_CODES_AVX512_H
#define QR_ATTEND_CODES_AVX512_H

#include "attend_kernels.h"

void qr_attend_key_codes_avx512(const struct qr_attend_part *part,
                                const struct qr_attend_key_codes *key, uint32_t first,
                                uint32_t last);
void qr_attend_tile_rotation_avx512(const float *rotation, uint32_t tokens, uint32_t rotary_dim,
                                    float *out);
void qr_attend_value_codes_avx512(const struct qr_attend_part *part,
                                  const struct qr_attend_value_codes *value, uint32_t first,
                                  uint32_t last);

#endif
