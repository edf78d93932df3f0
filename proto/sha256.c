/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 through OpenSSL. The low-level calls are deprecated in favour of
 * EVP, which allocates on every use; this floor allocates nothing.
 */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include "sha256.h"

_Static_assert(sizeof(struct qr_sha256) == sizeof(SHA256_CTX), "state fits");
_Static_assert(_Alignof(struct qr_sha256) == _Alignof(SHA256_CTX), "state is aligned");

static SHA256_CTX *context(struct qr_sha256 *sha)
{
    return (SHA256_CTX *)(void *)sha;
}

void qr_sha256_init(struct qr_sha256 *sha)
{
    SHA256_Init(context(sha));
}

void qr_sha256_bytes(struct qr_sha256 *sha, const void *bytes, size_t n)
{
    SHA256_Update(context(sha), bytes, n);
}

static void update_le(struct qr_sha256 *sha, uint64_t v, size_t n)
{
    uint8_t le[8];
    for (size_t i = 0; i < n; i++)
        le[i] = (uint8_t)(v >> (8 * i));
    qr_sha256_bytes(sha, le, n);
}

void qr_sha256_u8(struct qr_sha256 *sha, uint8_t v)
{
    update_le(sha, v, 1);
}

void qr_sha256_u16(struct qr_sha256 *sha, uint16_t v)
{
    update_le(sha, v, 2);
}

void qr_sha256_u32(struct qr_sha256 *sha, uint32_t v)
{
    update_le(sha, v, 4);
}

void qr_sha256_u64(struct qr_sha256 *sha, uint64_t v)
{
    update_le(sha, v, 8);
}

void qr_sha256_finish(struct qr_sha256 *sha, uint8_t out[32])
{
    SHA256_Final(out, context(sha));
}
