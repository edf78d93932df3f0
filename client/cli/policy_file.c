/* SPDX-License-Identifier: Apache-2.0
 *
 * See policy_file.h.
 */
#include "policy_file.h"

#include "proto/spec_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX (1u << 20)

static quire_status read_whole(const cJSON *item, uint32_t most, uint32_t *out,
                               struct qr_error *e)
{
    const double x = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (!(x >= 0 && x <= most) || x != (double)(uint32_t)x)
        return qr_error_set(e, QUIRE_EINVAL, "%s: must be a whole number up to %u",
                            item->string, most);
    *out = (uint32_t)x;
    return QUIRE_OK;
}

static quire_status read_codec(const cJSON *item, struct quire_codec_spec *out,
                               struct qr_error *e)
{
    struct qr_codec_spec spec;
    struct qr_error why = {0};
    const char *text = cJSON_GetStringValue(item);
    if (text == NULL)
        return qr_error_set(e, QUIRE_EINVAL, "%s: must be text such as \"chan:bits=4\"",
                            item->string);
    const quire_status status =
        qr_spec_parse(text, strcmp(item->string, "key") == 0, &spec, &why);
    if (status != QUIRE_OK)
        return qr_error_set(e, status, "%s: %s", item->string, why.text);
    *out = (struct quire_codec_spec){.codec = (enum quire_codec)spec.codec,
                                     .bits = spec.bits,
                                     .axis = (enum quire_axis)spec.axis,
                                     .group = spec.group,
                                     .flags = spec.param[QR_PARAM_FLAGS],
                                     .number = spec.param[QR_PARAM_NUMBER]};
    return QUIRE_OK;
}

/** Texts such as "0-1/kv=chan:bits=8", in an array. */
static quire_status read_overrides(const cJSON *array, struct quire_policy *out,
                                   struct qr_error *e)
{
    const cJSON *item;
    if (!cJSON_IsArray(array))
        return qr_error_set(e, QUIRE_EINVAL, "overrides: must be an array of texts");
    cJSON_ArrayForEach(item, array)
    {
        const char *text = cJSON_GetStringValue(item);
        if (text == NULL)
            return qr_error_set(e, QUIRE_EINVAL, "overrides: must be an array of texts");
        const quire_status status = quire_policy_override(out, text);
        if (status != QUIRE_OK)
            return qr_error_set(e, status, "overrides: %s", quire_last_error()->text);
    }
    return QUIRE_OK;
}

static quire_status read_format(const cJSON *root, struct qr_error *e)
{
    const cJSON *format = cJSON_GetObjectItemCaseSensitive(root, "format");
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(root, "version");
    const char *text = cJSON_GetStringValue(format);
    if (text == NULL || strcmp(text, QR_POLICY_FORMAT) != 0)
        return qr_error_set(e, QUIRE_EINVAL, "format: must be \"" QR_POLICY_FORMAT "\"");
    if (!cJSON_IsNumber(version) || version->valuedouble != QR_POLICY_VERSION)
        return qr_error_set(e, QUIRE_EUNSUPPORTED, "version: must be %d", QR_POLICY_VERSION);
    return QUIRE_OK;
}

static quire_status read_item(const cJSON *item, struct quire_policy *out, struct qr_error *e)
{
    const struct {
        const char *key;
        uint32_t most, *to;
    } numbers[] = {{"page_tokens", QR_PAGE_TOKENS_MAX, &out->page_tokens},
                   {"window", QR_WINDOW_MAX, &out->window},
                   {"sink_rows", QR_PAGE_TOKENS_MAX, &out->sink_rows},
                   {"outlier_rows", QR_OUTLIERS_MAX, &out->outlier_rows}};
    static const char *const passed[] = {"format", "version", "tuned", "overrides"};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (strcmp(item->string, numbers[i].key) == 0)
            return read_whole(item, numbers[i].most, numbers[i].to, e);
    for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++)
        if (strcmp(item->string, passed[i]) == 0)
            return QUIRE_OK;
    if (strcmp(item->string, "key") == 0)
        return read_codec(item, &out->key, e);
    if (strcmp(item->string, "value") == 0)
        return read_codec(item, &out->value, e);
    return qr_error_set(e, QUIRE_EINVAL, "%.40s: is not a key of policy files", item->string);
}

