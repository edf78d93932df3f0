/* SPDX-License-Identifier: Apache-2.0
 *
 * inv_freq tables of the RoPE variants, step for step in the precision in which
 * the inference frameworks compute them (FP32 tensors, FP64 scalars), so that a
 * model reads back with the angles it was served with. README.md names the
 * papers. Must not know positions or rotate anything.
 */
#include "model.h"

#include <math.h>
#include <string.h>

#define TWO_PI 6.283185307179586476925286766559

static quire_status refuse(struct qr_error *e, const char *name, double value, const char *want)
{
    return qr_error_set(e, QUIRE_EINVAL, "RoPE %s is %g: %s expected", name, value, want);
}

static bool positive(double v)
{
    return isfinite(v) && v > 0;
}

/* theta^(2i/rotary_dim). The exponent is an FP32 quotient: where rotary_dim is no power of two
 * its rounding moves the result by several ulp. */
static float power_of(const struct qr_rope_params *p, double theta, uint32_t i)
{
    const float exponent = (float)(2 * i) / (float)p->rotary_dim;
    return (float)pow((double)(float)theta, (double)exponent);
}

static void make_plain(const struct qr_rope_params *p, double theta, struct qr_rope *out)
{
    for (uint32_t i = 0; i < p->rotary_dim / 2; i++)
        out->inv_freq[i] = 1.0f / power_of(p, theta, i);
}

static quire_status make_default(const struct qr_rope_params *p, struct qr_rope *out,
                                 struct qr_error *e)
{
    (void)e;
    make_plain(p, p->theta, out);
    return QUIRE_OK;
}

static quire_status make_linear(const struct qr_rope_params *p, struct qr_rope *out,
                                struct qr_error *e)
{
    if (!positive(p->factor))
        return refuse(e, "factor", p->factor, "linear: a number > 0");
    make_plain(p, p->theta, out);
    for (uint32_t i = 0; i < p->rotary_dim / 2; i++)
        out->inv_freq[i] /= (float)p->factor;
    return QUIRE_OK;
}

static quire_status make_dynamic(const struct qr_rope_params *p, struct qr_rope *out,
                                 struct qr_error *e)
{
    const uint32_t trained =
        p->original_max_position ? p->original_max_position : p->max_position;
    if (!positive(p->factor) || p->factor < 1)
        return refuse(e, "factor", p->factor, "dynamic: a number >= 1");
    if (trained == 0)
        return refuse(e, "original_max_position", 0, "dynamic: the trained length");
    if (p->rotary_dim < 4)
        return refuse(e, "rotary_dim", p->rotary_dim, "dynamic: at least 4");

    const double length = p->seq_len > trained ? p->seq_len : trained;
    const double growth = p->factor * length / trained - (p->factor - 1);
    const double dim = p->rotary_dim;
    make_plain(p, p->theta * pow(growth, dim / (dim - 2)), out);
    return QUIRE_OK;
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* Channel whose wavelength turns `rotations` times over the trained length. */
static double yarn_channel(const struct qr_rope_params *p, double rotations)
{
    return p->rotary_dim * log(p->original_max_position / (rotations * TWO_PI)) /
           (2 * log(p->theta));
}

static quire_status deployed_factor(const struct qr_rope_params *p, double *factor_out,
                                    struct qr_error *e)
{
    if (p->original_max_position == 0)
        return refuse(e, "original_max_position", 0, "the trained length");
    *factor_out =
        p->factor != 0 ? p->factor : (double)p->max_position / p->original_max_position;
    if (!positive(*factor_out))
        return refuse(e, "factor", *factor_out, "a number > 0, or max_position to derive it,");
    return QUIRE_OK;
}

static void yarn_blend(const struct qr_rope_params *p, double factor, double low, double high,
                       struct qr_rope *out)
{
    for (uint32_t i = 0; i < p->rotary_dim / 2; i++) {
        const float power = power_of(p, p->theta, i);
        const float extrapolated = 1.0f / power;
        const float interpolated = 1.0f / ((float)factor * power);
        float ramp = ((float)i - (float)low) / (float)(high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        const float keep = 1.0f - ramp;
        out->inv_freq[i] = interpolated * (1.0f - keep) + extrapolated * keep;
    }
}

static quire_status make_yarn(const struct qr_rope_params *p, struct qr_rope *out,
                              struct qr_error *e)
{
    const double fast = p->beta_fast != 0 ? p->beta_fast : 32;
    const double slow = p->beta_slow != 0 ? p->beta_slow : 1;
    double factor;
    const quire_status status = deployed_factor(p, &factor, e);
    if (status)
        return status;
    if (!positive(slow) || !positive(fast) || fast < slow)
        return refuse(e, "beta_fast", fast, "at least beta_slow, both > 0,");
    if (p->mscale < 0 || p->mscale_all_dim < 0 || !isfinite(p->mscale + p->mscale_all_dim))
        return refuse(e, "mscale", p->mscale, "mscale and mscale_all_dim >= 0");

    double low = yarn_channel(p, fast);
    double high = yarn_channel(p, slow);
    if (!p->truncate_off) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0 ? low : 0;
    high = high < p->rotary_dim - 1 ? high : p->rotary_dim - 1;
    if (low == high)
        high += 0.001; /* a step, not 0/0 */
    yarn_blend(p, factor, low, high, out);

