/* SPDX-License-Identifier: Apache-2.0
 *
 * The wire, for server and client: the generated messages (this is their only
 * includer), safe unpacking, conversions to plain structs, error details, and
 * hand framing of the two hot messages, AppendRequest and FetchChunk, whose
 * payloads are never copied here. No I/O, no threads, no allocation: memory is
 * the caller's. Must not know gRPC: received messages are lists of fragments.
 *
 * Threads: pure functions; an arena or a cursor belongs to one thread at a time.
 */
#ifndef QR_WIRE_H
#define QR_WIRE_H

#include "model.h"
#include "quire/v1/quire.pb-c.h"
#include "status.h"

/* ---- fragments and cursors -------------------------------------------------------------- */

/** Contiguous bytes of a received message (a gRPC slice); borrowed. */
struct qr_wire_fragment {
    const uint8_t *data;
    size_t bytes;
    bool foreign; /* the sender may change them any time: payload, never read as framing */
};

/** A place in a list of fragments and how many bytes may be read from it. Plain data: copy it
 * to read twice. */
struct qr_wire_cursor {
    const struct qr_wire_fragment *fragments;
    size_t count;   /* fragments */
    size_t index;   /* of the current fragment */
    size_t offset;  /* into it */
    uint64_t bytes; /* left */
};

/** A cursor over all bytes of the fragments, which it borrows. */
struct qr_wire_cursor qr_wire_cursor_all(const struct qr_wire_fragment *fragments,
                                         size_t count);
/** Copy the next n bytes to dst and step over them; false, nothing read, when fewer are left.
 */
bool qr_wire_cursor_read(struct qr_wire_cursor *cursor, void *dst, size_t n);
/** Step over n bytes; false, nothing skipped, when fewer are left. */
bool qr_wire_cursor_skip(struct qr_wire_cursor *cursor, uint64_t n);
/** The next contiguous bytes without stepping over them; *n_out = 0 at the end. */
const uint8_t *qr_wire_cursor_peek(struct qr_wire_cursor *cursor, size_t *n_out);

/* ---- safe unpacking and packing --------------------------------------------------------- */

#define QR_WIRE_DEPTH_MAX 32

/** Where unpacked messages live: the caller's memory, given back all at once. */
struct qr_wire_arena {
    uint8_t *memory; /* owner: the caller; 16-byte aligned */
    size_t capacity, used;
    bool full; /* an unpack needed more than capacity */
};
void qr_wire_arena_init(struct qr_wire_arena *arena, void *memory, size_t capacity);
/** Forget everything unpacked into it. */
void qr_wire_arena_reset(struct qr_wire_arena *arena);

/**
 * Unpack a message of `type` (&quire__v1__..._descriptor) into the arena. Checked first, on any
 * bytes: wire format, nesting up to QR_WIRE_DEPTH_MAX, wire type of each known field, strings
 * UTF-8 without NUL, no singular sub-message twice, no foreign fragment. *out is valid until
 * the arena is reset; cast it to the message's type. Errors: EINVAL (malformed, with message
 * and field), ETOOBIG (arena full; about 4 times the message's bytes are enough for messages of
 * many small fields).
 */
quire_status qr_wire_unpack(const ProtobufCMessageDescriptor *type,
                            const struct qr_wire_fragment *fragments, size_t count,
                            struct qr_wire_arena *arena, ProtobufCMessage **out,
                            struct qr_error *e);
/** Pack `message` (&m.base) into buffer; ETOOBIG when it has no room, with both sizes. */
quire_status qr_wire_pack(const ProtobufCMessage *message, uint8_t *buffer, size_t capacity,
                          size_t *bytes_out, struct qr_error *e);

/* ---- plain structs ---------------------------------------------------------------------- */

/** Wire message -> model, checked and sealed (qr_model_seal). NULL message: EINVAL. Errors name
 * the field. */
quire_status qr_wire_model_from(const Quire__V1__Model *message, struct qr_model *out,
                                struct qr_error *e);
/** A Model message with its arrays; about 64 KiB. */
struct qr_wire_model {
    Quire__V1__Model message;
    Quire__V1__LayerGeometry layers[QR_LAYERS_MAX];
    Quire__V1__LayerGeometry *layer_pointers[QR_LAYERS_MAX];
    Quire__V1__Rope ropes[QR_ROPES_MAX];
    Quire__V1__Rope *rope_pointers[QR_ROPES_MAX];
    uint8_t calibration[QR_CALIBRATION_BYTES_MAX];
};
/** Model -> wire message; equal layers in a row become one run. Strings and tables stay
 * borrowed from `model`. */
void qr_wire_model_to(const struct qr_model *model, struct qr_wire_model *out);

/** Wire message -> policy, checked (qr_policy_check). NULL message: the default policy. */
quire_status qr_wire_policy_from(const Quire__V1__Policy *message, struct qr_policy *out,
                                 struct qr_error *e);
/** A Policy message with its parts. */
struct qr_wire_policy {
    Quire__V1__Policy message;
    Quire__V1__CodecSpec key, value, specs[QR_OVERRIDES_MAX];
    Quire__V1__Override overrides[QR_OVERRIDES_MAX], *pointers[QR_OVERRIDES_MAX];
};
void qr_wire_policy_to(const struct qr_policy *policy, struct qr_wire_policy *out);

