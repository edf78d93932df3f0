/* SPDX-License-Identifier: Apache-2.0
 *
 * The facade that the server calls: sessions, append, fetch, attend. Sits on the
 * page index, the tiers and the codecs; must not know gRPC or protobuf.
 *
 * Threads: every function may be called from any thread unless it says otherwise.
 * Namespaces: `ns` comes from the caller's identity (server/), never from a request; every
 * handle is checked against it. Errors are described in `e` (may be NULL); results are
 * untouched on failure.
 */
#ifndef QR_STORE_H
#define QR_STORE_H

#include <stdatomic.h>

#include "proto/model.h"
#include "proto/page.h"
#include "storage/codec/receipt.h"

struct qr_store;

#define QR_STORE_FOLDERS_MAX 16u

/** The disk tier, see storage/tier/tier_disk.h for what each means. */
struct qr_store_disk_config {
    const char *folders[QR_STORE_FOLDERS_MAX];
    uint64_t cap_bytes[QR_STORE_FOLDERS_MAX];
    uint32_t count;
    bool allow_missing, no_uring;
    bool drop_when_full; /* sessions that nobody uses, the longest unused first, go when the
                            disk is nearly full; else durable appends are EFULL then */
    uint64_t tail_log_bytes, index_cache_bytes; /* 0: the defaults */
    uint32_t tail_segment_bytes;
    uint64_t scrub_bytes_per_s; /* stored pages that are checked in the background; 0: none */
    void *io;                   /* struct qr_disk_io of tests; NULL: the system's */
};

struct qr_store_config {
    uint64_t host_budget_bytes; /* pages and tails together, hard */
    uint32_t sessions_max, models_max;
    uint32_t lease_ms;       /* default writer lease */
    uint64_t ttl_ms;         /* default time to live */
    uint32_t attend_threads; /* workers for attend, >= 1 */
    uint32_t receipts;       /* measure one in so many pages that are sealed here; 0: none */
    int huge_pages;
    const struct qr_store_disk_config *disk; /* NULL: host memory only; read at creation */
    uint64_t (*clock_ms)(void); /* monotonic; NULL: the system's. Tests own time through it */
};

quire_status qr_store_create(const struct qr_store_config *config, struct qr_store **out,
                             struct qr_error *e);
/** Every cursor, pin and call must have ended. */
void qr_store_destroy(struct qr_store **store);

/** The namespace of this name (created on first use): its id, and the secret that page ids are
 * made with. */
quire_status qr_store_namespace(struct qr_store *store, const char *name, uint32_t *ns_out,
                                struct qr_error *e);

/** Register a sealed model (qr_model_seal); idempotent. The store keeps a copy. EFULL past
 * models_max. */
quire_status qr_store_model_put(struct qr_store *store, const struct qr_model *model,
                                struct qr_error *e);
/** Model of a fingerprint, valid for the store's life; ENOTFOUND. */
quire_status qr_store_model_get(struct qr_store *store,
                                const uint8_t fingerprint[QR_HASH_BYTES],
                                const struct qr_model **out, struct qr_error *e);

/* ---- sessions --------------------------------------------------------------------------- */

struct qr_session_open {
    const char *name;
    const uint8_t *fingerprint;     /* NULL: whatever is there */
    const struct qr_policy *policy; /* NULL: default on create, whatever is there on open */
    uint32_t head_shards;           /* 0 = 1 on create, whatever is there on open */
    bool create, must_create, write, force;
    uint64_t join_epoch; /* with write. 0: take the lease; else share the one that this epoch
                            holds, or EFENCED: workers of one engine write under one epoch */
    uint32_t lease_ms;   /* 0: default; joining: as it is */
    uint64_t ttl_ms;     /* 0: default */
};

struct qr_session_info {
    uint64_t session;
    char name[QR_NAME_MAX + 1];
    const struct qr_model *model;
    struct qr_policy policy;
    uint32_t head_shards;
    uint64_t length, longest, sealed;
    uint64_t epoch;
    bool leased, created;
    uint64_t ttl_ms;
    uint64_t pages, missing_pages, page_bytes, tail_bytes, fp16_bytes;
    struct qr_receipt_sum receipts; /* of pages that came since the session is in memory */
};

