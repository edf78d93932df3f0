/* SPDX-License-Identifier: Apache-2.0
 *
 * libquire: the client library of Quire, the KV-cache store for LLM inference.
 * The only installed header; C11 and C++. Everything here is synchronous unless
 * its name says `submit`.
 *
 * Words: a session is one token sequence of one model. K and V are appended per
 * layer, sealed by the store into immutable quantized pages, and read back as
 * attention inputs (fetch) or attended to where they lie (attend).
 *
 * Threads: a quire_client may be used by any number of threads. A quire_session
 * may be read (fetch, attend, info) by any number of threads; appends, truncate
 * and close of one session must not run at the same time as each other, except
 * that asynchronous appends may be in flight together when they name different
 * layers. Closing an object that another thread is using is a programmer error.
 *
 * Errors: every call returns a quire_status; 0 is success; results are untouched
 * on failure. quire_last_error() gives the calling thread's last failure in full.
 */
#ifndef QUIRE_H
#define QUIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_API __attribute__((visibility("default")))

/* ---- status ----------------------------------------------------------------------------- */

#ifndef QUIRE_STATUS_DEFINED
#define QUIRE_STATUS_DEFINED
typedef int quire_status;
enum {
    QUIRE_OK = 0,
    QUIRE_EINVAL = 1,        /* invalid argument */
    QUIRE_EVALUE = 2,        /* NaN, infinity, or rounds past 65504 in FP16 */
    QUIRE_ERANGE = 3,        /* range past the end */
    QUIRE_EGAP = 4,          /* append starts past the current length */
    QUIRE_ECONFLICT = 5,     /* repeated append differs from what is stored */
    QUIRE_ENOTFOUND = 6,     /* no such session or model */
    QUIRE_EEXIST = 7,        /* exists with other properties */
    QUIRE_EMISMATCH = 8,     /* model, geometry or page identity does not match */
    QUIRE_ELEASE = 9,        /* another writer holds the lease */
    QUIRE_EFENCED = 10,      /* writer epoch is stale: somebody took over */
    QUIRE_EMISSING = 11,     /* some tokens are no longer stored */
    QUIRE_ECORRUPT = 12,     /* damaged bytes, stored or received */
    QUIRE_EFULL = 13,        /* budget is full; retry after the hint */
    QUIRE_ETOOBIG = 14,      /* larger than a limit */
    QUIRE_EUNSUPPORTED = 15, /* version, flag or feature */
    QUIRE_ETIMEOUT = 16,     /* deadline exceeded */
    QUIRE_ECANCELED = 17,    /* canceled by quire_op_cancel */
    QUIRE_EUNAVAILABLE = 18, /* server not reachable or shutting down */
    QUIRE_EPERM = 19,
    QUIRE_EIO = 20,
    QUIRE_ENOMEM = 21,
    QUIRE_EINTERNAL = 22,
    QUIRE_EAGAIN = 23 /* not ready yet (quire_op_poll) */
};
#endif

struct quire_error {
    quire_status status;
    uint64_t length; /* EGAP, ERANGE: current length, tokens; ETOOBIG of a message: its bytes */
    uint64_t position; /* EVALUE, ECONFLICT, EMISSING: first token concerned; ECORRUPT of an
                          import: byte of the file */
    uint64_t tokens;   /* EMISSING: how many from there */
    uint32_t layer, head, channel;
    uint32_t retry_after_ms; /* EFULL, ELEASE, EUNAVAILABLE: 0 = no hint */
    uint64_t epoch;          /* ELEASE, EFENCED: epoch of the holder */
    uint64_t limit;          /* ETOOBIG of a message: most bytes accepted */
    char text[256];          /* what was wrong, with the value, and what would be right */
};

/** Phrase and name ("QUIRE_EGAP") of a status; never NULL; static. */
QUIRE_API const char *quire_status_text(quire_status status);
QUIRE_API const char *quire_status_name(quire_status status);
/** Last failure on the calling thread; never NULL; valid until this thread's next call.
 * Asynchronous: quire_op_error. */
