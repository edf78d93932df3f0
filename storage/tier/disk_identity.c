/* SPDX-License-Identifier: Apache-2.0
 *
 * Identity as a few lines of text, so that whoever finds the folder can read
 * what it is; the last line is a checksum of the others. The slab file carries
 * the same facts in its first block.
 */
#include "disk_identity.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/page.h"

#define SLAB_MAGIC "QUIRESLB"

void qr_disk_uuid_text(const uint8_t uuid[QR_DISK_UUID_BYTES], char out[33])
{
    for (uint32_t i = 0; i < QR_DISK_UUID_BYTES; i++)
        (void)snprintf(out + 2 * (size_t)i, 3, "%02x", uuid[i]);
}

static bool uuid_parse(const char *text, uint8_t out[QR_DISK_UUID_BYTES])
{
    for (uint32_t i = 0; i < QR_DISK_UUID_BYTES; i++) {
        unsigned byte;
        if (sscanf(text + 2 * (size_t)i, "%2x", &byte) != 1)
            return false;
        out[i] = (uint8_t)byte;
    }
    return true;
}

size_t qr_disk_identity_write(const struct qr_disk_identity *identity,
                              char out[QR_DISK_IDENTITY_MAX])
{
    char uuid[33];
    size_t n = 0;

    qr_disk_uuid_text(identity->store, uuid);
    n += (size_t)snprintf(out, QR_DISK_IDENTITY_MAX,
                          "quire-store %u\nstore %s\ndevice %u of %u\nregion-bytes %" PRIu64
                          "\nstate %s\n",
                          identity->version, uuid, identity->device, identity->count,
                          identity->region_bytes, identity->ready ? "ready" : "making");
    for (uint32_t d = 0; d < identity->count; d++) {
        qr_disk_uuid_text(identity->device_ids[d], uuid);
        n += (size_t)snprintf(out + n, QR_DISK_IDENTITY_MAX - n, "device-id %u %s\n", d, uuid);
    }
    n += (size_t)snprintf(out + n, QR_DISK_IDENTITY_MAX - n, "checksum %016" PRIx64 "\n",
                          qr_checksum(out, n));
    return n;
}

static bool read_fields(const char *text, struct qr_disk_identity *out)
{
    char uuid[33], state[8];

    if (sscanf(text,
               "quire-store %*u\nstore %32[0-9a-f]\ndevice %" SCNu32 " of %" SCNu32
               "\nregion-bytes %" SCNu64 "\nstate %7[a-z]\n",
               uuid, &out->device, &out->count, &out->region_bytes, state) != 5)
        return false;
    if (!uuid_parse(uuid, out->store) || out->count == 0 || out->count > QR_DISK_DEVICES_MAX ||
        out->device >= out->count)
        return false;
    out->ready = strcmp(state, "ready") == 0;
    const char *at = text;
    for (uint32_t d = 0; d < out->count; d++) {
        uint32_t number;
        at = strstr(at, "\ndevice-id ");
        if (!at || sscanf(at, "\ndevice-id %" SCNu32 " %32[0-9a-f]", &number, uuid) != 2 ||
            number != d || !uuid_parse(uuid, out->device_ids[d]))
            return false;
        at++;
    }
    return true;
}

quire_status qr_disk_identity_read(const char *text, size_t n, struct qr_disk_identity *out)
{
    char copy[QR_DISK_IDENTITY_MAX + 1];
    uint64_t checksum;

    if (n > QR_DISK_IDENTITY_MAX)
        return QUIRE_ECORRUPT;
    memset(out, 0, sizeof(*out));
    memcpy(copy, text, n);
    copy[n] = '\0';
    if (sscanf(copy, "quire-store %" SCNu32 "\n", &out->version) != 1 || out->version == 0)
        return QUIRE_ECORRUPT;
    if (out->version > QR_DISK_VERSION)
        return QUIRE_EUNSUPPORTED;
    const char *last = strstr(copy, "\nchecksum ");
    if (!last || sscanf(last, "\nchecksum %16" SCNx64 "\n", &checksum) != 1)
        return QUIRE_ECORRUPT;
    if (checksum != qr_checksum(copy, (size_t)(last + 1 - copy)) || !read_fields(copy, out))
        return QUIRE_ECORRUPT;
    return QUIRE_OK;
}

/* magic 8, checksum u64 of bytes 16 .. 63, version u32, device u32, store 16, device id 16 */
void qr_disk_slab_header_write(const struct qr_disk_identity *identity,
                               uint8_t out[QR_DISK_BLOCK])
{
    memset(out, 0, QR_DISK_BLOCK);
    memcpy(out, SLAB_MAGIC, 8);
    memcpy(out + 16, &identity->version, 4);
    memcpy(out + 20, &identity->device, 4);
    memcpy(out + 24, identity->store, QR_DISK_UUID_BYTES);
    memcpy(out + 40, identity->device_ids[identity->device], QR_DISK_UUID_BYTES);
    const uint64_t checksum = qr_checksum(out + 16, 48);
    memcpy(out + 8, &checksum, 8);
}

quire_status qr_disk_slab_header_check(const struct qr_disk_identity *identity,
                                       const uint8_t block[QR_DISK_BLOCK])
{
    uint64_t checksum;

    memcpy(&checksum, block + 8, 8);
    if (memcmp(block, SLAB_MAGIC, 8) != 0 || checksum != qr_checksum(block + 16, 48))
        return QUIRE_ECORRUPT;
    if (memcmp(block + 24, identity->store, QR_DISK_UUID_BYTES) != 0 ||
        memcmp(block + 40, identity->device_ids[identity->device], QR_DISK_UUID_BYTES) != 0)
        return QUIRE_EMISMATCH;
    return QUIRE_OK;
}