quire_status qr_session_open(struct qr_store *store, uint32_t ns,
                             const struct qr_session_open *open, struct qr_session_info *out,
                             struct qr_error *e);
/** Give the lease back when `epoch` holds it; never an error for a session that is gone. */
void qr_session_close(struct qr_store *store, uint32_t ns, uint64_t session, uint64_t epoch);
quire_status qr_session_drop(struct qr_store *store, uint32_t ns, const char *name, bool force,
                             struct qr_error *e);
quire_status qr_session_info(struct qr_store *store, uint32_t ns, const char *name,
                             struct qr_session_info *out, struct qr_error *e);
/** The same of a handle: ENOTFOUND when it was dropped, whoever has its name now. */
quire_status qr_session_info_of(struct qr_store *store, uint32_t ns, uint64_t session,
                                struct qr_session_info *out, struct qr_error *e);
/** Up to `capacity` infos with names > after and prefix; *count_out, *more_out. */
quire_status qr_session_list(struct qr_store *store, uint32_t ns, const char *prefix,
                             const char *after, struct qr_session_info *out, size_t capacity,
                             size_t *count_out, bool *more_out);
/** Copy-on-write fork at `length` tokens; 0: all committed ones, or whole blocks of them where
 * a longer lane has sealed the last. A length inside a sealed page is EINVAL and the text names
 * lengths that work; ERANGE, EEXIST,
 * ENOTFOUND, EFULL. */
quire_status qr_session_fork(struct qr_store *store, uint32_t ns, const char *from,
                             const char *to, uint64_t length, uint64_t ttl_ms,
                             struct qr_session_info *out, struct qr_error *e);
quire_status qr_session_touch(struct qr_store *store, uint32_t ns, uint64_t session,
                              uint64_t epoch, uint64_t ttl_ms, uint32_t lease_ms,
                              struct qr_session_info *out, struct qr_error *e);
/** Cut every lane to at most `length`, a block border or past what is sealed (else EINVAL).
 * ERANGE past the longest lane, EFENCED. */
quire_status qr_session_truncate(struct qr_store *store, uint32_t ns, uint64_t session,
                                 uint64_t epoch, uint64_t length, struct qr_session_info *out,
                                 struct qr_error *e);

struct qr_token_range {
    uint64_t position, tokens;
    uint32_t layer, shard;
};
/** Make everything durable that the session has now; waits. EUNSUPPORTED without a disk tier,
 * ENOTFOUND, EFULL, EIO. */
quire_status qr_session_flush(struct qr_store *store, uint32_t ns, uint64_t session,
                              struct qr_session_info *out, struct qr_error *e);
/** The same of every session of a namespace. */
quire_status qr_store_flush(struct qr_store *store, uint32_t ns, struct qr_error *e);

/** Exactly what is missing of [position, +tokens) x [first_layer, +layers); *more_out when
 * capacity was too small. ERANGE past the end of any lane named. */
quire_status qr_session_lookup(struct qr_store *store, uint32_t ns, uint64_t session,
                               const struct qr_token_range *what, uint32_t layers,
                               struct qr_token_range *missing, size_t capacity,
                               size_t *count_out, bool *more_out, uint64_t *length_out,
                               struct qr_error *e);

/* ---- moving a session ------------------------------------------------------------------ */

/** What a session is besides its pages and rows. */
struct qr_manifest {
    uint64_t length, ttl_ms; /* committed; as set, not what is left */
    uint32_t block_count;    /* blocks with an id: some lane has sealed them */
    uint32_t chained;        /* of them from the start, whose ids are hashes of token ids */
    uint32_t first_block, id_count;
    uint8_t (*block_ids)[QR_HASH_BYTES]; /* of [first_block, +id_count) */
    uint32_t lane_count;
    uint32_t *sealed;        /* [lane_count]: blocks, lanes in the order of a fetch */
    uint64_t token_position; /* block_count * page_tokens */
    uint32_t token_count;
    uint32_t *token_ids; /* [token_count]; 0 where not known */
    uint8_t *known;      /* [token_count]: 1 or 0 */
};
/** Manifest with the ids of up to `blocks` blocks from first_block on, as of one moment. *out
 * is the caller's, to be given to qr_manifest_free. ENOTFOUND, ENOMEM. */
