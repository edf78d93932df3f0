/* SPDX-License-Identifier: Apache-2.0
 *
 * See page_summary.h. proto/PACKING.md says where codes and scales stand.
 */
#include "page_summary.h"

#include "proto/packing.h"
#include "proto/quant.h"

#include <math.h>
#include <string.h>

static float read_f16(const uint8_t *at)
{
    uint16_t half;
    memcpy(&half, at, sizeof(half));
    return qr_f16_to_f32(half);
}

static void add_group(struct qr_page_summary *s, float scale, float minimum)
{
    s->minimum_least = s->groups == 0 ? minimum : fminf(s->minimum_least, minimum);
    s->minimum_most = s->groups == 0 ? minimum : fmaxf(s->minimum_most, minimum);
    s->groups++;
    if (!(scale > 0)) {
        s->flat_groups++;
        return;
    }
    const bool first = s->groups - s->flat_groups == 1;
    s->scale_least = first ? scale : fminf(s->scale_least, scale);
    s->scale_most = first ? scale : fmaxf(s->scale_most, scale);
    s->scale_mean += (double)scale;
}

/** Channel groups: for each head and token group `dim` scales, then `dim` minima. */
static void add_channel_groups(struct qr_page_summary *s, const uint8_t *at, uint32_t runs,
                               uint32_t dim)
{
    for (uint32_t r = 0; r < runs; r++, at += 4u * dim) {
        for (uint32_t c = 0; c < dim; c++)
            add_group(s, read_f16(at + 2u * c), read_f16(at + 2u * (dim + c)));
    }
}

/** Token groups: pairs of scale and minimum. */
static void add_token_groups(struct qr_page_summary *s, const uint8_t *at, uint32_t groups)
{
    for (uint32_t g = 0; g < groups; g++, at += 4)
        add_group(s, read_f16(at), read_f16(at + 2));
}

static void add_codes(struct qr_page_summary *s, const struct qr_page_header *h,
                      const struct qr_codec_spec *spec, const uint8_t *codes, uint32_t dim)
{
    const size_t row_bytes = qr_spec_row_bytes(spec, dim);
    for (uint32_t head = 0; head < h->heads; head++) {
        for (uint32_t t = 0; t < h->page_tokens; t++, codes += row_bytes) {
            if (qr_page_is_raw(h->raw_bitmap, t))
                continue;
            for (uint32_t c = 0; c < dim; c++)
                s->count[qr_row_get(codes, dim, spec->bits, c) / s->codes_a_bin]++;
        }
    }
}

/** FP16 factors of lm. */
static void add_factors(struct qr_page_summary *s, const uint8_t *at, uint32_t tokens)
{
    for (uint32_t t = 0; t < tokens; t++)
        add_group(s, read_f16(at + 2u * t), 0);
}

/** FP32 scales of fp8. */
static void add_wide_scales(struct qr_page_summary *s, const uint8_t *at, uint32_t groups)
{
    for (uint32_t g = 0; g < groups; g++, at += sizeof(float)) {
        float scale;
        memcpy(&scale, at, sizeof(scale));
        add_group(s, scale, 0);
    }
}

static void add_scales(struct qr_page_summary *s, const struct qr_page_header *h,
                       const struct qr_codec_spec *spec, const uint8_t *at, uint32_t dim)
{
    if (spec->codec == QR_CODEC_FP8)
        add_wide_scales(s, at, h->heads * (spec->axis == QR_AXIS_TOKEN ? h->page_tokens : 1u));
    else if (spec->codec == QR_CODEC_LM)
        add_factors(s, at, h->heads * h->page_tokens);
    else if (spec->axis == QR_AXIS_CHANNEL)
        add_channel_groups(s, at, h->heads * (h->page_tokens / spec->group), dim);
    else
        add_token_groups(s, at,
                         h->heads * h->page_tokens * ((dim + spec->group - 1u) / spec->group));
}

void qr_page_summarize(const struct qr_page_view *page, bool key, struct qr_page_summary *out)
{
    const struct qr_page_header *h = page->header;
    const struct qr_codec_spec *spec = key ? &h->key : &h->value;
    const uint8_t *codes = key ? page->key_codes : page->value_codes;
    const uint8_t *scales = key ? page->key_scales : page->value_scales;
    const uint32_t dim = key ? h->key_dim : h->value_dim;
    memset(out, 0, sizeof(*out));
    if (spec->codec == QR_CODEC_RAW)
        return;
    out->bins = spec->bits >= 4 ? QR_SUMMARY_BINS : 1u << spec->bits;
    out->codes_a_bin = (1u << spec->bits) / out->bins;
    add_codes(out, h, spec, codes, dim);
    add_scales(out, h, spec, scales, dim);
    if (out->groups > out->flat_groups)
        out->scale_mean /= (double)(out->groups - out->flat_groups);
}
