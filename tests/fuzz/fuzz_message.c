/* SPDX-License-Identifier: Apache-2.0
 *
 * Every other message of strangers: unpacked or refused; what unpacks packs again to bytes that
 * unpack to the same, and converts or is refused. The first byte chooses the message.
 */
#include "fuzz_wire.h"

#define CUT 5

static const ProtobufCMessageDescriptor *const types[] = {
    &quire__v1__model__descriptor,
    &quire__v1__policy__descriptor,
    &quire__v1__hello_request__descriptor,
    &quire__v1__register_model_request__descriptor,
    &quire__v1__open_session_request__descriptor,
    &quire__v1__open_session_reply__descriptor,
    &quire__v1__list_sessions_request__descriptor,
    &quire__v1__list_sessions_reply__descriptor,
    &quire__v1__fork_session_request__descriptor,
    &quire__v1__touch_session_request__descriptor,
    &quire__v1__truncate_session_request__descriptor,
    &quire__v1__lookup_request__descriptor,
    &quire__v1__lookup_reply__descriptor,
    &quire__v1__fetch_request__descriptor,
    &quire__v1__attend_request__descriptor,
    &quire__v1__attend_reply__descriptor,
    &quire__v1__stat_reply__descriptor,
};

static void convert(const ProtobufCMessageDescriptor *type, const void *message)
{
    static struct qr_model model, back;
    static struct qr_wire_model box;
    struct qr_policy policy;
    struct qr_error e = {0};
    if (type == &quire__v1__policy__descriptor &&
        qr_wire_policy_from(message, &policy, &e) == QUIRE_OK)
        assert(qr_policy_check(&policy, NULL) == QUIRE_OK);
    if (type == &quire__v1__model__descriptor &&
        qr_wire_model_from(message, &model, &e) == QUIRE_OK) {
        qr_wire_model_to(&model, &box);
        assert(qr_wire_model_from(&box.message, &back, NULL) == QUIRE_OK);
        assert(memcmp(model.fingerprint, back.fingerprint, QR_HASH_BYTES) == 0);
    }
}

static void check_same_after_packing(const ProtobufCMessageDescriptor *type,
                                     const ProtobufCMessage *message)
{
    const size_t bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = malloc(bytes + 1), *again = malloc(bytes + 1);
    size_t packed_bytes, again_bytes;
    assert(packed && again);
    assert(qr_wire_pack(message, packed, bytes, &packed_bytes, NULL) == QUIRE_OK);
    const struct qr_wire_fragment fragment = {.data = packed, .bytes = packed_bytes};
    const ProtobufCMessage *second = fuzz_unpack(type, &fragment, 1);
    assert(second);
    assert(qr_wire_pack(second, again, bytes, &again_bytes, NULL) == QUIRE_OK);
    assert(again_bytes == packed_bytes && memcmp(again, packed, packed_bytes) == 0);
    free(packed);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct qr_wire_fragment fragments[2];
    struct qr_error e;
    if (size == 0)
        return 0;
    const ProtobufCMessageDescriptor *type =
        types[data[0] % (sizeof(types) / sizeof(types[0]))];
    fuzz_cut(data + 1, size - 1, size - 1 < CUT ? 0 : CUT, fragments);
    const ProtobufCMessage *message = fuzz_unpack(type, fragments, 2);
    if (message) {
        convert(type, message);
        check_same_after_packing(type, message);
    }
    fuzz_uncut(fragments);
    qr_wire_status_parse(data, size, &e);
    return 0;
}
