/* SPDX-License-Identifier: Apache-2.0
 *
 * Reader and writer of safetensors files: an 8-byte little-endian header length, a JSON
 * header that names tensors, then their bytes. The reader trusts nothing: every length,
 * offset and shape is checked before it is used. Must not know what the tensors mean.
 */
#ifndef QR_SAFETENSORS_H
#define QR_SAFETENSORS_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>

#define QR_SAFETENSORS_HEADER_MAX                                                              \
    (4u << 20) /* bytes of JSON: cJSON takes up to 32 times as much */
#define QR_SAFETENSORS_TENSORS_MAX 16384
#define QR_SAFETENSORS_RANK_MAX 8

/** Element types, in the order of their names in safetensors.c. */
enum qr_element {
    QR_ELEMENT_BOOL,
    QR_ELEMENT_U8,
    QR_ELEMENT_I8,
    QR_ELEMENT_F8_E5M2,
    QR_ELEMENT_F8_E4M3,
    QR_ELEMENT_I16,
    QR_ELEMENT_U16,
    QR_ELEMENT_F16,
    QR_ELEMENT_BF16,
    QR_ELEMENT_I32,
    QR_ELEMENT_U32,
    QR_ELEMENT_F32,
    QR_ELEMENT_F64,
    QR_ELEMENT_I64,
    QR_ELEMENT_U64,
    QR_ELEMENT_COUNT
};
/** "F16" and the like; bytes of one element. */
const char *qr_element_name(enum qr_element element);
size_t qr_element_bytes(enum qr_element element);

/** One tensor of an open file; borrowed from it. */
struct qr_safetensor {
    const char *name;
    enum qr_element element;
    uint32_t rank;
    uint64_t shape[QR_SAFETENSORS_RANK_MAX];
    const uint8_t *data; /* aligned as the file has it: maybe not at all */
    uint64_t bytes;
};

struct qr_safetensors {
    struct qr_safetensor *tensors; /* [count], ascending by offset */
    size_t count;
    void *json;             /* the parsed header: owns the names */
    const uint8_t *mapping; /* of the file; NULL when parsed from memory */
    size_t mapping_bytes;
};

/**
 * Map a file and check it. *out: release with qr_safetensors_close. The file must not be cut
 * while it is open. Errors: EIO (with the system's words), ECORRUPT (what is wrong, and
 * where), ETOOBIG.
 */
quire_status qr_safetensors_open(const char *path, struct qr_safetensors *out,
                                 struct qr_error *e);
/** The same over `size` bytes in memory, borrowed until qr_safetensors_close. */
quire_status qr_safetensors_parse(const void *bytes, size_t size, struct qr_safetensors *out,
                                  struct qr_error *e);
void qr_safetensors_close(struct qr_safetensors *file);
/** By name; NULL when there is none. */
const struct qr_safetensor *qr_safetensors_find(const struct qr_safetensors *file,
                                                const char *name);

/** A file being written: declare tensors, begin, fill them in place, commit. */
struct qr_safetensors_writer;

quire_status qr_safetensors_writer_create(struct qr_safetensors_writer **out,
                                          struct qr_error *e);
/** Declare a tensor; returns its index through index_out. EINVAL: name used, rank, overflow. */
quire_status qr_safetensors_declare(struct qr_safetensors_writer *writer,
                                    const struct qr_safetensor *tensor, size_t *index_out,
                                    struct qr_error *e);
/** Text for __metadata__. */
quire_status qr_safetensors_note(struct qr_safetensors_writer *writer, const char *key,
                                 const char *text, struct qr_error *e);
/** Reserve the space beside `path` and map it; afterwards qr_safetensors_data is valid. EIO. */
quire_status qr_safetensors_begin(struct qr_safetensors_writer *writer, const char *path,
                                  struct qr_error *e);
/** Bytes of tensor `index`, zero at first, 64-byte aligned; valid until commit. */
void *qr_safetensors_data(struct qr_safetensors_writer *writer, size_t index);
/** Give the file its name: readers see all of it or nothing. EIO. */
quire_status qr_safetensors_commit(struct qr_safetensors_writer *writer, struct qr_error *e);
/** Release; a file that was not committed is removed. NULL allowed. */
void qr_safetensors_writer_destroy(struct qr_safetensors_writer **writer);

#endif
