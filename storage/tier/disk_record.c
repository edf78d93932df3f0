/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys and values of the disk index to bytes and back, see proto/INDEX.md.
 * Numbers in keys are big-endian, so that keys sort by them; in values
 * little-endian, as everywhere else.
 */
#include "disk_record.h"

#include <string.h>

#define RECORD_VERSION 1u

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are copied as they are");

/* ---- keys ------------------------------------------------------------------------------- */

static void key_bytes(struct qr_disk_key *key, const void *bytes, uint32_t n)
{
    memcpy(key->bytes + key->n, bytes, n);
    key->n += n;
}

static void key_number(struct qr_disk_key *key, uint32_t number)
{
    const uint32_t big = __builtin_bswap32(number);
    key_bytes(key, &big, sizeof(big));
}

static struct qr_disk_key key_start(uint8_t kind)
{
    struct qr_disk_key key = {.n = 1};
    key.bytes[0] = kind;
    return key;
}

static uint32_t read_number(const uint8_t *at)
{
    uint32_t big;
    memcpy(&big, at, sizeof(big));
    return __builtin_bswap32(big);
}

struct qr_disk_key qr_disk_key_version(void)
{
    return key_start(QR_DISK_KEY_VERSION);
}

struct qr_disk_key qr_disk_key_page(const uint8_t page_id[QR_HASH_BYTES])
{
    struct qr_disk_key key = key_start(QR_DISK_KEY_PAGE);
    key_bytes(&key, page_id, QR_HASH_BYTES);
    return key;
}

struct qr_disk_key qr_disk_key_model(const uint8_t fingerprint[QR_HASH_BYTES])
{
    struct qr_disk_key key = key_start(QR_DISK_KEY_MODEL);
    key_bytes(&key, fingerprint, QR_HASH_BYTES);
    return key;
}

struct qr_disk_key qr_disk_key_namespace(uint32_t ns)
{
    struct qr_disk_key key = key_start(QR_DISK_KEY_NAMESPACE);
    key_number(&key, ns);
    return key;
}

struct qr_disk_key qr_disk_key_session(uint32_t ns, const uint8_t session[QR_DISK_UUID_BYTES])
{
    struct qr_disk_key key = key_start(QR_DISK_KEY_SESSION);
    key_number(&key, ns);
    key_bytes(&key, session, QR_DISK_UUID_BYTES);
    return key;
}

struct qr_disk_key qr_disk_key_prefix(uint8_t kind, const uint8_t session[QR_DISK_UUID_BYTES])
{
    struct qr_disk_key key = key_start(kind);
    key_bytes(&key, session, QR_DISK_UUID_BYTES);
    return key;
}

struct qr_disk_key qr_disk_key_lane(const uint8_t session[QR_DISK_UUID_BYTES], uint32_t lane)
{
    struct qr_disk_key key = qr_disk_key_prefix(QR_DISK_KEY_LANE, session);
    key_number(&key, lane);
    return key;
}

struct qr_disk_key qr_disk_key_manifest(const uint8_t session[QR_DISK_UUID_BYTES],
                                        uint32_t lane, uint32_t block)
{
    struct qr_disk_key key = qr_disk_key_prefix(QR_DISK_KEY_MANIFEST, session);
    key_number(&key, lane);
    key_number(&key, block);
    return key;
}

struct qr_disk_key qr_disk_key_block(const uint8_t session[QR_DISK_UUID_BYTES], uint32_t block)
{
    struct qr_disk_key key = qr_disk_key_prefix(QR_DISK_KEY_BLOCK, session);
    key_number(&key, block);
    return key;
}

struct qr_disk_key qr_disk_key_tokens(const uint8_t session[QR_DISK_UUID_BYTES])
{
    return qr_disk_key_prefix(QR_DISK_KEY_TOKENS, session);
}

