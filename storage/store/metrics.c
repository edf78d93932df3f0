/* SPDX-License-Identifier: Apache-2.0
 *
 * The store's metrics: counters from metrics.def, gauges read when asked.
 */
#include "metrics.h"
#include "store_impl.h"

void qr_metric_add_double(struct qr_metric_list *list, const char *name, const char *unit,
                          const char *help, double value)
{
    if (list->count < list->capacity)
        list->out[list->count] =
            (struct qr_metric){.name = name, .unit = unit, .help = help, .value = value};
    list->count++;
}

void qr_metric_add(struct qr_metric_list *list, const char *name, const char *unit,
                   const char *help, uint64_t value)
{
    qr_metric_add_double(list, name, unit, help, (double)value);
}

static void add_tier(struct qr_store *store, struct qr_metric_list *list)
{
    struct qr_tier_stat stat;

    store->tier->ops->stat(store->tier, &stat);
    qr_metric_add(list, "host_budget_bytes", "bytes",
                  "Host tier: hard limit of pages and tails", stat.budget_bytes);
    qr_metric_add(list, "host_reserved_bytes", "bytes",
                  "Host tier: in slots, rounding included", stat.reserved_bytes);
    qr_metric_add(list, "host_payload_bytes", "bytes", "Host tier: in slots, as asked for",
                  stat.payload_bytes);
    qr_metric_add(list, "host_slots", "slots", "Host tier: slots in use", stat.slots);
}

static void add_tables(struct qr_store *store, struct qr_metric_list *list)
{
    pthread_mutex_lock(&store->table_lock);
    const uint64_t sessions = store->session_count, models = store->model_count;
    pthread_mutex_unlock(&store->table_lock);

    qr_metric_add(list, "sessions", "sessions", "Sessions that exist", sessions);
    qr_metric_add(list, "models", "models", "Models registered", models);
    qr_metric_add(list, "namespaces", "namespaces", "Namespaces in use",
                  atomic_load(&store->namespace_count));
}

size_t qr_store_metrics(struct qr_store *store, struct qr_metric *out, size_t capacity)
{
    struct qr_metric_list list = {.out = out, .capacity = capacity};
    struct qr_index_stat index;

#define X(name, unit, help)                                                                    \
    qr_metric_add(&list, #name, unit, help, qr_counter_read(&store->counters.name));
#include "metrics.def"
#undef X
    qr_index_stat(store->index, &index);
    add_tables(store, &list);
    qr_metric_add(&list, "pages_known", "pages", "Pages that some session refers to",
                  index.entries);
    qr_metric_add(&list, "pages_resident", "pages", "Pages whose bytes are in a tier",
                  index.resident);
    qr_metric_add(&list, "tail_chunks", "chunks", "FP16 tail chunks in use",
                  qr_pool_out(store->chunks));
    qr_metric_add(&list, "kept_bytes", "bytes", "Pages kept for repeats that may go on",
                  atomic_load(&store->kept_bytes));
    qr_metric_add(&list, "cursors_open", "cursors", "Fetches under way",
                  qr_pool_out(store->cursors));
    qr_metric_add(&list, "metadata_bytes", "bytes",
                  "Index entries, manifests and session records",
                  atomic_load(&store->meta.used_bytes));
    qr_metric_add(&list, "metadata_limit_bytes", "bytes", "Limit of metadata_bytes",
                  store->meta.limit_bytes);
    qr_metric_add(&list, "tail_bytes", "bytes", "Host tier: in slots of tails",
                  qr_index_chunk_bytes(store->index));
    add_tier(store, &list);
    qr_metrics_disk(store, &list);
    return list.count;
}
