/* SPDX-License-Identifier: Apache-2.0
 *
 * The YAML file: one mapping of keys to scalars, or to a sequence of scalars for
 * lists. The only file that includes libyaml. Anything else in the file (nesting,
 * anchors, several documents) is an error with its line.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define FILE_BYTES_MAX (1u << 20)

struct reader {
    struct qr_config *config;
    const char *name;
    struct qr_error *e;
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; deleted by advance */
    bool seen[QR_OPTION_COUNT];
};

/* The anchor that the current event defines, if any. */
static bool has_anchor(const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return event->data.scalar.anchor;
    case YAML_SEQUENCE_START_EVENT:
        return event->data.sequence_start.anchor;
    case YAML_MAPPING_START_EVENT:
        return event->data.mapping_start.anchor;
    default:
        return event->type == YAML_ALIAS_EVENT;
    }
}

static void where(const struct reader *r, char out[288])
{
    snprintf(out, 288, "%.240s:%zu", r->name, r->event.start_mark.line + 1);
}

static quire_status refuse(const struct reader *r, const char *what)
{
    char origin[288];

    where(r, origin);
    return qr_error_set(r->e, QUIRE_EINVAL, "%s: %s", origin, what);
}

/* Next event in r->event. */
static quire_status advance(struct reader *r)
{
    yaml_event_delete(&r->event);
    memset(&r->event, 0, sizeof(r->event));
    if (yaml_parser_parse(&r->parser, &r->event))
        return has_anchor(&r->event) ? refuse(r, "an anchor or alias; say the value itself")
                                     : QUIRE_OK;
    return qr_error_set(r->e, QUIRE_EINVAL, "%.120s:%zu: not YAML: %s", r->name,
                        r->parser.problem_mark.line + 1,
                        r->parser.problem ? r->parser.problem : "unreadable");
}

static quire_status scalar(struct reader *r, enum qr_option option, bool append)
{
    char origin[288];
    const char *value = (const char *)r->event.data.scalar.value;

    if (strlen(value) != r->event.data.scalar.length)
        return refuse(r, "a value contains a NUL character");
    where(r, origin);
    return qr_config_set(r->config, option, value, append, origin, r->e);
}

/* Items are held joined by commas. */
static quire_status item(struct reader *r, enum qr_option option, bool append)
{
    if (memchr(r->event.data.scalar.value, ',', r->event.data.scalar.length))
        return refuse(r, "an item of a list contains a comma");
    if (r->event.data.scalar.length == 0)
        return refuse(r, "an empty item in a list");
    return scalar(r, option, append);
}

static quire_status sequence(struct reader *r, enum qr_option option)
{
    quire_status status = QUIRE_OK;
    bool first = true;

    if (qr_option_row(option)->type != QR_TYPE_LIST)
        return refuse(r, "a sequence where one value belongs");
    while (!status && !(status = advance(r)) && r->event.type != YAML_SEQUENCE_END_EVENT) {
        if (r->event.type != YAML_SCALAR_EVENT)
            status = refuse(r, "an item of a list must be plain text");
        else
            status = item(r, option, !first);
        first = false;
    }
    if (!status && first)
        return refuse(r, "an empty list where at least one item belongs");
    return status;
}

static quire_status entry(struct reader *r)
{
    char origin[288];
    enum qr_option option = 0;

    if (r->event.type != YAML_SCALAR_EVENT)
        return refuse(r, "a key must be plain text");
    where(r, origin);
    quire_status status =
        qr_config_find((const char *)r->event.data.scalar.value, origin, &option, r->e);
    if (status)
        return status;
    if (r->seen[option])
        return refuse(r, "this key was given before");
    r->seen[option] = true;

    if ((status = advance(r)))
        return status;
    if (r->event.type == YAML_SEQUENCE_START_EVENT)
        return sequence(r, option);
    if (r->event.type != YAML_SCALAR_EVENT)
        return refuse(r, "a value must be plain text or a list of it");
    return scalar(r, option, false);
}

static quire_status mapping(struct reader *r)
{
    quire_status status = QUIRE_OK;

    while (!status && !(status = advance(r)) && r->event.type != YAML_MAPPING_END_EVENT)
        status = entry(r);
    return status;
}

static bool is_empty_scalar(const yaml_event_t *event)
{
    return event->type == YAML_SCALAR_EVENT && event->data.scalar.length == 0;
}

static quire_status document(struct reader *r)
{
    quire_status status = advance(r); /* stream start */

    if (!status)
        status = advance(r);
    if (status || r->event.type == YAML_STREAM_END_EVENT) /* an empty file sets nothing */
        return status;
    if ((status = advance(r)))
        return status;
    if (r->event.type == YAML_MAPPING_START_EVENT)
        status = mapping(r);
    else if (!is_empty_scalar(&r->event))
        status = refuse(r, "the file must be one mapping of keys to values");
    if (!status)
        status = advance(r); /* document end */
    if (!status)
        status = advance(r);
    if (!status && r->event.type != YAML_STREAM_END_EVENT)
        status = refuse(r, "a second document; one is allowed");
    return status;
}

quire_status qr_config_yaml(struct qr_config *config, const char *text, size_t bytes,
                            const char *name, struct qr_error *e)
{
    struct reader r = {.config = config, .name = name, .e = e};

    if (!yaml_parser_initialize(&r.parser))
        return qr_error_set(e, QUIRE_ENOMEM, "%s: no memory for the YAML parser", name);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
    const quire_status status = document(&r);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return status;
}

quire_status qr_config_file(struct qr_config *config, const char *path, struct qr_error *e)
{
    quire_status status = QUIRE_OK;
    FILE *file = fopen(path, "re");

    if (!file)
        return qr_error_set(e, QUIRE_EIO, "configuration file %.150s: %s", path,
                            strerror(errno));
    char *text = malloc(FILE_BYTES_MAX + 1);
    if (!text) {
        status = qr_error_set(e, QUIRE_ENOMEM, "no memory to read %.150s", path);
        goto out;
    }
    const size_t bytes = fread(text, 1, FILE_BYTES_MAX + 1, file);
    if (ferror(file))
        status =
            qr_error_set(e, QUIRE_EIO, "configuration file %.150s: %s", path, strerror(errno));
    else if (bytes > FILE_BYTES_MAX)
        status = qr_error_set(e, QUIRE_ETOOBIG, "configuration file %.150s is larger than 1MiB",
                              path);
    else
        status = qr_config_yaml(config, text, bytes, path, e);
out:
    free(text);
    fclose(file);
    return status;
}
