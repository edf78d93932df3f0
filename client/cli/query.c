/* SPDX-License-Identifier: Apache-2.0
 *
 * See query.h.
 */
#include "query.h"

#include "model_file.h"
#include "reference.h"

quire_status qr_query_layer_get(const quire_session *session, uint32_t layer,
                                struct qr_query_layer *out)
{
    struct quire_rope rope;
    quire_status status = quire_session_layer(session, layer, &out->layer);
    if (status != QUIRE_OK)
        return status;
    out->rotates = out->layer.rope_stored != QUIRE_ROPE_NONE;
    if (!out->rotates)
        return QUIRE_OK;
    status = quire_session_rope(session, out->layer.rope, &rope);
    return status == QUIRE_OK ? qr_model_file_rope(&rope, &out->rope, NULL) : status;
}

void qr_query_rows(const struct qr_safetensor *query, enum quire_dtype dtype, uint64_t first,
                   uint32_t count, uint64_t position, const struct qr_rope *rotate, float *out)
{
    const uint32_t heads = (uint32_t)query->shape[1], dim = (uint32_t)query->shape[2];
    const size_t width = (size_t)heads * dim;
    for (uint32_t j = 0; j < count; j++) {
        for (size_t i = 0; i < width; i++)
            out[j * width + i] =
                qr_reference_element(query->data, dtype, (first + j) * width + i);
        if (rotate != NULL)
            qr_reference_rotate(rotate, position + j, heads, dim, out + j * width);
    }
}