static quire_status parse_root(const cJSON *root, struct quire_policy *out, struct qr_error *e)
{
    struct quire_policy policy;
    const cJSON *item;
    if (!cJSON_IsObject(root))
        return qr_error_set(e, QUIRE_EINVAL, "is not a JSON object");
    quire_policy_default(&policy);
    quire_status status = read_format(root, e);
    for (item = root->child; item != NULL && status == QUIRE_OK; item = item->next) {
        if (cJSON_GetObjectItemCaseSensitive(root, item->string) != item)
            return qr_error_set(e, QUIRE_EINVAL, "%.40s: is given twice", item->string);
        status = read_item(item, &policy, e);
    }
    /* Last, since each is checked together with the rest of the policy. */
    item = cJSON_GetObjectItemCaseSensitive(root, "overrides");
    if (status == QUIRE_OK && item != NULL)
        status = read_overrides(item, &policy, e);
    if (status == QUIRE_OK)
        *out = policy;
    return status;
}

quire_status qr_policy_file_parse(const char *text, struct quire_policy *out,
                                  struct qr_error *e)
{
    cJSON *root = cJSON_ParseWithOpts(text, NULL, true);
    if (root == NULL)
        return qr_error_set(e, QUIRE_EINVAL, "is not JSON");
    const quire_status status = parse_root(root, out, e);
    cJSON_Delete(root);
    return status;
}

quire_status qr_policy_file_read(const char *path, struct quire_policy *out, struct qr_error *e)
{
    struct qr_error why = {0};
    FILE *file = fopen(path, "re");
    char *text = file != NULL ? malloc(FILE_MAX + 1) : NULL;
    if (text == NULL) {
        if (file != NULL)
            fclose(file);
        return qr_error_set(e, QUIRE_EIO, "%s: %s", path, strerror(errno));
    }
    const size_t bytes = fread(text, 1, FILE_MAX + 1, file);
    const bool failed = ferror(file) != 0;
    fclose(file);
    quire_status status;
    if (failed || bytes > FILE_MAX) {
        status = qr_error_set(&why, failed ? QUIRE_EIO : QUIRE_EINVAL,
                              failed ? "cannot be read" : "is larger than %u bytes", FILE_MAX);
    } else {
        text[bytes] = 0;
        status = qr_policy_file_parse(text, out, &why);
    }
    free(text);
    return status == QUIRE_OK ? QUIRE_OK : qr_error_set(e, status, "%s: %s", path, why.text);
}

cJSON *qr_policy_file_json(const struct qr_policy *policy)
{
    char key[QR_SPEC_TEXT_MAX], value[QR_SPEC_TEXT_MAX];
    cJSON *root = cJSON_CreateObject();
    qr_spec_format(&policy->key, key);
    qr_spec_format(&policy->value, value);
    cJSON_AddStringToObject(root, "format", QR_POLICY_FORMAT);
    cJSON_AddNumberToObject(root, "version", QR_POLICY_VERSION);
    cJSON_AddNumberToObject(root, "page_tokens", policy->page_tokens);
    cJSON_AddNumberToObject(root, "window", policy->window);
    cJSON_AddNumberToObject(root, "sink_rows", policy->sink_rows);
    cJSON_AddNumberToObject(root, "outlier_rows", policy->outlier_rows);
    cJSON_AddStringToObject(root, "key", key);
    cJSON_AddStringToObject(root, "value", value);
    cJSON *overrides =
        policy->override_count ? cJSON_AddArrayToObject(root, "overrides") : NULL;
    for (uint32_t i = 0; i < policy->override_count; i++) {
        const struct qr_override *o = &policy->overrides[i];
        char text[QR_SPEC_TEXT_MAX + 32];
        qr_spec_format(&o->spec, key);
        snprintf(text, sizeof(text), "%u-%u/%s%s=%s", o->first_layer, o->last_layer,
                 o->tensors & QR_TENSOR_KEY ? "k" : "", o->tensors & QR_TENSOR_VALUE ? "v" : "",
                 key);
        cJSON_AddItemToArray(overrides, cJSON_CreateString(text));
    }
    return root;
}

quire_status qr_policy_file_write(const char *path, const cJSON *json, struct qr_error *e)
{
    char part[4096];
    char *text = cJSON_Print(json);
    if (text == NULL || snprintf(part, sizeof(part), "%s.part", path) >= (int)sizeof(part)) {
        cJSON_free(text);
        return qr_error_set(e, QUIRE_EIO, "%.100s: cannot be written", path);
    }
    FILE *file = fopen(part, "we");
    bool written = file != NULL && fprintf(file, "%s\n", text) > 0;
    written = file != NULL && fclose(file) == 0 && written;
    cJSON_free(text);
    if (!written || rename(part, path) != 0)
        return qr_error_set(e, QUIRE_EIO, "%.100s: %s", path, strerror(errno));
    return QUIRE_OK;
}