QUIRE_API const struct quire_error *quire_last_error(void);
/** "0.1.0". */
QUIRE_API const char *quire_version(void);

/* ---- client ----------------------------------------------------------------------------- */

typedef struct quire_client quire_client;

struct quire_client_options {
    size_t struct_bytes; /* sizeof(struct quire_client_options): set by
                            quire_client_options_init */
    uint32_t timeout_ms; /* deadline of each call unless it says otherwise; default 30000 */
    uint32_t connect_ms; /* quire_client_open waits this long for the server; default 5000 */
    uint32_t threads;    /* receive and decode threads; default 2 */
    uint64_t inflight_bytes; /* most bytes of an append sent and not acknowledged yet; default
                                8 MiB */
    bool encode_pages; /* seal whole pages here when that is fewer bytes on the wire; default
                          true */
    bool local; /* append and fetch through memory shared with a server on this host; default
                   true; the environment's QUIRE_LOCAL=off overrides it */
    uint32_t receipts; /* measure the attention output error of one in so many pages that are
                          sealed here: 1 all, 0 none (default); proto/README.md, "Receipt" */
};
QUIRE_API void quire_client_options_init(struct quire_client_options *options);

/**
 * Connect. target: "unix:/path/to/socket" or "host:port". options: NULL = defaults. *out is
 * owned by the caller. Errors: EINVAL, EUNAVAILABLE (not reachable within connect_ms),
 * EUNSUPPORTED (server speaks another page version).
 */
QUIRE_API quire_status quire_client_open(const char *target,
                                         const struct quire_client_options *options,
                                         quire_client **out);
/** Close; NULL and *client == NULL are allowed. Every session and operation of the client must
 * be closed before. */
QUIRE_API void quire_client_close(quire_client **client);
/** One empty round trip; the call that latencies are compared with. */
QUIRE_API quire_status quire_client_ping(quire_client *client);
/** Do append and fetch go through shared memory now? why (may be NULL): the reason if not, cut
 * to `capacity`. It is tried again when a session is opened. Any thread. */
QUIRE_API bool quire_client_is_local(quire_client *client, char *why, size_t capacity);

/* ---- model ------------------------------------------------------------------------------ */

enum quire_dtype { QUIRE_F16 = 1, QUIRE_BF16 = 2, QUIRE_F32 = 3 };
enum quire_rope_stored { QUIRE_ROPE_NONE = 0, QUIRE_ROPE_PRE = 1, QUIRE_ROPE_POST = 2 };
enum quire_rope_layout { QUIRE_ROPE_HALF = 1, QUIRE_ROPE_INTERLEAVED = 2 };
enum quire_rope_type {
    QUIRE_ROPE_DEFAULT = 1,
    QUIRE_ROPE_LINEAR = 2,
    QUIRE_ROPE_DYNAMIC = 3,
    QUIRE_ROPE_YARN = 4,
    QUIRE_ROPE_LLAMA3 = 5,
    QUIRE_ROPE_LONGROPE = 6,
    QUIRE_ROPE_TABLE = 7
};

/** RoPE parameters; names as in the transformers package. Zero what a variant does not use. */
struct quire_rope {
    enum quire_rope_type type;
    enum quire_rope_layout layout;
    uint32_t rotary_dim; /* channels rotated, even, <= key_dim */
    double theta, factor, attention_factor;
    double beta_fast, beta_slow, mscale, mscale_all_dim;
    double low_freq_factor, high_freq_factor;
    uint32_t original_max_position, max_position, seq_len;
    bool truncate_off;                       /* YaRN: keep the correction range fractional */
    const float *short_factor, *long_factor; /* LongRoPE: rotary_dim/2 each */
    const float *inv_freq;                   /* TABLE: rotary_dim/2 */
};

