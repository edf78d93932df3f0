/* SPDX-License-Identifier: Apache-2.0
 *
 * Public RoPE parameters to the table that the formulas of proto/ take.
 */
#include "model_file.h"

#include <string.h>

static void copy_floats(float *out, const float *in, uint32_t count)
{
    if (in != NULL)
        memcpy(out, in, count * sizeof(*out));
}

quire_status qr_model_file_rope(const struct quire_rope *rope, struct qr_rope *out,
                                struct qr_error *e)
{
    if (rope->rotary_dim > QR_DIM_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "rotary_dim %u: must be at most %d",
                            rope->rotary_dim, QR_DIM_MAX);
    if (rope->type == QUIRE_ROPE_TABLE) {
        if (rope->inv_freq == NULL)
            return qr_error_set(e, QUIRE_EINVAL, "a RoPE of type table needs inv_freq");
        out->layout = (enum qr_rope_layout)rope->layout;
        out->rotary_dim = rope->rotary_dim;
        out->attention_factor =
            rope->attention_factor != 0 ? (float)rope->attention_factor : 1.0f;
        copy_floats(out->inv_freq, rope->inv_freq, rope->rotary_dim / 2);
        return QUIRE_OK;
    }
    struct qr_rope_params p = {
        .type = (enum qr_rope_type)rope->type,
        .layout = (enum qr_rope_layout)rope->layout,
        .rotary_dim = rope->rotary_dim,
        .theta = rope->theta,
        .factor = rope->factor,
        .attention_factor = rope->attention_factor,
        .beta_fast = rope->beta_fast,
        .beta_slow = rope->beta_slow,
        .mscale = rope->mscale,
        .mscale_all_dim = rope->mscale_all_dim,
        .low_freq_factor = rope->low_freq_factor,
        .high_freq_factor = rope->high_freq_factor,
        .original_max_position = rope->original_max_position,
        .max_position = rope->max_position,
        .seq_len = rope->seq_len,
        .truncate_off = rope->truncate_off,
    };
    copy_floats(p.short_factor, rope->short_factor, rope->rotary_dim / 2);
    copy_floats(p.long_factor, rope->long_factor, rope->rotary_dim / 2);
    return qr_rope_make(&p, out, e);
}
