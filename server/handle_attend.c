/* SPDX-License-Identifier: Apache-2.0
 *
 * Attend: queries become FP32, the store computes, output and log-sum-exp go
 * back. Runs on a thread that may compute for long. Must not know kernels.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/quant.h"
#include "service.h"

#define POSITIONS_MAX 65536 /* query positions in one call */

/* Buffers of one attend; kept by the pool from one use to the next. */
struct attend {
    float *floats; /* query, then output, then lse */
    size_t float_capacity;
    struct qr_range_list *missing;
};

static void free_buffers(void *object)
{
    struct attend *attend = object;

    free(attend->floats);
    free(attend->missing);
}

quire_status qr_attend_pool(uint32_t calls_max, struct qr_pool **out)
{
    return qr_pool_create(sizeof(struct attend), calls_max, out);
}

void qr_attend_pool_destroy(struct qr_pool **pool)
{
    if (*pool)
        qr_pool_destroy(pool, free_buffers);
}

static quire_status make_room(struct attend *attend, size_t floats, bool missing,
                              struct qr_error *e)
{
    if (attend->float_capacity < floats) {
        free(attend->floats);
        attend->floats = aligned_alloc(64, (floats * sizeof(float) + 63) & ~(size_t)63);
        attend->float_capacity = attend->floats ? floats : 0;
    }
    if (missing && !attend->missing)
        attend->missing = malloc(sizeof(*attend->missing));
    if (!attend->floats || (missing && !attend->missing))
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for %zu floats of an attend", floats);
    return QUIRE_OK;
}

static void to_floats(const uint8_t *bytes, enum qr_dtype dtype, size_t n, float *out)
{
    uint16_t half;

    if (dtype == QR_F32) {
        memcpy(out, bytes, n * sizeof(float));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        memcpy(&half, bytes + i * sizeof(half), sizeof(half));
        out[i] = dtype == QR_F16 ? qr_f16_to_f32(half) : qr_bf16_to_f32(half);
    }
}

static quire_status check(const Quire__V1__AttendRequest *m, struct qr_error *e)
{
    if (!qr_dtype_bytes((enum qr_dtype)m->dtype))
        return qr_error_set(e, QUIRE_EINVAL,
                            "dtype is %d, must be 1 (F16), 2 (BF16) or 3 (F32)", (int)m->dtype);
    if (m->n_positions == 0 || m->n_positions > POSITIONS_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "%zu positions, must be 1 .. %d", m->n_positions,
                            POSITIONS_MAX);
    return QUIRE_OK;
}

static struct qr_attend plain(const Quire__V1__AttendRequest *m)
{
    return (struct qr_attend){.session = m->session,
                              .first_layer = m->first_layer,
                              .layers = m->layers,
                              .first_query_head = m->first_query_head,
                              .query_heads = m->query_heads,
                              .queries = (uint32_t)m->n_positions,
                              .positions = m->positions,
                              .first_token = m->first_token,
                              .last_token = m->last_token,
                              .causal = !m->not_causal,
                              .allow_missing = m->allow_missing,
                              .window = m->window,
                              .scale = m->scale,
                              .softcap = m->softcap};
}

struct sizes {
    size_t query, output, lse; /* floats */
};

#define REPLY_HEAD_BYTES 64  /* tags and lengths of the reply's own fields, at most */
#define RANGE_WIRE_BYTES 40u /* a TokenRange: 2 + 11 + 11 + 6 + 6, at most */

/* Ranges that the reply has room for beside the results. */
static size_t ranges_that_fit(const struct qr_request *request, const struct sizes *sizes)
{
    const size_t floats = (sizes->output + sizes->lse) * sizeof(float);
    const size_t left = request->scratch->reply_capacity - REPLY_HEAD_BYTES - floats;
    const size_t ranges = left / RANGE_WIRE_BYTES;

    return ranges < QR_RANGES_MAX ? ranges : QR_RANGES_MAX;
}

static quire_status check_sizes(const struct qr_request *request,
                                const Quire__V1__AttendRequest *m, const struct sizes *sizes,
                                struct qr_error *e)
{
    const size_t wanted = sizes->query * qr_dtype_bytes((enum qr_dtype)m->dtype);
    const size_t limit = request->scratch->reply_capacity - REPLY_HEAD_BYTES;