/** `count` consecutive layers of equal geometry. kv_heads 0: layers without a KV cache. */
struct quire_layers {
    uint32_t count;
    uint32_t query_heads, kv_heads, key_dim, value_dim;
    uint32_t rope;                      /* index into quire_model.ropes */
    enum quire_rope_stored rope_stored; /* how the caller hands keys in; PRE quantizes best */
    uint32_t sliding_window;            /* tokens, 0 = full attention */
};

struct quire_model {
    const char *name, *revision, *adapter; /* <= 255 bytes each; NULL = "" */
    const struct quire_layers *layers;
    uint32_t layer_runs;
    const struct quire_rope *ropes;
    uint32_t rope_count;     /* <= 4 */
    const void *calibration; /* bytes of a file of quire calibrate, or NULL */
    size_t calibration_bytes;
};

/** Register (idempotent). fingerprint: 32 bytes out: the id of geometry, RoPE tables, revision
 * and adapter. */
QUIRE_API quire_status quire_model_register(quire_client *client,
                                            const struct quire_model *model,
                                            uint8_t fingerprint[32]);

/* ---- sessions --------------------------------------------------------------------------- */

typedef struct quire_session quire_session;

enum quire_codec { QUIRE_CODEC_RAW = 1, QUIRE_CODEC_CHAN = 2, QUIRE_CODEC_FP8 = 3 };
enum { QUIRE_CODEC_ROT = 4, QUIRE_CODEC_LM = 5, QUIRE_CODEC_NUQ = 6 };
enum quire_axis { QUIRE_AXIS_CHANNEL = 1, QUIRE_AXIS_TOKEN = 2, QUIRE_AXIS_HEAD = 3 };
/** Encoding of keys or values: the numbers of a page's codec spec (proto/README.md). flags: 1
 * center, 2 normalize, 4 hybrid, 8 heads4, 16 reorder. */
struct quire_codec_spec {
    uint32_t codec, bits; /* enum quire_codec and those below it */
    enum quire_axis axis;
    uint32_t group, flags, number;
};
/** Read a codec as command lines write it: "fp8:format=e5m2,axis=head". key: the defaults of
 * keys, else of values. Errors: EINVAL, EUNSUPPORTED. */
QUIRE_API quire_status quire_codec_parse(const char *text, bool key,
                                         struct quire_codec_spec *out);
/** How pages are made. Fixed when the session is created. */
struct quire_policy {
    uint32_t page_tokens;  /* power of two, 16 .. 512 */
    uint32_t window;       /* newest tokens never quantized */
    uint32_t sink_rows;    /* first positions kept in FP16 */
    uint32_t outlier_rows; /* most outlier tokens a page kept in FP16, <= 4 */
    struct quire_codec_spec key, value;
    uint32_t override_count;
    struct quire_override { /* the last one of a layer wins; tensors: 1 keys, 2 values, 3 both
                             */
        uint32_t first_layer, last_layer, tensors;
        struct quire_codec_spec spec;
    } overrides[16];
};
/** K4 per channel, V4 per token, group 32, pages and window of 128, 4 sinks, 4 outliers. */
QUIRE_API void quire_policy_default(struct quire_policy *policy);
/** Add overrides written "0-1/kv=chan:bits=8;29/k=raw" (layers, keys or values or both, codec).
 * Errors: EINVAL, EUNSUPPORTED; policy untouched. */
QUIRE_API quire_status quire_policy_override(struct quire_policy *policy, const char *text);

