/* SPDX-License-Identifier: Apache-2.0
 *
 * What the two ways of carrying a call share. Included by client/transport*.c alone.
 */
#ifndef QR_TRANSPORT_IMPL_H
#define QR_TRANSPORT_IMPL_H

#include "transport.h"

/** One way of carrying calls; what each does is said in transport.h. */
struct qr_call_ops {
    void (*start_unary)(struct qr_call *call, const struct qr_piece *pieces, size_t count);
    void (*start_reader)(struct qr_call *call, const struct qr_piece *pieces, size_t count);
    void (*start_writer)(struct qr_call *call);
    bool (*send)(struct qr_call *call, const struct qr_piece *pieces, size_t count);
    void (*close_send)(struct qr_call *call);
    void (*cancel)(struct qr_call *call);
    void (*hold)(struct qr_call *call);
    void (*release)(struct qr_call *call);
};

struct qr_call {
    const struct qr_call_ops *ops;
};

#endif
