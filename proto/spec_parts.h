/* SPDX-License-Identifier: Apache-2.0
 *
 * What a tensor's scales section is made of (PACKING.md): the codec's own
 * scales, head after head, then what the spec's options add. One answer for
 * sizes, codecs and validation. Must not know how anything is computed.
 */
#ifndef QR_SPEC_PARTS_H
#define QR_SPEC_PARTS_H

#include "page.h"

/** Byte offsets into a scales section; a part that is absent has offset 0 (none stands first).
 */
struct qr_spec_parts {
    size_t head_bytes;    /* scales of one head; heads follow each other from byte 0 */
    size_t head_outliers; /* nuq, within a head: u16 count, positions[n], FP16 values[n] */
    uint32_t outliers;    /* n */
    size_t levels;        /* FP16 [2^bits] (nuq) */
    size_t means;         /* FP16 [heads][dim] (center) */
    size_t norms;         /* FP16 [heads][dim] (normalize) */
    size_t order; /* u16 [heads x dim]: channel at each place of the rotated row (reorder) */
    size_t bytes; /* the whole section */
};

/** Heads that are worked on together: all that are sorted, four that are rotated, or one. */
static inline uint32_t qr_spec_unit_heads(const struct qr_codec_spec *spec, uint32_t heads)
{
    const uint32_t flags = spec->param[QR_PARAM_FLAGS];
    return flags & QR_SPEC_REORDER ? heads : flags & QR_SPEC_HEADS4 ? 4u : 1u;
}

/** False when the spec or the shape is out of the format's limits. */
bool qr_spec_parts(const struct qr_codec_spec *spec, uint32_t tokens, uint32_t heads,
                   uint32_t dim, struct qr_spec_parts *out);

#endif