enum {
    QUIRE_OPEN_CREATE = 1,    /* create when absent */
    QUIRE_OPEN_EXCLUSIVE = 2, /* with CREATE: EEXIST when present */
    QUIRE_OPEN_WRITE = 4,     /* take the writer lease */
    QUIRE_OPEN_FORCE = 8      /* with WRITE: take it over even if it has not expired */
};
struct quire_open_options {
    size_t struct_bytes;
    uint32_t flags;
    const uint8_t *fingerprint; /* 32 bytes; needed to create; else compared when given */
    const struct quire_policy *policy; /* NULL: default on create, whatever is there on open */
    uint32_t head_shards; /* tensor-parallel workers that append; divides every layer's
                             kv_heads; default 1 */
    uint32_t shard;       /* the one this handle appends, 0-based */
    uint32_t lease_ms;    /* 0: server default; renewed by appends and quire_session_touch */
    uint64_t ttl_ms;      /* 0: server default; a session unused for so long is dropped */
    uint64_t epoch;       /* with WRITE: 0 takes the lease; else joins the one that this epoch
                             holds, see below */
};
/*
 * Tensor-parallel workers write one session under one lease: rank 0 opens it with WRITE and
 * head_shards, hands quire_session_info's epoch to the others, and these open with WRITE, that
 * epoch and their own shard. Joining renews the lease, EFENCED says that the epoch no longer
 * holds it (with the one that does). A handle that joined does not give the lease back when it
 * is closed; the one that took it does, for all, so it is closed last.
 */
QUIRE_API void quire_open_options_init(struct quire_open_options *options);

struct quire_session_info {
    char name[256];
    uint8_t fingerprint[32];
    struct quire_policy policy;
    uint32_t layer_count, head_shards;
    uint64_t length;  /* committed: tokens that every lane has */
    uint64_t longest; /* tokens of the longest lane */
    uint64_t epoch;
    bool leased;
    uint64_t ttl_ms;
    uint64_t pages, missing_pages;
    uint64_t page_bytes, tail_bytes, fp16_bytes; /* held, held, and what FP16 would take */
    uint64_t
        receipts; /* pages that were measured when sealed, since the session is in memory */
    float receipt_error, receipt_largest; /* relative error of their attention output: root mean
                                             square, largest */
};

/**
 * Open or create a session by name (1 .. 255 bytes, no control characters). options: NULL =
 * open for reading. Errors: ENOTFOUND, EEXIST, ELEASE (epoch and retry_after_ms of the holder),
 * EFENCED (the epoch to join), EMISMATCH, EINVAL, EFULL.
 */
QUIRE_API quire_status quire_session_open(quire_client *client, const char *name,
                                          const struct quire_open_options *options,
                                          quire_session **out);
/** Release the handle; a writer that took the lease gives it back. The session stays in the
 * store. NULL allowed. */
QUIRE_API void quire_session_close(quire_session **session);
/** Of this handle's session: ENOTFOUND once it was dropped, also when its name was used again.
 */
QUIRE_API quire_status quire_session_info(quire_session *session,
                                          struct quire_session_info *out);
/** Keep alive: renew the lease (writers) and the time to live (ttl_ms 0: as before). */
QUIRE_API quire_status quire_session_touch(quire_session *session, uint64_t ttl_ms);
/** Cut to `length` tokens (writers). Whole pages go; a cut inside a page needs `length` >=
 * sealed tokens. ERANGE past the end. */
QUIRE_API quire_status quire_session_truncate(quire_session *session, uint64_t length);
/** Wait until everything that the session has now is on disk. Any handle of it will do, a
 * reader's too. EUNSUPPORTED (the server has no disk), ENOTFOUND, EFULL, EIO. */
QUIRE_API quire_status quire_session_flush(quire_session *session);
/** The same of every session of this client's namespace. */
QUIRE_API quire_status quire_flush(quire_client *client);
/** Copy-on-write fork of `from` at `length` tokens under a new name. A length that lies inside
 * a page which some lane has sealed already (lanes may be ahead of each other) is EINVAL, and
 * the text names lengths that work; 0: the largest length that works, which is the committed
 * one while no lane has sealed past it, else the page border below. EEXIST, ENOTFOUND, ERANGE
 * (longer than committed). */
QUIRE_API quire_status quire_session_fork(quire_client *client, const char *from,
                                          const char *to, uint64_t length);
