/* SPDX-License-Identifier: Apache-2.0
 *
 * FetchChunks of strangers: each part is read or refused, and where protobuf-c reads the
 * message too, both read the same. The first byte says where the rest is cut into fragments.
 */
#include "fuzz_wire.h"

static void compare(const struct qr_wire_part *got, const struct qr_wire_cursor *payload,
                    const Quire__V1__FetchPart *want)
{
    static const ProtobufCBinaryData none;
    assert(got->layer == want->layer && got->first_head == want->first_head);
    assert(got->heads == want->heads && got->position == want->position);
    assert(got->tokens == want->tokens && got->status == (uint32_t)want->status);
    fuzz_same_bytes(*payload, got->payload == QR_WIRE_PAGE   ? &want->page
                              : got->payload == QR_WIRE_ROWS ? &want->rows
                                                             : &none);
}

static void read_parts(const struct qr_wire_fragment fragments[2],
                       const Quire__V1__FetchChunk *want)
{
    struct qr_wire_cursor at = qr_wire_cursor_all(fragments, 2), payload;
    struct qr_wire_part part;
    struct qr_error e = {0};
    size_t parts = 0;
    for (bool more = true;; parts++) {
        const quire_status status = qr_wire_next_part(&at, &more, &part, &payload, &e);
        assert(status == QUIRE_OK || (status == QUIRE_ECORRUPT && e.text[0]));
        if (status)
            return;
        if (!more)
            break;
        assert(payload.bytes == part.payload_bytes);
        if (want) {
            assert(parts < want->n_parts);
            compare(&part, &payload, want->parts[parts]);
        }
    }
    assert(!want || parts == want->n_parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct qr_wire_fragment fragments[2];
    if (size == 0)
        return 0;
    const size_t at = data[0] < size ? data[0] : size - 1;
    fuzz_cut(data + 1, size - 1, at, fragments);
    read_parts(fragments, fuzz_unpack(&quire__v1__fetch_chunk__descriptor, fragments, 2));
    fuzz_uncut(fragments);
    return 0;
}