struct qr_disk_key qr_disk_key_going(const uint8_t session[QR_DISK_UUID_BYTES])
{
    return qr_disk_key_prefix(QR_DISK_KEY_GOING, session);
}

static bool is_key(const uint8_t *key, size_t n, uint8_t kind, size_t bytes)
{
    return n == 1 + bytes && key[0] == kind;
}

bool qr_disk_key_lane_read(const uint8_t *key, size_t n, uint32_t *lane_out)
{
    if (!is_key(key, n, QR_DISK_KEY_LANE, QR_DISK_UUID_BYTES + 4))
        return false;
    *lane_out = read_number(key + 1 + QR_DISK_UUID_BYTES);
    return true;
}

bool qr_disk_key_manifest_read(const uint8_t *key, size_t n, uint32_t *lane_out,
                               uint32_t *block_out)
{
    if (!is_key(key, n, QR_DISK_KEY_MANIFEST, QR_DISK_UUID_BYTES + 8))
        return false;
    *lane_out = read_number(key + 1 + QR_DISK_UUID_BYTES);
    *block_out = read_number(key + 5 + QR_DISK_UUID_BYTES);
    return true;
}

bool qr_disk_key_block_read(const uint8_t *key, size_t n, uint32_t *block_out)
{
    if (!is_key(key, n, QR_DISK_KEY_BLOCK, QR_DISK_UUID_BYTES + 4))
        return false;
    *block_out = read_number(key + 1 + QR_DISK_UUID_BYTES);
    return true;
}

bool qr_disk_key_session_read(const uint8_t *key, size_t n, uint32_t *ns_out,
                              uint8_t session_out[QR_DISK_UUID_BYTES])
{
    if (!is_key(key, n, QR_DISK_KEY_SESSION, 4 + QR_DISK_UUID_BYTES))
        return false;
    *ns_out = read_number(key + 1);
    memcpy(session_out, key + 5, QR_DISK_UUID_BYTES);
    return true;
}

bool qr_disk_key_going_read(const uint8_t *key, size_t n,
                            uint8_t session_out[QR_DISK_UUID_BYTES])
{
    if (!is_key(key, n, QR_DISK_KEY_GOING, QR_DISK_UUID_BYTES))
        return false;
    memcpy(session_out, key + 1, QR_DISK_UUID_BYTES);
    return true;
}

/* ---- values ----------------------------------------------------------------------------- */

static void put(uint8_t **at, const void *value, size_t n)
{
    memcpy(*at, value, n);
    *at += n;
}

static void get(const uint8_t **at, void *value, size_t n)
{
    memcpy(value, *at, n);
    *at += n;
}

/* Version in the first byte: ours or newer, else damaged. */
static quire_status check_version(const uint8_t *value, size_t n)
{
    if (n == 0 || value[0] == 0)
        return QUIRE_ECORRUPT;
    return value[0] > RECORD_VERSION ? QUIRE_EUNSUPPORTED : QUIRE_OK;
}

void qr_disk_page_write(const struct qr_disk_page *page, uint8_t out[QR_DISK_PAGE_RECORD_BYTES])
{
    const uint8_t device = (uint8_t)page->place.device;
    uint8_t *at = out + 1;

    memset(out, 0, QR_DISK_PAGE_RECORD_BYTES);
    out[0] = RECORD_VERSION;
    put(&at, &device, 1);
    put(&at, &page->flags, 2);
    put(&at, &page->place.region, 4);
    put(&at, &page->place.slot, 4);
    put(&at, &page->place.bytes, 4);
    put(&at, &page->checksum, 8);
    put(&at, &page->layer, 4);
    put(&at, &page->first_head, 2);
    put(&at, &page->heads, 2);
    put(&at, &page->first_position, 8);
    put(&at, &page->ns, 4);
    put(&at, &page->named, 4);
}