/** Remove. ELEASE while a writer holds it, unless force. */
QUIRE_API quire_status quire_session_drop(quire_client *client, const char *name, bool force);
/**
 * Names ascending from the first one greater than `after` (NULL or "": from the start) that
 * begins with `prefix`. infos: caller's array of `capacity`; *count_out filled; *more_out: ask
 * again with after = the last name.
 */
QUIRE_API quire_status quire_session_list(quire_client *client, const char *prefix,
                                          const char *after, struct quire_session_info *infos,
                                          size_t capacity, size_t *count_out, bool *more_out);

/**
 * Geometry of layer `layer` of the session's model: *out with count = 1, rope = index for
 * quire_session_rope. Known since the session was opened: no round trip. Errors: EINVAL.
 */
QUIRE_API quire_status quire_session_layer(const quire_session *session, uint32_t layer,
                                           struct quire_layers *out);
/**
 * RoPE table `rope` of the session's model, as type TABLE: layout, rotary_dim,
 * attention_factor, inv_freq (borrowed from the session). For callers that rotate their
 * queries themselves. Errors: EINVAL.
 */
QUIRE_API quire_status quire_session_rope(const quire_session *session, uint32_t rope,
                                          struct quire_rope *out);

/** Which page: the one that holds token `position` of the lane of KV head `head` of `layer`. */
struct quire_page_at {
    uint64_t position;
    uint32_t layer, head;
    uint32_t timeout_ms; /* 0: the client's */
};
/**
 * The encoded page as the store holds it (proto/README.md says what the bytes mean), checked
 * against its checksum. page: 8-byte aligned. bytes_out: its length, also set on ETOOBIG
 * (capacity too small: nothing was written). Errors: ERANGE (the token is in the tail, not in a
 * page yet, or past the end), EMISSING, ECORRUPT, EINVAL.
 */
QUIRE_API quire_status quire_session_page(quire_session *session,
                                          const struct quire_page_at *at, void *page,
                                          size_t capacity, size_t *bytes_out);

struct quire_range {
    uint64_t position, tokens;
    uint32_t layer, shard;
};
/** Ranges of [position, position + tokens) that are no longer stored, for layers [first_layer,
 * +layers). ETOOBIG: more than capacity; the first `capacity` are filled in all the same, and
 * *count_out says how many there are (past 4096 only that there are more). ERANGE: past the end
 * of any of these layers, with its length: tokens that were never appended are not missing. */
QUIRE_API quire_status quire_session_lookup(quire_session *session, uint64_t position,
                                            uint64_t tokens, uint32_t first_layer,
                                            uint32_t layers, struct quire_range *missing,
                                            size_t capacity, size_t *count_out);

/* ---- append ----------------------------------------------------------------------------- */

enum quire_durability { QUIRE_MEMORY = 0, QUIRE_DISK = 1 };

/** K and V of `tokens` new tokens for layers [first_layer, +layers). One array entry per layer;
 * heads of this handle's shard. Entries of layers without a KV cache are not read. */
struct quire_append {
    uint64_t position; /* first token: the lane's length, or earlier for a repeat (compared,
                          must be equal) */
    uint32_t tokens, first_layer, layers;
    enum quire_dtype dtype;
    const void *const
        *key; /* [layers] -> [tokens][heads][key_dim] through the strides, channel stride 1 */
    const void *const *value;                     /* [layers] -> [tokens][heads][value_dim] */
    size_t key_token_stride, key_head_stride;     /* bytes; 0 = contiguous */
    size_t value_token_stride, value_head_stride; /* bytes; 0 = contiguous */
    const uint32_t *token_ids; /* NULL or [tokens]: lets equal prefixes be shared. Repeated ids
                                  are compared; of a sealed block only when all of it is given,
                                  since their hash alone is kept */
    enum quire_durability durability;
    uint32_t timeout_ms; /* 0: the client's */
};

