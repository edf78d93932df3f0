/* SPDX-License-Identifier: Apache-2.0
 *
 * Block ids and page ids: SHA-256 over the little-endian fields that README.md
 * lists. Must not know where a namespace secret or a session's random bytes
 * come from.
 */
#include "model.h"

#include "sha256.h"

void qr_block_id_tokens(const uint8_t parent[QR_HASH_BYTES], const uint32_t *token_ids,
                        size_t n, uint8_t out[QR_HASH_BYTES])
{
    struct qr_sha256 sha;
    qr_sha256_init(&sha);
    qr_sha256_bytes(&sha, "quire.block.v1", 14);
    qr_sha256_bytes(&sha, parent, QR_HASH_BYTES);
    for (size_t i = 0; i < n; i++)
        qr_sha256_u32(&sha, token_ids[i]);
    qr_sha256_finish(&sha, out);
}

void qr_block_id_unique(const uint8_t fingerprint[QR_HASH_BYTES],
                        const uint8_t session_uuid[16], uint64_t block_index,
                        uint8_t out[QR_HASH_BYTES])
{
    struct qr_sha256 sha;
    qr_sha256_init(&sha);
    qr_sha256_bytes(&sha, "quire.block.unique.v1", 21);
    qr_sha256_bytes(&sha, fingerprint, QR_HASH_BYTES);
    qr_sha256_bytes(&sha, session_uuid, 16);
    qr_sha256_u64(&sha, block_index);
    qr_sha256_finish(&sha, out);
}

static void hash_spec(struct qr_sha256 *sha, const struct qr_codec_spec *spec)
{
    qr_sha256_u16(sha, spec->codec);
    qr_sha256_u8(sha, spec->bits);
    qr_sha256_u8(sha, spec->axis);
    qr_sha256_u16(sha, spec->group);
    qr_sha256_u16(sha, spec->packing);
    qr_sha256_u32(sha, spec->param[0]);
    qr_sha256_u32(sha, spec->param[1]);
}

void qr_page_id(const uint8_t namespace_secret[QR_HASH_BYTES],
                const uint8_t block_id[QR_HASH_BYTES], uint32_t layer, uint16_t first_head,
                uint16_t heads, const struct qr_policy *policy, uint8_t out[QR_HASH_BYTES])
{
    struct qr_sha256 sha;
    qr_sha256_init(&sha);
    qr_sha256_bytes(&sha, namespace_secret, QR_HASH_BYTES);
    qr_sha256_bytes(&sha, block_id, QR_HASH_BYTES);
    qr_sha256_u32(&sha, layer);
    qr_sha256_u16(&sha, first_head);
    qr_sha256_u16(&sha, heads);
    qr_sha256_u16(&sha, policy->page_tokens);
    qr_sha256_u16(&sha, policy->sink_rows);
    qr_sha256_u16(&sha, policy->outlier_rows);
    hash_spec(&sha, &policy->key);
    hash_spec(&sha, &policy->value);
    qr_sha256_finish(&sha, out);
}
