/* SPDX-License-Identifier: Apache-2.0
 *
 * What quire.v1.Quire and grpc.health.v1.Health answer: the table of methods, and
 * what their handlers share. Handlers turn wire messages into calls of the store
 * and back; must not know gRPC, nor how calls are carried.
 */
#ifndef QR_SERVICE_H
#define QR_SERVICE_H

#include <stdatomic.h>

#include "config.h"
#include "listen.h"
#include "local.h"
#include "rpc.h"
#include "storage/base/pool.h"
#include "storage/store/store.h"

struct qr_service {
    const struct qr_config *config; /* const */
    struct qr_store *store;         /* const; owned by main */
    bool has_disk, durable_always;  /* const: from config */
    struct qr_rpc *rpc;             /* set before it starts; for its statistics */
    struct qr_local *local;         /* set before anything starts; NULL: the path is off */
    char local_path[QR_LOCAL_PATH_MAX + 1]; /* the same: for callers by TCP; "": none */
    uint8_t instance[16];                   /* const: random, names this start */
    uint64_t started_ms;                    /* const */
    atomic_bool serving;                    /* atomic: what health says */
    struct qr_pool *fetches;                /* of struct fetch, handle_fetch.c */
    struct qr_pool *attends;                /* of struct attend, handle_attend.c */
};

/** store and config are borrowed for the service's life. */
quire_status qr_service_create(const struct qr_config *config, struct qr_store *store,
                               struct qr_service **out, struct qr_error *e);
void qr_service_destroy(struct qr_service **service);

/** Start what the configuration says of the same-host path: service->local, NULL when it is
 * off. Ended by qr_local_destroy. */
quire_status qr_service_offer_local(struct qr_service *service,
                                    const struct qr_address *addresses, uint32_t count,
                                    struct qr_error *e);

/** The methods; service is the first argument of their handlers. */
extern const struct qr_method qr_service_methods[];
extern const size_t qr_service_method_count;

/** identify and release of struct qr_rpc_config. */
quire_status qr_service_identify(void *service, const char *peer, uint32_t *ns_out,
                                 struct qr_error *e);
void qr_service_release(void *service, void *pin);

/* ---- what handlers share ---------------------------------------------------------------- */

/** Unpack the request as `type` into the scratch arena. */
quire_status qr_request_unpack(const struct qr_request *request,
                               const ProtobufCMessageDescriptor *type, ProtobufCMessage **out,
                               struct qr_error *e);
/** Pack `reply` as the answer. */
quire_status qr_reply_pack(const struct qr_request *request, const ProtobufCMessage *reply,
                           size_t *reply_bytes, struct qr_error *e);
/** Pass `status` on; an unknown session gets the reason that a restart would be. */
quire_status qr_service_explain(const struct qr_service *service, quire_status status,
                                struct qr_error *e);

#define QR_RANGES_MAX 4096 /* missing ranges in one reply */

/** TokenRange messages for a reply; free with free(). NULL when count is 0 or memory is out. */
struct qr_range_list {
    size_t capacity;
    struct qr_token_range ranges[QR_RANGES_MAX];
    Quire__V1__TokenRange messages[QR_RANGES_MAX];
    Quire__V1__TokenRange *pointers[QR_RANGES_MAX];
};
/** Fill messages and pointers from the first `count` ranges. */
void qr_range_list_fill(struct qr_range_list *list, size_t count);

qr_handler qr_handle_hello, qr_handle_stat, qr_handle_health, qr_handle_health_watch,
    qr_handle_reflection;
qr_handler qr_handle_register_model, qr_handle_get_model;
qr_handler qr_handle_open_session, qr_handle_close_session, qr_handle_drop_session,
    qr_handle_get_session, qr_handle_list_sessions, qr_handle_fork_session,
    qr_handle_touch_session, qr_handle_truncate_session, qr_handle_lookup;
qr_handler qr_handle_get_manifest, qr_handle_claim_blocks;
qr_handler qr_handle_append, qr_handle_attend, qr_handle_flush;
extern const struct qr_stream_ops qr_handle_fetch;

/** Pools of handlers with state; *out untouched on failure. */
quire_status qr_fetch_pool(uint32_t calls_max, struct qr_pool **out);
void qr_fetch_pool_destroy(struct qr_pool **pool);
quire_status qr_attend_pool(uint32_t calls_max, struct qr_pool **out);
void qr_attend_pool_destroy(struct qr_pool **pool);

#endif
