/* SPDX-License-Identifier: Apache-2.0
 *
 * What there is of a partial export: read from its start, each record verified. The first one
 * that is cut or damaged, and all after it, will be written anew.
 */
#include <stdlib.h>

#include "client_move.h"

/* Read until n bytes or the end. */
static quire_status read_some(const struct quire_export *args, uint8_t *to, size_t n,
                              size_t *got)
{
    *got = 0;
    while (*got < n) {
        size_t more = 0;
        const int error = args->read(args->context, to + *got, n - *got, &more);
        if (error)
            return qr_move_io("the partial export cannot be read", error);
        if (more == 0)
            break;
        *got += more < n - *got ? more : n - *got;
    }
    return QUIRE_OK;
}

/* One record; *whole false: it is cut, damaged, or there is none. */
static quire_status verify_record(struct qr_move *move, const struct quire_export *args,
                                  uint8_t *payload, bool *whole)
{
    struct qr_export_mark mark;
    struct qr_export_record r;
    size_t got;

    *whole = false;
    quire_status status = read_some(args, (uint8_t *)&mark, sizeof(mark), &got);
    if (status || got < sizeof(mark) || qr_export_record(&move->walk, &mark, &r, NULL))
        return status;
    const size_t padded = QR_EXPORT_PADDED(r.bytes);
    status = read_some(args, payload, padded, &got);
    if (status || got < padded || qr_export_payload(&move->walk, &mark, payload, NULL))
        return status;
    *whole = true;
    move->transfer.pages += r.type == QR_EXPORT_PAGE;
    return qr_move_tell(move);
}

quire_status qr_export_verify_part(struct qr_move *move, const struct quire_export *args,
                                   bool *found)
{
    struct qr_export_head head;
    struct qr_error e;
    size_t got;
    bool whole = true;
    quire_status status = read_some(args, (uint8_t *)&head, sizeof(head), &got);

    *found = false;
    if (status || got < sizeof(head))
        return status;
    status = qr_export_begin(&move->walk, &head, &e);
    if (status) /* written whole, first of all: this is another file */
        return qr_client_fail(&e);
    uint8_t *payload = aligned_alloc(64, QR_EXPORT_PAYLOAD_MAX);
    if (!payload)
        return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for a page");
    *found = true;
    qr_move_describe(move);
    while (!status && whole && !move->walk.done)
        status = verify_record(move, args, payload, &whole);
    free(payload);
    move->transfer.resumed_bytes = move->walk.offset;
    return status;
}
