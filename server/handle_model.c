/* SPDX-License-Identifier: Apache-2.0
 *
 * Handlers of models: RegisterModel, GetModel.
 */
#include "service.h"

quire_status qr_handle_register_model(void *arg, const struct qr_request *request,
                                      size_t *reply_bytes, struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    struct qr_model model;
    Quire__V1__RegisterModelReply reply = QUIRE__V1__REGISTER_MODEL_REPLY__INIT;
    quire_status status =
        qr_request_unpack(request, &quire__v1__register_model_request__descriptor, &message, e);

    if (!status)
        status =
            qr_wire_model_from(((Quire__V1__RegisterModelRequest *)message)->model, &model, e);
    if (!status)
        status = qr_store_model_put(service->store, &model, e);
    if (status)
        return status;
    reply.fingerprint = (ProtobufCBinaryData){sizeof(model.fingerprint), model.fingerprint};
    return qr_reply_pack(request, &reply.base, reply_bytes, e);
}

quire_status qr_handle_get_model(void *arg, const struct qr_request *request,
                                 size_t *reply_bytes, struct qr_error *e)
{
    struct qr_service *service = arg;
    ProtobufCMessage *message = NULL;
    uint8_t fingerprint[QR_HASH_BYTES];
    const struct qr_model *model = NULL;
    struct qr_wire_model wire;
    Quire__V1__GetModelReply reply = QUIRE__V1__GET_MODEL_REPLY__INIT;
    quire_status status =
        qr_request_unpack(request, &quire__v1__get_model_request__descriptor, &message, e);

    if (!status)
        status = qr_wire_fingerprint(&((Quire__V1__GetModelRequest *)message)->fingerprint,
                                     "fingerprint", fingerprint, e);
    if (!status)
        status = qr_store_model_get(service->store, fingerprint, &model, e);
    if (status)
        return status;
    qr_wire_model_to(model, &wire);
    reply.model = &wire.message;
    reply.fingerprint = (ProtobufCBinaryData){sizeof(fingerprint), fingerprint};
    return qr_reply_pack(request, &reply.base, reply_bytes, e);
}