quire_status qr_session_manifest(struct qr_store *store, uint32_t ns, uint64_t session,
                                 uint32_t first_block, uint32_t blocks,
                                 struct qr_manifest **out, struct qr_error *e);
void qr_manifest_free(struct qr_manifest **manifest);

/** Ids for blocks [first, +count) that no lane has sealed: README.md says what claims may do.
 */
struct qr_block_claim {
    uint64_t session, epoch;
    uint32_t first, count, chained;
    const uint8_t (*ids)[QR_HASH_BYTES];
};
/** Claim; blocks that have an id or a claim are compared. *blocks_out: how many have one.
 * EFENCED, ENOTFOUND, EGAP, ECONFLICT, EINVAL (a zero id, more chained than claimed), ETOOBIG,
 * EFULL. */
quire_status qr_session_claim(struct qr_store *store, uint32_t ns,
                              const struct qr_block_claim *claim, uint32_t *blocks_out,
                              struct qr_error *e);

/* ---- append ----------------------------------------------------------------------------- */

/** Payload as a stream of bytes, so that it is copied once, from the wire's own buffers to its
 * place. */
struct qr_source {
    /** Copy the next n bytes to dst; false when fewer are left (programmer error after a length
     * check). */
    bool (*read)(struct qr_source *source, void *dst, size_t n);
    uint64_t bytes; /* left */
};

/** Whether what an append left in memory is on disk now, with all that the session had before
 * it. Fires once, on any thread, when the append returned OK and was durable; must not call the
 * store. EFULL (retry hint), EIO, ETIMEOUT: memory has it, the disk has not; appending the same
 * again tries again. */
typedef void qr_durable_done(void *arg, quire_status status, const struct qr_error *e);

struct qr_append {
    uint64_t session, epoch, position;
    uint32_t tokens, first_layer, layers, shard;
    enum qr_dtype dtype;
    bool durable;          /* EUNSUPPORTED without a disk tier */
    bool soon;             /* a durable append will follow: begin to write sealed pages */
    qr_durable_done *done; /* with durable: see there; NULL: the call waits */
    void *arg;
    bool no_wait; /* EAGAIN, and nothing was read of the source that matters, where the call
                     would have to wait for the disk: a repeat of stored pages, a session to be
                     loaded */
    const uint32_t *token_ids; /* NULL or [tokens] */
};
struct qr_append_result {
    uint64_t length, committed;
    uint32_t repeated_tokens;
};

/**
 * Rows of layers [first_layer, +layers), those without a KV cache left out: for each, K
 * [tokens][heads][key_dim] then V [tokens][heads][value_dim]. All or nothing: on any error no
 * lane changed. Seals every block that [(i+1)P + W <= n] allows, and renews the lease. Errors:
 * EINVAL (length of source, geometry), EVALUE, EGAP, ECONFLICT, EFENCED, ELEASE, ENOTFOUND,
 * EFULL, EMISSING (a repeat of part of an evicted page or block of the tail, or new rows after
 * a tail that was evicted: position and tokens say what, appended in one call, would restore
 * it).
 */
quire_status qr_append_rows(struct qr_store *store, uint32_t ns, const struct qr_append *append,
                            struct qr_source *rows, struct qr_append_result *out,
                            struct qr_error *e);
/**
 * One page sealed by the client for one lane (append->layers == 1, tokens == page_tokens). Its
 * bytes are verified (format, checksum, identity, policy) before anything is visible. The block
 * id in it is ignored on the wire form: see README.
 */
quire_status qr_append_page(struct qr_store *store, uint32_t ns, const struct qr_append *append,
                            size_t page_bytes, struct qr_source *page,
                            struct qr_append_result *out, struct qr_error *e);

/* ---- fetch ------------------------------------------------------------------------------ */

struct qr_fetch {
    uint64_t session, position, tokens;
    uint32_t first_layer, layers, first_head, heads; /* heads 0 = all */
};

enum qr_part_status {
    QR_PART_OK = 0,
    QR_PART_MISSING = 1,
    QR_PART_CORRUPT = 2,
    QR_PART_LATER = 3 /* inside the store only */
};

