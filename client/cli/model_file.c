/* SPDX-License-Identifier: Apache-2.0
 *
 * See model_file.h. Objects are read through tables of keys, so that the set of keys known
 * and the set of keys read are one thing.
 */
#include "model_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX (1u << 20)

enum kind { TEXT, WHOLE, REAL, BOOL, FLOATS, WORD };

struct word {
    const char *name;
    int value;
};

static const struct word rope_types[] = {
    {"default", QUIRE_ROPE_DEFAULT}, {"linear", QUIRE_ROPE_LINEAR},
    {"dynamic", QUIRE_ROPE_DYNAMIC}, {"yarn", QUIRE_ROPE_YARN},
    {"llama3", QUIRE_ROPE_LLAMA3},   {"longrope", QUIRE_ROPE_LONGROPE},
    {"table", QUIRE_ROPE_TABLE},     {NULL, 0},
};
static const struct word rope_layouts[] = {
    {"half", QUIRE_ROPE_HALF}, {"interleaved", QUIRE_ROPE_INTERLEAVED}, {NULL, 0}};
static const struct word rope_stored[] = {
    {"none", QUIRE_ROPE_NONE}, {"pre", QUIRE_ROPE_PRE}, {"post", QUIRE_ROPE_POST}, {NULL, 0}};

/** One key of an object and where it goes. */
struct field {
    const char *key;
    enum kind kind;
    void *out;
    const struct word *words; /* WORD */
    const float **floats;     /* FLOATS: set to out when given */
    uint32_t *count;          /* FLOATS: how many were given */
};

static quire_status read_floats(const char *where, const struct field *f, const cJSON *item,
                                struct qr_error *e)
{
    const cJSON *entry;
    size_t n = 0;
    cJSON_ArrayForEach(entry, item)
    {
        if (n == QR_DIM_MAX / 2 || !cJSON_IsNumber(entry))
            return qr_error_set(e, QUIRE_EINVAL, "%s.%s: must be at most %d numbers", where,
                                f->key, QR_DIM_MAX / 2);
        ((float *)f->out)[n++] = (float)entry->valuedouble;
    }
    *f->floats = f->out;
    *f->count = (uint32_t)n;
    return QUIRE_OK;
}

static quire_status read_word(const char *where, const struct field *f, const cJSON *item,
                              struct qr_error *e)
{
    const char *text = cJSON_GetStringValue(item);
    for (const struct word *w = f->words; text != NULL && w->name != NULL; w++) {
        if (strcmp(w->name, text) == 0) {
            *(int *)f->out = w->value;
            return QUIRE_OK;
        }
    }
    char known[128] = "";
    for (const struct word *w = f->words; w->name != NULL; w++) {
        const size_t length = strlen(known);
        snprintf(known + length, sizeof(known) - length, " %s", w->name);
    }
    return qr_error_set(e, QUIRE_EINVAL, "%s.%s '%.32s': must be one of%s", where, f->key,
                        text ? text : "(not text)", known);
}

static quire_status read_field(const char *where, const struct field *f, const cJSON *item,
                               struct qr_error *e)
{
    switch (f->kind) {
    case TEXT:
        if (!cJSON_IsString(item) || strlen(item->valuestring) > QR_NAME_MAX)
            return qr_error_set(e, QUIRE_EINVAL, "%s.%s: must be text of at most %d bytes",
                                where, f->key, QR_NAME_MAX);
        snprintf(f->out, QR_NAME_MAX + 1, "%s", item->valuestring);
        return QUIRE_OK;
    case WHOLE:
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) ||
            item->valuedouble > UINT32_MAX ||
            item->valuedouble != (double)(uint32_t)item->valuedouble)
            return qr_error_set(e, QUIRE_EINVAL, "%s.%s: must be a whole number below 2^32",
                                where, f->key);
        *(uint32_t *)f->out = (uint32_t)item->valuedouble;
        return QUIRE_OK;
    case REAL:
        if (!cJSON_IsNumber(item))
            return qr_error_set(e, QUIRE_EINVAL, "%s.%s: must be a number", where, f->key);
        *(double *)f->out = item->valuedouble;
        return QUIRE_OK;
    case BOOL:
        if (!cJSON_IsBool(item))
            return qr_error_set(e, QUIRE_EINVAL, "%s.%s: must be true or false", where, f->key);
        *(bool *)f->out = cJSON_IsTrue(item);
        return QUIRE_OK;
    case FLOATS:
        return read_floats(where, f, item, e);
    case WORD:
        return read_word(where, f, item, e);
    }
    return QUIRE_EINTERNAL;
}

static quire_status read_object(const char *where, const cJSON *object,
                                const struct field *fields, size_t count, struct qr_error *e)
{
    const cJSON *item;
    uint32_t seen = 0; /* bit i: fields[i] */
    if (!cJSON_IsObject(object))
        return qr_error_set(e, QUIRE_EINVAL, "%s: must be an object", where);
    cJSON_ArrayForEach(item, object)
    {
        size_t i = 0;
        while (i < count && strcmp(fields[i].key, item->string) != 0)
            i++;
        if (i == count)
            return qr_error_set(e, QUIRE_EINVAL, "%s: unknown key '%.64s'", where,
                                item->string);
        if (seen >> i & 1)
            return qr_error_set(e, QUIRE_EINVAL, "%s.%s: is given twice", where, fields[i].key);
        seen |= 1u << i;
        const quire_status status = read_field(where, &fields[i], item, e);
        if (status != QUIRE_OK)
            return status;
    }
    return QUIRE_OK;
}

