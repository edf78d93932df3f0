/* SPDX-License-Identifier: Apache-2.0
 *
 * The reading half of safetensors.h. Works on a mapping; the JSON header is bounded and
 * parsed by cJSON, everything in it is checked here. Must not know what the tensors mean.
 */
#include "safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXACT_MAX 9007199254740992.0 /* 2^53: JSON numbers are doubles here */

static const struct {
    const char *name;
    size_t bytes;
} elements[QR_ELEMENT_COUNT] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
    {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
    {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8},
};

const char *qr_element_name(enum qr_element element)
{
    return elements[element].name;
}

size_t qr_element_bytes(enum qr_element element)
{
    return elements[element].bytes;
}

static quire_status read_element(const cJSON *item, struct qr_safetensor *t, struct qr_error *e)
{
    const char *text = cJSON_GetStringValue(item);
    if (text == NULL)
        return qr_error_set(e, QUIRE_ECORRUPT, "tensor '%.64s': dtype is not a string",
                            t->name);
    for (int i = 0; i < QR_ELEMENT_COUNT; i++) {
        if (strcmp(elements[i].name, text) == 0) {
            t->element = (enum qr_element)i;
            return QUIRE_OK;
        }
    }
    return qr_error_set(e, QUIRE_ECORRUPT, "tensor '%.64s': unknown dtype '%.16s'", t->name,
                        text);
}

/** A JSON number that is a whole number 0 .. 2^53. */
static bool read_whole(const cJSON *item, uint64_t *out)
{
    if (!cJSON_IsNumber(item))
        return false;
    const double value = item->valuedouble;
    if (!(value >= 0 && value <= EXACT_MAX) || value != (double)(uint64_t)value)
        return false;
    *out = (uint64_t)value;
    return true;
}

static quire_status read_shape(const cJSON *item, struct qr_safetensor *t, struct qr_error *e)
{
    if (!cJSON_IsArray(item))
        return qr_error_set(e, QUIRE_ECORRUPT, "tensor '%.64s': shape is not a list", t->name);
    const cJSON *entry;
    cJSON_ArrayForEach(entry, item)
    {
        if (t->rank == QR_SAFETENSORS_RANK_MAX)
            return qr_error_set(e, QUIRE_ECORRUPT, "tensor '%.64s': more than %d dimensions",
                                t->name, QR_SAFETENSORS_RANK_MAX);
        if (!read_whole(entry, &t->shape[t->rank]))
            return qr_error_set(e, QUIRE_ECORRUPT,
                                "tensor '%.64s': dimension %u is not a whole number", t->name,
                                t->rank);
        t->rank++;
    }
    return QUIRE_OK;
}

static quire_status read_offsets(const cJSON *item, struct qr_safetensor *t, uint64_t *begin,
                                 struct qr_error *e)
{
    uint64_t end;
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 ||
        !read_whole(item->child, begin) || !read_whole(item->child->next, &end))
        return qr_error_set(e, QUIRE_ECORRUPT,
                            "tensor '%.64s': data_offsets must be two whole numbers", t->name);
    if (end < *begin)
        return qr_error_set(e, QUIRE_ECORRUPT,
                            "tensor '%.64s': data ends at %llu, before it begins at %llu",
                            t->name, (unsigned long long)end, (unsigned long long)*begin);
    t->bytes = end - *begin;
    return QUIRE_OK;
}

/** Bytes that dtype and shape call for; false on overflow. */
static bool shape_bytes(const struct qr_safetensor *t, uint64_t *out)
{
    uint64_t bytes = elements[t->element].bytes;
    for (uint32_t i = 0; i < t->rank; i++) {
        if (__builtin_mul_overflow(bytes, t->shape[i], &bytes))
            return false;
    }
    *out = bytes;
    return true;
}

static quire_status check_bytes(const struct qr_safetensor *t, uint64_t begin,
                                uint64_t data_bytes, struct qr_error *e)
{
    uint64_t want;
    if (!shape_bytes(t, &want))
        return qr_error_set(e, QUIRE_ECORRUPT, "tensor '%.64s': its shape overflows 64 bits",
                            t->name);
    if (want != t->bytes)
        return qr_error_set(e, QUIRE_ECORRUPT,
                            "tensor '%.64s': %llu bytes of data, its shape needs %llu", t->name,
                            (unsigned long long)t->bytes, (unsigned long long)want);
    if (begin > data_bytes || t->bytes > data_bytes - begin)
        return qr_error_set(
            e, QUIRE_ECORRUPT, "tensor '%.64s': data ends at %llu, the file holds %llu",
            t->name, (unsigned long long)(begin + t->bytes), (unsigned long long)data_bytes);
    return QUIRE_OK;
}

