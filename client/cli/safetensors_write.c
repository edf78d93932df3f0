/* SPDX-License-Identifier: Apache-2.0
 *
 * The writing half of safetensors.h. The file is made beside its final name, with all of its
 * space reserved, and renamed when it is whole. Must not know what the tensors mean.
 */
#include "safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGN 64

struct qr_safetensors_writer {
    cJSON *root, *metadata;
    uint64_t *offsets; /* [count + 1]: of each tensor's data, then the end */
    size_t count;
    char *path, *temporary; /* temporary: set while the unfinished file exists */
    uint8_t *mapping;
    size_t mapping_bytes, header_bytes;
};

static quire_status no_memory(struct qr_error *e)
{
    return qr_error_set(e, QUIRE_ENOMEM, "no memory for the safetensors header");
}

quire_status qr_safetensors_writer_create(struct qr_safetensors_writer **out,
                                          struct qr_error *e)
{
    struct qr_safetensors_writer *writer = calloc(1, sizeof(*writer));
    if (writer == NULL)
        return no_memory(e);
    writer->root = cJSON_CreateObject();
    writer->metadata = cJSON_AddObjectToObject(writer->root, "__metadata__");
    writer->offsets = calloc(1, sizeof(*writer->offsets));
    if (writer->metadata == NULL || writer->offsets == NULL) {
        qr_safetensors_writer_destroy(&writer);
        return no_memory(e);
    }
    *out = writer;
    return QUIRE_OK;
}

static cJSON *describe(const struct qr_safetensor *t, uint64_t begin, uint64_t end)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "dtype", qr_element_name(t->element));
    cJSON *shape = cJSON_AddArrayToObject(object, "shape");
    for (uint32_t i = 0; i < t->rank; i++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[i]));
    cJSON *offsets = cJSON_AddArrayToObject(object, "data_offsets");
    cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)begin));
    cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)end));
    return object;
}

quire_status qr_safetensors_declare(struct qr_safetensors_writer *writer,
                                    const struct qr_safetensor *tensor, size_t *index_out,
                                    struct qr_error *e)
{
    uint64_t bytes = qr_element_bytes(tensor->element), end;
    if (tensor->rank > QR_SAFETENSORS_RANK_MAX || writer->count == QR_SAFETENSORS_TENSORS_MAX ||
        cJSON_HasObjectItem(writer->root, tensor->name))
        return qr_error_set(e, QUIRE_EINVAL,
                            "tensor '%.64s': name used twice, rank %u past %d, or tensor %zu",
                            tensor->name, tensor->rank, QR_SAFETENSORS_RANK_MAX, writer->count);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (__builtin_mul_overflow(bytes, tensor->shape[i], &bytes))
            return qr_error_set(e, QUIRE_EINVAL, "tensor '%.64s': shape overflows",
                                tensor->name);
    }
    const uint64_t begin = writer->offsets[writer->count];
    if (__builtin_add_overflow(begin, bytes, &end) || end > (uint64_t)1 << 53)
        return qr_error_set(e, QUIRE_EINVAL, "tensor '%.64s': file past 2^53 bytes",
                            tensor->name);
    uint64_t *offsets = realloc(writer->offsets, (writer->count + 2) * sizeof(*offsets));
    if (offsets == NULL)
        return no_memory(e);
    writer->offsets = offsets;
    if (!cJSON_AddItemToObject(writer->root, tensor->name, describe(tensor, begin, end)))
        return no_memory(e);
    writer->offsets[writer->count + 1] = end;
    *index_out = writer->count++;
    return QUIRE_OK;
}

quire_status qr_safetensors_note(struct qr_safetensors_writer *writer, const char *key,
                                 const char *text, struct qr_error *e)
{
    return cJSON_AddStringToObject(writer->metadata, key, text) == NULL ? no_memory(e)
                                                                        : QUIRE_OK;
}

/** Reserve and map; the descriptor is not needed afterwards. */
static quire_status reserve(struct qr_safetensors_writer *writer, struct qr_error *e)
{
    const int fd = open(writer->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        const quire_status status =
            qr_error_set(e, QUIRE_EIO, "%.128s: %s", writer->temporary, strerror(errno));
        free(writer->temporary);
        writer->temporary = NULL;
        return status;
    }
    /* Without reserved blocks a full disk would end the program in a signal, not an error. */
    const int failed = posix_fallocate(fd, 0, (off_t)writer->mapping_bytes);
    void *mapping = failed != 0 ? MAP_FAILED
                                : mmap(NULL, writer->mapping_bytes, PROT_READ | PROT_WRITE,
                                       MAP_SHARED, fd, 0);
    const int why = failed != 0 ? failed : errno;
    close(fd);
    if (mapping == MAP_FAILED)
        return qr_error_set(e, QUIRE_EIO, "%.128s, %zu bytes: %s", writer->temporary,
                            writer->mapping_bytes, strerror(why));
    writer->mapping = mapping;
    return QUIRE_OK;
}

quire_status qr_safetensors_begin(struct qr_safetensors_writer *writer, const char *path,
                                  struct qr_error *e)
{
    char *text = cJSON_PrintUnformatted(writer->root);
    if (text == NULL)
        return no_memory(e);
    const size_t length = strlen(text);
    writer->header_bytes = (8 + length + ALIGN - 1) / ALIGN * ALIGN;
    writer->mapping_bytes = writer->header_bytes + writer->offsets[writer->count];
    quire_status status = QUIRE_OK;
    writer->path = strdup(path);
    if (writer->path == NULL ||
        asprintf(&writer->temporary, "%s.%ld.part", path, (long)getpid()) < 0) {
        writer->temporary = NULL;
        status = no_memory(e);
    }
    if (status == QUIRE_OK)
        status = reserve(writer, e);
    if (status == QUIRE_OK) {
        const uint64_t padded = writer->header_bytes - 8;
        for (int i = 0; i < 8; i++)
            writer->mapping[i] = (uint8_t)(padded >> (8 * i));
        memset(writer->mapping + 8, ' ', padded);
        memcpy(writer->mapping + 8, text, length);
    }
    free(text);
    return status;
}

void *qr_safetensors_data(struct qr_safetensors_writer *writer, size_t index)
{
    return writer->mapping + writer->header_bytes + writer->offsets[index];
}

quire_status qr_safetensors_commit(struct qr_safetensors_writer *writer, struct qr_error *e)
{
    if (munmap(writer->mapping, writer->mapping_bytes) != 0 ||
        rename(writer->temporary, writer->path) != 0)
        return qr_error_set(e, QUIRE_EIO, "%.128s: %s", writer->path, strerror(errno));
    writer->mapping = NULL;
    free(writer->temporary);
    writer->temporary = NULL;
    return QUIRE_OK;
}

void qr_safetensors_writer_destroy(struct qr_safetensors_writer **writer)
{
    if (writer == NULL || *writer == NULL)
        return;
    struct qr_safetensors_writer *w = *writer;
    if (w->mapping != NULL)
        munmap(w->mapping, w->mapping_bytes);
    if (w->temporary != NULL)
        unlink(w->temporary);
    cJSON_Delete(w->root);
    free(w->offsets);
    free(w->path);
    free(w->temporary);
    free(w);
    *writer = NULL;
}
