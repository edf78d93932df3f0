/* SPDX-License-Identifier: Apache-2.0
 *
 * grpc.reflection: what this server serves, for tools that ask instead of having our .proto
 * files. Must not know what is asked: proto/wire_reflection.h answers.
 */
#include "descriptor_set.h"
#include "proto/wire_reflection.h"
#include "service.h"

quire_status qr_handle_reflection(void *arg, const struct qr_request *request,
                                  size_t *reply_bytes, struct qr_error *e)
{
    (void)arg;
    return qr_wire_reflect(qr_descriptor_set, qr_descriptor_set_bytes, request->fragments,
                           request->count, request->scratch->reply,
                           request->scratch->reply_capacity, reply_bytes, e);
}