/** One step of a fetch: a verified page, rows of a tail, or a hole. */
struct qr_part {
    uint32_t layer, first_head, heads;
    uint64_t position; /* first wanted token in it */
    uint32_t tokens;   /* wanted tokens in it */
    enum qr_part_status status;
    const void *page; /* pinned page bytes, or NULL */
    size_t page_bytes;
    struct qr_page_view view;              /* of the page, verified; zero for rows and holes */
    const uint16_t *key_rows, *value_rows; /* pinned FP16 [tokens][heads][dim], or NULL */
    const struct qr_model *model;
    void *pin; /* what qr_part_release takes; NULL for holes */
};

struct qr_fetch_cursor;
/** Start. ERANGE with the length when the range is past the end of any lane named. Memory of
 * the cursor is pooled. */
quire_status qr_fetch_open(struct qr_store *store, uint32_t ns, const struct qr_fetch *fetch,
                           struct qr_fetch_cursor **out, struct qr_error *e);
enum qr_fetch_step {
    QR_FETCH_END = 0,
    QR_FETCH_PART = 1,
    QR_FETCH_LATER = 2 /* the next page is being read from the disk: ask again */
};
/** Next part, looked up, pinned and verified in one step; asks for pages ahead of it. Never
 * waits. One thread at a time. */
enum qr_fetch_step qr_fetch_next(struct qr_fetch_cursor *cursor, struct qr_part *out);
/** Unpin. Any thread, also after the cursor is closed; never blocks for long, takes no session
 * lock. */
void qr_part_release(struct qr_store *store, void *pin);
void qr_fetch_close(struct qr_fetch_cursor **cursor);

/* ---- attend ----------------------------------------------------------------------------- */

struct qr_attend {
    uint64_t session;
    uint32_t first_layer, layers, first_query_head, query_heads; /* query_heads 0 = all */
    uint32_t queries;
    const uint64_t *positions;        /* [queries] */
    const float *query;               /* [layer][query][query head][key_dim], rotated */
    uint64_t first_token, last_token; /* last 0 = all */
    bool causal, allow_missing;
    uint32_t window; /* 0: the layer's own, UINT32_MAX: none */
    float scale, softcap;
};
struct qr_attend_missing {
    struct qr_token_range *ranges; /* caller's array */
    size_t capacity, count;
    bool more;
};
/** Floats of output and lse for this request: sum over layers of queries * heads * value_dim,
 * and queries * heads. */
quire_status qr_attend_sizes(struct qr_store *store, uint32_t ns,
                             const struct qr_attend *attend, size_t *query_out,
                             size_t *output_out, size_t *lse_out, struct qr_error *e);
/**
 * Blocks until computed, spread over the attend workers. output, lse as qr_attend_sizes says.
 * A truncate meanwhile below a token attended to is ERANGE with the length, a drop ENOTFOUND.
 * `missing` (may be NULL) is filled under allow_missing; without it any hole in the range is
 * EMISSING (the first range) and nothing is computed; NaN or infinite queries are EVALUE
 * (layer, query head, position, channel). Layers without a KV cache have no rows. cancel:
 * becomes true in any thread to end it with ECANCELED, polled between pages; may be NULL.
 */
quire_status qr_store_attend(struct qr_store *store, uint32_t ns,
                             const struct qr_attend *attend, float *output, float *lse,
                             struct qr_attend_missing *missing, const atomic_bool *cancel,
                             struct qr_error *e);

/* ---- upkeep and metrics ----------------------------------------------------------------- */

/** Expire leases and sessions past their time to live; the server calls it about once a second.
 * Returns sessions dropped. */
uint32_t qr_store_tick(struct qr_store *store);

/** False without a disk tier, or while its index takes no writes: then durable appends fail,
 * and reads go on. */
bool qr_store_disk_writable(struct qr_store *store);

struct qr_metric {
    const char *name, *unit, *help; /* static */
    double value;
};
/** Every counter and gauge, up to capacity; returns how many there are. */
size_t qr_store_metrics(struct qr_store *store, struct qr_metric *out, size_t capacity);

#endif
