/* SPDX-License-Identifier: Apache-2.0
 *
 * The store's metrics: counters from metrics.def, gauges read when asked.
 */
#include "store_impl.h"

struct metric_list {
    struct qr_metric *out;
    size_t capacity, count;
};

static void add(struct metric_list *list, const char *name, const char *unit, const char *help,
                uint64_t value)
{
    if (list->count < list->capacity)
        list->out[list->count] = (struct qr_metric){
            .name = name, .unit = unit, .help = help, .value = (double)value};
    list->count++;
}

static void add_tier(struct qr_store *store, struct metric_list *list)
{
    struct qr_tier_stat stat;

    store->tier->ops->stat(store->tier, &stat);
    add(list, "host_budget_bytes", "bytes", "Host tier: hard limit of pages and tails",
        stat.budget_bytes);
    add(list, "host_reserved_bytes", "bytes", "Host tier: in slots, rounding included",
        stat.reserved_bytes);
    add(list, "host_payload_bytes", "bytes", "Host tier: in slots, as asked for",
        stat.payload_bytes);
    add(list, "host_slots", "slots", "Host tier: slots in use", stat.slots);
}

static void add_tables(struct qr_store *store, struct metric_list *list)
{
    pthread_mutex_lock(&store->table_lock);
    const uint64_t sessions = store->session_count, models = store->model_count;
    pthread_mutex_unlock(&store->table_lock);

    add(list, "sessions", "sessions", "Sessions that exist", sessions);
    add(list, "models", "models", "Models registered", models);
    add(list, "namespaces", "namespaces", "Namespaces in use",
        atomic_load(&store->namespace_count));
}

size_t qr_store_metrics(struct qr_store *store, struct qr_metric *out, size_t capacity)
{
    struct metric_list list = {.out = out, .capacity = capacity};
    struct qr_index_stat index;

#define X(name, unit, help)                                                                    \
    add(&list, #name, unit, help, qr_counter_read(&store->counters.name));
#include "metrics.def"
#undef X
    qr_index_stat(store->index, &index);
    add_tables(store, &list);
    add(&list, "pages_known", "pages", "Pages that some session refers to", index.entries);
    add(&list, "pages_resident", "pages", "Pages whose bytes are in a tier", index.resident);
    add(&list, "tail_chunks", "chunks", "FP16 tail chunks in use", qr_pool_out(store->chunks));
    add(&list, "cursors_open", "cursors", "Fetches under way", qr_pool_out(store->cursors));
    add(&list, "metadata_bytes", "bytes", "Index entries, manifests and session records",
        atomic_load(&store->meta.used_bytes));
    add(&list, "metadata_limit_bytes", "bytes", "Limit of metadata_bytes",
        store->meta.limit_bytes);
    add_tier(store, &list);
    return list.count;
}