/**
 * Append. Returns when acknowledged at the durability asked for. A large append is cut into
 * messages; when one fails, what was acknowledged before it stays, and length_out (may be NULL)
 * tells the length of the shortest lane named. With QUIRE_DISK the last message waits for the
 * disk, for all: what was acknowledged before a failure is in memory. Errors: EGAP, ECONFLICT,
 * EVALUE (layer, head, position, channel in the error), EMISSING (the store lost what stands
 * before or among these rows: append the range in the error, position and tokens, in one call
 * first), EFENCED, EFULL, EINVAL, EUNSUPPORTED (DISK without a disk tier), ETIMEOUT,
 * EUNAVAILABLE.
 */
QUIRE_API quire_status quire_append(quire_session *session, const struct quire_append *append,
                                    uint64_t *length_out);

/* ---- fetch ------------------------------------------------------------------------------ */

enum quire_layout { QUIRE_TOKEN_MAJOR = 0, QUIRE_HEAD_MAJOR = 1 };

/** Read tokens x layers x KV heads into the caller's buffers, dequantized. Entries of layers
 * without a KV cache are not touched. */
struct quire_fetch {
    uint64_t position;
    uint64_t tokens;
    uint32_t first_layer, layers;
    uint32_t first_head, heads; /* KV heads of the model; heads 0 = all */
    enum quire_dtype dtype;
    enum quire_layout
        layout; /* used when strides are 0: [tokens][heads][dim] or [heads][tokens][dim] */
    void *const *key; /* [layers]; NULL, or an entry NULL: not wanted */
    void *const *value;
    size_t key_token_stride, key_head_stride; /* bytes; 0 = contiguous in `layout` */
    size_t value_token_stride, value_head_stride;
    bool rotate;            /* apply RoPE to keys stored before it */
    int64_t position_shift; /* added to each position when rotating */
    uint8_t
        *page_status; /* NULL, or [layers][pages touched]: 0 delivered, 1 missing, 2 corrupt */
    uint32_t timeout_ms;
};

/**
 * Fetch. Fills what is there; when some pages are not, the rest is still delivered, their rows
 * in the buffers are untouched, page_status tells which, and the call returns EMISSING or
 * ECORRUPT (first range in the error). Errors besides: ERANGE (nothing was written), EINVAL,
 * ETIMEOUT, EUNAVAILABLE.
 */
QUIRE_API quire_status quire_fetch(quire_session *session, const struct quire_fetch *fetch);
/** Entries of page_status a fetch needs: layers * pages touched by [position, position +
 * tokens). */
QUIRE_API size_t quire_fetch_pages(const quire_session *session,
                                   const struct quire_fetch *fetch);

/* ---- attend ----------------------------------------------------------------------------- */

#define QUIRE_WINDOW_NONE UINT32_MAX

/** Attention of given queries over the session's K and V, computed in the store. */
struct quire_attend {
    uint32_t first_layer, layers;
    uint32_t first_query_head, query_heads; /* whole GQA groups; query_heads 0 = all */
    uint32_t queries;                       /* query positions */
    const uint64_t *positions;              /* [queries] */
    enum quire_dtype dtype;                 /* of query */
    const void
        *query; /* [layers][queries][query_heads][key_dim], contiguous, already rotated */
    uint64_t first_token, last_token; /* tokens [first, last); last 0 = all */
    bool not_causal;
    uint32_t window;    /* 0: the layer's own; QUIRE_WINDOW_NONE: none */
    float scale;        /* 0: 1/sqrt(key_dim) */
    float softcap;      /* 0: none */
    bool allow_missing; /* attend over what is there instead of EMISSING */
    float *output;      /* [layers][queries][query_heads][value_dim] */
    float *lse;         /* [layers][queries][query_heads], may be NULL */
    struct quire_range
        *missing;            /* with allow_missing: the first missing_capacity ranges that */
    size_t missing_capacity; /* were left out go here */
    size_t *missing_count;   /* how many there are, may be more than capacity; NULL: not
                                wanted. Past 4096 only that there are more: 4097 */
    uint32_t timeout_ms;
};
/**
 * Attend. Layers without a KV cache are skipped: query, output and lse have no rows for them.
 * Errors: EVALUE (query NaN or infinite: layer, query head, position and channel in the error),
 * EMISSING (the first range; unless allow_missing), ERANGE (last_token past the end), EINVAL
 * (also when no layer has a KV cache), ETOOBIG, ETIMEOUT, EUNAVAILABLE. On every error nothing
 * is written.
 */