static quire_status read_tensor(const cJSON *object, const uint8_t *data, uint64_t data_bytes,
                                struct qr_safetensor *t, struct qr_error *e)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    const cJSON *found[3] = {NULL, NULL, NULL};
    t->name = object->string;
    if (!cJSON_IsObject(object))
        return qr_error_set(e, QUIRE_ECORRUPT, "tensor '%.64s' is not an object", t->name);
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        int k = 0;
        while (k < 3 && strcmp(item->string, keys[k]) != 0)
            k++;
        if (k == 3 || found[k] != NULL)
            return qr_error_set(e, QUIRE_ECORRUPT, "tensor '%.64s': %s key '%.32s'", t->name,
                                k == 3 ? "unknown" : "repeated", item->string);
        found[k] = item;
    }
    for (int k = 0; k < 3; k++) {
        if (found[k] == NULL)
            return qr_error_set(e, QUIRE_ECORRUPT, "tensor '%.64s' has no %s", t->name,
                                keys[k]);
    }
    uint64_t begin = 0;
    quire_status status = read_element(found[0], t, e);
    if (status == QUIRE_OK)
        status = read_shape(found[1], t, e);
    if (status == QUIRE_OK)
        status = read_offsets(found[2], t, &begin, e);
    if (status == QUIRE_OK)
        status = check_bytes(t, begin, data_bytes, e);
    if (status == QUIRE_OK)
        t->data = data + begin;
    return status;
}