static quire_status read_rope(struct qr_model_file *out, uint32_t index, const cJSON *object,
                              struct qr_error *e)
{
    char where[24];
    struct quire_rope *r = &out->ropes[index];
    int type = QUIRE_ROPE_DEFAULT, layout = QUIRE_ROPE_HALF;
    bool truncate = true;
    uint32_t counts[3] = {0, 0, 0};
    const struct field fields[] = {
        {"type", WORD, &type, rope_types, NULL, NULL},
        {"layout", WORD, &layout, rope_layouts, NULL, NULL},
        {"rotary_dim", WHOLE, &r->rotary_dim, NULL, NULL, NULL},
        {"theta", REAL, &r->theta, NULL, NULL, NULL},
        {"factor", REAL, &r->factor, NULL, NULL, NULL},
        {"attention_factor", REAL, &r->attention_factor, NULL, NULL, NULL},
        {"beta_fast", REAL, &r->beta_fast, NULL, NULL, NULL},
        {"beta_slow", REAL, &r->beta_slow, NULL, NULL, NULL},
        {"mscale", REAL, &r->mscale, NULL, NULL, NULL},
        {"mscale_all_dim", REAL, &r->mscale_all_dim, NULL, NULL, NULL},
        {"low_freq_factor", REAL, &r->low_freq_factor, NULL, NULL, NULL},
        {"high_freq_factor", REAL, &r->high_freq_factor, NULL, NULL, NULL},
        {"original_max_position", WHOLE, &r->original_max_position, NULL, NULL, NULL},
        {"truncate", BOOL, &truncate, NULL, NULL, NULL},
        {"max_position", WHOLE, &r->max_position, NULL, NULL, NULL},
        {"seq_len", WHOLE, &r->seq_len, NULL, NULL, NULL},
        {"inv_freq", FLOATS, out->numbers[index][0], NULL, &r->inv_freq, &counts[0]},
        {"short_factor", FLOATS, out->numbers[index][1], NULL, &r->short_factor, &counts[1]},
        {"long_factor", FLOATS, out->numbers[index][2], NULL, &r->long_factor, &counts[2]},
    };
    snprintf(where, sizeof(where), "ropes[%u]", index);
    const quire_status status =
        read_object(where, object, fields, sizeof(fields) / sizeof(fields[0]), e);
    r->type = (enum quire_rope_type)type;
    r->layout = (enum quire_rope_layout)layout;
    r->truncate_off = !truncate;
    for (int i = 0; status == QUIRE_OK && i < 3; i++) {
        if (counts[i] != 0 && counts[i] != r->rotary_dim / 2)
            return qr_error_set(e, QUIRE_EINVAL,
                                "%s: a list of %u numbers, rotary_dim %u needs %u", where,
                                counts[i], r->rotary_dim, r->rotary_dim / 2);
    }
    return status;
}

static quire_status read_layers(struct qr_model_file *out, uint32_t index, const cJSON *object,
                                struct qr_error *e)
{
    char where[24];
    struct quire_layers *l = &out->layers[index];
    int stored = QUIRE_ROPE_PRE;
    const struct field fields[] = {
        {"count", WHOLE, &l->count, NULL, NULL, NULL},
        {"query_heads", WHOLE, &l->query_heads, NULL, NULL, NULL},
        {"kv_heads", WHOLE, &l->kv_heads, NULL, NULL, NULL},
        {"key_dim", WHOLE, &l->key_dim, NULL, NULL, NULL},
        {"value_dim", WHOLE, &l->value_dim, NULL, NULL, NULL},
        {"rope", WHOLE, &l->rope, NULL, NULL, NULL},
        {"rope_stored", WORD, &stored, rope_stored, NULL, NULL},
        {"sliding_window", WHOLE, &l->sliding_window, NULL, NULL, NULL},
    };
    l->count = 1;
    snprintf(where, sizeof(where), "layers[%u]", index);
    const quire_status status =
        read_object(where, object, fields, sizeof(fields) / sizeof(fields[0]), e);
    l->rope_stored = (enum quire_rope_stored)stored;
    return status;
}

typedef quire_status (*read_entry)(struct qr_model_file *out, uint32_t index,
                                   const cJSON *object, struct qr_error *e);

/** A list of the root object and how its entries are read. */
struct list {
    const char *key;
    uint32_t most;
    read_entry read;
};

