/* SPDX-License-Identifier: Apache-2.0
 *
 * The option table itself: reading, checking and formatting single values, and
 * finding keys. Must not know where values come from.
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WIRE_BYTES_MIN (24ull << 20)
#define WIRE_SHARE                                                                             \
    16 /* and one part in so many of the memory for pages; of both, the wire and               \
          the local path get half each */

static const struct qr_option_row rows[QR_OPTION_COUNT] = {
#define X(key, type, standard, minimum, maximum, prose)                                        \
    [QR_OPTION_##key] = {#key, standard, prose, QR_TYPE_##type, minimum, maximum},
#include "options.def"
#undef X
};

struct unit {
    const char *name;
    uint64_t factor;
};
/* Largest first: formatting takes the first that divides exactly. */
static const struct unit sizes[] = {{"TiB", 1ull << 40},
                                    {"GiB", 1ull << 30},
                                    {"MiB", 1ull << 20},
                                    {"KiB", 1ull << 10},
                                    {"B", 1}};
static const struct unit durations[] = {
    {"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};
#define UNIT_COUNT 5
_Static_assert(sizeof(sizes) == UNIT_COUNT * sizeof(sizes[0]), "sizes");
_Static_assert(sizeof(durations) == UNIT_COUNT * sizeof(durations[0]), "durations");

const struct qr_option_row *qr_option_row(enum qr_option option)
{
    return &rows[option];
}

static const struct unit *units_of(enum qr_option_type type)
{
    return type == QR_TYPE_SIZE ? sizes : type == QR_TYPE_DURATION ? durations : NULL;
}

static const char *units_text(enum qr_option_type type)
{
    if (type == QR_TYPE_SIZE)
        return "a size such as 512MiB (units B, KiB, MiB, GiB, TiB)";
    if (type == QR_TYPE_DURATION)
        return "a duration such as 30s (units ms, s, m, h, d)";
    return "a whole number";
}

void qr_option_format(enum qr_option_type type, uint64_t number, char *out, size_t size)
{
    const struct unit *units = units_of(type);
    size_t u = 0;

    if (type == QR_TYPE_BOOL) {
        snprintf(out, size, "%s", number ? "true" : "false");
        return;
    }
    while (units && u < UNIT_COUNT - 1 && (number == 0 || number % units[u].factor != 0))
        u++;
    if (units && number == 0)
        snprintf(out, size, type == QR_TYPE_SIZE ? "0B" : "0s");
    else if (units)
        snprintf(out, size, "%llu%s", (unsigned long long)(number / units[u].factor),
                 units[u].name);
    else
        snprintf(out, size, "%llu", (unsigned long long)number);
}

static quire_status refuse(const struct qr_option_row *row, const char *value,
                           const char *origin, const char *wanted, struct qr_error *e)
{
    return qr_error_set(e, QUIRE_EINVAL, "%s: %s is \"%.40s\", must be %s", origin, row->key,
                        value, wanted);
}

/* A number is digits and, for sizes and durations, a unit; 0 needs none. */
static bool read_number(enum qr_option_type type, const char *value, uint64_t *out)
{
    const struct unit *units = units_of(type);
    char *end;

    if (!isdigit((unsigned char)*value))
        return false;
    errno = 0;
    const unsigned long long number = strtoull(value, &end, 10);
    if (errno)
        return false;
    if (!units || (*end == 0 && number == 0)) {
        *out = number;
        return *end == 0;
    }
    for (size_t u = 0; u < UNIT_COUNT; u++)
        if (!strcmp(end, units[u].name))
            return !__builtin_mul_overflow(number, units[u].factor, out);
    return false;
}

bool qr_config_size(const char *text, uint64_t *out)
{
    return read_number(QR_TYPE_SIZE, text, out);
}

static quire_status set_number(const struct qr_option_row *row, const char *value,
                               const char *origin, uint64_t *out, struct qr_error *e)
{
    char low[32], high[32], wanted[128];
    uint64_t number;

    if (!read_number(row->type, value, &number))
        return refuse(row, value, origin, units_text(row->type), e);
    if (number < row->minimum || number > row->maximum) {
        qr_option_format(row->type, row->minimum, low, sizeof(low));
        qr_option_format(row->type, row->maximum, high, sizeof(high));
        snprintf(wanted, sizeof(wanted), "%s .. %s", low, high);
        return refuse(row, value, origin, wanted, e);
    }
    *out = number;
    return QUIRE_OK;
}

static quire_status set_bool(const struct qr_option_row *row, const char *value,
                             const char *origin, uint64_t *out, struct qr_error *e)
{
    const bool yes = !strcmp(value, "true") || !strcmp(value, "yes") || !strcmp(value, "on");
    const bool no = !strcmp(value, "false") || !strcmp(value, "no") || !strcmp(value, "off");

    if (!yes && !no)
        return refuse(row, value, origin, "true or false", e);
    *out = yes;
    return QUIRE_OK;
}

/* The words of a CHOICE stand in the prose between brackets: "... (text, json)." */
static bool is_choice(const struct qr_option_row *row, const char *value)
{
    const size_t n = strlen(value);
    const char *p = strchr(row->prose, '(');

    while (p && *p && *p != ')') {
        p += strspn(p, "(, ");
        const size_t word = strcspn(p, ",)");
        if (word == n && !strncmp(p, value, n))
            return true;
        p += word;
    }
    return false;
}

static quire_status set_choice(const struct qr_option_row *row, const char *value,
                               const char *origin, struct qr_error *e)
{
    char wanted[96];
    const char *open = strchr(row->prose, '(');

    if (is_choice(row, value))
        return QUIRE_OK;
    snprintf(wanted, sizeof(wanted), "one of %.*s", (int)strcspn(open + 1, ")"), open + 1);
    return refuse(row, value, origin, wanted, e);
}

static quire_status check_text(const struct qr_option_row *row, const char *value, size_t bytes,
                               const char *origin, struct qr_error *e)
{
    char wanted[96];

    for (const char *p = value; *p; p++)
        if (*p < ' ' || *p > '~')
            return refuse(row, value, origin, "printable ASCII", e);
    if (bytes >= row->minimum && bytes <= row->maximum)
        return QUIRE_OK;
    snprintf(wanted, sizeof(wanted), "%llu .. %llu bytes long",
             (unsigned long long)row->minimum, (unsigned long long)row->maximum);
    return refuse(row, value, origin, wanted, e);
}

/* Items are joined by commas: an empty one would end the list early. */
static bool has_empty_item(const char *value)
{
    return value[0] &&
           (value[0] == ',' || strstr(value, ",,") || value[strlen(value) - 1] == ',');
}

static quire_status set_text(const struct qr_option_row *row, struct qr_option_value *target,
                             const char *value, bool append, const char *origin,
                             struct qr_error *e)
{
    const bool join = append && row->type == QR_TYPE_LIST && target->text[0];
    const size_t kept = join ? strlen(target->text) + 1 : 0;
    const quire_status status = check_text(row, value, kept + strlen(value), origin, e);

    if (status)
        return status;
    if (row->type == QR_TYPE_LIST && has_empty_item(value))
        return refuse(row, value, origin, "a list without empty items", e);
    if (join)
        target->text[kept - 1] = ',';
    memcpy(target->text + kept, value, strlen(value) + 1);
    return QUIRE_OK;
}

quire_status qr_config_set(struct qr_config *config, enum qr_option option, const char *value,
                           bool append, const char *origin, struct qr_error *e)
{
    const struct qr_option_row *row = &rows[option];
    struct qr_option_value *target = &config->values[option];
    quire_status status = QUIRE_OK;

    switch (row->type) {
    case QR_TYPE_SIZE:
    case QR_TYPE_DURATION:
    case QR_TYPE_COUNT:
        status = set_number(row, value, origin, &target->number, e);
        break;
    case QR_TYPE_BOOL:
        status = set_bool(row, value, origin, &target->number, e);
        break;
    case QR_TYPE_CHOICE:
        status = set_choice(row, value, origin, e);
        if (!status)
            snprintf(target->text, sizeof(target->text), "%s", value);
        break;
    case QR_TYPE_TEXT:
    case QR_TYPE_LIST:
        status = set_text(row, target, value, append, origin, e);
        break;
    }
    if (!status)
        snprintf(target->origin, sizeof(target->origin), "%s", origin);
    return status;
}

void qr_config_defaults(struct qr_config *config)
{
    memset(config, 0, sizeof(*config));
    for (int i = 0; i < QR_OPTION_COUNT; i++) {
        struct qr_error e;
        const quire_status status =
            qr_config_set(config, (enum qr_option)i, rows[i].standard, false, "default", &e);
        if (status) {
            fprintf(stderr, "quired: options.def: %s\n", e.text);
            abort();
        }
    }
}

bool qr_config_item(const struct qr_config *config, enum qr_option option, uint32_t index,
                    char *out)
{
    const char *p = config->values[option].text;

    for (;; index--) {
        const size_t n = strcspn(p, ",");
        if (index == 0) {
            memcpy(out, p, n);
            out[n] = 0;
            return n > 0;
        }
        if (!p[n])
            return false;
        p += n + 1;
    }
}

/* At most the default, at least the floor, unless somebody set it. */
static void derive(struct qr_option_value *value, uint64_t share, uint64_t floor,
                   const char *origin)
{
    if (strcmp(value->origin, "default"))
        return;
    if (share < value->number)
        value->number = share;
    if (floor > value->number)
        value->number = floor;
    snprintf(value->origin, sizeof(value->origin), "%s", origin);
}

/* The process may be larger than `memory` by a tenth and 64 MiB. The program, gRPC and the
 * buffers of threads take up to 40 MiB of that. */
void qr_config_derive(struct qr_config *config)
{
    const uint64_t memory = qr_config_number(config, QR_OPTION_memory);
    const uint64_t floor = 2 * qr_config_number(config, QR_OPTION_max_message_bytes);
    const uint64_t both = WIRE_BYTES_MIN + memory / WIRE_SHARE;
    const uint64_t half = qr_config_number(config, QR_OPTION_local) ? both / 2 : both;

    derive(&config->values[QR_OPTION_wire_memory], half, floor,
           "from memory and max_message_bytes");
    derive(&config->values[QR_OPTION_local_memory], half, 0, "from memory");
}

quire_status qr_config_check(const struct qr_config *config, struct qr_error *e)
{
    const uint64_t message = qr_config_number(config, QR_OPTION_max_message_bytes);
    const uint64_t wire = qr_config_number(config, QR_OPTION_wire_memory);
    const uint64_t notice = qr_config_number(config, QR_OPTION_drain_notice);
    const uint64_t drain = qr_config_number(config, QR_OPTION_drain_timeout);
    const uint64_t ring = qr_config_number(config, QR_OPTION_local_ring);

    if (wire < 2 * message)
        return qr_error_set(e, QUIRE_EINVAL,
                            "wire_memory is %lluB (%s), must be at least 2 x "
                            "max_message_bytes = %lluB",
                            (unsigned long long)wire,
                            config->values[QR_OPTION_wire_memory].origin,
                            2 * (unsigned long long)message);
    if (ring & (ring - 1))
        return qr_error_set(e, QUIRE_EINVAL, "local_ring is %lluB (%s), must be a power of two",
                            (unsigned long long)ring,
                            config->values[QR_OPTION_local_ring].origin);
    if (notice > drain)
        return qr_error_set(e, QUIRE_EINVAL,
                            "drain_notice is %llums (%s), must not exceed drain_timeout = "
                            "%llums",
                            (unsigned long long)notice,
                            config->values[QR_OPTION_drain_notice].origin,
                            (unsigned long long)drain);
    return QUIRE_OK;
}
