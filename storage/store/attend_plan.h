/* SPDX-License-Identifier: Apache-2.0
 *
 * An attend under way: the plan (attend_plan.c) cuts it into units of one lane
 * and one range of blocks; store_attend.c runs them on the workers and merges. Used by
 * these two files alone.
 */
#ifndef QR_STORE_ATTEND_H
#define QR_STORE_ATTEND_H

#include "store_impl.h"

/** What a layer's lanes have in common, and where its results go. */
struct qr_attend_layer {
    uint32_t layer;
    uint32_t group_heads; /* query heads that share a KV head */
    uint32_t first_query_head, query_heads;
    uint32_t first_head, heads; /* KV heads asked for */
    uint64_t window;            /* 0: none */
    float scale;
    const float *query; /* [query][query_heads][key_dim] */
    float *output;      /* [query][query_heads][value_dim] */
    float *lse;         /* [query][query_heads] */
};

/** One lane's tokens [first, last), for the KV heads asked for that lie in it. */
struct qr_attend_unit {
    const struct qr_attend_layer *layer;
    const struct qr_lane *lane;
    uint32_t head, heads; /* KV heads of the model: those asked for in this lane */
    uint64_t first, last;
    float *output, *lse; /* [heads][rows][value_dim], [heads][rows]; owned, set when it ran */
};

struct qr_attend_plan {
    struct qr_session *session;
    struct qr_reading reading;
    bool is_reading; /* it began */
    const struct qr_attend *request;
    const atomic_bool *cancel;
    struct qr_attend_layer *layers;
    uint32_t layer_count;
    struct qr_attend_unit *units; /* of a lane: consecutive, ascending */
    size_t unit_count, unit_capacity;

    pthread_mutex_t lock;
    quire_status status;               /* guarded by lock: first failure */
    struct qr_error error;             /* guarded by lock */
    struct qr_attend_missing *missing; /* guarded by lock; NULL: not wanted */
};

/** Check the request against the session, and count the floats of its arrays. */
quire_status qr_attend_check(const struct qr_session *session, const struct qr_attend *request,
                             size_t *query_out, size_t *output_out, size_t *lse_out,
                             struct qr_error *e);
/** Make layers and units, and begin reading; output and lse as the caller of qr_store_attend
 * gave them. To be freed also when it fails. ERANGE, EVALUE, EMISSING (the first hole, unless
 * missing tokens are allowed), ENOMEM. */
quire_status qr_attend_plan_make(struct qr_attend_plan *plan, float *output, float *lse,
                                 struct qr_error *e);
/** EMISSING of the layer, position and tokens of `hole`. */
quire_status qr_attend_hole(const struct qr_error *hole, struct qr_error *e);
void qr_attend_plan_free(struct qr_attend_plan *plan);

#endif