    if (m->queries.len != wanted)
        return qr_error_set(e, QUIRE_EINVAL,
                            "queries has %zu bytes, must be %zu: [layer][query][query head]"
                            "[key_dim] of its dtype",
                            m->queries.len, wanted);
    if ((sizes->output + sizes->lse) * sizeof(float) > limit)
        return qr_error_set(e, QUIRE_ETOOBIG,
                            "the output would have %zu bytes, at most %zu fit a message; ask "
                            "for fewer layers or queries",
                            (sizes->output + sizes->lse) * sizeof(float), limit);
    return QUIRE_OK;
}

/* One attend on its way: what came, what it means, where it is computed. */
struct job {
    struct qr_service *service;
    const struct qr_request *request;
    const Quire__V1__AttendRequest *message;
    struct qr_attend attend;
    struct sizes sizes;
    struct attend *buffers;
};

static quire_status pack(const struct job *job, const struct qr_attend_missing *missing,
                         size_t *reply_bytes, struct qr_error *e)
{
    float *output = job->buffers->floats + job->sizes.query;
    float *lse = output + job->sizes.output;
    Quire__V1__AttendReply reply = QUIRE__V1__ATTEND_REPLY__INIT;

    reply.output = (ProtobufCBinaryData){job->sizes.output * sizeof(float), (uint8_t *)output};
    reply.lse = (ProtobufCBinaryData){job->sizes.lse * sizeof(float), (uint8_t *)lse};
    if (missing->count) {
        qr_range_list_fill(job->buffers->missing, missing->count);
        reply.missing = job->buffers->missing->pointers;
        reply.n_missing = missing->count;
    }
    reply.more = missing->more;
    return qr_reply_pack(job->request, &reply.base, reply_bytes, e);
}

static quire_status compute(struct job *job, size_t *reply_bytes, struct qr_error *e)
{
    const Quire__V1__AttendRequest *m = job->message;
    float *query = job->buffers->floats;
    float *output = query + job->sizes.query;
    struct qr_attend_missing missing = {0};

    if (m->allow_missing) {
        missing.ranges = job->buffers->missing->ranges;
        missing.capacity = ranges_that_fit(job->request, &job->sizes);
    }
    to_floats(m->queries.data, (enum qr_dtype)m->dtype, job->sizes.query, query);
    job->attend.query = query;
    const quire_status status = qr_store_attend(
        job->service->store, job->request->ns, &job->attend, output, output + job->sizes.output,
        m->allow_missing ? &missing : NULL, job->request->canceled, e);
    return status ? qr_service_explain(job->service, status, e)
                  : pack(job, &missing, reply_bytes, e);
}

quire_status qr_handle_attend(void *arg, const struct qr_request *request, size_t *reply_bytes,
                              struct qr_error *e)
{
    struct job job = {.service = arg, .request = request};
    struct sizes *sizes = &job.sizes;
    ProtobufCMessage *message = NULL;
    quire_status status =
        qr_request_unpack(request, &quire__v1__attend_request__descriptor, &message, e);

    job.message = (Quire__V1__AttendRequest *)message;
    if (!status)
        status = check(job.message, e);
    if (status)
        return status;
    job.attend = plain(job.message);
    status = qr_attend_sizes(job.service->store, request->ns, &job.attend, &sizes->query,
                             &sizes->output, &sizes->lse, e);
    if (status)
        return qr_service_explain(job.service, status, e);
    status = check_sizes(request, job.message, sizes, e);
    if (status)
        return status;

    job.buffers = qr_pool_take(job.service->attends);
    if (!job.buffers)
        return qr_error_set(e, QUIRE_EFULL, "as many attends run as max_calls allows");
    status = make_room(job.buffers, sizes->query + sizes->output + sizes->lse,
                       job.message->allow_missing, e);
    if (!status)
        status = compute(&job, reply_bytes, e);
    qr_pool_give(job.service->attends, job.buffers);
    return status;
}