quire_status qr_disk_page_read(const uint8_t *value, size_t n, struct qr_disk_page *out)
{
    struct qr_disk_page page = {0};
    const uint8_t *at = value + 1;
    uint8_t device;
    const quire_status status = check_version(value, n);

    if (status != QUIRE_OK)
        return status;
    if (n != QR_DISK_PAGE_RECORD_BYTES)
        return QUIRE_ECORRUPT;
    get(&at, &device, 1);
    get(&at, &page.flags, 2);
    get(&at, &page.place.region, 4);
    get(&at, &page.place.slot, 4);
    get(&at, &page.place.bytes, 4);
    get(&at, &page.checksum, 8);
    get(&at, &page.layer, 4);
    get(&at, &page.first_head, 2);
    get(&at, &page.heads, 2);
    get(&at, &page.first_position, 8);
    get(&at, &page.ns, 4);
    get(&at, &page.named, 4);
    if ((page.flags & ~QR_DISK_QUARANTINED) != 0 || device >= QR_DISK_DEVICES_MAX ||
        page.place.bytes == 0 || page.layer >= QR_LAYERS_MAX)
        return QUIRE_ECORRUPT;
    page.place.device = device;
    *out = page;
    return QUIRE_OK;
}

void qr_disk_block_write(const struct qr_disk_block *block,
                         uint8_t out[QR_DISK_BLOCK_RECORD_BYTES])
{
    uint8_t *at = out;

    memset(out, 0, QR_DISK_BLOCK_RECORD_BYTES);
    put(&at, block->page_id, QR_HASH_BYTES);
    put(&at, &block->place.device, 4);
    put(&at, &block->place.region, 4);
    put(&at, &block->place.slot, 4);
    put(&at, &block->place.bytes, 4);
    put(&at, &block->checksum, 8);
}

quire_status qr_disk_block_read(const uint8_t *value, size_t n, struct qr_disk_block *out)
{
    struct qr_disk_block block;
    const uint8_t *at = value;

    if (n != QR_DISK_BLOCK_RECORD_BYTES)
        return QUIRE_ECORRUPT;
    get(&at, block.page_id, QR_HASH_BYTES);
    get(&at, &block.place.device, 4);
    get(&at, &block.place.region, 4);
    get(&at, &block.place.slot, 4);
    get(&at, &block.place.bytes, 4);
    get(&at, &block.checksum, 8);
    if (block.place.device >= QR_DISK_DEVICES_MAX)
        return QUIRE_ECORRUPT;
    *out = block;
    return QUIRE_OK;
}

void qr_disk_lane_write(const struct qr_disk_lane *lane, uint8_t out[QR_DISK_LANE_RECORD_BYTES])
{
    uint8_t *at = out + 4;

    memset(out, 0, QR_DISK_LANE_RECORD_BYTES);
    out[0] = RECORD_VERSION;
    put(&at, &lane->sealed, 4);
    put(&at, &lane->cut_sequence, 8);
    put(&at, &lane->cut_length, 8);
}

quire_status qr_disk_lane_read(const uint8_t *value, size_t n, struct qr_disk_lane *out)
{
    const uint8_t *at = value + 4;
    uint64_t reserved;
    const quire_status status = check_version(value, n);

    if (status != QUIRE_OK)
        return status;
    if (n != QR_DISK_LANE_RECORD_BYTES || value[1] || value[2] || value[3])
        return QUIRE_ECORRUPT;
    struct qr_disk_lane lane;
    get(&at, &lane.sealed, 4);
    get(&at, &lane.cut_sequence, 8);
    get(&at, &lane.cut_length, 8);
    get(&at, &reserved, 8);
    if (reserved != 0 || lane.cut_length > (uint64_t)QR_POSITION_MAX + 1)
        return QUIRE_ECORRUPT;
    *out = lane;
    return QUIRE_OK;
}