static int by_offset(const void *a, const void *b)
{
    const struct qr_safetensor *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/** The format wants the data to be covered exactly once, without holes. */
static quire_status check_cover(const struct qr_safetensors *file, const uint8_t *data,
                                uint64_t data_bytes, struct qr_error *e)
{
    uint64_t at = 0;
    for (size_t i = 0; i < file->count; i++) {
        const struct qr_safetensor *t = &file->tensors[i];
        const uint64_t begin = (uint64_t)(t->data - data);
        if (begin != at)
            return qr_error_set(
                e, QUIRE_ECORRUPT, "tensor '%.64s': data begins at %llu, %s %llu", t->name,
                (unsigned long long)begin,
                begin < at ? "inside the tensor that ends at" : "after a hole that begins at",
                (unsigned long long)at);
        at = begin + t->bytes;
    }
    if (at != data_bytes)
        return qr_error_set(e, QUIRE_ECORRUPT, "%llu bytes after the last tensor",
                            (unsigned long long)(data_bytes - at));
    return QUIRE_OK;
}

static quire_status check_names(const struct qr_safetensors *file, struct qr_error *e)
{
    const char **names = calloc(file->count + 1, sizeof(*names));
    if (names == NULL)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for %zu tensor names", file->count);
    for (size_t i = 0; i < file->count; i++)
        names[i] = file->tensors[i].name;
    qsort(names, file->count, sizeof(*names), by_name);
    quire_status status = QUIRE_OK;
    for (size_t i = 1; i < file->count && status == QUIRE_OK; i++) {
        if (strcmp(names[i - 1], names[i]) == 0)
            status = qr_error_set(e, QUIRE_ECORRUPT, "two tensors are named '%.64s'", names[i]);
    }
    free(names);
    return status;
}

static quire_status check_metadata(const cJSON *object, struct qr_error *e)
{
    const cJSON *item;
    if (!cJSON_IsObject(object))
        return qr_error_set(e, QUIRE_ECORRUPT, "__metadata__ is not an object");
    cJSON_ArrayForEach(item, object)
    {
        if (!cJSON_IsString(item))
            return qr_error_set(e, QUIRE_ECORRUPT, "__metadata__: '%.64s' is not a string",
                                item->string);
    }
    return QUIRE_OK;
}

static quire_status read_tensors(struct qr_safetensors *file, const uint8_t *data,
                                 uint64_t data_bytes, struct qr_error *e)
{
    const cJSON *root = file->json, *item;
    size_t entries = 0;
    cJSON_ArrayForEach(item, root) entries++;
    if (entries > QR_SAFETENSORS_TENSORS_MAX)
        return qr_error_set(e, QUIRE_ETOOBIG, "%zu tensors, at most %d are read", entries,
                            QR_SAFETENSORS_TENSORS_MAX);
    file->tensors = calloc(entries + 1, sizeof(*file->tensors));
    if (file->tensors == NULL)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for %zu tensors", entries);
    quire_status status = QUIRE_OK;
    cJSON_ArrayForEach(item, root)
    {
        if (strcmp(item->string, "__metadata__") == 0)
            status = check_metadata(item, e);
        else
            status = read_tensor(item, data, data_bytes, &file->tensors[file->count++], e);
        if (status != QUIRE_OK)
            return status;
    }
    qsort(file->tensors, file->count, sizeof(*file->tensors), by_offset);
    status = check_names(file, e);
    return status == QUIRE_OK ? check_cover(file, data, data_bytes, e) : status;
}

static quire_status read_header_length(const uint8_t *bytes, size_t size, uint64_t *out,
                                       struct qr_error *e)
{
    uint64_t length = 0;
    if (size < 8)
        return qr_error_set(e, QUIRE_ECORRUPT,
                            "%zu bytes, a safetensors file has 8 bytes of header length first",
                            size);
    for (int i = 7; i >= 0; i--)
        length = length << 8 | bytes[i];
    if (length > QR_SAFETENSORS_HEADER_MAX)
        return qr_error_set(e, QUIRE_ETOOBIG,
                            "header of %llu bytes, at most %u: is this a safetensors file?",
                            (unsigned long long)length, QR_SAFETENSORS_HEADER_MAX);
    if (length > size - 8)
        return qr_error_set(
            e, QUIRE_ECORRUPT,
            "header of %llu bytes, the file has %zu after the length: cut short",
            (unsigned long long)length, size - 8);
    if (length == 0 || bytes[8] != '{')
        return qr_error_set(e, QUIRE_ECORRUPT, "header does not begin with '{'");
    *out = length;
    return QUIRE_OK;
}

quire_status qr_safetensors_parse(const void *bytes, size_t size, struct qr_safetensors *out,
                                  struct qr_error *e)
{
    const uint8_t *at = bytes;
    struct qr_safetensors file = {0};
    uint64_t length = 0;
    quire_status status = read_header_length(at, size, &length, e);
    if (status != QUIRE_OK)
        return status;
    const char *text = (const char *)at + 8, *end = NULL;
    if (memchr(text, 0, length) != NULL)
        return qr_error_set(e, QUIRE_ECORRUPT, "header holds a zero byte");
    file.json = cJSON_ParseWithLengthOpts(text, length, &end, 0);
    if (file.json == NULL)
        return qr_error_set(e, QUIRE_ECORRUPT, "header is not JSON, wrong at its byte %td",
                            end == NULL ? (ptrdiff_t)0 : end - text);
    for (; status == QUIRE_OK && end < text + length; end++) {
        if (strchr(" \t\r\n", *end) == NULL)
            status = qr_error_set(e, QUIRE_ECORRUPT,
                                  "header goes on after its JSON at byte %td", end - text);
    }
    if (status == QUIRE_OK)
        status = read_tensors(&file, at + 8 + length, size - 8 - length, e);
    if (status != QUIRE_OK) {
        qr_safetensors_close(&file);
        return status;
    }
    *out = file;
    return QUIRE_OK;
}

static quire_status map_file(const char *path, const uint8_t **mapping_out, size_t *bytes_out,
                             struct qr_error *e)
{
    struct stat info;
    quire_status status = QUIRE_OK;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return qr_error_set(e, QUIRE_EIO, "%.128s: %s", path, strerror(errno));
    if (fstat(fd, &info) != 0) {
        status = qr_error_set(e, QUIRE_EIO, "%.128s: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = qr_error_set(e, QUIRE_EIO, "%.128s: not a regular file", path);
    } else if (info.st_size < 8) {
        status = qr_error_set(e, QUIRE_ECORRUPT, "%.128s: %lld bytes, not a safetensors file",
                              path, (long long)info.st_size);
    } else {
        void *mapping = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (mapping == MAP_FAILED)
            status = qr_error_set(e, QUIRE_EIO, "%.128s: %s", path, strerror(errno));
        *mapping_out = mapping;
        *bytes_out = (size_t)info.st_size;
    }
    close(fd);
    return status;
}

quire_status qr_safetensors_open(const char *path, struct qr_safetensors *out,
                                 struct qr_error *e)
{
    const uint8_t *mapping = NULL;
    size_t bytes = 0;
    struct qr_error why = {0};
    quire_status status = map_file(path, &mapping, &bytes, e);
    if (status != QUIRE_OK)
        return status;
    status = qr_safetensors_parse(mapping, bytes, out, &why);
    if (status != QUIRE_OK) {
        munmap((void *)(uintptr_t)mapping, bytes);
        return qr_error_set(e, status, "%.96s: %.150s", path, why.text);
    }
    out->mapping = mapping;
    out->mapping_bytes = bytes;
    return QUIRE_OK;
}

void qr_safetensors_close(struct qr_safetensors *file)
{
    cJSON_Delete(file->json);
    free(file->tensors);
    if (file->mapping != NULL)
        munmap((void *)(uintptr_t)file->mapping, file->mapping_bytes);
    *file = (struct qr_safetensors){0};
}

const struct qr_safetensor *qr_safetensors_find(const struct qr_safetensors *file,
                                                const char *name)
{
    for (size_t i = 0; i < file->count; i++) {
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    }
    return NULL;
}