QUIRE_API quire_status quire_attend(quire_session *session, const struct quire_attend *attend);

/**
 * Merge partial attention b into a, in place, by log-sum-exp: rows of value_dim floats each,
 * contiguous; an empty partial (LSE = -inf) is neutral. Pure; any thread.
 */
QUIRE_API void quire_merge(float *output_a, float *lse_a, const float *output_b,
                           const float *lse_b, size_t rows, size_t value_dim);

/* ---- asynchronous forms ----------------------------------------------------------------- */

/**
 * An operation under way. The argument structs are copied at submit, what they point to (arrays
 * of pointers, buffers) is borrowed until the operation is done. An op completes exactly once,
 * also when canceled or timed out.
 */
typedef struct quire_op quire_op;

QUIRE_API quire_status quire_append_submit(quire_session *session,
                                           const struct quire_append *append, quire_op **out);
QUIRE_API quire_status quire_fetch_submit(quire_session *session,
                                          const struct quire_fetch *fetch, quire_op **out);
QUIRE_API quire_status quire_attend_submit(quire_session *session,
                                           const struct quire_attend *attend, quire_op **out);

/** EAGAIN while running, else the operation's status. Never blocks. */
QUIRE_API quire_status quire_op_poll(quire_op *op);
/** Wait until done; timeout_ms UINT32_MAX = for ever. ETIMEOUT: still running (the operation
 * goes on). */
QUIRE_API quire_status quire_op_wait(quire_op *op, uint32_t timeout_ms);
/** Fetch: wait until all of layer `layer` (absolute) has been delivered; layers arrive in
 * ascending order. */
QUIRE_API quire_status quire_op_wait_layer(quire_op *op, uint32_t layer, uint32_t timeout_ms);
/** A file descriptor that becomes readable when the operation is done; owned by the op. -1:
 * none left. */
QUIRE_API int quire_op_eventfd(quire_op *op);
/** Ask to stop; the operation completes soon with ECANCELED unless it was done. Buffers stay
 * borrowed until then. */
QUIRE_API void quire_op_cancel(quire_op *op);
/** Details of a failed operation; never NULL; owned by the op. */
QUIRE_API const struct quire_error *quire_op_error(const quire_op *op);
/** Release; waits for completion first. NULL allowed. */
QUIRE_API void quire_op_free(quire_op **op);

/* ---- export and import ------------------------------------------------------------------ */

/** How far an export or import is; at its end, what became of it. */
struct quire_transfer {
    char name[256];           /* of the session in the file */
    uint8_t fingerprint[32];  /* of its model */
    uint64_t tokens;          /* that the file holds of each lane */
    uint64_t pages;           /* written or read so far */
    uint64_t bytes;           /* of the file, so far */
    uint64_t total_bytes;     /* of the file */
    uint64_t resumed_bytes;   /* of `bytes`: there before. Export: in the partial file; import:
                                 pages that the server had from a try before */
    uint64_t left_out_tokens; /* export: committed, and not in the file */
};
/** Told now and then on the calling thread; false: stop with ECANCELED. */
typedef bool (*quire_progress_fn)(void *context, const struct quire_transfer *transfer);
/** Write all n bytes at the end of the file; 0, or an errno value: EIO with its text. */
typedef int (*quire_write_fn)(void *context, const void *bytes, size_t n);
/** The next bytes of the file from its start, at most `capacity`; *bytes_out 0: there are no
 * more. 0, or an errno value. */