size_t qr_disk_session_write(const struct qr_disk_session *session,
                             uint8_t out[QR_DISK_SESSION_RECORD_MAX])
{
    const struct qr_policy *p = &session->policy;
    const uint16_t name_bytes = (uint16_t)strlen(session->name);
    const uint16_t tokens[4] = {p->page_tokens, p->window, p->sink_rows, p->outlier_rows};
    uint8_t *at = out + 4;

    memset(out, 0, QR_DISK_SESSION_HEAD_BYTES);
    out[0] = RECORD_VERSION;
    put(&at, &session->head_shards, 4);
    put(&at, session->fingerprint, QR_HASH_BYTES);
    put(&at, tokens, sizeof(tokens));
    put(&at, &p->key, sizeof(p->key));
    put(&at, &p->value, sizeof(p->value));
    put(&at, &session->epoch, 8);
    put(&at, &session->ttl_ms, 8);
    put(&at, &session->created_us, 8);
    put(&at, &session->used_us, 8);
    put(&at, &name_bytes, 2);
    put(&at, &p->override_count, 2);
    at += 12;
    put(&at, &session->length, 8);
    put(&at, &session->longest, 8);
    put(&at, &session->sealed_tokens, 8);
    put(&at, &session->pages, 8);
    put(&at, &session->missing_pages, 8);
    put(&at, &session->page_bytes, 8);
    const size_t overrides_bytes = p->override_count * sizeof(p->overrides[0]);
    memcpy(out + QR_DISK_SESSION_HEAD_BYTES, session->name, name_bytes);
    memcpy(out + QR_DISK_SESSION_HEAD_BYTES + name_bytes, p->overrides, overrides_bytes);
    return QR_DISK_SESSION_HEAD_BYTES + name_bytes + overrides_bytes;
}

quire_status qr_disk_session_read(const uint8_t *value, size_t n, struct qr_disk_session *out)
{
    struct qr_disk_session session = {0};
    struct qr_policy *p = &session.policy;
    uint16_t tokens[4], name_bytes;
    const uint8_t *at = value + 4;
    const quire_status status = check_version(value, n);

    if (status != QUIRE_OK)
        return status;
    if (n < QR_DISK_SESSION_HEAD_BYTES)
        return QUIRE_ECORRUPT;
    get(&at, &session.head_shards, 4);
    get(&at, session.fingerprint, QR_HASH_BYTES);
    get(&at, tokens, sizeof(tokens));
    get(&at, &p->key, sizeof(p->key));
    get(&at, &p->value, sizeof(p->value));
    get(&at, &session.epoch, 8);
    get(&at, &session.ttl_ms, 8);
    get(&at, &session.created_us, 8);
    get(&at, &session.used_us, 8);
    get(&at, &name_bytes, 2);
    get(&at, &p->override_count, 2);
    at += 12;
    get(&at, &session.length, 8);
    get(&at, &session.longest, 8);
    get(&at, &session.sealed_tokens, 8);
    get(&at, &session.pages, 8);
    get(&at, &session.missing_pages, 8);
    get(&at, &session.page_bytes, 8);
    const size_t overrides_bytes = p->override_count * sizeof(p->overrides[0]);
    if (name_bytes == 0 || name_bytes > QR_NAME_MAX || p->override_count > QR_OVERRIDES_MAX ||
        n != QR_DISK_SESSION_HEAD_BYTES + name_bytes + overrides_bytes ||
        memchr(value + QR_DISK_SESSION_HEAD_BYTES, 0, name_bytes) || session.head_shards == 0)
        return QUIRE_ECORRUPT;
    p->page_tokens = tokens[0];
    p->window = tokens[1];
    p->sink_rows = tokens[2];
    p->outlier_rows = tokens[3];
    memcpy(p->overrides, value + QR_DISK_SESSION_HEAD_BYTES + name_bytes, overrides_bytes);
    if (qr_policy_check(p, NULL) != QUIRE_OK)
        return QUIRE_ECORRUPT;
    memcpy(session.name, value + QR_DISK_SESSION_HEAD_BYTES, name_bytes);
    *out = session;
    return QUIRE_OK;
}
