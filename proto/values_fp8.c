/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the codes and scales of `fp8` decode to finite values: no reserved
 * code, scales finite, not negative, and small enough for the largest code.
 */
#include <math.h>
#include <string.h>

#include "quant_fp8.h"
#include "values_codec.h"

quire_status qr_values_check_fp8_codes(const struct qr_codec_spec *spec, const uint8_t *codes,
                                       size_t bytes, const char *tensor, struct qr_error *e)
{
    const uint32_t format = spec->param[QR_PARAM_NUMBER], least = format ? 0x7cu : 0x7fu;
    uint32_t bad = 0;
    size_t i = 0;
    for (size_t at = 0; at < bytes; at++)
        bad |= (codes[at] & 0x7fu) >= least;
    if (!bad)
        return QUIRE_OK;
    while (!qr_fp8_reserved(codes[i], format))
        i++;
    return qr_error_set(e, QUIRE_EVALUE,
                        "%s codes: byte %zu is 0x%02x, no number in %s: below 0x%02x and its "
                        "sign expected",
                        tensor, i, codes[i], format ? "E5M2" : "E4M3FN", least);
}

quire_status qr_values_check_fp8_scales(const struct qr_codec_spec *spec, const uint8_t *scales,
                                        size_t bytes, const char *tensor, struct qr_error *e)
{
    const float top = qr_fp8_top(spec->param[QR_PARAM_NUMBER]);
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        float scale;
        memcpy(&scale, scales + i * sizeof(scale), sizeof(scale));
        if (!signbit(scale) && scale * top < 65520.0f) /* false for NaN and infinity, too */
            continue;
        return qr_error_set(e, QUIRE_EVALUE,
                            "%s scale %zu is %g: 0 to below %g expected, so that %g times it "
                            "fits FP16",
                            tensor, i, (double)scale, 65520.0 / (double)top, (double)top);
    }
    return QUIRE_OK;
}
