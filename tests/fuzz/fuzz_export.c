/* SPDX-License-Identifier: Apache-2.0
 *
 * Exports of strangers: any bytes are read or refused, without a read outside them, and what is
 * read to its end is written again to the same bytes. Each input is tried as it is, and again
 * with every checksum and chain on the way made right, since no fuzzer guesses them.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/export.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PAYLOAD_MAX (1u << 20)

static struct qr_export_walk walk, writer;

static void check_refusal(quire_status status, const struct qr_error *e)
{
    assert(status == QUIRE_ECORRUPT || status == QUIRE_EUNSUPPORTED);
    assert(e->status == status && e->text[0]);
}

/* The payload on its own, so that a read past it is seen. */
static uint8_t *copy_payload(const uint8_t *from, size_t n)
{
    uint8_t *to = NULL;

    if (posix_memalign((void **)(void *)&to, 64, n ? n : 1))
        abort();
    memcpy(to, from, n);
    return to;
}

static void mend_mark(uint8_t *at, const uint8_t *payload, size_t n)
{
    struct qr_export_mark mark;

    memcpy(&mark, at, sizeof(mark));
    mark.magic = QR_EXPORT_RECORD_MAGIC;
    mark.number = walk.records;
    mark.previous = walk.previous;
    mark.payload_checksum = qr_checksum(payload, n);
    mark.checksum = qr_checksum(&mark, offsetof(struct qr_export_mark, checksum));
    memcpy(at, &mark, sizeof(mark));
}

/* A page's own envelope, too; and the end's digest. */
static void mend_payload(uint8_t *payload, const struct qr_export_record *r)
{
    if (r->type == QR_EXPORT_PAGE && r->bytes >= sizeof(struct qr_page_header)) {
        struct qr_page_header *header = (struct qr_page_header *)(void *)payload;
        memcpy(header->fingerprint, walk.head.fingerprint, QR_HASH_BYTES);
        header->page_bytes = (uint32_t)r->bytes;
        qr_page_finish(header);
    } else if (r->type == QR_EXPORT_END) {
        qr_export_end_fill(&walk, (struct qr_export_end *)(void *)payload);
    }
}

/* Written again, what was read has the same mark. */
static void write_again(const struct qr_export_record *r, const uint8_t *payload,
                        const uint8_t *mark)
{
    struct qr_export_mark made;

    assert(qr_export_seal(&writer, r, payload, &made, NULL) == QUIRE_OK);
    assert(memcmp(&made, mark, sizeof(made)) == 0);
}

/* One record; false: the end of what can be read. */
static bool read_record(uint8_t *file, size_t size, bool mend)
{
    struct qr_export_record r;
    struct qr_error e = {0};
    uint8_t *mark = file + walk.offset;

    if (size - walk.offset < sizeof(struct qr_export_mark))
        return false;
    if (mend) /* of the mark alone, to learn how long its payload is */
        mend_mark(mark, mark, 0);
    quire_status status = qr_export_record(&walk, mark, &r, &e);
    if (status) {
        check_refusal(status, &e);
        assert(e.position == walk.offset);
        return false;
    }
    const size_t padded = QR_EXPORT_PADDED(r.bytes);
    if (padded > PAYLOAD_MAX || padded > size - walk.offset - sizeof(struct qr_export_mark))
        return false;
    uint8_t *payload = copy_payload(mark + sizeof(struct qr_export_mark), padded);
    if (mend) {
        mend_payload(payload, &r);
        mend_mark(mark, payload, padded);
    }
    status = qr_export_payload(&walk, mark, payload, &e);
    if (status)
        check_refusal(status, &e);
    else
        write_again(&r, payload, mark);
    free(payload);
    return !status && !walk.done;
}

static void read_file(uint8_t *file, size_t size, bool mend)
{
    struct qr_error e = {0};

    if (size < sizeof(struct qr_export_head))
        return;
    if (mend) {
        struct qr_export_head head;
        memcpy(&head, file, sizeof(head));
        head.checksum = qr_checksum((const uint8_t *)&head + 16, sizeof(head) - 16);
        memcpy(file, &head, sizeof(head));
    }
    const quire_status status = qr_export_begin(&walk, file, &e);
    if (status) {
        check_refusal(status, &e);
        return;
    }
    assert(qr_export_begin(&writer, file, NULL) == QUIRE_OK);
    while (read_record(file, size, mend))
        continue;
    assert(walk.offset <= size);
    assert(!walk.done || walk.offset == walk.head.file_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *file = copy_payload(data, size);

    read_file(file, size, false);
    memcpy(file, data, size);
    read_file(file, size, true);
    free(file);
    return 0;
}