    const bool scales = p->mscale != 0 && p->mscale_all_dim != 0;
    out->attention_factor =
        (float)(scales ? yarn_mscale(factor, p->mscale) / yarn_mscale(factor, p->mscale_all_dim)
                       : yarn_mscale(factor, 1));
    return QUIRE_OK;
}

static quire_status make_llama3(const struct qr_rope_params *p, struct qr_rope *out,
                                struct qr_error *e)
{
    if (!positive(p->factor))
        return refuse(e, "factor", p->factor, "llama3: a number > 0");
    if (!positive(p->low_freq_factor) || !positive(p->high_freq_factor) ||
        p->high_freq_factor <= p->low_freq_factor)
        return refuse(e, "high_freq_factor", p->high_freq_factor,
                      "llama3: more than low_freq_factor > 0");
    if (p->original_max_position == 0)
        return refuse(e, "original_max_position", 0, "llama3: the trained length");

    const float trained = (float)p->original_max_position;
    const float low = (float)p->low_freq_factor;
    const float width = (float)(p->high_freq_factor - p->low_freq_factor);
    const float longest = (float)(p->original_max_position / p->low_freq_factor);
    const float shortest = (float)(p->original_max_position / p->high_freq_factor);
    const float factor = (float)p->factor;
    make_plain(p, p->theta, out);
    for (uint32_t i = 0; i < p->rotary_dim / 2; i++) {
        const float plain = out->inv_freq[i];
        const float wavelength = (float)TWO_PI / plain;
        const float smooth = (trained / wavelength - low) / width;
        if (wavelength > longest)
            out->inv_freq[i] = plain / factor;
        else if (wavelength >= shortest)
            out->inv_freq[i] = (1.0f - smooth) * plain / factor + smooth * plain;
    }
    return QUIRE_OK;
}

static quire_status make_longrope(const struct qr_rope_params *p, struct qr_rope *out,
                                  struct qr_error *e)
{
    const float *factors =
        p->seq_len > p->original_max_position ? p->long_factor : p->short_factor;
    double factor;
    const quire_status status = deployed_factor(p, &factor, e);
    if (status)
        return status;
    for (uint32_t i = 0; i < p->rotary_dim / 2; i++) {
        if (!positive((double)factors[i]))
            return refuse(e, factors == p->long_factor ? "long_factor" : "short_factor",
                          (double)factors[i], "longrope: rotary_dim/2 numbers > 0");
        out->inv_freq[i] = 1.0f / (factors[i] * power_of(p, p->theta, i));
    }
    out->attention_factor =
        factor <= 1 ? 1.0f
                    : (float)sqrt(1 + log(factor) / log((double)p->original_max_position));
    return QUIRE_OK;
}

static quire_status make_table(const struct qr_rope_params *p, struct qr_rope *out,
                               struct qr_error *e)
{
    (void)e;
    memcpy(out->inv_freq, p->inv_freq, p->rotary_dim / 2 * sizeof(p->inv_freq[0]));
    return QUIRE_OK;
}

static quire_status check_common(const struct qr_rope_params *p, struct qr_error *e)
{
    if (p->layout != QR_ROPE_HALF && p->layout != QR_ROPE_INTERLEAVED)
        return refuse(e, "layout", (int)p->layout, "1 (half) or 2 (interleaved)");
    if (p->rotary_dim < 2 || p->rotary_dim > QR_DIM_MAX || p->rotary_dim % 2)
        return refuse(e, "rotary_dim", p->rotary_dim, "an even number in 2..1024");
    if (p->type != QR_ROPE_TABLE && (!isfinite((float)p->theta) || p->theta <= 1))
        return refuse(e, "theta", p->theta, "a finite FP32 number > 1");
    if (!isfinite(p->attention_factor) || p->attention_factor < 0)
        return refuse(e, "attention_factor", p->attention_factor,
                      "a number > 0, or 0 to derive it,");
    return QUIRE_OK;
}

/* Extreme parameters overflow FP32: such a table would rotate into NaN. */
static quire_status check_result(const struct qr_rope *rope, struct qr_error *e)
{
    if (!isfinite(rope->attention_factor) || rope->attention_factor <= 0)
        return refuse(e, "attention_factor", (double)rope->attention_factor,
                      "a finite FP32 number > 0");
    for (uint32_t i = 0; i < rope->rotary_dim / 2; i++)
        if (!isfinite(rope->inv_freq[i]) || rope->inv_freq[i] < 0)
            return qr_error_set(e, QUIRE_EINVAL,
                                "RoPE inv_freq[%u] is %g: a finite FP32 number >= 0 expected",
                                i, (double)rope->inv_freq[i]);
    return QUIRE_OK;
}

quire_status qr_rope_make(const struct qr_rope_params *params, struct qr_rope *out,
                          struct qr_error *e)
{
    static quire_status (*const makers[])(const struct qr_rope_params *, struct qr_rope *,
                                          struct qr_error *) = {
        [QR_ROPE_DEFAULT] = make_default, [QR_ROPE_LINEAR] = make_linear,
        [QR_ROPE_DYNAMIC] = make_dynamic, [QR_ROPE_YARN] = make_yarn,
        [QR_ROPE_LLAMA3] = make_llama3,   [QR_ROPE_LONGROPE] = make_longrope,
        [QR_ROPE_TABLE] = make_table,
    };
    if ((int)params->type < QR_ROPE_DEFAULT || params->type > QR_ROPE_TABLE)
        return refuse(e, "type", (int)params->type, "1 (default) to 7 (table)");
    quire_status status = check_common(params, e);
    if (status)
        return status;

    struct qr_rope rope = {
        .layout = params->layout, .rotary_dim = params->rotary_dim, .attention_factor = 1};
    status = makers[params->type](params, &rope, e);
    if (params->attention_factor > 0)
        rope.attention_factor = (float)params->attention_factor;
    if (!status)
        status = check_result(&rope, e);
    if (!status)
        *out = rope;
    return status;
}