/** A bytes field that must be a fingerprint: copies it to out; EINVAL names `field` and its
 * length. */
quire_status qr_wire_fingerprint(const ProtobufCBinaryData *bytes, const char *field,
                                 uint8_t out[QR_HASH_BYTES], struct qr_error *e);

/* ---- errors ----------------------------------------------------------------------------- */

#define QR_WIRE_STATUS_BYTES_MAX 512
#define QR_WIRE_STATUS_KEY "grpc-status-details-bin" /* trailer that carries the bytes */

/** google.rpc.Status bytes: gRPC code, e->text as message, an ErrorDetail. Returns their
 * number. */
size_t qr_wire_status_pack(const struct qr_error *e, uint8_t out[QR_WIRE_STATUS_BYTES_MAX]);
/** Read them back; false (out untouched) when they are damaged or hold no ErrorDetail. A code
 * of no known status becomes EINTERNAL. */
bool qr_wire_status_parse(const uint8_t *bytes, size_t n, struct qr_error *out);
/** Status for a gRPC code that came without details, so from gRPC itself; 0 for 0. */
quire_status qr_wire_status_of_grpc(int grpc_code);

/* ---- AppendRequest ---------------------------------------------------------------------- */

/** The fields of an AppendRequest but its payload. */
struct qr_wire_append {
    uint64_t session, epoch, position;
    uint32_t tokens, first_layer, layers, shard;
    uint32_t dtype;      /* enum qr_dtype, as received: not checked */
    uint32_t durability; /* as received: not checked */
};
enum { QR_WIRE_MEMORY = 0, QR_WIRE_DISK = 1, QR_WIRE_SOON = 2 };

/** Bytes that qr_wire_append_head may need with this many token ids. */
size_t qr_wire_append_head_max(size_t token_ids);
/**
 * Write everything but the payload. rows_bytes > 0: the head ends with the header of `rows`,
 * and exactly so many bytes must follow. rows_bytes 0: pages may follow, each behind its
 * qr_wire_page_head. out: qr_wire_append_head_max(token_id_count) bytes. Returns the head's
 * length.
 */
size_t qr_wire_append_head(const struct qr_wire_append *append, const uint32_t *token_ids,
                           size_t token_id_count, uint64_t rows_bytes, uint8_t *out);
#define QR_WIRE_FIELD_HEAD_MAX 11
/** Header of one `pages` entry of page_bytes bytes, which follow it. Returns its length. */
size_t qr_wire_page_head(uint64_t page_bytes, uint8_t out[QR_WIRE_FIELD_HEAD_MAX]);

/** A received AppendRequest: fields, and where its payload is. Borrows the fragments. */
struct qr_wire_append_view {
    struct qr_wire_append fields;
    size_t token_id_count, page_count;
    struct qr_wire_cursor rows; /* bytes 0: there are none */
    struct qr_wire_cursor all;  /* the whole message */
};
/**
 * Parse. Fields in any order, unknown ones skipped, the last of a repeated scalar wins, token
 * ids packed or not. Errors: EINVAL: wire format, a number past its field's width, `rows`
 * twice, rows and pages together.
 */
quire_status qr_wire_append_parse(const struct qr_wire_fragment *fragments, size_t count,
                                  struct qr_wire_append_view *out, struct qr_error *e);
/** Copy all token_id_count token ids to out. */
void qr_wire_append_token_ids(const struct qr_wire_append_view *view, uint32_t *out);
/** The next page: start with *at = view->all; false after the last one. page_out: a cursor over
 * its bytes. */
bool qr_wire_append_next_page(struct qr_wire_cursor *at, struct qr_wire_cursor *page_out);

/* ---- FetchChunk ------------------------------------------------------------------------- */

enum qr_wire_payload { QR_WIRE_NO_PAYLOAD = 0, QR_WIRE_PAGE = 7, QR_WIRE_ROWS = 8 };

/** A FetchPart but its payload. */
struct qr_wire_part {
    uint32_t layer, first_head, heads;
    uint64_t position;
    uint32_t tokens;
    uint32_t status; /* 0 ok, 1 missing, 2 corrupt; as received: not checked */
    enum qr_wire_payload payload;
    uint64_t payload_bytes;
};

#define QR_WIRE_PART_HEAD_MAX 64
/** Everything of a part but its payload, of which exactly payload_bytes must follow. A chunk is
 * parts one after another, nothing around them. Returns the head's length. */
size_t qr_wire_part_head(const struct qr_wire_part *part, uint8_t out[QR_WIRE_PART_HEAD_MAX]);

/**
 * The next part of a received chunk: start with *at = qr_wire_cursor_all(...). *more_out false:
 * that was all, part and payload untouched. payload_out: cursor over payload_bytes bytes, to
 * read from wherever they should go. Fields in any order, unknown ones skipped. Errors:
 * ECORRUPT: wire format, a number past its field's width, two payloads in a part.
 */
quire_status qr_wire_next_part(struct qr_wire_cursor *at, bool *more_out,
                               struct qr_wire_part *part_out,
                               struct qr_wire_cursor *payload_out, struct qr_error *e);

#endif
