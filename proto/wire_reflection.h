/* SPDX-License-Identifier: Apache-2.0
 *
 * gRPC server reflection: one request in, one answer out, from a FileDescriptorSet that protoc
 * made. The messages of grpc.reflection.v1 and v1alpha are the same on the wire. No I/O, no
 * allocation; must not know how calls are carried.
 *
 * Source: grpc/reflection/v1/reflection.proto, google/protobuf/descriptor.proto.
 */
#ifndef QR_WIRE_REFLECTION_H
#define QR_WIRE_REFLECTION_H

#include "wire.h"

#define QR_REFLECTION_REQUEST_MAX 4096 /* bytes of a request: it comes back in its answer */

/**
 * Answer a ServerReflectionRequest with a ServerReflectionResponse. set: the serialized
 * FileDescriptorSet, trusted and borrowed; every service in it is listed. What is asked for and
 * not there is an answer with an error_response (5 NOT_FOUND, 3 INVALID_ARGUMENT). Errors:
 * EINVAL (not such a request, or one of too many bytes), ETOOBIG (`out` has no room, with both
 * sizes).
 */
quire_status qr_wire_reflect(const void *set, size_t set_bytes,
                             const struct qr_wire_fragment *fragments, size_t count,
                             uint8_t *out, size_t capacity, size_t *bytes_out,
                             struct qr_error *e);

#endif
