/* SPDX-License-Identifier: Apache-2.0
 *
 * See calibration.h.
 */
#include "calibration.h"

#include <stdio.h>
#include <string.h>

#include "page.h"
#include "quant.h"

#define CHECKED_FROM 16u
#define KNOWN_BITS (1u << 2 | 1u << 3 | 1u << 4)

/** Place of a table among the 28 levels. */
static uint32_t place(uint32_t bits)
{
    return (1u << bits) - 4u;
}

const uint16_t *qr_calibration_levels(const struct qr_calibration *c, uint32_t layer, int which,
                                      uint32_t bits)
{
    if (layer >= c->layers || bits < 2 || bits > 4 || !(c->bits >> bits & 1u))
        return NULL;
    return &c->levels[layer][which][place(bits)];
}

quire_status qr_levels_check(const uint16_t *levels, uint32_t bits, const char *what,
                             struct qr_error *e)
{
    for (uint32_t i = 0; i < 1u << bits; i++) {
        const float x = qr_f16_to_f32(levels[i]);
        if (!(x >= -1.0f && x <= 1.0f))
            return qr_error_set(e, QUIRE_EINVAL,
                                "%s of %u bits: level %u is 0x%04x (%g): -1 to 1 expected",
                                what, bits, i, levels[i], (double)x);
        if (i > 0 && !(x > qr_f16_to_f32(levels[i - 1])))
            return qr_error_set(e, QUIRE_EINVAL,
                                "%s of %u bits: level %u is %g after %g: ascending expected",
                                what, bits, i, (double)x, (double)qr_f16_to_f32(levels[i - 1]));
    }
    return QUIRE_OK;
}

/** Bytes of all tables of one tensor of one layer. */
static size_t tables_bytes(uint32_t bits)
{
    size_t levels = 0;
    for (uint32_t b = 2; b <= 4; b++)
        levels += bits >> b & 1u ? 1u << b : 0u;
    return levels * sizeof(uint16_t);
}

size_t qr_calibration_write(const struct qr_calibration *c, uint8_t *out)
{
    const uint16_t version[2] = {QR_CALIBRATION_VERSION, 0};
    const uint32_t counts[3] = {c->layers, c->bits, 0};
    uint8_t *at = out + QR_CALIBRATION_HEAD_BYTES;
    for (uint32_t layer = 0; layer < c->layers; layer++)
        for (int which = 0; which < 2; which++)
            for (uint32_t b = 2; b <= 4; b++) {
                const uint16_t *levels = qr_calibration_levels(c, layer, which, b);
                if (!levels)
                    continue;
                memcpy(at, levels, sizeof(*levels) << b);
                at += sizeof(*levels) << b;
            }
    memcpy(out, QR_CALIBRATION_MAGIC, 8);
    memcpy(out + 16, version, sizeof(version));
    memcpy(out + 20, counts, sizeof(counts));
    memcpy(out + 32, c->model, sizeof(c->model));
    const size_t n = (size_t)(at - out);
    const uint64_t sum = qr_checksum(out + CHECKED_FROM, n - CHECKED_FROM);
    memcpy(out + 8, &sum, sizeof(sum));
    return n;
}

static quire_status check_head(const uint8_t *bytes, size_t n, struct qr_error *e)
{
    uint16_t version[2];
    uint64_t sum;
    if (n < QR_CALIBRATION_HEAD_BYTES || memcmp(bytes, QR_CALIBRATION_MAGIC, 8) != 0)
        return qr_error_set(e, QUIRE_ECORRUPT,
                            "calibration of %zu bytes does not begin with " QR_CALIBRATION_MAGIC
                            " and a head of %u bytes",
                            n, QR_CALIBRATION_HEAD_BYTES);
    memcpy(version, bytes + 16, sizeof(version));
    memcpy(&sum, bytes + 8, sizeof(sum));
    if (version[0] != QR_CALIBRATION_VERSION)
        return qr_error_set(e, QUIRE_EUNSUPPORTED, "calibration version is %u: %d expected",
                            version[0], QR_CALIBRATION_VERSION);
    const uint64_t have = qr_checksum(bytes + CHECKED_FROM, n - CHECKED_FROM);
    if (sum != have)
        return qr_error_set(e, QUIRE_ECORRUPT,
                            "calibration checksum is %016llx: its bytes give %016llx",
                            (unsigned long long)sum, (unsigned long long)have);
    return QUIRE_OK;
}

static quire_status take_tables(const uint8_t *at, struct qr_calibration *out,
                                struct qr_error *e)
{
    for (uint32_t layer = 0; layer < out->layers; layer++)
        for (int which = 0; which < 2; which++)
            for (uint32_t b = 2; b <= 4; b++) {
                char what[64];
                uint16_t *levels = &out->levels[layer][which][place(b)];
                if (!(out->bits >> b & 1u))
                    continue;
                memcpy(levels, at, sizeof(*levels) << b);
                at += sizeof(*levels) << b;
                snprintf(what, sizeof(what), "calibration: %s of layer %u",
                         which ? "values" : "keys", layer);
                const quire_status status = qr_levels_check(levels, b, what, e);
                if (status)
                    return status;
            }
    return QUIRE_OK;
}

quire_status qr_calibration_read(const void *bytes, size_t n, struct qr_calibration *out,
                                 struct qr_error *e)
{
    const uint8_t *at = bytes;
    uint32_t counts[3];
    quire_status status = check_head(at, n, e);
    if (status)
        return status;
    memset(out, 0, sizeof(*out));
    memcpy(counts, at + 20, sizeof(counts));
    out->layers = counts[0];
    out->bits = counts[1];
    memcpy(out->model, at + 32, sizeof(out->model));
    if (out->layers == 0 || out->layers > QR_CALIBRATION_LAYERS || !out->bits ||
        out->bits & ~KNOWN_BITS || counts[2] ||
        n != QR_CALIBRATION_HEAD_BYTES + 2 * out->layers * tables_bytes(out->bits))
        status = qr_error_set(e, QUIRE_ECORRUPT,
                              "calibration of %zu bytes says %u layers and bits 0x%x: 1 to %d "
                              "layers, a set of 0x%x, and their tables' length expected",
                              n, out->layers, out->bits, QR_CALIBRATION_LAYERS, KNOWN_BITS);
    if (!status)
        status = take_tables(at + QR_CALIBRATION_HEAD_BYTES, out, e);
    if (status)
        memset(out, 0, sizeof(*out));
    return status;
}