typedef int (*quire_read_fn)(void *context, void *bytes, size_t capacity, size_t *bytes_out);
/** Keep the first `length` bytes of the file; what is written next comes after them. 0, or an
 * errno value. */
typedef int (*quire_cut_fn)(void *context, uint64_t length);

struct quire_export {
    size_t struct_bytes; /* set by quire_export_init */
    quire_write_fn write;
    /** To continue a partial file: it is read and verified first, then cut after the last whole
     * record. NULL, or no bytes there: from the start. */
    quire_read_fn read;
    quire_cut_fn cut;           /* with read */
    quire_progress_fn progress; /* may be NULL */
    void *context;              /* of all four */
    uint64_t length;            /* tokens to export; 0: all committed ones */
    bool allow_missing;         /* end before the first missing page instead of EMISSING */
    uint32_t timeout_ms;        /* of the whole export; 0: none. Each call has the client's */
    uint64_t keep_ms;           /* how long a broken export can be continued; default 3600000 */
};
QUIRE_API void quire_export_init(struct quire_export *args);
/**
 * Write a session as one file (proto/EXPORT.md): pages as they are, tails in FP16, model,
 * policy, block ids, token ids of the tail, time to live. Constant memory; the file is written
 * from front to back. It is of one moment: the session is forked first, as ".export.<id>", and
 * the fork dropped at the end. With `read`, the fork of an export that broke stays for keep_ms,
 * so that a later call continues; without it, it is dropped. *out may be NULL. Errors:
 * ENOTFOUND (the session, or the fork of a partial file), EMISSING (the first range, see
 * quire_session_lookup), EMISMATCH (the partial file is of another session), ECORRUPT, EINVAL,
 * EIO, ECANCELED, ETIMEOUT, EUNAVAILABLE.
 */
QUIRE_API quire_status quire_session_export(quire_client *client, const char *name,
                                            const struct quire_export *args,
                                            struct quire_transfer *out);

struct quire_import {
    size_t struct_bytes; /* set by quire_import_init */
    quire_read_fn read;
    quire_progress_fn progress; /* may be NULL */
    void *context;              /* of both */
    bool compare_all;    /* send again what the server has of a try before, to be compared */
    bool durable;        /* return when it is on disk; EUNSUPPORTED without one */
    uint32_t timeout_ms; /* of the whole import; 0: none */
    uint64_t ttl_ms;     /* of the session; 0: the file's */
    uint64_t keep_ms;    /* how long a broken import can be continued; default 3600000 */
};
QUIRE_API void quire_import_init(struct quire_import *args);
/**
 * Make the session of a file, as `name` (NULL: its name in the file). Constant memory; the file
 * is read from front to back, each record is verified before it is sent. Until all of it was,
 * its end included, the session is ".import.<id>"; only then it appears under its name, whole.
 * A call that broke leaves that for keep_ms: the next one with the same file and name sends
 * what is missing, after comparing block ids and the last page of each lane. *out may be NULL.
 * Errors: ECORRUPT (altered or cut file: the text names the byte, quire_error.position is it;
 * what was imported is dropped), EUNSUPPORTED (version, flag), EEXIST (the name), EFULL (what
 * was imported was evicted meanwhile), EMISMATCH, EVALUE, EINVAL, EIO, ECANCELED, ETIMEOUT,
 * EUNAVAILABLE.
 */
QUIRE_API quire_status quire_session_import(quire_client *client, const char *name,
                                            const struct quire_import *args,
                                            struct quire_transfer *out);

/* ---- server statistics ------------------------------------------------------------------ */

struct quire_metric {
    char name[64], unit[16], help[160];
    double value;
};
/** The server's counters and gauges; ETOOBIG with *count_out = needed when capacity is too
 * small. */
QUIRE_API quire_status quire_stat(quire_client *client, struct quire_metric *metrics,
                                  size_t capacity, size_t *count_out);

#ifdef __cplusplus
}
#endif

#endif
