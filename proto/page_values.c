/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether every value of a page decodes to a finite number: what an append of
 * rows promises by refusing the others, a sealed page from a stranger has to
 * show. Knows where scales stand (PACKING.md), must not know codes.
 */
#include <stdio.h>

#include "cpu.h"
#include "spec_parts.h"
#include "values_codec.h"
#include "values_kernel.h"

struct value_checks {
    bool (*finite)(const uint16_t *values, size_t n);
    bool (*groups)(const struct values_groups *groups);
};

static bool finite_scalar(const uint16_t *values, size_t n)
{
    return values_finite(values, n);
}

static bool groups_scalar(const struct values_groups *groups)
{
    return values_groups(groups);
}

static const struct value_checks *checks(void)
{
    static const struct value_checks of[] = {
        [QR_ISA_SCALAR] = {finite_scalar, groups_scalar},
        [QR_ISA_AVX2] = {qr_values_finite_avx2, qr_values_groups_avx2},
        [QR_ISA_AVX512] = {qr_values_finite_avx512, qr_values_groups_avx512},
    };
    return &of[qr_isa()];
}

/* Slow, once, for the message. */
static quire_status name_group(const struct values_groups *groups, size_t first,
                               const char *tensor, struct qr_error *e)
{
    struct values_groups one = *groups;
    one.count = 1;
    while (groups_scalar(&one)) {
        one.scales += groups->stride;
        one.minima += groups->stride;
        first++;
    }
    return qr_error_set(e, QUIRE_EVALUE,
                        "%s group %zu: scale 0x%04x and minimum 0x%04x with %u bits: finite "
                        "FP16, scale >= 0 and values up to 65504 expected",
                        tensor, first, one.scales[0], one.minima[0], groups->bits);
}

static quire_status check_groups(const struct values_groups *groups, size_t first,
                                 const char *tensor, struct qr_error *e)
{
    return checks()->groups(groups) ? QUIRE_OK : name_group(groups, first, tensor, e);
}

/** Groups of chan, rot: pairs, or dim scales and then dim minima. */
static quire_status check_scales(const struct qr_codec_spec *spec, const void *scales,
                                 size_t bytes, const char *tensor, uint32_t dim,
                                 struct qr_error *e)
{
    const uint16_t *at = scales;
    const size_t count = bytes / (2 * sizeof(uint16_t));
    struct values_groups groups = {at, at + 1, 2, count, spec->bits};
    if (spec->axis == QR_AXIS_TOKEN)
        return check_groups(&groups, 0, tensor, e);
    /* dim scales, then dim minima, again and again. */
    groups.stride = 1;
    groups.count = dim;
    for (size_t first = 0; first < count; first += dim, at += 2 * (size_t)dim) {
        groups.scales = at;
        groups.minima = at + dim;
        const quire_status status = check_groups(&groups, first, tensor, e);
        if (status)
            return status;
    }
    return QUIRE_OK;
}

static quire_status check_finite(const void *values, size_t bytes, const char *section,
                                 struct qr_error *e)
{
    const uint16_t *at = values;
    const size_t n = bytes / sizeof(uint16_t);
    if (checks()->finite(at, n))
        return QUIRE_OK;
    size_t i = 0;
    while (finite_scalar(&at[i], 1))
        i++;
    return qr_error_set(e, QUIRE_EVALUE, "%s: number %zu is 0x%04x: finite FP16 expected",
                        section, i, at[i]);
}

/** One tensor of a page. */
struct tensor {
    const char *name;
    const struct qr_codec_spec *spec;
    uint32_t dim;
};

static quire_status check_codes(const struct tensor *t, const uint8_t *at, size_t bytes,
                                struct qr_error *e)
{
    if (t->spec->codec == QR_CODEC_RAW)
        return check_finite(at, bytes, *t->name == 'k' ? "keys" : "values", e);
    if (t->spec->codec == QR_CODEC_FP8)
        return qr_values_check_fp8_codes(t->spec, at, bytes, t->name, e);
    return QUIRE_OK;
}

/** Factors of tokens, or norms of channels: finite and not negative. */
static quire_status check_factors(const uint16_t *at, size_t n, const char *tensor,
                                  const char *what, struct qr_error *e)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] >= QR_F16_INF_BITS)
            return qr_error_set(e, QUIRE_EVALUE,
                                "%s %s %zu is 0x%04x: finite FP16, >= 0 expected", tensor, what,
                                i, at[i]);
    return QUIRE_OK;
}

static quire_status check_options(const struct tensor *t, const struct qr_spec_parts *parts,
                                  size_t n, const uint8_t *scales, struct qr_error *e)
{
    char means[32];
    quire_status status = QUIRE_OK;
    snprintf(means, sizeof(means), "%s means", t->name);
    if (parts->means)
        status = check_finite(scales + parts->means, 2 * n, means, e);
    if (parts->norms && !status)
        status = check_factors((const uint16_t *)(const void *)(scales + parts->norms), n,
                               t->name, "norm", e);
    return status;
}

static quire_status check_tensor_scales(const struct qr_page_header *h, const struct tensor *t,
                                        const uint8_t *at, struct qr_error *e)
{
    struct qr_spec_parts parts = {0};
    quire_status status;
    (void)qr_spec_parts(t->spec, h->tokens, h->heads, t->dim, &parts);
    const size_t bytes = parts.head_bytes * h->heads;
    if (t->spec->codec == QR_CODEC_FP8)
        status = qr_values_check_fp8_scales(t->spec, at, bytes, t->name, e);
    else if (t->spec->codec == QR_CODEC_NUQ)
        status = qr_values_check_nuq(h, &parts, at, t->name, e);
    else if (t->spec->codec == QR_CODEC_LM)
        status =
            check_factors((const uint16_t *)(const void *)at, bytes / 2, t->name, "factor", e);
    else
        status = check_scales(t->spec, at, bytes, t->name, t->dim, e);
    return status ? status : check_options(t, &parts, (size_t)h->heads * t->dim, at, e);
}

static quire_status check_section(const struct qr_page_header *header,
                                  const struct qr_page_section *section, struct qr_error *e)
{
    const struct tensor key = {"key", &header->key, header->key_dim};
    const struct tensor value = {"value", &header->value, header->value_dim};
    const uint8_t *at = (const uint8_t *)header + section->offset;
    switch (section->type) {
    case QR_SECTION_KEY_CODES:
        return check_codes(&key, at, section->bytes, e);
    case QR_SECTION_VALUE_CODES:
        return check_codes(&value, at, section->bytes, e);
    case QR_SECTION_KEY_SCALES:
        return check_tensor_scales(header, &key, at, e);
    case QR_SECTION_VALUE_SCALES:
        return check_tensor_scales(header, &value, at, e);
    case QR_SECTION_KEY_RAW:
        return check_finite(at, section->bytes, "key raw rows", e);
    case QR_SECTION_VALUE_RAW:
        return check_finite(at, section->bytes, "value raw rows", e);
    default:
        return QUIRE_OK;
    }
}

quire_status qr_page_check_values(const struct qr_page_view *page, struct qr_error *e)
{
    quire_status status = QUIRE_OK;
    for (uint32_t i = 0; i < page->header->section_count && !status; i++)
        status = check_section(page->header, &page->header->sections[i], e);
    return status;
}
