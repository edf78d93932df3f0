/* SPDX-License-Identifier: Apache-2.0
 *
 * How much memory a session of given geometry, length and policy takes, and how much the
 * server has. Page sizes come from the page format itself.
 */
#include "bench.h"
#include "stats.h"

#include "proto/page.h"

#include <stdlib.h>
#include <string.h>

static struct qr_codec_spec internal_spec(const struct quire_codec_spec *spec)
{
    if (spec->codec == QUIRE_CODEC_RAW)
        return (struct qr_codec_spec){.codec = QR_CODEC_RAW, .bits = 16};
    return (struct qr_codec_spec){.codec = (uint16_t)spec->codec,
                                  .bits = (uint8_t)spec->bits,
                                  .axis = (uint8_t)spec->axis,
                                  .group = (uint16_t)spec->group,
                                  .param = {spec->flags, spec->number}};
}

/** Bytes of the pages of a layer; 0: out of limits. */
static uint64_t layer_pages_bytes(const struct qr_bench *b, const struct quire_policy *policy,
                                  uint32_t layer, uint64_t pages)
{
    struct qr_page_identity id = {
        .heads = (uint16_t)b->kv_heads,
        .key_dim = (uint16_t)b->key_dim,
        .value_dim = (uint16_t)b->value_dim,
        .rope_stored = QR_ROPE_PRE,
        .rope_layout = QR_ROPE_HALF,
        .page_tokens = (uint16_t)policy->page_tokens,
        .key = internal_spec(&policy->key),
        .value = internal_spec(&policy->value),
    };
    for (uint32_t i = 0; i < policy->override_count; i++) {
        const struct quire_override *o = &policy->overrides[i];
        if (layer < o->first_layer || layer > o->last_layer)
            continue;
        id.key = o->tensors & QR_TENSOR_KEY ? internal_spec(&o->spec) : id.key;
        id.value = o->tensors & QR_TENSOR_VALUE ? internal_spec(&o->spec) : id.value;
    }
    /* The first page holds the sinks, every page at most its outliers. */
    const size_t first = qr_page_bytes(&id, policy->sink_rows + policy->outlier_rows);
    const size_t other = qr_page_bytes(&id, policy->outlier_rows);
    if (first == 0 || other == 0)
        return 0;
    return pages > 0 ? first + (pages - 1) * other : other;
}

uint64_t qr_bench_needed(const struct qr_bench *b, struct qr_error *e)
{
    const struct quire_policy *policy = &b->policy.policy;
    const uint64_t pages =
        b->tokens > policy->window ? (b->tokens - policy->window) / policy->page_tokens : 0;
    const uint64_t token_bytes = (uint64_t)b->kv_heads * (b->key_dim + b->value_dim) * 2;
    uint64_t needed = b->layers * (policy->window + policy->page_tokens) * token_bytes;
    for (uint32_t layer = 0; layer < b->layers; layer++) {
        const uint64_t bytes = layer_pages_bytes(b, policy, layer, pages);
        if (bytes == 0) {
            qr_error_set(e, QUIRE_EINVAL,
                         "geometry or policy out of limits: %u KV heads of %u and %u channels, "
                         "pages of %u tokens",
                         b->kv_heads, b->key_dim, b->value_dim, policy->page_tokens);
            return 0;
        }
        needed += bytes;
    }
    return needed;
}

static uint64_t metric(const struct quire_metric *metrics, size_t count, const char *name)
{
    const struct quire_metric *m = qr_stats_find(metrics, count, name);
    return m != NULL && m->value > 0 ? (uint64_t)m->value : 0;
}

quire_status qr_bench_budget(struct qr_cli *cli, struct qr_bench *bench)
{
    struct quire_metric *metrics;
    size_t count;
    const quire_status status = qr_stats_get(cli->client, &metrics, &count);
    if (status != QUIRE_OK)
        return status;
    bench->budget_bytes = metric(metrics, count, "host_budget_bytes");
    bench->used_bytes = metric(metrics, count, "host_reserved_bytes");
    free(metrics);
    return QUIRE_OK;
}
