/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a safetensors file, and the case list beside a golden one, for the unit
 * tests. Not the product's reader: it trusts its input and fails the test
 * otherwise.
 */
#ifndef QR_TEST_GOLDEN_H
#define QR_TEST_GOLDEN_H

#include <cjson/cJSON.h>

#include "test.h"

struct golden {
    uint8_t *file;       /* owned */
    const uint8_t *data; /* into file */
    cJSON *header;       /* owned */
    cJSON *cases;        /* owned; NULL for data files */
};

static inline uint8_t *golden_read(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s", path);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(f);
    rewind(f);
    uint8_t *out = malloc(*bytes + 1);
    assert_non_null(out);
    assert_int_equal(fread(out, 1, *bytes, f), *bytes);
    out[*bytes] = 0;
    fclose(f);
    return out;
}

static inline void golden_open_path(struct golden *g, const char *path)
{
    size_t bytes;
    uint64_t header_bytes;
    g->file = golden_read(path, &bytes);
    memcpy(&header_bytes, g->file, sizeof(header_bytes));
    assert_true(header_bytes < bytes - 8);
    g->header = cJSON_ParseWithLength((const char *)g->file + 8, header_bytes);
    assert_non_null(g->header);
    g->data = g->file + 8 + header_bytes;
    g->cases = NULL;
}

/** tests/golden/NAME.safetensors with NAME.json */
static inline void golden_open(struct golden *g, const char *name)
{
    char dir[4096], path[4200];
    size_t bytes;
    test_golden_dir(dir, sizeof(dir));
    snprintf(path, sizeof(path), "%s/%s.safetensors", dir, name);
    golden_open_path(g, path);
    snprintf(path, sizeof(path), "%s/%s.json", dir, name);
    char *text = (char *)golden_read(path, &bytes);
    g->cases = cJSON_Parse(text);
    assert_non_null(g->cases);
    free(text);
}

/** tests/data/NAME.safetensors */
static inline void golden_open_data(struct golden *g, const char *name)
{
    char dir[4096], path[4200];
    test_data_dir(dir, sizeof(dir));
    snprintf(path, sizeof(path), "%s/%s.safetensors", dir, name);
    golden_open_path(g, path);
}

static inline void golden_close(struct golden *g)
{
    cJSON_Delete(g->header);
    cJSON_Delete(g->cases);
    free(g->file);
}

/** Bytes of tensor `name`, unaligned; shape: up to 4 sizes, the rest 1. */
static inline const void *golden_tensor(const struct golden *g, const char *name,
                                        uint32_t shape[4])
{
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(g->header, name);
    if (!entry)
        fail_msg("no tensor %s", name);
    const cJSON *sizes = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    for (int i = 0; shape && i < 4; i++)
        shape[i] = i < cJSON_GetArraySize(sizes)
                       ? (uint32_t)cJSON_GetArrayItem(sizes, i)->valuedouble
                       : 1;
    return g->data + (size_t)cJSON_GetArrayItem(offsets, 0)->valuedouble;
}

static inline const char *golden_string(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    assert_true(cJSON_IsString(item));
    return item->valuestring;
}

static inline double golden_number(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

/** The tensor that case `item` names under `key`. */
static inline const void *golden_case_tensor(const struct golden *g, const cJSON *item,
                                             const char *key, uint32_t shape[4])
{
    return golden_tensor(g, golden_string(item, key), shape);
}

#endif
