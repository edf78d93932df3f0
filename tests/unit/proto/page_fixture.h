/* SPDX-License-Identifier: Apache-2.0
 *
 * A small valid page with arbitrary section bytes, for tests that damage it.
 */
#ifndef QR_PAGE_FIXTURE_H
#define QR_PAGE_FIXTURE_H

#include "tests/test.h"

#include "proto/page.h"

/* K3 per channel, V4 per token, dims that leave padding; 3 heads of 16 tokens. */
static inline struct qr_page_identity fixture_identity(void)
{
    struct qr_page_identity id = {
        .layer = 7,
        .first_head = 2,
        .heads = 3,
        .key_dim = 40,
        .value_dim = 24,
        .rope_stored = QR_ROPE_PRE,
        .rope_layout = QR_ROPE_HALF,
        .page_tokens = 16,
        .first_position = 32,
        .key = {.codec = QR_CODEC_CHAN, .bits = 3, .axis = QR_AXIS_CHANNEL, .group = 16},
        .value = {.codec = QR_CODEC_CHAN, .bits = 4, .axis = QR_AXIS_TOKEN, .group = 32},
    };
    for (int i = 0; i < QR_HASH_BYTES; i++) {
        id.fingerprint[i] = (uint8_t)(i + 1);
        id.block_id[i] = (uint8_t)(0xff - i);
    }
    return id;
}

static inline void fixture_fill(void *section, size_t bytes)
{
    for (size_t i = 0; section && i < bytes; i++)
        ((uint8_t *)section)[i] = (uint8_t)(i * 151 + 17);
}

/* 64-byte aligned, freed by the caller. Tokens 0 and 9 are raw rows. */
static inline uint8_t *fixture_page(size_t *bytes)
{
    const struct qr_page_identity id = fixture_identity();
    const uint8_t bitmap[QR_PAGE_TOKENS_MAX / 8] = {0x01, 0x02};
    struct qr_page_sections sections;
    *bytes = qr_page_bytes(&id, 2);
    uint8_t *page = aligned_alloc(QR_PAGE_ALIGN, *bytes);
    memset(page, 0xee, *bytes);
    assert_ok(qr_page_begin(page, *bytes, &id, bitmap, &sections, NULL));
    fixture_fill(sections.key_codes, qr_spec_codes_bytes(&id.key, 16, 3, 40));
    fixture_fill(sections.key_scales, qr_spec_scales_bytes(&id.key, 16, 3, 40));
    fixture_fill(sections.value_codes, qr_spec_codes_bytes(&id.value, 16, 3, 24));
    fixture_fill(sections.value_scales, qr_spec_scales_bytes(&id.value, 16, 3, 24));
    fixture_fill(sections.key_raw, 2 * 3 * 40 * 2);
    fixture_fill(sections.value_raw, 2 * 3 * 24 * 2);
    fixture_fill(sections.digests, 16 * 4);
    qr_page_finish(page);
    return page;
}

#endif