/** Detach the list from the root and read its entries; *count_out of them. */
static quire_status read_list(struct qr_model_file *out, cJSON *root, const struct list *list,
                              uint32_t *count_out, struct qr_error *e)
{
    cJSON *entries = cJSON_DetachItemFromObjectCaseSensitive(root, list->key);
    const cJSON *item;
    uint32_t count = 0;
    quire_status status = QUIRE_OK;
    if (entries != NULL && !cJSON_IsArray(entries))
        status = qr_error_set(e, QUIRE_EINVAL, "%s: must be a list", list->key);
    cJSON_ArrayForEach(item, entries)
    {
        if (status == QUIRE_OK && count == list->most)
            status = qr_error_set(e, QUIRE_EINVAL, "%s: more than %u entries", list->key,
                                  list->most);
        if (status == QUIRE_OK)
            status = list->read(out, count++, item, e);
    }
    cJSON_Delete(entries);
    if (status == QUIRE_OK && cJSON_GetObjectItemCaseSensitive(root, list->key) != NULL)
        status = qr_error_set(e, QUIRE_EINVAL, "%s: is given twice", list->key);
    *count_out = count;
    return status;
}

void qr_model_file_link(struct qr_model_file *out, uint32_t layer_runs, uint32_t ropes)
{
    out->model = (struct quire_model){.name = out->name,
                                      .revision = out->revision,
                                      .adapter = out->adapter,
                                      .layers = out->layers,
                                      .layer_runs = layer_runs,
                                      .ropes = out->ropes,
                                      .rope_count = ropes};
}

quire_status qr_model_file_calibrate(const char *path, struct qr_model_file *out,
                                     struct qr_error *e)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return qr_error_set(e, QUIRE_EIO, "%.128s: %s", path, strerror(errno));
    const size_t n = fread(out->calibration, 1, sizeof(out->calibration), file);
    const bool failed = ferror(file) != 0;
    fclose(file);
    if (failed)
        return qr_error_set(e, QUIRE_EIO, "%.128s: cannot be read", path);
    if (n == sizeof(out->calibration))
        return qr_error_set(e, QUIRE_ETOOBIG, "%.128s: a calibration has at most %u bytes",
                            path, (unsigned)QR_CALIBRATION_BYTES_MAX);
    out->model.calibration = out->calibration;
    out->model.calibration_bytes = n;
    return QUIRE_OK;
}

static quire_status read_root(cJSON *root, struct qr_model_file *out, struct qr_error *e)
{
    static const struct list ropes = {"ropes", QR_ROPES_MAX, read_rope};
    static const struct list layers = {"layers", QR_LAYERS_MAX, read_layers};
    const struct field fields[] = {
        {"name", TEXT, out->name, NULL, NULL, NULL},
        {"revision", TEXT, out->revision, NULL, NULL, NULL},
        {"adapter", TEXT, out->adapter, NULL, NULL, NULL},
    };
    uint32_t rope_count = 0, layer_runs = 0;
    if (!cJSON_IsObject(root))
        return qr_error_set(e, QUIRE_EINVAL, "not a JSON object");
    quire_status status = read_list(out, root, &ropes, &rope_count, e);
    if (status == QUIRE_OK)
        status = read_list(out, root, &layers, &layer_runs, e);
    if (status == QUIRE_OK)
        status = read_object("model", root, fields, sizeof(fields) / sizeof(fields[0]), e);
    if (status == QUIRE_OK && layer_runs == 0)
        status = qr_error_set(e, QUIRE_EINVAL, "layers: must list at least one run of layers");
    if (status == QUIRE_OK && out->name[0] == 0)
        status = qr_error_set(e, QUIRE_EINVAL, "name: must be there and not be empty");
    qr_model_file_link(out, layer_runs, rope_count);
    return status;
}

quire_status qr_model_file_parse(const char *text, struct qr_model_file *out,
                                 struct qr_error *e)
{
    const char *end = NULL;
    *out = (struct qr_model_file){0};
    cJSON *root = cJSON_ParseWithOpts(text, &end, 1);
    if (root == NULL)
        return qr_error_set(e, QUIRE_EINVAL, "not JSON, wrong at byte %td",
                            end == NULL ? (ptrdiff_t)0 : end - text);
    const quire_status status = read_root(root, out, e);
    cJSON_Delete(root);
    return status;
}

quire_status qr_model_file_read(const char *path, struct qr_model_file *out, struct qr_error *e)
{
    struct qr_error why = {0};
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return qr_error_set(e, QUIRE_EIO, "%.128s: %s", path, strerror(errno));
    char *text = calloc(1, FILE_MAX + 1);
    const size_t length = text == NULL ? 0 : fread(text, 1, FILE_MAX + 1, file);
    const bool failed = ferror(file) != 0;
    quire_status status;
    fclose(file);
    if (text == NULL)
        status = qr_error_set(&why, QUIRE_ENOMEM, "no memory to read it");
    else if (failed)
        status = qr_error_set(&why, QUIRE_EIO, "cannot be read");
    else if (length > FILE_MAX)
        status = qr_error_set(&why, QUIRE_ETOOBIG, "more than %u bytes", FILE_MAX);
    else
        status = qr_model_file_parse(text, out, &why);
    free(text);
    return status == QUIRE_OK ? QUIRE_OK
                              : qr_error_set(e, status, "%.96s: %.150s", path, why.text);
}
